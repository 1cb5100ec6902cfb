"""What happens to requests and to their generations."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from events.base import Event


class Adjustment(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"before": "from", "after": "to"},
):
    """One change that was made to a request so that it can be served, in tokens: an entry of
    `context_adjustments`."""

    before: int  # tokens
    after: int  # tokens
    reason: str  # worker_max_length, grow, truncate_oldest
    dropped_messages: int | None = None  # with truncate_oldest


class Demand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request asks of a worker, and the sizes that statistics need.

    Scripts never read it.
    """

    models: tuple[str, ...] = ()
    """Acceptable models; empty means any (text requests only)."""

    max_context_length: int = 2048
    features: tuple[str, ...] = ()
    """Features and guarantees, sorted (`chat_required_features`)."""

    conformance: str = "strict"  # strict, best_effort
    tools_temperature: float | None = None  # where tools are called
    images: bool = False  # there are some in its messages
    only: tuple[str, ...] = ()  # workers that may serve it; empty: any
    ignore: tuple[str, ...] = ()  # workers that may not
    trusted_workers: bool = False  # of trusted owners only
    validated_backends: bool = False  # with validated backends only
    slow_workers: bool = True  # slow ones, too
    messages: int = 0  # how many it has
    prompt_bytes: int = 0  # UTF-8, of the flattened prompt
    prompt_characters: int = 0  # of it, too: what prices count
    context_adjustments: tuple[Adjustment, ...] = ()
    """In the order in which they were made; empty where nothing was changed."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker reported beside its reply.

    Never changes a charge.
    """

    native_finish_reason: str | None = None  # its backend's own word
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None


class Submitted(Event, frozen=True, kw_only=True, tag="submitted"):
    """A request was accepted and waits for workers."""

    request_id: str
    user_id: int
    chat: bool
    jobs: int
    max_length: int  # tokens
    stream: bool
    ttl: int  # seconds until it expires, counted again from each assignment and each reply
    priority: int  # 10^-4 kudos: the payer's balance at admission, and its exceptions
    data: Demand
    operation_key: str = ""
    deadline_ms: int = 0  # of its admission: until then a repeat of the submit may still come
    prompt_tokens: int = 0  # what its prompt counts as in prices
    targeted: bool = False  # it names the workers that may serve it
    shared_key: str = ""  # of the payer, with which it was submitted
    tax: int = 0  # charged at its admission
    images: int = 0  # of its messages; each is an object in the store
    offloaded: bool = False  # its messages are an object there, too


class Assigned(Event, frozen=True, kw_only=True, tag="assigned"):
    """A worker took one job of the request and holds its lease."""

    SCRIPT: ClassVar = ("waiting", "user_id", "image_transport")

    request_id: str
    generation_id: str
    worker_id: str
    worker_name: str
    owner_id: int
    model: str
    max_length: int  # the worker's chat limits at this moment, as `assigned_max_length`
    max_context_length: int
    job_ttl: int  # seconds, the base lease
    lease_cap: int  # seconds from the assignment that renewals never pass
    trusted: bool = False  # the owner's role at this moment
    over_capacity: int = 0
    """Tokens that a legacy text request asked for, where the worker's speed does not finish as many
    in the lease; 0 where it does."""
    validated: bool = False  # the worker's backend is one of those that are validated
    waiting: int = 0  # jobs of the request that still wait
    user_id: int = 0  # the payer
    image_transport: str = ""  # url, base64, messages_url; empty: sent inline, without images


class Progressed(Event, frozen=True, kw_only=True, tag="progressed"):
    """A streamed job's lease was renewed past the deadline that the log knew."""

    SCRIPT: ClassVar = ("deadline_ms", "job_ttl")

    request_id: str
    generation_id: str
    deadline_ms: int = 0  # of the lease, now
    job_ttl: int = 0  # seconds from the assignment to it


class SubmittedReply(Event, frozen=True, kw_only=True, tag="submitted-reply"):
    """A worker delivered the reply of a generation that it held."""

    SCRIPT: ClassVar = ("finished", "done", "elapsed_ms", "max_length")

    request_id: str
    generation_id: str
    user_id: int
    worker_id: str
    owner_id: int
    model: str
    state: str  # ok, censored, csam
    finish_reason: str  # stop, length, content_filter, tool_calls
    characters: int  # of content, reasoning and tool calls
    tool_calls: int  # how many the reply holds
    seed: int = 0  # as its worker told it
    data: Usage = Usage()
    believable: int = 0  # 10^-3 tokens a second that its worker may reach; 0: not recorded
    price: int = 0  # what its worker's owner is paid
    escrow: int = 0  # of which so much waits until the owner is trusted
    charge: int = 0  # what its payer pays, the burn included
    burn: int = 0
    shared_key: str = ""  # of the payer, with which it was submitted
    finished: int = 0  # replies the request has now
    done: bool = False
    elapsed_ms: int = 0  # since the assignment; 0: not recorded
    max_length: int = 0  # tokens that the request asked for


class Returned(Event, frozen=True, kw_only=True, tag="returned"):
    """A job went back to the queue without blame: the worker was gone, or its payload could not be
    built."""

    SCRIPT: ClassVar = ("user_id", "waiting", "finished", "done")

    request_id: str
    generation_id: str
    user_id: int = 0
    waiting: int = 0
    finished: int = 0
    done: bool = False


class Refused(Event, frozen=True, kw_only=True, tag="refused"):
    """A reply was not taken; its worker may send another, and its job goes on.

    What the worker was told may quote the reply: it is content.
    """

    request_id: str
    generation_id: str
    rc: str  # ChatSubmitInvalid, ChatSubmitNonconformant, ChatModelMismatch


class Faulted(Event, frozen=True, kw_only=True, tag="faulted"):
    """A job failed: its worker said so, or its lease lapsed.

    The restart, if any, is part of the same fact.
    """

    SCRIPT: ClassVar = (
        "worker_id",
        "user_id",
        "restarted",
        "waiting",
        "exhausted",
        "finished",
        "done",
        "refusal_rc",
        "fault_rc",
        "fault_code",
        "job_ttl",
    )

    request_id: str
    generation_id: str
    cause: str  # worker, lapse
    holdoff: int  # seconds in which this worker is not offered the request again
    reason: str = ""  # why, a word of events/faults.py; empty where the worker said none of them
    worker_id: str = ""
    user_id: int = 0
    restarted: bool = False  # its job waits again
    waiting: int = 0
    exhausted: bool = False  # the request crossed FAULTED_GENERATIONS_LIMIT and is faulted itself
    finished: int = 0
    done: bool = False
    refusal_rc: str = ""  # of the last refused reply to this generation
    fault_rc: str = ""  # the request's, now: of its last refusal, or ChatWorkerFault
    fault_code: str = ""  # with ChatWorkerFault: the worker's reason
    job_ttl: int = 0  # seconds of its lease in the end; 0 where that was not recorded


class Cancelled(Event, frozen=True, kw_only=True, tag="cancelled"):
    """No more jobs of the request are handed out: its client does not want it any more, or the
    service went into maintenance.

    In-flight jobs of a streamed request end with a client's cancel, and go on in maintenance.
    """

    SCRIPT: ClassVar = (
        "user_id",
        "settled",
        "characters",
        "finished",
        "done",
        "max_length",
        "shared_key",
        "elapsed_ms",
    )

    request_id: str
    generations: tuple[str, ...]
    cause: str = "client"  # client, maintenance
    workers: tuple[str, ...] = ()  # of each generation in turn, settled or not, as the next four
    owners: tuple[int, ...] = ()
    trusted: tuple[int, ...] = ()  # 1 where the owner was, when it was assigned
    rates: tuple[str, ...] = ()  # what its output costs (events/prices.py)
    believable: tuple[int, ...] = ()  # 10^-3 tokens a second that its worker may reach
    burn: int = 0  # that its payer pays beside
    user_id: int = 0
    settled: tuple[str, ...] = ()  # generations ended here, their partial output owed
    characters: tuple[int, ...] = ()  # posted characters of each settled generation
    finished: int = 0
    done: bool = False
    max_length: int = 0  # tokens that the request asked for
    shared_key: str = ""  # of the payer, with which it was submitted
    elapsed_ms: tuple[int, ...] = ()  # since its assignment, of each settled generation


class Expired(Event, frozen=True, kw_only=True, tag="expired"):
    """The request and everything of it is gone from hot state.

    Until its admission's deadline a mark is left: a repeat of its submit must not revive it.
    """

    SCRIPT: ClassVar = (
        "user_id",
        "cause",
        "finished",
        "done",
        "operation_key",
        "fault_rc",
        "fault_code",
    )

    request_id: str
    generations: tuple[str, ...]
    user_id: int = 0
    cause: str = "ttl"  # ttl, content-lost
    finished: int = 0
    done: bool = False  # true where the request was not done before
    operation_key: str = ""
    fault_rc: str = ""  # as of `faulted`
    fault_code: str = ""


class Abandoned(Event, frozen=True, kw_only=True, tag="abandoned"):
    """An admission came to its deadline without its request, or was given up before."""

    request_id: str
    user_id: int
    ttl: int  # seconds that the refusal of a late submit is remembered
    operation_key: str = ""
    shared_key: str = ""  # that its admission named
    images: int = 0  # that may be stored as objects, as its admission says
    offloaded: bool = False  # whether its messages may be
