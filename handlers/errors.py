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


class ChatModelMismatch(Refused):
    """The reply names another model than the one the job was assigned with."""


class ChatDeclarationInvalid(Refused):
    """The chat declaration is incomplete or contradicts itself."""


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


class OutOfMemory(Unserved):
    """The event log is full.

    Try again later.
    """
