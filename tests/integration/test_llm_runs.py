"""Complete runs of a language model: a scripted server on loopback; real SDK, loop, tools, and once the real judge."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from cuda_agent import optimize
from cuda_agent.agent.context import Session
from cuda_agent.agent.policies.conversation import Conversation
from cuda_agent.agent.policies.stall import MAX_REPEATS, MAX_WITHOUT_EFFECT
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.run import AgentRun
from cuda_agent.agent.storage.rundir import RunDirectory
from cuda_agent.agent.storage.store import ContentStore
from cuda_agent.agent.storage.transcript import read_transcript
from cuda_agent.agent.taskfile import load_task
from cuda_agent.cli.main import run as command
from cuda_agent.core.config import JudgeOptions, LanguageModelOptions, Limits, OptimizeOptions, Price, TimingStop
from cuda_agent.core.enums import Device, Precision, Verdict
from cuda_agent.core.errors import UsageError
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import Candidate, Evaluation, Trajectory
from cuda_agent.llm.keys import Key, find_key
from cuda_agent.llm.tagged import write_call
from integration.scripted_runs import FILES, MODEL_NEW, write_task
from integration.scripted_server import MODEL, Refuse, Request, Say, Scenario, ScriptedServer, Step
from unit.cli.test_report import evaluation

pytest.importorskip("openai")
pytestmark = pytest.mark.integration
SECRET = "sk-test-0123456789abcdefghij"
WRITES = [("Write", {"path": path, "content": text}) for path, text in FILES.items()]
FINISH = Say(calls=[("Finish", {"message": "done"})])


class Recorded:
    """In place of a session, for long runs: its answers are known beforehand. FILES pass, all else is incorrect."""

    def graph(self) -> Graph:
        raise AssertionError("not asked for")

    def evaluate(self, candidate: Candidate, *, stop: TimingStop | None = None) -> Evaluation:
        good = candidate.files["model_new.py"] == MODEL_NEW
        judged = evaluation(Verdict.PASSED if good else Verdict.INCORRECT)
        return judged.model_copy(update={"candidate_digest": candidate.digest})

    verify = evaluate


@contextmanager
def recorded_judge(*arguments: object, **more: object) -> Iterator[tuple[Session, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        yield cast(Session, Recorded()), Path(folder) / "judge.sock"


def play(
    tmp_path: Path, scenario: Scenario, *, turns: int = 20, server_context: int | None = None,
    limits: dict[str, Any] | None = None, **options: Any,
) -> tuple[Trajectory, ScriptedServer]:  # fmt: skip
    """A run of the real loop and tools; the judge's answers are recorded."""
    with ScriptedServer(scenario, context_tokens=server_context) as server:
        run = play_at(server, tmp_path, Limits(turns=turns, **(limits or {})), **options)
    assert server.problems == []
    return run, server


def play_at(
    server: ScriptedServer, tmp_path: Path, limits: Limits, *, key: Key | None = None, **options: Any
) -> Trajectory:
    """The same at a server that runs; goes on with the run that `tmp_path` holds."""
    llm = LanguageModelOptions(model=MODEL, base_url=server.base_url, **options)
    settings = OptimizeOptions(judge=JudgeOptions(device=Device.CPU), policy="llm", limits=limits, llm=llm)
    task = load_task(write_task(tmp_path))
    path = tmp_path / "run"
    directory = RunDirectory(path) if path.exists() else RunDirectory.create(path, "gated")
    with directory.lock():
        manifest = directory.write_start(task, settings, ())
        return AgentRun(task, settings, "llm", directory, manifest, key=key, judge=recorded_judge).play()


def play_judged(
    tmp_path: Path, scenario: Scenario, *, turns: int, key: str | None = None, file: Path | None = None,
    **options: Any,
) -> tuple[Trajectory, ScriptedServer]:  # fmt: skip
    """A whole run, with the real judge."""
    with ScriptedServer(scenario, key=key) as server:
        llm = LanguageModelOptions(model=MODEL, base_url=server.base_url, **options)
        run = optimize(
            write_task(tmp_path), out=tmp_path / "run", policy="llm", llm=llm, api_key_file=file, turns=turns,
            device="cpu", timing_budget_s=2.0,
        )  # fmt: skip
    assert server.problems == []
    return run, server


def all_text(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_a_good_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the judge offers, in parallel calls too; the key reaches the server and nothing else."""
    monkeypatch.setenv("CUDA_AGENT_API_KEY", "sk-of-the-environment-0123456789")
    file = tmp_path / "key"
    file.write_text(SECRET)
    look = f"env; cat {file} /proc/{os.getpid()}/environ; ls {tmp_path}"
    run, server = play_judged(
        tmp_path,
        [
            Say("I look at the task.", [("Read", {"path": "model.py"}), ("Glob", {})], reasoning="Element-wise."),
            Say("One fused kernel.", WRITES),
            Refuse(429, "slow down", retry_after="1"),
            Say(calls=[("Compile", ""), ("Verify", {}), ("Bash", {"command": look})]),
            Say(calls=[("Profile", {})]),
            FINISH,
        ],
        turns=20,
        key=SECRET,
        file=file,
        price=Price(input=2.0, output=10.0, cached_input=0.5),
    )
    results = [[result.ok for result in turn.results] for turn in run.turns]
    texts = "\n".join(result.text for turn in run.turns for result in turn.results)
    assert [row[:2] for row in results] == [[True, True], [True, True], [True, True], [True], [True]], texts
    assert run.outcome == "finished" and run.policy == "llm"
    assert run.evaluation is not None and run.evaluation.verdict is Verdict.PASSED
    assert run.best is not None and run.best.files == FILES
    assert len(server.requests) == 6 and server.requests[3].at - server.requests[2].at >= 1.0
    answered = [request for number, request in enumerate(server.requests) if number != 2]
    assert [turn.tokens_in for turn in run.turns] == [request.tokens for request in answered]
    assert run.budget.tokens == sum(turn.tokens_in + turn.tokens_out for turn in run.turns)
    cost = sum(t.tokens_cached * 0.5 + (t.tokens_in - t.tokens_cached) * 2 + t.tokens_out * 10 for t in run.turns) / 1e6
    assert run.budget.cost == pytest.approx(cost)
    assert run.turns[0].reasoning == "Element-wise."
    last = server.requests[-1].messages[-1]["content"]
    assert "passed: " in last and "Kept as the best so far." in last and "[Left: 16 turns" in last
    for secret in (SECRET, "sk-of-the-environment-0123456789"):
        assert secret not in all_text(tmp_path / "run")
        assert not any(secret in json.dumps(request.body) for request in server.requests)


def bad_answers(request: Request) -> Step:
    steps: list[Step] = [
        Say(calls=[("Read", '{"path": "model.py"')]),
        Say(calls=[("Raed", {"path": "model.py"})]),
        Say(calls=[("functions.Read file", {"path": "model.py"}), ("Read", {"file": "model.py"})]),
        Say(),
        Say("I think that I am done."),
        Say("x", finish="length"),
        Say("half an answer", cut_after=3) if request.index == 6 else Say(calls=[("Glob", {})]),
        FINISH,
    ]
    return steps[request.turn]


def test_bad_answers_get_a_word_on_how_to_go_on(tmp_path: Path) -> None:
    run, server = play(tmp_path, bad_answers)
    said = [turn.observation or " ".join(result.text for result in turn.results) for turn in run.turns]
    for text, says in zip(
        said,
        [
            "the arguments aren't JSON", "Did you mean Read?", "file: Extra inputs", "Your answer was empty",
            "No tool was called", "cut off", "model.py", "Finished",
        ],
        strict=True,
    ):  # fmt: skip
        assert says in text
    assert "Call it as Read(path: string" in said[0]
    assert run.outcome == "finished"
    assert len(server.requests) == 9, "the stream that broke was asked for again, nothing else"
    assert server.requests[6].body == server.requests[7].body
    assert said[3] in server.requests[4].messages[-1]["content"]


@pytest.mark.parametrize(
    ("scenario", "outcome", "turns", "says"),
    [
        ([Say()], "stalled", MAX_WITHOUT_EFFECT, "without a tool call"),
        ([Say(calls=[("Nothing", {})])], "stalled", MAX_WITHOUT_EFFECT, "without a tool call"),
        ([Say(calls=[("Read", {"path": "model.py"})])], "stalled", MAX_REPEATS, "same calls 10 times"),
        ([Say(calls=[("Glob", {})]), Refuse(401, "bad key")], "policy_error", 1, "--api-key-file"),
        ([Say(calls=[("Glob", {})]), Refuse(429, "quota", "insufficient_quota")], "policy_error", 1, "Add credit"),
    ],
)
def test_runs_that_cannot_go_on_end_clearly(
    tmp_path: Path, scenario: Scenario, outcome: str, turns: int, says: str
) -> None:
    run, server = play(tmp_path, scenario)
    assert (run.outcome, len(run.turns)) == (outcome, turns)
    assert says in run.message
    assert len(server.requests) == turns + (outcome == "policy_error")
    assert read_transcript(tmp_path / "run") == run.turns
    if scenario[0] == Say(calls=[("Read", {"path": "model.py"})]):  # type: ignore[index]
        assert "You have made the same calls 9 times" in server.requests[-1].messages[-1]["content"]


def test_tagged_calls(tmp_path: Path) -> None:
    run, server = play(
        tmp_path,
        [
            Say("I look.\n" + write_call("Read", {"path": "model.py"}) + write_call("Glob", {})),
            Say('<tool_call>{"name": "Read", "arguments": {"path": "mo'),
            Say(write_call("Finish", {"message": "done"})),
        ],
        tools="tagged",
    )
    assert [[call.tool for call in turn.calls] for turn in run.turns] == [["Read", "Glob"], ["Read"], ["Finish"]]
    assert run.turns[0].message == "I look."
    assert "a tool_call has no closing tag" in run.turns[1].results[0].text
    assert run.outcome == "finished"
    assert all("tools" not in request.body for request in server.requests)
    assert '<tool_response name="Glob">' in server.requests[1].messages[-1]["content"]


def test_a_limit_of_tokens_ends_the_run(tmp_path: Path) -> None:
    def look(request: Request) -> Step:
        return Say(calls=[("Read", {"path": "model.py", "offset": request.turn + 1})])

    run, _ = play(tmp_path, look, limits={"tokens": 12_000})
    assert run.outcome == "budget"
    before = sum(turn.tokens_in + turn.tokens_out for turn in run.turns[:-1])
    assert before < 12_000 <= run.budget.tokens


def test_a_run_taken_up_again_asks_nothing_twice(tmp_path: Path) -> None:
    """In two parts, and the second with a process that knows nothing but the run directory."""

    def look(request: Request) -> Step:
        return Say(f"Line {request.turn}.", [("Read", {"path": "model.py", "offset": request.turn + 1})])

    with ScriptedServer(look) as server:
        first = play_at(server, tmp_path, Limits(turns=4))
        whole = play_at(server, tmp_path, Limits(turns=8))
    assert (first.outcome, whole.outcome, len(whole.turns)) == ("budget", "budget", 8)
    assert whole.turns[:4] == first.turns
    assert len(server.requests) == 8
    for before, after in zip(server.requests, server.requests[1:], strict=False):
        known = [message | {"content": ""} for message in after.messages[: len(before.messages)]]
        assert known == [message | {"content": ""} for message in before.messages]
    assert server.requests[5].messages[2:8] == server.requests[4].messages[2:8]


def test_no_tool_sees_the_key_file(tmp_path: Path) -> None:
    """Where it lies in a folder that the sandbox shows otherwise."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        file = Path(folder) / "key"
        file.write_text(SECRET)
        (Path(folder) / "beside").write_text("beside it")
        looks = [("Bash", {"command": f"cat {folder}/*"}), ("Read", {"path": str(file)}), ("Grep", {"pattern": "sk-t"})]
        with ScriptedServer([Say(calls=looks), FINISH], key=SECRET) as server:
            run = play_at(server, tmp_path, Limits(turns=4), key=find_key(server.base_url, file))
    assert run.outcome == "finished"
    assert SECRET not in all_text(tmp_path / "run")
    if run.turns[0].results[0].text.startswith("beside it"):
        assert "Permission denied" in run.turns[0].results[0].text


def test_a_server_that_takes_less_than_was_said(tmp_path: Path) -> None:
    """A local server with a small context, and nobody gave --context-tokens."""

    def talk(request: Request) -> Step:
        return Say(f"{request.turn} " + "words " * 1000, [("Read", {"path": "model.py", "offset": request.turn + 1})])

    run, server = play(tmp_path, talk, turns=24, server_context=16_000)
    assert (run.outcome, len(run.turns)) == ("budget", 24)
    refused = [request for request in server.requests if request.tokens > 16_000]
    limited = [turn for turn in run.turns if turn.context_limit is not None]
    assert limited and len(limited) <= len(refused) <= 5, "it is believed, not asked each time"
    assert len(server.requests) == 24 + len(refused)


LONG = 200
IDEA = "Sums in bfloat16 should halve the bytes."
WRONG = MODEL_NEW.replace("self.scale = scale", "self.scale = scale + 1")


def long_run(request: Request) -> Step:
    """A good candidate, a wrong idea, and then looking at a large file, a piece at a time, to the last turn."""
    turn = request.turn
    start: list[Callable[[], Step]] = [
        lambda: Say("One fused kernel.", WRITES),
        lambda: Say(calls=[("Profile", {})]),
        lambda: Say(IDEA, [("Write", {"path": "model_new.py", "content": WRONG}), ("Verify", {})]),
        lambda: Say("A table.", [("Bash", {"command": "yes '// 0123456789' | head -21000 > kernels/table.h"})]),
    ]
    if turn < len(start):
        return start[turn]()
    if turn == LONG - 1:
        return FINISH
    return Say(f"Lines from {turn * 100}.", [("Read", {"path": "kernels/table.h", "offset": turn * 100, "limit": 220})])


def test_two_hundred_turns_are_condensed_twice_and_lose_nothing(tmp_path: Path) -> None:
    run, server = play(tmp_path, long_run, turns=LONG, server_context=131_072)
    assert (run.outcome, len(run.turns)) == ("finished", LONG)
    assert len(server.requests) == LONG, "no request was refused as too long"
    sizes = [request.tokens for request in server.requests]
    drops = [index for index in range(1, LONG) if sizes[index] < sizes[index - 1]]
    assert len(drops) == 2
    assert all(100_000 < sizes[index - 1] < 131_072 - 8192 and sizes[index] < 60_000 for index in drops)
    for before, after in zip(server.requests, server.requests[1:], strict=False):
        if after.index not in drops:
            assert after.messages[: len(before.messages)] == before.messages, "between them requests only grow"
    measured = run.turns[1].results[0].text
    wrong = run.turns[2].results[1].text.splitlines()[0]
    for index in drops:
        task = server.requests[index].messages[1]["content"]
        assert (tmp_path / "gated.py").read_text().strip() in task
        assert all(text.strip() in task for text in FILES.values()), "the best candidate's source"
        assert measured in task
        failures = task.split("## Ideas that failed")[1]
        assert IDEA in failures and wrong in failures
        assert "another version than the best candidate" in task
    assert run.best is not None and run.best.files["model_new.py"] == MODEL_NEW
    again = Conversation(brief_of(tmp_path, server), LanguageModelOptions(model=MODEL))
    turns = read_transcript(tmp_path / "run")
    for index in (0, 3, 50, *drops, LONG - 1):
        assert again.request(turns[:index]).messages == server.requests[index].messages, "the transcript says it all"


def brief_of(tmp_path: Path, server: ScriptedServer) -> Brief:
    """As another process would make it, from the run directory."""
    return Brief(
        load_task(tmp_path / "gated.py"), Device.CPU, Precision.TF32, Limits(turns=LONG),
        server.requests[0].body["tools"], Recorded().graph, candidate=ContentStore(tmp_path / "run").candidate,
    )  # fmt: skip


def test_the_command_ends_clearly_where_the_key_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text(SECRET)
    (tmp_path / "prices.yaml").write_text("scripted: {input: 1, output: 2}\n")
    with ScriptedServer([FINISH], key="another") as server:
        code = command([
            "optimize", str(write_task(tmp_path)), "--out", str(tmp_path / "run"), "--device", "cpu", "--policy", "llm",
            "--model", MODEL, "--base-url", server.base_url, "--api-key-file", str(tmp_path / "key"),
            "--prices", str(tmp_path / "prices.yaml"), "--max-cost", "1", "--reasoning", "drop",
        ])  # fmt: skip
    shown = capsys.readouterr()
    assert code == 7
    assert "refuses the key (401" in shown.out and "--api-key-file FILE" in shown.out
    assert server.requests[0].authorization == f"Bearer {SECRET}"
    assert SECRET not in shown.out + shown.err + all_text(tmp_path / "run")


def test_a_model_is_asked_for_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--model"):
        optimize(write_task(tmp_path), out=tmp_path / "run", policy="llm", device="cpu")
    assert not (tmp_path / "run").exists()
