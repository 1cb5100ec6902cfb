"""The modes of the whole service (text_path_reference.md 2.7, 8.2).

Of the modes that the specification has, maintenance alone is in scope: `invite_only` and `raid` in
a body are ignored like any key that is not known, so a body with nothing else selects no mode, and
`invite_only_mode` is shown as off.
"""

from __future__ import annotations

from collections.abc import Collection

import falcon.asgi
import msgspec

from api import auth
from api.body import Bodies
from api.errors import JSON
from handlers.accounts import Accounts
from handlers.chat import documents
from handlers.errors import NoHordeModSelected, NotAdmin
from handlers.limits import Limits
from handlers.log import Log
from handlers.modes import Modes, set_modes

BODY_BYTES = 2**14


class ModesBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a change."""

    maintenance: bool | None = None


class ShownModes(msgspec.Struct, frozen=True, kw_only=True):
    """The modes that are on."""

    maintenance_mode: bool
    invite_only_mode: bool = False


_encode = msgspec.json.Encoder().encode
_body = msgspec.json.Decoder(ModesBody)


class ModesRoute:
    """`GET` and `PUT /v2/status/modes`. `admins`: who may change them, as `name#id`."""

    def __init__(
        self,
        log: Log,
        limits: Limits,
        accounts: Accounts,
        modes: Modes,
        *,
        admins: Collection[str],
        bodies: Bodies,
    ) -> None:
        self._log = log
        self._limits = limits
        self._accounts = accounts
        self._modes = modes
        self._admins = frozenset(admins)
        self._bodies = bodies

    async def on_get(self, _req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Tell the modes, as of a second ago."""
        _answer(resp, (await self._modes.current()).maintenance)

    async def on_put(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        """Change the modes that the body names; answer once what waits is cancelled."""
        async with self._bodies.read(req, BODY_BYTES) as raw:
            body = documents.decoded(_body, raw)
        account = await auth.account(req, self._accounts)
        if body.maintenance is None:
            raise NoHordeModSelected
        if account.anonymous or account.username not in self._admins:
            raise NotAdmin
        await set_modes(self._log, self._limits, maintenance=body.maintenance)
        _answer(resp, body.maintenance)


def _answer(resp: falcon.asgi.Response, maintenance: bool) -> None:
    resp.content_type = JSON
    resp.data = _encode(ShownModes(maintenance_mode=maintenance))
