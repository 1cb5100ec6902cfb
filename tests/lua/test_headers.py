"""The header of every script is true: it is data that call sites rely on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from events.types import EVENTS
from lua.scripts import HERE, Script, expand, load, read_header

PATHS = sorted(HERE.glob("*.lua"))
TAGS = {str(kind.__struct_config__.tag) for kind in EVENTS}
COMMON = {"events", "control"}


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def script(request: pytest.FixtureRequest) -> Script:
    """Each script in turn."""
    return load(request.param, test=False)


def _body(path: Path) -> str:
    return path.read_text().split("\n]]\n", 1)[1]


def _own(script: Script) -> str:
    return _body(HERE / f"{script.name}.lua")


def test_the_log_and_the_control_hash_come_first(script: Script) -> None:
    assert script.header.keys[:2] == ("events", "control")


def test_the_name_in_the_header_is_the_file_s(script: Script) -> None:
    assert re.search(rf"--\[\[ {script.name}: ", script.source)


def test_every_key_and_argument_is_used(script: Script) -> None:
    code = _own(script)
    fixed_keys = len(script.header.keys) - script.header.more_keys
    fixed_args = len(script.header.args) - script.header.more_args
    used_keys = {int(n) for n in re.findall(r"KEYS\[(\d+)\]", code)}
    used_args = {int(n) for n in re.findall(r"ARGV\[(\d+)\]", code)}

    assert {*range(3, fixed_keys + 1)} <= used_keys <= {*range(1, len(script.header.keys) + 1)}
    assert {*range(1, fixed_args + 1)} <= used_args <= {*range(1, len(script.header.args) + 1)}
    if script.header.more_args and script.header.args[-1] == "event" and script.header.events:
        assert f"event_from({fixed_args + 1}" in code or f", {fixed_args + 1}, limit)" in code


def test_every_refusal_is_listed_and_no_other(script: Script) -> None:
    returned = set(re.findall(r'return \{"([A-Z_]+)"', _own(script))) - {"OK"}

    assert returned == set(script.header.refuses)


def test_events_are_known_and_their_apply_is_there(script: Script) -> None:
    assert set(script.header.events) <= TAGS
    for tag in script.header.events:
        assert f'apply["{tag}"]' in script.source


def test_every_event_has_its_apply_and_every_apply_its_event() -> None:
    applied = {path.stem for path in (HERE / "apply").glob("*.lua")}

    assert applied == TAGS


def test_no_write_comes_before_the_last_refusal(script: Script) -> None:
    if script.name == "replay_event":
        return  # refuses nothing
    code = _own(script)
    last = max(
        (match.start() for match in re.finditer(r'return \{"(?!OK)[A-Z_]+"', code)), default=0
    )
    writes = re.search(
        r'emit\(|fail\(|call\("(?:HSET|HDEL|DEL|SET|ZADD|ZREM|XADD|EXPIRE|HINCRBY)"', code
    )

    assert writes is None or writes.start() > last


def test_only_emit_appends_to_the_log() -> None:
    for path in HERE.rglob("*.lua"):
        appends = re.findall(r'"XADD", (\w+)', path.read_text())
        if path.name == "emit.lua":
            assert appends == ["EVENTS"]
        else:
            assert "EVENTS" not in appends


def test_scripts_that_free_something_run_when_memory_is_full() -> None:
    freeing = {"submit_reply", "fault", "lapse", "cancel", "expire", "abandon", "give_back"}
    allowed = {
        path.stem for path in PATHS if path.read_text().startswith("#!lua flags=allow-oom\n")
    }

    assert allowed == freeing | {"settle", "end_decoy"}


def test_every_script_starts_with_its_shebang(script: Script) -> None:
    assert script.source.startswith("#!lua")


def test_apply_reads_no_clock_and_no_ephemeral_key() -> None:
    for path in (HERE / "apply").glob("*.lua"):
        text = path.read_text().split("]]", 1)[1]
        assert "TIME" not in text
        assert "now()" not in text
        assert not re.search(r"keys\.(lease|content|stream)\b", text)


@pytest.mark.parametrize("keys", ["KEYS[2] a string k", "KEYS[1..] a string k\nKEYS[2] b string k"])
def test_a_header_with_a_gap_is_refused(keys: str) -> None:
    text = f"#!lua\n--[[ x: y.\n\n{keys}\n\nRETURNS 1\nREFUSES (nothing)\nEVENTS (none)\n]]\n"

    with pytest.raises(ValueError, match="out of order"):
        read_header(text)


def test_a_part_is_included_once_and_never_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "main.lua").write_text("-- use a\n-- use b\nreturn 1\n")
    (tmp_path / "a.lua").write_text("-- use b\nlocal a = b\n")
    (tmp_path / "b.lua").write_text("local b = 1\n")
    lines, places = expand(tmp_path / "main.lua", tmp_path)
    assert lines == ["local b = 1", "local a = b", "return 1"]
    assert places == ["b.lua:1", "a.lua:2", "main.lua:3"]

    (tmp_path / "b.lua").write_text("-- use a\n")
    with pytest.raises(ValueError, match="uses itself"):
        expand(tmp_path / "main.lua", tmp_path)


def test_a_part_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "main.lua").write_text("-- use nothing\n")

    with pytest.raises(FileNotFoundError, match="nothing"):
        expand(tmp_path / "main.lua", tmp_path)
