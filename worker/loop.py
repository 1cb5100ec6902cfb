"""The worker's life: pop, generate beside posting, submit; give up in order when told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from worker.backends import Backend, JobFailed, Reply, choose
from worker.client import AGENT, Away, Backoff, Client, Job, Posted, Submitted
from worker.fetch import TRANSPORTS, Fetcher
from worker.progress import Progress

log = logging.getLogger("worker")
logging.getLogger("httpx").setLevel(logging.WARNING)  # it has a line for each request


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long the worker waits for what, in seconds."""

    wait: int = 30
    """Held open by the pool, a pop."""
    idle: float = 1.0
    """Least time between two pops that brought nothing, should the pool not hold them open."""
    retry: tuple[float, float] = (0.2, 5.0)
    """First and longest pause before something is tried again."""
    grace: float = 8.0
    """After the order to stop, the job in hand has so long to finish; then it is faulted."""
    farewell: float = 2.0
    """The fault of that job has so long to reach the pool."""
    last_post: float = 5.0
    """The last delta has so long to be posted; then the reply goes in without it."""
    keep: float = 900.0
    """A reply is offered so long to a pool that does not answer; no lease outlives it."""


class _Cancelled(Exception):
    """The pool does not want the job any more."""


class _Done(NamedTuple):
    reply: Reply
    seconds: float


async def run(
    url: str,
    api_key: str,
    name: str,
    model: str,
    backend: str | Backend = "echo",
    *,
    stop: asyncio.Event | None = None,
    threads: int = 1,
    prompts: bool = False,
    vision: bool = False,
    pace: Pace | None = None,
) -> None:
    """Serve jobs of the pool at `url` until `stop` is set (none: SIGTERM or SIGINT).

    url      the pool, without a path
    api_key  of the account that owns the worker
    name     of the worker, the same at each start
    model    that it serves
    backend  `echo`, the base URL of an OpenAI-compatible server, or a Backend
    threads  jobs at a time
    prompts  whether it takes text jobs beside chat jobs
    vision   whether its backend reads images, which it then gets as data URLs

    The job in hand is finished, or faulted, before it returns. Raise Refused where the pool does
    not take the worker, JobFailed where its backend cannot serve at all.
    """
    chosen = choose(backend, model) if isinstance(backend, str) else backend
    pace = pace or Pace()
    with contextlib.ExitStack() as stack:
        told = stop or stack.enter_context(_signals())
        await chosen.open()
        declaration = declare(chosen, name, model, threads, prompts=prompts, vision=vision)
        client, fetcher = Client(url, api_key, declaration, pace.retry), Fetcher()
        worker = _Worker(client, chosen, pace, told, fetcher)
        log.info("worker %s serves %s at %s", name, model, url)
        try:
            await _all([worker.serve() for _ in range(threads)])
        finally:
            await client.close()
            await fetcher.close()
            await chosen.close()
    log.info("worker %s stopped after %s jobs", name, worker.finished)


def declare(
    backend: Backend, name: str, model: str, threads: int, *, prompts: bool, vision: bool
) -> dict[str, Any]:
    """What each pop says of this worker: it takes chat jobs, and text jobs where it is to; images,
    and messages of any size, where it sees."""
    limits = {
        "max_context_length": backend.max_context_length,
        "max_length": backend.max_length,
    }
    return {
        "name": name,
        "models": [model],
        "bridge_agent": AGENT,
        "threads": threads,
        "chat_jobs": True,
        "prompt_jobs": prompts,
        "model_id": model,
        "chat_limits": limits,
        "chat_features": sorted({*backend.features, *(("vision",) if vision else ())}),
        **({"image_transports": list(TRANSPORTS)} if vision else {}),
        **(limits if prompts else {}),
    }


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _all(loops: list[Coroutine[Any, Any, None]]) -> None:
    """Run them together; when one fails, end the others and raise its error by itself."""
    tasks = [asyncio.ensure_future(each) for each in loops]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class _Worker:
    def __init__(
        self,
        client: Client,
        backend: Backend,
        pace: Pace,
        stop: asyncio.Event,
        fetcher: Fetcher,
    ) -> None:
        self._client = client
        self._backend = backend
        self._pace = pace
        self._stop = stop
        self._fetcher = fetcher
        self.finished = 0

    async def serve(self) -> None:
        """One job after the other until told to stop."""
        backoff = Backoff(*self._pace.retry)
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            asked = loop.time()
            try:
                job = await self._unless_stopped(self._client.pop(self._pace.wait))
            except Away as away:
                log.warning("%s; trying again", away)
                await self._unless_stopped(backoff.pause(away.answer))
                continue
            backoff.reset()
            if job is not None:
                await self._hold(job)
            elif (early := self._pace.idle - (loop.time() - asked)) > 0:
                await self._unless_stopped(asyncio.sleep(early))

    async def _unless_stopped(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What `work` returns, or None once told to stop: the pool sees its connection close."""
        task = asyncio.ensure_future(work)
        told = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((task, told), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            told.cancel()
            task.cancel()
            await asyncio.wait((task, told))

    async def _hold(self, job: Job) -> None:
        """Work on a job; after the order to stop for `grace` seconds more, then fault it."""
        log.info("job %s: taken%s", job.id, ", streams" if job.streams else "")
        task = asyncio.ensure_future(self._work(job))
        told = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((task, told), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                log.info("job %s: finishing it before the stop", job.id)
                await asyncio.wait((task,), timeout=self._pace.grace)
            if task.done():
                task.result()
        finally:
            told.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
                await self._give_up(job)

    async def _give_up(self, job: Job) -> None:
        log.warning("job %s: given up, there is no time to finish it", job.id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pace.farewell):
                await self._client.fault(job, None)

    async def _work(self, job: Job) -> None:
        try:
            done = await self._generate(job)
        except _Cancelled:
            log.info("job %s: cancelled, stopped", job.id)
            return
        except JobFailed as failed:
            log.warning("job %s: %s", job.id, failed)
            await self._client.fault(job, failed.reason)
            return
        except Exception:
            # A bug of the backend. The job must not wait for its lease to end.
            await self._give_up(job)
            raise
        await self._submit(job, done)

    async def _submit(self, job: Job, done: _Done) -> None:
        try:
            async with asyncio.timeout(max(self._pace.keep, job.ttl)):
                outcome = await self._client.submit(job, done.reply)
        except TimeoutError:
            log.error("job %s: the pool did not answer in time; the reply is lost", job.id)  # noqa: TRY400  no bug
            return
        if outcome is Submitted.REFUSED:
            await self._client.fault(job, "reply_refused")
        elif outcome is Submitted.STORED:
            self.finished += 1
            log.info(
                "job %s: answered in %.1f s (%s)", job.id, done.seconds, done.reply.finish_reason
            )

    async def _generate(self, job: Job) -> _Done:
        """Let the backend answer, posting beside it. Raise JobFailed, or _Cancelled."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        if job.chat:
            job = replace(job, payload=await self._fetcher.whole(job.payload))
        if not job.payload.get("messages" if job.chat else "prompt"):
            raise JobFailed("The job holds no input: it is none that this worker declared")
        if not job.streams:
            return _Done(await self._consume(job, None), loop.time() - started)
        progress = Progress(self._client, job, self._backend.post_seconds)
        posting = asyncio.ensure_future(progress.run())
        consuming = asyncio.ensure_future(self._consume(job, progress))
        try:
            await asyncio.wait((posting, consuming), return_when=asyncio.FIRST_COMPLETED)
            if not (posting.done() and posting.result() is Posted.CANCELLED):
                reply = await consuming
                seconds = loop.time() - started
                progress.complete()
                await asyncio.wait((posting,), timeout=self._pace.last_post)
                if not (posting.done() and posting.result() is Posted.CANCELLED):
                    return _Done(reply, seconds)
            raise _Cancelled
        finally:
            posting.cancel()
            consuming.cancel()
            await asyncio.gather(posting, consuming, return_exceptions=True)

    async def _consume(self, job: Job, progress: Progress | None) -> Reply:
        async with contextlib.aclosing(self._backend.generate(job.payload)) as parts:
            async for part in parts:
                if isinstance(part, Reply):
                    return part
                if progress is not None:
                    progress.add(part)
        raise JobFailed("The backend ended without a reply")
