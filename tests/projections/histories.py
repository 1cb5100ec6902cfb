"""Legal histories, as the scripts would write them: by hand for a story, or at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import redis

from events import codec
from events.base import Event, Position
from events.keys import Keys
from events.types import (
    AccountChanged,
    AccountDeleted,
    AccountOpened,
    Adjustment,
    Admitted,
    Assigned,
    Cancelled,
    Charged,
    CheckedIn,
    Declaration,
    Demand,
    Expired,
    Faulted,
    Floored,
    Granted,
    Profile,
    Progressed,
    Promoted,
    Received,
    Refused,
    Released,
    Returned,
    Rewarded,
    Settled,
    Submitted,
    SubmittedReply,
    Transferred,
    Usage,
    WorkerAborted,
    WorkerChanged,
    WorkerDeleted,
    WorkerMeasured,
    WorkerNonconformant,
    WorkerRenamed,
)

MODELS = ("alpha", "beta", "gamma")
FEATURES = ("seed", "tools", "vision")


def uuid(number: int, tail: int = 0) -> str:
    """A UUID that tells which it is; its last four digits decide its partition."""
    return f"{number:08x}-0000-4000-8000-00000000{tail:04x}"


def flat(event: Event) -> dict[Any, Any]:
    """The stream entry, with the fields that only its script knows."""
    pairs = codec.encode(event)
    fields: dict[Any, Any] = dict(zip(pairs[::2], pairs[1::2], strict=True))
    for name in type(event).SCRIPT:
        value = getattr(event, name)
        if isinstance(value, bool):
            value = int(value)
        fields[name] = ",".join(map(str, value)) if isinstance(value, tuple) else value
    return fields


def append(
    client: redis.Redis, events: Iterable[tuple[Position, Event]], keys: Keys, partition: int = 0
) -> None:
    """Write events to a partition's log at their positions."""
    pipeline = client.pipeline(transaction=False)
    for position, event in events:
        pipeline.execute_command(
            "XADD", keys.events(partition), str(position), *sum(flat(event).items(), ())
        )
    pipeline.execute()


class Story:
    """What happened in one partition. Every method is a fact, with the counters of its script."""

    def __init__(self, tail: int = 0, start_ms: int = 1_700_000_000_000) -> None:
        self.events: list[tuple[Position, Event]] = []
        self.tail = tail
        self.ms = start_ms
        self._made = 0
        self._requests: dict[str, dict[str, Any]] = {}
        self.workers: list[int] = []
        self.accounts: list[int] = []
        self._names: dict[int, str] = {}  # of those that were renamed

    @property
    def head(self) -> Position:
        return self.events[-1][0]

    def new_id(self) -> str:
        self._made += 1
        return uuid(self._made, self.tail)

    def tell(self, event: Event, after_ms: int = 1) -> Position:
        """Append; `after_ms` 0 puts it into the same millisecond."""
        self.ms += after_ms
        last = self.events[-1][0] if self.events else Position(0, 0)
        position = Position(self.ms, last.seq + 1 if last.ms == self.ms else 0)
        self.events.append((position, event))
        return position

    # requests

    def submit(
        self,
        *,
        jobs: int = 1,
        chat: bool = True,
        max_length: int = 100,
        priority: int = 0,
        user_id: int = 1,
        ttl: int = 1200,
        tax: int = 0,
        images: int = 0,
        offloaded: bool = False,
        **demand: Any,
    ) -> str:
        id_ = self.new_id()
        demand.setdefault("models", ("alpha",))
        self.tell(
            Submitted(
                request_id=id_,
                user_id=user_id,
                chat=chat,
                jobs=jobs,
                max_length=max_length,
                stream=False,
                ttl=ttl,
                priority=priority,
                data=Demand(images=images > 0, **demand),
                tax=tax,
                images=images,
                offloaded=offloaded,
            )
        )
        self._requests[id_] = {
            "jobs": jobs,
            "waiting": jobs,
            "finished": 0,
            "faults": 0,
            "pending": [],
            "generations": [],
            "cancelled": False,
            "done": False,
            "fault": ("", ""),
            "refused": {},
        }
        return id_

    def assign(
        self, request_id: str, worker: int = 1, model: str = "alpha", *, transport: str = ""
    ) -> str:
        state = self._requests[request_id]
        id_ = self.new_id()
        state["waiting"] -= 1
        state["pending"].append(id_)
        state["generations"].append(id_)
        self.tell(
            Assigned(
                request_id=request_id,
                generation_id=id_,
                worker_id=uuid(worker, 0xF000),
                worker_name=f"worker {worker}",
                owner_id=worker,
                model=model,
                max_length=512,
                max_context_length=4096,
                job_ttl=150,
                lease_cap=600,
                waiting=state["waiting"],
                image_transport=transport,
            )
        )
        return id_

    def progress(self, request_id: str, generation_id: str) -> None:
        self.tell(
            Progressed(
                request_id=request_id,
                generation_id=generation_id,
                deadline_ms=self.ms + 200_000,
                job_ttl=200,
            )
        )

    def reply(
        self,
        request_id: str,
        generation_id: str,
        *,
        worker: int = 1,
        model: str = "alpha",
        characters: int = 10,
        elapsed_ms: int = 1000,
        believable: int = 0,
        charge: int = 0,
        finish_reason: str = "stop",
        **usage: Any,
    ) -> None:
        state = self._requests[request_id]
        state["pending"].remove(generation_id)
        state["finished"] += 1
        over = not state["waiting"] and not state["pending"]
        enough = state["finished"] >= state["jobs"] or state["cancelled"]
        done = over and enough and not state["done"]
        state["done"] |= done
        self.tell(
            SubmittedReply(
                request_id=request_id,
                generation_id=generation_id,
                user_id=1,
                worker_id=uuid(worker, 0xF000),
                owner_id=worker,
                model=model,
                state="ok",
                finish_reason=finish_reason,
                characters=characters,
                tool_calls=0,
                data=Usage(**usage),
                finished=state["finished"],
                done=done,
                elapsed_ms=elapsed_ms,
                max_length=100,
                believable=believable,
                charge=charge,
            )
        )

    def give_back(self, request_id: str, generation_id: str) -> None:
        state = self._requests[request_id]
        state["pending"].remove(generation_id)
        if not state["done"] and not state["cancelled"]:
            state["waiting"] += 1
        self.tell(
            Returned(
                request_id=request_id,
                generation_id=generation_id,
                user_id=1,
                waiting=state["waiting"],
                finished=state["finished"],
                done=self._is_over(state),
            )
        )

    def refuse(
        self, request_id: str, generation_id: str, rc: str = "ChatSubmitNonconformant"
    ) -> None:
        state = self._requests[request_id]
        state["fault"] = (rc, "")
        state["refused"][generation_id] = rc
        self.tell(Refused(request_id=request_id, generation_id=generation_id, rc=rc))

    def fault(
        self,
        request_id: str,
        generation_id: str,
        limit: int = 2,
        worker: int = 1,
        reason: str = "",
    ) -> None:
        state = self._requests[request_id]
        refusal = state["refused"].get(generation_id, "")
        if reason and not refusal:
            state["fault"] = ("ChatWorkerFault", reason)
        state["pending"].remove(generation_id)
        state["faults"] += 1
        exhausted = not state["done"] and not state["cancelled"] and state["faults"] > limit
        restarted = not state["done"] and not state["cancelled"] and not exhausted
        state["waiting"] = 0 if exhausted else state["waiting"] + restarted
        done = (exhausted and not state["done"]) or self._is_over(state)
        state["done"] |= done
        self.tell(
            Faulted(
                request_id=request_id,
                generation_id=generation_id,
                cause="worker",
                holdoff=10,
                worker_id=uuid(worker, 0xF000),
                user_id=1,
                restarted=restarted,
                waiting=state["waiting"],
                exhausted=exhausted,
                finished=state["finished"],
                done=done,
                reason=reason,
                refusal_rc=refusal,
                fault_rc=state["fault"][0],
                fault_code=state["fault"][1],
                job_ttl=175,
            )
        )

    def cancel(self, request_id: str, *, settle: bool = False, rate: str = "") -> None:
        """With `rate`, what was posted is paid for."""
        state = self._requests[request_id]
        settled = tuple(state["pending"]) if settle else ()
        if settle:
            state["pending"].clear()
        state["cancelled"], state["waiting"] = True, 0
        paid = len(state["generations"]) if rate else 0
        self.tell(
            Cancelled(
                request_id=request_id,
                generations=tuple(state["generations"]),
                workers=(uuid(1, 0xF000),) * paid,
                owners=(1,) * paid,
                trusted=(0,) * paid,
                rates=(rate,) * paid,
                burn=10_000 if paid else 0,
                max_length=100,
                user_id=1,
                settled=settled,
                characters=tuple(range(1, len(settled) + 1)),
                finished=state["finished"],
                done=self._is_over(state),
            )
        )

    def expire(self, request_id: str) -> None:
        state = self._requests.pop(request_id)
        self.tell(
            Expired(
                request_id=request_id,
                generations=tuple(state["generations"]),
                user_id=1,
                finished=state["finished"],
                done=not state["done"],
                fault_rc=state["fault"][0],
                fault_code=state["fault"][1],
            )
        )

    def _is_over(self, state: dict[str, Any]) -> bool:
        done = not state["done"] and not state["waiting"] and not state["pending"]
        state["done"] |= done
        return done

    # workers

    def check_in(
        self, worker: int = 1, *, trusted: bool = False, user_id: int = 0, **declared: Any
    ) -> str:
        id_ = uuid(worker, 0xF000)
        declared.setdefault("models", ("alpha",))
        declared.setdefault("chat_jobs", True)
        declared.setdefault("model_id", declared["models"][0])
        declared.setdefault("chat_max_length", 512)
        declared.setdefault("chat_max_context_length", 4096)
        created = worker not in self.workers
        if created:
            self.workers.append(worker)
        self.tell(
            CheckedIn(
                worker_id=id_,
                name=self.name(worker),
                user_id=user_id or worker,
                trusted=trusted,
                declared="digest",
                data=Declaration(**declared),
                created=created,
            )
        )
        return id_

    def change_worker(self, worker: int = 1, **changed: Any) -> None:
        """`info` among them goes to the profile."""
        info = changed.pop("info", None)
        names = tuple(name for name in changed if name != "maintenance_msg")
        self.tell(
            WorkerChanged(
                worker_id=uuid(worker, 0xF000),
                changed=names if info is None else (*names, "info"),
                data=Profile(info=info or ""),
                **changed,
            )
        )

    def rename_worker(self, worker: int, name: str) -> None:
        self.tell(
            WorkerRenamed(
                worker_id=uuid(worker, 0xF000),
                name=name,
                source=0,
                source_position=str(self.head),
                former=self.name(worker),
            )
        )
        self._names[worker] = name

    def name(self, worker: int) -> str:
        return self._names.get(worker, f"worker {worker}")

    def delete_worker(self, worker: int = 1) -> None:
        self.workers.remove(worker)
        self.tell(WorkerDeleted(worker_id=uuid(worker, 0xF000), name=self.name(worker)))
        self._names.pop(worker, None)

    def abort(self, worker: int = 1, maintenance_msg: str = "") -> None:
        self.tell(
            WorkerAborted(
                worker_id=uuid(worker, 0xF000),
                generation_id=self.new_id(),
                source=0,
                source_position=str(self.head),
                maintenance_msg=maintenance_msg,
            )
        )

    def nonconform(self, worker: int = 1) -> None:
        self.tell(
            WorkerNonconformant(
                worker_id=uuid(worker, 0xF000),
                generation_id=self.new_id(),
                source=0,
                source_position=str(self.head),
            )
        )

    def measure(self, worker: int = 1, speed: int = 5000) -> None:
        self.tell(
            WorkerMeasured(
                worker_id=uuid(worker, 0xF000),
                samples=(speed,),
                source=0,
                source_position=str(self.head),
                speed=speed,
            )
        )

    # accounts

    def open_account(self, user_id: int = 1, kudos: int = 0, **account: Any) -> None:
        self.accounts.append(user_id)
        opened = AccountOpened(
            user_id=user_id, name=f"user {user_id}", key="", kudos=kudos, **account
        )
        self.tell(opened)

    def change_account(self, user_id: int = 1, roles: tuple[str, ...] = (), **changed: Any) -> None:
        self.tell(
            AccountChanged(
                user_id=user_id, changed=(*changed.pop("of", ()), *changed), roles=roles, **changed
            )
        )

    def delete_account(self, user_id: int = 1) -> None:
        self.tell(AccountDeleted(user_id=user_id, key=""))

    def grant(self, amount: int, user_id: int = 1, cause: str = "admin", by: int = -1) -> None:
        self.tell(
            Granted(user_id=user_id, amount=amount, grant_id=self.new_id(), cause=cause, by=by)
        )

    def admit(self, user_id: int = 1, tax: int = 10_000) -> str:
        id_ = self.new_id()
        self.tell(Admitted(user_id=user_id, request_id=id_, jobs=1, tax=tax, deadline_ms=self.ms))
        return id_

    def refund(self, request_id: str, user_id: int = 1, refunded: int = 10_000) -> None:
        self.tell(
            Released(
                user_id=user_id,
                request_id=request_id,
                refund=True,
                refunded=refunded,
                **self._source(),
            )
        )

    def charge(self, *amounts: int, user_id: int = 1, cause: str = "generation") -> None:
        self.tell(
            Charged(
                user_id=user_id,
                requests=tuple(self.new_id() for _ in amounts),
                generations=tuple(self.new_id() for _ in amounts),
                amounts=amounts,
                burn=10_000,
                cause=cause,
                **self._source(),
            )
        )

    def reward(
        self,
        *amounts: int,
        user_id: int = 1,
        worker: int = 1,
        trusted: bool = True,
        cause: str = "generation",
        suspicious: int = 0,
    ) -> None:
        """Of an owner who is not trusted the half waits, or all that is for uptime."""
        escrows = tuple(each if cause == "uptime" else each // 2 for each in amounts)
        self.tell(
            Rewarded(
                user_id=user_id,
                workers=(uuid(worker, 0xF000),) * len(amounts),
                amounts=amounts,
                escrows=escrows,
                generations=() if cause == "uptime" else tuple(self.new_id() for _ in amounts),
                cause=cause,
                suspicious=suspicious,
                escrowed=0 if trusted else sum(escrows),
                **self._source(),
            )
        )

    def promote(self, amount: int, user_id: int = 1) -> None:
        self.tell(Promoted(user_id=user_id, amount=amount))

    def lift(self, amount: int, user_id: int = 1) -> None:
        self.tell(Floored(user_id=user_id, amount=amount))

    def transfer(self, amount: int, user_id: int = 1, recipient: int = 2) -> None:
        """Both sides."""
        id_ = self.new_id()
        self.tell(Transferred(user_id=user_id, recipient=recipient, amount=amount, transfer_id=id_))
        self.tell(
            Received(
                user_id=recipient,
                sender=user_id,
                amount=amount,
                transfer_id=id_,
                **self._source(),
            )
        )

    def _source(self) -> dict[str, Any]:
        return {"source": 0, "source_position": str(self.ms)}


def random_story(seed: int, length: int, tail: int = 0) -> Story:
    """About `length` events of every kind, requests interleaved, some in one millisecond."""
    choose = random.Random(seed)
    story = Story(tail)
    while len(story.events) < length:
        if choose.random() < 0.15:
            story.ms -= 1  # the next event shares its predecessor's millisecond
            if not story.events or story.ms < story.head.ms - 1:
                story.ms += 1
        _one(story, choose)
    return story


def _one(story: Story, choose: random.Random) -> None:  # noqa: PLR0912 - a kind a branch
    live = list(story._requests)
    request = choose.choice(live) if live else None
    state = story._requests[request] if request else None
    what = choose.choice(
        [
            *("submit", "assign", "assign", "progress", "reply", "reply", "back", "fault", "fault"),
            *("refuse", "nonconformant"),
            *("cancel", "expire", "check-in", "check-in", "abort", "measure", "other"),
            *("change-worker", "rename-worker", "delete-worker"),
            *("money",) * 6,
        ]
    )
    if what == "submit" or request is None or state is None:
        story.submit(
            jobs=choose.randint(1, 3),
            chat=choose.random() < 0.7,
            priority=choose.randrange(-100, 10**8),
            models=tuple(choose.sample(MODELS, choose.randint(1, 2))),
            features=tuple(sorted(choose.sample(FEATURES, choose.randint(0, 2)))),
            tools_temperature=choose.choice((None, 0.0, 0.7)),
            images=choose.choice((0, 0, 3)),
            offloaded=choose.random() < 0.2,
            context_adjustments=choose.choice(
                ((), (Adjustment(before=2048, after=choose.randint(2049, 9000), reason="grow"),))
            ),
        )
    elif what == "assign" and state["waiting"] > 0:
        transport = choose.choice(("", "url", "base64", "messages_url"))
        story.assign(request, choose.randint(1, 4), transport=transport)
    elif what == "progress" and state["pending"]:
        story.progress(request, choose.choice(state["pending"]))
    elif what == "reply" and state["pending"]:
        story.reply(
            request,
            choose.choice(state["pending"]),
            worker=choose.randint(1, 4),
            model=choose.choice(MODELS),
            elapsed_ms=choose.choice((0, 1, 7000)),
            completion_tokens=3,
            charge=choose.choice((0, 23_456)),
        )
    elif what == "back" and state["pending"]:
        story.give_back(request, choose.choice(state["pending"]))
    elif what == "fault" and state["pending"]:
        reason = choose.choice(("", "generation_error"))
        story.fault(request, choose.choice(state["pending"]), reason=reason)
    elif what == "refuse" and state["pending"]:
        rc = choose.choice(("ChatSubmitNonconformant", "ChatSubmitInvalid"))
        story.refuse(request, choose.choice(state["pending"]), rc)
    elif what == "cancel" and not state["cancelled"] and not state["done"]:
        story.cancel(request, settle=choose.random() < 0.5, rate=choose.choice(("", "0.5:0.01~")))
    elif what == "expire" and choose.random() < 0.5:
        story.expire(request)
    elif what == "check-in":
        story.check_in(choose.randint(1, 4), trusted=choose.random() < 0.5)
    elif what == "change-worker" and story.workers:
        story.change_worker(
            choose.choice(story.workers),
            **choose.choice(
                (
                    {"maintenance": True, "maintenance_msg": "Back soon"},
                    {"maintenance": False, "info": "In the attic"},
                    {"paused": choose.random() < 0.5},
                )
            ),
        )
    elif what == "rename-worker" and story.workers:
        story.rename_worker(choose.choice(story.workers), choose.choice(MODELS))
    elif what == "delete-worker" and story.workers:
        story.delete_worker(choose.choice(story.workers))
    elif what == "abort" and story.workers:
        told = choose.choice(("", "", "too many"))
        story.abort(choose.choice(story.workers), maintenance_msg=told)
    elif what == "nonconformant" and story.workers:
        story.nonconform(choose.choice(story.workers))
    elif what == "measure" and story.workers:
        story.measure(choose.choice(story.workers), choose.randint(1, 50_000))
    elif what == "money":
        _move(story, choose)
    elif what == "other":
        story.tell(Settled(source=0, source_position=str(story.ms)))


def _move(story: Story, choose: random.Random) -> None:
    if len(story.accounts) < 2 or (len(story.accounts) < 5 and choose.random() < 0.1):
        roles = tuple(choose.sample(("service", "education", "vpn"), choose.randint(0, 2)))
        user_id = len(story.accounts)
        story.open_account(
            user_id, choose.randrange(10**6), trusted=choose.random() < 0.5, roles=roles
        )
        return
    user_id, other = choose.sample(story.accounts, 2)
    some = [choose.randint(1, 10**6) for _ in range(choose.randint(1, 3))]
    moves: list[Callable[[], object]] = [
        lambda: story.grant(
            choose.randint(-(10**6), 10**6), user_id, choose.choice(("admin", "recurring"))
        ),
        lambda: story.refund(story.admit(user_id), user_id),
        lambda: story.charge(
            *some, user_id=user_id, cause=choose.choice(("generation", "cancelled"))
        ),
        lambda: story.reward(
            *some,
            user_id=user_id,
            worker=choose.randint(1, 3),
            trusted=choose.random() < 0.5,
            cause=choose.choice(("generation", "uptime")),
            suspicious=choose.randint(0, 2),
        ),
        lambda: story.promote(some[0], user_id),
        lambda: story.lift(some[0], user_id),
        lambda: story.transfer(some[0], user_id, other),
        lambda: story.change_account(user_id, ("trusted",), of=("trusted", "vpn")),
        lambda: story.change_account(user_id, suspicious=choose.randint(0, 3)),
        lambda: story.change_account(user_id, concurrency=choose.randint(1, 500), name="renamed"),
        lambda: story.delete_account(user_id),
    ]
    choose.choice(moves)()
