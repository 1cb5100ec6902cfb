"""Refusals that a caller can act on.

The class docstring is the sentence that the client reads. api/errors.py alone knows their statuses;
the class name is the return code.
"""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """The request was refused."""

    def __init__(self, message: str | None = None, **extra: Any) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))
        self.message = str(self)
        self.extra = extra
        """Further members of the answer's body."""


class BadRequest(Refused):
    """The request is not valid."""

    def __init__(self, message: str | None = None, *, errors: dict[str, str] | None = None) -> None:
        super().__init__(message, **({"errors": errors} if errors else {}))


class UnsupportedChatParameter(Refused):
    """A parameter is not supported on chat requests."""


class ChatRequestConflict(Refused):
    """Two parameters contradict each other."""


class NulByteInPayload(Refused):
    """A NUL character (U+0000) is not allowed."""


class TooManyStopSequences(Refused):
    """Too many stop sequences: at most 128 distinct ones are allowed."""


class ExcessiveStopSequence(Refused):
    """The stop sequences are too long: at most 2000 characters in all are allowed."""


class MissingPrompt(Refused):
    """A prompt is required."""


class CorruptPrompt(Refused):
    """Nothing of the prompt is left after moderation."""


class TokenOverflow(Refused):
    """max_context_length must be at least max_length."""


class MissingFullSamplerOrder(Refused):
    """sampler_order needs seven distinct entries at least."""


class PromptExceedsContext(Refused):
    """The prompt does not fit the context that the request would run under."""


class RequiresTrust(Refused):
    """Only trusted users may send several jobs with batching disabled."""


class OnlyServiceAccountProxy(Refused):
    """Only service accounts may send proxied_account."""


class InvalidExtraSourceImages(Refused):
    """Text requests take no source images."""


class TooManyExtraSourceImages(Refused):
    """The request has too many images."""


class MoreThanMinExtraSourceImage(Refused):
    """Only trusted users may send more than one extra source image."""


class SourceImageSizeExceeded(Refused):
    """An image, or all of them together, is too large."""


class SourceImageUnreadable(Refused):
    """This is not an image that can be read."""


class SourceImageResolutionExceeded(Refused):
    """An image has too many pixels."""


class SourceImageUrlRefused(Refused):
    """Images are not fetched from this URL."""


class SourceImageUrlInvalid(Refused):
    """The image could not be fetched from its URL."""


class OperationKeyConflict(Refused):
    """The operation key names another request.

    Nothing was queued.
    """


class ChatKudosCapExceeded(Refused):
    """The request is estimated to cost more than max_kudos."""


class MaintenanceMode(Refused):
    """The service is in maintenance mode and takes no new requests. Try again later."""


class UnknownChatModel(Refused):
    """No such model is known."""


class NoEligibleWorker(Refused):
    """No online worker can serve this request."""


class WorkerNotFound(Refused):
    """There is no worker with that ID."""


class NotOwner(Refused):
    """Only the worker's owner and moderators may do this."""


class NoWorkerModSelected(Refused):
    """Name something to change of the worker."""


class WorkerNameAlreadyExists(Refused):
    """Another worker has this name. Choose another one."""


class MessageNotFound(Refused):
    """There is no message with that ID."""


class Locked(Refused):
    """Jobs refer to this worker.

    Put it into maintenance, and delete it once they have ended.
    """


class KudosUpfront(Refused):
    """The kudos for this request have to be there when it is submitted."""


class SharedKeyEmpty(Refused):
    """Nothing is left to spend with this shared key."""


class SharedKeyInsufficientKudos(Refused):
    """Less is left to spend with this shared key than the request may cost."""


class SharedKeyExpired(Refused):
    """This shared key has expired."""


class UserNotFound(Refused):
    """There is no such account."""


class KudosTransferFromAnon(Refused):
    """Nobody may give away the kudos of the anonymous account."""


class KudosTransferToAnon(Refused):
    """The anonymous account takes no kudos."""


class KudosTransferToSelf(Refused):
    """Kudos are given to other accounts."""


class KudosTransferNotEnough(Refused):
    """The account has less to give away than that."""


class NegativeKudosTransfer(Refused):
    """An amount of kudos to give is more than 0."""


class TooFastKudosTransfers(Refused):
    """This account gave you kudos a moment ago.

    Wait a minute before you give any back.
    """


class FaultWhenKudosSending(Refused):
    """This account may not give kudos at present.

    A moderator can tell why.
    """


class FaultWhenKudosReceiving(Refused):
    """That account may not be given kudos at present.

    A moderator can tell why.
    """


class SourceAccountFlagged(Refused):
    """This account is flagged and may not give kudos.

    A moderator can tell why.
    """


class TargetAccountFlagged(Refused):
    """That account is flagged and may not be given kudos."""


class EducationCannotSendKudos(Refused):
    """The kudos of an education account are for its own requests."""


class InvalidTargetUsername(Refused):
    """There is no account of that username (`name#number`), and no such shared key."""


class IdempotencyKeyConflict(Refused):
    """The Idempotency-Key names another transfer.

    No kudos were moved.
    """


class TooManyPrompts(Refused):
    """Too many requests of this account are waiting."""


class TooManyRequests(Refused):
    """Too many calls. Slow down."""


class TimeoutIP(Refused):
    """This address is in timeout."""


class NotModerator(Refused):
    """Only moderators may do this."""


class NotAdmin(Refused):
    """Only the operators of this service may do this."""


class NoHordeModSelected(Refused):
    """Name a mode to change."""


class NotPrivileged(Refused):
    """Only accounts of services have a passkey for their proxies."""


class Forbidden(Refused):
    """This is not yours to do."""


class AnonForbidden(Refused):
    """Anonymous cannot do this: register an account."""


class AnonForbiddenUserMod(Refused):
    """The anonymous account is everyone's.

    Nothing of it can be changed.
    """


class NoUserModSelected(Refused):
    """Name something to change of the user."""


class NoSharedKeyModSelected(Refused):
    """Name something to change of the shared key."""


class TooLongUserName(Refused):
    """A user's name has at most 30 characters."""


class InvalidPriorityUsername(Refused):
    """A priority username is written name#number."""


class RequestTooLarge(Refused):
    """The body is larger than this route accepts."""


class RequestTimeout(Refused):
    """The body did not arrive in time."""


class InvalidAPIKey(Refused):
    """No user matching sent API Key."""


class AnonForbiddenWorker(Refused):
    """Anonymous is forbidden from running workers."""


class WrongCredentials(Refused):
    """The API key does not belong to the owner of this worker."""


class RequestNotFound(Refused):
    """Request with that ID not found."""


class InvalidJobID(Refused):
    """There is no job with that ID."""


class DuplicateGen(Refused):
    """This generation was submitted already.

    Nothing was changed.
    """


class AbortedGen(Refused):
    """This generation was aborted.

    Its reply is not accepted.
    """


class ChatSubmitInvalid(Refused):
    """The submit is not a valid reply to a chat job."""


class ChatSubmitNonconformant(Refused):
    """The reply breaks what its request asks of it."""


class ChatModelMismatch(Refused):
    """The reply names another model than the one the job was assigned with."""


class ChatDeclarationInvalid(Refused):
    """The chat declaration is incomplete or contradicts itself."""


class TooManyWorkers(Refused):
    """This account has as many workers as it may have.

    Delete one, give its name to this one, or ask a moderator for trust.
    """


class TooManyWorkersTrusted(Refused):
    """This account has as many workers as a trusted account may have.

    Delete one, or give its name to this one.
    """


class WorkerFlaggedMaintenance(Refused):
    """The owner of this worker is flagged.

    Its workers get no jobs; a moderator can tell why.
    """


class WorkerMaintenance(Refused):
    """This worker is in maintenance mode.

    Take it out of maintenance to receive jobs.
    """


class ChatJobAborted(Refused):
    """This job ended.

    Stop generating, and do not submit.
    """


class ChatProgressNotStreaming(Refused):
    """This job takes no progress.

    Stop posting, and still submit.
    """


class ChatProgressOutOfSequence(Refused):
    """This post is out of sequence."""


class ChatProgressCapReached(Refused):
    """This job reached its progress cap.

    Stop posting, and still submit.
    """


class Unserved(Refused):
    """A part of the service is away.

    Nothing was changed, or it is undone; try again.
    """


class RedisUnavailable(Unserved):
    """The event log does not answer.

    Try again in a moment.
    """


class ChatProgressUnavailable(Unserved):
    """Progress cannot be stored right now.

    Post the same delta again.
    """


class ChatVerificationUnavailable(Unserved):
    """The reply cannot be checked right now.

    Submit the same again.
    """


class DatabaseUnavailable(Unserved):
    """The database does not answer.

    Try again in a moment.
    """


class ReadModelBehind(Unserved):
    """The read model is behind the log.

    Try again in a moment.
    """


class Rebuilding(Unserved):
    """The hot state is being rebuilt from the log.

    Try again in a moment.
    """


class AdmissionLost(Unserved):
    """The request was admitted but could not be stored in time.

    It was not queued; try again.
    """


class SettlerBehind(Unserved):
    """What your account holds is not settled yet.

    Try again in a moment.
    """


class ChatAdmissionDisabled(Unserved):
    """New chat requests are not taken right now.

    Requests that are queued are served.
    """


class ChatImageStorageUnavailable(Unserved):
    """The request's images, or its large messages, cannot be stored right now.

    Nothing was queued or charged.
    """


class OutOfMemory(Unserved):
    """The event log is full.

    Try again later.
    """
