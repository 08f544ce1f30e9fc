"""The options of the stages that make a dataset; `tasks.filter.options` has those of the filter."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from cuda_agent.core.config import Configuration, DeviceSetting, Flag, LanguageModelOptions, SandboxSetting
from cuda_agent.core.enums import Device
from cuda_agent.tasks.captured import MEMORY_MIB
from cuda_agent.tasks.decontaminate.stage import THRESHOLD
from cuda_agent.tasks.filter.options import WindowSetting

#: The base of the options of stages that need no GPU.
CPU = {"device": "cpu"}
ThresholdSetting = Annotated[float, Flag("Similarity from which a task is removed.", "--threshold"), Field(ge=0, le=1)]
CopiesSetting = Annotated[int, Flag("Similar tasks that the data set may hold.", "--copies"), Field(ge=1)]
LibrariesSetting = Annotated[
    tuple[Literal["torch", "transformers"], ...],
    Flag("torch or transformers (repeatable); by default both.", "--library", "NAME"),
]
AgainstSetting = Annotated[
    tuple[str, ...],
    Flag(
        "Evaluation set: folder, .py, .parquet, saved dataset, fingerprint file, name on Hugging Face (repeatable).",
        metavar="PATH",
    ),
]
StackSetting = Annotated[str | None, Flag("Stack of the measurements, where there are several.", "--stack", "HASH")]


class CrawlOptions(Configuration):
    """The options of `cuda-agent tasks crawl`."""

    libraries: LibrariesSetting = ("torch", "transformers")
    workers: Annotated[int | None, Flag("Number of processes; default: half the cores.")] = Field(default=None, ge=1)
    sandbox: SandboxSetting = "auto"


class ComposeOptions(Configuration):
    """The options of composing."""

    stack: Annotated[str, Flag("GPU for which times are predicted.", metavar="GPU")] = "H200"
    window_ms: WindowSetting = (1.5, 70.0)
    memory_gb: Annotated[float, Flag("Maximum memory of one pass: inputs, weights, outputs.")] = Field(
        default=8.0, gt=0
    )
    #: A library -> its version on the target machine.
    runs_with: Annotated[
        dict[Annotated[str, Field(pattern="^(torch|transformers)$")], str],
        Flag("Leave out seeds that need a newer version (repeatable).", metavar="LIBRARY=VERSION"),
    ] = Field(default_factory=dict)

    @field_validator("window_ms")
    @classmethod
    def _is_above_zero(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] <= 0:
            raise ValueError("give LOW and HIGH with 0 < LOW < HIGH")
        return value


class ComposeRunOptions(ComposeOptions):
    """The options of `cuda-agent tasks compose`."""

    count: Annotated[int, Flag("Candidates in the folder afterwards.")] = Field(default=6000, ge=1)
    seed: Annotated[int, Flag("Seed of the random choices.")] = 0
    composer: Annotated[Literal["builtin", "llm"], Flag("builtin, or llm (a language model).")] = "builtin"
    llm: LanguageModelOptions | None = Field(default=None, description="A language model (--composer llm)")


class DecontaminateOptions(Configuration):
    """The options of `cuda-agent tasks decontaminate`, and in part of `tasks fingerprint`."""

    against: AgainstSetting = ()
    threshold: ThresholdSetting = THRESHOLD
    copies: CopiesSetting = 1
    stack: StackSetting = None
    device: DeviceSetting = Device.CPU
    memory_mib: Annotated[int, Flag("Memory of an evaluation task's process.")] = Field(default=MEMORY_MIB, ge=1)
    sandbox: SandboxSetting = "auto"


class KernelOptions(Configuration):
    """The options of `cuda-agent tasks kernel`."""

    against: AgainstSetting = ()
    seed: Annotated[int, Flag("Seed of the random choices.")] = 0
    workers: Annotated[int | None, Flag("Number of processes; default: half the cores.")] = Field(default=None, ge=1)
    sandbox: SandboxSetting = "auto"


class ChooseOptions(Configuration):
    """The options of `cuda-agent tasks export` and `tasks stats`."""

    count: Annotated[int | None, Flag("Number of tasks, at the published shares; default: all.")] = Field(
        default=None, ge=1
    )
    stack: StackSetting = None
