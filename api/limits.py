"""Rate limits: how often who may call which route (text_path_reference.md 2.5; spec, Rate limits).

Limits are written and shown in flask-limiter's notation, read by the `limits` package, which also
builds what a window is called. Its strategies and storages are not used: they cost two or three
round trips a limit, one after the other, and a connection pool of their own. Here all limits of a
call are one script (lua/limit.lua) on the connections that there are.

Decisions where the specification is open:

* A refused call is not counted, in any of its windows.
* The address of a call is a whole one, IPv6 too.
* Progress posts have 600/second for an address: at 60 submits a second, jobs that stream for ten
  seconds post once a second each.
* Calls without an apikey header, which are refused, are held to the limits of addresses only: where
  a route has none, to the default.
* `X-RateLimit-*` tell of the limit that is nearest to its end, or of the one that was passed.
* `Retry-After` is at most 120 s: clients ignore more.
* While Redis does not answer nobody is limited: the routes themselves say 503.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import falcon.asgi
from limits import RateLimitItem

from api.auth import LONGEST_KEY
from api.client import Callers, Whitelist
from api.ids import canonical
from api.notation import items_of
from api.patience import PATIENCE
from handlers.accounts import ANONYMOUS_KEY, digest_of
from handlers.errors import RedisUnavailable, TooManyRequests
from handlers.log import Log
from lua.link import Deadline, Unavailable
from lua.scripts import ScriptFailed

TEXT_ASYNC = "/v2/generate/text/async"
CHAT_ASYNC = "/v2/generate/chat/async"

_WAIT_PARTS = 5
"""Several turns of a busy loop: what is slow must be Redis, or nobody would be limited when it
matters most."""
LONGEST_RETRY_SECONDS = 120
_DIGEST_BYTES = 14
_PARTITION_DIGITS = 4
_MOST_DIGITS = 18
_KEPT = 8192

Items = tuple[RateLimitItem, ...]


@dataclass(frozen=True, eq=False)  # each is one of a kind, and quick to hash
class Rule:
    """One budget of one route."""

    whose: str
    """`client`: of the client's address; `remote`: of the remote address; `key`: of the API key."""
    ordinary: Items
    wide: Items
    """For whitelisted addresses; of keys for the anonymous one, and for those that trusted users'
    addresses send, unless `listed`."""
    listed: bool = False
    """The wide budgets of keys are for those that whitelisted addresses send, as elsewhere."""
    path: bool = True
    """Counted for each method, and each request in a path; else for the route as a whole."""


Rules = Mapping[tuple[str, str], tuple[Rule, ...]]
"""By URI template and method; `*` for all methods."""


def _same(whose: str, notation: str, *, path: bool) -> tuple[Rule, ...]:
    items = items_of(notation)
    return (Rule(whose, items, items, path=path),)


def _submit(budgets: Sequence[str]) -> tuple[Rule, ...]:
    short, long = (items_of(each) for each in budgets)
    return (
        Rule("client", short, items_of("10/second")),
        Rule("client", long, items_of("300/minute")),
        Rule("key", items_of("2/second"), items_of("60/second")),
    )


def rules(*, text: Sequence[str], chat: Sequence[str]) -> Rules:
    """The limits of every route that has other ones than the default.

    `text` and `chat`: the short and the long budget of an ordinary address on the submit routes; an
    empty one of chat is the text one. Raise ValueError for what is no notation.
    """
    chat = [own or other for own, other in zip(chat, text, strict=True)]
    status = _same("client", "60/minute", path=True)
    table = {
        (TEXT_ASYNC, "POST"): _submit(text),
        (CHAT_ASYNC, "POST"): _submit(chat),
        ("/v2/generate/text/pop", "*"): _same("remote", "60/second", path=False),
        ("/v2/generate/text/submit", "*"): _same("remote", "60/second", path=False),
        ("/v2/generate/text/progress", "*"): _same("remote", "600/second", path=False),
        ("/v2/sharedkeys", "PUT"): _same("client", "5/minute", path=True),
        ("/v2/status/modes", "*"): _same("remote", "30/minute", path=False),
        ("/v2/kudos/transfer", "POST"): (
            Rule(
                "key",
                items_of("1/second;90/hour"),
                items_of("1/second;600/hour"),
                listed=True,
            ),
        ),
        ("/v2/status/heartbeat", "*"): (),
        ("/health/live", "*"): (),
        ("/health/ready", "*"): (),
    }
    for family in ("text", "chat"):
        for method in ("GET", "DELETE"):
            table[f"/v2/generate/{family}/status/{{request_id}}", method] = status
    for method in ("GET", "PUT", "DELETE"):
        table["/v2/workers/{worker_id}", method] = _same("client", "30/minute", path=True)
        table["/v2/users/{user_id}", method] = _same("client", "60/minute", path=True)
    return table


DEFAULT = _same("remote", "90/minute", path=False)
"""For each route that has no rule."""


def _place(template: str, params: Mapping[str, str]) -> str:
    """What a call asks of a route, whichever way it is spelled: a path that differs in its slashes
    or in the case of its id gains no new budget. All ids that can be nobody's are one."""
    ids = [id_ for each in params.values() if (id_ := canonical(each) or _number(each))]
    return " ".join((template, *ids))


def _number(text: str) -> str:
    """An account's number in one spelling; nothing for what is none."""
    digits = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return str(int(text)) if digits else ""


class _Window(NamedTuple):
    item: RateLimitItem
    digest: str  # its last four digits are its caller's: one caller's windows share a partition
    ms: int


class _Told(NamedTuple):
    """What a call is told of its limits."""

    item: RateLimitItem
    remaining: int  # negative: the call was one too many
    left: float  # seconds until the window ends


class Limiter:
    """Middleware: the first check of a request, before its body is read.

    Every window stands in Redis, under a digest, and ends by itself. Kept here are only the names
    of windows that were used lately.
    """

    def __init__(
        self,
        log: Log,
        callers: Callers,
        whitelist: Whitelist,
        rules: Rules,
        secret: str,
        *,
        wait_seconds: float = PATIENCE.limits,
    ) -> None:
        self._wait_seconds = wait_seconds
        self._log = log
        self._callers = callers
        self._whitelist = whitelist
        self._rules = rules
        self._secret = secret
        self._windows_of = lru_cache(_KEPT)(self._name)

    async def process_resource(
        self, req: falcon.asgi.Request, resp: falcon.asgi.Response, _resource: Any, params: Any
    ) -> None:
        """Count the call; raise TooManyRequests where a budget is spent."""
        template = req.uri_template or ""
        rules = self._rules.get((template, req.method))
        if rules is None:
            rules = self._rules.get((template, "*"), DEFAULT)
        if not rules or req.method == "OPTIONS":
            return
        try:
            with Deadline(self._wait_seconds, parts=_WAIT_PARTS):
                place = _place(template, params)
                windows = await self._windows(req, template, place, rules)
                if not windows:  # of keys alone, and it sends none
                    windows = await self._windows(req, template, place, DEFAULT)
                told = await self._count(windows)
        except (TimeoutError, RedisUnavailable, Unavailable, ScriptFailed):
            return
        resp.set_header("x-ratelimit-limit", str(told.item.amount))
        resp.set_header("x-ratelimit-remaining", str(max(0, told.remaining)))
        resp.set_header("x-ratelimit-reset", str(math.ceil(time.time() + told.left)))
        if told.remaining < 0:
            wait = min(max(1, math.ceil(told.left)), LONGEST_RETRY_SECONDS)
            resp.set_header("retry-after", str(wait))
            raise TooManyRequests(str(told.item))

    async def _windows(
        self, req: falcon.asgi.Request, template: str, place: str, rules: tuple[Rule, ...]
    ) -> list[_Window]:
        windows: list[_Window] = []
        client = ""
        earned = False
        for rule in rules:
            if rule.whose == "remote":
                owner, widened = self._callers.remote(req), False
            else:
                if not client:
                    client = self._callers.caller(req).address
                    if rule.wide != rule.ordinary:
                        earned = await self._whitelist.earned(client)
                owner, widened = client, earned or self._whitelist.always(client)
            if rule.whose == "key":
                owner = req.get_header("apikey") or ""
                if not 0 < len(owner) <= LONGEST_KEY:
                    continue
                if not rule.listed:
                    widened = earned or owner == ANONYMOUS_KEY  # a service has many keys
            if rule.path:
                windows += self._windows_of(rule, widened, owner, req.method, place)
            else:
                windows += self._windows_of(rule, widened, owner, "*", template)
        return windows

    def _name(
        self, rule: Rule, widened: bool, owner: str, method: str, place: str
    ) -> list[_Window]:
        caller = digest_of(self._secret, owner)
        windows = []
        for item in rule.wide if widened else rule.ordinary:
            name = item.key_for(rule.whose, caller, method, place).encode()
            digest = hashlib.blake2b(name, digest_size=_DIGEST_BYTES).hexdigest()
            ms = item.get_expiry() * 1000
            windows.append(_Window(item, digest + caller[-_PARTITION_DIGITS:], ms))
        return windows

    async def _count(self, windows: list[_Window]) -> _Told:
        """Count them all at once: in one call, on a cluster in one for each partition."""
        of = self._log.keys.of
        first = of(windows[0].digest)
        if self._log.keys.partitions == 1 or all(of(each.digest) == first for each in windows):
            return await self._count_in(first, windows)
        parted: dict[int, list[_Window]] = {}
        for window in windows:
            parted.setdefault(of(window.digest), []).append(window)
        told = await asyncio.gather(*(self._count_in(*part) for part in parted.items()))
        return min(told, key=lambda each: (max(-1, each.remaining), -each.left))

    async def _count_in(self, partition: int, windows: list[_Window]) -> _Told:
        keys = self._log.keys
        which, calls, left = await self._log.scripts.run(
            "limit",
            {
                "events": keys.events(partition),
                "control": keys.control(partition),
                "windows": [keys.limit(each.digest) for each in windows],
            },
            {"limits": [number for each in windows for number in (each.item.amount, each.ms)]},
        )
        item = windows[int(which) - 1].item
        return _Told(item, item.amount - int(calls), int(left) / 1000)
