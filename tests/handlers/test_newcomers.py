"""How many workers an account may have, and which names they may not have."""

from __future__ import annotations

import asyncio

import pytest

from handlers.accounts import Account
from handlers.errors import BadRequest, TooManyWorkers, TooManyWorkersTrusted
from handlers.limits import Limits
from handlers.newcomers import Newcomers


class Model:
    """What a read model shows of each account."""

    def __init__(self) -> None:
        self.names: dict[int, frozenset[str]] = {}
        self.asked = 0

    async def __call__(self, user_id: int) -> frozenset[str]:
        self.asked += 1
        await asyncio.sleep(0)
        return self.names.get(user_id, frozenset())


def account(number: int = 1, *, trusted: bool = False) -> Account:
    return Account(
        id=number,
        name=f"a{number}",
        trusted=trusted,
        moderator=False,
        digest="0" * 64,
        flagged=False,
    )


@pytest.mark.parametrize(("trusted", "most"), [(False, 3), (True, 20)])
async def test_the_limit_is_reached_and_not_passed(trusted: bool, most: int) -> None:
    model = Model()
    newcomers, owner = Newcomers(Limits(), model), account(trusted=trusted)
    for number in range(most):
        await newcomers.admit(owner, f"w{number}")

    with pytest.raises(TooManyWorkersTrusted if trusted else TooManyWorkers):
        await newcomers.admit(owner, "one more")

    await newcomers.admit(owner, "w0")  # again, since the answer was lost
    await newcomers.admit(account(2), "another's")


@pytest.mark.parametrize(("trusted", "most"), [(False, 3), (True, 25)])
async def test_a_trusted_account_is_invited_with_more(trusted: bool, most: int) -> None:
    newcomers = Newcomers(Limits(), Model())
    owner = account(trusted=trusted)._replace(worker_invited=25)
    for number in range(most):
        await newcomers.admit(owner, f"w{number}")

    with pytest.raises(TooManyWorkersTrusted if trusted else TooManyWorkers):
        await newcomers.admit(owner, "one more")


async def test_those_that_the_model_shows_count_once() -> None:
    model = Model()
    newcomers = Newcomers(Limits(), model)
    await newcomers.admit(account(), "a")
    model.names[1] = frozenset({"a", "b"})

    await newcomers.admit(account(), "c")

    with pytest.raises(TooManyWorkers):
        await newcomers.admit(account(), "d")


async def test_of_many_at_once_no_more_are_let_in() -> None:
    newcomers = Newcomers(Limits(), Model())

    answers = await asyncio.gather(
        *(newcomers.admit(account(), f"w{n}") for n in range(10)), return_exceptions=True
    )

    assert answers.count(None) == 3


@pytest.mark.parametrize("name", ["my Colab", "TPU-1", "not google"])
async def test_names_of_hosting_services_are_refused_unasked(name: str) -> None:
    model = Model()

    with pytest.raises(BadRequest):
        await Newcomers(Limits(), model).admit(account(), name)

    assert not model.asked
