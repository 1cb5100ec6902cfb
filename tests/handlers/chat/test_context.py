"""Which context a request runs under, and which of its messages are kept."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.types import Adjustment
from handlers.chat import context
from handlers.chat.body import ChatRequest, Extras, HordeOptions, Message, Sampling, Tool
from handlers.chat.context import Bound, Fitted, fit, fit_prompt, lower_max_length
from handlers.chat.flatten import count_images, estimate_tokens, flatten
from handlers.chat.tools import history_break
from handlers.errors import PromptExceedsContext
from tests.instruments import counted, point
from tests.spec import spec

BOUND = Bound(max_length=1024, max_context_length=8192)
FIT = "horde.text.context_fit"
LOWERED = "horde.chat.max_length_lowered"


def system(content: str = "s") -> dict[str, Any]:
    return {"role": "system", "content": content}


def user(content: Any = "u") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str = "a") -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def calls(*ids: str) -> dict[str, Any]:
    made = [
        {"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id_ in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def answer(id_: str, content: str = "t") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


def image() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}


def tokens(count: int, role: str = "user") -> str:
    """Text whose message is estimated at `count` tokens, its newline included."""
    return "x" * (4 * count - len(role) - 3)


def request(
    *messages: dict[str, Any],
    max_length: int = 512,
    tools: list[dict[str, Any]] | None = None,
    **horde: Any,
) -> ChatRequest:
    converted = msgspec.convert(list(messages), list[Message])
    return ChatRequest(
        models=("m",),
        models_key="model",
        messages=converted,
        max_length=max_length,
        sampling=Sampling(),
        extras=Extras(tools=msgspec.convert(tools, list[Tool])) if tools else Extras(),
        stream=False,
        horde=HordeOptions(**horde),
        text_bytes=0,
        images=sum(map(count_images, converted)),
    )


def kept(fitted: Fitted, asked: ChatRequest) -> list[int]:
    """Which messages of the request are left, by index."""
    left = {id(each) for each in fitted.messages}
    return [index for index, each in enumerate(asked.messages) if id(each) in left]


def wire(fitted: Fitted) -> list[dict[str, Any]]:
    """`context_adjustments` as the status shows it."""
    return list(msgspec.to_builtins(fitted.adjustments))


@spec("Context adjustments", 2)
def test_what_fits_is_left_alone() -> None:
    asked, before = request(system(), user("Hello")), counted()

    fitted = fit(asked, BOUND)

    assert fitted == Fitted(
        messages=asked.messages,
        prompt="system: s\nuser: Hello",
        images=0,
        estimate=6,
        max_length=512,
        max_context_length=2048,
        adjustments=(),
        context_fit="grow",
    )
    assert fitted.messages is asked.messages
    assert counted() == before


@spec("Context adjustments", 1)
@pytest.mark.parametrize(
    ("count", "context"), [(1536, 2048), (1537, 3072), (2560, 3072), (2561, 4096), (7680, 8192)]
)
def test_the_context_grows_to_what_prompt_and_reply_need(count: int, context: int) -> None:
    """By steps of 1024. The prompt's last token has no newline: one character is to spare."""
    fitted = fit(request(user(tokens(count)), context_fit="grow"), BOUND)

    assert (fitted.estimate, fitted.max_context_length) == (count, context)
    assert wire(fitted) == (
        [{"from": 2048, "to": context, "reason": "grow"}] if context > 2048 else []
    )


@spec("horde object", 6)
def test_the_context_never_grows_past_the_largest_declared_one() -> None:
    bound = Bound(max_length=1024, max_context_length=2500)

    fitted = fit(request(user(tokens(1900)), context_fit="grow"), bound)

    assert fitted.max_context_length == 2500

    with pytest.raises(PromptExceedsContext) as refused:
        fit(request(user(tokens(1989)), context_fit="grow"), bound)

    assert refused.value.message == (
        "The prompt is estimated at 1989 tokens: with a max_length of 512 it does not fit a "
        "context of 2500."
    )


@spec("horde object", 5)
@spec("Context adjustments", 5)
def test_an_explicit_context_is_kept_though_nobody_declares_it() -> None:
    fitted = fit(request(user(), max_context_length=100_000), BOUND)

    assert (fitted.max_context_length, fitted.adjustments) == (100_000, ())


@spec("horde object", 5)
def test_growth_starts_at_the_explicit_context() -> None:
    fitted = fit(request(user(tokens(3000)), max_context_length=3500, context_fit="grow"), BOUND)

    assert wire(fitted) == [{"from": 3500, "to": 4096, "reason": "grow"}]


@spec("Context adjustments", 7, 13)
@spec("horde object", 6)
def test_reject_never_grows() -> None:
    before = counted()
    assert fit(request(user(tokens(1536)), context_fit="reject"), BOUND).context_fit == "reject"

    with pytest.raises(PromptExceedsContext, match=r"does not fit a context of 2048\.$"):
        fit(request(user(tokens(1537)), context_fit="reject"), BOUND)

    assert counted() - before == {point(FIT, outcome="refused", mode="reject"): 1}


@spec("Context adjustments", 3, 4, 6)
def test_a_length_that_nobody_serves_is_lowered_before_sizing() -> None:
    """With 4096 it would not fit at the bound."""
    asked = request(user(tokens(7000)), max_length=4096, context_fit="grow", dry_run=True)
    before = counted()

    fitted = fit(asked, BOUND)

    assert fitted.max_length == 1024
    assert wire(fitted) == [
        {"from": 4096, "to": 1024, "reason": "worker_max_length"},
        {"from": 2048, "to": 8192, "reason": "grow"},
    ]
    assert counted() - before == {
        point(LOWERED, requested_bucket="2049-4096", declared_bucket="513-1024", dry_run=True): 1,
        point(FIT, outcome="grown", mode="grow"): 1,
    }


@spec("Context adjustments", 3)
def test_a_length_is_lowered_only_to_what_a_request_may_ask_for() -> None:
    assert lower_max_length(512, 1024) is None
    assert lower_max_length(512, 512) is None
    assert lower_max_length(512, 16) == Adjustment(before=512, after=16, reason="worker_max_length")
    assert lower_max_length(512, 15) is None


def test_without_a_bound_nothing_is_lowered_and_nothing_grows() -> None:
    assert fit(request(user(), max_length=1024), None).max_length == 1024

    with pytest.raises(PromptExceedsContext):
        fit(request(user(tokens(2000))), None)


@spec("Context adjustments", 8, 11, 13, 14)
def test_the_oldest_turns_are_dropped_and_both_changes_are_told() -> None:
    asked = request(
        system(tokens(100, "system")),
        user(tokens(6000)),
        assistant(tokens(6000, "assistant")),
        user(tokens(6000)),
        assistant(tokens(400, "assistant")),
        user(tokens(1000)),
        dry_run=True,
    )
    before = counted()

    fitted = fit(asked, BOUND)

    assert kept(fitted, asked) == [0, 3, 4, 5]
    assert wire(fitted) == [
        {"from": 2048, "to": 8192, "reason": "grow"},
        {"from": 19500, "to": 7500, "reason": "truncate_oldest", "dropped_messages": 2},
    ]
    assert (fitted.max_context_length, fitted.estimate) == (8192, 7500)
    assert fitted.prompt == flatten(fitted.messages)
    assert fitted.context_fit == "grow"
    assert counted() - before == {point(FIT, outcome="truncated", mode="truncate_oldest"): 1}


@spec("Context adjustments", 8)
def test_it_grows_before_anything_is_dropped() -> None:
    asked, before = request(user(tokens(1000)), user(tokens(1000))), counted()

    fitted = fit(asked, BOUND)

    assert fitted.messages is asked.messages
    assert wire(fitted) == [{"from": 2048, "to": 3072, "reason": "grow"}]
    assert counted() - before == {point(FIT, outcome="grown", mode="truncate_oldest"): 1}


@spec("Context adjustments", 12)
@pytest.mark.parametrize("requested", [8192, 10_000])
def test_a_context_at_the_bound_or_above_does_not_grow(requested: int) -> None:
    asked = request(user(tokens(5000)), user(tokens(5000)), max_context_length=requested)

    fitted = fit(asked, BOUND)

    assert fitted.max_context_length == requested
    assert wire(fitted) == [
        {"from": 10_000, "to": 5000, "reason": "truncate_oldest", "dropped_messages": 1}
    ]


@spec("Context adjustments", 9)
def test_instructions_and_what_follows_the_latest_question_stay() -> None:
    asked = request(
        system(),
        user(tokens(9000)),
        system("be kind"),
        user("latest"),
        calls("c1"),
        answer("c1"),
        assistant("so"),
    )

    assert kept(fit(asked, BOUND), asked) == [0, 2, 3, 4, 5, 6]


@spec("Context adjustments", 10)
def test_what_does_not_fit_without_its_oldest_turns_is_refused() -> None:
    asked, before = request(user(tokens(50)), assistant(), user(tokens(8000))), counted()

    with pytest.raises(PromptExceedsContext) as refused:
        fit(asked, BOUND)

    assert refused.value.message == (
        "Even without its oldest turns the prompt is estimated at 8000 tokens: with a max_length "
        "of 512 it does not fit a context of 8192."
    )
    assert counted() - before == {point(FIT, outcome="refused", mode="truncate_oldest"): 1}


@spec("Context adjustments", 8)
@pytest.mark.parametrize(
    ("messages", "left"),
    [
        # a question and what was said right after it
        ([user(), assistant(), assistant("b"), user("v")], [2, 3]),
        # with an instruction between them, each is a turn of its own
        ([user(), system(), assistant(), user("v")], [1, 2, 3]),
        # calls and the results of them
        ([calls("c", "d"), answer("d"), answer("c"), user("v")], [3]),
        # a question, the calls that it led to and their results
        ([user(), calls("c"), answer("c"), assistant(), user("v")], [3, 4]),
        # no question at all: the latest turn stays
        ([assistant(), assistant("b"), system(), calls("c"), answer("c")], [1, 2, 3, 4]),
        ([assistant(), calls("c"), answer("c"), system()], [1, 2, 3]),
    ],
)
def test_a_turn_is_dropped_whole(messages: list[dict[str, Any]], left: list[int]) -> None:
    """One turn has to go: the first message alone is too long."""
    long: dict[str, Any] = messages[0] | {"content": tokens(9000)}
    asked = request(long, *messages[1:])

    assert kept(fit(asked, BOUND), asked) == left


@spec("Flattened prompt", 5, 9)
def test_dropped_images_count_no_more() -> None:
    """17 images are estimated at 8704 tokens and their placeholders."""
    pictures = [image() for _ in range(16)]
    asked = request(user([*pictures]), assistant(), user([image()]))

    fitted = fit(asked, BOUND)

    assert (kept(fitted, asked), fitted.images) == ([2], 1)
    assert fitted.estimate == estimate_tokens("user: [image]", 1) == 516


@spec("Flattened prompt", 4)
def test_tools_are_sized_with_the_messages_and_stay() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 20_000}}
    asked = request(user(tokens(4000)), user(), tools=[tool])

    fitted = fit(asked, BOUND)

    assert kept(fitted, asked) == [1]
    assert fitted.prompt == flatten(fitted.messages, asked.extras.tools)
    assert fitted.estimate == estimate_tokens(fitted.prompt) > 5000


def test_the_same_question_twice_is_two_messages() -> None:
    asked = request(user(tokens(5000)), user(tokens(5000)))

    assert len(fit(asked, BOUND).messages) == 1


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Valid conversations: calls are answered at once, in some order."""
    messages: list[dict[str, Any]] = []
    text = st.integers(1, 60).map(tokens)
    for kind in draw(
        st.lists(st.sampled_from(["system", "user", "assistant", "calls"]), max_size=12)
    ):
        match kind:
            case "calls":
                ids = [f"{len(messages)}-{number}" for number in range(draw(st.integers(1, 3)))]
                messages.append(calls(*ids))
                messages += [answer(id_, draw(text)) for id_ in draw(st.permutations(ids))]
            case "user":
                pictures = [image() for _ in range(draw(st.sampled_from([0, 0, 0, 1])))]
                messages.append(user([{"type": "text", "text": draw(text)}, *pictures]))
            case _:
                messages.append({"role": kind, "content": draw(text)})
    return messages or [user()]


def turns(messages: list[dict[str, Any]]) -> list[list[int]]:
    """What the specification calls turns, with the instructions left out; told backwards."""
    found: list[list[int]] = []
    for index, message in reversed(list(enumerate(messages))):
        later = found[-1] if found else []
        joins = index + 1 in later and (
            (message["role"] == "user" and messages[index + 1]["role"] == "assistant")
            or ("tool_calls" in message)
            or (message["role"] == "tool" and messages[index + 1]["role"] == "tool")
        )
        if message["role"] == "system":
            continue
        if joins:
            later.insert(0, index)
        else:
            found.append([index])
    return found[::-1]


@spec("Context adjustments", 8, 9, 10)
@settings(max_examples=150, deadline=None)
@given(histories(), st.integers(510, 900))
def test_dropping_keeps_histories_valid_and_drops_no_turn_too_many(
    messages: list[dict[str, Any]], most: int
) -> None:
    asked = request(*messages, max_length=500, max_context_length=1)
    users = [index for index, each in enumerate(messages) if each["role"] == "user"]
    all_turns = turns(messages)
    may_go = [turn for turn in all_turns if turn[-1] < users[-1]] if users else all_turns[:-1]

    def without(count: int) -> list[Message]:
        gone = {index for turn in may_go[:count] for index in turn}
        return [each for index, each in enumerate(asked.messages) if index not in gone]

    def needed(left: list[Message]) -> int:
        return estimate_tokens(flatten(left), sum(map(count_images, left))) + 500

    fewest = next((n for n in range(len(may_go) + 1) if needed(without(n)) <= most), None)
    if fewest is None:
        with pytest.raises(PromptExceedsContext):
            fit(asked, Bound(16384, most))
        return

    fitted = fit(asked, Bound(16384, most))

    assert fitted.messages == without(fewest)
    assert history_break(fitted.messages) is None
    assert fitted.prompt == flatten(fitted.messages)
    assert fitted.images == sum(map(count_images, fitted.messages))
    assert fitted.estimate + 500 <= fitted.max_context_length <= most


def test_dropping_is_linear() -> None:
    """Every message of the most that a request may have goes but the last."""
    asked = request(*(user("x" * 1000) for _ in range(1023)), user(tokens(7600)))
    started = time.process_time()

    fitted = fit(asked, BOUND)

    assert len(fitted.messages) == 1
    assert time.process_time() - started < 0.2


@spec("Text requests", 12)
def test_a_text_prompt_grows_is_rejected_or_is_left_to_the_worker() -> None:
    prompt, before = "x" * 4 * 2000, counted()

    grown = fit_prompt(prompt, 80, 2048, 4096, "grow")
    ignored = fit_prompt(prompt, 80, 2048, 4096, "ignore")
    fitting = fit_prompt(prompt, 48, 2048, 0, "reject")

    assert grown == (3072, 2000, (Adjustment(before=2048, after=3072, reason="grow"),))
    assert ignored == fitting == (2048, 2000, ())
    assert counted() - before == {point(FIT, outcome="grown", mode="grow"): 1}


@spec("Text requests", 12)
@pytest.mark.parametrize(("mode", "most"), [("reject", 4096), ("grow", 2079), ("grow", 0)])
def test_a_text_prompt_that_does_not_fit_is_refused(mode: context.TextMode, most: int) -> None:
    before = counted()

    with pytest.raises(PromptExceedsContext):
        fit_prompt("x" * 4 * 2000, 80, 2048, most, mode)

    assert counted() - before == {point(FIT, outcome="refused", mode=mode): 1}
