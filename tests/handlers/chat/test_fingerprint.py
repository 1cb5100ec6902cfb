"""Which bodies ask for the same operation."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from handlers.chat import fingerprint, request
from tests.handlers.chat.bodies import (
    USER,
    answer,
    called,
    choice,
    function,
    image,
    raw,
    read,
    schema_format,
    shows,
)
from tests.spec import spec

WORKER = "6b7a4f1e-0c55-4f3a-9f6e-2f0d7c1b8a9e"
OTHER = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
F = function("f")


def of(**changed: Any) -> str:
    return fingerprint.of(read(**changed))


@spec("Operation key", 9)
def test_it_is_the_sha256_of_canonical_json() -> None:
    schema = {"type": "object", "b": 1, "a": 2.5, "é": "ü"}
    body = raw(
        model=...,
        models=["b", "a"],
        messages=[{"role": "developer", "content": "é"}, USER],
        tools=[function("f", parameters=schema)],
        top_p=0.5,
        seed=7,
        stop="END",
        horde={"only": [WORKER], "conformance": "best_effort"},
    )
    covered = {
        "messages": [{"role": "system", "content": "é"}, USER],
        "params": {
            "max_length": 512,
            "temperature": 1.0,
            "top_p": 0.5,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "seed": 7,
            "stop_sequence": ["END"],
        },
        "models": ["a", "b"],
        "horde": {
            "only": [WORKER],
            "ignore": None,
            "trusted_workers": False,
            "validated_backends": False,
            "slow_workers": True,
            "max_context_length": None,
            "context_fit": "truncate_oldest",
            "conformance": "best_effort",
            "openai_guards": False,
        },
        "chat_extras": {"tools": [function("f", parameters=schema)]},
    }

    canonical = json.dumps(covered, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    assert fingerprint.of(request.read(body)) == hashlib.sha256(canonical.encode()).hexdigest()


@spec("Operation key", 9)
@pytest.mark.parametrize(
    "changed",
    [
        {"model": "n"},
        {"model": ..., "models": ["m", "n"]},
        {"messages": [USER, USER]},
        {"messages": [USER | {"content": "y"}]},
        {"messages": [USER | {"name": "Ann"}]},
        {"messages": [shows({"type": "text", "text": "x"})]},
        {"messages": [shows(image())]},
        {"messages": [shows(image(detail="low"))]},
        {"messages": [called("1"), answer("1")]},
        {"max_tokens": 511},
        {"temperature": 0.5},
        {"top_p": 0.5},
        {"frequency_penalty": 1},
        {"presence_penalty": 1},
        {"seed": 0},
        {"reasoning_effort": "none"},
        {"stop": "x"},
        {"tools": [F]},
        {"tools": [function("g")]},
        {"tools": [F], "tool_choice": "none"},
        {"tools": [F], "tool_choice": choice("f")},
        {"tools": [F], "parallel_tool_calls": False},
        {"response_format": {"type": "json_object"}},
        {"response_format": schema_format({})},
        {"horde": {"only": [WORKER]}},
        {"horde": {"only": [OTHER]}},
        {"horde": {"ignore": [WORKER]}},
        {"horde": {"trusted_workers": True}},
        {"horde": {"validated_backends": True}},
        {"horde": {"slow_workers": False}},
        {"horde": {"max_context_length": 2048}},
        {"horde": {"context_fit": "grow"}},
        {"horde": {"conformance": "best_effort"}},
        {"horde": {"openai_guards": True}},
    ],
)
def test_what_changes_the_operation_changes_it(changed: dict[str, Any]) -> None:
    assert of(**changed) != of()


@spec("Operation key", 9)
def test_different_bodies_have_different_ones() -> None:
    formats = [{"type": "json_object"}, schema_format({}), schema_format({"type": "object"})]

    assert len({of(response_format=form) for form in formats}) == 3
    assert of(stop=["a", "b"]) != of(stop=["b", "a"])
    assert of(horde={"only": [WORKER]}) != of(horde={"ignore": [WORKER]})


@spec("Operation key", 10)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"max_tokens": 300}, {"max_completion_tokens": 300}),
        ({"max_tokens": 300}, {"max_tokens": 300, "max_completion_tokens": 300}),  # C-023
        ({}, {"max_tokens": 512}),
        ({}, {"temperature": 1, "top_p": 1.0, "frequency_penalty": 0, "presence_penalty": -0.0}),
        ({"temperature": 2}, {"temperature": 2.0}),
        ({"stop": "END"}, {"stop": ["END", "END"]}),  # C-021
        ({}, {"stop": []}),
        ({}, {"model": ..., "models": ["m"]}),
        ({"model": ..., "models": ["a", "b"]}, {"model": ..., "models": ["b", "a"]}),
        (
            {"messages": [{"role": "developer", "content": "x"}]},
            {"messages": [{"role": "system", "content": "x"}]},
        ),
        ({}, {"messages": [USER | {"name": None}]}),
        ({"messages": [called("1"), answer("1")]},) * 2,
        (
            {"messages": [called("1"), answer("1")]},
            {"messages": [called("1") | {"content": None}, answer("1")]},
        ),
        ({}, {"tools": [], "response_format": {"type": "text"}}),
        ({}, {"horde": {}}),
        (
            {},
            {
                "horde": {
                    "only": None,
                    "trusted_workers": False,
                    "slow_workers": True,
                    "context_fit": "truncate_oldest",
                    "conformance": "strict",
                    "openai_guards": False,
                }
            },
        ),
        ({"horde": {"only": [WORKER]}}, {"horde": {"only": [WORKER.upper(), WORKER]}}),
        (
            {"tools": [function("f", parameters={"a": 1, "b": 2})]},
            {"tools": [function("f", parameters={"b": 2, "a": 1})]},
        ),
    ],
)
def test_other_words_for_the_same_operation_change_nothing(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert of(**one) == of(**other)


@spec("Operation key", 11)
@pytest.mark.parametrize(
    "changed",
    [
        {"stream": True},
        {"stream_options": {"include_usage": True}},
        {"user": "u"},
        {"metadata": {"a": 1}},
        {"n": 1},
        {"horde": {"availability_mode": "fail_fast"}},
        {"horde": {"dry_run": True}},
        {"horde": {"include_reasoning": False}},
        {"horde": {"max_kudos": 5}},
        {"horde": {"operation_key": WORKER}},
    ],
)
def test_what_only_says_how_to_answer_changes_nothing(changed: dict[str, Any]) -> None:
    assert of(**changed) == of()
