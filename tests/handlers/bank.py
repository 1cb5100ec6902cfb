"""What accounts should have: the rules of kudos once more, on plain values.

Prices are worked out from the formulas of text_path_reference.md 7, amounts are integers of 10^-4
kudos. What the settler has to carry waits in the order of its log until it is settled.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from events.base import KUDOS
from handlers import errors
from handlers.limits import Limits

SIZE = 8.03
"""Billions of parameters of the one model that is known."""
TAX = KUDOS
BURN = KUDOS
KEPT = 200
"""Transfers of each kind that an account remembers."""
PAUSE_MS = 60_000


class Priced(NamedTuple):
    """What a job's price depends on, but for its output."""

    known: bool  # its model is
    prompt: int  # characters
    max_length: int
    validated: bool
    trusted: bool

    def price(self, characters: int) -> int:
        """Of so much output (7.1, 7.2)."""
        context = 1.2 + 2.2 ** math.log2(self._tokens(self.prompt) / 1024)
        context = min(max(context, 0.1), 30)
        tokens = self._tokens(characters)
        if self.known:
            bonus = (max(SIZE, 13) / 13) ** 0.20
            backend = 1 if self.validated else 0.3
            return round(round(tokens * bonus * SIZE / 125 * backend * context, 2) * KUDOS)
        return round((tokens * context * 2.7 / 100 if self.trusted else context) * KUDOS)

    def _tokens(self, characters: int) -> int:
        return min(self.max_length, max(20, math.ceil(characters / 4)))

    def escrow(self, price: int) -> int:
        """What of it waits until its owner is trusted (7.7)."""
        return 0 if self.trusted else round(round(price / KUDOS / 2, 2) * KUDOS)

    def too_fast(self, characters: int, elapsed_ms: int, most: int) -> bool:
        """Whether that is more than so many thousandths of a token a second."""
        return round(self._tokens(characters) * 1_000_000 / max(elapsed_ms, 1000)) > most


@dataclass
class Account:
    """What one has."""

    kudos: int
    floor: int
    created: int = 0
    escrow: int = 0
    trusted: bool = False
    trusted_ms: int = 0
    suspicious: int = 0
    notes: list[Note] = field(default_factory=list)
    """Of its transfers and grants, newest first."""


@dataclass
class Note:
    """What an account remembers of a transfer or a grant."""

    kind: str  # out, in, grant
    transfer: Transfer
    other: str
    at: int


@dataclass
class Transfer:
    """One, or a grant. The id of a transfer is minted by the service: the watch finds it."""

    amount: int
    id: str = ""
    key: str = ""  # its idempotency


@dataclass
class SharedKey:
    """One, with its budget (-1: without end)."""

    user: int
    kudos: int
    expiry: int = 0
    utilized: int = 0

    def use(self, amount: int) -> None:
        """So much was spent with it; less than 0 is given back, and no more than was spent."""
        amount = max(amount, -self.utilized)
        if self.kudos == 0:
            return
        self.utilized += amount
        if self.kudos >= 0:
            self.kudos = max(0, self.kudos - amount)


class Charge(NamedTuple):
    """What a payer owes for a job."""

    account: int
    request: str
    amount: int  # its burn included
    key: str


class Reward(NamedTuple):
    """What an owner is to get."""

    account: int
    cause: str
    amount: int
    escrow: int
    suspicious: bool = False


class Release(NamedTuple):
    """A request needs its admission no more; where it never came, its tax is given back."""

    account: int
    request: str
    refund: bool = False
    key: str = ""


class Arrival(NamedTuple):
    """The other side of a transfer."""

    account: int
    giver: int
    transfer: Transfer
    key: str


Movement = Charge | Reward | Release | Arrival


@dataclass
class Bank:
    """All accounts, shared keys, and what waits for the settlers."""

    limits: Limits
    accounts: dict[int, Account] = field(default_factory=dict)
    keys: dict[str, SharedKey] = field(default_factory=dict)
    clearing: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By partition of the account, and cause."""
    partitions: int = 1
    lifted: int = 0
    promoted: int = 0
    uptime: int = 0
    """How often balances were lifted, owners promoted, and paid for uptime."""
    _waiting: dict[int, list[Movement]] = field(default_factory=dict)

    def open(self, id_: int, account: Account) -> None:
        """One with so much; what its floor adds comes of itself."""
        given, account.kudos = account.kudos, 0
        self.accounts[id_] = account
        self.post(id_, "opened", given)
        self.lift(id_)

    def post(self, id_: int, cause: str, amount: int, *, escrow: bool = False) -> None:
        """One movement: both sides."""
        account = self.accounts[id_]
        if escrow:
            account.escrow += amount
        else:
            account.kudos += amount
        self.clearing[id_ % self.partitions, cause] -= amount

    def lift(self, id_: int) -> None:
        """To the floor, at least."""
        account = self.accounts[id_]
        if account.kudos < account.floor:
            self.lifted += 1
            self.post(id_, "floor", account.floor - account.kudos)

    # what is carried

    def owe(self, log: int, movement: Movement) -> None:
        """The log of that partition tells it."""
        self._waiting.setdefault(log, []).append(movement)

    def due(self) -> Iterator[Movement]:
        """All that waits, a log after the other; it waits no more."""
        for log in range(self.partitions):
            yield from self._waiting.pop(log, [])

    def carry(self, movement: Charge | Reward | Arrival, now: int) -> None:
        """Settle it."""
        id_ = movement.account
        match movement:
            case Charge(amount=amount, key=key):
                self.post(id_, "generation", BURN - amount)
                self.post(id_, "burn", -BURN)
                if key in self.keys:
                    self.keys[key].use(amount)
            case Reward():
                self._reward(movement, now)
            case Arrival(giver=giver, transfer=transfer, key=key):
                self.post(id_, "transfer", transfer.amount)
                self.note(id_, Note("in", transfer, str(giver), now))
                if key in self.keys and self.keys[key].kudos >= 0:
                    self.keys[key].kudos += transfer.amount
        self.lift(id_)

    def _reward(self, reward: Reward, now: int) -> None:
        account = self.accounts[reward.account]
        self.uptime += reward.cause == "uptime"
        waits = 0 if account.trusted else reward.escrow
        self.post(reward.account, reward.cause, reward.amount - waits)
        self.post(reward.account, reward.cause, waits, escrow=True)
        account.suspicious += reward.suspicious
        threshold = self.limits.trust_threshold
        if (
            threshold is not None
            and not account.trusted
            and account.escrow > threshold
            and account.suspicious < self.limits.suspect
            and now - account.created >= self.limits.trust_probation * 1000
        ):
            account.trusted, account.trusted_ms = True, now
            account.kudos += account.escrow
            account.escrow = 0
            self.promoted += 1

    def refund(self, release: Release, tax: int) -> None:
        """Of a request that never came."""
        self.post(release.account, "tax", tax)
        if release.key in self.keys:
            self.keys[release.key].use(-tax)
        self.lift(release.account)

    # what is spent

    def admit(self, id_: int, hold: int, held: int, key: str, held_with_key: int, now: int) -> (
        type[errors.Refused] | None
    ):  # fmt: skip
        """Whether so much may be held beside what is held already."""
        if key:
            shared = self.keys.get(key)
            if shared is None:
                return errors.InvalidAPIKey
            if 0 < shared.expiry <= now:
                return errors.SharedKeyExpired
            left = shared.kudos - held_with_key
            if shared.kudos == 0 or (shared.kudos != -1 and hold > left):
                return errors.SharedKeyInsufficientKudos if left > 0 else errors.SharedKeyEmpty
        account = self.accounts[id_]
        if hold and hold > account.kudos - account.floor - held:
            return errors.KudosUpfront
        return None

    def tax(self, id_: int, amount: int, key: str) -> int:
        """A request was taken; what of it is given back if the request never comes: what the floor
        lifts was never paid."""
        account = self.accounts[id_]
        paid = max(0, min(amount, account.kudos - account.floor))
        self.post(id_, "tax", -amount)
        if key in self.keys:
            self.keys[key].use(amount)
        self.lift(id_)
        return paid

    # between accounts

    def note(self, id_: int, note: Note) -> None:
        """Remember a transfer or a grant."""
        account = self.accounts[id_]
        account.notes.insert(0, note)
        alike = [each for each in account.notes if each.kind == note.kind]
        if len(alike) > KEPT:
            account.notes = [each for each in account.notes if each is not alike[-1]]

    def recipient(self, giver: int, to: str, now: int) -> int | type[errors.Refused]:
        """Whose account it is for, or why it may not be."""
        if to in self.keys:
            shared = self.keys[to]
            if 0 < shared.expiry <= now:
                return errors.SharedKeyExpired
            to = str(shared.user)
        if not to.isdecimal() or int(to) not in self.accounts:
            return errors.InvalidTargetUsername
        if int(to) == 0:
            return errors.KudosTransferToAnon
        if int(to) == giver:
            return errors.KudosTransferToSelf
        account = self.accounts[int(to)]
        if not account.trusted and account.suspicious >= self.limits.suspect:
            return errors.FaultWhenKudosReceiving
        return int(to)

    def give(  # noqa: PLR0911 - an answer a refusal
        self,
        giver: int,
        recipient: int | type[errors.Refused],
        to: str,
        amount: int,
        held: int,
        key: str,
        now: int,
    ) -> bool | type[errors.Refused]:
        """Whether it is to be done now (it was done before), or why not."""
        account = self.accounts[giver]
        for each in account.notes:
            if key and each.kind == "out" and each.transfer.key == key:
                if (each.other, each.transfer.amount) != (to, amount):
                    return errors.IdempotencyKeyConflict
                return False
        if not isinstance(recipient, int):
            return recipient
        for each in account.notes:
            if each.kind == "in" and each.other == str(recipient) and now - each.at < PAUSE_MS:
                return errors.TooFastKudosTransfers
        if not account.trusted and account.suspicious >= self.limits.suspect:
            return errors.FaultWhenKudosSending
        if amount > account.kudos - account.floor - held:
            return errors.KudosTransferNotEnough
        return True

    def given(self, giver: int, recipient: int, to: str, transfer: Transfer, now: int) -> None:
        """It left the giver."""
        self.post(giver, "transfer", -transfer.amount)
        self.note(giver, Note("out", transfer, to, now))
        key = to if to in self.keys else ""
        self.owe(giver % self.partitions, Arrival(recipient, giver, transfer, key))

    def grant(self, id_: int, grant: Transfer, now: int) -> bool:
        """Whether it is done now, not by an earlier command."""
        notes = self.accounts[id_].notes
        if any(each.kind == "grant" and each.transfer.id == grant.id for each in notes):
            return False
        self.post(id_, "granted", grant.amount)
        self.note(id_, Note("grant", grant, "-1", now))
        self.lift(id_)
        return True

    def deadlines(self) -> Iterator[int]:
        """When something will be different by itself."""
        for account in self.accounts.values():
            yield account.created + self.limits.trust_probation * 1000
            yield from (note.at + PAUSE_MS for note in account.notes if note.kind == "in")
        yield from (key.expiry for key in self.keys.values() if key.expiry)
