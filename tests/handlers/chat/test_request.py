"""What a chat body means, and what is refused: nothing is silently ignored."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from handlers.chat import payload, request
from handlers.chat.body import HordeOptions, Sampling
from handlers.errors import (
    BadRequest,
    ChatRequestConflict,
    ExcessiveStopSequence,
    NulByteInPayload,
    Refused,
    TooManyStopSequences,
    UnsupportedChatParameter,
)
from tests.handlers.chat.bodies import (
    USER,
    answer,
    called,
    image,
    raw,
    read,
    refusal,
    refused_at,
    shows,
    with_text,
)
from tests.spec import spec

WORKER = "6b7a4f1e-0c55-4f3a-9f6e-2f0d7c1b8a9e"
OTHER = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"


def sent(**changed: Any) -> dict[str, Any]:
    """The sampling values that a body sends, by the names of the text params."""
    return dict(msgspec.to_builtins(read(**changed).sampling))


def stored(messages: list[Any]) -> list[Any]:
    return list(msgspec.json.decode(payload.messages(read(messages=messages).messages)))


def test_the_smallest_body() -> None:
    smallest = read()

    assert (smallest.models, smallest.models_key) == (("m",), "model")
    assert smallest.max_length == 512
    assert smallest.sampling == Sampling()
    assert msgspec.to_builtins(smallest.extras) == {}
    assert smallest.horde == HordeOptions()
    assert (smallest.stream, smallest.text_bytes, smallest.images) == (False, 1, 0)


def test_null_is_the_same_as_not_sent() -> None:
    keys = (
        *("models", "max_tokens", "max_completion_tokens", "temperature", "top_p"),
        *("frequency_penalty", "presence_penalty", "seed", "reasoning_effort", "stop", "n"),
        *("stream", "stream_options", "user", "metadata", "tools", "tool_choice"),
        *("parallel_tool_calls", "response_format", "horde"),
    )

    assert read(**dict.fromkeys(keys)) == read()
    assert read(model=None, models=["m"]) == read(model=..., models=["m"])


# models


@spec("Request body", 1)
@spec("Refused keys and values", 9, 10)
def test_exactly_one_of_model_and_models_is_sent() -> None:
    assert read(model="a").models == ("a",)
    assert refused_at(BadRequest, raw(model=...))[0] == "model"
    assert refused_at(BadRequest, raw(model=None, models=None))[0] == "model"
    assert refused_at(ChatRequestConflict, raw(models=["m"])) == (
        "models",
        "Only one of 'model' and 'models' may be sent.",
    )


@spec("Request body", 2)
@spec("Refused keys and values", 10)
def test_models_are_one_to_five_each_listed_once() -> None:
    several = read(model=..., models=["b", "a", "c", "d", "e"])

    assert (several.models, several.models_key) == (("b", "a", "c", "d", "e"), "models")
    for models, path in (
        ([], "models"),
        (["a", ""], "models[1]"),
        (["a", "b", "a"], "models[2]"),
        (["a", "b", "c", "d", "e", "f"], "models"),
        (["a", None], "models[1]"),
        ("a", "models"),
    ):
        assert refused_at(BadRequest, raw(model=..., models=models))[0] == path
    for model in ("", "m" * 256, 1):
        assert refused_at(BadRequest, raw(model=model))[0] == "model"


# messages


@spec("Request body", 3, 16)
def test_messages_of_five_roles_as_strings_and_as_parts() -> None:
    text = {"type": "text", "text": "a"}
    sent = [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": [text, text]},
        {"role": "user", "content": [text, image()]},
        called("1"),
        answer("1", [text]),
        {"role": "assistant", "content": [text]},
        {"role": "user", "content": []},
    ]

    assert [message["role"] for message in stored(sent)] == [
        *("system", "system", "user", "assistant", "tool", "assistant", "user")
    ]
    assert stored(sent)[2]["content"] == [text, image()]


@spec("Request body", 17, 18)
def test_developer_is_system_and_names_stay() -> None:
    sent = [
        {"role": "developer", "content": "be kind", "name": "dev"},
        {"role": "system", "content": "s", "name": "sys"},
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": None},
        {"role": "assistant", "content": ""},
        USER | {"name": "Ann"},
    ]

    assert stored(sent) == [
        {"role": "system", "content": "be kind", "name": "dev"},
        {"role": "system", "content": "s", "name": "sys"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": ""},
        USER | {"name": "Ann"},
    ]


@spec("Request body", 3, 16)
@spec("Refused keys and values", 10)
@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": 1, "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([USER | {"content": None}], "messages[0].content"),
        ([USER | {"content": 1}], "messages[0].content"),
        ([shows("a")], "messages[0].content[0]"),
        ([shows({"text": "a"})], "messages[0].content[0].type"),
        ([shows({"type": 1})], "messages[0].content[0].type"),
        ([shows({"type": "text"})], "messages[0].content[0].text"),
        ([shows({"type": "text", "text": None})], "messages[0].content[0].text"),
        ([shows({"type": "image_url"})], "messages[0].content[0].image_url"),
        ([shows(image(detail="best"))], "messages[0].content[0].image_url.detail"),
        ([USER | {"name": "n" * 257}], "messages[0].name"),
        ([USER | {"name": 1}], "messages[0].name"),
        ([{"role": "system", "content": None}], "messages[0].content"),
    ],
)
def test_messages_of_a_wrong_form_are_refused_by_their_path(messages: Any, path: str) -> None:
    assert refused_at(BadRequest, raw(messages=messages))[0] == path


def test_messages_are_required() -> None:
    assert refused_at(BadRequest, raw(messages=...))[0] == "messages"
    assert refused_at(BadRequest, raw(messages=None))[0] == "messages"


# sizes


@spec("Refused keys and values", 7)
def test_1024_messages_are_the_most() -> None:
    assert len(read(messages=[USER] * 1024).messages) == 1024
    path, sentence = refused_at(UnsupportedChatParameter, raw(messages=[USER] * 1025))
    assert (path, "1024" in sentence, "1025" in sentence) == ("messages", True, True)


@spec("Refused keys and values", 7)
def test_one_mebibyte_is_the_most_of_all_text_together() -> None:
    history = [called("1"), answer("1", [{"type": "text", "text": "é"}]), USER]
    history[0]["tool_calls"][0]["function"] = {"name": "ü", "arguments": "x" * 100}
    left = 1_048_576 - 2 - 2 - 100 - 1
    fits = [*history, USER | {"content": "é" * (left // 2) + "x" * (left % 2)}]

    assert read(messages=fits).text_bytes == 1_048_576
    path, _ = refused_at(UnsupportedChatParameter, raw(messages=[*fits, USER]))
    assert path == "messages"


def test_limits_on_messages_and_text_are_settings() -> None:
    request.read(raw(messages=[USER, USER]), max_messages=2, max_text_bytes=2)
    for limits in ({"max_messages": 1}, {"max_text_bytes": 1}):
        with pytest.raises(UnsupportedChatParameter):
            request.read(raw(messages=[USER, USER]), **limits)


# numbers and words


@spec("Request body", 4, 19)
@spec("Refused keys and values", 9)
def test_both_token_limits_name_one_length() -> None:
    """C-023."""
    both = read(max_tokens=512, max_completion_tokens=512)

    assert both == read(max_completion_tokens=512) == read(max_tokens=512)
    for key in ("max_tokens", "max_completion_tokens"):
        assert [read(**{key: length}).max_length for length in (16, 16384)] == [16, 16384]
        for wrong in (15, 16385, 0, -1, 16.5, 16.0, "16", True, [16]):
            assert refused_at(BadRequest, raw(**{key: wrong}))[0] == key
    refusal(ChatRequestConflict, raw(max_tokens=512, max_completion_tokens=1024))


@spec("Request body", 5, 6, 19)
@pytest.mark.parametrize(
    ("key", "least", "most"),
    [
        ("temperature", 0, 5),
        ("top_p", 0.001, 1),
        ("frequency_penalty", -2, 2),
        ("presence_penalty", -2, 2),
    ],
)
def test_sampling_values_are_kept_within_their_range_and_never_clamped(
    key: str, least: float, most: float
) -> None:
    for value in (least, most, (least + most) / 2):
        assert sent(**{key: value}) == {key: value}
    for value in (least - 0.01, most + 0.01, "1", True, [1], 10**400):
        assert refused_at(BadRequest, raw(**{key: value}))[0] == key


@spec("Request body", 7)
def test_a_seed_is_a_64_bit_integer() -> None:
    for seed in (0, -1, 2**63 - 1, -(2**63)):
        assert sent(seed=seed) == {"seed": seed}
    for seed in (2**63, 1.5, "1", True):
        assert refused_at(BadRequest, raw(seed=seed))[0] == "seed"


@spec("Request body", 8)
def test_reasoning_effort_is_one_of_six_words() -> None:
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        assert sent(reasoning_effort=effort) == {"reasoning_effort": effort}
    for effort in ("max", "", "None", 1, True, ["low"]):
        assert refused_at(BadRequest, raw(reasoning_effort=effort))[0] == "reasoning_effort"


@spec("Request body", 9)
@pytest.mark.parametrize(
    ("stop", "kept"),
    [("END", ["END"]), (["END"], ["END"]), (["a", "b", "a"], ["a", "b"]), ([], None), (None, None)],
)
def test_stop_is_a_list_without_repeats(stop: Any, kept: Any) -> None:
    """C-021."""
    assert sent(stop=stop).get("stop_sequence") == kept


@spec("Request body", 9)
def test_a_stop_that_would_stop_at_once_is_refused() -> None:
    """C-021."""
    for stop, path in (
        ("", "stop"),
        ([""], "stop[0]"),
        (["a", ""], "stop[1]"),
        ([1], "stop[0]"),
        ({}, "stop"),
    ):
        assert refused_at(BadRequest, raw(stop=stop))[0] == path


@spec("Request body", 9)
def test_stops_are_bounded_by_a_check_of_its_own() -> None:
    request.check_params(read(stop=[str(n) for n in range(128)] + ["0"]), 80)
    request.check_params(read(stop="a" * 2000), 80)
    request.check_params(read(), 80)
    with pytest.raises(TooManyStopSequences):
        request.check_params(read(stop=[str(n) for n in range(129)]), 80)
    with pytest.raises(ExcessiveStopSequence):
        request.check_params(read(stop=["a" * 1000, "b" * 1001]), 80)


@spec("Request body", 19)
@spec("horde object", 5)
def test_a_context_below_that_of_any_text_request_is_refused_once_it_is_sized() -> None:
    """The option itself takes any positive number: it may grow."""
    small = read(horde={"max_context_length": 1})

    with pytest.raises(BadRequest) as refused:
        request.check_params(small, 79)

    assert list(refused.value.extra["errors"]) == ["horde.max_context_length"]
    request.check_params(small, 80)


@spec("Request body", 10)
@spec("Refused keys and values", 6)
def test_n_is_only_one() -> None:
    """C-025."""
    assert read(n=1) == read()
    for n in (2, 0, -1):
        path, sentence = refused_at(UnsupportedChatParameter, raw(n=n))
        assert (path, f"n={n}" in sentence) == ("n", True)
    for n in ("1", 1.0, True, [1], 10**30):
        assert refused_at(BadRequest, raw(n=n))[0] == "n"


@spec("Request body", 11)
def test_stream_is_a_boolean() -> None:
    assert read(stream=True).stream
    assert not read(stream=False).stream
    assert refused_at(BadRequest, raw(stream=1))[0] == "stream"


@spec("Request body", 12)
def test_what_is_accepted_and_not_applied_changes_nothing() -> None:
    options = {"include_usage": True, "anything": [1]}

    assert read(stream_options=options, user="u", metadata={"a": {"b": 1}}) == read()
    for wrong in ({"stream_options": True}, {"user": 1}, {"metadata": "m"}):
        assert refused_at(BadRequest, raw(**wrong))[0] == next(iter(wrong))


# the horde object


@spec("Request body", 15)
@spec("horde object", 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
def test_options_of_horde_are_kept_as_sent() -> None:
    options: dict[str, Any] = {
        "trusted_workers": True,
        "validated_backends": True,
        "slow_workers": False,
        "max_context_length": 4096,
        "context_fit": "reject",
        "conformance": "best_effort",
        "openai_guards": True,
        "include_reasoning": False,
        "availability_mode": "fail_fast",
        "max_kudos": 10**30,
        "dry_run": True,
    }

    assert msgspec.to_builtins(read(horde=options).horde) == options | {
        "only": None,
        "ignore": None,
        "operation_key": None,
    }
    assert read(horde={}).horde == HordeOptions()


@spec("horde object", 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
@spec("Refused keys and values", 10)
@pytest.mark.parametrize(
    ("options", "path"),
    [
        ([], "horde"),
        ({"trusted_workers": 1}, "horde.trusted_workers"),
        ({"validated_backends": "true"}, "horde.validated_backends"),
        ({"slow_workers": None}, "horde.slow_workers"),
        ({"max_context_length": 0}, "horde.max_context_length"),
        ({"max_context_length": 1_048_577}, "horde.max_context_length"),
        ({"max_context_length": 2048.5}, "horde.max_context_length"),
        ({"context_fit": "ignore"}, "horde.context_fit"),
        ({"context_fit": ""}, "horde.context_fit"),
        ({"conformance": "loose"}, "horde.conformance"),
        ({"openai_guards": 0}, "horde.openai_guards"),
        ({"include_reasoning": "no"}, "horde.include_reasoning"),
        ({"availability_mode": "never"}, "horde.availability_mode"),
        ({"max_kudos": 0}, "horde.max_kudos"),
        ({"max_kudos": 1.5}, "horde.max_kudos"),
        ({"dry_run": "yes"}, "horde.dry_run"),
    ],
)
def test_options_of_a_wrong_form_are_refused_by_their_path(options: Any, path: str) -> None:
    assert refused_at(BadRequest, raw(horde=options))[0] == path


@spec("horde object", 1, 2)
@spec("Refused keys and values", 9, 10)
@pytest.mark.parametrize("key", ["only", "ignore"])
def test_workers_are_named_by_ids_in_one_spelling(key: str) -> None:
    spelled = [WORKER.upper(), OTHER.replace("-", ""), WORKER]

    assert getattr(read(horde={key: spelled}).horde, key) == [WORKER, OTHER]
    for wrong, path in (
        ([], f"horde.{key}"),
        (WORKER, f"horde.{key}"),
        ([WORKER] * 101, f"horde.{key}"),
        ([WORKER, "w"], f"horde.{key}[1]"),
        ([WORKER, f"{{{WORKER}}}"], f"horde.{key}[1]"),
        ([1], f"horde.{key}[0]"),
    ):
        assert refused_at(BadRequest, raw(horde={key: wrong}))[0] == path


@spec("horde object", 2)
@spec("Refused keys and values", 9)
def test_only_and_ignore_contradict_each_other() -> None:
    both = {"only": [WORKER], "ignore": [OTHER]}

    assert refused_at(ChatRequestConflict, raw(horde=both))[0] == "horde.ignore"


@spec("horde object", 13)
@spec("Refused keys and values", 10)
def test_an_operation_key_is_a_uuid_in_one_spelling() -> None:
    assert read(horde={"operation_key": WORKER.upper()}).horde.operation_key == WORKER
    for wrong in ("", "k", WORKER[:-1], f"urn:uuid:{WORKER}", 1, [WORKER]):
        path, _ = refused_at(BadRequest, raw(horde={"operation_key": wrong}))
        assert path == "horde.operation_key"


@spec("horde object", 8)
def test_openais_guard_wants_the_word_json_only_where_asked() -> None:
    asked = {"response_format": {"type": "json_object"}, "horde": {"openai_guards": True}}
    part = {"type": "text", "text": "as jSoN, please"}

    read(response_format={"type": "json_object"})
    read(**asked, messages=[USER, USER | {"content": [part]}])
    read(**asked, messages=[{"role": "system", "content": "JSON"}, USER])
    read(horde={"openai_guards": True})
    path, sentence = refused_at(ChatRequestConflict, raw(**asked))
    assert path == "messages"
    assert sentence == (
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type "
        "'json_object'."
    )


# keys


@spec("Refused keys and values", 1, 2, 3, 4, 5)
@spec("horde object", 14)
@pytest.mark.parametrize(
    ("changed", "path", "named"),
    [
        ({"logit_bias": {}}, "logit_bias", "logit_bias"),  # C-015
        ({"logprobs": None}, "logprobs", "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs", "top_logprobs"),
        ({"modalities": ["text"]}, "modalities", "modalities"),
        ({"audio": {}}, "audio", "audio"),
        ({"prediction": {}}, "prediction", "prediction"),
        ({"prompt": "x"}, "prompt", "prompt"),
        ({"horde": {"models": []}}, "horde.models", "horde.models"),
        ({"horde": {"webhook": "https://x"}}, "horde.webhook", "horde.webhook"),
        ({"horde": {"style": "s"}}, "horde.style", "horde.style"),
        ({"horde": {"allow_downgrade": True}}, "horde.allow_downgrade", "horde.allow_downgrade"),
        ({"messages": [USER | {"tool_calls": []}]}, *["messages[0].tool_calls"] * 2),
        ({"messages": [USER, USER | {"refusal": None}]}, *["messages[1].refusal"] * 2),
        ({"messages": [called("1"), answer("1") | {"name": "f"}]}, *["messages[1].name"] * 2),
        (
            {"messages": [{"role": "function", "content": ""}]},
            "messages[0].role",
            "messages[0].role=function",
        ),
        (
            {"messages": [{"role": "it's", "content": ""}]},
            "messages[0].role",
            "messages[0].role=it's",
        ),
        (
            {"messages": [{"role": "r" * 500, "content": ""}]},
            "messages[0].role",
            f"messages[0].role={'r' * 80}...",
        ),
        (
            {"messages": [shows({"type": "text", "text": ""}, {"type": "input_audio"})]},
            "messages[0].content[1].type",
            "messages[0].content[1].type=input_audio",
        ),
        (
            {"messages": [shows(image()) | {"role": "assistant"}]},
            "messages[0].content[0].type",
            "messages[0].content[0].type=image_url",
        ),
        (
            {"messages": [shows({"type": "text", "text": "", "cache": 1})]},
            *["messages[0].content[0].cache"] * 2,
        ),
        (
            {"messages": [shows(image(width=1))]},
            *["messages[0].content[0].image_url.width"] * 2,
        ),
    ],
)
def test_what_is_not_supported_is_named(changed: dict[str, Any], path: str, named: str) -> None:
    told, sentence = refused_at(UnsupportedChatParameter, raw(**changed))

    assert told == path
    assert sentence.startswith(f"{named} ")


def test_an_image_of_another_role_is_told_where_images_are_taken() -> None:
    body = raw(messages=[shows(image()) | {"role": "system"}])

    _, sentence = refused_at(UnsupportedChatParameter, body)

    at = "messages[0].content[0].type=image_url"
    assert sentence == f"{at} is supported in user messages only."


@spec("Refused keys and values", 1)
def test_what_a_popular_client_sends_is_refused_for_its_logit_bias() -> None:
    """C-015: an empty logit_bias asks for nothing, but the contract refuses the key."""
    body = raw(
        temperature=1,
        frequency_penalty=0,
        presence_penalty=0,
        top_p=1,
        max_tokens=300,
        stream=True,
        logit_bias={},
    )

    assert refused_at(UnsupportedChatParameter, body)[0] == "logit_bias"


@spec("Refused keys and values", 2)
def test_a_reply_of_openais_sdk_is_no_message_of_the_native_route() -> None:
    """C-017."""
    reply = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [],
    }
    spoken = {"role": "assistant", "content": "hi", "tool_calls": []}

    told = refused_at(UnsupportedChatParameter, raw(messages=[USER, reply]))
    assert told[0] == "messages[1].refusal"
    assert refused_at(BadRequest, raw(messages=[USER, spoken]))[0] == "messages[1].tool_calls"


# JSON


@pytest.mark.parametrize(
    "text",
    [
        ',"temperature":NaN',
        ',"top_p":Infinity',
        ',"temperature":1e999',
        ',"frequency_penalty":-1e999',
        ',"metadata":{"a":NaN}',
        ',"metadata":{"a":1e999}',
        ',"max_tokens":' + "9" * 5000,
        ',"metadata":{"a":' + "9" * 5000 + "}",
        ',"stop":"\\ud83d"',
        ',"stop":"\\ud83d rest"',
        ',"stop":"\\ude00"',
        ',"horde":{"operation_key":"' + WORKER + '"},"metadata":{"\\ud83d":1}',
        ',"tools":[{"type":"function","function":{"name":"f","description":"hi \\ud83d"}}]',
        ',"stop":"a\tb"',
        ',"model":"twice"',
        ',"mod\\u0065l":"twice"',
        ',"max_tokens":16,"max_tokens":16384',
        ',"horde":{"max_kudos":1,"max_kudos":100000}',
        ',"metadata":{"a":[{"b":1,"b":1}]}',
        ',"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1,"a":1}}}]',
        ',"metadata":' + "[" * 20_000 + "]" * 20_000,
        ',"stop":' + "[" * 1_000_000,
        ',"stop":' + '{"a":' * 10_000,
        "}",
        "",
    ],
)
def test_what_is_no_clean_json_is_refused(text: str) -> None:
    """C-001, C-003, C-007, C-009."""
    body = with_text(text) if text else b""
    started = time.process_time()

    refusal(BadRequest, body)

    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    "body",
    [b"[]", b"null", b'"x"', b"1", b"{}", b"\xef\xbb\xbf{}", b"\xff", b'{"model":"\xed\xa0\xbd"}'],
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    refusal(BadRequest, body)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (',"stop":"\\ud83d"', "stop"),
        (',"metadata":{"\\ud83d":1}', "metadata.\\ud83d"),
        (',"tools":[{"function":{"description":"\\ud83d"}}]', "tools[0].function.description"),
        (',"horde":{"operation_key":"' + WORKER + '"},"user":"a\\ud83db"', "user"),
    ],
)
def test_half_an_emoji_is_refused_by_its_path(text: str, path: str) -> None:
    """C-003."""
    assert refused_at(BadRequest, with_text(text))[0] == path


def test_a_number_out_of_range_is_refused_by_its_path() -> None:
    assert refused_at(BadRequest, with_text(',"temperature":1e999'))[0] == "temperature"


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"model": "m\0"}, "model"),
        ({"stop": ["a", "b\0"]}, "stop[1]"),
        ({"messages": [USER, USER | {"name": "\0"}]}, "messages[1].name"),
        ({"messages": [shows({"type": "text", "text": "a\0b"})]}, "messages[0].content[0].text"),
        ({"metadata": {"k\0": 1}}, "metadata.k\\u0000"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"properties": {"k\0": {}}}},
                    }
                ]
            },
            "tools[0].function.parameters.properties.k\\u0000",
        ),
    ],
)
def test_nul_is_refused_by_its_path(changed: dict[str, Any], path: str) -> None:
    """C-005."""
    assert refused_at(NulByteInPayload, raw(**changed))[0] == path


def test_a_backslash_before_u0000_is_no_nul() -> None:
    assert sent(stop="\\u0000") == {"stop_sequence": ["\\u0000"]}


@pytest.mark.parametrize(
    "hostile",
    [
        b'{"a":' + b"[" * 100 + b'"' + b'\\"' * 1_900_000,
        b'{"a":[' + b"[]," * 3_000_000,
        b'{"a":[' + b'"",' * 3_000_000,
        b'{"metadata":{"a":[' + b"0," * 3_000_000 + b"0]}}",
        b'{"model":"m","messages":[' + b'{"role":"user","content":""},' * 300_000 + b"{}]}",
    ],
    ids=["unterminated", "containers", "strings", "numbers", "messages"],
)
def test_a_hostile_body_is_refused_in_linear_time(hostile: bytes) -> None:
    started = time.process_time()

    with pytest.raises(Refused):
        request.read(hostile)

    assert time.process_time() - started < 2


def test_what_is_repeated_of_a_body_is_cut() -> None:
    long = "k" * 100_000
    for changed in (
        {long: 1},
        {"reasoning_effort": long},
        {"messages": [{"role": long, "content": ""}]},
        {"horde": {long: 1}},
    ):
        with pytest.raises(Refused) as refused:
            request.read(raw(**changed))

        assert len(refused.value.message) < 300
        assert len(str(refused.value.extra)) < 600


def test_the_cost_of_a_byte_does_not_grow_with_the_body() -> None:
    small, large = (
        raw(messages=[USER | {"content": "word: " * 100}] * count) for count in (10, 1000)
    )

    def seconds(body: bytes, times: int) -> float:
        started = time.process_time()
        for _ in range(times):
            request.read(body)
        return (time.process_time() - started) / times / len(body)

    assert seconds(large, 3) < 3 * seconds(small, 100)
