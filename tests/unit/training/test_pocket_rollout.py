"""Episodes over real workspaces and tools; the judge's memory knows every verdict."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

import pocket_domain as domain
from cuda_agent.agent.trained import pocket
from cuda_agent.agent.trained.sampler import Sampled
from cuda_agent.core.enums import Milestone
from cuda_agent.training.config import EpisodeLimits
from cuda_agent.training.environment.judges import Judges
from cuda_agent.training.environment.opening import limited
from cuda_agent.training.environment.play import ToolEnvironment
from cuda_agent.training.episodes import Episode
from cuda_agent.training.pocket.author import Author, Shares


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Judges:
    return domain.judges(tmp_path_factory.mktemp("memo"))


class Scripted:
    """Says its texts in order, as tokens; and keeps every context that it was given."""

    def __init__(self, environment: ToolEnvironment, texts: Sequence[str]) -> None:
        self._encode, self._texts = environment.dialogue.encode_turn, list(texts)
        self.contexts: list[list[int]] = []

    def __call__(self, contexts: Sequence[Sequence[int]]) -> list[Sampled]:
        assert len(contexts) == 1
        self.contexts.append(list(contexts[0]))
        ids = self._encode(self._texts.pop(0)) if self._texts else self._encode("nothing more to say")
        return [Sampled(tuple(ids), tuple(-0.5 for _ in ids))]


def play(judges: Judges, *texts: str, turns: int = 8) -> tuple[Episode, Scripted, ToolEnvironment]:
    dialogue, settings = domain.dialogue(judges, turns)
    environment = ToolEnvironment(judges, dialogue, settings)
    player = Scripted(environment, texts)
    (episode,) = environment.play([domain.TASK], player, seed=3, policy_version=2)
    return episode, player, environment


def test_a_chosen_setting_is_paid_by_the_judge(judges: Judges) -> None:
    number = domain.fused(judges)
    episode, player, environment = play(
        judges, pocket.take(number), pocket.call("Profile"), pocket.read(), pocket.change("a", 0, 1),
        pocket.call("Profile"), pocket.finish(),
    )  # fmt: skip
    assert episode.best_us == 60.0 and episode.ratio == pytest.approx(2.0, rel=1e-3)
    assert episode.reward == 3.0 and episode.milestone is Milestone.FASTER_THAN_BOTH
    assert [us for us, _ in episode.judged] == [100.0, 60.0]
    assert (episode.turns, episode.calls, episode.invalid_calls, episode.tool_errors) == (6, 6, 0, 0)
    assert (episode.evaluations, episode.memoised, episode.truncated) == (2, 2, False)
    assert (episode.policy_version, episode.seed) == (2, 3)
    said = environment.dialogue.tokenizer.decode(player.contexts[-1], skip_special_tokens=False)  # type: ignore[attr-defined]
    assert "passed 1.20 1.20 best" in said and "passed 2.00 2.00 best" in said


def test_every_context_is_a_prefix_of_the_next(judges: Judges) -> None:
    """Also where the policy talks nonsense: own tokens and answers are only ever added."""
    rng = random.Random(0)
    moves = [
        pocket.take(1), pocket.take(2), pocket.take(9), pocket.read(), pocket.call("Profile"), pocket.call("Compile"),
        pocket.change("a", 0, 2), pocket.change("h", 0, 1), pocket.call("Fly"), "<tool_call>{", "words", "",
        pocket.call("Profile") + pocket.read(), "\u2603 <|answer|>ok<|agent|>",
    ]  # fmt: skip
    for _ in range(4):
        episode, player, environment = play(judges, *rng.choices(moves, k=5), turns=5)
        for earlier, later in zip(player.contexts, player.contexts[1:], strict=False):
            assert later[: len(earlier)] == earlier and len(later) > len(earlier)
        assert tuple(player.contexts[0]) == episode.prompt_ids
        whole = list(episode.input_ids)
        assert whole[: len(player.contexts[-1])] == player.contexts[-1]
        # What is marked as the policy's own is exactly what it sampled, turn by turn.
        own = [t for t, m in zip(episode.response_ids, episode.mask, strict=True) if m]
        answers = [list(b[len(a) :]) for a, b in zip(player.contexts, player.contexts[1:], strict=False)]
        stops = sum(token == environment.dialogue.stop_id for token in own)
        assert stops == episode.turns == len(answers) + 1
        assert episode.mask[-1] == 1 and episode.response_ids[-1] == environment.dialogue.stop_id
        assert all((log == -0.5) == bool(m) for log, m in zip(episode.log_probabilities, episode.mask, strict=True))


def test_mistakes_are_counted(judges: Judges) -> None:
    number = domain.fused(judges)
    episode, _, _ = play(
        judges, pocket.call("Profile"), pocket.take(number), pocket.change("a", 0, 1), pocket.call("Fly"), "no call",
        pocket.call("Profile"), pocket.call("Profile"), turns=7,
    )  # fmt: skip
    # Nothing to profile, and an edit of a file that was not read; a tool that isn't there, and a turn without a call.
    assert (episode.tool_errors, episode.invalid_calls, episode.repeated_calls) == (2, 2, 1)
    assert episode.faults == {"unknown_tool": 1, "no_call": 1, "repeated_judging": 1}
    assert episode.truncated and episode.best_us == 100.0


def test_what_was_never_profiled_is_judged_at_the_end(judges: Judges) -> None:
    episode, _, _ = play(judges, pocket.take(domain.fused(judges)), pocket.finish())
    assert episode.best_us == 100.0 and episode.evaluations == 1
    nothing, _, _ = play(judges, pocket.finish())
    assert nothing.reward == -1.0 and nothing.milestone is Milestone.FAILED and nothing.evaluations == 0


def test_one_answer_may_hold_all_calls(judges: Judges) -> None:
    dialogue, settings = domain.dialogue(judges)
    environment = ToolEnvironment(judges, dialogue, limited(settings, EpisodeLimits(turns=1)))
    text = pocket.take(domain.fused(judges)) + pocket.read() + pocket.change("a", 0, 1) + pocket.finish()
    (episode,) = environment.play([domain.TASK], Scripted(environment, [text]), seed=0)
    assert (episode.turns, episode.calls, episode.best_us) == (1, 4, 60.0)
    assert set(episode.mask) == {1}


def test_transcripts_vary_and_keep_to_their_limits(judges: Judges) -> None:
    dialogue, settings = domain.dialogue(judges)
    environment = ToolEnvironment(judges, dialogue, settings)
    shares = Shares(broken=0.0, playbook=0.2, unread=0.5, nothing_yet=0.3, repeated=0.5)
    played = environment.play_by([domain.TASK] * 12, Author(shares, 1, settings.turn_tokens), seed=1)
    assert len({episode.response_ids for episode in played}) > 6
    assert all(episode.turns <= settings.turns for episode in played)
    assert {episode.best_us for episode in played} > {60.0, 400.0} or len({e.best_us for e in played}) >= 3
    assert sum(e.tool_errors for e in played) > 0 and sum(e.invalid_calls for e in played) == 0
    again = environment.play_by([domain.TASK] * 12, Author(shares, 1, settings.turn_tokens), seed=1)
    assert [e.response_ids for e in again] == [e.response_ids for e in played]
