"""What a chat submission answers and stores, from the route to the worker and the status."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import pytest

from handlers.admission import Operation, admit
from handlers.chat import fingerprint, request
from tests.api.site import BODY, MODEL, SECRET, Site, opened
from tests.spec import spec

CHAT = "/v2/generate/chat/async"
KNOWN = "Llama-3.1-8B-Instruct"
OTHER_KNOWN = "Mistral-7B-Instruct-v0.3"
"""Both in the model reference that ships, and served by nobody here."""
RAUNCHY = "Llama-3-Lumimaid-8B-v0.1"
"""The same, and not safe for work."""


def said(*texts: str) -> list[dict[str, str]]:
    """A conversation, the user first."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


async def refused(site: Site, status: int, rc: str, **changed: Any) -> dict[str, Any]:
    """The refusal of a body, by which nothing was stored."""
    before = await site.state()

    answer = await site.submit(**changed)

    assert (answer.status_code, answer.json()["rc"]) == (status, rc), answer.text
    assert await site.state() == before
    return dict(answer.json())


async def content(site: Site, request_id: str, field: str) -> bytes | None:
    """What the content hash of a request holds."""
    log = site.parts.log
    found = await log.read("HGET", log.keys.content(request_id), field)
    return None if found is None else bytes(found)


# routes and answers


@spec("Routes", 1, 5)
async def test_a_queued_request_is_told_with_its_estimate_and_nothing_more(site: Site) -> None:
    answer = await site.submit()

    assert answer.status_code == 202
    assert answer.json() == {"id": answer.json()["id"], "kudos": 49.0}


@spec("Routes", 2, 3)
async def test_the_status_shows_the_reply_and_the_delete_shows_what_was(site: Site) -> None:
    request_id = await site.queued()
    await site.project()
    await site.reply((await site.popped())["id"])
    await site.project()

    status, deleted = await site.status(request_id), await site.cancel(request_id)

    assert status.json()["generations"][0]["message"]["content"] == "hello"
    assert deleted.json() == status.json()


async def test_who_calls_with_what_is_kept_with_the_request_and_not_in_the_log(site: Site) -> None:
    agent = {"client-agent": "my-client:1.0:me@example.org"}

    answer = await site.post(CHAT, BODY, site.client_key, agent)

    request_id = answer.json()["id"]
    assert await content(site, request_id, "client_agent") == agent["client-agent"].encode()
    plain = await site.queued()
    assert await content(site, plain, "client_agent") == b"unknown:0:unknown"
    events = await site.parts.log.read("XRANGE", site.parts.log.keys.events(0), "-", "+")
    assert b"my-client" not in b"".join(field for _, fields in events for field in fields)


# known models


@spec("Known models", 2)
async def test_a_model_that_only_a_worker_knows_is_known_while_it_is_online(site: Site) -> None:
    own = "nobody/knows"
    await refused(site, 404, "UnknownChatModel", model=own)
    await site.pop(name="second", models=[own], model_id=own)
    await site.project()

    assert (await site.submit(model=own)).status_code == 202

    await site.project()
    await site.parts.log.read("HINCRBY", site.parts.log.keys.control(0), "clock_ms", 301_000)
    site.parts.availability._served.clear()
    await refused(site, 404, "UnknownChatModel", model=own)


@spec("Known models", 3)
async def test_an_unknown_model_is_refused_before_its_context_is_looked_at(site: Site) -> None:
    long = {"messages": said("x" * 200_000)}

    told = await refused(site, 404, "UnknownChatModel", model="nobody/knows", **long)
    await refused(site, 404, "UnknownChatModel", model="nobody/knows", horde={"dry_run": True})

    assert told["message"] == "'model': no model named 'nobody/knows' is known."


@spec("Known models", 4, 5, 6, 7)
@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_known_model_that_nobody_serves_is_refused(site: Site, dry_run: bool) -> None:
    horde = {"horde": {"dry_run": dry_run}}
    long = {"messages": said("x" * 200_000)}

    one = await refused(site, 403, "NoEligibleWorker", model=KNOWN, **horde, **long)
    two = {key: value for key, value in BODY.items() if key != "model"}
    two |= {"models": [KNOWN, OTHER_KNOWN], **horde}
    answer = await site.post(CHAT, two, site.client_key)

    assert one["message"] == f"No worker is currently serving the model '{KNOWN}'."
    assert answer.status_code == 403
    assert answer.json() == {
        "message": f"No worker is currently serving any of the models '{KNOWN}', '{OTHER_KNOWN}'.",
        "rc": "NoEligibleWorker",
    }
    assert set(one) == {"message", "rc"}


@spec("Known models", 8)
async def test_every_entry_of_models_has_to_be_known(site: Site) -> None:
    body = {"models": [MODEL, "nobody/knows", "nor/this"], "messages": said("hi")}
    before = await site.state()

    answer = await site.post(CHAT, body, site.client_key)

    assert (answer.status_code, answer.json()["rc"]) == (404, "UnknownChatModel")
    assert answer.json()["message"].startswith("'models[1]'")
    assert await site.state() == before


async def test_of_several_models_one_that_is_served_is_enough(site: Site) -> None:
    answer = await site.post(
        CHAT, {"models": [KNOWN, MODEL], "messages": said("hi")}, site.client_key
    )
    await site.project()

    assert answer.status_code == 202
    assert (await site.popped())["model"] == MODEL


async def test_a_no_is_not_given_while_the_read_model_is_behind(site: Site) -> None:
    """The worker is there; the read model has not heard of it yet, and nothing projects."""
    await site.pop(name="second", models=[KNOWN], model_id=KNOWN)

    answer = await site.submit(model=KNOWN)

    assert (answer.status_code, answer.json()["rc"]) == (503, "ReadModelBehind")
    await site.project()
    assert (await site.submit(model=KNOWN)).status_code == 202


# operation keys


def operation(**options: Any) -> dict[str, Any]:
    """A `horde` object with an operation key of its own."""
    return {"operation_key": str(uuid.uuid4()), **options}


@spec("Routes", 1)
@spec("Operation key", 1, 2)
async def test_a_repeat_gets_the_first_answer_and_another_request_a_conflict(site: Site) -> None:
    horde = operation()
    first = await site.submit(horde=horde)
    before = await site.state()

    again = await site.submit(horde=horde, stream=True, user="me", metadata={"a": "b"})

    assert again.status_code == 200
    assert again.json() == {"id": first.json()["id"], "kudos": first.json()["kudos"]}
    assert await site.state() == before
    await refused(site, 400, "OperationKeyConflict", horde=horde, temperature=0.5)


@spec("Operation key", 3)
@spec("Admission flag", 3)
async def test_a_repeat_is_answered_whatever_has_changed_since(
    redis_url: str, migrated_url: str
) -> None:
    """Admission off, no place left, maintenance, a timeout, and no worker any more."""
    horde = operation()
    async with opened(redis_url, migrated_url) as site:
        first = await site.submit(horde=horde)
        key = site.client_key
    closed = {"chat_admission_enabled": False, "concurrency": 0, "online_window_seconds": 1}
    async with opened(redis_url, migrated_url, served=False, **closed) as site:
        await site.parts.log.read("HINCRBY", site.parts.log.keys.control(0), "clock_ms", 10_000)
        await site.parts.timeouts.set("127.0.0.1", 5)
        site.client_key = key

        again = await site.submit(horde=horde)

        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
        await refused(site, 400, "OperationKeyConflict", horde=horde, n=1, max_tokens=99)
        await refused(site, 503, "ChatAdmissionDisabled", horde=operation())


@spec("Operation key", 4, 5)
async def test_of_parallel_submissions_one_is_queued(site: Site) -> None:
    """C-111."""
    horde = operation()

    same = await asyncio.gather(*(site.submit(horde=horde) for _ in range(20)))
    others = await asyncio.gather(*(site.submit(horde=horde, seed=each) for each in range(5)))

    assert sorted(answer.status_code for answer in same) == [200] * 19 + [202]
    assert len({answer.json()["id"] for answer in same}) == 1
    assert {answer.json()["rc"] for answer in others} == {"OperationKeyConflict"}
    await site.project()
    assert await site.pop(name="w") is not None
    words = await _words(site)
    assert (words.count("admitted"), words.count("submitted")) == (1, 1)


async def _words(site: Site) -> list[str]:
    events = await site.parts.log.read("XRANGE", site.parts.log.keys.events(0), "-", "+")
    return [fields[1].decode() for _, fields in events]


async def test_a_retry_is_not_refused_for_the_place_that_its_first_try_took(
    redis_url: str, migrated_url: str
) -> None:
    """The first try was admitted, and its process died before the request was stored."""
    horde = operation()
    body = BODY | {"horde": horde}
    async with opened(redis_url, migrated_url, concurrency=1) as site:
        log, limits = site.parts.log, site.parts.limits
        account = await site.parts.accounts.find(site.client_key)
        digest = fingerprint.of(request.read(msgspec.json.encode(body)))
        named = Operation.of(SECRET, horde["operation_key"], digest)
        id_ = log.keys.new_request_id()
        await admit(log, limits, account, id_, 1, models=[MODEL], operation=named, kudos=490_000)
        await site.settle()

        again = await site.submit(horde=horde)

        assert (again.status_code, again.json()) == (200, {"id": id_, "kudos": 49.0})
        await site.settle()
        await refused(site, 429, "TooManyPrompts")


@spec("Operation key", 7)
async def test_a_dry_run_neither_looks_up_nor_claims(site: Site) -> None:
    horde = operation()
    first = await site.submit(horde=horde)
    before = await site.state()

    other = await site.submit(horde=horde | {"dry_run": True}, temperature=0.5)
    fresh = operation(dry_run=True)
    assert (await site.submit(horde=fresh)).status_code == 200

    assert other.status_code == 200
    assert "id" not in other.json()
    assert await site.state() == before
    assert (await site.submit(horde=fresh | {"dry_run": False})).status_code == 202
    assert first.status_code == 202


async def test_the_lookup_needs_a_known_account(site: Site) -> None:
    await refused(site, 401, "InvalidAPIKey", key="nobody's", horde=operation())


# the admission flag


@spec("Admission flag", 1, 2)
async def test_with_admission_off_nothing_new_comes_in_and_the_rest_goes_on(
    redis_url: str, migrated_url: str
) -> None:
    async with opened(redis_url, migrated_url) as site:
        done, waiting = await site.queued(), await site.queued()
        await site.project()
        key, owner_key = site.client_key, site.owner_key
    async with opened(redis_url, migrated_url, served=False, chat_admission_enabled=False) as site:
        site.client_key, site.owner_key = key, owner_key
        await refused(site, 503, "ChatAdmissionDisabled")
        await refused(site, 503, "ChatAdmissionDisabled", horde={"dry_run": True})

        await site.reply((await site.popped())["id"])
        await site.project()

        assert (await site.status(done)).json()["done"]
        assert (await site.cancel(waiting)).status_code == 200


# the horde object


@spec("horde object", 12)
@spec("Context adjustments", 4, 14)
async def test_a_dry_run_quotes_and_stores_nothing(site: Site) -> None:
    """What it quotes is what is asked of the real one: lowered, grown and trimmed alike."""
    body = {"messages": said(*["x" * 4000] * 10, "and now?"), "max_tokens": 4096}
    before = await site.state()

    quote = await site.submit(**body, horde={"dry_run": True})

    assert await site.state() == before
    queued = await site.submit(**body)
    assert quote.status_code == 200
    assert quote.json()["kudos"] == queued.json()["kudos"]
    resolved = quote.json()["resolved"]
    assert resolved["context_fit"] == "grow"
    assert resolved["models"] == [MODEL]
    assert resolved["params"]["max_length"] == 2048
    assert resolved["params"]["max_context_length"] == 8192
    assert resolved["estimated_prompt_tokens"] <= 8192 - 2048
    assert resolved["prompt"].endswith("user: and now?")


@spec("horde object", 11)
async def test_a_request_that_may_cost_more_than_its_cap_is_refused(site: Site) -> None:
    told = await refused(site, 400, "ChatKudosCapExceeded", horde={"max_kudos": 48})
    dry = await refused(site, 400, "ChatKudosCapExceeded", horde={"max_kudos": 48, "dry_run": True})

    assert "49" in told["message"]
    assert "48" in told["message"]
    assert dry == told
    assert (await site.submit(horde={"max_kudos": 49})).status_code == 202


@spec("horde object", 1, 2, 3, 7)
async def test_the_queue_keeps_to_what_a_request_wants_of_its_worker(site: Site) -> None:
    log = site.parts.log
    first = (await log.read("GET", log.keys.worker_name("w"))).decode()
    await site.pop(name="second")
    second = (await log.read("GET", log.keys.worker_name("second"))).decode()
    plain = {"chat_features": []}
    wishes = {
        "only": {"only": [second]},
        "ignore": {"ignore": [first]},
        "trusted": {"trusted_workers": True},
        "validated": {"validated_backends": True},
        "strict": {"conformance": "strict"},
    }
    ids = {name: await site.queued(horde=horde) for name, horde in wishes.items()}
    ids["best effort"] = await site.queued(horde={"conformance": "best_effort"})
    await site.project()

    taken = await _taken(site, name="w", **plain)
    assert taken == [ids["best effort"]]
    assert await _taken(site, name="w") == [ids["strict"]]
    assert sorted(await _taken(site, name="second")) == sorted([ids["only"], ids["ignore"]])
    agent = {"bridge_agent": "AI Horde Worker:1:x"}
    assert await _taken(site, name="second", **agent) == [ids["validated"]]


async def _taken(site: Site, **changed: Any) -> list[str]:
    """The requests whose jobs a worker gets until there is none for it."""
    log, found = site.parts.log, []
    while job := (await site.pop(**changed)).json()["id"]:
        found.append((await log.read("HGET", log.keys.generation(job), "request")).decode())
    return found


@spec("horde object", 9, 10)
async def test_what_only_the_front_reads_leaves_no_trace(site: Site) -> None:
    request_id = await site.queued(
        horde={"include_reasoning": False, "availability_mode": "fail_fast"}
    )

    stored = await site.state()
    assert b"fail_fast" not in b"".join(stored.values())
    assert b"include_reasoning" not in b"".join(stored.values())
    assert await content(site, request_id, "messages") is not None


# contexts


@spec("Context adjustments", 1, 3, 8, 11)
async def test_the_status_shows_what_was_adjusted_and_the_worker_gets_what_is_left(
    site: Site,
) -> None:
    """The worker's limit is one that it can generate within a lease."""
    limits = {"chat_limits": {"max_context_length": 8192, "max_length": 1024}}
    await site.pop(**limits)
    await site.project()
    texts = [f"{number} " + "x" * 4000 for number in range(10)]
    messages = [{"role": "system", "content": "be brief"}, *said(*texts), *said("and now?")]
    await site.queued()
    await site.project()
    await site.reply((await site.popped())["id"])  # at once: a worker that is fast enough for 2048
    await site.settle()

    request_id = await site.queued(messages=messages, max_tokens=4096)
    await site.project()

    adjusted = (await site.status(request_id)).json()["context_adjustments"]
    assert adjusted[:2] == [
        {"from": 4096, "to": 1024, "reason": "worker_max_length"},
        {"from": 2048, "to": 8192, "reason": "grow"},
    ]
    trimmed = adjusted[2]
    dropped = trimmed["dropped_messages"]
    assert (trimmed["reason"], dropped % 2, len(adjusted)) == ("truncate_oldest", 0, 3)
    assert trimmed["from"] > 8192 >= trimmed["to"] + 1024
    payload = (await site.popped(**limits))["payload"]
    assert payload["messages"] == [messages[0], *messages[1 + dropped :]]
    assert (payload["max_length"], payload["max_context_length"]) == (1024, 8192)


@spec("Context adjustments", 2, 5)
async def test_what_was_not_changed_is_not_told(site: Site) -> None:
    """A context that nobody has stays as it was asked for."""
    request_id = await site.queued(horde={"max_context_length": 100_000})
    await site.project()

    status = (await site.status(request_id)).json()

    assert status["context_adjustments"] is None
    assert not status["is_possible"]


@spec("Context adjustments", 7, 10)
@pytest.mark.parametrize("mode", ["grow", "reject", "truncate_oldest"])
async def test_what_does_not_fit_is_refused(site: Site, mode: str) -> None:
    horde = {"context_fit": mode}

    told = await refused(
        site, 400, "PromptExceedsContext", messages=said("x" * 40_000), horde=horde
    )

    assert "10002" in told["message"]  # tokens: "user: " and 40,000 characters
    assert str(2048 if mode == "reject" else 8192) in told["message"]


@spec("Request body", 19)
@spec("horde object", 5)
async def test_a_context_below_that_of_any_text_request_is_refused(site: Site) -> None:
    """79 tokens hold the conversation and the reply; a text request has 80 at least."""
    small = {"max_tokens": 16, "horde": {"max_context_length": 79}}

    told = await refused(site, 400, "BadRequest", **small)

    assert list(told["errors"]) == ["horde.max_context_length"]
    assert (await site.submit(max_tokens=96, horde={"max_context_length": 79})).status_code == 202


# moderation


@spec("Flattened prompt", 6, 7, 8, 9)
async def test_filters_change_what_workers_get_and_not_what_was_submitted(
    redis_url: str, migrated_url: str, tmp_path: Any
) -> None:
    """For a flagged user, and for a model that is not safe for work."""
    file = tmp_path / "filters.json"
    file.write_text('[{"regex": "secret", "replacement": ""}]')
    call = {"name": "f", "arguments": '{"q":"secret"}'}
    tool = {"type": "function", "function": {"name": "f", "description": "a secret tool"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "the secret word"},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c", "content": "secret"},
        {"role": "user", "content": [{"type": "text", "text": "secrets"}]},
    ]
    async with opened(redis_url, migrated_url, replacement_filters=str(file)) as site:
        await site.pop(
            name="second",
            models=[RAUNCHY],
            model_id=RAUNCHY,
            chat_features=["prompt_overflow_refused", "tools"],
        )
        await site.project()

        request_id = await site.queued(model=RAUNCHY, messages=messages, tools=[tool])

        stored = msgspec.json.decode(await content(site, request_id, "messages") or b"")
        assert [message["content"] for message in stored] == [
            "the  word",
            None,
            "",
            [{"type": "text", "text": "s"}],
        ]
        assert stored[1]["tool_calls"][0]["function"] == call
        extras = msgspec.json.decode(await content(site, request_id, "extras") or b"")
        assert extras["tools"] == [tool]
        submitted = (await content(site, request_id, "submitted_prompt") or b"").decode()
        assert submitted.startswith("user: the secret word\n")
        assert submitted.endswith("]")  # the tools behind the messages
        quote = await site.submit(
            model=RAUNCHY, messages=messages, tools=[tool], horde={"dry_run": True}
        )
        assert quote.json()["resolved"]["prompt"] == submitted  # only workers are told
        untouched = await site.queued(messages=said("a secret"))
        assert b"secret" in (await content(site, untouched, "messages") or b"")
        assert await content(site, untouched, "submitted_prompt") is None


# sizes


@spec("Refused keys and values", 8)
async def test_a_body_that_is_too_large_is_refused_before_it_is_read(site: Site) -> None:
    most = site.parts.max_body
    assert most == 36 * 2**20
    whole = b'{"nonsense":"' + b"x" * most + b'"}'

    async def chunked() -> Any:
        for at in range(0, len(whole), 2**20):
            yield whole[at : at + 2**20]

    declared = await site.http.post(CHAT, content=whole, headers={"apikey": site.client_key})
    streamed = await site.http.post(CHAT, content=chunked(), headers={"apikey": site.client_key})

    for answer in (declared, streamed):
        assert (answer.status_code, answer.json()["rc"]) == (413, "RequestTooLarge")


async def test_images_are_refused_while_they_cannot_be_stored(site: Site) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]

    await refused(
        site,
        503,
        "ChatImageStorageUnavailable",
        messages=[{"role": "user", "content": parts}],
    )

    quote = await site.submit(
        messages=[{"role": "user", "content": parts}], horde={"dry_run": True}
    )
    assert quote.json()["kudos"] == 54  # five more than without
