"""Every event of the log.

A stored word (the tag) never changes meaning: a new meaning is a new word or a new `v`. Ids are
UUID text, account ids are integers, times end `_ms` (Redis clock), amounts are integers of 10^-4
kudos. No prompt, reply, image, message or address is ever a field.
"""

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

    before: int
    after: int
    reason: str  # worker_max_length, grow, truncate_oldest
    dropped_messages: int | None = None


class Demand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request asks of a worker, and the sizes that statistics need.

    Scripts never read it.
    """

    models: tuple[str, ...] = ()
    """Acceptable models; empty means any (text requests only)."""

    max_context_length: int = 2048
    features: tuple[str, ...] = ()
    """Features and guarantees, sorted (`chat_required_features`)."""

    conformance: str = "strict"
    tools_temperature: float | None = None
    images: bool = False
    only: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    trusted_workers: bool = False
    validated_backends: bool = False
    slow_workers: bool = True
    messages: int = 0
    prompt_bytes: int = 0  # UTF-8, of the flattened prompt
    prompt_characters: int = 0  # of it, too: what prices count
    context_adjustments: tuple[Adjustment, ...] = ()
    """In the order in which they were made; empty where nothing was changed."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker declared on a pop (the six chat fields of the declaration ADR, and the text
    limits)."""

    models: tuple[str, ...] = ()
    bridge_agent: str = "unknown:0:unknown"
    nsfw: bool = True
    threads: int = 1
    max_length: int = 512
    max_context_length: int = 2048
    chat_jobs: bool = False
    prompt_jobs: bool = True
    model_id: str | None = None
    chat_features: tuple[str, ...] = ()
    chat_max_context_length: int | None = None
    chat_max_length: int | None = None
    chat_tools_max_temperature: float | None = None
    image_transports: tuple[str, ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker reported beside its reply.

    Never changes a charge.
    """

    native_finish_reason: str | None = None
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


class Assigned(Event, frozen=True, kw_only=True, tag="assigned"):
    """A worker took one job of the request and holds its lease."""

    SCRIPT: ClassVar = ("waiting", "user_id")

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


class Progressed(Event, frozen=True, kw_only=True, tag="progressed"):
    """A streamed job's lease was renewed past the deadline that the log knew."""

    SCRIPT: ClassVar = ("deadline_ms", "job_ttl")

    request_id: str
    generation_id: str
    deadline_ms: int = 0
    job_ttl: int = 0


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
    finish_reason: str
    characters: int  # of content, reasoning and tool calls
    tool_calls: int
    seed: int = 0
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
    restarted: bool = False
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
    # Of each generation, in turn; those that are not settled are listed too.
    workers: tuple[str, ...] = ()
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
    """An admission came to its deadline without its request."""

    request_id: str
    user_id: int
    ttl: int  # seconds that the refusal of a late submit is remembered
    operation_key: str = ""
    shared_key: str = ""  # that its admission named


class CheckedIn(Event, frozen=True, kw_only=True, tag="checked-in"):
    """A worker showed itself, new, with a changed declaration, or after the check-in window."""

    SCRIPT: ClassVar = ("created", "uptime_ms", "reward", "rewarded_uptime_ms")

    worker_id: str
    name: str
    user_id: int
    trusted: bool  # the owner's role now
    declared: str  # digest of the declaration
    data: Declaration
    created: bool = False
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
    maintenance: bool = False
    maintenance_msg: str = ""  # the operator's words for the worker; with `maintenance`
    paused: bool = False
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


class AccountOpened(Event, frozen=True, kw_only=True, tag="account-opened"):
    """An account exists.

    `key` is the HMAC of its API key, never the key.
    """

    SCRIPT: ClassVar = ("user_id",)

    name: str
    key: str
    trusted: bool = False
    moderator: bool = False
    kudos: int = 0
    flagged: bool = False
    kind: str = "registered"  # anonymous, pseudonymous
    floor: int = 0  # the least that its balance may be
    concurrency: int = 0  # jobs that may wait at once; 0: as the settings say, -1: none
    roles: tuple[str, ...] = ()  # those of events/roles.py beside the three above
    user_id: int = 0


class AccountChanged(Event, frozen=True, kw_only=True, tag="account-changed"):
    """What an account is called, or may do, was changed.

    Only what `changed` names was changed; the other fields say nothing.
    """

    user_id: int
    changed: tuple[str, ...]  # names of the fields below, or of roles
    by: int = -1  # the account that did; -1: the operator
    roles: tuple[str, ...] = ()  # of the roles that `changed` names, those that it has now
    name: str = ""
    concurrency: int = 0  # as in account-opened
    worker_invited: int = 0  # workers that it may have, where that is more than trusted ones may
    public_workers: bool = False  # its workers' owner is told
    monthly_kudos: int = 0  # 10^-4
    usage_multiplier: int = 0  # 10^-3
    suspicious: int = 0  # replies that came too fast to be believed, counted from here


class AccountRekeyed(Event, frozen=True, kw_only=True, tag="account-rekeyed"):
    """An account has another API key; the former one is nobody's."""

    user_id: int
    key: str  # HMAC, as `former`
    former: str


class PasskeyChanged(Event, frozen=True, kw_only=True, tag="passkey-changed"):
    """A service account's proxies may name the addresses of their clients with this passkey."""

    user_id: int
    passkey: str  # HMAC; empty: with none any more
    former: str = ""


class AccountDeleted(Event, frozen=True, kw_only=True, tag="account-deleted"):
    """An account is nobody's: its name, keys and roles are gone.

    Its number and what it owns stay: the ledger names it.
    """

    user_id: int
    key: str  # HMAC of the API key that it had
    passkey: str = ""
    shared_keys: tuple[str, ...] = ()


class SharedKeyOpened(Event, frozen=True, kw_only=True, tag="shared-key-opened"):
    """An account's kudos may be spent with this key as well, within its budget."""

    shared_key: str
    user_id: int
    name: str = ""
    kudos: int = 0  # 10^-4 kudos that may be spent; -1: no end
    expiry_ms: int = 0  # 0: never
    max_text_tokens: int = -1  # of one request, like the next; -1: no cap
    max_image_pixels: int = -1
    max_image_steps: int = -1


class SharedKeyChanged(Event, frozen=True, kw_only=True, tag="shared-key-changed"):
    """A shared key was changed.

    Only what `changed` names was changed; the other fields say nothing.
    """

    shared_key: str
    user_id: int
    changed: tuple[str, ...]  # names of the fields below
    name: str = ""
    kudos: int = 0
    expiry_ms: int = 0
    max_text_tokens: int = -1
    max_image_pixels: int = -1
    max_image_steps: int = -1


class SharedKeyDeleted(Event, frozen=True, kw_only=True, tag="shared-key-deleted"):
    """A shared key is no more."""

    shared_key: str
    user_id: int


class Granted(Event, frozen=True, kw_only=True, tag="granted"):
    """The operator or a moderator gave an account kudos, or took some (less than 0)."""

    user_id: int
    amount: int
    grant_id: str  # of the command
    cause: str = "admin"  # admin, recurring
    by: int = -1  # the moderator's account; -1: the operator


class Charged(Event, frozen=True, kw_only=True, tag="charged"):
    """An account paid for generations of its requests.

    Carried over by the settler, several at once.
    """

    user_id: int
    requests: tuple[str, ...]
    generations: tuple[str, ...]
    amounts: tuple[int, ...]  # of each, its burn included
    burn: int  # of each
    source: int
    source_position: str
    cause: str = "generation"  # generation, cancelled
    shared_key: str = ""  # with which all of them were submitted


class Rewarded(Event, frozen=True, kw_only=True, tag="rewarded"):
    """An owner was paid for what its workers did.

    Carried over by the settler, several at once.
    """

    SCRIPT: ClassVar = ("escrowed",)

    user_id: int
    workers: tuple[str, ...]
    amounts: tuple[int, ...]  # of each, the escrow included
    escrows: tuple[int, ...]  # what of it would wait for an owner who is not trusted
    source: int
    source_position: str
    cause: str = "generation"  # generation, cancelled, uptime
    generations: tuple[str, ...] = ()  # none where it is for uptime
    suspicious: int = 0  # how many of them came too fast to be believed
    escrowed: int = 0  # what waits of it


class Promoted(Event, frozen=True, kw_only=True, tag="promoted"):
    """An owner earned trust: what waited for it is its own."""

    user_id: int
    amount: int


class Floored(Event, frozen=True, kw_only=True, tag="floored"):
    """A balance below its account's floor was lifted to it: kudos from nowhere, told as such."""

    user_id: int
    amount: int


class Transferred(Event, frozen=True, kw_only=True, tag="transferred"):
    """An account gave kudos to another one."""

    user_id: int
    recipient: int
    amount: int
    transfer_id: str
    idempotency: str = ""  # HMAC of the key with which its client may repeat it
    shared_key: str = ""  # of the recipient, whose budget grows by as much


class Received(Event, frozen=True, kw_only=True, tag="received"):
    """The other side of `transferred`.

    Carried over by the settler.
    """

    user_id: int
    sender: int
    amount: int
    transfer_id: str
    source: int
    source_position: str
    shared_key: str = ""


class Admitted(Event, frozen=True, kw_only=True, tag="admitted"):
    """An account may submit this request until the deadline.

    With an operation key, the request's id is claimed for whoever repeats the submission.
    """

    SCRIPT: ClassVar = ("deadline_ms", "refundable")

    user_id: int
    request_id: str
    jobs: int
    scopes: tuple[str, ...] = ()  # digests of the models whose anonymous jobs are counted
    operation_key: str = ""
    fingerprint: str = ""  # HMAC of the operation's fingerprint, hexadecimal
    kudos: int = 0  # the estimate that the client is told
    hold: int = 0  # of the balance, until the request is done
    tax: int = 0  # charged now
    shared_key: str = ""  # with which it is submitted
    deadline_ms: int = 0
    refundable: int = 0  # of the tax, where the request never comes: not what the floor lifts


class WaitingChanged(Event, frozen=True, kw_only=True, tag="waiting-changed"):
    """So many jobs of these requests of the account wait for workers now.

    Carried over by the settler, several requests at once.
    """

    user_id: int
    requests: tuple[str, ...]
    waiting: tuple[int, ...]  # jobs, one number for each request
    source: int
    source_position: str


class Released(Event, frozen=True, kw_only=True, tag="released"):
    """What an admission held is free again.

    Carried over by the settler.
    """

    SCRIPT: ClassVar = ("refunded",)

    user_id: int
    request_id: str
    source: int
    source_position: str
    refund: bool = False  # its request never came: what was charged is given back
    shared_key: str = ""  # with `refund`
    refunded: int = 0


class Unclaimed(Event, frozen=True, kw_only=True, tag="unclaimed"):
    """The request that an operation key named is gone: the key may be used anew.

    Carried over by the settler.
    """

    user_id: int
    operation_key: str
    request_id: str
    source: int
    source_position: str


class ModesChanged(Event, frozen=True, kw_only=True, tag="modes-changed"):
    """The whole deployment works in other modes from now on."""

    maintenance: bool  # no new requests are taken, waiting jobs are cancelled


class Settled(Event, frozen=True, kw_only=True, tag="settled"):
    """The settler came this far in a source log without an effect to carry here (or with one that
    no longer applies)."""

    source: int
    source_position: str


EVENTS: tuple[type[Event], ...] = (
    Submitted,
    Assigned,
    Progressed,
    SubmittedReply,
    Returned,
    Refused,
    Faulted,
    Cancelled,
    Expired,
    Abandoned,
    CheckedIn,
    WorkerChanged,
    NameClaimed,
    WorkerRenamed,
    NameFreed,
    WorkerDeleted,
    WorkerAborted,
    WorkerNonconformant,
    WorkerMeasured,
    AccountOpened,
    AccountChanged,
    AccountRekeyed,
    AccountDeleted,
    PasskeyChanged,
    SharedKeyOpened,
    SharedKeyChanged,
    SharedKeyDeleted,
    Granted,
    Charged,
    Rewarded,
    Promoted,
    Floored,
    Transferred,
    Received,
    Admitted,
    WaitingChanged,
    Released,
    Unclaimed,
    ModesChanged,
    Settled,
)
