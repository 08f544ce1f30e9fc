"""Configuration of a training. One file drives both launchers. Formulas and figures: docs/training.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from cuda_agent.core.config import Configuration, DialogueKind
from cuda_agent.core.errors import UsageError
from cuda_agent.core.settings import Settings

_PRESETS = Path(__file__).parent / "presets"
Precision = Literal["float32", "bfloat16", "float16"]
#: how token losses are averaged: over all tokens of a batch, or first within each episode.
Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
#: what can be wrong with a call, see `FaultRates`.
Fault = Literal[
    "unreadable", "unknown_tool", "wrong_arguments", "no_call",
    "repeated_reading", "repeated_judging", "repeated_other",
]  # fmt: skip
Share = Annotated[float, Field(ge=0, le=1)]


class ModelOptions(Configuration):
    """The actor, and the critic's body."""

    #: folder in transformers' format, with its tokenizer. None: the stage `base` makes the model.
    path: str | None = None
    #: sizes as in config.json, to count memory (`train check`) where the folder isn't there.
    sizes: dict[str, Any] | None = None
    attention: Literal["sdpa", "flash_attention_2"] = "sdpa"
    #: of the forward and backward pass. The optimiser's weights are float32.
    train_precision: Precision = "float32"
    #: of the copy that samples. None: bfloat16 on a GPU, but float32 for a pocket policy and on a CPU.
    sample_precision: Precision | None = None
    gradient_checkpointing: bool = False
    #: rank of the low-rank adapters of actor and critic. 0: all weights are trained.
    lora_rank: int = Field(default=0, ge=0)
    lora_alpha: int = Field(default=32, ge=1)
    #: most tokens of a prompt, and of a whole episode where the stage's limits don't say it. The launcher `ray` needs
    #: both before it plays.
    prompt_tokens: int = Field(default=1024, ge=16)
    context_tokens: int = Field(default=2048, ge=64)


class Mismatch(Configuration):
    """An injected fault for an ablation. For tokens that the sampler drew with a probability below `below`, the
    importance ratio uses the sampler's probability instead of the trainer's, so that the two precisions differ."""

    below: float = Field(gt=0, le=1)


class EpisodeLimits(Configuration):
    """How a stage's episodes are played. None: as in the policy's dialogue.json."""

    #: the form of a chat model's dialogue (agent/dialogues), and the number of worked examples in prompts that have
    #: some.
    kind: DialogueKind | None = None
    examples: int | None = Field(default=None, ge=0, le=3)
    #: turns of the policy. One: everything is said in one answer.
    turns: int | None = Field(default=None, ge=1)
    #: tokens of one turn. In an episode of one turn, None allows the tokens of all turns of dialogue.json together.
    turn_tokens: int | None = Field(default=None, ge=4)
    #: tokens of the prompt and everything after it.
    context_tokens: int | None = Field(default=None, ge=64)

    def single(self) -> "EpisodeLimits":
        """Returns the limits for one turn."""
        return self.model_copy(update={"turns": 1})


class Learning(Configuration):
    """What the stages that change weights share."""

    #: number of episodes.
    batch: int = Field(ge=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_gradient_norm: float = Field(default=1.0, gt=0)
    #: padded tokens of one forward pass.
    micro_batch_tokens: int = Field(default=16384, ge=64)


class CurriculumOptions(Configuration):
    """Prefers families of tasks (`Task.origin`) whose pass rate over the last `steps` steps is within the bounds."""

    low: Share = 0.05
    high: Share = 0.7
    #: weight of a task of another family, where 1 is that of a preferred one.
    elsewhere: float = Field(default=0.1, gt=0, le=1)
    steps: int = Field(default=4, ge=1)


class PpoOptions(Learning):
    """Proximal policy optimisation with a critic. A step plays `batch` episodes."""

    steps: int = Field(ge=1)
    limits: EpisodeLimits = EpisodeLimits()
    #: None: every task equally often.
    curriculum: CurriculumOptions | None = None
    #: episodes of one update. None: the whole batch.
    mini_batch: int | None = Field(default=None, ge=1)
    epochs: int = Field(default=1, ge=1)
    actor_lr: float = Field(gt=0)
    critic_lr: float = Field(gt=0)
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=0.95, ge=0, le=1)
    #: lower bound of the objective for negative advantages. None: unbounded, as in the paper. verl's default is 3.
    dual_clip: float | None = Field(default=None, gt=1)
    #: how far a value may move in one update. None: unbounded, as in the paper. verl's default is 0.5.
    value_clip: float | None = Field(default=None, gt=0)
    #: scale advantages to mean 0 and variance 1 over the policy's tokens. verl always does it, so `ray` requires it.
    whiten: bool = False
    aggregation: Aggregation = "token-mean"
    entropy_coefficient: float = Field(default=0.0, ge=0)
    #: number of first steps in which only the critic learns.
    critic_only_steps: int = Field(default=0, ge=0)
    #: source of the old log-probabilities in the importance ratio. verl's default is the trainer.
    old_log_probabilities: Literal["trainer", "sampler"] = "trainer"
    mismatch: Mismatch | None = None
    save_every: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.mini_batch is not None and self.batch % self.mini_batch:
            raise ValueError("mini_batch must divide batch")
        if self.mismatch is not None and self.old_log_probabilities == "sampler":
            raise ValueError(
                "a mismatch changes the trainer's log-probabilities: set old_log_probabilities to `trainer`"
            )
        return self


class SampleOptions(Configuration):
    """Episodes that the warmed-up policy plays for rejection fine-tuning and value pretraining."""

    episodes_per_task: int = Field(ge=1)
    limits: EpisodeLimits = EpisodeLimits()
    #: episodes played together.
    batch: int = Field(default=64, ge=1)


class FaultRates(Configuration):
    """The most faults of each kind in a kept episode, as a share of its calls. A share above 0 allows one fault in any
    case."""

    unknown_tool: Share = 0.0
    unreadable: Share = 0.1
    wrong_arguments: Share = 0.2
    #: turns without a call.
    no_call: Share = 0.1
    #: calls that were made before with the same candidate: of tools that read files, that judge, and others.
    repeated_reading: Share = 0.3
    repeated_judging: Share = 0.1
    repeated_other: Share = 0.2


class RftOptions(Learning):
    """Rejection fine-tuning: maximises the log-likelihood of the policy's tokens in the kept episodes."""

    epochs: int = Field(default=1, ge=1)
    lr: float = Field(gt=0)
    #: an episode is kept only with a reward above this.
    reward_above: float = 0.0
    fault_rates: FaultRates = FaultRates()
    keep_truncated: bool = True


class ValueOptions(Learning):
    """Value pretraining of the critic on all episodes."""

    passes: int = Field(ge=1)
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=0.95, ge=0, le=1)
    lr: float = Field(gt=0)


class ProtectOptions(Configuration):
    """When a PPO stage halts with its last good checkpoint. None switches a reason off."""

    #: mean entropy of the policy's tokens, in nats, above this multiple of the first step's …
    entropy_factor: float | None = Field(default=3.0, gt=1)
    #: … and above this.
    entropy_floor: float = Field(default=1.0, ge=0)
    #: an importance ratio of one token above this. Before any update the ratio should be 1, so its inverse bounds it
    #: too.
    ratio: float | None = Field(default=1e4, gt=1)
    explained_variance: float | None = -1.0
    #: a mean reward so far below the best mean, both over `window` steps.
    reward_drop: float | None = Field(default=1.5, gt=0)
    window: int = Field(default=3, ge=1)
    #: steps in a row in which entropy or explained variance is out of bounds.
    patience: int = Field(default=3, ge=1)


class RayOptions(Configuration):
    """Where the launcher `ray` runs: `verl.trainer.main_ppo` on any number of nodes."""

    nodes: int = Field(default=1, ge=1)
    gpus_per_node: int = Field(default=8, ge=1)
    backend: Literal["fsdp2", "megatron"] = "fsdp2"
    #: `transformers` is our own server around `generate`, with at most one GPU per replica.
    rollout: Literal["vllm", "sglang", "transformers"] = "vllm"
    tensor_parallel: int = Field(default=1, ge=1)
    #: number of GPUs that share one long sequence.
    sequence_parallel: int = Field(default=1, ge=1)
    offload: bool = False
    gpu_memory_utilization: float = Field(default=0.6, gt=0, lt=1)
    agent_workers: int = Field(default=8, ge=1)
    #: CPU actors that build, and GPU actors that judge, one evaluation per GPU at a time. 0 judges: this process
    #: judges.
    builders: int = Field(default=4, ge=1)
    judges: int = Field(default=0, ge=0)
    #: address of a running cluster. None: one is started here and ends with the training.
    address: str | None = None


class TrainingOptions(Configuration):
    """All stages. A stage without options is left out; the next one starts from the models before it."""

    name: str = Field(min_length=1)
    launcher: Literal["embedded", "ray"] = "embedded"
    device: Literal["auto", "cuda", "cpu"] = "auto"
    #: memory of one card that trains, in GB of a billion bytes. `train check` refuses what can't fit.
    card_gb: float | None = Field(default=None, gt=0)
    seed: int = 0
    #: configuration of the environment (training/environment).
    environment: dict[str, Any] = Field(default_factory=dict)
    #: configuration of the stage `base` if there is no model.path (training/pocket/base.py).
    base: dict[str, Any] = Field(default_factory=dict)
    model: ModelOptions = ModelOptions()
    warmup: PpoOptions | None = None
    sample: SampleOptions | None = None
    rft: RftOptions | None = None
    value: ValueOptions | None = None
    ppo: PpoOptions | None = None
    protect: ProtectOptions = ProtectOptions()
    ray: RayOptions = RayOptions()
    #: `speedup`, an ablation: the reward is the speed-up over the matched baseline, or -1 if the candidate failed.
    reward: Literal["milestone", "speedup"] = "milestone"
    #: False, an ablation: every stage plays single turns.
    agent_loop: bool = True
    #: held-out tasks are played after every stage.
    evaluate: bool = True
    #: configuration of their evaluation (training/held_out.py).
    held_out: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.rft is not None or self.value is not None) and self.sample is None:
            raise ValueError("rft and value learn from the episodes of `sample`: give its options")
        if self.warmup is not None and self.warmup.limits.turns not in (None, 1):
            raise ValueError("warmup.limits.turns: the warm-up plays single turns; leave it out")
        if self.launcher == "ray":
            if self.ray.backend == "megatron" and self.model.lora_rank:
                raise ValueError("model.lora_rank: adapters need ray.backend fsdp2")
            for name, stage in (("warmup", self.warmup), ("ppo", self.ppo)):
                if stage is not None and not stage.whiten:
                    raise ValueError(f"{name}.whiten: verl's own trainer always whitens advantages; use `embedded`")
                if stage is not None and stage.curriculum is not None:
                    raise ValueError(f"{name}.curriculum: `ray` draws all tasks before it plays; use `embedded`")
                if stage is not None and stage.mismatch is not None:
                    raise ValueError(f"{name}.mismatch: only the launcher `embedded` injects one")
                gpus = self.ray.nodes * self.ray.gpus_per_node
                if stage is not None and stage.batch % gpus:
                    raise ValueError(f"{name}.batch must be a multiple of the {gpus} GPUs that train")
        return self


def read_options(path: Path, changes: Sequence[str] = ()) -> TrainingOptions:
    """Reads a configuration file or a preset by its name, with some settings changed (`ppo.steps=20`). Raises
    UsageError that names the bad key or value."""
    source = preset(str(path)) if not path.exists() and path.suffix == "" else path
    if not source.exists():
        known = ", ".join(preset_names())
        raise UsageError(f"Can't read {path}: no such file", f"Give a file, or one of the presets: {known}")
    settings = Settings(source)
    for change in changes:
        _change(settings, change)
    return settings.parse(TrainingOptions)


def _change(settings: Settings, change: str) -> None:
    import yaml

    name, equals, text = change.partition("=")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        equals = ""
    if not equals or not name:
        raise UsageError(f"Can't read the setting {change!r}", "Write it as ppo.steps=20")
    settings.put(name, value, f"--set {name}")


def preset_names() -> list[str]:
    return sorted(path.stem for path in _PRESETS.glob("*.yaml"))


def preset(name: str) -> Path:
    """Returns the path of a preset, which need not exist."""
    return _PRESETS / f"{name}.yaml"
