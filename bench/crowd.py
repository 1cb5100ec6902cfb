"""A crowd of clients and workers on the real handlers, without HTTP: it makes a log as a service
that many use would have made it, as fast as the machine goes.

Time passes by the clock's seam, so that workers show themselves again and requests expire. All else
is as it is live: nothing here appends an event, and nobody but the settler carries effects over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence

from events.base import KUDOS, Position
from events.types import Declaration, Demand, Usage
from handlers import cancel, pop, progress, reply, submit
from handlers.accounts import Account, Accounts, open_account, open_anonymous
from handlers.chat.pricing import Tariff, tax
from handlers.errors import ChatSubmitNonconformant
from handlers.janitor import Janitor
from handlers.limits import Limits
from handlers.log import Log
from handlers.newcomers import Newcomers
from handlers.reference import Model, Reference

LIMITS = Limits(
    request_ttl=120, text_job_lease=60, concurrency=10**6, workers=10**6, trusted_workers=10**6
)
"""Requests are forgotten soon: hot state has those of the last two minutes."""

_SECRET = "bench" * 8
_MODELS = tuple(f"bench/model-{number}" for number in range(8))
_TARIFF = Tariff(Reference({model: Model(parameters=8_030_000_000) for model in _MODELS}.copy))
_CLIENTS = 50
_OWNERS = 20
_LANES = 64
"""Requests that are at once on their way."""


async def _nobody(_user_id: int) -> frozenset[str]:
    return frozenset()


async def _settled(_heads: Sequence[Position]) -> bool:
    return True


class Crowd:
    """Fifty clients, and twenty owners of a worker for each of eight models."""

    def __init__(
        self, log: Log, *, seed: int = 0, per_second: int = 100, limits: Limits = LIMITS
    ) -> None:
        """So many requests to each second of the clock."""
        self._log = log
        self._limits = limits
        self._choose = random.Random(seed)
        self._per_second = per_second
        self._clients: list[Account] = []
        self._owners: list[Account] = []
        self._workers = pop.Workers(log, limits, Newcomers(limits, _nobody))
        self._posts = progress.Posts(log, limits)
        self._sweepers = [Janitor(log, limits, partition) for partition in log.keys.all()]

    async def arrive(self) -> None:
        """Open the accounts, in an empty log."""
        await self._log.begin()
        await open_anonymous(self._log)
        accounts = Accounts(self._log, _SECRET)
        for number in range(_CLIENTS + _OWNERS):
            role, kudos = ("client", 10**7 * KUDOS) if number < _CLIENTS else ("owner", 0)
            _, key = await open_account(
                self._log, _SECRET, f"{role} {number}", trusted=number % 2 == 0, kudos=kudos
            )
            (self._clients if role == "client" else self._owners).append(await accounts.find(key))

    async def live(self, enough: Callable[[], Awaitable[bool]]) -> None:
        """Ask, work and let time pass until it is `enough`, which is asked each second of the
        clock."""
        while not await enough():
            todo = iter(range(self._per_second))
            await asyncio.gather(*(self._lane(todo) for _ in range(_LANES)))
            await self.pass_time(1)

    async def pass_time(self, seconds: int) -> None:
        """Move the clock, and do what has come due."""
        for partition in self._log.keys.all():
            control = self._log.keys.control(partition)
            await self._log.read("HINCRBY", control, "clock_ms", seconds * 1000)
        for sweeper in self._sweepers:
            await sweeper.sweep()

    async def _lane(self, todo: Iterator[int]) -> None:
        for _ in todo:
            await self._ask()

    async def _ask(self) -> None:
        """One request, from its submission to what becomes of it."""
        choose = self._choose
        model = choose.randrange(len(_MODELS))
        new = submit.NewRequest(
            chat=True,
            jobs=choose.choices((1, 2, 4), (16, 3, 1))[0],
            max_length=choose.randint(16, 1024),
            stream=choose.random() < 0.5,
            demand=_demand(_MODELS[model], choose.randint(40, 4000)),
            content={"messages": b'[{"role":"user","content":"hi"}]', "payload": b"{}"},
            kudos=10 * KUDOS,
            hold=10 * KUDOS,
            tax=tax(),
        )
        client = choose.choice(self._clients)
        receipt = await submit.submit(self._log, self._limits, _TARIFF, client, new, _settled)
        fate = choose.random()
        if fate < 0.03:
            return  # nobody serves it
        for _ in range(new.jobs if fate < 0.96 else new.jobs // 2):
            await self._work(receipt.request_id, model, streams=new.stream)
        if fate >= 0.96:
            await cancel.cancel(self._log, self._limits, _TARIFF, receipt.request_id)

    async def _work(self, request_id: str, model: int, *, streams: bool) -> None:
        """One job, by a worker that serves the model."""
        log, limits, choose = self._log, self._limits, self._choose
        owner = choose.choice(self._owners)
        declared = _declaration(_MODELS[model])
        worker = await self._workers.check_in(owner, f"worker {model} of {owner.id}", declared)
        got = await pop.assign(log, limits, worker, declared, request_id, _MODELS[model])
        if got is None:
            return
        job, fate = got.generation_id, choose.random()
        if fate < 0.02:
            return  # its lease runs out
        if fate < 0.03:
            await pop.give_back(log, request_id, job)
            return
        if streams:
            for seq in range(1, choose.randint(1, 3)):
                await self._posts.progress(owner.progress_key, job, seq, "and so on", "")
        held = await reply.held(log, job)
        if fate < 0.06:
            await reply.fault(log, limits, held, "generation_error")
            return
        if fate < 0.08:
            await reply.refuse(log, limits, held, ChatSubmitNonconformant("no"))
        answer = _reply(choose.randint(20, 4000), choose.randint(1, 1000))
        await reply.submit_reply(log, limits, _TARIFF, held, answer)


def _demand(model: str, characters: int) -> Demand:
    return Demand(
        models=(model,),
        max_context_length=4096,
        features=("prompt_overflow_refused", "tools"),
        messages=3,
        prompt_bytes=characters,
        prompt_characters=characters,
    )


def _declaration(model: str) -> Declaration:
    return Declaration(
        models=(model,),
        bridge_agent="bench:1:https://bench.test",
        chat_jobs=True,
        model_id=model,
        chat_features=("prompt_overflow_refused", "tools"),
        chat_max_context_length=8192,
        chat_max_length=1024,
    )


def _reply(characters: int, tokens: int) -> reply.Reply:
    return reply.Reply(
        stored=b'{"message":{"role":"assistant","content":"hello"}}',
        state="ok",
        finish_reason="stop",
        characters=characters,
        tool_calls=0,
        seed=0,
        usage=Usage(prompt_tokens=40, completion_tokens=tokens),
    )
