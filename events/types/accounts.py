"""What happens to accounts: who they are, what they hold for requests, and what they own."""

from __future__ import annotations

from typing import ClassVar

from events.base import Event


class AccountOpened(Event, frozen=True, kw_only=True, tag="account-opened"):
    """An account exists.

    `key` is the HMAC of its API key, never the key.
    """

    SCRIPT: ClassVar = ("user_id",)

    name: str
    key: str  # HMAC of its API key
    trusted: bool = False
    moderator: bool = False
    kudos: int = 0  # that it begins with
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
    key: str  # HMAC of the new one
    former: str  # HMAC of the one before


class PasskeyChanged(Event, frozen=True, kw_only=True, tag="passkey-changed"):
    """A service account's proxies may name the addresses of their clients with this passkey."""

    user_id: int
    passkey: str  # HMAC; empty: with none any more
    former: str = ""  # HMAC of the one before; empty: none


class AccountDeleted(Event, frozen=True, kw_only=True, tag="account-deleted"):
    """An account is nobody's: its name, keys and roles are gone.

    Its number and what it owns stay: the ledger names it.
    """

    user_id: int
    key: str  # HMAC of the API key that it had
    passkey: str = ""  # HMAC of the one that it had; empty: none
    shared_keys: tuple[str, ...] = ()  # that are gone with it


class SharedKeyOpened(Event, frozen=True, kw_only=True, tag="shared-key-opened"):
    """An account's kudos may be spent with this key as well, within its budget."""

    shared_key: str
    user_id: int
    name: str = ""
    kudos: int = 0  # 10^-4 kudos that may be spent; -1: no end
    expiry_ms: int = 0  # 0: never
    max_text_tokens: int = -1  # of one request; -1: no cap
    max_image_pixels: int = -1  # likewise
    max_image_steps: int = -1  # likewise


class SharedKeyChanged(Event, frozen=True, kw_only=True, tag="shared-key-changed"):
    """A shared key was changed.

    Only what `changed` names was changed; the other fields say nothing.
    """

    shared_key: str
    user_id: int
    changed: tuple[str, ...]  # names of the fields below
    name: str = ""
    kudos: int = 0  # as in shared-key-opened, like the next four
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
    requests: tuple[str, ...]  # of each generation in turn
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
    workers: tuple[str, ...]  # that did the work, in turn
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

    user_id: int  # who gives
    recipient: int
    amount: int
    transfer_id: str
    idempotency: str = ""  # HMAC of the key with which its client may repeat it
    shared_key: str = ""  # of the recipient, whose budget grows by as much


class Received(Event, frozen=True, kw_only=True, tag="received"):
    """The other side of `transferred`.

    Carried over by the settler.
    """

    user_id: int  # who gets
    sender: int
    amount: int
    transfer_id: str
    source: int
    source_position: str
    shared_key: str = ""  # whose budget grows by as much


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
    deadline_ms: int = 0  # until when the request may come
    refundable: int = 0  # of the tax, where the request never comes: not what the floor lifts
    images: int = 0  # that may be stored as objects under the request's id
    offloaded: bool = False  # whether its messages may be


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
    refunded: int = 0  # what of the tax was given back


class Unclaimed(Event, frozen=True, kw_only=True, tag="unclaimed"):
    """The request that an operation key named is gone: the key may be used anew.

    Carried over by the settler.
    """

    user_id: int
    operation_key: str
    request_id: str
    source: int
    source_position: str
