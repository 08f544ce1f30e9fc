"""Configuration files of trainings: what is refused, and how it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.agent.trained.dialogue import DialogueSettings
from cuda_agent.core.errors import UsageError
from cuda_agent.training.config import EpisodeLimits, TrainingOptions, preset_names, read_options
from cuda_agent.training.environment.opening import EnvironmentOptions, limited, read_tasks
from cuda_agent.training.held_out import HeldOutOptions

STAGE = {"steps": 1, "batch": 4, "actor_lr": 1e-4, "critic_lr": 1e-4}


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_read(name: str) -> None:
    options = read_options(Path(name))
    assert options.name == name
    assert options.ppo is not None and (options.ppo.clip_low, options.ppo.clip_high) == (0.2, 0.28)
    assert (options.ppo.gamma, options.ppo.lam) == (1.0, 0.95)


@pytest.mark.parametrize("name", preset_names())
def test_the_tasks_of_a_preset_are_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    train, held = read_tasks(EnvironmentOptions.parse(read_options(Path(name)).environment))
    assert train and held and not {task.key for task in train} & {task.key for task in held}
    assert {task.split for task in train} == {"train"} and {task.split for task in held} <= {"held_out", "validation"}


def test_the_paper_preset_has_the_published_figures() -> None:
    ppo = read_options(Path("paper")).ppo
    assert ppo is not None
    assert (ppo.batch, ppo.mini_batch, ppo.steps, ppo.actor_lr, ppo.critic_lr) == (1024, None, 150, 3e-6, 6e-6)
    assert ppo.dual_clip is None and ppo.value_clip is None


def test_limits_differ_by_stage() -> None:
    """The paper's: 32,768 tokens in single turns, 131,072 in the loop; 150 turns to train and 200 to evaluate."""
    options = read_options(Path("paper"))
    assert options.warmup is not None and options.ppo is not None and options.sample is not None
    settings = DialogueSettings(kind="tools", turns=100, turn_tokens=4096, context_tokens=65_536)
    warmup = limited(settings, options.warmup.limits.single())
    assert (warmup.turns, warmup.turn_tokens, warmup.context_tokens) == (1, 32_768, 32_768)
    held = HeldOutOptions.parse(options.held_out).limits
    for limits, turns in ((options.sample.limits, 150), (options.ppo.limits, 150), (held, 200)):
        found = limited(settings, limits)
        assert (found.turns, found.turn_tokens, found.context_tokens) == (turns, 4096, 131_072)
    assert limited(settings, EpisodeLimits()) == settings
    assert limited(settings, EpisodeLimits(kind="files", turns=1)).turn_tokens == 65_536
    assert limited(settings, EpisodeLimits(kind="short", turns=1, turn_tokens=500)).turn_tokens == 500


def test_dialogues_differ_by_stage() -> None:
    settings = DialogueSettings(kind="tools", turns=100, turn_tokens=4096, context_tokens=65_536)
    options = read_options(Path("kernel"))
    assert options.warmup is not None and options.ppo is not None
    warmup, ppo = limited(settings, options.warmup.limits.single()), limited(settings, options.ppo.limits)
    assert (warmup.kind, warmup.turns, warmup.examples, ppo.kind, ppo.turns) == ("short", 1, 1, "short", 4)
    assert limited(settings, EpisodeLimits(kind="short", examples=0)).examples == 0
    with pytest.raises(UsageError, match=r"can't use the agent's tools.*short or files"):
        limited(settings, EpisodeLimits(turns=1))
    with pytest.raises(UsageError, match="pocket policy can't play short"):
        limited(DialogueSettings(), EpisodeLimits(kind="short"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "x", "pppo": STAGE}, "Unknown setting 'pppo'. Did you mean 'ppo'"),
        ({"name": "x", "ppo": {**STAGE, "stepz": 1}}, "Unknown setting 'ppo.stepz'. Did you mean 'ppo.steps'"),
        ({"name": "x", "ppo": {**STAGE, "mini_batch": 3}}, "mini_batch must divide batch"),
        ({"name": "x", "rft": {"batch": 1, "lr": 1e-4}}, "learn from the episodes of `sample`"),
        ({"name": "x", "launcher": "ray", "ppo": STAGE}, "always whitens"),
        (
            {"name": "x", "launcher": "ray", "ray": {"backend": "megatron"}, "model": {"lora_rank": 4}},
            "adapters need ray.backend fsdp2",
        ),
        ({"name": "x", "warmup": {**STAGE, "limits": {"turns": 2}}}, "the warm-up plays single turns"),
    ],
)
def test_what_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TrainingOptions.parse(values)


def test_settings_on_the_command_line() -> None:
    options = read_options(Path("pocket"), ["ppo.steps=3", "rft=null", "model.train_precision=bfloat16"])
    assert options.ppo is not None and options.ppo.steps == 3
    assert options.rft is None and options.model.train_precision == "bfloat16"
    for bad in ("ppo.steps", "=3", "ppo.steps=[1"):
        with pytest.raises(UsageError, match="Can't read the setting"):
            read_options(Path("pocket"), [bad])


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one of the presets: kernel, lora, paper, pocket"):
        read_options(Path("pockett"))
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(UsageError, match="holds no settings"):
        read_options(tmp_path / "list.yaml")
