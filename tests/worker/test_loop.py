"""What the worker does with the pool's answers, over real connections."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

import worker
from tests.spec import spec
from tests.worker.conftest import DROP, HANG, Stub, a_job, a_text_job
from worker.backends import Delta, JobFailed, Payload, Reply
from worker.backends.echo import Echo

QUICK = worker.Pace(
    wait=1, idle=0.01, retry=(0.005, 0.01), grace=60, farewell=60, last_post=60, keep=60
)
"""It asks and tries again often, and gives up nothing while a test lasts."""
IDLE = (200, {"id": None, "ids": [], "skipped": {}, "payload": {}})


@dataclass(frozen=True)
class Scripted(Echo):
    """Yields what it is given; a coroutine function in between is awaited."""

    parts: tuple[object, ...] = ()

    async def generate(self, payload: Payload) -> AsyncGenerator[Delta | Reply, None]:
        """Play the parts."""
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, Delta | Reply):
                yield part
            else:
                await part()


REPLY = Reply(content="ab", finish_reason="stop")
Working = Callable[..., Awaitable[None]]


@asynccontextmanager
async def working(
    pool: Stub, backend: object = "echo", *, pace: worker.Pace = QUICK, **more: object
) -> AsyncIterator[asyncio.Event]:
    """A worker at `pool`; stopped at the end, and it must end without an error."""
    stop = asyncio.Event()
    task = asyncio.create_task(
        worker.run(pool.url, "key", "w", "m", backend, stop=stop, pace=pace, **more)
    )
    try:
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await task


async def test_a_pop_declares_chat_jobs_and_waits(pool: Stub) -> None:
    async with working(pool, threads=1):
        await pool.until(lambda: bool(pool.seen))

    path, body, headers = pool.seen[0]
    assert path == "/v2/generate/text/pop"
    assert headers["prefer"] == "wait=1"
    assert headers["apikey"] == "key"
    assert body == {
        "name": "w",
        "models": ["m"],
        "bridge_agent": "hordechat-worker:1:hordechat",
        "threads": 1,
        "chat_jobs": True,
        "prompt_jobs": False,
        "model_id": "m",
        "chat_limits": {"max_context_length": 32_768, "max_length": 4_096},
        "chat_features": ["prompt_overflow_refused", "seed"],
    }


async def test_a_job_is_answered_in_the_structured_form(pool: Stub) -> None:
    pool.scripts["pop"].append(a_job(text="say it again"))

    async with working(pool):
        await pool.until(lambda: bool(pool.bodies("submit")))

    assert pool.bodies("progress") == []
    assert pool.bodies("submit") == [
        {
            "id": "g1",
            "model_id": "m",
            "state": "ok",
            "message": {"role": "assistant", "content": "say it again"},
            "finish_reason": "stop",
            "native_finish_reason": "stop",
            "prompt_tokens": 3,
            "completion_tokens": 3,
        }
    ]


async def test_reasoning_and_tool_calls_are_handed_in_beside_the_content(pool: Stub) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    reply = Reply(
        content=None,
        finish_reason="tool_calls",
        reasoning="hm",
        tool_calls=(call,),
        reasoning_tokens=1,
    )
    pool.scripts["pop"].append(a_job())

    async with working(pool, Scripted(parts=(reply,))):
        await pool.until(lambda: bool(pool.bodies("submit")))

    (body,) = pool.bodies("submit")
    assert body["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [call],
        "reasoning_content": "hm",
    }
    assert body["reasoning_tokens"] == 1


async def test_a_streamed_job_is_posted_in_order_and_then_submitted_whole(pool: Stub) -> None:
    text = " ".join(f"word{n}" for n in range(30))
    pool.scripts["pop"].append(a_job(stream=True, text=text))

    async def posted(count: int) -> None:
        await pool.until(lambda: len(pool.bodies("progress")) >= count)

    @dataclass(frozen=True)
    class Paced(Echo):
        """Goes on once what it said was posted: pieces of a faster one are posted together."""

        async def generate(self, payload: Payload) -> AsyncGenerator[Delta | Reply, None]:
            count = 0
            async for part in super().generate(payload):
                yield part
                count += 1
                if isinstance(part, Delta):
                    await posted(count)

    async with working(pool, Paced(pause=0)):
        await pool.until(lambda: bool(pool.bodies("submit")))

    posts = pool.bodies("progress")
    assert len(posts) > 3
    assert [post["seq"] for post in posts] == list(range(1, len(posts) + 1))
    assert "".join(post["delta"]["content"] for post in posts) == text
    assert pool.bodies("submit")[0]["message"]["content"] == text


async def test_posts_keep_their_distance(pool: Stub) -> None:
    async def breathe() -> None:
        await asyncio.sleep(0.01)

    parts = tuple(part for n in range(20) for part in (Delta(str(n % 10)), breathe))
    pool.scripts["pop"].append(a_job(stream=True))

    async with working(pool, Scripted(parts=(*parts, REPLY), post_seconds=60)):
        await pool.until(lambda: bool(pool.bodies("submit")))

    # The first goes at once, the rest with the end.
    assert [post["delta"]["content"] for post in pool.bodies("progress")] == [
        "0",
        "1234567890123456789",
    ]


@pytest.mark.parametrize("lost", [DROP, (503, {"rc": "ChatProgressUnavailable"}), (500, b"<html>")])
async def test_a_post_without_an_answer_is_sent_again_unchanged(pool: Stub, lost: object) -> None:
    first_posted = asyncio.Event()
    pool.scripts["pop"].append(a_job(stream=True))
    pool.scripts["progress"].extend([lost, lost])

    async def more_comes() -> None:
        await pool.until(lambda: len(pool.bodies("progress")) >= 2)
        first_posted.set()

    parts = (Delta("a"), more_comes, Delta("b", "why"), REPLY)
    async with working(pool, Scripted(parts=parts)):
        await pool.until(lambda: bool(pool.bodies("submit")))

    assert [(post["seq"], post["delta"]) for post in pool.bodies("progress")] == [
        (1, {"content": "a"}),
        (1, {"content": "a"}),
        (1, {"content": "a"}),
        (2, {"content": "b", "reasoning_content": "why"}),
    ]


@pytest.mark.parametrize(
    "answer",
    [(200, {"accepted_seq": 1, "cancelled": True}), (404, {"rc": "ChatJobAborted", "message": ""})],
)
async def test_a_cancelled_job_is_neither_finished_nor_submitted(
    pool: Stub, answer: object
) -> None:
    pool.scripts["pop"].append(a_job(stream=True))
    pool.scripts["progress"].append(answer)
    ended = asyncio.Event()

    async def for_ever() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with working(pool, Scripted(parts=(Delta("a"), for_ever, REPLY))):
        async with asyncio.timeout(20):
            await ended.wait()
        await pool.until(lambda: len(pool.bodies("pop")) == 2)

    assert pool.bodies("submit") == []


async def test_a_cancel_that_only_the_last_post_shows_is_honoured(pool: Stub) -> None:
    pool.scripts["pop"].append(a_job(stream=True))
    pool.scripts["progress"].append((200, {"accepted_seq": 1, "cancelled": True}))

    async with working(pool, Scripted(parts=(Delta("a"), REPLY))):
        await pool.until(lambda: len(pool.bodies("pop")) == 2)

    assert pool.bodies("submit") == []


@pytest.mark.parametrize(
    "answer",
    [
        (404, {"rc": "ChatProgressNotStreaming"}),
        (413, {"rc": "ChatProgressCapReached"}),
        (409, {"rc": "ChatProgressOutOfSequence", "expected_seq": 7}),
        (403, {"rc": "WrongCredentials"}),
    ],
)
async def test_a_refused_post_ends_the_posts_but_not_the_job(pool: Stub, answer: object) -> None:
    pool.scripts["pop"].append(a_job(stream=True))
    pool.scripts["progress"].append(answer)

    async def answered() -> None:
        await pool.until(lambda: bool(pool.bodies("progress")))
        await asyncio.sleep(0.02)

    parts = (Delta("a"), answered, Delta("b"), REPLY)
    async with working(pool, Scripted(parts=parts)):
        await pool.until(lambda: bool(pool.bodies("submit")))

    assert len(pool.bodies("progress")) == 1


async def test_the_reply_goes_in_although_posts_get_no_answer(pool: Stub) -> None:
    pool.scripts["pop"].append(a_job(stream=True))
    pool.standing["progress"] = HANG

    pace = replace(QUICK, last_post=0.05)
    async with working(pool, Scripted(parts=(Delta("a"), REPLY)), pace=pace):
        await pool.until(lambda: bool(pool.bodies("submit")))


async def test_what_a_job_earned_is_logged(pool: Stub, caplog: pytest.LogCaptureFixture) -> None:
    pool.scripts["pop"].append(a_job())
    pool.scripts["submit"].append((200, {"reward": 1.2114}))

    with caplog.at_level(logging.INFO, "worker"):
        async with working(pool):
            await pool.until(lambda: len(pool.bodies("pop")) == 2)

    assert "job g1: earned 1.2114 kudos" in caplog.messages


@pytest.mark.parametrize(
    "lost", [DROP, (503, {"rc": "RedisUnavailable"}), (502, b"bad gateway"), (429, {})]
)
async def test_a_submit_without_an_answer_is_sent_again(pool: Stub, lost: object) -> None:
    pool.scripts["pop"].append(a_job())
    pool.scripts["submit"].extend([lost, lost, (400, {"rc": "DuplicateGen", "message": ""})])

    async with working(pool):
        await pool.until(lambda: len(pool.bodies("pop")) == 2)

    first, *others = pool.bodies("submit")
    assert others == [first, first]


@pytest.mark.parametrize(
    "rc", ["ChatSubmitNonconformant", "ChatSubmitInvalid", "ChatModelMismatch"]
)
async def test_a_refused_reply_is_faulted(pool: Stub, rc: str) -> None:
    pool.scripts["pop"].append(a_job())
    pool.scripts["submit"].append((400, {"rc": rc, "message": "no"}))

    async with working(pool):
        await pool.until(lambda: len(pool.bodies("submit")) == 2)

    assert pool.bodies("submit")[1] == {
        "id": "g1",
        "state": "faulted",
        "model_id": "m",
        "fault_reason": "reply_refused",
    }


@pytest.mark.parametrize("answer", [(400, {"rc": "AbortedGen"}), (404, {"rc": "InvalidJobID"})])
async def test_a_reply_that_came_too_late_is_let_go(pool: Stub, answer: object) -> None:
    pool.scripts["pop"].append(a_job())
    pool.scripts["submit"].append(answer)

    async with working(pool):
        await pool.until(lambda: len(pool.bodies("pop")) == 2)

    assert len(pool.bodies("submit")) == 1


async def test_a_job_that_the_backend_cannot_do_is_faulted(pool: Stub) -> None:
    pool.scripts["pop"].append(a_job())

    async with working(pool, Scripted(parts=(JobFailed("too long", "prompt_overflow"),))):
        await pool.until(lambda: bool(pool.bodies("submit")))

    assert pool.bodies("submit") == [
        {"id": "g1", "state": "faulted", "model_id": "m", "fault_reason": "prompt_overflow"}
    ]


async def test_a_job_without_input_is_faulted(pool: Stub) -> None:
    pool.scripts["pop"].append((200, {"id": "g1", "model": "m", "payload": {}, "chat": True}))
    pool.scripts["pop"].append((200, {"id": "g2", "model": "m", "payload": {"prompt": ""}}))

    async with working(pool):
        await pool.until(lambda: len(pool.bodies("submit")) == 2)

    assert [body["state"] for body in pool.bodies("submit")] == ["faulted", "faulted"]


@spec("Text requests", 18)
async def test_a_worker_that_takes_text_jobs_says_so_and_answers_them_in_their_form(
    pool: Stub,
) -> None:
    pool.scripts["pop"].append(a_text_job("g1", "Once upon a time"))
    pool.scripts["pop"].append(a_job("g2", text="hi"))

    async with working(pool, prompts=True):
        await pool.until(lambda: len(pool.bodies("submit")) == 2)

    declared = pool.bodies("pop")[0]
    limits = {"max_context_length": 32_768, "max_length": 4_096}
    assert declared["prompt_jobs"] is True
    assert limits.items() <= declared.items()
    first, second = pool.bodies("submit")
    assert first == {"id": "g1", "state": "ok", "generation": "Once upon a time"}
    assert second["message"] == {"role": "assistant", "content": "hi"}


async def test_a_text_job_that_fails_is_faulted_in_its_own_form(pool: Stub) -> None:
    pool.scripts["pop"].append(a_text_job("g1", "x"))

    async with working(pool, Scripted(parts=(JobFailed("no"),)), prompts=True):
        await pool.until(lambda: bool(pool.bodies("submit")))

    assert pool.bodies("submit") == [{"id": "g1", "state": "faulted", "generation": "faulted"}]


async def test_a_bug_of_the_backend_faults_the_job_and_ends_the_worker(pool: Stub) -> None:
    pool.scripts["pop"].append(a_job())

    with pytest.raises(ZeroDivisionError):
        async with working(pool, Scripted(parts=(ZeroDivisionError(),)), threads=2):
            await pool.until(lambda: bool(pool.bodies("submit")))

    assert pool.bodies("submit") == [{"id": "g1", "state": "faulted", "model_id": "m"}]


async def test_the_worker_outlives_a_restart_of_the_pool_with_a_reply_in_hand(pool: Stub) -> None:
    pool.scripts["pop"].append(a_job())

    async def restart() -> None:
        await pool.stop()
        asyncio.get_running_loop().call_later(0.1, lambda: asyncio.ensure_future(pool.start()))

    async with working(pool, Scripted(parts=(restart, REPLY))):
        await pool.until(lambda: len(pool.bodies("submit")) == 1)
        await pool.until(lambda: len(pool.bodies("pop")) == 2)


async def test_the_worker_outlives_a_pool_that_is_away_at_its_start(pool: Stub) -> None:
    await pool.stop()

    async with working(pool):
        await asyncio.sleep(0.05)
        await pool.start()
        await pool.until(lambda: bool(pool.bodies("pop")))


@pytest.mark.parametrize(
    "passing",
    [
        (503, {"rc": "RedisUnavailable"}),
        (403, {"rc": "WorkerMaintenance"}),
        (404, b"<html>"),
        DROP,
        IDLE,
    ],
)
async def test_a_pop_that_brings_nothing_is_repeated(pool: Stub, passing: object) -> None:
    pool.scripts["pop"].extend([passing, passing])

    async with working(pool):
        await pool.until(lambda: len(pool.bodies("pop")) == 3)


@pytest.mark.parametrize(
    "answer",
    [
        (401, {"rc": "InvalidAPIKey", "message": "No user"}),
        (403, {"rc": "WrongCredentials", "message": ""}),
        (400, {"rc": "ChatDeclarationInvalid", "message": ""}),
    ],
)
async def test_a_worker_that_the_pool_does_not_take_says_so_and_ends(
    pool: Stub, answer: object
) -> None:
    pool.scripts["pop"].append(answer)

    with pytest.raises(worker.Refused, match=answer[1]["rc"]):
        async with asyncio.timeout(20):
            await worker.run(pool.url, "key", "w", "m", "echo", stop=asyncio.Event(), pace=QUICK)


async def test_threads_hold_that_many_jobs_at_a_time(pool: Stub) -> None:
    pool.scripts["pop"].extend([a_job("g1"), a_job("g2"), a_job("g3")])
    together = asyncio.Barrier(3)

    async def meet() -> None:
        async with asyncio.timeout(20):
            await together.wait()

    async with working(pool, Scripted(parts=(meet, REPLY)), threads=3):
        await pool.until(lambda: len(pool.bodies("submit")) == 3)


async def test_told_to_stop_it_ends_a_waiting_pop_at_once(pool: Stub) -> None:
    async with working(pool) as stop:
        await pool.until(lambda: bool(pool.bodies("pop")))
        stop.set()
        async with asyncio.timeout(20):
            await pool.closed_by_peer.wait()


async def test_told_to_stop_it_finishes_the_job_in_hand(pool: Stub) -> None:
    pool.scripts["pop"].append(a_job())
    started, stopped = asyncio.Event(), asyncio.Event()

    async def until_stopped() -> None:
        started.set()
        await stopped.wait()

    async with working(pool, Scripted(parts=(until_stopped, REPLY))) as stop:
        await started.wait()
        stop.set()
        stopped.set()

    assert [body["state"] for body in pool.bodies("submit")] == ["ok"]
    assert len(pool.bodies("pop")) == 1


async def test_told_to_stop_it_faults_a_job_that_takes_too_long(pool: Stub) -> None:
    pool.scripts["pop"].append(a_job())
    started = asyncio.Event()

    async def for_ever() -> None:
        started.set()
        await asyncio.sleep(60)

    pace = replace(QUICK, grace=0.05)
    async with working(pool, Scripted(parts=(for_ever, REPLY)), pace=pace) as stop:
        await started.wait()
        stop.set()

    assert pool.bodies("submit") == [{"id": "g1", "state": "faulted", "model_id": "m"}]


async def test_told_to_stop_it_does_not_wait_for_a_pool_that_is_away(pool: Stub) -> None:
    pool.scripts["pop"].append(a_job())
    pool.standing["submit"] = HANG

    async with working(pool, pace=replace(QUICK, grace=0.05, farewell=0.05)) as stop:
        await pool.until(lambda: bool(pool.bodies("submit")))
        stop.set()


async def test_as_a_process_it_ends_at_sigterm_with_code_0(pool: Stub) -> None:
    script = f"import asyncio, worker; asyncio.run(worker.run({pool.url!r}, 'key', 'w', 'm'))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env=dict(os.environ)
    )
    await pool.until(lambda: bool(pool.bodies("pop")))

    process.send_signal(signal.SIGTERM)

    async with asyncio.timeout(20):
        assert await process.wait() == 0


async def test_text_that_json_cannot_carry_as_utf_8_is_still_submitted(pool: Stub) -> None:
    pool.scripts["pop"].append(a_job(text="\u00e9\U0001f600"))

    async with working(pool):
        await pool.until(lambda: bool(pool.bodies("submit")))

    assert pool.bodies("submit")[0]["message"]["content"] == json.loads('"\\u00e9\\ud83d\\ude00"')
