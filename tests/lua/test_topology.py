"""Which node serves which key, by what CLUSTER SLOTS answers."""

from __future__ import annotations

import pytest
import redis

from lua.topology import Slots, beside, key_of, slot_of, urls

ONE, TWO = b"10.0.0.1", b"10.0.0.2"
URL = "redis://:secret@seed:6379/0"


@pytest.mark.parametrize(
    "key", ["{0}horde:events", "{3}horde:content:x", "plain", "{}empty", "a{b}c{d}", "{open", "ü"]
)
def test_a_key_s_slot_is_the_one_that_the_server_gives_it(cluster_url: str, key: str) -> None:
    with redis.Redis.from_url(cluster_url) as client:
        assert slot_of(key) == client.execute_command("CLUSTER KEYSLOT", key)


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("HGET", "k", "f"), "k"),
        (("EVALSHA", "sha", 2, "k", "l", "a"), "k"),
        (("EVAL", "source", 0, "a"), None),
        (("XINFO", "STREAM", "k"), "k"),
        (("XREAD", "COUNT", 5, "STREAMS", "k", "0"), "k"),
        (("PUBLISH", "channel", "m"), None),
        (("TIME",), None),
        (("DEL", b"k"), b"k"),
    ],
)
def test_a_command_is_sent_by_its_first_key(command: tuple[str | int | bytes, ...], key) -> None:
    assert key_of(command) == key


def test_slots_have_an_owner_or_none() -> None:
    answer = [
        [0, 99, [ONE, 7000, b"id", []], [TWO, 7001, b"id", []]],
        [200, 16383, [None, 7002, b"id", []]],
    ]

    slots = Slots.parse(URL, answer)

    first, last = "redis://:secret@10.0.0.1:7000/0", "redis://:secret@seed:7002/0"
    assert [slots.owner(slot) for slot in (0, 99, 100, 199, 200)] == [
        first,
        first,
        None,
        None,
        last,
    ]
    assert slots.primaries == (first, last)
    assert slots.nodes == (first, "redis://:secret@10.0.0.2:7001/0", last)
    assert Slots.parse(URL, answer) == slots
    assert Slots.parse(URL, answer[:1]) != slots


def test_a_url_may_name_several_servers() -> None:
    assert urls("redis://u:a,b@one:1,two:2/0") == ["redis://u:a,b@one:1/0", "redis://u:a,b@two:2/0"]
    assert urls("unix://:p@/run/socket?db=0") == ["unix://:p@/run/socket?db=0"]
    assert urls("unix:///run/socket?db=0") == ["unix:///run/socket?db=0"]
    assert beside("rediss://u:p@one:1/0?x=y", "::1", 5) == "rediss://u:p@[::1]:5/0?x=y"
