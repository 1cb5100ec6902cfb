"""Random commands on what accounts have: shared keys, transfers, grants and trust."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from events.base import KUDOS
from handlers import errors, shared_keys
from handlers.account_changes import Change, change_account
from handlers.accounts import Account
from handlers.grants import grant
from handlers.transfers import Target, idempotency_of, transfer
from tests.handlers.bank import SharedKey, Transfer
from tests.handlers.pool import SECRET

if TYPE_CHECKING:
    from tests.handlers.player import Player

NO_ACCOUNT = 1_000_003
DAY_MS = 86_400_000
DAYS = (-1, -1, 1, 8)


class Spender:
    """Of a player, and foretold by its model as all that it does."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._keys: list[tuple[str, Account]] = []
        """Shared keys as their clients know them: some are gone."""
        self._last: tuple[Account, str, int, str | None] | None = None
        """The last transfer that was asked for."""
        self.moves = (
            (self.share, 1),
            (self.change_key, 1.5),
            (self.transfer, 4),
            (self.grant, 1.5),
            (self.trust, 0.3),
        )

    async def with_key(self) -> Account | None:
        """The client, as it is called with some shared key."""
        if not self._keys:
            return None
        id_, account = self._some()
        if id_ in self._player.model.bank.keys:
            return await self._player.pool.accounts.payer(id_)
        return account

    def _some(self) -> tuple[str, Account]:
        """A shared key, most often one that is there."""
        random, known = self._player.random, self._player.model.bank.keys
        there = [each for each in self._keys if each[0] in known]
        return random.choice(there if there and random.random() < 0.8 else self._keys[-5:])

    def _terms(self) -> tuple[shared_keys.Terms, int, int]:
        """Of a key, with its budget in 10^-4 kudos and its days."""
        choice = self._player.random.choice
        kudos, days = choice((-1, 0, 2, 5, 10, 40)), choice(DAYS)
        budget = kudos if kudos == -1 else kudos * KUDOS
        return shared_keys.Terms(kudos=kudos, days=days), budget, days

    def _expiry(self, days: int) -> int:
        return 0 if days == -1 else self._player.model.now + days * DAY_MS

    async def share(self) -> None:
        player = self._player
        terms, budget, days = self._terms()
        client, bank = player.pool.client, player.model.bank
        outcome = errors.Forbidden if len(bank.keys) >= shared_keys.MOST else None
        command = shared_keys.open_shared_key(player.pool.log, client, terms)
        id_ = await player.foretold(outcome, command)
        if isinstance(id_, str):
            bank.keys[id_] = SharedKey(client.id, budget, self._expiry(days))
            self._keys.append((id_, await player.pool.accounts.payer(id_)))

    async def change_key(self) -> None:
        """Another budget and end; or it goes."""
        player, bank = self._player, self._player.model.bank
        log, client = player.pool.log, player.pool.client
        if not self._keys:
            return
        id_, _ = self._some()
        outcome = None if id_ in bank.keys else errors.InvalidAPIKey
        known = await player.foretold(outcome, shared_keys.find(log, id_))
        if isinstance(known, errors.Refused):
            return
        if player.random.random() < 0.4:
            await shared_keys.delete_shared_key(log, client, known)
            del bank.keys[id_]
            return
        terms, budget, days = self._terms()
        await shared_keys.change_shared_key(log, client, known, terms)
        bank.keys[id_].kudos, bank.keys[id_].expiry = budget, self._expiry(days)

    async def transfer(self) -> None:
        """Somebody gives something to somebody, or to a shared key."""
        player, model = self._player, self._player.model
        pool, random, bank = player.pool, player.random, player.model.bank
        giver = random.choice((*player.accounts, player.trusted, player.trusted))
        to = str(random.choice((*bank.accounts, NO_ACCOUNT)))
        if self._keys and random.random() < 0.3:
            to, _ = self._some()
        amount = random.choice((1, 3 * KUDOS, 3 * KUDOS, 20 * KUDOS))
        name = random.choice((None, None, None, *"abc"))
        suspect = player.accounts[1]
        if bank.accounts[suspect.id].suspicious >= pool.limits.suspect and random.random() < 0.5:
            giver, to = random.choice(((suspect, to), (giver, str(suspect.id))))
        came = [each.other for each in bank.accounts[giver.id].notes[:3] if each.kind == "in"]
        if came and random.random() < 0.3:
            to = came[0]
        if self._last and random.random() < 0.2:
            giver, to, amount, name = self._last
        self._last = giver, to, amount, name
        key, quick = idempotency_of(SECRET, name), random.random() < 0.6
        recipient = bank.recipient(giver.id, to, model.now)

        def told() -> bool | type[errors.Refused]:
            held = model.held_of(giver.id)[""]
            return bank.give(giver.id, recipient, to, amount, held, key, model.now)

        answer = errors.KudosTransferFromAnon if giver.anonymous else told()
        if answer is errors.KudosTransferNotEnough:
            if quick:
                model.settle()
                answer = told()
            else:
                answer = errors.SettlerBehind
        target = Target(int(to)) if to.isdecimal() else Target(None, to)
        done = await player.foretold(
            None if isinstance(answer, bool) else answer,
            transfer(
                pool.log, pool.limits, giver, target, amount, idempotency=key,
                settled=player.settled(quick=quick),
            ),
        )  # fmt: skip
        if isinstance(done, errors.Refused):
            return
        assert done == answer
        player.met["given" if done else "given before"] += 1
        if done:
            assert isinstance(recipient, int)
            bank.given(giver.id, recipient, to, Transfer(amount, key=key), model.now)

    async def grant(self) -> None:
        """Now and then the same one again."""
        player, random = self._player, self._player.random
        id_ = random.choice([account.id for account in (*player.accounts, player.trusted)])
        name = str(random.randrange(10)) if random.random() < 0.2 else str(uuid.uuid4())
        amount = random.choice((10, 30, 30, -40)) * KUDOS
        done = await grant(player.pool.log, id_, amount, grant_id=name)
        now = player.model.now
        assert done.repeated != player.model.bank.grant(id_, Transfer(amount, id=name), now)
        assert done.kudos == player.model.bank.accounts[id_].kudos

    async def trust(self) -> None:
        """A moderator takes trust away, or gives it; or forgets what came too fast, too."""
        player, random = self._player, self._player.random
        trusted, forgotten = random.random() < 0.2, random.random() < 0.3
        newcomer = player.accounts[1].id
        change = Change(roles={"trusted": trusted}, reset_suspicion=forgotten)
        await change_account(player.pool.log, newcomer, change)
        account = player.model.bank.accounts[newcomer]
        account.trusted = trusted
        account.suspicious = 0 if forgotten else account.suspicious
        if trusted:  # what waited for it is its own
            account.kudos, account.escrow = account.kudos + account.escrow, 0
        account.trusted_ms = player.model.now if trusted else account.trusted_ms
