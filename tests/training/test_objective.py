"""The equations of docs/training.md against numbers worked out by hand, through verl's own functions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

pytest.importorskip("verl", reason="make train-env")

from toy import STEP, options, tiny_model

from cuda_agent.training.config import PpoOptions
from cuda_agent.training.engine.advantages import estimate, log_ratios, mismatched
from cuda_agent.training.engine.compose import compose, embedded


def test_gae_skips_observations() -> None:
    """Own tokens a, b, c, d with two observation tokens between b and c; gamma 1, lambda 0.95, reward 3 at d.

    V = 0.5, 1.0, (9, 9), 1.5, 2.0. Backwards over own tokens alone:
    A_d = 3 - 2 = 1;  A_c = 2 - 1.5 + 0.95 * 1 = 1.45;  A_b = 1.5 - 1 + 0.95 * 1.45 = 1.8775;
    A_a = 1 - 0.5 + 0.95 * 1.8775 = 2.283625. Targets V + A: 2.783625, 2.8775, 2.95, 3.
    """
    values = torch.tensor([0.5, 1.0, 9.0, 9.0, 1.5, 2.0])
    mask = torch.tensor([1, 1, 0, 0, 1, 1])
    found = estimate([3.0], [values], [mask], gamma=1.0, lam=0.95, whiten=False)
    assert found.advantages[0].tolist() == pytest.approx([2.283625, 1.8775, 0, 0, 1.45, 1.0], rel=1e-6)
    assert found.targets[0].tolist() == pytest.approx([2.783625, 2.8775, 0, 0, 2.95, 3.0], rel=1e-6)


def test_gae_of_episodes_of_different_lengths() -> None:
    """A short episode beside a long one is as it is alone: padding is no token."""
    short = (torch.tensor([1.0, 2.0]), torch.tensor([1, 1]))
    long = (torch.tensor([0.5, 1.0, 9.0, 1.5]), torch.tensor([1, 1, 0, 1]))
    alone = estimate([-1.0], [short[0]], [short[1]], gamma=1.0, lam=0.95, whiten=False)
    both = estimate([-1.0, 2.0], [short[0], long[0]], [short[1], long[1]], gamma=1.0, lam=0.95, whiten=False)
    assert torch.equal(alone.advantages[0], both.advantages[0])
    assert alone.advantages[0].tolist() == pytest.approx([2 - 1 + 0.95 * -3.0, -3.0])


def test_whitened_advantages_have_mean_0_and_variance_1_over_own_tokens() -> None:
    values, mask = torch.tensor([0.5, 1.0, 9.0, 9.0, 1.5, 2.0]), torch.tensor([1, 1, 0, 0, 1, 1])
    found = estimate([3.0], [values], [mask], gamma=1.0, lam=0.95, whiten=True)
    own = found.advantages[0][mask.bool()]
    assert float(own.mean()) == pytest.approx(0, abs=1e-6) and float(own.var()) == pytest.approx(1, rel=1e-3)


def test_explained_variance_of_a_useless_critic_is_negative() -> None:
    values, mask = torch.tensor([5.0, -5.0, 5.0, -5.0]), torch.ones(4, dtype=torch.int64)
    assert estimate([3.0], [values], [mask], gamma=1.0, lam=0.95, whiten=False).explained_variance < -1


@pytest.fixture(scope="module")
def actor_config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """verl's own configuration of the actor, as every PPO stage has it."""
    from verl.utils.config import omega_conf_to_dataclass

    path = tmp_path_factory.mktemp("model")
    tiny_model(path)
    stage = PpoOptions.model_validate({"steps": 1, **STEP})
    config = compose(embedded(options().model, str(path), str(path), stage))
    return omega_conf_to_dataclass(config.actor_rollout_ref.actor)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [
        # positive advantage: what is gained ends at 1.28
        (1.10, 1.0, 1.10),
        (1.28, 1.0, 1.28),
        (1.50, 1.0, 1.28),
        (0.50, 1.0, 0.50),
        # negative advantage: it ends at 0.8, and a large ratio is paid for in full, without dual clip
        (0.90, -1.0, -0.90),
        (0.80, -1.0, -0.80),
        (0.50, -1.0, -0.80),
        (1.50, -1.0, -1.50),
        (20.0, -1.0, -20.0),
    ],
)
def test_clip_at_08_and_128(actor_config: Any, ratio: float, advantage: float, objective: float) -> None:
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla

    one = torch.ones(1, 1)
    loss, _ = compute_policy_loss_vanilla(
        torch.zeros(1, 1), math.log(ratio) * one, advantage * one, one, actor_config.loss_agg_mode, actor_config
    )
    assert -float(loss) == pytest.approx(objective, rel=1e-5)


def test_value_loss_is_half_the_squared_error_however_far_a_value_moves() -> None:
    """verl clips values at 0.5 unless it is told not to."""
    from verl.trainer.ppo.core_algos import compute_value_loss

    config = compose(embedded(options().model, "a", "b", PpoOptions.model_validate({"steps": 1, **STEP})))
    one = torch.ones(1, 2)
    loss, clipped = compute_value_loss(
        4.0 * one, 1.0 * one, 0.0 * one, one, config.critic.cliprange_value, config.critic.loss_agg_mode
    )
    assert float(loss) == pytest.approx(0.5 * 9) and float(clipped) == 0


def test_a_mismatch_is_of_rare_tokens_alone() -> None:
    trainer, sampler = torch.tensor([0.9, 0.001]).log(), torch.tensor([0.8, 0.0005]).log()
    old = mismatched([trainer], [sampler], below=0.01)[0]
    assert torch.equal(old, torch.stack([trainer[0], sampler[1]]))
    told = log_ratios("ratio", [trainer], [old], [torch.tensor([1, 1])])
    assert told["ratio_max"] == pytest.approx(2) and told["ratio_min"] == pytest.approx(1)
