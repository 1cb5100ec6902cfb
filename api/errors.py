"""Refusals as HTTP answers: the only place that knows statuses (design section 8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import falcon
import falcon.asgi
import msgspec
import structlog
from redis.exceptions import RedisError

from handlers import errors
from lua.link import Unavailable
from projections.database import DatabaseUnavailable

logger = structlog.get_logger()

STATUSES: dict[type[errors.Refused], int] = {
    errors.Refused: 400,
    errors.BadRequest: 400,
    errors.UnsupportedChatParameter: 400,
    errors.ChatRequestConflict: 400,
    errors.NulByteInPayload: 400,
    errors.TooManyStopSequences: 400,
    errors.ExcessiveStopSequence: 400,
    errors.MissingPrompt: 400,
    errors.CorruptPrompt: 400,
    errors.TokenOverflow: 400,
    errors.MissingFullSamplerOrder: 400,
    errors.PromptExceedsContext: 400,
    errors.RequiresTrust: 400,
    errors.OnlyServiceAccountProxy: 400,
    errors.InvalidExtraSourceImages: 400,
    errors.TooManyExtraSourceImages: 400,
    errors.MoreThanMinExtraSourceImage: 400,
    errors.SourceImageSizeExceeded: 400,
    errors.SourceImageUnreadable: 400,
    errors.SourceImageResolutionExceeded: 400,
    errors.SourceImageUrlRefused: 400,
    errors.SourceImageUrlInvalid: 400,
    errors.OperationKeyConflict: 400,
    errors.ChatKudosCapExceeded: 400,
    errors.MaintenanceMode: 400,
    errors.NoHordeModSelected: 400,
    errors.NoUserModSelected: 400,
    errors.NoSharedKeyModSelected: 400,
    errors.TooLongUserName: 400,
    errors.NotPrivileged: 403,
    errors.Forbidden: 403,
    errors.AnonForbidden: 403,
    errors.AnonForbiddenUserMod: 403,
    errors.InvalidPriorityUsername: 400,
    errors.NoEligibleWorker: 403,
    errors.TimeoutIP: 403,
    errors.NotModerator: 403,
    errors.NotAdmin: 403,
    errors.UnknownChatModel: 404,
    errors.WorkerNotFound: 404,
    errors.NotOwner: 403,
    errors.NoWorkerModSelected: 400,
    errors.WorkerNameAlreadyExists: 400,
    errors.MessageNotFound: 404,
    errors.Locked: 423,
    errors.KudosUpfront: 403,
    errors.SharedKeyEmpty: 403,
    errors.SharedKeyInsufficientKudos: 403,
    errors.SharedKeyExpired: 403,
    errors.UserNotFound: 404,
    errors.KudosTransferFromAnon: 400,
    errors.KudosTransferToAnon: 400,
    errors.KudosTransferToSelf: 400,
    errors.KudosTransferNotEnough: 400,
    errors.NegativeKudosTransfer: 400,
    errors.TooFastKudosTransfers: 400,
    errors.FaultWhenKudosSending: 400,
    errors.FaultWhenKudosReceiving: 400,
    errors.SourceAccountFlagged: 400,
    errors.TargetAccountFlagged: 400,
    errors.EducationCannotSendKudos: 400,
    errors.InvalidTargetUsername: 400,
    errors.IdempotencyKeyConflict: 400,
    errors.TooManyPrompts: 429,
    errors.TooManyRequests: 429,
    errors.SettlerBehind: 503,
    errors.ChatAdmissionDisabled: 503,
    errors.ChatImageStorageUnavailable: 503,
    errors.RequestTooLarge: 413,
    errors.RequestTimeout: 408,
    errors.InvalidAPIKey: 401,
    errors.AnonForbiddenWorker: 403,
    errors.WrongCredentials: 403,
    errors.RequestNotFound: 404,
    errors.InvalidJobID: 404,
    errors.DuplicateGen: 400,
    errors.AbortedGen: 400,
    errors.ChatSubmitInvalid: 400,
    errors.ChatSubmitNonconformant: 400,
    errors.ChatModelMismatch: 400,
    errors.ChatDeclarationInvalid: 400,
    errors.WorkerMaintenance: 403,
    errors.WorkerFlaggedMaintenance: 403,
    errors.TooManyWorkers: 403,
    errors.TooManyWorkersTrusted: 403,
    errors.ChatJobAborted: 404,
    errors.ChatProgressNotStreaming: 404,
    errors.ChatProgressOutOfSequence: 409,
    errors.ChatProgressCapReached: 413,
    errors.Unserved: 503,
    errors.RedisUnavailable: 503,
    errors.ChatProgressUnavailable: 503,
    errors.ChatVerificationUnavailable: 503,
    errors.DatabaseUnavailable: 503,
    errors.ReadModelBehind: 503,
    errors.Rebuilding: 503,
    errors.AdmissionLost: 503,
    errors.OutOfMemory: 503,
}

RETRY_AFTER = "1"
"""Seconds. What is away comes back by itself, and asking again changes nothing."""

JSON = "application/json; charset=utf-8"

_encode = msgspec.json.Encoder().encode
_ABSENT = (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND)
_SHAPE_DEPTH = 4
_SHAPE_ITEMS = 20


def answer(resp: falcon.asgi.Response, refusal: errors.Refused) -> None:
    """Make `resp` tell the refusal: `message`, `rc`, and what belongs to it."""
    status = STATUSES[type(refusal)]
    _answer(resp, status, refusal.message, type(refusal).__name__, refusal.extra)
    if isinstance(refusal, errors.RequestTooLarge | errors.RequestTimeout):
        resp.set_header("connection", "close")  # what follows is the rest of the body


def _answer(
    resp: falcon.asgi.Response, status: int, message: str, rc: str, extra: dict[str, Any]
) -> None:
    resp.status = status
    resp.content_type = JSON
    resp.data = _encode({"message": message, "rc": rc, **extra})
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        resp.set_header("retry-after", RETRY_AFTER)


async def _on_refused(
    req: falcon.asgi.Request, resp: falcon.asgi.Response, error: errors.Refused, _params: Any
) -> None:
    if isinstance(error, errors.Unserved):
        logger.warning("unserved", method=req.method, path=req.path, rc=type(error).__name__)
    answer(resp, error)


async def _on_database_away(
    req: falcon.asgi.Request, resp: falcon.asgi.Response, _error: DatabaseUnavailable, params: Any
) -> None:
    await _on_refused(req, resp, errors.DatabaseUnavailable(), params)


async def _on_redis_away(
    req: falcon.asgi.Request, resp: falcon.asgi.Response, error: Exception, params: Any
) -> None:
    """Redis says that it cannot serve: it loads its data, is a replica, or lost its master."""
    logger.warning("redis_refuses", reason=str(error))
    await _on_refused(req, resp, errors.RedisUnavailable(), params)


async def _on_http(
    _req: falcon.asgi.Request, resp: falcon.asgi.Response, error: falcon.HTTPError, _params: Any
) -> None:
    status = HTTPStatus(error.status_code)
    for name, value in (error.headers or {}).items():  # type: ignore[union-attr]
        resp.set_header(name, value)
    rc = status.phrase.title().replace(" ", "")
    message = error.description or f"{status.phrase}."
    _answer(resp, status.value, message, rc, {})


async def _on_bug(
    req: falcon.asgi.Request, resp: falcon.asgi.Response, error: Exception, _params: Any
) -> None:
    logger.error(
        "unhandled",
        method=req.method,
        path=req.path,
        route=req.uri_template,
        shape=shape(getattr(req.context, "raw", b"")),
        exc_info=error,
    )
    _answer(resp, 500, "Internal Server Error", "InternalServerError", {})


def shape(raw: bytes) -> object:
    """What a body is made of, without anything that it says: keys, types and lengths."""
    try:
        return _shape(msgspec.json.decode(raw), _SHAPE_DEPTH)
    except (msgspec.DecodeError, RecursionError):
        return f"{len(raw)} bytes"


def _shape(value: object, depth: int) -> object:
    if isinstance(value, str):
        return f"str({len(value)})"
    if isinstance(value, dict):
        if not depth:
            return f"object({len(value)})"
        shown = list(value.items())[:_SHAPE_ITEMS]
        return {str(key)[:40]: _shape(item, depth - 1) for key, item in shown}
    if isinstance(value, list):
        shown = value[:_SHAPE_ITEMS] if depth else []
        return [f"list({len(value)})", *(_shape(item, depth - 1) for item in shown[:1])]
    return type(value).__name__


async def _known() -> None:
    """Whatever Redis holds is all that there is."""


def install(app: falcon.asgi.App[Any, Any], known: Callable[[], Awaitable[None]] = _known) -> None:
    """Answer every error of `app` in our shape.

    `known` raises RedisUnavailable where Redis lost what it held: then nobody is told that
    something is not there, or that a key is wrong.
    """

    async def on_refused(
        req: falcon.asgi.Request, resp: falcon.asgi.Response, error: errors.Refused, params: Any
    ) -> None:
        if STATUSES[type(error)] in _ABSENT:
            try:
                await known()
            except errors.RedisUnavailable as lost:
                error = lost
        await _on_refused(req, resp, error, params)

    app.add_error_handler(Exception, _on_bug)
    app.add_error_handler(falcon.HTTPError, _on_http)
    app.add_error_handler(RedisError, _on_redis_away)
    app.add_error_handler(Unavailable, _on_redis_away)
    app.add_error_handler(DatabaseUnavailable, _on_database_away)
    app.add_error_handler(errors.Refused, on_refused)
