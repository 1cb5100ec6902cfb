"""Every setting of the service, and the only reader of the environment.

`load` is called once, at the entry point, and the values are passed down: a function takes
`lease_seconds`, never a `Settings`. `describe` feeds `hordechat settings` and docs/settings.md.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from archive.endpoints import Endpoint
from handlers.addresses import networks_of

_UNPREFIXED = frozenset(
    {
        "redis_url",
        "database_url",
        "s3_endpoint_url",
        "s3_access_key",
        "s3_secret_key",
        "s3_public_endpoint_url",
        "s3_region",
        "r2_source_image_bucket",
        "r2_chat_messages_bucket",
        "kudos_trust_threshold",
    }
)
_SECRET = frozenset({"s3_secret_key", "secret", "proxy_passkeys"})
_ENDPOINTS = ("s3_endpoint_url", "s3_public_endpoint_url")
_NETWORKS = ("whitelisted_ips", "forwarded_allow_ips")
_NOTATIONS = tuple(
    f"{family}_request_{window}_limit_per_ip"
    for family in ("text", "chat")
    for window in ("2sec", "90min")
)
_ORDERED = (
    ("text_free_output_floor", "text_free_output_ceiling"),
    ("text_free_output_wait_full_seconds", "text_free_output_wait_floor_seconds"),
)
_BUCKET = r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"
_REGION = r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$"
_PORTS = r"^[1-9][0-9]{0,4}(,[1-9][0-9]{0,4})*$"
_USERNAME = re.compile(r".+#[0-9]+")
_MASK = "***"


def env_name(field: str) -> str:
    """Name of the environment variable that sets a field: `partitions` -> `HORDE_PARTITIONS`."""
    return field.upper() if field in _UNPREFIXED else f"HORDE_{field.upper()}"


class SettingsError(Exception):
    """A setting has a value that it cannot have; the message names the variable."""


def _meta(description: str, unit: str = "", **bounds: Any) -> Meta:
    return Meta(description=description, extra={"unit": unit}, **bounds)


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename=env_name):
    """What the environment says, checked. Durations are seconds and sizes bytes unless the name
    says otherwise.
    """

    # Where the servers are
    redis_url: Annotated[
        str,
        _meta(
            "Valkey or Redis; of a cluster a few nodes, `redis://one:6379,two:6379`; empty: `up`"
            " starts an embedded Valkey",
            "URL",
            pattern=r"^((rediss?|unix)://.+)?$",
        ),
    ] = ""
    database_url: Annotated[
        str,
        _meta(
            "Postgres; empty: `up` starts an embedded Postgres",
            "URL",
            pattern=r"^(postgres(ql)?://.+)?$",
        ),
    ] = ""
    s3_endpoint_url: Annotated[
        str, _meta("S3-compatible store; empty: `up` starts an embedded one", "URL")
    ] = ""
    s3_access_key: Annotated[str, _meta("Access key of the S3 store")] = ""
    s3_secret_key: Annotated[str, _meta("Secret key of the S3 store")] = ""
    s3_public_endpoint_url: Annotated[
        str,
        _meta(
            "The S3 store as workers reach it, which signed URLs name; empty: as S3_ENDPOINT_URL",
            "URL",
        ),
    ] = ""
    s3_region: Annotated[
        str, _meta("Region that requests to the S3 store are signed for", pattern=_REGION)
    ] = "us-east-1"
    r2_source_image_bucket: Annotated[
        str, _meta("Bucket of the images of chat requests", "bucket", pattern=_BUCKET)
    ] = "horde-source-images"
    r2_chat_messages_bucket: Annotated[
        str,
        _meta(
            "Bucket of offloaded messages; empty: as R2_SOURCE_IMAGE_BUCKET",
            "bucket",
            pattern=f"^$|{_BUCKET}",
        ),
    ] = ""

    # This deployment
    host: Annotated[str, _meta("Address that the web process listens on", min_length=1)] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, _meta("Port that the web process listens on; 0: a free one", ge=0, le=65535)
    ] = 8000
    web_workers: Annotated[
        int, _meta("Worker processes of the web server", "processes", ge=1, le=512)
    ] = 1
    partitions: Annotated[
        int,
        _meta("Partitions of the event log; fixed at the first start", "partitions", ge=1, le=4096),
    ] = 1
    secret: Annotated[
        str,
        _meta(
            "Key of the HMAC under which API keys are looked up; empty: `up` makes one and keeps "
            "it in the data directory"
        ),
    ] = ""
    test: Annotated[
        bool,
        _meta("Clock seam and check of undeclared keys for tests; never on in production"),
    ] = False
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        _meta("Least level of the log lines that are written"),
    ] = "INFO"

    # Requests and workers
    request_ttl_seconds: Annotated[
        int, _meta("Life of a request, from its last hand-out or reply", "seconds", ge=1)
    ] = 1200
    online_window_seconds: Annotated[
        int, _meta("A worker counts as online this long after its last check-in", "seconds", ge=1)
    ] = 300
    check_in_window_seconds: Annotated[
        int,
        _meta("A pop with an unchanged declaration is recorded this often", "seconds", ge=0),
    ] = 30
    janitor_seconds: Annotated[
        float,
        _meta("Pause between two passes of the janitor", "seconds", gt=0),
    ] = 60
    fault_holdoff_seconds: Annotated[
        int,
        _meta("A faulted request is not offered to the same worker for this long", "seconds", ge=0),
    ] = 10

    # Leases and faults
    text_job_lease_seconds: Annotated[
        int, _meta("Lease of a text or chat job without streaming", "seconds", ge=1)
    ] = 150
    text_job_preparation_seconds: Annotated[
        int,
        _meta(
            "Part of a lease that passes before the first token: a chat job goes to workers fast "
            "enough to finish it in the rest",
            "seconds",
            ge=0,
        ),
    ] = 30
    trusted_text_job_lease_cap_seconds: Annotated[
        int, _meta("Longest lease that a trusted worker's progress can reach", "seconds", ge=1)
    ] = 600
    untrusted_text_job_lease_cap_seconds: Annotated[
        int, _meta("Longest lease that an untrusted worker's progress can reach", "seconds", ge=1)
    ] = 200
    faulted_generations_limit: Annotated[
        int, _meta("Faults after which a request is faulted as a whole", "faults", ge=1)
    ] = 2
    max_chat_fault_reason_length: Annotated[
        int, _meta("Longest fault reason that is kept", "characters", ge=1)
    ] = 1000

    workers_per_user: Annotated[
        int, _meta("Workers of an account that is not trusted", "workers", ge=0)
    ] = 3
    workers_per_trusted_user: Annotated[
        int, _meta("Workers of a trusted account", "workers", ge=0)
    ] = 20
    validated_backends: Annotated[
        str,
        _meta(
            "Bridge agents that a request with validated_backends may go to",
            "comma-separated names",
        ),
    ] = (
        "AI Horde Worker,AI Horde Worker~aphrodite~oai,AI Horde Worker~aphrodite~kai,"
        "KoboldCppEmbedWorker,TabbyAPI"
    )
    reply_check_seconds: Annotated[
        float,
        _meta("A reply that cannot be held to its schema within this is refused", "seconds", gt=0),
    ] = 2
    reply_check_processes: Annotated[
        int,
        _meta("Processes that hold replies to schemas, for each web process", "processes", ge=1),
    ] = 2

    # Sizes of chat requests and replies
    max_chat_body_bytes: Annotated[int, _meta("Largest body of a chat request", "bytes", ge=1)] = (
        37_748_736
    )
    max_chat_message_count: Annotated[
        int, _meta("Most messages in a chat request", "messages", ge=1)
    ] = 1024
    max_chat_text_bytes: Annotated[int, _meta("Most text in a chat request", "bytes", ge=1)] = (
        1_048_576
    )

    # Images of chat requests
    image_processes: Annotated[
        int,
        _meta("Processes that decode and encode images, for each web process", "processes", ge=1),
    ] = 2
    image_seconds: Annotated[
        float, _meta("An image that takes more CPU to normalise is refused", "seconds", gt=0)
    ] = 10
    image_fetch_seconds: Annotated[
        float, _meta("An image has to arrive from its URL within this", "seconds", gt=0)
    ] = 10
    images_fetch_seconds: Annotated[
        float,
        _meta(
            "All images of a request have to arrive from their URLs within this", "seconds", gt=0
        ),
    ] = 30
    image_fetch_ports: Annotated[
        str, _meta("Ports that images are fetched from", "comma-separated", pattern=_PORTS)
    ] = "80,443"
    images_at_once_bytes: Annotated[
        int,
        _meta(
            "Images being fetched, normalised and stored at once, in one web process; at least "
            "those of one request",
            "bytes",
            ge=64 * 2**20,
        ),
    ] = 128 * 2**20

    # Offload of chat messages
    chat_messages_offload_enabled: Annotated[
        bool, _meta("Store large messages as one object, for workers that take messages_url")
    ] = False
    chat_messages_offload_bytes: Annotated[
        int, _meta("Largest messages that stay inline, images included", "bytes", ge=0)
    ] = 262_144
    chat_messages_offload_gzip: Annotated[
        bool, _meta("Store them gzipped where that is smaller")
    ] = False

    # Who may submit, and how often
    chat_admission_enabled: Annotated[
        bool, _meta("Take new chat requests; those already queued are served either way")
    ] = True
    rate_limits_enabled: Annotated[
        bool, _meta("Hold callers to rate limits; off for private pools and load tests")
    ] = True
    text_request_2sec_limit_per_ip: Annotated[
        str, _meta("Short budget of text submits for one address", "limit notation", min_length=1)
    ] = "2/second"
    text_request_90min_limit_per_ip: Annotated[
        str, _meta("Long budget of text submits for one address", "limit notation", min_length=1)
    ] = "90/minute"
    chat_request_2sec_limit_per_ip: Annotated[
        str,
        _meta("Short budget of chat submits for one address; empty: as text", "limit notation"),
    ] = ""
    chat_request_90min_limit_per_ip: Annotated[
        str,
        _meta("Long budget of chat submits for one address; empty: as text", "limit notation"),
    ] = ""
    whitelisted_ips: Annotated[
        str, _meta("Service addresses with wider budgets", "comma-separated addresses")
    ] = ""
    forwarded_allow_ips: Annotated[
        str,
        _meta(
            "Peers whose X-Forwarded-For is believed, for one hop",
            "comma-separated addresses or networks",
        ),
    ] = "127.0.0.1,::1"
    proxy_passkeys: Annotated[
        str,
        _meta(
            "Passkeys with which a front may name its client's address in Proxied-For",
            "comma-separated",
        ),
    ] = ""
    admins: Annotated[
        str, _meta("Who may set maintenance mode over HTTP", "comma-separated name#id")
    ] = ""
    concurrency: Annotated[
        int, _meta("Jobs of one account that may wait at once", "jobs", ge=0)
    ] = 30
    anonymous_concurrency: Annotated[
        int, _meta("Anonymous jobs for one model that may wait at once", "jobs", ge=0)
    ] = 500

    # Kudos
    kudos_trust_threshold: Annotated[
        str,
        _meta(
            "Kudos in escrow beyond which an account of a week earns trust; empty: only moderators"
            " give it",
            "kudos",
            pattern=r"^([0-9]{1,9})?$",
        ),
    ] = ""
    require_matched_targeting: Annotated[
        bool,
        _meta("Jobs whose request names its workers are worth a tenth of a kudos"),
    ] = False

    text_free_output_ceiling: Annotated[
        int,
        _meta("Longest output that idle workers give without kudos upfront", "tokens", ge=16),
    ] = 4096
    text_free_output_floor: Annotated[
        int, _meta("Longest output that needs no kudos upfront under any load", "tokens", ge=16)
    ] = 512
    text_free_output_wait_full_seconds: Annotated[
        float, _meta("Wait up to which the ceiling is free", "seconds", ge=0)
    ] = 60
    text_free_output_wait_floor_seconds: Annotated[
        float, _meta("Wait from which on only the floor is free", "seconds", ge=0)
    ] = 300
    upfront_kudos_on_workerlist: Annotated[
        bool,
        _meta("Requests that list workers need their kudos upfront, whatever their length"),
    ] = False

    # Models and moderation
    text_model_reference: Annotated[
        str,
        _meta("JSON file of known models; empty: the one that ships; read again when it changes"),
    ] = ""
    replacement_filters: Annotated[
        str, _meta("JSON file of replacement filters; empty: none; read again when it changes")
    ] = ""

    # Progress
    max_chat_progress_entries: Annotated[
        int, _meta("Most progress posts of a generation", "posts", ge=1)
    ] = 1000
    chat_progress_bytes_per_token: Annotated[
        int, _meta("Streamed bytes allowed for each token asked for", "bytes", ge=1)
    ] = 16
    chat_progress_stream_ttl_seconds: Annotated[
        int, _meta("Life of a progress stream after its last entry", "seconds", ge=1)
    ] = 900
    chat_progress_stream_max_entries: Annotated[
        int, _meta("Most entries of a progress stream", "entries", ge=1)
    ] = 4000
    chat_progress_lease_grace_seconds: Annotated[
        int, _meta("A stream lease outlives its job's lease by this", "seconds", ge=1)
    ] = 90

    # Admission and load
    admission_deadline_seconds: Annotated[
        int,
        _meta("An admission not followed by its request within this is abandoned", "seconds", ge=1),
    ] = 60
    memory_limit_bytes: Annotated[
        int,
        _meta(
            "used_memory of Redis past which submissions get 503; 0: nine tenths of its maxmemory, "
            "where it has one",
            "bytes",
            ge=0,
        ),
    ] = 0

    # History
    archive_bucket: Annotated[
        str,
        _meta(
            "Bucket of the log's archive, for this deployment alone; lost, history is",
            "bucket",
            pattern=_BUCKET,
        ),
    ] = "horde-archive"
    segment_bytes: Annotated[
        int,
        _meta(
            "The archiver closes a segment of a log that has come to so much",
            "bytes",
            ge=1,
            le=2**28,
        ),
    ] = 8 * 2**20
    segment_seconds: Annotated[
        float,
        _meta("It closes one whose first event is so old, whatever its size", "seconds", gt=0),
    ] = 60
    archiver_seconds: Annotated[
        float, _meta("Pause between two passes of the archiver", "seconds", gt=0)
    ] = 1
    snapshot_events: Annotated[
        int,
        _meta(
            "The archiver takes a snapshot of a partition's state after so many events; 0: never",
            "events",
            ge=0,
        ),
    ] = 1_000_000
    log_retention_seconds: Annotated[
        float,
        _meta("Events stay in Redis for so long, where there is room", "seconds", ge=0),
    ] = 3600
    log_memory_bytes: Annotated[
        int,
        _meta(
            "Memory that all logs in Redis together keep to; past it events go as soon as they are "
            "archived and read",
            "bytes",
            ge=1,
        ),
    ] = 256 * 2**20
    log_memory_hard_bytes: Annotated[
        int,
        _meta(
            "Memory of all logs in Redis together past which submissions get 503; 0: no limit",
            "bytes",
            ge=0,
        ),
    ] = 2 * 2**30

    # Waiting and failing
    wait_limit_seconds: Annotated[
        int, _meta("Cap of `Prefer: wait=N`", "seconds", ge=0, le=600)
    ] = 60
    stale_seconds: Annotated[
        float,
        _meta(
            "A read model that stood still this long behind its head answers 503", "seconds", gt=0
        ),
    ] = 5
    redis_timeout_seconds: Annotated[
        float, _meta("A batch of Redis commands is given up after", "seconds", gt=0)
    ] = 0.6
    database_timeout_seconds: Annotated[
        float, _meta("A database query of the web process is given up after", "seconds", gt=0)
    ] = 0.6
    drain_seconds: Annotated[
        float, _meta("Grace for calls in flight at SIGTERM", "seconds", gt=0)
    ] = 10

    # Caches
    availability_cache_seconds: Annotated[
        float, _meta("Life of the cached model availability", "seconds", ge=0)
    ] = 60
    worker_details_cache_seconds: Annotated[
        float, _meta("Life of the cached answers about workers", "seconds", ge=0)
    ] = 30
    models_cache_seconds: Annotated[
        float, _meta("Life of the cached list of models", "seconds", ge=0)
    ] = 2

    statistics_cache_seconds: Annotated[
        float, _meta("Life of the cached totals of what was generated", "seconds", ge=0)
    ] = 50

    # Projectors
    projector_batch: Annotated[
        int, _meta("Most events in one transaction of a projector", "events", ge=1)
    ] = 500
    projector_pause_ms: Annotated[
        float,
        _meta("Longest pause between two transactions of a busy projector", "milliseconds", ge=0),
    ] = 24


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, for people: values as text, secrets masked."""

    name: str
    value: str
    default: str
    unit: str
    meaning: str


def load(environ: Mapping[str, str]) -> Settings:
    """Read the settings; variables that are absent or empty keep their default. Raises
    SettingsError.
    """
    names = (field.encode_name for field in msgspec.structs.fields(Settings))
    given = {name: environ[name] for name in names if environ.get(name)}
    try:
        found = msgspec.convert(given, Settings, strict=False)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        raise SettingsError(f"{path.rstrip('`')}: {reason}") from None
    if found.text_job_preparation_seconds >= found.text_job_lease_seconds:
        raise SettingsError(
            f"{env_name('text_job_preparation_seconds')}: has to be less than "
            f"{env_name('text_job_lease_seconds')}, or no worker could finish a chat job in time"
        )
    for low, high in _ORDERED:
        if getattr(found, low) > getattr(found, high):
            raise SettingsError(f"{env_name(low)}: has to be at most {env_name(high)}")
    if 0 < found.log_memory_hard_bytes <= found.log_memory_bytes:
        raise SettingsError(
            f"{env_name('log_memory_hard_bytes')}: has to be more than "
            f"{env_name('log_memory_bytes')}, or 0"
        )
    if found.archive_bucket in (found.r2_source_image_bucket, found.r2_chat_messages_bucket):
        raise SettingsError(
            f"{env_name('archive_bucket')}: must not hold anything else: what is in the others is "
            "deleted with its requests"
        )
    if found.s3_endpoint_url and not (found.s3_access_key and found.s3_secret_key):
        raise SettingsError(
            f"{env_name('s3_access_key')}, {env_name('s3_secret_key')}: have to be set where "
            f"{env_name('s3_endpoint_url')} is, or nothing could be signed"
        )
    _each_is(Endpoint.parse, found, (field for field in _ENDPOINTS if getattr(found, field)))
    _each_is(networks_of, found, _NETWORKS)
    for entry in filter(None, map(str.strip, found.admins.split(","))):
        if not _USERNAME.fullmatch(entry):
            raise SettingsError(f"{env_name('admins')}: {entry!r} is no username like `alice#1`")
    defaults = Settings()
    if own := [each for each in _NOTATIONS if getattr(found, each) != getattr(defaults, each)]:
        from api.notation import items_of  # most commands need no rate limits: it takes 0.2 s

        _each_is(items_of, found, own)
    return found


def _each_is(parse: Callable[[str], object], found: Settings, fields: Iterable[str]) -> None:
    """Raise SettingsError for the first of these fields that `parse` raises ValueError for."""
    for field in fields:
        try:
            parse(getattr(found, field))
        except ValueError as error:
            raise SettingsError(f"{env_name(field)}: {error}") from None


def to_environ(settings: Settings) -> dict[str, str]:
    """Every setting as an environment: what `load` reads back as the same settings. Empty values
    are left out.
    """
    values: dict[str, Any] = msgspec.to_builtins(settings)
    return {name: text for name, value in values.items() if (text := _text(value))}


def describe(settings: Settings) -> list[Row]:
    """One row for each setting, in the order of the struct; nothing secret in them."""
    rows = []
    for field in msgspec.structs.fields(Settings):
        (meta,) = field.type.__metadata__
        value = _text(getattr(settings, field.name))
        if value:
            value = _MASK if field.name in _SECRET else mask_url(value)
        rows.append(
            Row(
                name=field.encode_name,
                value=value,
                default=_text(field.default),
                unit=meta.extra["unit"],
                meaning=meta.description,
            )
        )
    return rows


def markdown(rows: Iterable[Row]) -> str:
    """The page docs/settings.md: names, defaults, units and meanings."""
    lines = [
        "# Settings",
        "",
        "Environment variables, read once when a process starts. `hordechat settings` shows the",
        "values in force. This page is written by `make docs`.",
        "",
        "| name | default | unit | meaning |",
        "|---|---|---|---|",
    ]
    for row in rows:
        default = f"`{row.default}`" if row.default else ""
        lines.append(f"| `{row.name}` | {default} | {row.unit} | {row.meaning} |")
    return "\n".join(lines) + "\n"


def mask_url(url: str) -> str:
    """The URL with its password hidden, also one in the query; any other text as it is."""
    masked = re.sub(r"(?<=://)([^/?#@]*?):[^/?#]*@", rf"\1:{_MASK}@", url)
    return re.sub(r"(?i)([?&](?:password|sslpassword)=)[^&#]*", rf"\1{_MASK}", masked)


def _text(value: object) -> str:
    """A value as the environment would spell it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
