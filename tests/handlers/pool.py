"""A small pool to test with: what a client and a worker do, as short calls on the real handlers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from events.base import Position
from events.keys import Keys
from events.types import Declaration, Demand, Usage
from handlers import cancel, pop, progress, reply, submit
from handlers.accounts import Account, Accounts, open_account, open_anonymous
from handlers.admission import Operation, Settled
from handlers.chat.attached import Attached
from handlers.chat.body import ImagePart, ImageUrl, TextPart, UserMessage
from handlers.chat.pricing import Tariff, tax
from handlers.errors import ChatSubmitNonconformant, Refused
from handlers.janitor import Janitor, Swept
from handlers.limits import Limits
from handlers.log import Log
from handlers.newcomers import Newcomers
from handlers.reference import Model, Reference
from handlers.replay import Entry, keys_of, read_log
from handlers.settle import Settler
from handlers.store import Store

SECRET = "a secret of the tests"
MODEL = "test/model"
KEY = "0b7c9e52-1f7e-4a49-8a55-6d0c9f1e2a33"
DECLARATION = Declaration(
    models=(MODEL,),
    chat_jobs=True,
    model_id=MODEL,
    chat_features=("prompt_overflow_refused",),
    chat_max_context_length=8192,
    chat_max_length=1024,
)
TARIFF = Tariff(Reference({MODEL: Model(parameters=8_030_000_000)}.copy))
"""The one model that is known is of 8.03 billion parameters."""


class Minting(Keys):
    """Keys whose next job has this id, whatever its request."""

    def __init__(self, partitions: int, id_: str) -> None:
        super().__init__(partitions)
        self._id = id_

    def new_id_beside(self, id_: str) -> str:
        return self._id


def minting(log: Log, id_: str) -> Log:
    """The same log, on which the next job has this id."""
    return Log(log.redis, Minting(log.keys.partitions, id_), test=log.test)


def receiving(*transports: str) -> Declaration:
    """The declaration of a worker that gets images, or messages, this way."""
    return msgspec.structs.replace(DECLARATION, image_transports=transports)


REPLY = reply.Reply(
    stored=b'{"message":{"role":"assistant","content":"hello"}}',
    state="ok",
    finish_reason="stop",
    characters=5,
    tool_calls=0,
    seed=0,
    usage=Usage(completion_tokens=2),
)


def request_of(
    *,
    jobs: int = 1,
    stream: bool = False,
    max_length: int = 512,
    models: tuple[str, ...] = (MODEL,),
    kudos: int = 0,
    hold: int = 0,
    prompt_characters: int = 80,
    images: int = 0,
    offload: bool = False,
) -> submit.NewRequest:
    """A request as its routes would have mapped it; its images are a few bytes that are none."""
    return submit.NewRequest(
        chat=True,
        jobs=jobs,
        max_length=max_length,
        stream=stream,
        demand=Demand(
            models=models,
            features=("prompt_overflow_refused",),
            prompt_characters=prompt_characters,
        ),
        content={"messages": b'[{"role":"user","content":"hi"}]', "payload": b"{}"},
        kudos=kudos,
        hold=hold,
        tax=tax(),
        attached=attached_of(images, offload=offload) if images or offload else None,
    )


def attached_of(images: int, *, offload: bool = False, said: str = "jpeg") -> Attached:
    """What is stored beside a request of so many images."""
    parts = [ImagePart(ImageUrl("https://images.test/a")) for _ in range(images)]
    message = UserMessage(content=[TextPart("hi"), *parts])
    jpegs = tuple(f"{said} {n}".encode() for n in range(images))
    return Attached([message], jpegs, offload)


async def _none_yet(_user_id: int) -> frozenset[str]:
    return frozenset()


def operation_of(key: str = KEY, fingerprint: str = "f" * 64) -> Operation:
    """An operation key as its client sent it."""
    return Operation.of(SECRET, key, fingerprint)


@dataclass
class Pool:
    """One client account, one worker owner, and as many workers as asked for."""

    log: Log
    limits: Limits
    client: Account
    owner: Account
    accounts: Accounts
    workers: pop.Workers
    posts: progress.Posts
    store: Store | None = None
    names: dict[str, pop.Worker] = field(default_factory=dict)
    janitors: dict[int, Janitor] = field(default_factory=dict)

    @classmethod
    async def opened(cls, log: Log, limits: Limits) -> Pool:
        """Open the accounts in an empty log."""
        await log.begin()
        await open_anonymous(log)
        accounts = Accounts(log, SECRET)
        _, client = await open_account(log, SECRET, "client", kudos=1_000_000)
        _, owner = await open_account(log, SECRET, "owner", trusted=True)
        return cls(
            log,
            limits,
            await accounts.find(client),
            await accounts.find(owner),
            accounts,
            pop.Workers(log, limits, Newcomers(limits, _none_yet)),
            progress.Posts(log, limits),
        )

    async def submit(
        self, *, jobs: int = 1, stream: bool = False, max_length: int = 512, **more: Any
    ) -> str:
        """Queue a request; return its id."""
        new = request_of(jobs=jobs, stream=stream, max_length=max_length)
        return (await self.submitted(new, **more)).request_id

    async def submitted(
        self,
        new: submit.NewRequest,
        *,
        account: Account | None = None,
        operation: Operation | None = None,
        settled: Settled | None = None,
    ) -> submit.Receipt:
        """Queue a request."""
        new = new._replace(operation=operation)
        account = account or self.client
        return await submit.submit(
            self.log, self.limits, TARIFF, account, new, settled or self.settled, self.store
        )

    async def settled(self, _heads: Sequence[Position]) -> bool:
        """A settler that is quick."""
        await self.settle()
        return True

    async def waiting(self, account: Account | None = None) -> int:
        """Jobs of the account that wait, as it counts them."""
        key = self.log.keys.account((account or self.client).id)
        return int(await self.log.read("HGET", key, "waiting"))

    async def worker(self, name: str = "w") -> pop.Worker:
        """Check a worker in."""
        worker = await self.workers.check_in(self.owner, name, DECLARATION)
        self.names[name] = worker
        return worker

    async def assign(
        self, request_id: str, name: str = "w", transports: tuple[str, ...] = ()
    ) -> pop.Assignment | None:
        """Try to give a job of the request to a worker that gets images this way."""
        worker = self.names.get(name) or await self.worker(name)
        return await pop.assign(
            self.log, self.limits, worker, receiving(*transports), request_id, MODEL
        )

    async def held(self, generation_id: str) -> reply.Held:
        """The generation as its owner's submit finds it."""
        job = await reply.held(self.log, generation_id)
        job.check_owner(self.owner)
        return job

    async def reply(self, generation_id: str) -> bool:
        """Deliver the reply; whether the request is done."""
        held = await self.held(generation_id)
        return (await reply.submit_reply(self.log, self.limits, TARIFF, held, REPLY)).done

    async def fault(self, generation_id: str, reason: str = "") -> None:
        """Give the job up."""
        await reply.fault(self.log, self.limits, await self.held(generation_id), reason)

    async def refuse(
        self, generation_id: str, kind: type[Refused] = ChatSubmitNonconformant, said: str = "no"
    ) -> None:
        """Remember that a reply was refused."""
        await reply.refuse(self.log, self.limits, await self.held(generation_id), kind(said))

    async def post(
        self, generation_id: str, seq: int, content: str, reasoning: str = ""
    ) -> progress.Accepted:
        """Post progress as the owner."""
        key = self.owner.progress_key
        return await self.posts.progress(key, generation_id, seq, content, reasoning)

    async def cancel(self, request_id: str) -> cancel.Ended:
        """Cancel as the client."""
        return await cancel.cancel(self.log, self.limits, TARIFF, request_id)

    async def pass_time(self, seconds: float) -> None:
        """Move every partition's clock forward through its seam."""
        for partition in self.log.keys.all():
            await self.log.read(
                "HINCRBY", self.log.keys.control(partition), "clock_ms", int(seconds * 1000)
            )

    async def sweep(self) -> Swept:
        """One janitor's pass over every partition."""
        for partition in self.log.keys.all():
            self.janitors.setdefault(
                partition, Janitor(self.log, self.limits, partition, self.store, patience=30)
            )
        swept = [await janitor.sweep() for janitor in self.janitors.values()]
        return Swept(*(sum(each) for each in zip(*swept, strict=True)))

    async def settle(self, *partitions: int) -> None:
        """Carry over whatever the logs (of these partitions) hold and was not carried yet."""
        for partition in partitions or self.log.keys.all():
            settler = Settler(self.log, self.limits, partition)
            after = await settler.start()
            async for page in read_log(self.log, partition, after):
                await settler.settle([entry.recorded for entry in page])

    async def events(self) -> list[Entry]:
        """Every event, partition by partition."""
        return [
            entry
            for partition in self.log.keys.all()
            async for page in read_log(self.log, partition)
            for entry in page
        ]

    async def words(self, *skip: str) -> list[str]:
        """The tags of every event but those of the ledger and some, partition by partition."""
        ledger = {"account-opened", "floored", "charged", "rewarded"}
        skipped = {"admitted", "checked-in", *ledger, *skip}
        tags = [
            str(type(entry.recorded.event).__struct_config__.tag) for entry in await self.events()
        ]
        return [tag for tag in tags if tag not in skipped]

    async def doomed(self) -> set[str]:
        """Objects that are to be deleted."""
        names = [
            await self.log.read("SMEMBERS", self.log.keys.delete_retry(partition))
            for partition in self.log.keys.all()
        ]
        return {name.decode() for each in names for name in each}

    async def request(self, request_id: str) -> dict[str, str]:
        """Hot state of a request."""
        return await self.hash(self.log.keys.request(request_id))

    async def hash(self, key: str) -> dict[str, str]:
        """A hash as text."""
        flat = await self.log.read("HGETALL", key)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {name.decode(): value.decode() for name, value in pairs}

    async def snapshot(self) -> dict[str, object]:
        """The value of every key: equal before and after what changes nothing."""
        found: dict[str, object] = {}
        for partition in self.log.keys.all():
            for key in await keys_of(self.log, partition, "state", "ephemeral", "durable"):
                kind = (await self.log.read("TYPE", key)).decode()
                match kind:
                    case "hash":
                        found[key] = await self.hash(key)
                    case "zset":
                        found[key] = await self.log.read("ZRANGE", key, 0, -1, "WITHSCORES")
                    case "set":
                        found[key] = sorted(await self.log.read("SMEMBERS", key))
                    case "list":
                        found[key] = await self.log.read("LRANGE", key, 0, -1)
                    case "stream":
                        found[key] = await self.log.read("XLEN", key)
                    case _:
                        found[key] = await self.log.read("GET", key)
        return found


def told(content: bytes) -> object:
    """JSON bytes as Python values."""
    return msgspec.json.decode(content)
