"""The playbook's script: what it asks next, given what the tools answered."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cuda_agent.agent.policies.playbook import PlaybookPolicy, _fastest, _groups
from cuda_agent.agent.policy import Brief, PolicyMove
from cuda_agent.core.config import Limits
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.graph import Graph, GraphInput, Node, Ref, TensorMeta, ValueKind
from cuda_agent.core.records import Task, ToolResult, Turn

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


def test_groups_of_tunables() -> None:
    assert _groups({}) == []
    assert _groups({"a": 1, "b": 3, "c": 4}) == [("b", "c")]
    assert _groups({"a": 4, "b": 4}) == [("a",), ("b",)]


def test_noise_does_not_choose() -> None:
    settings = [{"a": 0}, {"a": 1}, {"a": 2}]
    assert _fastest(settings, [100.0, 99.5, None]) == {"a": 0}
    assert _fastest(settings, [100.0, 99.5, 90.0]) == {"a": 2}
    assert _fastest(settings, [None, 99.5, None]) == {"a": 1}
    assert _fastest(settings, [None, None, None]) == {"a": 0}
    assert _fastest(settings, []) == {"a": 0}
