import json
import sys
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from events.base import Position
from hordechat.cli import main
from hordechat.datadir import DataDir, Run
from hordechat.moments import Ago

SERVERS = {"REDIS_URL": "redis://r", "DATABASE_URL": "postgresql://d"}
NOTHING = {
    "REDIS_URL": "", "DATABASE_URL": "", "S3_ENDPOINT_URL": "", "HORDE_PARTITIONS": "",
    "HORDE_SECRET": "",
}  # fmt: skip


NOTHING_SET = {
    "name": None, "granted": (), "revoked": (), "concurrency": None, "worker_invited": None,
    "public_workers": None, "monthly_kudos": None, "usage_multiplier": None,
    "reset_suspicion": False, "contact": None, "admin_comment": None,
}  # fmt: skip


WHOLE_LOG = {
    "since": None, "until": None, "request_id": None, "types": (), "partition": None,
    "form": "text",
}  # fmt: skip


def _all_commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += _all_commands(command, (*path, name))
    return found


@pytest.fixture
def calls(monkeypatch) -> list[tuple[str, tuple, dict]]:
    """What reached `hordechat.commands`, which stands in here: its own tests are elsewhere."""
    made: list[tuple[str, tuple, dict]] = []

    def record(name: str, answer: object = None):
        def function(*args, **kwargs):
            made.append((name, args, kwargs))
            return answer

        return function

    names = (
        "migrate",
        "web",
        "projector",
        "settler",
        "janitor",
        "archiver",
        "archive_status",
        "rebuild",
        "rebuild_beside",
        "rebuild_state",
        "log",
        "run_worker",
    )
    stand_in = SimpleNamespace(**{name: record(name) for name in names})
    stand_in.verify = record("verify", answer=False)
    stand_in.objects_check = record("objects_check", answer=True)
    stand_in.archive_check = record("archive_check", answer=True)
    stand_in.demo = record("demo", answer=0)
    stand_in.mode = record("mode", {"maintenance": False})
    stand_in.timeout_set = record("timeout_set", {"ipaddr": "198.51.100.7", "seconds": 540})
    stand_in.timeout_list = record("timeout_list", [])
    stand_in.timeout_clear = record("timeout_clear", answer=True)
    stand_in.kudos_grant = record("kudos_grant", {"id": 3, "kudos": 25.0})
    stand_in.user_create = record("user_create", {"id": 1, "username": "a#1", "api_key": "k"})
    for name in ("user_list", "user_show", "user_set", "user_reset_key", "user_delete"):
        setattr(stand_in, name, record(name, {"id": 1}))
    monkeypatch.setitem(sys.modules, "hordechat.commands", stand_in)
    monkeypatch.setattr("hordechat.commands", stand_in, raising=False)
    monkeypatch.setattr("hordechat.logs.configure", lambda *_: None)
    return made


@pytest.fixture
def run(tmp_path):
    """Run the program on a data directory of this test's own."""

    def invoke(*args: str, env: dict[str, str] = SERVERS):
        with_data = args if args[0] == "demo" else (*args, "--data-dir", str(tmp_path))
        return CliRunner().invoke(main, with_data, env=NOTHING | env)

    return invoke


@pytest.mark.parametrize("path", _all_commands(main), ids=" ".join)
def test_every_command_explains_itself(path):
    result = CliRunner().invoke(main, [*path, "--help"])

    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: main {' '.join(path)}")
    assert "--data-dir" in result.stdout or path in {
        ("demo",), ("user",), ("filters",), ("timeout",), ("kudos",), ("objects",), ("archive",),
    }  # fmt: skip


def test_the_commands_are_those_that_operators_rely_on():
    assert {" ".join(path) for path in _all_commands(main)} == {
        "up", "info", "user", "user create", "user list", "user show", "user set", "user reset-key",
        "user delete", "worker", "settings", "migrate", "web", "projector",
        "settler", "janitor", "archiver", "archive", "archive status", "archive check",
        "archive snapshot", "rebuild", "verify", "log", "demo", "filters", "filters check",
        "mode", "timeout", "timeout set", "timeout list", "timeout clear",
        "kudos", "kudos grant", "ledger", "objects", "objects check",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "call", "kwargs"),
    [
        (["migrate"], "migrate", {}),
        (
            ["web", "--port", "81", "--host", "::1", "--web-workers", "3"],
            "web",
            {"host": "::1", "port": 81, "workers": 3},
        ),
        (["projector", "status"], "projector", {"name": "status", "take": None}),
        (["projector", "status", "--take", "2"], "projector", {"name": "status", "take": 2}),
        (["settler"], "settler", {"take": None}),
        (["janitor", "--take", "1"], "janitor", {"take": 1}),
        (["archiver", "--take", "1"], "archiver", {"take": 1}),
        (["archive", "status", "--json"], "archive_status", {"as_json": True}),
        (["archive", "check"], "archive_check", {"as_json": False}),
        (["rebuild", "state", "--json"], "rebuild_state", {"as_json": True}),
        (["rebuild", "accounts"], "rebuild", {"what": "accounts"}),
        (["rebuild", "accounts", "--beside"], "rebuild_beside", {"name": "accounts"}),
        (["log"], "log", WHOLE_LOG),
        (
            ["log", "--request", "00000000-0000-4000-8000-000000000000"],
            "log",
            WHOLE_LOG | {"request_id": "00000000-0000-4000-8000-000000000000"},
        ),
        (
            [
                *("log", "--since", "2h", "--until", "1777638600000-7", "--format", "csv"),
                *("--type", "assigned", "--type", "faulted", "--partition", "0"),
            ],
            "log",
            {
                "since": Ago(7_200_000),
                "until": Position(1_777_638_600_000, 7),
                "request_id": None,
                "types": ("assigned", "faulted"),
                "partition": 0,
                "form": "csv",
            },
        ),
        (["objects", "check"], "objects_check", {"as_json": False, "delete": False}),
        (
            ["objects", "check", "--json", "--delete"],
            "objects_check",
            {"as_json": True, "delete": True},
        ),
        (
            ["kudos", "grant", "bob#3", "12.5"],
            "kudos_grant",
            {"user_id": 3, "amount": 125_000, "grant_id": None},
        ),
        (
            ["kudos", "grant", "3", "-7.0001", "--id", "2026-05"],
            "kudos_grant",
            {"user_id": 3, "amount": -70_001, "grant_id": "2026-05"},
        ),
        (
            ["user", "create", "anna", "--kudos", "2.5", "--trusted"],
            "user_create",
            {
                "name": "anna",
                "kudos": 25_000,
                "trusted": True,
                "moderator": False,
                "flagged": False,
                "roles": (),
                "kind": "registered",
                "concurrency": None,
            },
        ),
        (
            [
                *("user", "create", "anna", "--role", "service", "--role", "vpn"),
                *("--kind", "pseudonymous", "--concurrency", "0"),
            ],
            "user_create",
            {
                "name": "anna",
                "kudos": 0,
                "trusted": False,
                "moderator": False,
                "flagged": False,
                "roles": ("service", "vpn"),
                "kind": "pseudonymous",
                "concurrency": 0,
            },
        ),
        (["user", "list"], "user_list", {}),
        (["user", "show", "anna#7"], "user_show", {"user_id": 7}),
        (["user", "reset-key", "7"], "user_reset_key", {"user_id": 7}),
        (["user", "delete", "7", "--yes"], "user_delete", {"user_id": 7}),
        (
            ["user", "set", "7", "--no-public-workers"],
            "user_set",
            NOTHING_SET | {"user_id": 7, "public_workers": False},
        ),
        (
            [
                *("user", "set", "anna#7", "--name", "ann", "--grant", "moderator"),
                *("--revoke", "vpn", "--revoke", "special", "--concurrency", "0"),
                *("--worker-invited", "25", "--monthly-kudos", "3", "--usage-multiplier", "0.5"),
                *("--reset-suspicion", "--contact", "", "--admin-comment", "fine"),
            ],
            "user_set",
            {
                "user_id": 7,
                "name": "ann",
                "granted": ("moderator",),
                "revoked": ("vpn", "special"),
                "concurrency": 0,
                "worker_invited": 25,
                "public_workers": None,
                "monthly_kudos": 3,
                "usage_multiplier": 0.5,
                "reset_suspicion": True,
                "contact": "",
                "admin_comment": "fine",
            },
        ),
        (["mode"], "mode", {"maintenance": None}),
        (["mode", "maintenance", "on"], "mode", {"maintenance": True}),
        (["mode", "maintenance", "off"], "mode", {"maintenance": False}),
        (
            ["timeout", "set", "198.51.100.7", "--minutes", "9"],
            "timeout_set",
            {"address": "198.51.100.7", "minutes": 9},
        ),
        (["timeout", "list"], "timeout_list", {}),
        (["timeout", "clear", "198.51.100.7"], "timeout_clear", {"address": "198.51.100.7"}),
    ],
)
def test_a_command_calls_its_function(run, calls, args, call, kwargs):
    result = run(*args)

    assert result.exit_code == 0, result.output
    ((name, (given,), named),) = calls
    assert (name, named) == (call, kwargs)
    assert given.redis_url == SERVERS["REDIS_URL"]


def test_hot_state_is_not_built_beside(run, calls):
    result = run("rebuild", "state", "--beside")

    assert (result.exit_code, calls) == (2, [])
    assert "only a read model is built beside" in result.stderr


def test_an_account_is_printed_as_json(run, calls):
    assert json.loads(run("user", "create", "a").stdout) == {
        "id": 1, "username": "a#1", "api_key": "k",
    }  # fmt: skip


def test_an_account_is_deleted_only_on_second_thoughts(run, calls):
    assert run("user", "delete", "7").exit_code == 1
    assert calls == []


def test_a_difference_found_by_verify_is_exit_1(run, calls):
    assert run("verify").exit_code == 1


def test_demo_passes_its_exit_code_on(run, calls):
    assert run("demo").exit_code == 0


def test_the_worker_needs_no_servers_but_a_url(run, calls):
    result = run(
        "worker", "--url", "http://h", "--api-key", "k", "--name", "w", "--model", "m", env={}
    )

    assert result.exit_code == 0, result.output
    assert calls == [
        (
            "run_worker",
            (),
            {
                "url": "http://h",
                "api_key": "k",
                "name": "w",
                "model": "m",
                "backend": "echo",
                "threads": 1,
                "prompts": False,
                "vision": False,
            },
        )
    ]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["migrate"], "No servers: no `hordechat up` runs on"),
        (["info"], "No `hordechat up` runs on"),
        (["worker", "--api-key", "k", "--name", "w", "--model", "m"], "give --url"),
    ],
)
def test_without_servers_it_says_what_to_do(run, calls, args, sentence):
    result = run(*args, env={})

    assert result.exit_code != 0
    assert sentence in result.stderr
    assert calls == []


@pytest.mark.parametrize(
    "args",
    [
        ["log", "--request", "../x"],
        ["log", "--since", "yesterday"],
        ["log", "--until", "2026-13-01"],
        ["log", "--since", "2026-05"],
        ["log", "--type", "invented"],
        ["log", "--partition", "1"],
        ["log", "--partition", "-1"],
        ["log", "--format", "xml"],
        ["mode", "maintenance"],
        ["mode", "maintenance", "perhaps"],
        ["mode", "raid", "on"],
        ["projector", "status", "--take", "0"],
        ["up", "--port", "70000"],
        ["worker", "--url", "u", "--api-key", "k", "--name", "w", "--model", "m", "--backend", "x"],
        ["user", "create", "a", "--kudos", "-1"],
        ["user", "create", "a", "--kudos", "1e308"],
        ["user", "create", "a", "--kudos", "NaN"],
        ["user", "create", "a", "--kind", "anonymous"],
        ["user", "create", "a", "--role", "king"],
        ["user", "create", "a", "--concurrency", "501"],
        ["user", "show", "bob"],
        ["user", "set", "7"],
        ["user", "set", "7", "--grant", "king"],
        ["user", "set", "7", "--grant", "vpn", "--grant", "special", "--revoke", "vpn"],
        ["user", "set", "7", "--usage-multiplier", "11"],
        ["kudos", "grant", "bob", "1"],
        ["kudos", "grant", "3", "much"],
        ["kudos", "grant", "3", "NaN"],
        ["kudos", "grant", "3", "0.00001"],
        ["kudos", "grant", "3"],
        ["kudos", "grant", "3", "1", "--id", "a|b"],
    ],
)
def test_bad_arguments_are_refused(run, calls, args):
    assert run(*args).exit_code == 2
    assert calls == []


def test_a_bad_setting_is_refused_by_its_name(run, calls):
    result = run("migrate", env=SERVERS | {"HORDE_PARTITIONS": "0"})

    assert result.exit_code == 1
    assert "HORDE_PARTITIONS" in result.stderr


@pytest.fixture
def running_up(tmp_path):
    """A data directory that looks as if `up` ran on it."""
    data = DataDir(tmp_path)
    data.write_run(Run(url="http://u", redis_url="r", database_url="d", s3_endpoint_url="s", pid=1))
    data.write_environment(
        {"REDIS_URL": "redis://up", "DATABASE_URL": "postgresql://d", "HORDE_SECRET": "s"}
    )
    with data.lock():
        yield data


def test_servers_are_found_through_the_data_directory(run, calls, running_up):
    assert run("migrate", env={}).exit_code == 0

    ((_, (given,), _),) = calls
    assert (given.redis_url, given.secret) == ("redis://up", "s")


def test_the_environment_wins_over_the_data_directory(run, calls, running_up):
    assert run("migrate", env={"REDIS_URL": "redis://mine"}).exit_code == 0

    ((_, (given,), _),) = calls
    assert given.redis_url == "redis://mine"


def test_the_worker_finds_the_running_service(run, calls, running_up):
    assert run("worker", "--api-key", "k", "--name", "w", "--model", "m", env={}).exit_code == 0

    assert calls[0][2]["url"] == "http://u"


def test_info_says_nothing_about_how_to_end_processes(run, running_up):
    assert set(json.loads(run("info").stdout)) == {
        "url", "redis_url", "database_url", "s3_endpoint_url", "pid", "processes",
    }  # fmt: skip


def test_settings_as_json_have_five_columns_and_no_secrets(run):
    result = run("settings", "--json", env={"S3_SECRET_KEY": "hush"})

    rows = json.loads(result.stdout)
    assert rows[0].keys() == {"name", "value", "default", "unit", "meaning"}
    assert "hush" not in result.stdout


def test_settings_as_a_table_name_each(run):
    result = run("settings")

    assert result.exit_code == 0
    assert "HORDE_UNTRUSTED_TEXT_JOB_LEASE_CAP_SECONDS" in result.stdout
