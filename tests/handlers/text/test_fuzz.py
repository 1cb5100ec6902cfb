"""Text bodies that may be anything: each is read or refused, at once, and nothing else happens."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.chat.context import SizedPrompt
from handlers.errors import Refused
from handlers.text import request, submission
from handlers.text.request import TextRequest
from tests.handlers.chat.test_fuzz import ANYTHING, MARK, SCRAPS, SECONDS, fuzzed, places

VALID: list[dict[str, Any]] = [
    {"prompt": "é"},
    {
        "prompt": "Once",
        "params": {
            "n": 20,
            "max_length": 512,
            "temperature": 0.5,
            "top_k": 3,
            "sampler_order": [6, 0, 1, 3, 4, 2, 5],
            "stop_sequence": ["a", ""],
            "singleline": True,
        },
        "models": ["a", "b"],
        "workers": ["5f0d7d4c-9c1c-4a57-8a8d-0123456789ab"],
        "worker_blacklist": True,
        "context_fit": "grow",
        "softprompt": "x",
        "extra_source_images": [{"image": "x"}],
    },
]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A valid body with up to three of its values changed, added or taken out."""
    body = copy.deepcopy(draw(st.sampled_from(VALID)))
    scraps: list[str] = []
    for _ in range(draw(st.integers(0, 3))):
        found = places(body)
        holder, key = draw(st.sampled_from(found)) if found else (body, "prompt")
        how = draw(st.sampled_from(["change", "drop", "add"]))
        if how == "drop" and found:
            del holder[key]
            continue
        if how == "add" and isinstance(holder, dict):
            key = draw(st.text(max_size=10))
        holder[key] = MARK.format(len(scraps))
        scraps.append(draw(SCRAPS | ANYTHING))
    text = json.dumps(body, ensure_ascii=draw(st.booleans()))
    for number, scrap in enumerate(scraps):
        text = text.replace(f'"{MARK.format(number)}"', scrap)
    return text.encode("utf-8", "surrogatepass")


def outcome(raw: bytes) -> TextRequest | Refused:
    """What becomes of a body. Any other exception is a bug."""
    try:
        asked = request.read(raw)
        request.check_params(asked.params)
    except Refused as refused:
        return refused
    return asked


def read_or_refused(raw: bytes) -> None:
    """What is read can be stored and told again; what is refused is told in UTF-8."""
    started = time.process_time()

    came = outcome(raw)

    if isinstance(came, Refused):
        assert len(came.message) < 1_000
        json.dumps([came.message, came.extra], ensure_ascii=False).encode()
    else:
        sized = SizedPrompt(came.params.max_context_length, 0, ())
        new = submission.new_request(came, came.prompt, sized, kudos=1, client_agent=b"x:1:y")
        content = {name: value.decode().encode() for name, value in new.content.items()}
        told = submission.stored_parameters(new.jobs, content["payload"], content["options"], None)
        assert (told.prompt, told.params) == (came.prompt, came.params)
    assert time.process_time() - started < SECONDS


@fuzzed(200)
@given(raw=bodies())
def test_any_body_is_read_or_refused(raw: bytes) -> None:
    read_or_refused(raw)


@pytest.mark.soak
@fuzzed(20_000)
@given(raw=bodies())
def test_very_many_bodies_are_read_or_refused(raw: bytes) -> None:
    read_or_refused(raw)
