"""Settings of the stages that make a data set. Those of the filter: `tasks.filter.options`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from cuda_agent.core.config import Configuration, DeviceSetting, Flag, LanguageModelOptions, SandboxSetting
from cuda_agent.core.enums import Device
from cuda_agent.tasks.captured import MEMORY_MIB
from cuda_agent.tasks.decontaminate.stage import THRESHOLD
from cuda_agent.tasks.filter.options import WindowSetting

#: base of the settings of stages that need no GPU.
CPU = {"device": "cpu"}
ThresholdSetting = Annotated[
    float, Flag("Similarity from which on a task is left out.", "--threshold"), Field(ge=0, le=1)
]
CopiesSetting = Annotated[int, Flag("Tasks of the set that may be alike.", "--copies"), Field(ge=1)]
LibrariesSetting = Annotated[
    tuple[Literal["torch", "transformers"], ...],
    Flag("torch or transformers; both when not given (repeatable).", "--library", "NAME"),
]
StackSetting = Annotated[str | None, Flag("Whose measurements count, where there are several.", "--stack", "HASH")]


class CrawlOptions(Configuration):
    """A run of `cuda-agent tasks crawl`."""

    libraries: LibrariesSetting = ("torch", "transformers")
    workers: Annotated[int | None, Flag("Processes that try seeds; else half the cores.")] = Field(default=None, ge=1)
    sandbox: SandboxSetting = "auto"


class ComposeOptions(Configuration):
    """What is composed."""

    stack: Annotated[str, Flag("For which times are predicted.", metavar="GPU")] = "H200"
    window_ms: WindowSetting = (1.5, 70.0)
    memory_gb: Annotated[float, Flag("Most for one pass: inputs, weights, all outputs.")] = Field(default=8.0, gt=0)
    #: versions of the libraries there, by name.
    runs_with: Annotated[
        dict[Annotated[str, Field(pattern="^(torch|transformers)$")], str],
        Flag("Leave out seeds that need a newer one (repeatable).", metavar="LIBRARY=VERSION"),
    ] = Field(default_factory=dict)

    @field_validator("window_ms")
    @classmethod
    def _is_above_zero(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] <= 0:
            raise ValueError("give LOW and HIGH with 0 < LOW < HIGH")
        return value


class ComposeRunOptions(ComposeOptions):
    """A run of `cuda-agent tasks compose`."""

    count: Annotated[int, Flag("Candidates that the folder shall hold.")] = Field(default=6000, ge=1)
    seed: Annotated[int, Flag("Of the random choices.")] = 0
    composer: Annotated[Literal["builtin", "llm"], Flag("builtin, or llm: a language model.")] = "builtin"
    llm: LanguageModelOptions | None = Field(default=None, description="A language model (--composer llm)")


class DecontaminateOptions(Configuration):
    """A run of `cuda-agent tasks decontaminate`, and in part of `tasks fingerprint`."""

    against: Annotated[
        tuple[str, ...],
        Flag(
            "Evaluation set: folder, .py, .parquet, saved data set, fingerprint file, name on Hugging Face "
            "(repeatable).",
            metavar="PATH",
        ),
    ] = ()
    threshold: ThresholdSetting = THRESHOLD
    copies: CopiesSetting = 1
    stack: StackSetting = None
    device: DeviceSetting = Device.CPU
    memory_mib: Annotated[int, Flag("What an evaluation task's process may hold.")] = Field(default=MEMORY_MIB, ge=1)
    sandbox: SandboxSetting = "auto"


class ChooseOptions(Configuration):
    """What `cuda-agent tasks export` writes and `tasks stats` describes."""

    count: Annotated[int | None, Flag("So many tasks, at the published shares; else all.")] = Field(default=None, ge=1)
    stack: StackSetting = None
