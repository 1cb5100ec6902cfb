"""What each route refuses, and that nothing was stored by it."""

from __future__ import annotations

from typing import Any

from handlers.accounts import digest_of, open_account
from tests.api.site import BODY, MESSAGE, MODEL, POP, SECRET, Site, opened
from tests.spec import spec

NOBODY = "00000000-0000-4000-8000-000000000000"
DEEP = b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
ROUTES = (
    "/v2/generate/chat/async",
    "/v2/generate/text/pop",
    "/v2/generate/text/submit",
    "/v2/generate/text/progress",
)


async def refused(
    site: Site,
    path: str,
    body: Any,
    key: str | None,
    status: int,
    rc: str,
    *,
    recorded: int = 0,
) -> None:
    """The refusal is this one, and the log holds no more than its record, where it has one."""
    before = await site.log_length()

    answer = await site.post(path, body, key)

    assert (answer.status_code, answer.json()["rc"]) == (status, rc), answer.text
    assert isinstance(answer.json()["message"], str)
    assert await site.log_length() - before <= recorded


async def test_what_is_no_document_is_a_bad_request_everywhere(site: Site) -> None:
    for path in ROUTES:
        for body in (b"", b"[]", b"{", b"\xff", DEEP, b'"\\ud83d"', b'{"id":NaN}'):
            if path != ROUTES[0] or body != b'{"id":NaN}':
                await refused(site, path, body, site.owner_key, 400, "BadRequest")


async def test_callers_without_a_known_key_are_refused_everywhere(site: Site) -> None:
    await site.queued(stream=True)
    await site.project()
    job = (await site.popped())["id"]
    table: list[tuple[str, dict[str, Any], int, str]] = [
        (ROUTES[0], BODY, 401, "InvalidAPIKey"),
        (ROUTES[1], POP, 401, "InvalidAPIKey"),
        (ROUTES[2], reply_to(job), 401, "InvalidAPIKey"),
        (ROUTES[2], {"id": job, "generation": "", "state": "faulted"}, 401, "InvalidAPIKey"),
        (ROUTES[2], reply_to(NOBODY), 404, "InvalidJobID"),  # the job is looked for first
        (ROUTES[3], post_to(job), 403, "WrongCredentials"),  # any key but its owner's
        (ROUTES[3], post_to(NOBODY), 404, "ChatJobAborted"),
    ]
    for path, body, status, rc in table:
        for key in ("", "unknown", site.anonymous if path == ROUTES[3] else "", "k" * 5000):
            await refused(site, path, body, key, status, rc)
        await refused(site, path, body, None, 400, "BadRequest")


@spec("Streaming progress", 1)
async def test_the_lease_alone_tells_who_may_post(site: Site) -> None:
    """A key that was reset since the pop posts until the lease ends; it may not submit."""
    await site.queued(stream=True)
    await site.project()
    job = (await site.popped())["id"]
    log, digest = site.parts.log, digest_of(SECRET, site.owner_key)
    await log.read("DEL", log.keys.api_key(digest))
    site.parts.accounts._cache.clear()

    assert (await site.progress(job, 1, "x")).status_code == 200
    await refused(site, ROUTES[2], reply_to(job), site.owner_key, 401, "InvalidAPIKey")


def reply_to(generation_id: str) -> dict[str, Any]:
    return {
        "id": generation_id,
        "message": MESSAGE,
        "finish_reason": "stop",
        "model_id": MODEL,
    }


def post_to(generation_id: str) -> dict[str, Any]:
    return {"id": generation_id, "seq": 1, "delta": {"content": "x"}}


async def test_anonymous_and_flagged_accounts_run_no_workers(site: Site) -> None:
    _, flagged = await open_account(site.parts.log, SECRET, "flagged", flagged=True)
    await site.queued()
    await site.project()

    await refused(site, ROUTES[1], POP, site.anonymous, 403, "AnonForbiddenWorker")
    await refused(site, ROUTES[1], POP | {"name": "f"}, flagged, 403, "WorkerFlaggedMaintenance")


async def test_chat_requests(site: Site) -> None:
    table: list[tuple[dict[str, Any], str]] = [
        ({"top_k": 1}, "UnsupportedChatParameter"),
        ({"max_tokens": 1}, "BadRequest"),
        ({"model": "a\0"}, "NulByteInPayload"),
        ({"stop": "s" * 2001}, "ExcessiveStopSequence"),
        ({"stop": [str(n) for n in range(129)]}, "TooManyStopSequences"),
    ]
    for changed, rc in table:
        await refused(site, ROUTES[0], BODY | changed, site.client_key, 400, rc)


async def test_pops(site: Site) -> None:
    table: list[tuple[dict[str, Any], str]] = [
        ({"chat_limits": None}, "ChatDeclarationInvalid"),
        ({"model_id": "other"}, "ChatDeclarationInvalid"),
        ({"chat_jobs": False, "prompt_jobs": False}, "ChatDeclarationInvalid"),
        ({"name": ""}, "BadRequest"),
        ({"models": []}, "BadRequest"),
        ({"name": "w\0"}, "NulByteInPayload"),
    ]
    for changed, rc in table:
        await refused(site, ROUTES[1], POP | changed, site.owner_key, 400, rc)


async def test_a_worker_name_belongs_to_its_owner(site: Site) -> None:
    await site.pop()

    await refused(site, ROUTES[1], POP, site.client_key, 403, "WrongCredentials")


async def test_a_worker_in_maintenance_is_told_so(site: Site) -> None:
    await site.queued()
    await site.pop(name="w", chat_jobs=False)
    log = site.parts.log
    worker_id = await log.read("GET", log.keys.worker_name("w"))
    await log.read("HSET", log.keys.worker(worker_id.decode()), "maintenance", "1")
    await site.project()

    answer = await site.pop()

    assert (answer.status_code, answer.json()["rc"]) == (403, "WorkerMaintenance")


async def test_submits_of_no_job(site: Site) -> None:
    for id_ in (NOBODY, "nonsense", "", "\u00e9" * 36, "x" * 250):
        await refused(site, ROUTES[2], reply_to(id_), site.owner_key, 404, "InvalidJobID")


async def test_submits(site: Site) -> None:
    request_id = await site.queued()
    await site.project()
    job = await site.popped()
    good = reply_to(job["id"])

    async def refuses(body: dict[str, Any], status: int, rc: str, key: str = "") -> None:
        # That a reply to a pending job was refused is remembered; the job stays as it is.
        kept = int(rc in ("ChatModelMismatch", "ChatSubmitInvalid"))
        await refused(site, ROUTES[2], body, key or site.owner_key, status, rc, recorded=kept)

    await refuses({"id": job["id"]}, 400, "BadRequest")
    await refuses(good | {"state": "fine"}, 400, "BadRequest")
    await refuses(good, 403, "WrongCredentials", site.client_key)
    await refuses(good | {"model_id": "other"}, 400, "ChatModelMismatch")
    await refuses(good | {"finish_reason": "eos"}, 400, "ChatSubmitInvalid")
    await refuses(good | {"message": None}, 400, "ChatSubmitInvalid")
    await refuses({"id": job["id"], "generation": "text"}, 400, "ChatSubmitInvalid")
    await refuses(good | {"generation": "text"}, 400, "ChatSubmitInvalid")
    faulted = {"id": job["id"], "state": "faulted", "model_id": "other"}
    await refuses(faulted, 400, "ChatModelMismatch")

    assert (await site.reply(job["id"].upper())).status_code == 200  # still pending; any spelling
    await refuses(good, 400, "DuplicateGen")
    await refuses(good | {"finish_reason": "eos"}, 400, "DuplicateGen")
    await refuses(faulted | {"model_id": MODEL}, 400, "DuplicateGen")
    await site.project()
    assert (await site.status(request_id)).json()["finished"] == 1


async def test_a_reply_to_a_faulted_job_is_aborted_whatever_it_looks_like(site: Site) -> None:
    await site.queued()
    await site.project()
    job = await site.popped()
    fault = {"id": job["id"], "generation": "faulted", "state": "faulted"}
    assert (await site.post(ROUTES[2], fault, site.owner_key)).json() == {"reward": 0.0}

    for changed in ({}, {"finish_reason": "eos"}, {"model_id": "other"}):
        answer = await site.reply(job["id"], **changed)
        assert (answer.status_code, answer.json()["rc"]) == (400, "AbortedGen")


@spec("Streaming progress", 4, 8, 9)
async def test_progress_posts_that_were_lost_repeated_or_reordered(site: Site) -> None:
    """C-101."""
    request_id = await site.queued(stream=True)
    await site.project()
    job = await site.popped()
    table = [
        (1, "a", site.owner_key, 200, {"accepted_seq": 1}),
        (2, "b", site.owner_key, 200, {"accepted_seq": 2}),
        (2, "b", site.owner_key, 200, {"accepted_seq": 2}),
        (2, "B", site.owner_key, 409, {"expected_seq": 3, "rc": "ChatProgressOutOfSequence"}),
        (4, "d", site.owner_key, 409, {"expected_seq": 3, "rc": "ChatProgressOutOfSequence"}),
        (3, "c", site.client_key, 403, {"rc": "WrongCredentials"}),
    ]
    for seq, content, key, status, said in table:
        answer = await site.progress(job["id"], seq, content, key)
        assert answer.status_code == status
        assert said.items() <= answer.json().items()

    log = site.parts.log
    entries = await log.read("XRANGE", log.keys.stream(request_id), "-", "+")
    assert len(entries) == 2


@spec("Streaming progress", 5, 6)
async def test_progress(site: Site) -> None:
    await site.queued()
    await site.project()
    job = await site.popped()

    async def refuses(body: dict[str, Any], status: int, rc: str) -> None:
        await refused(site, ROUTES[3], body, site.owner_key, status, rc)

    delta = {"content": "x"}
    await refuses({"id": job["id"], "seq": 1, "delta": delta}, 404, "ChatProgressNotStreaming")
    await refuses({"id": NOBODY, "seq": 1, "delta": delta}, 404, "ChatJobAborted")
    await refuses({"id": "nonsense", "seq": 1, "delta": delta}, 404, "ChatJobAborted")
    empty: tuple[dict[str, Any], ...] = ({}, {"content": ""}, {"reasoning_content": None})
    for nothing in empty:
        await refuses({"id": job["id"], "seq": 1, "delta": nothing}, 400, "BadRequest")
    for seq in (0, -1, "1", None, 10**30):
        await refuses({"id": job["id"], "seq": seq, "delta": delta}, 400, "BadRequest")


async def test_submissions_wait_while_redis_is_full(redis_url: str, migrated_url: str) -> None:
    async with opened(redis_url, migrated_url, memory_limit_bytes=1) as site:
        await site.parts.guard.sample()
        await refused(site, ROUTES[0], BODY, site.client_key, 503, "OutOfMemory")
        assert (await site.pop()).status_code == 200  # what frees memory goes on


async def test_submissions_wait_while_the_logs_take_too_much_memory(
    redis_url: str, migrated_url: str
) -> None:
    limits = {"log_memory_bytes": 1, "log_memory_hard_bytes": 50_000}
    async with opened(redis_url, migrated_url, **limits) as site:
        log, key = site.parts.log, site.parts.log.keys.events(0)
        long = await log.read("XADD", key, "*", "type", "long", "value", "x" * 60_000)
        await site.parts.guard.sample()
        await refused(site, ROUTES[0], BODY, site.client_key, 503, "OutOfMemory")
        assert (await site.pop()).status_code == 200

        await log.read("XDEL", key, long)
        await site.parts.guard.sample()

        assert not site.parts.guard.full
