"""The docs say what the code does: states, scripts, settings, links, names."""

import ast
import pkgutil
import re
from pathlib import Path

import pytest

from handlers.archiver import Stuck
from hordechat import settings
from hordechat.archiving import _AWAY
from hordechat.supervisor import procfile_path, read_procfile
from lua.scripts import HERE, load

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
STATES = DOCS / "state_machine.md"
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]

_ARROW = re.compile(r"^    (\S+) --> (\S+): (\w+): ([\w-]+)$", re.M)
_ROW = re.compile(r"^\| (\S+) \| (\S+) \| .+ \| `([\w.]+)` \| `(\w+)` \| `([\w-]+)` \|$", re.M)
_AROUND = re.compile(r"`(\w+)`: `([\w-]+)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
_NOT_STATES = {"replay_event", "open_account", "open_anonymous"}


def sections() -> list[str]:
    text = STATES.read_text().split("## Around them")[0]
    return text.split("\n## ")[1:]


def events_of(script: str) -> set[str]:
    return set(load(HERE / f"{script}.lua", test=False).header.events)


@pytest.mark.parametrize("section", sections(), ids=lambda text: text.split("\n", 1)[0])
def test_the_diagram_and_the_table_show_the_same_arrows(section: str) -> None:
    drawn = {
        (*(end.replace("[*]", "–") for end in arrow[:2]), *arrow[2:])
        for arrow in _ARROW.findall(section)
    }
    told = {(row[0], row[1], row[3], row[4]) for row in _ROW.findall(section)}

    assert drawn
    assert drawn == told


def test_every_arrow_names_a_script_that_appends_its_event() -> None:
    for arrow in _ARROW.findall(STATES.read_text()):
        _, _, script, event = arrow
        assert event in events_of(script), arrow


def test_every_arrow_names_the_handler_that_runs_its_script() -> None:
    for _, _, command, script, _ in _ROW.findall(STATES.read_text()):
        assert callable(pkgutil.resolve_name(command)), command
        assert command.rpartition(".")[2] == script


def test_no_script_and_no_event_is_left_out() -> None:
    text = STATES.read_text()
    shown = {(script, event) for _, _, script, event in _ARROW.findall(text)}
    shown |= set(_AROUND.findall(text.split("## Around them")[1]))
    scripts = {path.stem for path in HERE.glob("*.lua")} - _NOT_STATES

    every = {(script, event) for script in scripts for event in events_of(script)}

    # `settled` only moves a fence; it is no state of anything.
    assert every - {("settle", "settled")} == shown


def test_the_settings_page_is_the_one_that_the_settings_write() -> None:
    page = settings.markdown(settings.describe(settings.load({})))

    assert (DOCS / "settings.md").read_text() == page, "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    known = {row.name for row in settings.describe(settings.load({}))}

    assert set(re.findall(r"\bHORDE_[A-Z0-9_]+\b", page.read_text())) <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(
        r"`((?:events|lua|handlers|projections|api|worker|hordechat|bench|docs|tests)/[\w./-]+)`",
        page.read_text(),
    )

    for path in named:
        assert (ROOT / path).exists(), path


def test_the_readme_lists_every_process() -> None:
    names = set(read_procfile(procfile_path(), {}, ROOT)) - {"release"}
    listed = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.M))

    assert names <= listed


def test_decisions_are_numbered_without_gaps_and_short() -> None:
    pages = sorted((DOCS / "adr").glob("*.md"))

    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text()
        assert text.startswith(f"# {int(page.name[:4])}. ")
        for part in ("**Context.**", "**Choice.**", "**Given up.**", "**Revisit when**"):
            assert part in text, (page.name, part)
        assert len(text.splitlines()) <= 25


def alarms() -> set[str]:
    """What any process of the service may say at level warning or above."""
    found = {each.word for each in Stuck.__subclasses__()} | set(_AWAY.values())
    for package in ("api", "archive", "handlers", "hordechat", "projections"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Attribute(attr="warning" | "error" | "exception" | "_note"),
                        args=[ast.Constant(str(event)), *_],
                    ):
                        found.add(event)
    return found


def test_the_runbook_has_every_alarm() -> None:
    text = " ".join((DOCS / "runbook.md").read_text().split())

    assert {"waits_for_redis", "archive_ahead", "archive_away", "redis_memory"} <= alarms()
    assert {
        event for event in alarms() if f"`{event}`" not in text and f"`` {event} ``" not in text
    } == set()
