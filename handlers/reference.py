"""The text model reference: which models are known, how large they are, which are not for minors.

A JSON object keyed by model name, of which two members are read: `parameters`, an absolute count as
an integer or a numeric string, and `nsfw` (text_path_reference.md, 9; spec, Known models).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from handlers.files import Unreadable, Watched

SHIPPED = Path(__file__).with_name("models.json")
BILLION = 1e9

_QUANTISATION = re.compile(
    r"""
    (?:
        [-._,]
        (?:
            (?:UD-)? I?Q[1-9] (?:_[0-9A-Z]{1,3}){0,4}    # Q4_K_M, Q8_0, IQ3_XXS, UD-Q4_K_XL
          | TQ[12]_0 | I1 | IMAT(?:RIX)? | GGUF | GGML   # llama.cpp's words beside it
          | GPTQ | AWQ | EXL[23] | HQQ | BNB | NF4 | MXFP4 | NVFP4
          | B?F16 | F32 | FP[48] | FP16 | FP32
          | W[0-9]{1,2}A[0-9]{1,2}
          | U?INT[2-9] | [2-9]-?BIT | 16-?BIT
          | [0-9]{1,3}G | [0-9]{1,2}(?:\.[0-9]{1,2})?BPW | H[68]
        )
        (?![0-9A-Za-z])
    )++
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""One or more suffixes that say how weights are stored. A size such as `-8B` is never one of them.

Possessive and without nesting: a name is passed over once.
"""


class Model(msgspec.Struct, frozen=True):
    """What the reference says of one model. Other members are not read."""

    parameters: Annotated[int, Meta(ge=1, le=10**15)]
    nsfw: bool = False


Models = Mapping[str, Model]


class Reference:
    """What is known of models, as the file stands now."""

    def __init__(self, models: Callable[[], Models]) -> None:
        """`models` gives what the file says now; asked on each call."""
        self._models = models

    def known(self, name: str) -> bool:
        """Whether the model is listed, by its own name or by the one without its suffixes."""
        return self._find(name) is not None

    def multiplier(self, name: str) -> float:
        """Billions of parameters; 1 for a model that is not listed."""
        model = self._find(name)
        return 1.0 if model is None else model.parameters / BILLION

    def nsfw(self, name: str) -> bool:
        """Whether the model is listed as not safe for work."""
        model = self._find(name)
        return model is not None and model.nsfw

    def _find(self, name: str) -> Model | None:
        match name.split("::"):
            case [model_name, _owner]:  # a private model: `model::owner#id`
                name = model_name
        models = self._models()
        return models.get(name) or models.get(without_quantisation(name))


def without_quantisation(name: str) -> str:
    """The name of a model without what says at its end how its weights are stored.

    `Model-12B.i1-Q5_K_M` and `Model-12B-GPTQ-Int4` are both `Model-12B`.
    """
    for suffix in _QUANTISATION.finditer(name):
        if suffix.end() == len(name):
            return name[: suffix.start()]
    return name


def parse(raw: bytes) -> Models:
    """Read the file's bytes; raise Unreadable, which names the entry at fault."""
    try:
        entries = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise Unreadable(f"expected a JSON object keyed by model name: {error}") from None
    return {name: _model(name, entry) for name, entry in entries.items()}


def _model(name: str, entry: msgspec.Raw) -> Model:
    try:
        return msgspec.json.decode(entry, type=Model, strict=False)
    except msgspec.DecodeError as error:
        raise Unreadable(f"model {name!r}: {error}") from None


def opened(path: str) -> Reference:
    """The reference in a file, read again when it changes; where `path` is empty, the one that
    ships. Raise Unreadable."""
    return Reference(Watched(Path(path) if path else SHIPPED, parse).current)
