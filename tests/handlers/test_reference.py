"""Which models are known, and what is known of them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from handlers import reference
from handlers.files import Unreadable, Watched
from handlers.reference import Model, Reference
from tests.spec import spec

LISTED = {
    "Model-12B": Model(12_000_000_000),
    "Bar-7B": Model(7_000_000_000),
    "Llama-3.1-8B": Model(8_030_000_000),
    "koboldcpp/Bar-7B": Model(7_000_000_000),
    "Spicy-8B": Model(8_000_000_000, nsfw=True),
    "Only-As-AWQ": Model(1_000_000_000),
}


@pytest.fixture
def models() -> Reference:
    return Reference(lambda: LISTED)


@spec("Known models", 1)
@pytest.mark.parametrize(
    "name",
    [
        "Model-12B",
        "koboldcpp/Bar-7B",
        "Model-12B::bob#1",
        "Model-12B-Q8_0::bob#1",
        "Only-As-AWQ",
        # text_path_reference.md 9: what it read well
        "Model-12B.i1-Q5_K_M",
        "Model-12B-IQ3_M",
        "Bar-7B-GPTQ-Int4",
        # and what it did not
        "Llama-3.1-8B-Q4_K_M",
        "Model-12B.Q4_K_M",
        "Bar-7B-Q8_0",
        "Bar-7B-AWQ",
        # other ways to say how weights are stored
        "Bar-7B-UD-Q4_K_XL",
        "Bar-7B-IQ2_XXS",
        "Bar-7B.Q4_0_4_4.gguf",
        "Bar-7B-q4_k_m",
        "Bar-7B-GPTQ-4bit-128g",
        "Bar-7B-4.0bpw-h6-exl2",
        "Bar-7B-w4a16",
        "Bar-7B-FP8",
        "Bar-7B-bf16",
    ],
)
def test_a_model_is_known_by_its_name_and_without_its_quantisation(
    models: Reference, name: str
) -> None:
    assert models.known(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "model-12b",
        "Model",
        "Model-12B-Instruct",
        "Model-12B-Instruct-Q4_K_M",
        "aphrodite/Model-12B",
        "Model-12B::bob::1",
        "Llama-3.1",
        "Llama",
        "-Q4_K_M",
        "Model-12B-Q4_K_M-x",
        "Model-12BQ4_K_M",
        "Model-12B-128k",
    ],
)
def test_any_other_name_is_unknown(models: Reference, name: str) -> None:
    assert not models.known(name)
    assert models.multiplier(name) == 1
    assert not models.nsfw(name)


def test_size_and_nsfw_are_those_of_the_listed_model(models: Reference) -> None:
    assert models.multiplier("Llama-3.1-8B-Q4_K_M") == 8.03
    assert models.nsfw("Spicy-8B.Q4_K_M::bob#1")
    assert not models.nsfw("Bar-7B")


@pytest.mark.parametrize(
    "piece", ["-Q4", "-Q4_K", "_Q4", "-4-bi", "-UD-Q", "-1.1", "-i1.", "-8.00bp", "Q", "::"]
)
def test_a_name_of_any_length_is_looked_up_in_one_pass(models: Reference, piece: str) -> None:
    name = piece * 100_000 + "x"
    started = time.process_time()

    assert not models.known(name)

    assert time.process_time() - started < 0.5


def test_parameters_are_a_number_or_its_digits_and_other_members_are_not_read() -> None:
    raw = json.dumps(
        {
            "a": {"parameters": 8030000000, "nsfw": True, "baseline": "llama", "tags": ["x"]},
            "b": {"parameters": "7000000000", "settings": {"parameters": -1}},
        }
    ).encode()

    assert reference.parse(raw) == {
        "a": Model(8_030_000_000, nsfw=True),
        "b": Model(7_000_000_000),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "keyed by model name: Input data was truncated"),
        ("[]", "keyed by model name: Expected `object`, got `array`"),
        ('{"a": 1}', "model 'a': Expected `object`, got `int`"),
        ('{"a": {}}', "model 'a': Object missing required field `parameters`"),
        ('{"a": {"parameters": 0}}', "model 'a': Expected `int` >= 1"),
        ('{"a": {"parameters": "7B"}}', "model 'a': Expected `int`, got `str`"),
        ('{"a": {"parameters": 1e400}}', "model 'a': Number out of range"),
        ('{"a": {"parameters": 1' + "0" * 30 + "}}", "model 'a': Expected `int`"),
        ('{"a": {"parameters": 1, "nsfw": "perhaps"}}', "model 'a': Expected `bool`"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_entry(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "models.json"
    path.write_text(text)

    with pytest.raises(Unreadable) as refused:
        reference.opened(str(path))

    assert str(refused.value).startswith(f"{path}: ")
    assert reason in str(refused.value)


def test_a_changed_file_is_in_force_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text('{"a": {"parameters": 1000000000}}')
    seconds = iter(range(10))
    watched = Watched(path, reference.parse, clock=lambda: next(seconds), start=lambda work: work())
    models = Reference(watched.current)
    path.write_text('{"b": {"parameters": 2000000000}}')

    assert models.known("b")

    assert not models.known("a")
    assert models.multiplier("b") == 2


@spec("Known models", 1)
def test_a_reference_ships_with_chat_models_one_of_them_nsfw() -> None:
    models = reference.opened("")

    assert models.multiplier("Llama-3.1-8B-Instruct-Q4_K_M") == pytest.approx(8.03, abs=0.001)
    assert models.multiplier("Llama-3.3-70B-Instruct") == pytest.approx(70.55, abs=0.01)
    assert models.nsfw("Llama-3-Lumimaid-8B-v0.1")
    assert not models.nsfw("Llama-3.1-8B-Instruct")


def test_every_model_that_ships_is_found_under_its_quantised_name_too() -> None:
    """None of them ends in what looks like a quantisation."""
    listed = reference.parse(reference.SHIPPED.read_bytes())

    assert [name for name in listed if reference.without_quantisation(name) != name] == []
