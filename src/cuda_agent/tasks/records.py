"""The records of task synthesis.

Seed (crawl) -> DatasetTask (compose) -> Measurement (filter) -> Similarity (decontaminate) -> parquet (export). Sizes
are expressions: Python arithmetic over the letters of the layouts and the names of the parameters.
"""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from cuda_agent.core.record import Record, StoredRecord
from cuda_agent.core.records import Task
from cuda_agent.core.stack import Stack

#: The file of a dataset's folder that has every candidate, a line each.
CANDIDATES_FILE = "candidates.jsonl"

#: The values of a tensor that `get_inputs` draws.
Values = Literal[
    "normal", "uniform", "positive", "probabilities", "log_probabilities", "signs", "indices", "mask", "positions"
]


class Port(Record):
    """One tensor that a seed takes.

    `layout` names its dimensions, such as `N C H W`. A leading `*` is any number of dimensions, and a dimension may be
    an expression, such as `2 * D`. `high` is the exclusive bound of `indices`, an expression.
    """

    name: str
    layout: str
    dtype: str = "float32"
    values: Values = "normal"
    high: str | None = None


class Parameter(Record):
    """An argument of a constructor or a call. It is one of `choices`, each an expression over the dimensions and the
    earlier parameters."""

    name: str
    choices: tuple[str, ...] = Field(min_length=1)


class Seed(Record):
    """One operator of a library, with its usual call.

    `constructor` makes a module with weights or settings, as in `nn.Conv2d({C}, {out_channels}, {kernel_size})`; it is
    None for a function. `call` is an expression with `{layer}` for the module and every port's name in braces, as in
    `{layer}({x})` or `torch.cumsum({x}, dim={dim})`. The first port takes the output of the seed before. `where` are
    conditions, as in `C % groups == 0`. `flops` and `moved` (bytes that eager's kernels read and write) are expressions
    that may also use the element counts `inputs`, `weights` and `outputs`. `sizes` are natural dimensions at which the
    seed was run. `initialize` are lines to run after a constructor that leaves weights without values, with `{layer}`
    for the module. `needs` is the oldest version of a library that has the operator, where an older one is known not to
    have it.
    """

    name: str
    library: Literal["torch", "transformers"]
    #: The operation, which is the same for its module, functional and method spelling.
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
    #: A phrase for a docstring: "2-D convolution".
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


class Rule(StrEnum):
    """The filter's rules, in the order in which they are checked."""

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


class TaskFinding(Record):
    """A rule that a task broke. `detail` is one line."""

    rule: Rule
    detail: str


class Measurement(StoredRecord):
    """The filter's result for one task on one stack. Times are None where the task broke an earlier rule."""

    task_key: str
    finding: TaskFinding | None
    eager_us: float | None = None
    eager_low_us: float | None = None
    eager_high_us: float | None = None
    peak_memory_bytes: int | None = None
    #: The canonical hash of the operator graph with shapes abstracted, and the graph's operators.
    graph_hash: str | None = None
    graph_operators: tuple[str, ...] = ()
    seconds: dict[str, float] = Field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.finding is None


class MeasurementFile(StoredRecord):
    """The first line of a file of measurements."""

    stack: Stack


class Similarity(StoredRecord):
    """The similarity of a task to evaluation tasks, and to earlier tasks of its own dataset.

    `similarity` is that of syntax trees, 0 to 1, to the nearest evaluation task. `same_graph` is an evaluation task
    with the same operator graph. `twin` is the key of the nearest earlier task that is kept.
    """

    task_key: str
    finding: TaskFinding | None
    nearest: str | None = None
    similarity: float = 0.0
    same_graph: str | None = None
    twin: str | None = None
    twin_similarity: float = 0.0
