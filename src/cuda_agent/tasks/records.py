"""What the stages of task synthesis hand to each other.

Seed (crawl) -> DatasetTask (compose) -> Measurement (filter) -> Similarity (decontaminate) -> parquet (export).
Sizes are expressions: Python arithmetic over the letters of the layouts and the names of the parameters.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.records import Task
from cuda_agent.core.stack import Stack

#: what a tensor holds, as `get_inputs` draws it.
Values = Literal[
    "normal", "uniform", "positive", "probabilities", "log_probabilities", "signs", "indices", "mask", "positions"
]


class Port(Record):
    """One tensor that a seed takes.

    `layout`: its dimensions by name, such as `N C H W`; a leading `*` stands for any number of dimensions, and a
    dimension may be an expression, such as `2 * D`. `high`: exclusive bound of `indices`, an expression.
    """

    name: str
    layout: str
    dtype: str = "float32"
    values: Values = "normal"
    high: str | None = None


class Parameter(Record):
    """A constructor's or a call's argument: one of `choices`, each an expression over the dimensions and the
    parameters before it."""

    name: str
    choices: tuple[str, ...] = Field(min_length=1)


class Seed(Record):
    """One operator of a library, and how a person would call it.

    `constructor`: of a module that holds weights or settings, as in `nn.Conv2d({C}, {out_channels}, {kernel_size})`;
    None for a function. `call`: an expression in which `{layer}` is the constructed module and every port stands in
    braces by its name, as in `{layer}({x})` or `torch.cumsum({x}, dim={dim})`. The first port takes what the seed
    before has made. `where`: conditions that must hold, as in `C % groups == 0`. `flops` and `moved` (bytes that
    eager's kernels read and write): expressions that may also use `inputs`, `weights` and `outputs`, their elements.
    `sizes`: dimensions at which the seed was run, and which look natural for it. `initialize`: lines to run after a
    constructor that leaves weights without values, with `{layer}` for the module. `needs`: a library's oldest version
    that has it, where an older one was seen not to.
    """

    name: str
    library: Literal["torch", "transformers"]
    #: the operation, the same for its module, functional and method spelling.
    operator: str
    family: str
    spelling: Literal["module", "functional", "method"]
    ports: tuple[Port, ...] = Field(min_length=1)
    parameters: tuple[Parameter, ...] = ()
    imports: tuple[str, ...] = ()
    constructor: str | None = None
    initialize: tuple[str, ...] = ()
    needs: dict[str, str] = Field(default_factory=dict)
    call: str
    where: tuple[str, ...] = ()
    flops: str = "outputs"
    moved: str = "4 * (inputs + weights + outputs)"
    sizes: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    #: what it computes, a phrase for a docstring: "2-D convolution".
    says: str


class LeftOut(Record):
    """A callable of a library that gave no seed."""

    name: str
    reason: str


class Cost(Record):
    """The cost of one forward pass in eager."""

    flops: float
    """Operations."""
    bytes: float
    """Bytes that eager's kernels read and write."""
    predicted_us: float
    """Predicted time in eager."""
    parts_us: tuple[float, ...] = ()
    """Predicted time of each operator."""
    held_bytes: int = 0
    """Inputs, weights and every operator's output together."""


class DatasetTask(StoredRecord):
    """A composed task."""

    task: Task
    """The task."""
    ops: tuple[str, ...]
    """Names of its seeds in order."""
    composer: str
    """The composer."""
    number: int
    """Its place in the composer's stream; with the composer's seed it reproduces the task."""
    cost: Cost | None = None
    """Cost of a forward pass."""

    @property
    def data_source(self) -> str:
        """The published column: `torch#2`, `transformers#1`."""
        return self.task.origin


class Rule(StrEnum):
    """The filters, in the order in which they are asked."""

    RUNS = "runs"
    FINITE = "finite"
    MEMORY = "memory"
    STOCHASTIC = "stochastic"
    DETERMINISTIC = "deterministic"
    VARIES = "varies"
    NULL_TESTS = "null_tests"
    COMPILES = "compiles"
    AGREES = "agrees"
    EAGER_TIME = "eager_time"
    DUPLICATE = "duplicate"
    SIMILAR = "similar"


class Finding(Record):
    """A rule that a task broke. `detail`: one line."""

    rule: Rule
    detail: str


class Measurement(StoredRecord):
    """What the filters found about one task on one stack. Times are None where it did not come so far."""

    task_key: str
    finding: Finding | None
    eager_us: float | None = None
    eager_low_us: float | None = None
    eager_high_us: float | None = None
    peak_memory_bytes: int | None = None
    #: canonical hash of the operator graph with shapes abstracted, and its operators.
    graph_hash: str | None = None
    graph_operators: tuple[str, ...] = ()
    seconds: dict[str, float] = Field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.finding is None


class MeasurementFile(StoredRecord):
    """The head of a file of measurements."""

    stack: Stack


class Similarity(StoredRecord):
    """How near a task is to evaluation tasks, and to the tasks of its own set that stand before it.

    `similarity`: of syntax trees, 0 to 1, to the nearest evaluation task. `same_graph`: an evaluation task with its
    operator graph. `twin`: key of the nearest earlier task that is kept.
    """

    task_key: str
    finding: Finding | None
    nearest: str | None = None
    similarity: float = 0.0
    same_graph: str | None = None
    twin: str | None = None
    twin_similarity: float = 0.0
