"""What holds after every command: all that is stored is what the model says, and lives as long as
its kind of key should."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import redis.asyncio

from events.keys import DURABLE, EPHEMERAL, STATE
from handlers.objects import REFERENCE, Kept, image_key
from tests.handlers.model import Model, Request, Worker

# One look at every key, between two commands; the flags let it see all slots of a node.
_SEEN = """#!lua flags=no-writes,allow-cross-slot-keys
local kinds = {}
for kind, prefixes in pairs(cjson.decode(ARGV[1])) do
  for _, prefix in ipairs(prefixes) do kinds[#kinds + 1] = {prefix, kind} end
end
local hashes = {}
for prefix, fields in pairs(cjson.decode(ARGV[2])) do hashes[#hashes + 1] = {prefix, fields} end
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local wrong, seen = {}, {}
for _, key in ipairs(redis.call("KEYS", "*")) do
  local bare, kind = string.gsub(key, "^{%d+}", ""), "unknown"
  local partition = string.match(key, "^{(%d+)}") or "0"
  for _, each in ipairs(kinds) do
    if string.sub(bare, 1, #each[1]) == each[1] then kind = each[2] end
  end
  local expires = redis.call("PEXPIRETIME", key)
  if kind == "unknown" or (kind == "ephemeral") == (expires == -1) then wrong[#wrong + 1] = key end
  for _, each in ipairs(hashes) do
    local prefix, fields = each[1], each[2]
    if string.sub(bare, 1, #prefix) == prefix then
      local values
      if fields[1] == "*" then values = redis.call("HGETALL", key)
      elseif fields[1] == "#" then values = {redis.call("XLEN", key)}
      elseif fields[1] == "{" then values = redis.call("SMEMBERS", key)
      elseif fields[1] == "[" then values = redis.call("LRANGE", key, 0, -1)
      elseif fields[1] == "<" then values = redis.call("ZRANGE", key, 0, -1)
      else values = redis.call("HMGET", key, unpack(fields)) end
      -- What a partition has one of is called by the partition's number.
      local name = bare == prefix and partition or string.sub(bare, #prefix + 1)
      seen[#seen + 1] = {name, prefix, values}
    end
  end
end
return {string.format("%.0f", now), wrong, seen}
"""

_FIELDS = {
    "horde:request:": (
        "state",
        "waiting",
        "processing",
        "finished",
        "faults",
        "cancelled",
        "faulted",
        "generations",
        "fault_rc",
        "fault_code",
        "holdoff_worker",
        "holdoff_ms",
        "objects",
        "expires_ms",
        "deadline_ms",
    ),
    "horde:generation:": ("state", "refusal_rc", "worker", "assigned_ms", "deadline_ms"),
    "horde:decoy:": ("state", "assigned_ms"),
    "horde:chat:lease:": ("seq", "cancelled", "started_ms", "job_ttl"),
    "horde:chat:stream:": ("#",),
    "horde:worker:": (
        "name",
        "user",
        "checked_in_ms",
        "uptime_ms",
        "rewarded_uptime_ms",
        "paused_ms",
        "trusted",
        "maintenance",
        "paused",
        "aborts",
        "nonconformant",
    ),
    "horde:account:": ("*",),
    "horde:clearing": ("*",),
    "horde:shared_key:": ("user", "kudos", "utilized", "expiry_ms"),
    "horde:shared_keys:": ("{",),
    "horde:transfers:": ("[",),
    "horde:claim:": ("request", "fingerprint", "deadline_ms"),
    "horde:content:": ("*",),
    "horde:due:": ("<",),
    "horde:chat:image_delete_retry": ("{",),
}


class Seen:
    """Everything that is stored, at one moment."""

    def __init__(self, answer: Any) -> None:
        now, wrong, seen = answer
        self.now = int(now)
        self.wrong: list[str] = wrong
        self._kinds: dict[str, dict[str, list[str]]] = {kind: {} for kind in _FIELDS}
        for name, kind, values in seen:
            self._kinds[kind].setdefault(name, []).extend(
                values
            )  # there is one due-set a partition

    def __getitem__(self, kind: str) -> dict[str, list[str]]:
        return self._kinds.get(f"horde:{kind}:") or self._kinds.get(f"horde:{kind}", {})

    def fields(self, kind: str, name: str) -> dict[str, str]:
        """A hash of which everything was read."""
        flat = self[kind].get(name, [])
        return dict(zip(flat[::2], flat[1::2], strict=True))


class Watch:
    """Looks at what is stored, and compares."""

    def __init__(self, url: str, model: Model) -> None:
        self._client = redis.asyncio.Redis.from_url(url, decode_responses=True)
        self._model = model
        self.shift = 0
        """How far the clocks of the partitions were moved, milliseconds."""

    async def look(self) -> Seen:
        """All that is stored. No command is under way."""
        kinds = {"state": STATE, "ephemeral": EPHEMERAL, "durable": DURABLE}
        return Seen(await self._client.eval(_SEEN, 0, json.dumps(kinds), json.dumps(_FIELDS)))

    async def close(self) -> None:
        await self._client.aclose()

    async def check(self) -> None:
        """Compare everything; take the exact times over into the model."""
        seen, model = await self.look(), self._model
        until = seen.now + self.shift
        spent = until - model.now
        assert seen.wrong == [], "a key without its TTL, or one that should have none"
        self._check_requests(seen, spent)
        doomed = {int(at): set(names) for at, names in seen["chat:image_delete_retry"].items()}
        assert doomed == {at: names for at, names in model.doomed.items() if names}
        self._check_due(seen)
        self._check_jobs(seen, spent, until)
        self._check_accounts(seen)
        self._check_ledger(seen, spent)
        self._check_transfers(seen, spent)
        self._check_workers(seen, spent)
        model.now = until

    def _check_requests(self, seen: Seen, spent: int) -> None:
        stored, known = seen["request"], self._model.requests
        assert stored.keys() == known.keys()
        for id_, request in known.items():
            *facts, holdoff, objects, expires, deadline = stored[id_]
            assert Kept.parse(objects or "") == request.kept, id_
            if facts[-1] in request.lapsed_by:
                request.faulted_by = facts[-1]
            request.lapsed_by.clear()
            assert facts == _facts(self._model, request), (id_, request)
            request.expires = _exact(request.expires, expires, spent)
            if request.state == "abandoned":
                continue
            request.held_off = _exact(request.held_off, holdoff or "0", spent)
            assert int(deadline) == request.deadline
            replies = {
                name.removeprefix("reply:"): value.encode()
                for name, value in seen.fields("content", id_).items()
                if name.startswith("reply:")
            }
            assert replies == request.replies, id_
            messages = seen.fields("content", id_).get("messages", "")
            images = [image_key(id_, n) for n in range(0 if request.lost else request.kept.images)]
            assert re.findall(f'{REFERENCE}([^"]+)', messages) == images
            assert seen["chat:stream"].get(id_, [0]) == [request.entries], id_

    def _check_due(self, seen: Seen) -> None:
        """What the janitors will look at is what there is to end."""
        model, due = self._model, seen["due"]
        assert sorted(due.get("request", [])) == sorted(model.requests)
        pending = [id_ for id_, job in model.jobs.items() if job.state == "pending"]
        assert sorted(due.get("lease", [])) == sorted(
            id_ for id_ in pending if not model.jobs[id_].decoy
        )
        assert sorted(due.get("admission", [])) == sorted(
            f"{account}:{id_}"
            for account, admissions in model.admissions.items()
            for id_ in admissions
        )
        for id_ in seen["content"].keys() - model.requests.keys():
            assert seen.fields("content", id_).keys() <= {"fault_reason"}, "content outlived it"

    def _check_jobs(self, seen: Seen, spent: int, until: int) -> None:
        stored, decoys, leases = seen["generation"], seen["decoy"], seen["chat:lease"]
        jobs = self._model.jobs
        assert stored.keys() == {id_ for id_, job in jobs.items() if not job.decoy}
        held = {id_ for id_, job in jobs.items() if job.posts is not None}
        assert held <= leases.keys()
        assert leases.keys() - held <= decoys.keys() - jobs.keys()
        for id_, job in jobs.items():
            if job.decoy:
                state, since = decoys[id_]
                assert state == job.state, id_
                job.since = _exact(job.since, since, spent)
            else:
                state, rc, worker, since, logged = stored[id_]
                assert (state, rc or "", worker or "") == (job.state, job.refusal, job.worker), id_
                if worker:
                    assert int(since) == job.since
            if job.posts is not None:
                seq, cancelled, since, ttl = leases[id_]
                assert (int(seq or 0), cancelled == "1") == (job.posts.seq, job.posts.cancelled)
                assert int(since) == job.since
                if int(ttl) != job.ttl:
                    assert job.ttl < int(ttl) <= self._model.renewal(job, until), id_
                    self._model.renewed_later(job, int(ttl))
            if not job.decoy and job.state == "pending":
                assert int(logged) == job.logged, id_

    def _check_accounts(self, seen: Seen) -> None:
        for account, admissions in self._model.admissions.items():
            fields = seen.fields("account", str(account))
            stored, scopes = {}, {}
            for name, value in fields.items():
                if name.startswith("admission:"):
                    jobs, deadline, key, named, held, tax, shared_key, *kept = value.split(":")
                    stored[name.removeprefix("admission:")] = (
                        int(jobs), int(deadline), key, tuple(filter(None, named.split(","))),
                        int(held), int(tax), shared_key, Kept.parse("".join(kept)),
                    )  # fmt: skip
                elif name.startswith("scope:"):
                    scopes[name.removeprefix("scope:")] = int(value)
            assert stored == {id_: tuple(each) for id_, each in admissions.items()}
            assert int(fields["waiting"]) == sum(each.jobs for each in admissions.values())
            counted: dict[str, int] = {}
            for each in admissions.values():
                for scope in each.scopes:
                    counted[scope] = counted.get(scope, 0) + each.jobs
            assert scopes == {scope: jobs for scope, jobs in counted.items() if jobs}
        claims = {
            name: (request, fingerprint, int(deadline))
            for name, (request, fingerprint, deadline) in seen["claim"].items()
        }
        assert claims == {
            f"{account}:{key}": tuple(claim) for (account, key), claim in self._model.claims.items()
        }

    def _check_ledger(self, seen: Seen, spent: int) -> None:
        """Every account, every shared key, and the other side of it all."""
        bank, totals = self._model.bank, Counter[int]()
        assert seen["account"].keys() == {str(id_) for id_ in bank.accounts}
        for id_, account in bank.accounts.items():
            fields = seen.fields("account", str(id_))
            assert int(fields["kudos"]) == account.kudos >= account.floor, id_
            assert int(fields["floor"]) == account.floor
            assert int(fields.get("escrow", 0)) == account.escrow >= 0
            assert int(fields.get("suspicious", 0)) == account.suspicious
            assert (fields["trusted"] == "1") == account.trusted
            account.created = _exact(account.created, fields["created_ms"], spent)
            account.trusted_ms = _exact(account.trusted_ms, fields.get("trusted_ms", "0"), spent)
            held = {name: int(amount) for name, amount in fields.items() if name[:4] == "held"}
            counted = self._model.held_of(id_)
            assert held.pop("held", 0) == counted.pop("")
            assert held == {f"held:{key}": amount for key, amount in counted.items() if amount}
            totals[id_ % bank.partitions] += account.kudos + account.escrow
        stored = {
            (int(partition), cause): int(amount)
            for partition in seen["clearing"]
            for cause, amount in seen.fields("clearing", partition).items()
        }
        assert Counter(stored) == bank.clearing
        for (partition, _), amount in stored.items():
            totals[partition] += amount
        assert not any(totals.values()), totals
        assert seen["shared_key"].keys() == bank.keys.keys()
        for id_, key in bank.keys.items():
            user, kudos, utilized, expiry = seen["shared_key"][id_]
            assert (int(user), int(kudos), int(utilized)) == (key.user, key.kudos, key.utilized)
            key.expiry = _exact(key.expiry, expiry, spent)
        owned = {int(user): set(ids) for user, ids in seen["shared_keys"].items()}
        assert owned == {
            user: {id_ for id_, key in bank.keys.items() if key.user == user}
            for user in {key.user for key in bank.keys.values()}
        }

    def _check_transfers(self, seen: Seen, spent: int) -> None:
        """What accounts remember of them, newest first."""
        for id_, account in self._model.bank.accounts.items():
            lines = [line.split("|") for line in seen["transfers"].get(str(id_), [])]
            assert len(lines) == len(account.notes)
            for (kind, id, key, other, amount, position), note in zip(
                lines, account.notes, strict=True
            ):
                transfer = note.transfer
                transfer.id = transfer.id or id
                assert (kind, id, other, int(amount)) == (
                    note.kind, transfer.id, note.other, transfer.amount,
                )  # fmt: skip
                assert key == (transfer.key if kind == "out" else "")
                note.at = _exact(note.at, position.split("-")[0], spent)

    def _check_workers(self, seen: Seen, spent: int) -> None:
        stored = seen["worker"]
        assert stored.keys() == self._model.workers.keys()
        names = [name for name, *_ in stored.values()]
        assert len(set(names)) == len(names), "two workers of one name"
        for id_, worker in self._model.workers.items():
            _, user, since, uptime, rewarded, paused, *facts = stored[id_]
            assert int(user) == worker.owner
            worker.seen = _exact(worker.seen, since, spent)
            worker.uptime = _exact(worker.uptime, uptime, spent)
            worker.rewarded = _exact(worker.rewarded, rewarded, spent)
            worker.paused_ms = _exact(worker.paused_ms, paused or "0", spent)
            assert facts == _worker_facts(worker, facts), id_


def _worker_facts(worker: Worker, stored: list[str]) -> list[str | None]:
    never = stored[-1] is None and not worker.nonconformant
    return [
        str(int(worker.trusted)),
        str(int(worker.maintenance)),
        str(int(worker.paused)),
        str(worker.aborts),
        None if never else str(worker.nonconformant),
    ]


def _facts(model: Model, request: Request) -> list[str | None]:
    """The counters of a request as they are stored."""
    if request.state == "abandoned":
        return ["abandoned", None, None, "0", None, None, None, "", None, None, None]
    rc, code = request.rc if request.rc != ("", "") else (None, None)
    return [
        request.state,
        str(request.waiting),
        str(model.held(request)),
        str(request.finished),
        str(request.faults),
        str(int(request.cancelled)),
        str(int(request.exhausted)),
        ",".join(request.generations),
        rc,
        code,
        request.faulted_by or None,
    ]


def _exact(about: int, stored: str, spent: int) -> int:
    """The time that was stored, which lies within the last command where that set it."""
    exact = int(stored)
    assert 0 <= exact - about <= spent, (about, exact, spent)
    return exact
