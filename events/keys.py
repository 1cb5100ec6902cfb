"""The only place that knows key names and which partition an id belongs to.

Three kinds of keys (design section 3):

* STATE is what `apply` writes. No TTL; ended by an event; equal to the fold of the log.
* EPHEMERAL carries a TTL and stands outside apply, rebuild and verify. No rule reads a TTL.
* DURABLE has no TTL and stands outside both: the log itself, switches, the object-delete retries.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from typing import Literal

Due = Literal["lease", "request", "admission", "recurring"]

STATE = (
    "horde:request:",
    "horde:generation:",
    "horde:worker:",
    "horde:worker_name:",
    "horde:account:",
    "horde:clearing",
    "horde:transfers:",
    "horde:shared_key:",
    "horde:shared_keys:",
    "horde:passkeys",
    "horde:api_key:",
    "horde:accounts",
    "horde:claim:",
    "horde:modes",
    "horde:due:",
    "horde:fences",
)
EPHEMERAL = (
    "horde:content:",
    "horde:chat:lease:",
    "horde:chat:stream:",
    "horde:decoy:",
    "horde:tricked:",
    "horde:worker_address:",
    "horde:limit:",
    "horde:whitelist:",
)
PARTITIONS = "horde:partitions"
"""How many partitions this deployment has, recorded at its first start. Has no hash tag."""

DURABLE = (
    PARTITIONS,
    "horde:events",
    "horde:control",
    "horde:chat:image_delete_retry",
    "horde:ip_timeouts",
    "horde:worker_messages",
    "horde:profile:",
)

CHANNEL_PROJECTED = "horde:projected:"
"""Pub/sub, one channel a projection and partition: what its last commit made readable."""


def kind_of(key: str) -> Literal["state", "ephemeral", "durable", "unknown"]:
    """Which of the three kinds a stored key is, whatever its hash tag."""
    bare = key.split("}", 1)[1] if key.startswith("{") else key
    if bare.startswith(STATE):
        return "state"
    if bare.startswith(EPHEMERAL):
        return "ephemeral"
    if bare.startswith(DURABLE):
        return "durable"
    return "unknown"


def channel(request_id: str) -> str:
    """The completion signal of a chat request.

    Pub/sub spans the whole server, so it carries no hash tag.
    """
    return f"horde:chat:{request_id}"


def name_hash(name: str) -> str:
    """Where a worker name is registered: names may hold anything, keys should not."""
    return hashlib.sha256(name.encode()).hexdigest()


class Keys:
    """Key names for a deployment of `partitions` partitions.

    An id's partition is its last four hex digits modulo the number of partitions; an account's is
    its number modulo the same. With one partition keys are plain, with more a hash tag stands in
    front (Redis Cluster).
    """

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self._tags = tuple(f"{{{n}}}" for n in range(partitions)) if partitions > 1 else ("",)

    def all(self) -> range:
        """Every partition number."""
        return range(self.partitions)

    def pattern(self, partition: int) -> str:
        """Matches every key of the partition (and, with one partition, every key of ours)."""
        return f"{self._tags[partition]}horde:*"

    # which partition

    def of(self, id_: str) -> int:
        """The partition of a UUID or a hex digest.

        Raise ValueError where the tail is not hexadecimal.
        """
        return int(id_[-4:], 16) % self.partitions

    def of_account(self, user_id: int) -> int:
        """The partition of an account."""
        return user_id % self.partitions

    # minting ids

    def new_request_id(self) -> str:
        """A fresh request id; its tail decides the partition of all that belongs to it."""
        return str(uuid.uuid4())

    def new_id_beside(self, id_: str) -> str:
        """A fresh UUID in the partition of `id_`: it takes over the last four hex digits."""
        fresh = uuid.UUID(bytes=secrets.token_bytes(16), version=4)
        return str(fresh)[:-4] + id_[-4:]

    def new_shared_key(self, user_id: int) -> str:
        """A fresh UUID in the partition of an account."""
        fresh = uuid.UUID(bytes=secrets.token_bytes(16), version=4)
        turns = secrets.randbelow(0x10000 // self.partitions)
        tail = self.of_account(user_id) + self.partitions * turns
        return f"{str(fresh)[:-4]}{tail:04x}"

    # one partition's own keys

    def events(self, partition: int) -> str:
        """The log."""
        return f"{self._tags[partition]}horde:events"

    def events_anew(self, partition: int) -> str:
        """A log that a rebuild puts together, to take the place of the log."""
        return f"{self._tags[partition]}horde:events_anew"

    def control(self, partition: int) -> str:
        """`gate` (a rebuild runs), `last_ms` (time of the last event; 0: there was none yet),
        `clock_ms` (test seam).

        Without `last_ms` Redis has lost what it had, or nobody began: commands are refused.
        """
        return f"{self._tags[partition]}horde:control"

    def due(self, partition: int, what: Due) -> str:
        """What falls due, scored by Redis-clock milliseconds."""
        return f"{self._tags[partition]}horde:due:{what}"

    def fences(self, partition: int) -> str:
        """The last position of each source log whose effects stand in this partition."""
        return f"{self._tags[partition]}horde:fences"

    def accounts(self, partition: int) -> str:
        """The last account number handed out here."""
        return f"{self._tags[partition]}horde:accounts"

    def clearing(self, partition: int) -> str:
        """The other side of every movement of kudos here, by cause."""
        return f"{self._tags[partition]}horde:clearing"

    def passkeys(self, partition: int) -> str:
        """The service accounts of proxies' passkeys (their HMACs)."""
        return f"{self._tags[partition]}horde:passkeys"

    def modes(self) -> str:
        """The modes of the whole deployment. In partition 0."""
        return f"{self._tags[0]}horde:modes"

    def delete_retry(self, partition: int) -> str:
        """Objects that the store did not delete yet."""
        return f"{self._tags[partition]}horde:chat:image_delete_retry"

    # who calls: nothing of this is history

    def limit(self, digest: str) -> str:
        """The running window of one rate limit of one caller."""
        return f"{self._tags[self.of(digest)]}horde:limit:{digest}"

    def whitelist(self, digest: str) -> str:
        """There while an address (its HMAC) has wider budgets."""
        return f"{self._tags[self.of(digest)]}horde:whitelist:{digest}"

    def ip_timeouts(self) -> str:
        """Addresses and networks that are shut out, each with its end. In partition 0."""
        return f"{self._tags[0]}horde:ip_timeouts"

    def worker_messages(self) -> str:
        """What is told to workers with their pops, each with its end. In partition 0."""
        return f"{self._tags[0]}horde:worker_messages"

    # keys of one aggregate

    def request(self, request_id: str) -> str:
        """Hot state of a request."""
        return f"{self._tags[self.of(request_id)]}horde:request:{request_id}"

    def content(self, request_id: str) -> str:
        """Messages, payload and replies: not history, gone with the request."""
        return f"{self._tags[self.of(request_id)]}horde:content:{request_id}"

    def stream(self, request_id: str) -> str:
        """What workers posted while they generated."""
        return f"{self._tags[self.of(request_id)]}horde:chat:stream:{request_id}"

    def generation(self, generation_id: str) -> str:
        """Hot state of a generation."""
        return f"{self._tags[self.of(generation_id)]}horde:generation:{generation_id}"

    def lease(self, generation_id: str) -> str:
        """The stream lease of a generation."""
        return f"{self._tags[self.of(generation_id)]}horde:chat:lease:{generation_id}"

    def decoy(self, generation_id: str) -> str:
        """A job that is none, of a paused worker."""
        return f"{self._tags[self.of(generation_id)]}horde:decoy:{generation_id}"

    def worker_address(self, worker_id: str) -> str:
        """From where a worker came last."""
        return f"{self._tags[self.of(worker_id)]}horde:worker_address:{worker_id}"

    def tricked(self, request_id: str) -> str:
        """The paused workers that had a decoy of a request, and which."""
        return f"{self._tags[self.of(request_id)]}horde:tricked:{request_id}"

    def worker(self, worker_id: str) -> str:
        """Hot state of a worker."""
        return f"{self._tags[self.of(worker_id)]}horde:worker:{worker_id}"

    def worker_name(self, name: str) -> str:
        """Registry entry: the worker that claims a name."""
        digest = name_hash(name)
        return f"{self._tags[self.of(digest)]}horde:worker_name:{digest}"

    def account(self, user_id: int) -> str:
        """Hot state of an account."""
        return f"{self._tags[self.of_account(user_id)]}horde:account:{user_id}"

    def api_key(self, digest: str) -> str:
        """Registry entry: the account that claims an API key (its HMAC)."""
        return f"{self._tags[self.of(digest)]}horde:api_key:{digest}"

    def claim(self, user_id: int, operation_key: str) -> str:
        """The request that an account's operation key names; beside the account."""
        tag = self._tags[self.of_account(user_id)]
        return f"{tag}horde:claim:{user_id}:{operation_key}"

    def transfers(self, user_id: int) -> str:
        """The newest transfers and grants of an account; beside it."""
        return f"{self._tags[self.of_account(user_id)]}horde:transfers:{user_id}"

    def shared_key(self, shared_key: str) -> str:
        """Hot state of a shared key. Its tail makes it live beside its account."""
        return f"{self._tags[self.of(shared_key)]}horde:shared_key:{shared_key}"

    def shared_keys(self, user_id: int) -> str:
        """The ids of an account's shared keys; beside it."""
        return f"{self._tags[self.of_account(user_id)]}horde:shared_keys:{user_id}"

    def profile(self, user_id: int) -> str:
        """What an account's owner and moderators wrote of it: no history."""
        return f"{self._tags[self.of_account(user_id)]}horde:profile:{user_id}"
