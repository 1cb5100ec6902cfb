import socket
import stat
import subprocess
import sys

import pytest

from hordechat.datadir import DataDir, DataDirError, Run, claim, free_port, port_is_free


@pytest.fixture
def data(tmp_path) -> DataDir:
    found = DataDir(tmp_path / "data")
    found.create()
    return found


def _mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_readable_by_its_owner_alone_and_invisible_to_git(data):
    assert _mode(data.path) == 0o700
    assert (data.path / ".gitignore").read_text() == "*\n"


def test_an_existing_directory_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o755)

    DataDir(tmp_path).create()

    assert _mode(tmp_path) == 0o755


def test_a_secret_is_made_once_and_kept_private(data):
    first = data.secret("secret")

    assert len(first) == 64
    assert data.secret("secret") == first
    assert _mode(data.path / "secret") == 0o600


def test_only_one_holds_the_lock(data):
    with data.lock(), pytest.raises(DataDirError, match="Another `hordechat up` runs on"):
        data.lock()

    with data.lock():
        pass


def test_it_is_in_use_while_locked(data):
    assert not data.in_use()
    with data.lock():
        assert data.in_use()
    assert not data.in_use()


def test_a_directory_that_does_not_exist_is_not_in_use(tmp_path):
    assert not DataDir(tmp_path / "nowhere").in_use()


def test_a_port_is_kept(data):
    assert data.port("valkey") == data.port("valkey")
    assert data.port("valkey") != data.port("postgres")


def test_a_port_that_somebody_took_is_replaced(data):
    before = data.port("valkey")
    with socket.create_server(("127.0.0.1", before)):
        after = data.port("valkey")

    assert after != before
    assert data.port("valkey") == after


def test_a_free_port_can_be_bound():
    port = free_port()

    assert port_is_free("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        assert not port_is_free("127.0.0.1", port)


def test_a_port_that_one_process_was_given_is_nobody_else_s_while_it_lives():
    code = """
import sys
from hordechat.datadir import claim, free_port
other = free_port()
print(claim(int(sys.argv[1])), other, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(free_port())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        claimed, other = process.stdout.readline().split()
        assert claimed == "False"
        assert not claim(int(other))
        process.communicate()

    assert claim(int(other))


def test_what_runs_can_be_read_back_until_it_is_cleared(data):
    run = Run(
        url="http://x",
        redis_url="r",
        database_url="d",
        s3_endpoint_url="s",
        pid=1,
        processes={"web": 2},
        children=[{"pid": 2, "started": "9", "signal": 15}],
    )

    data.write_run(run)

    assert data.read_run() == run
    data.clear_run()
    assert data.read_run() is None


def test_settings_in_force_are_shown_only_while_they_are(data):
    data.write_environment({"REDIS_URL": "r"})

    assert data.read_environment() == {}
    with data.lock():
        assert data.read_environment() == {"REDIS_URL": "r"}
