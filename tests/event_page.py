"""docs/events.md: every event of the log, as the structs and the scripts have it.

What a field means stands once: beside it in `events/types`, or below, where a name means the same
in every event. `python -m tests.event_page` (`make docs`) writes the page; tests/test_event_page.py
holds it to the code.
"""

from __future__ import annotations

import ast
import inspect
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from events.base import Event
from events.types import EVENTS, accounts, requests, service, workers
from lua.scripts import HERE as SCRIPTS
from lua.scripts import read_header

PAGE = Path(__file__).parent.parent / "docs" / "events.md"

MARK = "## The events\n"
"""What stands behind it is generated."""

_INTRODUCTION = """
Ids are UUIDs as text, unless said otherwise; accounts are numbers. A field marked ˢ is added by the
script, which alone knows it at that moment. Events that an older build wrote may lack a field that
has a *default*. Amounts are integers: 10000 are one kudos.
"""

SECTIONS = {
    "Requests and generations": requests,
    "Workers": workers,
    "Accounts": accounts,
    "The service": service,
}

MEANINGS = {
    "request_id": "the request",
    "generation_id": "the generation: one hand-out of a job to a worker",
    "worker_id": "the worker",
    "worker_name": "what the worker is called",
    "user_id": "number of the account",
    "owner_id": "number of the worker's owner",
    "owners": "numbers of the workers' owners",
    "generations": "the generations",
    "shared_key": "the shared key",
    "data": "what scripts never read",
    "chat": "a chat request; otherwise a text request",
    "jobs": "how many it asks for",
    "stream": "its workers post what they generate while they do",
    "operation_key": "under which its client may repeat it; empty: none",
    "model": "name of the model",
    "max_context_length": "tokens",
    "burn": "what of the charge nobody gets",
    "done": "no job of the request will be handed out any more",
    "waiting": "jobs of the request that wait now",
    "finished": "replies that the request has now",
    "fault_code": "as of `faulted`",
    "name": "what it is called",
    "source": "partition of the log that holds what this follows from",
    "source_position": "position of the event there that it follows from, or the last of several",
    "trusted": "has this role",
    "moderator": "has this role",
    "flagged": "has this role",
    "amount": "so much",
    "recipient": "number of the account that gets it",
    "sender": "number of the account that gave it",
    "requests": "the requests",
    "transfer_id": "the transfer",
    "nsfw": "it takes such jobs",
    "chat_features": "what it declares to honour",
    "prompt_tokens": "of the prompt",
    "completion_tokens": "of the reply",
    "reasoning_tokens": "of the reasoning",
    "expiry_ms": "as in `shared-key-opened`",
    "max_text_tokens": "as in `shared-key-opened`",
    "max_image_pixels": "as in `shared-key-opened`",
    "max_image_steps": "as in `shared-key-opened`",
}
"""Of fields that mean the same wherever nothing else is said beside them."""

UNITS = {
    "10⁻⁴ kudos": (
        *("priority", "price", "escrow", "charge", "burn", "tax", "hold", "amount", "amounts"),
        *("kudos", "floor", "monthly_kudos", "escrows", "escrowed", "refunded", "refundable"),
        "reward",
    ),
    "ms": (
        "deadline_ms",
        "elapsed_ms",
        "uptime_ms",
        "rewarded_uptime_ms",
        "expiry_ms",
        "window_ms",
    ),
    "s": ("ttl", "job_ttl", "lease_cap", "holdoff"),
    "tokens": (
        *("max_length", "max_context_length", "prompt_tokens", "completion_tokens", "from"),
        *("reasoning_tokens", "chat_max_context_length", "chat_max_length", "max_text_tokens"),
        *("over_capacity", "to"),
    ),
    "10⁻³ tokens/s": ("believable", "samples", "speed"),
    "bytes": ("prompt_bytes",),
    "characters": ("characters", "prompt_characters"),
    "10⁻³": ("usage_multiplier",),
    "pixels": ("max_image_pixels",),
}

UNIT_OF = {name: unit for unit, names in UNITS.items() for name in names}


def _flat(text: str) -> str:
    return " ".join(text.split())


class Field(NamedTuple):
    """A field, as the page tells it."""

    name: str
    type: str
    default: str
    """As JSON; empty where every event has it."""
    by_script: bool
    said: str
    """What stands beside it in the code, or empty."""
    inner: type[msgspec.Struct] | None

    @property
    def meaning(self) -> str:
        """Raise KeyError where nobody says."""
        return self.said or MEANINGS[self.name]


def word(kind: type[Event]) -> str:
    """The stored word."""
    return str(kind.__struct_config__.tag)


def scripts() -> dict[str, list[str]]:
    """Which scripts append an event, by its word."""
    found: dict[str, list[str]] = {word(kind): [] for kind in EVENTS}
    for path in sorted(SCRIPTS.glob("*.lua")):
        for event in read_header(path.read_text()).events:
            found[event].append(path.stem)
    return found


def _said(module: ModuleType) -> dict[tuple[str, str], str]:
    """What is said of each field of each struct in a module: behind it on its line, or in a string
    below it."""
    source = inspect.getsource(module)
    behind = {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip()
    }
    found: dict[tuple[str, str], str] = {}
    for struct in ast.parse(source).body:
        if not isinstance(struct, ast.ClassDef):
            continue
        for statement, below in zip(struct.body, [*struct.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                said = behind.get(statement.end_lineno or 0, "")
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    said = _flat(str(below.value.value)).removesuffix(".")
                found[struct.name, statement.target.id] = said
    return found


_SAID = {key: said for module in SECTIONS.values() for key, said in _said(module).items()}


def fields(kind: type[msgspec.Struct]) -> Iterator[Field]:
    """The fields of an event, or of its `data`, in the order in which they are told."""
    hints = get_type_hints(kind)
    for each in msgspec.structs.fields(kind):
        hint = hints[each.name]
        has_default = each.default is not msgspec.NODEFAULT
        yield Field(
            each.encode_name,
            _type(hint),
            msgspec.json.encode(each.default).decode() if has_default else "",
            each.name in getattr(kind, "SCRIPT", ()),
            _SAID[kind.__name__, each.name],
            _inner(hint),
        )


def _type(hint: Any) -> str:
    """As JSON has it."""
    names = {str: "text", int: "integer", bool: "boolean", float: "number", type(None): "null"}
    if hint in names:
        return names[hint]
    if get_origin(hint) is tuple:
        return f"list of {_type(get_args(hint)[0])}"
    if isinstance(hint, type):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return " or ".join(map(_type, get_args(hint)))


def _inner(hint: Any) -> type[msgspec.Struct] | None:
    if get_origin(hint) is tuple:
        hint = get_args(hint)[0]
    return hint if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else None


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _table(kind: type[msgspec.Struct]) -> Iterator[str]:
    yield "| field | type | unit | default | meaning |"
    yield "|---|---|---|---|---|"
    for each in fields(kind):
        name = f"`{each.name}`" + (" ˢ" if each.by_script else "")
        default = f"`{each.default}`" if each.default else ""
        unit = UNIT_OF.get(each.name, "")
        yield f"| {name} | {each.type} | {unit} | {_cell(default)} | {_cell(each.meaning)} |"


def _event(kind: type[Event], appended_by: list[str]) -> Iterator[str]:
    yield f"### {word(kind)}"
    yield ""
    yield _flat(inspect.getdoc(kind) or "")
    yield ""
    names = ", ".join(f"`{name}`" for name in appended_by)
    yield f"Version {kind.VERSION}, appended by {names}."
    yield ""
    yield from _table(kind)
    yield ""


def inners(module: ModuleType) -> list[type[msgspec.Struct]]:
    """The structs of `data`, and theirs, that a module has."""
    return [
        each
        for _, each in inspect.getmembers(module, inspect.isclass)
        if each.__module__ == module.__name__ and not issubclass(each, Event)
    ]


def page(former: str) -> str:
    """The page: what people wrote in front of the events, as it is, and the events."""
    return former.split(MARK, 1)[0] + MARK + "\n".join(_generated())


def _generated() -> Iterator[str]:
    yield _INTRODUCTION
    for title, module in SECTIONS.items():
        yield f"* [{title}](#{title.lower().replace(' ', '-')}): " + ", ".join(
            f"[{word(kind)}](#{word(kind)})" for kind in events_of(module)
        )
    appended_by = scripts()
    for title, module in SECTIONS.items():
        yield ""
        yield f"## {title}"
        yield ""
        for kind in events_of(module):
            yield from _event(kind, appended_by[word(kind)])
        for inner in inners(module):
            yield f"### {inner.__name__}"
            yield ""
            yield _flat(inspect.getdoc(inner) or "")
            yield ""
            yield from _table(inner)
            yield ""


def events_of(module: ModuleType) -> list[type[Event]]:
    """The events of a module, in the order of the log's list."""
    return [kind for kind in EVENTS if kind.__module__ == module.__name__]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
