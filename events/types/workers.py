"""What happens to workers."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from events.base import Event


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker declared on a pop (the six chat fields of the declaration ADR, and the text
    limits)."""

    models: tuple[str, ...] = ()  # that it serves
    bridge_agent: str = "unknown:0:unknown"  # its program: name, version, where it is from
    nsfw: bool = True
    threads: int = 1  # jobs at once
    max_length: int = 512  # tokens of a text job's reply
    max_context_length: int = 2048  # tokens of a text job
    chat_jobs: bool = False  # it takes some
    prompt_jobs: bool = True  # it takes some
    model_id: str | None = None  # the model of its chat jobs
    chat_features: tuple[str, ...] = ()
    chat_max_context_length: int | None = None  # tokens of a chat job
    chat_max_length: int | None = None  # tokens of a chat job's reply
    chat_tools_max_temperature: float | None = None  # the highest, where tools are called
    image_transports: tuple[str, ...] = ()  # url, base64, messages_url


class CheckedIn(Event, frozen=True, kw_only=True, tag="checked-in"):
    """A worker showed itself, new, with a changed declaration, or after the check-in window."""

    SCRIPT: ClassVar = ("created", "uptime_ms", "reward", "rewarded_uptime_ms")

    worker_id: str
    name: str
    user_id: int  # its owner
    trusted: bool  # the owner's role now
    declared: str  # digest of the declaration
    data: Declaration
    created: bool = False  # it is new
    uptime_ms: int = 0  # in all: online, neither paused nor in maintenance
    reward: int = 0  # for having been online, due now
    rewarded_uptime_ms: int = 0  # the uptime up to which rewards are settled


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What people are told of a worker."""

    info: str = ""  # its owner's words


class WorkerChanged(Event, frozen=True, kw_only=True, tag="worker-changed"):
    """Its owner or a moderator changed what a worker may do, or what is said of it.

    Only what `changed` names was changed; the other fields say nothing.
    """

    worker_id: str
    changed: tuple[str, ...]  # maintenance, paused, info
    maintenance: bool = False  # it gets no jobs, and is told why
    maintenance_msg: str = ""  # the operator's words for the worker; with `maintenance`
    paused: bool = False  # it gets no jobs, and is not told
    data: Profile = Profile()


class NameClaimed(Event, frozen=True, kw_only=True, tag="name-claimed"):
    """A name is registered for a worker that has another one: it is about to be called so."""

    name: str
    worker_id: str


class WorkerRenamed(Event, frozen=True, kw_only=True, tag="worker-renamed"):
    """A worker is called what was claimed for it.

    Carried over by the settler.
    """

    SCRIPT: ClassVar = ("former",)

    worker_id: str
    name: str
    source: int
    source_position: str
    former: str = ""  # its name until now, which is free; where it is gone: the one claimed for it


class NameFreed(Event, frozen=True, kw_only=True, tag="name-freed"):
    """Anyone may claim the name again: its worker is gone, or has another one.

    Carried over by the settler.
    """

    name: str
    worker_id: str
    source: int
    source_position: str


class WorkerDeleted(Event, frozen=True, kw_only=True, tag="worker-deleted"):
    """A worker is no more."""

    worker_id: str
    name: str


class WorkerAborted(Event, frozen=True, kw_only=True, tag="worker-aborted"):
    """A fault was counted against the worker that held the job.

    One that drops too many within an hour is put into maintenance: that is the same fact. Carried
    over by the settler.
    """

    SCRIPT: ClassVar = ("window_ms", "recent", "maintenance_msg")

    worker_id: str
    generation_id: str
    source: int
    source_position: str
    window_ms: int = 0  # when the hour began in which drops are counted; 0: not recorded
    recent: int = 0  # drops in it so far, this one included
    maintenance_msg: str = ""  # what the worker is told from now on; empty: it goes on as before


class WorkerNonconformant(Event, frozen=True, kw_only=True, tag="worker-nonconformant"):
    """A job ended whose last reply broke the contract of its strict request.

    The worker did its part: this is counted, and never puts it into maintenance. Carried over by
    the settler.
    """

    worker_id: str
    generation_id: str
    source: int
    source_position: str


class WorkerMeasured(Event, frozen=True, kw_only=True, tag="worker-measured"):
    """How fast a worker was with some replies, and with its newest ones now.

    Carried over by the settler, several samples at once. Speeds are in 10^-3 tokens a second.
    """

    SCRIPT: ClassVar = ("speed",)

    worker_id: str
    samples: tuple[int, ...]  # oldest first
    source: int
    source_position: str
    speed: int = 0  # the average of its newest samples, these included
