"""Parameters of a URL's query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import falcon.asgi

from handlers.chat import documents
from handlers.errors import BadRequest


def text(req: falcon.asgi.Request, name: str) -> str | None:
    """A parameter as it was sent; None where it is absent or empty, the last of several."""
    value = req.get_param(name)
    return value or None


def choice(req: falcon.asgi.Request, name: str, among: Sequence[str], default: str) -> str:
    """One of a few words; raise BadRequest for any other."""
    value = text(req, name) or default
    if value not in among:
        _refuse(name, f"Expected one of {', '.join(among)}")
    return value


def number(req: falcon.asgi.Request, name: str) -> int | None:
    """A whole number; raise BadRequest for anything else."""
    value = text(req, name)
    if value is None:
        return None
    sign, digits = (-1, value[1:]) if value.startswith("-") else (1, value)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS):
        _refuse(name, "Expected `int`")
    return sign * int(digits)


_DIGITS = 18


def flag(req: falcon.asgi.Request, name: str) -> bool:
    """Whether it says true; raise BadRequest for what is neither true nor false."""
    value = (text(req, name) or "false").lower()
    if value not in ("true", "false", "1", "0"):
        _refuse(name, "Expected `bool`")
    return value in ("true", "1")


def _refuse(name: str, reason: str) -> NoReturn:
    raise BadRequest(documents.INVALID, errors={name: reason})
