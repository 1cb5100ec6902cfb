"""What a pop declares."""

from __future__ import annotations

import json
from typing import Any

import pytest

from events.types import Declaration
from handlers.chat import declaration
from handlers.errors import (
    BadRequest,
    ChatDeclarationInvalid,
    InvalidPriorityUsername,
    NulByteInPayload,
    Refused,
)
from tests.spec import spec

CHAT = {
    "chat_jobs": True,
    "model_id": "m",
    "chat_limits": {"max_context_length": 4096, "max_length": 512},
}


def read(**changed: Any) -> declaration.Declared:
    body = {"name": "w", "models": ["m"]} | changed
    return declaration.declared(declaration.read(json.dumps(body).encode()), "bob#1")


@spec("Chat declaration on pop", 1)
def test_a_pop_without_chat_jobs_declares_nothing_of_chat() -> None:
    declared = read(**(CHAT | {"chat_jobs": False, "chat_features": ["seed"]}))

    assert declared == ("w", Declaration(models=("m",)))


@spec("Chat declaration on pop", 1, 3, 4, 5, 6)
def test_a_chat_declaration_keeps_what_we_know() -> None:
    declared = read(
        **CHAT,
        prompt_jobs=False,
        chat_features=["tools", "prompt_overflow_refused", "telepathy", "tools"],
        image_transports=["url", "carrier_pigeon"],
        bridge_agent="agent:1:url",
        threads=2,
        unknown={"ignored": True},
    )

    assert declared.declaration == Declaration(
        models=("m",),
        bridge_agent="agent:1:url",
        threads=2,
        chat_jobs=True,
        prompt_jobs=False,
        model_id="m",
        chat_features=("prompt_overflow_refused", "tools"),
        chat_max_context_length=4096,
        chat_max_length=512,
        image_transports=("url",),
    )


@spec("Chat declaration on pop", 2, 9)
@pytest.mark.parametrize(
    "changed",
    [
        CHAT | {"chat_limits": None},
        CHAT | {"model_id": None},
        CHAT | {"model_id": "other"},
        {"prompt_jobs": False},
        CHAT | {"chat_limits": {"max_length": 1}},
        CHAT | {"chat_limits": CHAT["chat_limits"] | {"tools_max_temperature": -1}},
        CHAT | {"chat_features": "seed"},
    ],
)
def test_an_incomplete_declaration_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ChatDeclarationInvalid):
        read(**changed)


@pytest.mark.parametrize("number", [b"1e999", b"NaN", b"Infinity", b"-Infinity"])
def test_a_limit_that_is_no_number_is_refused_as_declaration(number: bytes) -> None:
    """C-007."""
    limits = b'{"max_context_length":1,"max_length":1,"tools_max_temperature":' + number + b"}"
    body = b'{"name":"w","models":["m"],"chat_limits":' + limits + b"}"

    with pytest.raises(ChatDeclarationInvalid) as refused:
        declaration.read(body)

    assert list(refused.value.extra["errors"]) == ["chat_limits.tools_max_temperature"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"name":"w","models":["m"],"threads":NaN}',
        b'{"chat_limits":{"max_length":NaN}',
        b"[NaN]",
        b'{"chat_limits":{"max_length":NaN,"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}}",
    ],
)
def test_what_is_no_number_elsewhere_is_no_json(body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        declaration.read(body)

    assert type(refused.value) is BadRequest


@pytest.mark.parametrize(
    "changed",
    [
        {"name": ""},
        {"name": "   "},
        {"name": "n" * 101},
        {"name": 1},
        {"models": []},
        {"models": None},
        {"models": ["private::eve#2"]},
        {"threads": 0},
        {"threads": 51},
        {"amount": 21},
        {"max_length": "512"},
        {"nsfw": "yes"},
        {"require_upfront_kudos": 1},
        {"extra_slow_worker": "no"},
        {"softprompts": "a.zip"},
        {"softprompts": ["a.zip", 1]},
    ],
)
def test_other_misfits_are_bad_requests(changed: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        read(**changed)


def test_nul_is_refused() -> None:
    with pytest.raises(NulByteInPayload):
        read(name="w\0")


def test_paths_are_dotted_as_on_every_text_route() -> None:
    for sent, path in (
        ({"models": ["m", ""]}, "models.1"),
        ({"models": ["m\0"]}, "models.0"),
        ({"priority_usernames": ["b#1", 2]}, "priority_usernames.1"),
        ({"softprompts": ["a.zip", 1]}, "softprompts.1"),
        ({"nsfw": "yes"}, "nsfw"),
    ):
        with pytest.raises((BadRequest, NulByteInPayload)) as refused:
            read(**sent)
        assert list(refused.value.extra["errors"]) == [path]


def test_deep_nesting_in_an_ignored_key_is_refused() -> None:
    body = b'{"name":"w","models":["m"],"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"

    with pytest.raises(Refused):
        declaration.read(body)


def test_what_it_says_of_nsfw_is_kept_and_the_rest_is_taken() -> None:
    rest = {"require_upfront_kudos": True, "extra_slow_worker": True, "softprompts": ["a.zip"]}

    assert read(nsfw=False, **rest).declaration == Declaration(models=("m",), nsfw=False)
    assert read(nsfw=None).declaration.nsfw


def test_private_models_are_served_by_their_owner() -> None:
    assert read(models=["m::bob#1", "m::eve#2"]).declaration.models == ("m::bob#1",)


def test_limits_are_cut_to_what_means_anything() -> None:
    limits = {"max_context_length": 10**30, "max_length": 1}
    declared = read(**(CHAT | {"chat_limits": limits}), max_length=-5).declaration

    assert (declared.chat_max_context_length, declared.max_length) == (2**31 - 1, 0)


def test_two_hundred_models_are_kept() -> None:
    assert len(read(models=[f"m{n}" for n in range(300)]).declaration.models) == 200


def test_a_temperature_limit_beyond_all_temperatures_is_kept_finite() -> None:
    raw = json.dumps(
        {
            "name": "w",
            "models": ["m"],
            "chat_jobs": True,
            "model_id": "m",
            "chat_limits": {
                "max_context_length": 4096,
                "max_length": 512,
                "tools_max_temperature": 1.7e308,
            },
        }
    ).encode()

    _, declared = declaration.declared(declaration.read(raw), "o#1")

    assert declared.chat_tools_max_temperature == 1000.0


def test_a_priority_username_is_a_name_and_a_number() -> None:
    read(priority_usernames=["bob#1", "a # name#23", "#4"])

    for username in ("bob", "bob#", "bob#x", "bob#1#", "bob#-1", "bob#\N{SUPERSCRIPT TWO}", ""):
        with pytest.raises(InvalidPriorityUsername):
            read(priority_usernames=["bob#1", username])


def test_of_priority_usernames_the_first_hundred_count() -> None:
    """Each of them is looked for in the queue, for every worker that declares the same."""
    names = [f"a#{number}" for number in (7, *range(1000, 50_000))]
    raw = json.dumps({"name": "w", "models": ["m"], "priority_usernames": names}).encode()

    preferred = declaration.preferred(declaration.read(raw))

    assert preferred == {7, *range(1000, 1099)}
