"""What a submit of a text job may say, and what is stored of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from handlers.chat import reply as submits
from handlers.errors import BadRequest
from handlers.text import reply

CSAM = {"type": "censorship", "value": "csam"}


def submit(**changed: Any) -> submits.Submit:
    return submits.read(json.dumps({"id": "x", "generation": "text"} | changed).encode())


def kept(**changed: Any) -> tuple[str, dict[str, Any]]:
    """The state, and what content keeps."""
    said = submit(**changed)
    made = reply.reply(said, reply.read(said))
    return made.state, json.loads(made.stored)


def test_a_reply_is_its_text() -> None:
    assert kept() == ("ok", {"text": "text", "gen_metadata": []})
    assert kept(generation="", gen_metadata=None) == ("ok", {"text": "", "gen_metadata": []})


def test_nul_is_replaced_wherever_it_is_stored() -> None:
    _, stored = kept(generation="a\0b", gen_metadata=[CSAM | {"ref": "\0"}])

    assert stored == {"text": "a\ufffdb", "gen_metadata": [CSAM | {"ref": "\ufffd"}]}


def test_child_abuse_is_told_by_the_state_or_by_metadata() -> None:
    told = [CSAM]

    assert kept(state="csam") == ("csam", {"text": "text", "gen_metadata": told})
    assert kept(gen_metadata=told) == ("csam", {"text": "text", "gen_metadata": told})
    assert kept(state="censored", gen_metadata=told)[0] == "csam"
    assert kept(state="csam", gen_metadata=told)[1]["gen_metadata"] == told
    assert kept(state="censored") == ("censored", {"text": "text", "gen_metadata": []})


def test_a_reply_is_counted_in_characters() -> None:
    said = submit(generation="\N{SNOWMAN}" * 3, seed="7")

    made = reply.reply(said, reply.read(said))

    assert (made.characters, made.seed, made.tool_calls) == (3, 7, 0)


def test_what_is_stored_is_read_back() -> None:
    said = submit(state="csam")

    back = reply.stored(reply.reply(said, reply.read(said)).stored)

    assert (back.text, back.gen_metadata) == ("text", [reply.CSAM])


def test_the_generation_is_text_on_faults_too() -> None:
    for raw in (b'{"id":"x"}', b'{"id":"x","state":"faulted"}'):
        with pytest.raises(BadRequest) as refusal:
            reply.read(submits.read(raw))
        assert refusal.value.extra["errors"] == {"generation": "Missing required key"}
    for wrong in (None, 1, ["x"]):
        with pytest.raises(BadRequest) as refusal:
            reply.read(submit(generation=wrong, state="faulted"))
        assert list(refusal.value.extra["errors"]) == ["generation"]


def test_metadata_has_one_shape_and_a_bound() -> None:
    reply.read(submit(gen_metadata=[CSAM | {"ref": "x" * 255}] * 50))

    table: dict[str, Any] = {
        "gen_metadata": [CSAM] * 51,
        "gen_metadata.0.type": [CSAM | {"type": "lora"}],
        "gen_metadata.1.value": [CSAM, CSAM | {"value": "other"}],
        "gen_metadata.0.ref": [CSAM | {"ref": "x" * 256}],
        "gen_metadata.0": ["csam"],
    }
    for path, metadata in table.items():
        with pytest.raises(BadRequest) as refusal:
            reply.read(submit(gen_metadata=metadata))
        assert list(refusal.value.extra["errors"]) == [path]
