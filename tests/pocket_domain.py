"""A tiny task with its operator graph, and judges whose memory already holds a verdict on each of its choices: real
workspaces and tools, no compiler and no clock."""

from __future__ import annotations

from pathlib import Path

import builders
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.trained import pocket
from cuda_agent.agent.trained.dialogue import DialogueSettings
from cuda_agent.agent.trained.pocket import PocketDialogue
from cuda_agent.core.config import JudgeOptions, Limits
from cuda_agent.core.enums import Device, Phase, Precision, SandboxLevel, Verdict
from cuda_agent.core.graph import Graph, GraphInput, Node, Ref, TensorMeta, ValueKind
from cuda_agent.core.records import Candidate, Evaluation, Task
from cuda_agent.core.stack import read_stack
from cuda_agent.training.environment.judges import Judges

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x * 2.0 + 1.0)


def get_inputs():
    return [torch.randn(64, 96)]


def get_init_inputs():
    return []
"""
TASK = Task(name="scale", source=SOURCE)
OPTIONS = JudgeOptions(device=Device.CPU, precision=Precision.FP32, timing_budget_s=0.3, trials=1)
#: microseconds of the fused plan's settings and of the other plan; the matched baseline takes 120.
FUSED_US, SPLIT_US, MATCHED_US = (100.0, 60.0, 130.0), 400.0, 120.0


def graph() -> Graph:
    """relu(x * 2 + 1) at [64, 96]."""
    meta = TensorMeta(shape=(64, 96), dtype="float32", strides=(96, 1))
    nodes = (
        Node(name="mul", op="aten.mul.Tensor", args=(Ref(ref="x"), 2.0), outputs=(meta,)),
        Node(name="add", op="aten.add.Tensor", args=(Ref(ref="mul"), 1.0), outputs=(meta,)),
        Node(name="relu", op="aten.relu.default", args=(Ref(ref="add"),), outputs=(meta,)),
    )
    given = GraphInput(name="x", kind=ValueKind.INPUT, meta=meta, position=0)
    return Graph(inputs=(given,), nodes=nodes, outputs=("relu",), init_signature="(self)", forward_parameters=("x",))


def evaluation(candidate: Candidate, us: float | None, task: Task = TASK) -> Evaluation:
    """A verdict: passed in so many microseconds, or incorrect."""
    known = {
        "task_key": task.key, "candidate_digest": candidate.digest, "device": Device.CPU, "precision": Precision.FP32,
        "sandbox": SandboxLevel.FULL, "stack": read_stack(), "build": builders.build(candidate_digest=candidate.digest),
    }  # fmt: skip
    if us is None:
        wrong = {"verdict": Verdict.INCORRECT, "phase": Phase.VERIFY, "reason": "wrong"}
        return Evaluation(**known, **wrong, verify=builders.verify(False))
    value = MATCHED_US / us
    profile = builders.profile({"eager": 0.99 * value, "compile": 0.99 * value}, candidate=builders.timing(us))
    return Evaluation(
        **known, verdict=Verdict.PASSED, phase=Phase.PROFILE, verify=builders.verify(True), profile=profile
    )


def judges(folder: Path) -> Judges:
    """Knows the graph, every build and every verdict."""
    (folder / "graphs").mkdir(parents=True)
    (folder / "graphs" / f"{TASK.key}.json").write_text(graph().to_json())
    made = Judges(folder, OPTIONS)
    for plan in made.offers(TASK):
        times = FUSED_US if plan.name == "fused" else (SPLIT_US,)
        for setting, us in zip(plan.settings(), times, strict=True):
            candidate = plan.candidate(setting)
            made.memo.keep("evaluate", evaluation(candidate, us))
            made.memo.build(candidate, lambda c=candidate: builders.build(candidate_digest=c.digest))
    return made


def fused(made: Judges) -> int:
    """The number of the default plan."""
    return next(n for n, plan in enumerate(made.offers(TASK), 1) if plan.name == "fused")


def dialogue(made: Judges, turns: int = 8) -> tuple[PocketDialogue, DialogueSettings]:
    """A tokenizer for this task alone."""
    brief = Brief(TASK, Device.CPU, Precision.FP32, Limits(turns=turns), [], graph)
    texts = [pocket.prompt_text(brief, made.offers(TASK)), "passed 1.20 0.98 best; ok; error\n7 left"] * 4
    settings = DialogueSettings(turns=turns, turn_tokens=24, context_tokens=512)
    return PocketDialogue(pocket.train_tokenizer(texts, 400)), settings
