"""What a language model is sent, from turns alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cuda_agent.agent.policies.conversation import Conversation
from cuda_agent.agent.policies.llm import LanguageModelPolicy
from cuda_agent.agent.policies.stall import MAX_REPEATS, MAX_WITHOUT_EFFECT, check, rounds
from cuda_agent.agent.policy import Brief
from cuda_agent.agent.tools.registry import ALL
from cuda_agent.core.config import LanguageModelOptions, Limits, Price
from cuda_agent.core.enums import Device, Precision
from cuda_agent.core.errors import PolicyError, PolicyStalled, UsageError
from cuda_agent.core.graph import Graph
from cuda_agent.core.records import Budget, Candidate, Task, ToolCall, ToolResult, Turn
from cuda_agent.llm.chat import ChatRequest, ContextExceeded, Reply, Usage, WrittenCall

BEST = Candidate(files={"model_new.py": "best source {{ not a template }}", "kernels/a.cu": "__global__ void k() {}"})
PROFILE = "passed: 90.0 us, 1.98x over eager\nyours  90.0 us [89.0, 91.0]\neager  178.0 us"
SCHEMAS = [tool.function() for tool in ALL]


def no_graph() -> Graph:
    raise AssertionError("not asked for")


def brief(**options: Any) -> Brief:
    settings = LanguageModelOptions(model="m", **options)
    task = Task(name="gated", source="class Model: ...")
    kept = {BEST.digest: BEST}
    return Brief(
        task, Device.CPU, Precision.TF32, Limits(turns=200, tokens=1_000_000, wall_s=3600), SCHEMAS, no_graph,
        candidate=kept.__getitem__, llm=settings,
    )  # fmt: skip


def conversation(**options: Any) -> Conversation:
    made = brief(**options)
    assert made.llm is not None
    return Conversation(made, made.llm)


def turn(index: int, *calls: tuple[ToolCall, ToolResult], message: str = "", tokens: int = 0, **more: Any) -> Turn:
    budget = Budget(
        turns_limit=200, turns_spent=index + 1, tokens_limit=1_000_000, tokens=tokens, wall_limit_s=3600, wall_s=60.0
    )
    pairs = {"calls": tuple(call for call, _ in calls), "results": tuple(result for _, result in calls)}
    return Turn(index=index, message=message, tokens_in=tokens, budget=budget, **(pairs | more))


def did(tool: str, text: str, ok: bool = True, data: Any = None, **arguments: Any) -> tuple[ToolCall, ToolResult]:
    call = ToolCall(id=f"id-{tool}", tool=tool, arguments=arguments)
    return call, ToolResult(call_id=call.id, text=text, ok=ok, data=data or {})


def profile(text: str = PROFILE, kept: bool = True, ok: bool = True) -> tuple[ToolCall, ToolResult]:
    return did("Profile", text, ok, {"kept": kept, "digest": BEST.digest, "verdict": "passed", "latency_us": 90.0})


def text_of(request: ChatRequest) -> str:
    return "\n".join(str(message["content"]) for message in request.messages)


def story() -> list[Turn]:
    """A good candidate, an idea that was wrong, one that was slower, then reading until the context is nearly full."""
    turns = [
        turn(0, did("Read", "class Model: ...", path="model.py"), message="I look at the reference."),
        turn(1, did("Write", "Created.", path="model_new.py", content="best"), message="First, one fused kernel."),
        turn(2, profile(), tokens=9_000),
        turn(3, did("Edit", "Changed."), message="Now bfloat16 sums, they halve the bytes."),
        turn(4, did("Verify", "incorrect in verify: too far off\nmore", ok=False, data={"verified": False})),
        turn(5, did("Edit", "Changed."), message="Blocks of 1024 threads instead."),
        turn(6, profile("passed: 120.0 us\nThe best so far remains (90.0 us).", kept=False)),
        turn(7, did("Profile", "Fastest: 80 us with {'a': 1}", configs=[{"a": 0}, {"a": 1}])),
    ]
    for index in range(8, 20):
        turns.append(turn(index, did("Read", "x" * 24_000, path="a", offset=index), tokens=10_000 + 8_000 * index))
    return turns


def test_the_first_request_holds_task_contract_and_budget() -> None:
    request = conversation().request([])
    system, user = request.messages
    assert "SKILL.md" in system["content"] and "C++/OpenMP" in system["content"]
    assert "class Model: ..." in user["content"]
    assert "200 turns, 1,000,000 tokens, 60.0 min" in user["content"]
    assert request.tools == SCHEMAS


def test_turns_become_messages_and_the_last_answer_says_what_is_left() -> None:
    turns = [turn(0, did("Read", "a"), did("Glob", "b"), message="I look.", tokens=5000, reasoning="hm")]
    said, first, second = conversation().request(turns).messages[2:]
    assert said["content"] == "I look." and said["reasoning_content"] == "hm"
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["Read", "Glob"]
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {}
    assert first == {"role": "tool", "tool_call_id": "id-Read", "content": "a"}
    assert second["content"].startswith("b\n\n[Left: 199 turns, 995,000 tokens, 59.0 min. Context: 5,000 of 131,072")
    assert "reasoning_content" not in conversation(reasoning="drop").request(turns).messages[2]


def test_requests_only_grow_until_the_older_turns_are_condensed() -> None:
    turns = story()
    made = conversation()
    grown = [made.request(turns[:count]).messages for count in range(len(turns))]
    firsts = [made.window(turns[:count]).first for count in range(len(turns))]
    for before, after, first, following in zip(grown, grown[1:], firsts, firsts[1:], strict=False):
        if first == following:
            assert after[: len(before)] == before
    assert firsts[5] == 0
    last = made.window(turns)
    assert last.first > 8
    assert conversation().request(turns) == made.request(list(turns)), "nothing but the turns counts"


def test_condensation_keeps_what_must_not_be_lost_word_for_word() -> None:
    request = conversation().request(story())
    text = request.messages[1]["content"]
    assert "class Model: ..." in text, "the task"
    assert all(source in text for source in BEST.files.values()), "the best candidate's source"
    assert "Turn 3: passed: 90.0 us, 1.98x over eager" in text
    for measured in (PROFILE, "passed: 120.0 us\nThe best so far remains (90.0 us).", "Fastest: 80 us with {'a': 1}"):
        assert measured in text
    failures = text.split("## Ideas that failed")[1]
    assert "turn 5: Now bfloat16 sums, they halve the bytes." in failures
    assert "Verify: incorrect in verify: too far off" in failures
    assert "turn 7: Blocks of 1024 threads instead." in failures
    assert "First, one fused kernel." not in failures
    assert len(text_of(request)) < 24_000 * 12 // 2


def test_what_doesnt_fit_is_shortened_oldest_first() -> None:
    turns = [turn(0, profile()), *(turn(n, profile(f"passed: {n}\n" + "y" * 900, kept=False)) for n in range(1, 60))]
    turns.append(turn(60, did("Read", "x"), tokens=20_000))
    made = conversation(context_tokens=20_000)
    text, first = made.request(turns).messages[1]["content"], made.window(turns).first
    assert f"passed: {first - 1}\n" + "y" * 900 in text
    assert all(f"Profile: passed: {number}\n" in text for number in range(1, first)), "each in one line at least"
    assert len(text) < 30_000
    huge = Candidate(files={"model_new.py": "small", "kernels/a.cu": "z" * 500_000})
    lost = brief(context_tokens=20_000)
    kept = Conversation(
        Brief(**{**vars(lost), "candidate": lambda digest: huge}),
        LanguageModelOptions(model="m", context_tokens=20_000),
    )
    text = kept.request(turns).messages[1]["content"]
    assert "small" in text and "kernels/a.cu (500,000 characters)" in text and "zzzz" not in text


def test_one_turn_cannot_fill_the_context() -> None:
    calls = [did("Read", "x" * 16_000) for _ in range(20)]
    calls = [(call.model_copy(update={"id": str(n)}), result) for n, (call, result) in enumerate(calls)]
    request = conversation(context_tokens=32_768).request([turn(0, *calls)])
    assert len(text_of(request)) < 32_768
    assert "characters left out" in request.messages[-1]["content"]


def test_a_name_that_no_server_takes_back_is_mended() -> None:
    call = ToolCall(id="1", tool="functions.Read now!", arguments={}, malformed="the arguments aren't JSON")
    turns = [turn(0, (call, ToolResult(call_id="1", text="Wrong call", ok=False)))]
    sent = conversation().request(turns).messages[2]["tool_calls"][0]["function"]
    assert sent == {"name": "functions_Read_now_", "arguments": "{}"}


def test_tagged_calls_and_answers_are_text() -> None:
    turns = [turn(0, did("Read", "a", path="model.py"), did("Glob", "b"), message="I look.")]
    request = conversation(tools="tagged").request(turns)
    assert request.tools is None
    assert '"name": "Profile"' in request.messages[0]["content"]
    said, answer = request.messages[2:]
    assert said["content"].startswith("I look.\n<tool_call>\n") and said["content"].count("<tool_call>") == 2
    assert answer["role"] == "user" and '<tool_response name="Glob">\nb\n</tool_response>' in answer["content"]


class Answers:
    """Gives replies in order; records what was asked."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies, self.requests = list(replies), list[ChatRequest]()

    def complete(self, request: ChatRequest) -> Reply:
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def reply(text: str = "", *calls: WrittenCall, finish: str = "stop", reasoning: str = "") -> Reply:
    return Reply(text, reasoning, calls, Usage(1000, 100, 400), finish)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (reply(), "Your answer was empty"),
        (reply("I am done."), "No tool was called"),
        (reply("x", finish="length"), "cut off at the limit"),
        (reply(finish="content_filter"), "filter"),
        (reply('<tool_call>{"name": "Read"}</tool_call>'), "came as text"),
    ],
)
def test_an_answer_without_call_gets_an_observation(answer: Reply, says: str) -> None:
    move = LanguageModelPolicy(brief(), Answers(answer)).next([])
    assert not move.calls and says in move.observation
    turns = [turn(0, message=move.message, observation=move.observation)]
    assert says in conversation().request(turns).messages[-1]["content"]


@pytest.mark.parametrize("arguments", ['{"path": "a', "[1]", '"{}"', "null"])
def test_malformed_arguments_are_named_and_not_sent_back(arguments: str) -> None:
    call = WrittenCall("1", "Read", arguments)
    move = LanguageModelPolicy(brief(), Answers(reply("", call, finish="length"))).next([])
    assert move.calls[0].arguments == {}
    assert arguments in move.calls[0].malformed and "cut off" in move.calls[0].malformed


def test_ids_are_distinct_and_accounts_kept() -> None:
    calls = [WrittenCall("1", "Glob", ""), WrittenCall("1", "Glob", "{}"), WrittenCall("", "Glob", "{}")]
    policy = LanguageModelPolicy(brief(price=Price(input=10, output=100, cached_input=1)), Answers(reply("", *calls)))
    move = policy.next([])
    assert len({call.id for call in move.calls}) == 3
    assert (move.tokens_in, move.tokens_out, move.tokens_cached) == (1000, 100, 400)
    assert move.cost == pytest.approx((600 * 10 + 400 + 100 * 100) / 1e6)


def test_reasoning_is_kept_or_dropped() -> None:
    assert LanguageModelPolicy(brief(), Answers(reply(reasoning="hm"))).next([]).reasoning == "hm"
    assert LanguageModelPolicy(brief(reasoning="drop"), Answers(reply(reasoning="hm"))).next([]).reasoning == ""


def test_a_server_with_a_smaller_context_is_believed_from_then_on() -> None:
    turns = story()[:12]
    client = Answers(ContextExceeded("too long"), ContextExceeded("too long"), reply("", WrittenCall("1", "Glob", "")))
    policy = LanguageModelPolicy(brief(), client)
    move = policy.next(turns)
    assert move.context_limit is not None and move.context_limit < 60_000
    assert len(text_of(client.requests[2])) < len(text_of(client.requests[0]))
    after = turn(12, did("Glob", "a"), tokens=move.context_limit // 2, context_limit=move.context_limit)
    again = conversation().request([*turns, after])
    assert again.messages[1] == client.requests[2].messages[1], "the same condensation as was sent"
    assert again.messages[: len(client.requests[2].messages)] == client.requests[2].messages
    with pytest.raises(PolicyError, match="too small for this task"):
        LanguageModelPolicy(brief(), Answers(*[ContextExceeded("too long")] * 4)).next([])


def test_idle_turns_end_the_run() -> None:
    tools = frozenset({"Read"})
    idle = [turn(n, observation="empty") for n in range(MAX_WITHOUT_EFFECT - 1)]
    check(idle, tools)
    unknown = turn(len(idle), did("Raed", "No tool", ok=False))
    with pytest.raises(PolicyStalled, match="6 answers in a row"):
        check([*idle, unknown], tools)
    check([*idle, turn(5, did("Read", "a")), unknown], tools)


def test_loops_are_told_and_then_end_the_run() -> None:
    tools = frozenset({"Read", "Glob", "BashOutput"})
    same = [turn(n, did("Read", "a", path="a")) for n in range(MAX_REPEATS)]
    assert rounds(same) == list(range(1, MAX_REPEATS + 1))
    check(same[:-1], tools)
    with pytest.raises(PolicyStalled, match="same calls 10 times"):
        check(same, tools)
    told = conversation().request(same[:3]).messages
    assert "You have made the same calls 3 times" in told[-1]["content"]
    assert not any("same calls" in str(message["content"]) for message in told[:-1])
    alternating = [turn(n, did("Read" if n % 2 else "Glob", "a")) for n in range(2 * MAX_REPEATS)]
    with pytest.raises(PolicyStalled):
        check(alternating, tools)
    waiting = [turn(n, did("BashOutput", f"running for {n} s")) for n in range(30)]
    check(waiting, tools)
    changed = [turn(n, did("Profile", "x"), candidate_digest=str(n)) for n in range(30)]
    check(changed, frozenset({"Profile"}))


def test_without_a_model_there_is_no_policy() -> None:
    made = brief()
    with pytest.raises(UsageError, match="--model"):
        LanguageModelPolicy(Brief(**{**vars(made), "llm": None}), Answers())
