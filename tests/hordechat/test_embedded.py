"""Each embedded server starts, keeps what it was given, and stops; as whoever runs the tests."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import minio
import psycopg
import pytest
import redis

from hordechat.datadir import free_port
from hordechat.embedded import as_user, postgres, s3, valkey
from hordechat.process import Service, StartFailed, running
from hordechat.watchdog import identity
from lua import link
from projections import log
from projections.models import PROJECTIONS

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _valkey(folder: Path, **options: object) -> Service:
    return valkey.service(folder / "valkey", free_port(), **options)


def _postgres(folder: Path) -> Service:
    """One that flushes nothing: a killed process loses nothing by it."""
    return postgres.service(folder / "postgres", free_port(), password="pass", durable=False)


def test_valkey_keeps_what_it_acknowledged_when_it_is_killed(tmp_path):
    service = _valkey(tmp_path, password="pass")
    with running(service, tmp_path / "log") as child:
        with redis.Redis.from_url(service.url) as client:
            client.set("key", "value")
        child.kill()
    with running(service, tmp_path / "log"), redis.Redis.from_url(service.url) as client:
        assert client.get("key") == b"value"


def test_valkey_never_evicts_and_flushes_each_write(tmp_path):
    service = _valkey(tmp_path)
    with (
        running(service, tmp_path / "log"),
        redis.Redis.from_url(service.url, decode_responses=True) as client,
    ):
        found = client.config_get("maxmemory-policy", "appendfsync", "appendonly", "bind")

    assert found == {
        "maxmemory-policy": "noeviction",
        "appendfsync": "always",
        "appendonly": "yes",
        "bind": "127.0.0.1",
    }


def test_valkey_asks_for_its_password(tmp_path):
    service = _valkey(tmp_path, password="pass")
    with (
        running(service, tmp_path / "log"),
        redis.Redis.from_url(service.url.replace(":pass@", "")) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_valkey_takes_a_path_with_spaces_and_quotes(tmp_path):
    folder = tmp_path / 'a "quoted" folder'
    folder.mkdir()
    service = _valkey(folder)
    with running(service, tmp_path / "log"):
        assert service.probe()


@pytest.fixture
def shallow():
    """A folder whose path is short, whatever those of the session's folders are."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", ["short", 'a "quoted" folder?', "far" * 40])
async def test_valkey_serves_on_a_socket_and_where_that_is_too_deep_on_its_port(
    tmp_path, name, shallow
):
    folder = shallow / name
    folder.mkdir()
    service = _valkey(folder, password="pass", socket=True)
    assert service.url.startswith("redis://" if name.startswith("far") else "unix://")
    for _ in range(2):  # what a killed server leaves of its socket is in nobody's way
        with running(service, tmp_path / "log") as child:
            opened = await link.connect(service.url)
            assert await opened.call("PING") == b"PONG"
            await opened.close()
            with log.connect(service.url) as client:
                assert client.ping()
            child.kill()


async def test_a_socket_that_nobody_serves_is_an_absence_like_any(tmp_path):
    url = _valkey(tmp_path, socket=True).url
    with pytest.raises(link.Unavailable):
        await link.connect(url)
    opened = link.Link(url)
    with pytest.raises(link.Unavailable) as away:
        await opened.call("PING")
    assert not away.value.sent
    with pytest.raises(log.AWAY), log.connect(url):
        pass


def test_a_cluster_of_one_node_serves_every_slot(cluster_url):
    with redis.RedisCluster.from_url(cluster_url) as client:
        client.set("{0}a", 1)
        client.set("{1}a", 2)
        assert client.cluster_info()["cluster_slots_ok"] == "16384"


def test_a_server_that_cannot_start_says_why(tmp_path):
    service = valkey.service(tmp_path / "valkey", 1_000_000)

    with (
        pytest.raises(StartFailed, match="ended with exit code 1"),
        running(service, tmp_path / "log"),
    ):
        pass


def _modes(folder: Path) -> dict[Path, tuple[int, int]]:
    """Mode and owner of the folder and all above it."""
    stats = {path: path.stat() for path in (folder, *folder.parents)}
    return {path: (stat.S_IMODE(s.st_mode), s.st_uid) for path, s in stats.items()}


def _count(url: str) -> int:
    """Add a row and count the rows."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (x int)")
        connection.execute("INSERT INTO kept VALUES (1)")
        (count,) = connection.execute("SELECT count(*) FROM kept").fetchone()
    return count


def test_postgres_keeps_its_data_and_changes_no_folder_around_it(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    before = _modes(home)
    service = postgres.service(home / "postgres", free_port(), password="pass")

    for expected in (1, 2):
        with running(service, tmp_path / "log") as child:
            assert _count(service.url) == expected
        assert not _alive(child.pid)

    assert _modes(home) == before


def test_postgres_starts_again_after_a_kill(tmp_path):
    service = _postgres(tmp_path)
    with running(service, tmp_path / "log") as child:
        assert _count(service.url) == 1
        child.kill()
    with running(service, tmp_path / "log"):
        assert _count(service.url) == 2


def test_postgres_is_not_fooled_by_a_pid_file_whose_pid_is_another_process(tmp_path):
    service = _postgres(tmp_path)
    service.prepare()
    pid_file = tmp_path / "postgres" / "data" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{pid_file.parent}\n1\n{free_port()}\n")

    with running(service, tmp_path / "log"):
        assert service.probe()


def test_postgres_forgets_a_creation_that_was_cut_short(tmp_path):
    service = _postgres(tmp_path)
    (tmp_path / "postgres" / "data.new").mkdir()
    (tmp_path / "postgres" / "data.new" / "half").touch()

    with running(service, tmp_path / "log"):
        assert service.probe()


def test_postgres_in_a_deep_folder_has_no_socket_but_serves(tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    service = postgres.service(deep, free_port(), password="pass", durable=False)

    assert "@127.0.0.1:" in service.url
    with running(service, tmp_path / "log"):
        assert _count(service.url) == 1


def test_postgres_wants_its_password_on_tcp(tmp_path):
    port = free_port()
    service = postgres.service(tmp_path / "postgres", port, password="pass", durable=False)
    with running(service, tmp_path / "log"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"postgresql://hordechat:wrong@127.0.0.1:{port}/hordechat")
        psycopg.connect(f"postgresql://hordechat:pass@127.0.0.1:{port}/hordechat").close()


@as_root
def test_postgres_runs_as_nobody_inside_a_closed_folder_and_back(tmp_path):
    """Where user namespaces are off; and the data is still there when they are on again."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    before = _modes(home)

    for expected, mode in enumerate(("namespace", "nobody", "nobody", "namespace"), start=1):
        service = postgres.service(
            home / "postgres", free_port(), password="pass", mode=mode, durable=False
        )
        with running(service, tmp_path / f"log{expected}"):
            assert _count(service.url) == expected

    assert _modes(home) == before
    copy = (home / "postgres" / "programs").readlink()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o755
    subprocess.run(["/bin/rm", "-r", str(copy)], check=True)


def test_a_server_ends_with_whoever_started_it_even_by_a_kill(tmp_path):
    script = textwrap.dedent(
        """
        import signal, sys
        from pathlib import Path
        from hordechat.datadir import free_port
        from hordechat.embedded import valkey
        from hordechat.process import running
        home = Path(sys.argv[1])
        with running(valkey.service(home / "valkey", free_port()), home / "log") as child:
            print(child.pid, flush=True)
            signal.pause()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as starter:
        pid = int(starter.stdout.readline())
        assert identity(pid)

        starter.kill()

    deadline = time.monotonic() + 20
    while identity(pid):
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.01)


def test_an_ordinary_user_can_run_them_all(tmp_path):
    """Root plays one inside a user namespace; there, too, Postgres runs without any help."""
    prefix = ()
    if os.geteuid() == 0:
        if postgres.choose_mode() != "namespace":
            pytest.skip("root cannot play an ordinary user without user namespaces")
        prefix = (sys.executable, as_user.__file__, "1", "1")
    script = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from hordechat.datadir import free_port
        from hordechat.embedded import postgres, s3, valkey
        from hordechat.process import running
        assert os.geteuid() != 0
        home = Path(sys.argv[1])
        services = (
            valkey.service(home / "valkey", free_port(), password="p"),
            postgres.service(home / "postgres", free_port(), password="p", durable=False),
            s3.service(home / "s3", free_port(), access_key="a" * 20, secret_key="b" * 40),
        )
        for service in services:
            with running(service, home / "log"):
                print(service.command.name)
        """
    )

    done = subprocess.run(
        [*prefix, sys.executable, "-c", script, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.stdout.split() == ["valkey", "postgres", "s3"], done.stderr


def test_the_store_keeps_objects_and_refuses_strangers(tmp_path):
    """What it was in the middle of when it was killed is no object."""
    port = free_port()
    keys = {"access_key": "a" * 20, "secret_key": "b" * 40}
    service = s3.service(tmp_path / "s3", port, **keys)
    client = minio.Minio(f"127.0.0.1:{port}", **keys, secure=False)
    stranger = minio.Minio(
        f"127.0.0.1:{port}", access_key="c" * 20, secret_key="d" * 40, secure=False
    )

    with running(service, tmp_path / "log"):
        client.make_bucket("images")
        client.fput_object("images", "one", str(_file(tmp_path)))
    (tmp_path / "s3/images/.tmp.0123456789abcdef").write_bytes(b"half of an upload")
    (tmp_path / "s3/images/.nanio-meta/two.json.tmp").write_bytes(b"half of what is told of it")
    with running(service, tmp_path / "log"):
        answer = client.get_object("images", "one")
        assert answer.read() == b"bytes"
        answer.close()
        answer.release_conn()
        assert [each.object_name for each in client.list_objects("images")] == ["one"]
        client.fput_object("images", "two", str(_file(tmp_path)))
        with pytest.raises(minio.error.S3Error):
            stranger.list_buckets()
    for each in (client, stranger):
        each._http.clear()


def _file(folder: Path) -> Path:
    path = folder / "object"
    path.write_bytes(b"bytes")
    return path


def test_everything_listens_on_loopback_only(redis_url, database_url, s3_server):
    """From the kernel's own list: no listening socket of ours is bound to another address."""
    ports = {int(url.rpartition("port=")[2]) for url in (database_url,) if "port=" in url}
    ports |= {int(url.rpartition(":")[2].partition("/")[0]) for url in (redis_url, s3_server.url)}
    table = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    listening = [
        fields[1].split(":") for line in table.splitlines() if (fields := line.split())[3] == "0A"
    ]

    found = {(address, int(port, 16)) for address, port in listening if int(port, 16) in ports}

    assert {address for address, _ in found} == {"0100007F"}
    assert {port for _, port in found} == ports


def test_the_signal_that_ends_postgres_after_a_crash_lets_it_close_its_files(postgres_server):
    assert postgres_server.command.crash_signal == signal.SIGINT


def test_postgres_takes_the_connections_of_many_partitions(tmp_path: Path) -> None:
    """Each read model holds one for each of them."""
    few, many = (
        postgres.service(tmp_path / "postgres", free_port(), password="p", partitions=partitions)
        for partitions in (1, 64)
    )

    assert _most_connections(few) >= 200
    assert _most_connections(many) >= 200 + 64 * len(PROJECTIONS)


def _most_connections(service: Service) -> int:
    (found,) = (each for each in service.command.argv if each.startswith("max_connections="))
    return int(found.partition("=")[2])
