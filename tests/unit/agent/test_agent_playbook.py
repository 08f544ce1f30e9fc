"""The playbook's script: what it asks next, given what the tools answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cuda_agent.agent.policies.playbook import PlaybookPolicy, _fastest, _Moves
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.winners import Winner, Winners
from cuda_agent.core.config import Limits
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import StoreError
from cuda_agent.core.graph import Graph, GraphInput, Node, Ref, TensorMeta, ValueKind
from cuda_agent.core.records import PolicyMove, Task, ToolResult, Turn
from cuda_agent.core.stack import Stack
from cuda_agent.playbook import Proposal, proposals

META = TensorMeta(shape=(64, 64), dtype="float32", strides=(64, 1))


def graph(operator: str = "aten.relu.default") -> Graph:
    return Graph(
        inputs=(GraphInput(name="x", kind=ValueKind.INPUT, meta=META, position=0),),
        nodes=(Node(name="y", op=operator, args=(Ref(ref="x"),), outputs=(META,)),),
        outputs=("y",),
        forward_parameters=("x",),
    )


def brief(operator: str = "aten.relu.default") -> Brief:
    return Brief(
        task=Task(name="t", source=""), device=Device.CPU, precision=Precision.TF32, limits=Limits(), tools=[],
        graph=lambda: graph(operator),
    )  # fmt: skip


class Play:
    """Answers each call by a table: tool -> (ok, data); keeps the history."""

    def __init__(self, policy: PlaybookPolicy) -> None:
        self.policy = policy
        self.history: list[Turn] = []

    def until(self, tool: str, answers: dict[str, tuple[bool, dict[str, Any]]]) -> PolicyMove:
        for _ in range(50):
            move = self.policy.next(self.history)
            if move.calls[0].tool == tool:
                return move
            self.answer(move, answers)
        raise AssertionError(tool)

    def answer(self, move: PolicyMove, answers: dict[str, tuple[bool, dict[str, Any]]]) -> None:
        results = []
        for call in move.calls:
            ok, data = answers.get(call.tool, (True, {}))
            if call.arguments.get("configs"):
                ok, data = True, {"latency_us": [10.0 - i for i in range(len(call.arguments["configs"]))]}
            results.append(ToolResult(call_id=call.id, text="said so", ok=ok, data=data))
        turn = Turn(index=len(self.history), message=move.message, calls=move.calls, results=tuple(results))
        self.history.append(turn)


def convolution() -> Graph:
    """relu(conv(x, w)), 16 channels to 32, 3 x 3."""
    metas = {
        "x": TensorMeta(shape=(2, 16, 24, 24), dtype="float32", strides=(9216, 576, 24, 1)),
        "w": TensorMeta(shape=(32, 16, 3, 3), dtype="float32", strides=(144, 9, 3, 1)),
        "y": TensorMeta(shape=(2, 32, 24, 24), dtype="float32", strides=(18432, 576, 24, 1)),
    }
    padded = (Ref(ref="x"), Ref(ref="w"), None, [1, 1], [1, 1])
    return Graph(
        inputs=(
            GraphInput(name="x", kind=ValueKind.INPUT, meta=metas["x"], position=0),
            GraphInput(name="w", kind=ValueKind.PARAMETER, meta=metas["w"], target="w"),
        ),
        nodes=(
            Node(name="y", op="aten.conv2d.default", args=padded, outputs=(metas["y"],)),
            Node(name="z", op="aten.silu.default", args=(Ref(ref="y"),), outputs=(metas["y"],)),
        ),
        outputs=("z",),
        forward_parameters=("x",),
        state={"w": metas["w"]},
        state_parameters=("w",),
    )


def convolution_brief() -> Brief:
    return dataclasses.replace(brief(), device=Device.CUDA, graph=convolution)


class Timed(Play):
    """Screens channels-last plans `ratio` times as long as the default one; `wrong` ones fail their full profile."""

    def __init__(self, ratio: float, wrong: bool = False) -> None:
        super().__init__(PlaybookPolicy(convolution_brief()))
        self.ratio, self.wrong, self.last = ratio, wrong, False

    def answer(self, move: PolicyMove, answers: dict[str, tuple[bool, dict[str, Any]]]) -> None:
        if move.message.startswith("Plan"):
            self.last = "channels last" in move.message
        results = []
        for call in move.calls:
            configs = call.arguments.get("configs", ())
            data: dict[str, Any] = {"latency_us": [100.0 * (self.ratio if self.last else 1)] * len(configs)}
            ok = bool(configs) or call.tool != "Profile" or not (self.wrong and self.last)
            if call.tool == "Profile" and not configs:
                data = {"verdict": "passed" if ok else "incorrect", "latency_us": 1.0}
            results.append(ToolResult(call_id=call.id, text="said so", ok=ok, data=data))
        turn = Turn(index=len(self.history), message=move.message, calls=move.calls, results=tuple(results))
        self.history.append(turn)

    def plans(self) -> list[str]:
        return [turn.message.split(":")[0] for turn in self.history if turn.message.startswith("Plan")]


@pytest.mark.parametrize(
    ("ratio", "wrong", "plans"),
    [
        (0.8, False, ["Plan", "Plan, channels last"]),
        (0.999, False, ["Plan", "Plan, channels last", "Plan"]),
        (1.5, False, ["Plan", "Plan, channels last", "Plan"]),
        (0.8, True, ["Plan", "Plan, channels last", "Plan"]),
    ],
)
def test_the_faster_of_two_plans_is_profiled(ratio: float, wrong: bool, plans: list[str]) -> None:
    play = Timed(ratio, wrong)
    finish = play.until("Finish", {})
    assert finish.calls[0].arguments["outcome"] == "finished"
    assert play.plans() == plans


def tools(history: list[Turn]) -> list[str]:
    return [call.tool for turn in history for call in turn.calls]


def test_the_order_of_the_work() -> None:
    play = Play(PlaybookPolicy(brief()))
    finish = play.until("Finish", {"Profile": (True, {"verdict": "passed", "latency_us": 7.0})})
    used = tools(play.history)
    assert used[0] == "Read"
    assert used.index("Write") < used.index("Compile") < used.index("Profile")
    assert used[-1] == "Profile"
    assert finish.calls[0].arguments["outcome"] == "finished"


def test_a_history_is_replayed_to_the_same_move() -> None:
    play = Play(PlaybookPolicy(brief()))
    play.until("Profile", {})
    again = PlaybookPolicy(brief()).next(play.history)
    assert again == play.policy.next(play.history)


def test_what_no_skill_covers_ends_with_its_name() -> None:
    finish = Play(PlaybookPolicy(brief("aten.no_such_operator.default"))).until("Finish", {})
    assert finish.calls[0].arguments["outcome"] == "not_covered"
    assert "no_such_operator" in finish.calls[0].arguments["message"]


def test_a_kernel_that_fails_is_given_up_honestly() -> None:
    play = Play(PlaybookPolicy(brief()))
    finish = play.until("Finish", {"Compile": (False, {"verdict": "build_failed"})})
    assert finish.calls[0].arguments["outcome"] == "gave_up"
    assert "Profile" not in tools(play.history)


def test_a_setting_that_fails_gives_way_to_the_default() -> None:
    play = Play(PlaybookPolicy(brief()))
    finish = play.until("Finish", {"Profile": (False, {"verdict": "incorrect"})})
    assert finish.calls[0].arguments["outcome"] == "gave_up"
    edits = [call.arguments for turn in play.history for call in turn.calls if call.tool == "Edit"]
    if edits:
        assert edits[0]["old"] == edits[-1]["new"], "back to the default"


class Precise(Play):
    """Refuses, with `verdict`, whatever was planned with TF32 allowed."""

    def __init__(self, precision: Precision, verdict: str) -> None:
        super().__init__(PlaybookPolicy(dataclasses.replace(convolution_brief(), precision=precision)))
        self.verdict = verdict
        self.exact = {
            tuple(sorted(plan.files.items())) for plan in proposals(convolution(), Device.CUDA, Precision.FP32)
        }
        self.files: dict[str, str] = {}

    def answer(self, move: PolicyMove, answers: dict[str, tuple[bool, dict[str, Any]]]) -> None:
        for call in move.calls:
            if call.tool == "Bash":
                for stale in call.arguments["command"].split()[2:]:
                    del self.files[stale]
            if call.tool == "Write":
                self.files[call.arguments["path"]] = call.arguments["content"]
        passed = self.verdict != "incorrect at any" and tuple(sorted(self.files.items())) in self.exact
        verdict = "passed" if passed else self.verdict.split()[0]
        # Every setting takes as long as any other.
        super().answer(move, {**answers, "Profile": (passed, {"verdict": verdict, "latency_us": 3.0})})
        if move.calls[0].arguments.get("configs"):
            turn = self.history.pop()
            times = {"latency_us": [100.0] * len(move.calls[0].arguments["configs"])}
            result = turn.results[0].model_copy(update={"data": times})
            self.history.append(turn.model_copy(update={"results": (result,)}))


def test_what_is_too_inexact_is_planned_again_in_full_precision() -> None:
    play = Precise(Precision.TF32, "incorrect")
    finish = play.until("Finish", {})
    assert finish.calls[0].arguments["outcome"] == "finished" and "3.0 us" in finish.calls[0].arguments["message"]
    assert tuple(sorted(play.files.items())) in play.exact


@pytest.mark.parametrize(
    ("precision", "verdict", "plans"),
    [
        (Precision.TF32, "incorrect at any", 2),
        (Precision.TF32, "crashed", 1),
        (Precision.FP32, "incorrect at any", 1),
    ],
)
def test_full_precision_is_tried_once_and_only_for_wrong_values(precision: Precision, verdict: str, plans: int) -> None:
    play = Precise(precision, verdict)
    finish = play.until("Finish", {})
    assert finish.calls[0].arguments["outcome"] == "gave_up"
    messages = [turn.message for turn in play.history if turn.message.startswith("Plan:")]
    layouts = [turn.message for turn in play.history if turn.message.startswith("Plan, channels last:")]
    assert len(layouts) == plans and len(messages) == 2 * plans, "built to be screened, then the default one profiled"


def tuned(
    tunables: dict[str, int], time: Callable[[dict[str, int]], float | None], *, timed: bool = False
) -> tuple[dict[str, int], float | None, list[list[dict[str, int]]]]:
    """What a plan with these tunables is set to, its time, and what was screened, if a setting takes `time`."""
    proposal = cast(Proposal, cast(Any, SimpleNamespace(tunables=tunables)))
    script, screened = _Moves(brief())._tune(proposal, timed=timed), []
    try:
        move = next(script)
        while True:
            (call,) = move.calls
            screened.append(call.arguments["configs"])
            data = {"latency_us": [time(setting) for setting in call.arguments["configs"]]}
            move = script.send((ToolResult(call_id=call.id, text="", ok=True, data=data),))
    except StopIteration as end:
        return end.value.config, end.value.latency_us, screened


def test_a_small_grid_is_screened_whole() -> None:
    config, latency, screened = tuned({"a": 1, "b": 3, "c": 4}, lambda s: 100.0 - 10 * s["b"] * s["c"])
    assert (config, latency) == ({"a": 0, "b": 2, "c": 3}, 40.0)
    assert [len(settings) for settings in screened] == [12] and screened[0][0] == {"a": 0, "b": 0, "c": 0}
    assert tuned({}, lambda s: 1.0) == ({}, None, []), "nothing to choose"
    assert tuned({"a": 1}, lambda s: 7.0, timed=True) == ({"a": 0}, 7.0, [[{"a": 0}]])


def test_a_large_grid_takes_two_screenings() -> None:
    gains = {"a": [0, 5, 9, 1], "b": [0, 3, 2, 8], "c": [0, -4, -9, -1]}
    config, latency, screened = tuned(dict.fromkeys("abc", 4), lambda s: 100.0 - sum(gains[n][k] for n, k in s.items()))
    assert (config, latency) == ({"a": 2, "b": 3, "c": 0}, 83.0)
    assert [len(settings) for settings in screened] == [10, 3]
    assert [sorted(s.items()) for s in screened[0][1:4]] == [
        [("a", 1), ("b", 0), ("c", 0)],
        [("a", 0), ("b", 1), ("c", 0)],
        [("a", 0), ("b", 0), ("c", 1)],
    ], "in turns"
    assert screened[1] == [{"a": 2, "b": 3, "c": 0}, {"a": 0, "b": 3, "c": 0}, {"a": 2, "b": 0, "c": 0}]
    config, latency, screened = tuned(dict.fromkeys("abc", 4), lambda s: 90.0 if s["b"] == 2 else 100.0)
    assert (config["b"], latency, len(screened)) == (2, 90.0, 1), "one change is known from its own time"


def test_settings_that_are_fast_only_alone() -> None:
    def both_slow(setting: dict[str, int]) -> float | None:
        together = setting["a"] == 1 and setting["b"] == 1
        return 200.0 if together else 100.0 - 10 * (setting["a"] == 1) - 20 * (setting["b"] == 1)

    assert tuned(dict.fromkeys("ab", 4), both_slow)[:2] == ({"a": 0, "b": 1}, 80.0)


def test_more_settings_than_one_screening_takes() -> None:
    _, _, screened = tuned({"a": 50, "b": 50}, lambda s: 100.0)
    assert [len(settings) for settings in screened] == [64, 36] and screened[1][0] == {"a": 0, "b": 0}


def test_noise_does_not_choose() -> None:
    settings = [{"a": 0}, {"a": 1}, {"a": 2}]
    assert _fastest(list(zip(settings, [100.0, 99.5, None], strict=True))) == ({"a": 0}, 100.0)
    assert _fastest(list(zip(settings, [100.0, 99.5, 90.0], strict=True))) == ({"a": 2}, 90.0)
    assert _fastest(list(zip(settings, [None, 99.5, None], strict=True))) == ({"a": 1}, 99.5)
    assert _fastest(list(zip(settings, [None, None, None], strict=True))) == ({"a": 0}, None)


def test_a_run_is_taken_up_where_it_ended() -> None:
    first = Play(PlaybookPolicy(brief()))
    first.until("Compile", {})
    again = PlaybookPolicy(brief())
    assert again.next(first.history) == first.policy.next(first.history)


def test_a_run_that_another_version_began_goes_on_from_nothing() -> None:
    """Its plan is another one: what its tools answered says nothing of this one's settings."""
    old = Play(PlaybookPolicy(brief("aten.sigmoid.default")))
    old.until("Profile", {})
    play = Play(PlaybookPolicy(brief()))
    play.history = list(old.history)
    cleared = play.policy.next(play.history)
    assert [call.arguments for call in cleared.calls] == [{"command": "rm -rf kernels/*"}]
    play.answer(cleared, {})
    move = play.until("Finish", {"Profile": (True, {"verdict": "passed", "latency_us": 5.0})})
    assert move.calls[0].arguments["outcome"] == "finished"
    mine = [turn.message.split(":")[0] for turn in play.history[len(old.history) :]]
    assert mine[:3] == ["Clearing another version's plan.", "Reading the reference.", "Plan"]


PASSES = {"Profile": (True, {"latency_us": 3.0, "verdict": "passed"})}
STACK = Stack(python="3.11", cpu="a processor", cpu_cores=2, cuda_agent="1")


def test_a_search_begins_with_the_winner_of_an_earlier_one(tmp_path: Path) -> None:
    winners = Winners(tmp_path / "winners.sqlite", STACK)
    known = dataclasses.replace(brief(), device=Device.CUDA, winners=winners)
    first = Play(PlaybookPolicy(known))
    first.until("Finish", PASSES)
    assert any(turn.calls[0].arguments.get("configs") for turn in first.history)
    second = Play(PlaybookPolicy(known))
    second.until("Finish", PASSES)
    assert [turn.calls[0].tool for turn in second.history if turn.calls[0].tool not in ("Read", "Write")] == [
        "Compile", "Edit", "Profile",
    ]  # fmt: skip
    elsewhere = Winners(tmp_path / "winners.sqlite", STACK.model_copy(update={"cpu": "another"}))
    assert elsewhere.find(proposals(graph(), Device.CUDA, Precision.TF32)) is None


def test_a_winner_that_no_longer_passes_is_replaced(tmp_path: Path) -> None:
    plans = proposals(graph(), Device.CUDA, Precision.TF32)
    winners = Winners(tmp_path / "winners.sqlite", STACK)
    winners.keep(plans, Winner(plans[0], dict.fromkeys(plans[0].tunables, 1), 0.1))
    play = Play(PlaybookPolicy(dataclasses.replace(brief(), device=Device.CUDA, winners=winners)))
    play.until("Profile", {})
    for _ in range(2):
        play.until("Profile", {})
        play.answer(play.policy.next(play.history), {"Profile": (False, {"verdict": "incorrect"})})
    play.until("Finish", PASSES)
    found = winners.find(plans)
    assert found is not None and found.latency_us == 3.0


def test_a_damaged_database_of_winners_is_named(tmp_path: Path) -> None:
    (tmp_path / "winners.sqlite").write_text("no database at all, but long enough to be read as one" * 20)
    with pytest.raises(StoreError, match=r"winners\.sqlite can't be used"):
        Winners(tmp_path / "winners.sqlite", STACK).find(proposals(graph(), Device.CUDA, Precision.TF32))
