"""The order of a submission: what fails two checks gets the earlier one's refusal, and nothing else
(spec, Routes)."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.patience import Patience
from handlers.modes import set_modes
from tests.api.site import BODY, MODEL, Site, opened
from tests.spec import spec

CHAT = "/v2/generate/chat/async"
KNOWN = "Llama-3.1-8B-Instruct"
"""In the model reference that ships, and served by nobody here."""
LONG: dict[str, Any] = {"messages": [{"role": "user", "content": "x" * 200_000}]}
STOPS = {"stop": [str(number) for number in range(129)]}
MOST_BODY = 250_000


@contextlib.asynccontextmanager
async def failing(redis_url: str, migrated_url: str, *wrong: str) -> AsyncIterator[Site]:
    """A site of which these circumstances hold."""
    settings: dict[str, Any] = {"max_chat_body_bytes": MOST_BODY, "text_free_output_ceiling": 512}
    if "admission" in wrong:
        settings["chat_admission_enabled"] = False
    if "concurrency" in wrong:
        settings["concurrency"] = 0
    if "rate" in wrong:
        settings |= {"rate_limits_enabled": True, "chat_request_2sec_limit_per_ip": "1/hour"}
    counted = Patience(limits=20)
    async with opened(redis_url, migrated_url, patience=counted, **settings) as site:
        if "rate" in wrong:
            await site.submit(key=site.owner_key, top_k=1)
        if "maintenance" in wrong:
            await set_modes(site.parts.log, site.parts.limits, maintenance=True)
        if "timeout" in wrong:
            await site.parts.timeouts.set("127.0.0.1", 5)
        if "upfront" in wrong:
            site.client_key = site.owner_key  # of an account with nothing to spend
        await site.settle()
        yield site


def sent(*wrong: str) -> tuple[dict[str, Any], str | None]:
    """A body and the key that it is sent with, wrong in these ways: what to change, or a key."""
    body: dict[str, Any] = dict(BODY)
    key: str | None = ""
    horde: dict[str, Any] = {"context_fit": "reject"}
    for each in wrong:
        match each:
            case "size":
                body["metadata"] = {"pad": "x" * MOST_BODY}
            case "body":
                body["top_k"] = 1
            case "header":
                key = None
            case "operation":
                horde["operation_key"] = str(uuid.uuid4())
            case "key":
                key = "nobody's"
            case "unknown":
                body.pop("model")
                body["models"] = [KNOWN, "nobody/knows"]
            case "unserved":
                body.pop("model", None)
                body.setdefault("models", [KNOWN])
            case "long":
                body |= LONG
            case "stops":
                body |= STOPS
            case "kudos":
                horde["max_kudos"] = 1
            case "upfront":
                body["max_tokens"] = 513
    return body | {"horde": horde}, key


# Each check with what makes it fail, in the order of the specification; and the refusal.
CHECKS: list[tuple[str, str, int, str]] = [
    ("the rate limit", "rate", 429, "TooManyRequests"),
    ("the body's size", "size", 413, "RequestTooLarge"),
    ("the body", "body", 400, "UnsupportedChatParameter"),
    ("the apikey header", "header", 400, "BadRequest"),
    ("the operation key's owner", "operation key", 401, "InvalidAPIKey"),
    ("the admission flag", "admission", 503, "ChatAdmissionDisabled"),
    ("maintenance", "maintenance", 400, "MaintenanceMode"),
    ("authentication", "key", 401, "InvalidAPIKey"),
    ("concurrency", "concurrency", 429, "TooManyPrompts"),
    ("countermeasures", "timeout", 403, "TimeoutIP"),
    ("a known model", "unknown", 404, "UnknownChatModel"),
    ("a served model", "unserved", 403, "NoEligibleWorker"),
    ("the context", "long", 400, "PromptExceedsContext"),
    ("the params", "stops", 400, "TooManyStopSequences"),
    ("the kudos cap", "kudos", 400, "ChatKudosCapExceeded"),
    ("kudos upfront", "upfront", 403, "KudosUpfront"),
]
PAIRS = [
    (earlier, later)
    for earlier, later in itertools.pairwise(CHECKS)
    # Nobody's key has no waiting jobs, and a missing one no owner.
    if (earlier[0], later[0])
    not in {
        ("the apikey header", "the operation key's owner"),
        ("authentication", "concurrency"),
    }
]
PAIRS += [(CHECKS[3], CHECKS[5]), (CHECKS[6], CHECKS[8]), (CHECKS[7], CHECKS[9])]


@spec("Order of a submission", 1, 2, 3, 4, 5, 6, 8)
@pytest.mark.parametrize(("earlier", "later"), PAIRS, ids=lambda check: check[0].replace(" ", "-"))
async def test_of_two_failing_checks_the_earlier_one_answers(
    redis_url: str,
    migrated_url: str,
    earlier: tuple[str, str, int, str],
    later: tuple[str, str, int, str],
) -> None:
    wrong = (*earlier[1].split(), *later[1].split())
    async with failing(redis_url, migrated_url, *wrong) as site:
        body, key = sent(*wrong)
        before = await site.state()

        answer = await site.post(CHAT, body, site.client_key if key == "" else key)

        assert (answer.status_code, answer.json()["rc"]) == earlier[2:], answer.text
        assert await site.state() == before


@spec("horde object", 12)
@spec("Admission flag", 1)
@spec("Known models", 3, 4)
@pytest.mark.parametrize(
    "around",
    ["", "admission", "maintenance", "concurrency", "timeout"],
    ids=lambda name: name or "-",
)
async def test_a_dry_run_is_refused_like_a_real_one(
    redis_url: str, migrated_url: str, around: str
) -> None:
    bodies = {"size", "body", "header", "key", "unknown", "unserved", "long", "stops", "kudos"}
    async with failing(redis_url, migrated_url, around) as site:
        for _, wrong, *refusal in CHECKS:
            if wrong not in ({around} if around else bodies):
                continue
            body, key = sent(wrong)
            body["horde"] |= {"dry_run": True, "operation_key": str(uuid.uuid4())}
            before = await site.state()

            answer = await site.post(CHAT, body, site.client_key if key == "" else key)

            assert [answer.status_code, answer.json()["rc"]] == refusal, answer.text
            assert await site.state() == before


@spec("Order of a submission", 7)
async def test_a_lowered_length_is_what_the_context_is_sized_for(site: Site) -> None:
    """In 8192 tokens of context the 16,384 asked for would not fit, the 2048 served do."""
    await site.project()

    answer = await site.submit(max_tokens=16384, horde={"dry_run": True, "context_fit": "reject"})

    assert answer.status_code == 400
    assert "max_length of 2048" in answer.json()["message"]
    grown = await site.submit(max_tokens=16384, horde={"dry_run": True, "context_fit": "grow"})
    assert grown.json()["resolved"]["params"]["max_length"] == 2048
    assert grown.json()["resolved"]["params"]["max_context_length"] == 3072
    assert MODEL in grown.json()["resolved"]["models"]
