"""The command scripts: their headers, the expansion of `-- use` lines, and running one by name.

A script's header is data: `Scripts.run` takes keys and arguments by name and puts them in the order
that the header gives, so a call site cannot swap two. `python -m lua.scripts DIR` writes the
expanded scripts for the linter.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lua.link import Argument, Redis, ResponseError

HERE = Path(__file__).parent
_USE = re.compile(r"^-- use (\S+)$")
_PARAMETER = re.compile(r"^(KEYS|ARGV)\[(\d+)(\.\.)?\]\s+(\w+)", re.M)
_ERROR_LINE = re.compile(r"user_script:(\d+)")


class Refusal(Exception):
    """A script refused; nothing was written.

    `word` is one of its header's REFUSES.
    """

    def __init__(self, word: str, details: Sequence[bytes]) -> None:
        super().__init__(word)
        self.word = word
        self.details = details


class ScriptFailed(Exception):
    """A script raised an error: a bug of ours, or Redis out of memory.

    Names the file and line.
    """


class Header(NamedTuple):
    """What the opening comment of a script says."""

    keys: tuple[str, ...]
    args: tuple[str, ...]
    more_keys: bool  # the last key is repeated
    more_args: bool  # the last argument is a list
    refuses: frozenset[str]
    events: tuple[str, ...]


class Script(NamedTuple):
    """One command script, expanded."""

    name: str
    header: Header
    source: str
    sha: str
    lines: tuple[str, ...]  # where each line of the expanded source stands


def read_header(text: str) -> Header:
    """Parse the first comment block; raise ValueError where its numbering has a gap or the repeated
    one is not last."""
    block = text.split("--[[", 1)[1].split("\n]]", 1)[0]
    found: dict[str, list[str]] = {"KEYS": [], "ARGV": []}
    more = {"KEYS": False, "ARGV": False}
    for kind, number, repeated, name in _PARAMETER.findall(block):
        if more[kind] or int(number) != len(found[kind]) + 1:
            raise ValueError(f"{kind}[{number}] {name} is out of order")
        found[kind].append(name)
        more[kind] = bool(repeated)
    refuses = block.split("\nREFUSES", 1)[1].split("\nEVENTS", 1)[0]
    events = block.split("\nEVENTS", 1)[1].split("\n", 1)[0]
    return Header(
        tuple(found["KEYS"]),
        tuple(found["ARGV"]),
        more["KEYS"],
        more["ARGV"],
        frozenset(re.findall(r"^\s*([A-Z_]+)\s{2,}\S", refuses, re.M)),
        tuple(word for word in events.split() if not word.startswith("(")),
    )


def expand(path: Path, root: Path = HERE) -> tuple[list[str], list[str]]:
    """The lines of a script with every `-- use` replaced, each part once, and where each line came
    from.

    Raise ValueError for a part that uses itself, FileNotFoundError for one that is not there.
    """
    lines: list[str] = []
    places: list[str] = []
    done: set[Path] = set()

    def include(part: Path, above: tuple[Path, ...]) -> None:
        if part in above:
            raise ValueError(f"{part.name} uses itself")
        if part in done:
            return
        done.add(part)
        for number, line in enumerate(part.read_text().splitlines(), 1):
            use = _USE.match(line)
            if use is None:
                lines.append(line)
                places.append(f"{part.relative_to(root)}:{number}")
            elif use[1].endswith("*"):
                for each in sorted((root / use[1]).parent.glob("*.lua")):
                    include(each, (*above, part))
            else:
                include(root / f"{use[1]}.lua", (*above, part))

    include(path, ())
    return lines, places


def load(path: Path, *, test: bool, root: Path = HERE) -> Script:
    """Read, check and expand one script.

    `test` switches on the clock seam and the undeclared-key check.
    """
    lines, places = expand(path, root)
    # The shebang must be the first line; the setting comes right behind it.
    lines.insert(1, f"local TEST = {'true' if test else 'false'}")
    places.insert(1, "(setting)")
    source = "\n".join(lines) + "\n"
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(path.stem, read_header(path.read_text()), source, sha, tuple(places))


@functools.cache
def _all(*, test: bool) -> Mapping[str, Script]:
    """Every script by its name. Read once: that takes as long as a thousand commands."""
    return {path.stem: load(path, test=test) for path in sorted(HERE.glob("*.lua"))}


class Scripts:
    """Every script of `lua/`, run by name over one link."""

    def __init__(self, redis: Redis, *, test: bool = False) -> None:
        self.redis = redis
        self.test = test
        self._scripts = _all(test=test)

    async def run(
        self,
        name: str,
        keys: Mapping[str, str | Sequence[str]],
        args: Mapping[str, Argument | Sequence[Argument]],
    ) -> list[bytes]:
        """Run a script; return what stands behind its "OK".

        Raise Refusal for a word of its REFUSES, Unavailable where Redis did not answer,
        ScriptFailed for an error. A script that Redis does not know is loaded and run: it was not
        executed before.
        """
        script = self._scripts[name]
        command = self._command(script, keys, args)
        try:
            reply = await self._evaluate(script, command)
        except ResponseError as error:
            raise ScriptFailed(self._explain(script, str(error))) from error
        word = reply[0]
        if word != b"OK":
            raise Refusal(word.decode(), reply[1:])
        return reply[1:]

    async def preload(self, name: str) -> None:
        """Make the script known to Redis, for callers that issue many runs whose order matters."""
        if self.redis.ordered:
            await self.redis.call("SCRIPT", "LOAD", self._scripts[name].source)

    async def _evaluate(self, script: Script, command: list[Argument]) -> list[bytes]:
        try:
            reply: list[bytes] = await self.redis.call("EVALSHA", script.sha, *command)
        except ResponseError as error:
            # redis-py's parser may strip the code from the message of a known error class.
            if "NOSCRIPT" not in str(error) and type(error).__name__ != "NoScriptError":
                raise
            reply = await self.redis.call("EVAL", script.source, *command)
        return reply

    @staticmethod
    def _command(
        script: Script,
        keys: Mapping[str, str | Sequence[str]],
        args: Mapping[str, Argument | Sequence[Argument]],
    ) -> list[Argument]:
        header = script.header
        if len(keys) != len(header.keys) or len(args) != len(header.args):
            raise TypeError(
                f"{script.name} takes {header.keys} and {header.args}, "
                f"not {tuple(keys)} and {tuple(args)}"
            )
        ordered: list[Argument] = [0]
        for key in header.keys:
            value = keys[key]
            if isinstance(value, str):
                ordered.append(value)
            else:
                ordered.extend(value)
        ordered[0] = len(ordered) - 1
        for arg in header.args:
            given = args[arg]
            if isinstance(given, str | bytes | int | float):
                ordered.append(given)
            else:
                ordered.extend(given)
        return ordered

    @staticmethod
    def _explain(script: Script, message: str) -> str:
        line = _ERROR_LINE.search(message)
        place = (
            script.lines[int(line[1]) - 1]
            if line and int(line[1]) <= len(script.lines)
            else script.name
        )
        return f"{script.name} at {place}: {message}"


def main(target: str) -> None:
    """Write every expanded script into a folder, for the linter (raw files would show false
    undefined names)."""
    out = Path(target)
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.glob("*.lua"):
        stale.unlink()
    for path in sorted(HERE.glob("*.lua")):
        # The linter reads plain Lua: the shebang becomes a comment, so line numbers stay.
        (out / path.name).write_text(re.sub(r"^#!", "--#!", load(path, test=False).source))


if __name__ == "__main__":
    main(sys.argv[1])
