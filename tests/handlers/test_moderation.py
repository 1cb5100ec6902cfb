"""Replacement filters: when they apply, what they rewrite, and what they may cost."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from handlers import moderation
from handlers.chat.body import Message
from handlers.chat.flatten import flatten
from handlers.errors import CorruptPrompt
from handlers.files import Unreadable
from handlers.moderation import Filters, Moderation, OutOfTime
from handlers.reference import Model, Reference
from tests.logged import logged
from tests.spec import spec

REFERENCE = Reference(lambda: {"spicy": Model(10**9, nsfw=True), "plain": Model(10**9)})
RUNAWAY = r"(a|aa)+$"


def filters(*pairs: tuple[str, str]) -> Filters:
    entries = [{"regex": regex, "replacement": replacement} for regex, replacement in pairs]
    return moderation.parse(json.dumps(entries).encode())


def messages(*sent: dict[str, Any]) -> list[Message]:
    return msgspec.convert(list(sent), list[Message])


BAD = filters(("bad", "good"), ("remove me", ""))


@spec("Flattened prompt", 6)
@pytest.mark.parametrize(
    ("models", "flagged", "applies"),
    [
        (["plain"], False, False),
        (["plain"], True, True),
        (["plain", "spicy-Q4_K_M"], False, True),
        (["unknown"], False, False),
        ([], False, False),
        ([], True, True),
    ],
)
async def test_filters_apply_to_flagged_users_and_to_nsfw_models(
    models: list[str], flagged: bool, applies: bool
) -> None:
    moderated = Moderation(REFERENCE, lambda: BAD)
    sent = messages({"role": "user", "content": "a bad idea"})

    rewritten = await moderated.messages(sent, models, flagged=flagged)
    prompt = await moderated.prompt("a bad idea", models, flagged=flagged)

    assert (rewritten is not sent) == applies
    assert flatten(rewritten) == ("user: a good idea" if applies else "user: a bad idea")
    assert prompt == ("a good idea" if applies else "a bad idea")


@spec("Flattened prompt", 6, 7)
def test_each_text_of_every_role_is_rewritten() -> None:
    call = {"id": "bad", "type": "function", "function": {"name": "bad", "arguments": "bad"}}
    picture = {"type": "image_url", "image_url": {"url": "https://bad.example/bad.png"}}
    sent = messages(
        {"role": "system", "content": "Bad.", "name": "bad"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "bad"},
                picture,
                {"type": "text", "text": "remove me"},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "bad"}], "tool_call_id": "bad"},
        {"role": "assistant", "content": "remove me"},
        {"role": "user", "content": "fine"},
    )

    rewritten = moderation.rewrite_messages(sent, BAD)

    assert msgspec.to_builtins(rewritten) == [
        {"role": "system", "content": "good.", "name": "bad"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "good"}, picture, {"type": "text", "text": ""}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "good"}], "tool_call_id": "bad"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "fine"},
    ]


@spec("Flattened prompt", 8)
def test_what_is_json_is_left_alone() -> None:
    """Tool definitions and formats never come here; calls of the history do."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":"bad"}'}}
    sent = messages({"role": "assistant", "content": "calls", "tool_calls": [call]})

    assert moderation.rewrite_messages(sent, BAD) is sent


def test_filters_apply_in_the_order_of_the_file_and_whatever_the_case() -> None:
    assert moderation.rewrite(["One"], filters(("one", "two"), ("TWO", "three"))) == ["three"]
    assert moderation.rewrite(["One"], filters(("two", "three"), ("one", "two"))) == ["two"]
    assert moderation.rewrite(["One one"], filters(("(?-i:one)", "two"))) == ["One two"]


def test_a_replacement_may_name_groups() -> None:
    rules = filters((r"(\w+) years old", r"\1 (age)"), (r"(?P<who>kid)s?", r"\g<who>!"))

    assert moderation.rewrite(["12 years old kids"], rules) == ["12 (age) kid!"]


def test_a_prompt_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(CorruptPrompt, match=r"^Nothing of the prompt is left"):
        moderation.rewrite_prompt(" remove me ", BAD)

    assert moderation.rewrite_prompt("   ", BAD) == "   "


async def test_a_filter_that_runs_away_is_stopped_and_told_without_the_text() -> None:
    rules = filters(("b", "c"), (RUNAWAY, "x"))
    moderated = Moderation(REFERENCE, lambda: rules, seconds=5)  # enough for the first filter

    async with asyncio.timeout(60):  # left to itself it would never end
        with logged(moderation.logger) as lines, pytest.raises(CorruptPrompt, match="in time"):
            await moderated.prompt("a" * 5000 + "!", [], flagged=True)

    assert lines == [{"event": "filter_too_slow", "filter": 1, "log_level": "warning"}]


async def test_who_sends_what_takes_long_holds_up_his_like_only() -> None:
    rules = filters((RUNAWAY, "x"), ("bad", "good"))
    # However busy the machine is, the one needs less than it has, and the others have much more.
    moderated = Moderation(REFERENCE, lambda: rules, quick=2.5, seconds=20)

    def send(prompt: str) -> asyncio.Task[str]:
        return asyncio.create_task(moderated.prompt(prompt, [], flagged=True))

    slow = [send("a" * 5000 + "!") for _ in range(4)]
    other = send("bad")

    assert await other == "good"
    assert not any(each.done() for each in slow)
    for each in slow:
        each.cancel()


def test_the_time_is_that_of_all_texts_together() -> None:
    rules = filters((RUNAWAY, "x"))
    started = time.monotonic()

    with pytest.raises(OutOfTime):
        moderation.rewrite(["a" * 24 + "!"] * 1000, rules, seconds=0.1)

    assert time.monotonic() - started < 20  # each for itself they would take 100 s


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("a" * 600_000, filters(("a", "b" * 1000))),
        ("a" * 600_000, filters(("(.+)", r"\1\1\1"))),
        ("aaa", filters(*[("a", "a" * 100)] * 30)),
    ],
)
def test_replacements_cannot_fill_the_memory(text: str, rules: Filters) -> None:
    with logged(moderation.logger) as lines, pytest.raises(CorruptPrompt, match="grows"):
        moderation.rewrite([text], rules, seconds=30)

    assert [line["event"] for line in lines] == ["filter_grows_too_much"]


async def test_nobody_waits_for_a_slow_filter() -> None:
    """Its request is judged in a thread, and matching lets go of the interpreter."""
    moderated = Moderation(REFERENCE, lambda: filters((RUNAWAY, "x")), seconds=5)
    slow = asyncio.create_task(moderated.prompt("a" * 5000 + "!", ["spicy"], flagged=False))

    for _ in range(20):  # turns that would not come before it is judged
        await asyncio.sleep(0.01)

    assert not slow.done()
    with pytest.raises(CorruptPrompt):
        await slow


async def test_filters_are_those_in_force_at_the_time() -> None:
    now = filters()
    moderated = Moderation(REFERENCE, lambda: now)
    assert await moderated.prompt("bad", [], flagged=True) == "bad"

    now = BAD

    assert await moderated.prompt("bad", [], flagged=True) == "good"


def test_without_a_file_there_are_no_filters() -> None:
    assert moderation.opened("")() == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a JSON list of filters: Input data was truncated"),
        ("{}", "expected a JSON list of filters: Expected `array`, got `object`"),
        ('[{"regex": "a", "replacement": ""}, 1]', "filter 1: Expected `object`, got `int`"),
        ('[{"regex": "a"}]', "filter 0: Object missing required field `replacement`"),
        ('[{"regex": "a", "replacment": "b"}]', "filter 0: Object contains unknown field"),
        ('[{"regex": "(a", "replacement": "b"}]', "filter 0: missing ) at position 2"),
        ('[{"regex": "a{,99999999999}", "replacement": "b"}]', "filter 0: repeat count too big"),
        ('[{"regex": "(?V0)(?V1)a", "replacement": "b"}]', "filter 0: VERSION0 and VERSION1"),
        ('[{"regex": "(a)", "replacement": "\\\\2"}]', "filter 0: invalid group reference"),
        ('[{"regex": "(a)", "replacement": "\\\\g<b>"}]', "filter 0: unknown group"),
        ('[{"regex": "a", "replacement": "\\\\q"}]', "filter 0: bad escape \\q"),
        ('[{"regex": "a*", "replacement": "b"}]', "filter 0: regex: matches the empty text"),
        ('[{"regex": "a", "replacement": "\\u0000"}]', "filter 0: replacement: holds U+0000"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_entry(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "filters.json"
    path.write_text(text)

    with pytest.raises(Unreadable) as refused:
        moderation.opened(str(path))

    assert str(refused.value).startswith(f"{path}: ")
    assert reason in str(refused.value)
