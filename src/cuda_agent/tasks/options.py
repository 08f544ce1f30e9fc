"""Settings of the stages that make a data set. Those of the filter: `tasks.filter.options`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from cuda_agent.core.config import Configuration, DeviceSetting, Flag, LanguageModelOptions, SandboxSetting
from cuda_agent.core.enums import Device
from cuda_agent.tasks.decontaminate.capture import MEMORY_MIB
from cuda_agent.tasks.decontaminate.stage import THRESHOLD
from cuda_agent.tasks.filter.options import WindowSetting

#: base of the settings of stages that need no GPU.
CPU = {"device": "cpu"}
ThresholdSetting = Annotated[
    float, Flag("--threshold"), Field(ge=0, le=1, description="Similarity from which on a task is left out.")
]
CopiesSetting = Annotated[int, Flag("--copies"), Field(ge=1, description="Tasks of the set that may be alike.")]
LibrariesSetting = Annotated[
    tuple[Literal["torch", "transformers"], ...],
    Flag("--library", "NAME"),
    Field(description="torch or transformers; both when not given (repeatable)."),
]
StackSetting = Annotated[
    str | None,
    Flag("--stack", "HASH"),
    Field(description="Whose measurements count, where there are several."),
]


class CrawlOptions(Configuration):
    """A run of `cuda-agent tasks crawl`."""

    libraries: LibrariesSetting = ("torch", "transformers")
    workers: Annotated[int | None, Flag()] = Field(
        default=None, ge=1, description="Processes that try seeds; half of the cores when not given."
    )
    sandbox: SandboxSetting = "auto"


class ComposeOptions(Configuration):
    """What is composed."""

    stack: Annotated[str, Flag(metavar="GPU")] = Field(default="H200", description="For which times are predicted.")
    window_ms: WindowSetting = Field(default=(1.5, 70.0), description="Predicted eager times.")
    memory_gb: Annotated[float, Flag()] = Field(
        default=8.0, gt=0, description="Most that one pass may hold: inputs, weights, all outputs."
    )
    #: versions of the libraries there, by name.
    runs_with: Annotated[
        dict[Annotated[str, Field(pattern="^(torch|transformers)$")], str], Flag(metavar="LIBRARY=VERSION")
    ] = Field(default_factory=dict, description="Leave out seeds that need a newer one (repeatable).")

    @field_validator("window_ms")
    @classmethod
    def _is_above_zero(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] <= 0:
            raise ValueError("give LOW and HIGH with 0 < LOW < HIGH")
        return value


class ComposeRunOptions(ComposeOptions):
    """A run of `cuda-agent tasks compose`."""

    count: Annotated[int, Flag()] = Field(default=6000, ge=1, description="Candidates that the folder shall hold.")
    seed: Annotated[int, Flag()] = Field(default=0, description="Of the random choices.")
    composer: Annotated[Literal["builtin", "llm"], Flag()] = Field(
        default="builtin", description="builtin, or llm: a language model (give --model)."
    )
    llm: LanguageModelOptions | None = Field(default=None, description="A language model (--composer llm)")


class DecontaminateOptions(Configuration):
    """A run of `cuda-agent tasks decontaminate`, and in part of `tasks fingerprint`."""

    against: Annotated[tuple[str, ...], Flag(metavar="PATH")] = Field(
        default=(),
        description="Evaluation set: a folder, .py, .parquet, a saved data set, a fingerprint file, or a name on "
        "Hugging Face (repeatable).",
    )
    threshold: ThresholdSetting = THRESHOLD
    copies: CopiesSetting = 1
    stack: StackSetting = None
    device: DeviceSetting = Device.CPU
    memory_mib: Annotated[int, Flag()] = Field(
        default=MEMORY_MIB, ge=1, description="What an evaluation task's process may hold."
    )
    sandbox: SandboxSetting = "auto"


class ChooseOptions(Configuration):
    """What `cuda-agent tasks export` writes and `tasks stats` describes."""

    count: Annotated[int | None, Flag()] = Field(
        default=None, ge=1, description="So many tasks, at the published shares; all if not given."
    )
    stack: StackSetting = None
