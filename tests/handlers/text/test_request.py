"""What a text body means, and what is refused."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import msgspec
import pytest

from handlers.errors import (
    BadRequest,
    ExcessiveStopSequence,
    InvalidExtraSourceImages,
    MissingFullSamplerOrder,
    MissingPrompt,
    MoreThanMinExtraSourceImage,
    NulByteInPayload,
    OnlyServiceAccountProxy,
    Refused,
    RequiresTrust,
    TokenOverflow,
    TooManyExtraSourceImages,
    TooManyStopSequences,
    WorkerNotFound,
)
from handlers.text import payload, request
from handlers.text.request import TextRequest
from tests.spec import spec

WORKER = "5f0d7d4c-9c1c-4a57-8a8d-0123456789ab"


def read(**changed: Any) -> TextRequest:
    return request.read(json.dumps({"prompt": "Once upon a time"} | changed).encode())


def params(**sent: Any) -> TextRequest:
    return read(params=sent)


def job(asked: TextRequest) -> dict[str, Any]:
    """What a worker gets."""
    return dict(json.loads(payload.stored(asked.prompt, asked.params)))


@spec("Text requests", 2)
def test_a_prompt_alone_gets_every_default() -> None:
    asked = read()

    assert job(asked) == {
        "prompt": "Once upon a time",
        "n": 1,
        "max_length": 80,
        "max_context_length": 2048,
        "min_p": 0.0,
        "smoothing_factor": 0.0,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
    }
    assert asked == TextRequest(
        prompt="Once upon a time",
        params=payload.Params(),
        models=(),
        workers=(),
        worker_blacklist=False,
        trusted_workers=False,
        validated_backends=False,
        slow_workers=True,
        context_fit="ignore",
        dry_run=False,
        allow_downgrade=False,
        disable_batching=False,
        proxied=False,
        images=0,
    )


@spec("Text requests", 2)
def test_every_param_goes_to_the_worker_as_sent() -> None:
    sent = {
        "max_length": 16,
        "max_context_length": 80,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "top_a": 0.1,
        "tfs": 0.2,
        "typical": 0.3,
        "min_p": 0.05,
        "rep_pen": 1.1,
        "rep_pen_range": 320,
        "rep_pen_slope": 0.7,
        "smoothing_factor": 0.5,
        "dynatemp_range": 0.4,
        "dynatemp_exponent": 1.5,
        "sampler_order": [6, 0, 1, 3, 4, 2, 5],
        "stop_sequence": ["\n", "END"],
        "frmtadsnsp": True,
        "frmtrmblln": False,
        "frmtrmspch": True,
        "frmttriminc": False,
        "singleline": True,
        "use_default_badwordsids": False,
    }

    assert job(params(**sent, n=3)) == {"prompt": "Once upon a time", "n": 1} | sent


RANGES: list[tuple[str, float, float, float]] = [
    ("n", 1, 20, 1),
    ("max_length", 16, 16384, 1),
    ("max_context_length", 80, 1_048_576, 1),
    ("temperature", 0, 5, 0.01),
    ("top_p", 0.001, 1, 0.0005),
    ("top_k", 0, 200, 1),
    ("top_a", 0, 1, 0.01),
    ("tfs", 0, 1, 0.01),
    ("typical", 0, 1, 0.01),
    ("min_p", 0, 1, 0.01),
    ("rep_pen", 1, 3, 0.01),
    ("rep_pen_range", 0, 4096, 1),
    ("rep_pen_slope", 0, 10, 0.01),
    ("smoothing_factor", 0, 10, 0.01),
    ("dynatemp_range", 0, 5, 0.01),
    ("dynatemp_exponent", 0, 5, 0.01),
]


@spec("Text requests", 2, 9)
@pytest.mark.parametrize(("key", "least", "most", "step"), RANGES)
def test_params_have_ranges(key: str, least: float, most: float, step: float) -> None:
    for value in (least, most):
        assert getattr(params(**{key: value}).params, key) == value

    for value in (least - step, most + step, "1", None, True, [], {}):
        with pytest.raises(BadRequest) as refusal:
            params(**{key: value})
        assert list(refusal.value.extra["errors"]) == [f"params.{key}"]


@spec("Text requests", 1, 2, 6, 7, 8)
def test_types_are_checked_and_null_is_none() -> None:
    wrong: dict[str, list[Any]] = {
        "prompt": [None, 1, ["x"]],
        "params": [None, [], "x"],
        "models": [None, "m", {}],
        "workers": [None, WORKER],
        "worker_blacklist": [None, 0, "false"],
        "trusted_workers": [None, 1],
        "validated_backends": [None, "yes"],
        "slow_workers": [None, 0],
        "extra_slow_workers": [None, 0],
        "nsfw": [None, 0],
        "dry_run": [None, 1],
        "allow_downgrade": [None, 1],
        "disable_batching": [None, 1],
        "context_fit": [None, "truncate_oldest", 1],
        "softprompt": [None, "", 1],
        "proxied_account": [None, 1, "x" * 256],
        "webhook": [None, 1, "https://" + "x" * 1024],
        "extra_source_images": [None, "x", {}],
        "style": [None, "xx", "x" * 1025],
    }
    for key, values in wrong.items():
        for value in values:
            with pytest.raises(BadRequest) as refusal:
                read(**{key: value})
            assert list(refusal.value.extra["errors"]) == [key]


def test_paths_are_dotted() -> None:
    for path, changed in {
        "models.1": {"models": ["m", 2]},
        "models.0": {"models": ["m" * 256]},
        "workers.0": {"workers": [1]},
        "params.stop_sequence.1": {"params": {"stop_sequence": ["a", None]}},
        "params.sampler_order.0": {"params": {"sampler_order": ["a"]}},
    }.items():
        with pytest.raises(BadRequest) as refusal:
            read(**changed)
        assert list(refusal.value.extra["errors"]) == [path]

    with pytest.raises(BadRequest) as half:
        request.read(b'{"prompt":"x","models":["m","\\ud83d"]}')
    assert list(half.value.extra["errors"]) == ["models.1"]
    with pytest.raises(BadRequest) as whole:
        request.read(b"[]")
    assert list(whole.value.extra["errors"]) == [""]


@spec("Text requests", 1)
def test_a_prompt_is_required() -> None:
    with pytest.raises(BadRequest) as refusal:
        request.read(b"{}")

    assert refusal.value.extra["errors"] == {"prompt": "Missing required key"}
    with pytest.raises(MissingPrompt):
        request.check_prompt(read(prompt=""))
    request.check_prompt(read(prompt=" "))


def test_unknown_keys_are_ignored_at_every_level() -> None:
    asked = read(unknown={"deep": [1]}, params={"seed": 1, "top_k": 3})

    assert job(asked)["top_k"] == 3
    assert "seed" not in job(asked)


@spec("Text requests", 6)
def test_models_are_kept_once_each() -> None:
    assert read(models=["b", "a", "b"]).models == ("b", "a")
    for models in ([""], [str(n) for n in range(201)]):
        with pytest.raises(BadRequest):
            read(models=models)
    assert len(read(models=[str(n) for n in range(200)] * 2).models) == 200


@spec("Text requests", 7)
def test_listed_workers_have_to_exist_and_the_first_five_count() -> None:
    many = [WORKER[:-1] + digit for digit in "0123456"]
    asked = read(workers=[*many, many[0].upper()])

    assert asked.workers == tuple(many)
    assert (asked.only, asked.ignore) == (tuple(many[:5]), ())
    refused = read(workers=many, worker_blacklist=True)
    assert (refused.only, refused.ignore) == ((), tuple(many[:5]))
    request.check_workers(asked.workers, set(many))
    with pytest.raises(WorkerNotFound, match=many[6]):
        request.check_workers(asked.workers, set(many[:6]))
    with pytest.raises(BadRequest):
        read(workers=[WORKER] * 201)


@spec("Text requests", 11)
def test_several_jobs_without_batching_need_trust() -> None:
    several = read(disable_batching=True, params={"n": 2})

    with pytest.raises(RequiresTrust):
        request.check_batching(several, trusted=False)
    request.check_batching(several, trusted=True)
    request.check_batching(read(disable_batching=True), trusted=False)
    request.check_batching(params(n=2), trusted=False)


@spec("Text requests", 3)
def test_a_context_has_room_for_the_reply() -> None:
    request.check_params(params(max_length=2048).params)
    request.check_params(params(max_length=16, max_context_length=80).params)

    for sent in ({"max_length": 2049}, {"max_context_length": 80, "max_length": 81}):
        with pytest.raises(TokenOverflow):
            request.check_params(params(**sent).params)
    with pytest.raises(TokenOverflow):
        request.check_params(params(max_length=16384, max_context_length=16383).params)


@spec("Text requests", 4)
def test_a_sampler_order_has_seven_different_entries() -> None:
    request.check_params(params(sampler_order=[6, 0, 1, 3, 4, 2, 5]).params)

    for order in ([], [0, 1, 2, 3, 4, 5], [0] * 7):
        with pytest.raises(MissingFullSamplerOrder):
            request.check_params(params(sampler_order=order).params)
    for order in ([2**31], [-1], list(range(65))):
        with pytest.raises(BadRequest):
            params(sampler_order=order)


@spec("Text requests", 5)
def test_stop_sequences_are_counted_once_each() -> None:
    stops = [str(n) for n in range(128)]
    request.check_params(params(stop_sequence=stops * 2).params)
    request.check_params(params(stop_sequence=["s" * 2000] * 2).params)

    with pytest.raises(TooManyStopSequences):
        request.check_params(params(stop_sequence=[*stops, "more"]).params)
    with pytest.raises(ExcessiveStopSequence):
        request.check_params(params(stop_sequence=["s" * 2000, "t"]).params)


@spec("Text requests", 5)
def test_an_empty_stop_sequence_stops_nothing() -> None:
    assert params(stop_sequence=["", "a", "a"]).params.stop_sequence == ["a"]
    assert "stop_sequence" not in job(params(stop_sequence=[""]))


@spec("Text requests", 13)
def test_what_is_out_of_scope_is_refused_or_ignored() -> None:
    with pytest.raises(BadRequest, match="Styles"):
        read(style="a style")
    for url in ("https://example.org/hook", "nonsense", ""):
        with pytest.raises(BadRequest, match="Webhooks"):
            read(webhook=url)
    with pytest.raises(OnlyServiceAccountProxy):
        request.check_proxy(read(proxied_account="somebody"), service=False)
    request.check_proxy(read(proxied_account="somebody"), service=True)
    with pytest.raises(TooManyExtraSourceImages):
        request.check_image_count(read(extra_source_images=[{"image": "x"}] * 6), trusted=True)
    request.check_image_count(read(extra_source_images=[{"image": "x"}] * 5), trusted=True)
    with pytest.raises(MoreThanMinExtraSourceImage):
        request.check_image_count(read(extra_source_images=[{"image": "x"}] * 2), trusted=False)
    request.check_image_count(read(extra_source_images=["x"]), trusted=False)
    with pytest.raises(InvalidExtraSourceImages):
        request.check_images(read(extra_source_images=["x"]))

    plain = read()
    ignored = {"softprompt": "x", "nsfw": False, "extra_slow_workers": True}
    assert read(**ignored, extra_source_images=[]) == plain
    request.check_proxy(plain, service=False)
    request.check_image_count(plain, trusted=False)
    request.check_images(plain)


def test_nul_is_refused_where_it_would_be_stored() -> None:
    for path, changed in {
        "prompt": {"prompt": "a\0"},
        "models.0": {"models": ["m\0"]},
        "params.stop_sequence.1": {"params": {"stop_sequence": ["a", "\0"]}},
    }.items():
        with pytest.raises(NulByteInPayload, match=path) as refusal:
            read(**changed)
        assert list(refusal.value.extra["errors"]) == [path]

    read(unknown="\0")


def test_what_is_no_json_is_refused() -> None:
    for raw in (
        b"",
        b"{",
        b"\xff",
        b'{"prompt":"\\ud800"}',
        b'{"prompt":"x","params":{"temperature":NaN}}',
        b'{"prompt":"x","params":{"temperature":Infinity}}',
        b'{"prompt":"x","params":{"temperature":1e999}}',
        b'{"prompt":"x","params":{"n":1' + b"0" * 5000 + b"}}",
        b'{"prompt":"x","y":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ):
        with pytest.raises(BadRequest):
            request.read(raw)


def test_hostile_bodies_are_refused_in_no_time() -> None:
    bodies = (
        json.dumps({"prompt": "x", "models": ["m"] * 10**6}),
        json.dumps({"prompt": "x", "params": {"stop_sequence": [str(n) for n in range(10**5)]}}),
        json.dumps({"prompt": "\0" * 10**5}),
        json.dumps({"prompt": "x", "extra_source_images": [1] * 10**6}),
    )

    started = time.process_time()
    for body in bodies:
        with contextlib.suppress(Refused):
            request.check_params(request.read(body.encode()).params)
    assert time.process_time() - started < 2


def test_a_stored_payload_is_read_back() -> None:
    asked = params(top_k=7, stop_sequence=["a"])

    kept = payload.read(payload.stored(asked.prompt, asked.params))

    assert kept.prompt == asked.prompt
    assert msgspec.structs.asdict(kept).items() >= msgspec.structs.asdict(asked.params).items()
