"""Key names, kinds and partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events import types
from events.keys import DURABLE, EPHEMERAL, STATE, Keys, kind_of
from events.touch import touched
from events.types import EVENTS

REQUEST = "00000000-0000-4000-8000-00000000abcd"


def test_one_partition_has_the_spec_s_plain_names() -> None:
    keys = Keys(1)

    assert keys.lease(REQUEST) == f"horde:chat:lease:{REQUEST}"
    assert keys.stream(REQUEST) == f"horde:chat:stream:{REQUEST}"
    assert keys.delete_retry(0) == "horde:chat:image_delete_retry"


@given(st.integers(min_value=2, max_value=64))
def test_all_keys_of_a_request_and_its_generations_share_one_hash_tag(partitions: int) -> None:
    keys = Keys(partitions)
    request_id = keys.new_request_id()
    generation_id = keys.new_id_beside(request_id)

    tags = {
        key.split("}")[0]
        for key in (
            keys.request(request_id),
            keys.content(request_id),
            keys.stream(request_id),
            keys.generation(generation_id),
            keys.lease(generation_id),
            keys.events(keys.of(generation_id)),
            keys.control(keys.of(request_id)),
            keys.due(keys.of(request_id), "lease"),
        )
    }

    assert tags == {f"{{{keys.of(request_id)}"}


@given(st.integers(min_value=1, max_value=64), st.integers(min_value=0, max_value=10_000))
def test_an_operation_key_is_claimed_beside_its_account(partitions: int, user_id: int) -> None:
    keys = Keys(partitions)

    claim, account = keys.claim(user_id, REQUEST), keys.account(user_id)

    assert claim.split("horde:")[0] == account.split("horde:")[0]
    assert claim != keys.claim(user_id + 1, REQUEST)


@given(st.integers(min_value=1, max_value=64), st.integers(min_value=0, max_value=10_000))
def test_what_kudos_are_spent_with_lives_beside_its_account(partitions: int, user_id: int) -> None:
    keys = Keys(partitions)
    shared_key = keys.new_shared_key(user_id)

    beside = {
        keys.account(user_id),
        keys.shared_key(shared_key),
        keys.shared_keys(user_id),
        keys.transfers(user_id),
        keys.profile(user_id),
        keys.clearing(keys.of_account(user_id)),
    }

    assert len({key.split("horde:")[0] for key in beside}) == 1


def test_ids_spread_over_all_partitions() -> None:
    keys = Keys(4)

    assert {keys.of(keys.new_request_id()) for _ in range(200)} == {0, 1, 2, 3}


@pytest.mark.parametrize("partitions", [1, 4])
def test_every_key_is_of_exactly_one_kind(partitions: int) -> None:
    keys = Keys(partitions)
    made = {
        "state": [
            keys.request(REQUEST),
            keys.generation(REQUEST),
            keys.worker(REQUEST),
            keys.worker_name("n"),
            keys.account(7),
            keys.api_key("ab" * 32),
            keys.accounts(0),
            keys.due(0, "lease"),
            keys.fences(0),
            keys.claim(7, REQUEST),
            keys.modes(),
            keys.clearing(0),
            keys.transfers(7),
            keys.shared_key(REQUEST),
            keys.shared_keys(7),
            keys.passkeys(0),
        ],
        "ephemeral": [
            keys.content(REQUEST),
            keys.lease(REQUEST),
            keys.stream(REQUEST),
            keys.decoy(REQUEST),
            keys.tricked(REQUEST),
            keys.worker_address(REQUEST),
            keys.limit(REQUEST),
            keys.whitelist("ab" * 32),
        ],
        "durable": [
            *(keys.events(0), keys.control(0), keys.delete_retry(0)),
            *(keys.ip_timeouts(), keys.worker_messages(), keys.profile(7)),
        ],
    }

    for kind, names in made.items():
        assert {kind_of(name) for name in names} == {kind}
    assert kind_of("horde:other") == "unknown"
    assert not {*STATE} & {*EPHEMERAL} & {*DURABLE}


def test_the_keys_of_every_event_are_known() -> None:
    keys = Keys(4)
    examples = {
        "request_id": REQUEST,
        "generation_id": REQUEST,
        "worker_id": REQUEST,
        "name": "n",
        "key": "ab" * 32,
        "former": "ab" * 32,
        "shared_key": REQUEST,
        "shared_keys": (REQUEST,),
        "generations": (REQUEST,),
        "settled": (REQUEST,),
    }
    for kind in EVENTS:
        import msgspec

        values = {
            field.name: examples.get(field.name, _example(field.type))
            for field in msgspec.structs.fields(kind)
        }

        assert touched(keys, 1, kind(**values))


def _example(hint: object) -> object:
    known = {
        int: 1,
        bool: False,
        str: "5-0",
        types.Demand: types.Demand(),
        types.Declaration: types.Declaration(),
        types.Usage: types.Usage(),
    }
    return known.get(hint, ())
