"""Every operation of the API.

A route that is not here, or a responder that its route has not, fails tests/api/test_openapi.py; an
answer that is not told of fails whichever test met it (tests/api/described.py).
"""

from __future__ import annotations

import functools
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api import (
    chat,
    health,
    kudos,
    modes,
    openapi,
    queued,
    service_status,
    shared_keys,
    status,
    text,
    text_requests,
    timeouts,
    users,
    worker_messages,
    workers,
)
from api.description import examples
from api.description.document import Held, document
from api.description.operation import (
    BODY,
    COMMAND,
    KEY,
    LIMITED,
    Answer,
    Link,
    NotFound,
    Operation,
)
from events import faults
from handlers.chat import body, declaration, payload, reply
from handlers.errors import (
    AbortedGen,
    AdmissionLost,
    AnonForbidden,
    AnonForbiddenUserMod,
    AnonForbiddenWorker,
    BadRequest,
    ChatAdmissionDisabled,
    ChatDeclarationInvalid,
    ChatImageStorageUnavailable,
    ChatJobAborted,
    ChatKudosCapExceeded,
    ChatModelMismatch,
    ChatProgressCapReached,
    ChatProgressNotStreaming,
    ChatProgressOutOfSequence,
    ChatProgressUnavailable,
    ChatRequestConflict,
    ChatSubmitInvalid,
    ChatSubmitNonconformant,
    ChatVerificationUnavailable,
    CorruptPrompt,
    DatabaseUnavailable,
    DuplicateGen,
    EducationCannotSendKudos,
    ExcessiveStopSequence,
    FaultWhenKudosReceiving,
    FaultWhenKudosSending,
    Forbidden,
    IdempotencyKeyConflict,
    InvalidAPIKey,
    InvalidExtraSourceImages,
    InvalidJobID,
    InvalidPriorityUsername,
    InvalidTargetUsername,
    KudosTransferFromAnon,
    KudosTransferNotEnough,
    KudosTransferToAnon,
    KudosTransferToSelf,
    KudosUpfront,
    Locked,
    MaintenanceMode,
    MessageNotFound,
    MissingFullSamplerOrder,
    MissingPrompt,
    MoreThanMinExtraSourceImage,
    NegativeKudosTransfer,
    NoEligibleWorker,
    NoHordeModSelected,
    NoSharedKeyModSelected,
    NotAdmin,
    NotModerator,
    NotOwner,
    NotPrivileged,
    NoUserModSelected,
    NoWorkerModSelected,
    NulByteInPayload,
    OnlyServiceAccountProxy,
    OperationKeyConflict,
    PromptExceedsContext,
    ReadModelBehind,
    RedisUnavailable,
    RequestNotFound,
    RequiresTrust,
    SettlerBehind,
    SharedKeyEmpty,
    SharedKeyExpired,
    SharedKeyInsufficientKudos,
    SourceAccountFlagged,
    SourceImageResolutionExceeded,
    SourceImageSizeExceeded,
    SourceImageUnreadable,
    SourceImageUrlInvalid,
    SourceImageUrlRefused,
    TargetAccountFlagged,
    TimeoutIP,
    TokenOverflow,
    TooFastKudosTransfers,
    TooLongUserName,
    TooManyExtraSourceImages,
    TooManyPrompts,
    TooManyStopSequences,
    TooManyWorkers,
    TooManyWorkersTrusted,
    UnknownChatModel,
    UnsupportedChatParameter,
    UserNotFound,
    WorkerFlaggedMaintenance,
    WorkerMaintenance,
    WorkerNameAlreadyExists,
    WorkerNotFound,
    WrongCredentials,
)
from handlers.text import payload as text_payload
from handlers.text import reply as text_reply
from handlers.text import request as text_request
from handlers.text import submission


class Rewarded(msgspec.Struct, frozen=True):
    """What a submit earned, in kudos."""

    reward: float


class ChatJob(payload.ChatPayload, frozen=True, kw_only=True):
    """What a chat job asks for."""

    messages: (
        Annotated[
            list[body.Message],
            Meta(
                description="Absent where `messages_url` is there. Images are URLs: data or signed."
            ),
        ]
        | UnsetType
    ) = UNSET
    messages_url: (
        Annotated[
            str,
            Meta(description="Where the messages are to be fetched as JSON, within 120 seconds."),
        ]
        | UnsetType
    ) = UNSET


FAULT_REASONS = (
    "Why a chat job is given up: "
    + ", ".join(f"`{word}`" for word in sorted(faults.MESSAGES))
    + ". Other text is taken and dropped."
)

HELD: Held = {
    (status.ChatGeneration, "message"): (reply.StoredMessage, None),
    (chat.Resolved, "params"): (payload.ChatPayload,),
    (text.Popped, "payload"): (ChatJob, text_payload.Payload, payload.NoJob),
    (reply.Submit, "generation"): (str,),
    (reply.Submit, "message"): (reply.ReplyMessage,),
    (reply.Submit, "finish_reason"): (reply.FinishReason,),
    (reply.Submit, "native_finish_reason"): (reply.NativeFinishReason,),
    (reply.Submit, "prompt_tokens"): (reply.Count,),
    (reply.Submit, "completion_tokens"): (reply.Count,),
    (reply.Submit, "reasoning_tokens"): (reply.Count,),
    (reply.Submit, "model_id"): (str,),
    (reply.Submit, "fault_reason"): (Annotated[str, Meta(description=FAULT_REASONS)], None),
    (reply.Submit, "gen_metadata"): (list[text_reply.Metadata], None),
}

_CHAT = "Chat requests"
_TEXT = "Text requests"
_WORKERS = "Workers"
_USERS = "Accounts"
_SERVICE = "The service"
_ACCOUNTS = "Accounts"

_TRANSFER = (
    EducationCannotSendKudos,
    FaultWhenKudosReceiving,
    FaultWhenKudosSending,
    IdempotencyKeyConflict,
    InvalidTargetUsername,
    KudosTransferFromAnon,
    KudosTransferNotEnough,
    KudosTransferToAnon,
    KudosTransferToSelf,
    NegativeKudosTransfer,
    SharedKeyExpired,
    SourceAccountFlagged,
    TargetAccountFlagged,
    TooFastKudosTransfers,
    SettlerBehind,
)

_STATUS = (RequestNotFound, RedisUnavailable, DatabaseUnavailable, ReadModelBehind)
_READ = (RedisUnavailable, DatabaseUnavailable)
"""Of a route that reads a model, by Redis' clock."""
_WAITED = ("Preference-Applied",)
_QUEUED = (Link("status", chat.ChatStatus.on_get), Link("cancel", chat.ChatStatus.on_delete))
_TEXT_QUEUED = (
    Link("status", text_requests.TextStatus.on_get),
    Link("cancel", text_requests.TextStatus.on_delete),
    Link("parameters", text_requests.TextParameters.on_get),
)
_POPPED = (
    Link("submit", text.Submit.on_post, examples.SUBMIT["A reply to a chat job"]),
    Link("submit a text", text.Submit.on_post, examples.SUBMIT["A reply to a text job"]),
    Link("progress", text.Progress.on_post, examples.PROGRESS["The first words"]),
)

_UPFRONT = (
    SharedKeyExpired,
    SharedKeyEmpty,
    SharedKeyInsufficientKudos,
    KudosUpfront,
    NoEligibleWorker,
)
"""Of what a request costs and who pays (spec, Free output allowance)."""

OPERATIONS = (
    Operation(
        path="/v2/generate/chat/async",
        responder=chat.ChatAsync.on_post,
        tag=_CHAT,
        key=True,
        headers=("Client-Agent", "Proxied-For", "Proxy-Authorization"),
        body=body.ChatBody,
        examples=examples.CHAT,
        answers={
            202: Answer("Queued.", queued.Queued, links=_QUEUED),
            200: Answer("Queued before, or only quoted.", chat.Priced),
        },
        refusals=LIMITED
        + BODY
        + KEY
        + COMMAND
        + (
            UnsupportedChatParameter,
            ChatRequestConflict,
            NulByteInPayload,
            TooManyExtraSourceImages,
            SourceImageSizeExceeded,
            SourceImageUnreadable,
            SourceImageUrlRefused,
            SourceImageUrlInvalid,
            SourceImageResolutionExceeded,
            OperationKeyConflict,
            ChatAdmissionDisabled,
            MaintenanceMode,
            TooManyPrompts,
            SettlerBehind,
            TimeoutIP,
            CorruptPrompt,
            UnknownChatModel,
            PromptExceedsContext,
            TooManyStopSequences,
            ExcessiveStopSequence,
            ChatKudosCapExceeded,
            ChatImageStorageUnavailable,
            DatabaseUnavailable,
            ReadModelBehind,
            AdmissionLost,
        )
        + _UPFRONT,
    ),
    Operation(
        path="/v2/generate/chat/status/{request_id}",
        responder=chat.ChatStatus.on_get,
        tag=_CHAT,
        headers=("Prefer",),
        answers={200: Answer("How it stands.", status.ChatStatus, headers=_WAITED)},
        refusals=LIMITED + _STATUS,
    ),
    Operation(
        path="/v2/generate/chat/status/{request_id}",
        responder=chat.ChatStatus.on_delete,
        tag=_CHAT,
        answers={200: Answer("Cancelled: how it stood before.", status.ChatStatus)},
        refusals=LIMITED + _STATUS + COMMAND,
    ),
    Operation(
        path="/v2/generate/text/async",
        responder=text_requests.TextAsync.on_post,
        tag=_TEXT,
        key=True,
        headers=("Client-Agent", "Proxied-For", "Proxy-Authorization"),
        body=text_request.TextBody,
        examples=examples.TEXT,
        answers={
            202: Answer("Queued.", queued.Queued, links=_TEXT_QUEUED),
            200: Answer("Only quoted.", text_requests.TextQuoted),
        },
        refusals=LIMITED
        + BODY
        + KEY
        + COMMAND
        + (
            NulByteInPayload,
            PromptExceedsContext,
            MaintenanceMode,
            OnlyServiceAccountProxy,
            TooManyExtraSourceImages,
            MoreThanMinExtraSourceImage,
            MissingPrompt,
            WorkerNotFound,
            RequiresTrust,
            TooManyPrompts,
            SettlerBehind,
            TimeoutIP,
            CorruptPrompt,
            TokenOverflow,
            MissingFullSamplerOrder,
            TooManyStopSequences,
            ExcessiveStopSequence,
            InvalidExtraSourceImages,
            DatabaseUnavailable,
            ReadModelBehind,
            AdmissionLost,
        )
        + _UPFRONT,
    ),
    Operation(
        path="/v2/generate/text/status/{request_id}",
        responder=text_requests.TextStatus.on_get,
        tag=_TEXT,
        headers=("Prefer",),
        answers={200: Answer("How it stands.", status.TextStatus, headers=_WAITED)},
        refusals=LIMITED + _STATUS,
    ),
    Operation(
        path="/v2/generate/text/status/{request_id}",
        responder=text_requests.TextStatus.on_delete,
        tag=_TEXT,
        answers={200: Answer("Cancelled: how it stood before.", status.TextStatus)},
        refusals=LIMITED + _STATUS + COMMAND,
    ),
    Operation(
        path="/v2/generate/text/request/{request_id}",
        responder=text_requests.TextParameters.on_get,
        tag=_TEXT,
        key=True,
        answers={200: Answer("As it was submitted.", submission.Parameters)},
        refusals=LIMITED + KEY + (RequestNotFound, WrongCredentials),
    ),
    Operation(
        path="/v2/generate/text/pop",
        responder=text.Pop.on_post,
        tag=_WORKERS,
        key=True,
        headers=("Prefer",),
        body=declaration.Pop,
        examples=examples.POP,
        answers={
            200: Answer(
                "A job, or none: then `id` is null.", text.Popped, headers=_WAITED, links=_POPPED
            )
        },
        refusals=LIMITED
        + BODY
        + KEY
        + COMMAND
        + (
            AnonForbiddenWorker,
            ChatDeclarationInvalid,
            DatabaseUnavailable,
            InvalidPriorityUsername,
            NulByteInPayload,
            SettlerBehind,
            TimeoutIP,
            TooManyWorkers,
            TooManyWorkersTrusted,
            WorkerFlaggedMaintenance,
            WorkerMaintenance,
            WrongCredentials,
        ),
    ),
    Operation(
        path="/v2/generate/text/submit",
        responder=text.Submit.on_post,
        tag=_WORKERS,
        key=True,
        body=reply.Submit,
        examples=examples.SUBMIT,
        answers={200: Answer("Taken.", Rewarded)},
        refusals=LIMITED
        + BODY
        + KEY
        + COMMAND
        + (
            AbortedGen,
            ChatModelMismatch,
            ChatSubmitInvalid,
            ChatSubmitNonconformant,
            ChatVerificationUnavailable,
            DuplicateGen,
            InvalidJobID,
            WrongCredentials,
        ),
    ),
    Operation(
        path="/v2/generate/text/progress",
        responder=text.Progress.on_post,
        tag=_WORKERS,
        key=True,
        body=text.ProgressBody,
        examples=examples.PROGRESS,
        answers={200: Answer("Taken in, or known already.", text.Accepted)},
        refusals=LIMITED
        + BODY
        + (
            ChatJobAborted,
            ChatProgressCapReached,
            ChatProgressNotStreaming,
            ChatProgressOutOfSequence,
            ChatProgressUnavailable,
            WrongCredentials,
        ),
    ),
    Operation(
        path="/v2/status/modes",
        responder=modes.ModesRoute.on_get,
        tag=_SERVICE,
        answers={200: Answer("The modes.", modes.ShownModes)},
        refusals=(*LIMITED, RedisUnavailable),
    ),
    Operation(
        path="/v2/status/modes",
        responder=modes.ModesRoute.on_put,
        tag=_SERVICE,
        key=True,
        body=modes.ModesBody,
        examples=examples.MODES,
        answers={200: Answer("The modes from now on.", modes.ShownModes)},
        refusals=LIMITED + BODY + KEY + COMMAND + (NoHordeModSelected, NotAdmin),
    ),
    Operation(
        path="/v2/kudos/transfer",
        responder=kudos.TransferRoute.on_post,
        tag=_ACCOUNTS,
        key=True,
        headers=("Idempotency-Key",),
        body=kudos.TransferBody,
        examples=examples.TRANSFER,
        answers={200: Answer("They are given.", kudos.Transferred)},
        refusals=LIMITED + BODY + KEY + COMMAND + _TRANSFER,
    ),
    Operation(
        path="/v2/workers",
        responder=workers.WorkersRoute.on_get,
        tag=_WORKERS,
        may_have_key=True,
        query={
            "type": {"enum": list(workers.TYPES), "default": "text"},
            "name": {"type": "string", "description": "The whole name, in any case."},
        },
        answers={200: Answer("Those that are online.", list[workers.ShownWorker])},
        refusals=LIMITED + _READ + (BadRequest,),
    ),
    Operation(
        path="/v2/workers/name/{worker_name:path}",
        responder=workers.WorkerByName.on_get,
        tag=_WORKERS,
        may_have_key=True,
        answers={200: Answer("The worker.", workers.ShownWorker)},
        refusals=LIMITED + _READ + (WorkerNotFound,),
    ),
    Operation(
        path="/v2/workers/messages",
        responder=worker_messages.MessagesRoute.on_get,
        tag=_WORKERS,
        key=True,
        query={"worker_id": {"type": "string", "description": "For this worker only."}},
        answers={200: Answer("The messages.", list[worker_messages.ShownMessage])},
        refusals=LIMITED + KEY,
    ),
    Operation(
        path="/v2/workers/messages",
        responder=worker_messages.MessagesRoute.on_post,
        tag=_WORKERS,
        key=True,
        body=worker_messages.MessageBody,
        examples=examples.MESSAGE,
        answers={200: Answer("It lies there.", worker_messages.ShownMessage)},
        refusals=LIMITED
        + BODY
        + KEY
        + COMMAND
        + (NotModerator, NotOwner, NulByteInPayload, WorkerNotFound),
    ),
    Operation(
        path="/v2/workers/messages/{message_id}",
        responder=worker_messages.MessageRoute.on_get,
        tag=_WORKERS,
        key=True,
        answers={200: Answer("The message.", worker_messages.ShownMessage)},
        refusals=LIMITED + KEY + (MessageNotFound,),
    ),
    Operation(
        path="/v2/workers/messages/{message_id}",
        responder=worker_messages.MessageRoute.on_delete,
        tag=_WORKERS,
        key=True,
        answers={200: Answer("It is gone.", worker_messages.MessageGone)},
        refusals=LIMITED + KEY + COMMAND + (MessageNotFound, NotModerator),
    ),
    Operation(
        path="/v2/workers/{worker_id}",
        responder=workers.WorkerRoute.on_get,
        tag=_WORKERS,
        may_have_key=True,
        answers={200: Answer("The worker.", workers.ShownWorker)},
        refusals=LIMITED + _READ + (WorkerNotFound,),
    ),
    Operation(
        path="/v2/workers/{worker_id}",
        responder=workers.WorkerRoute.on_put,
        tag=_WORKERS,
        key=True,
        body=workers.WorkerBody,
        examples=examples.WORKER,
        answers={200: Answer("What was changed.", workers.ShownChange)},
        refusals=LIMITED
        + BODY
        + KEY
        + COMMAND
        + (
            NotModerator,
            NotOwner,
            NoWorkerModSelected,
            NulByteInPayload,
            SettlerBehind,
            WorkerNameAlreadyExists,
            WorkerNotFound,
        ),
    ),
    Operation(
        path="/v2/workers/{worker_id}",
        responder=workers.WorkerRoute.on_delete,
        tag=_WORKERS,
        key=True,
        answers={200: Answer("It is gone.", workers.Deleted)},
        refusals=LIMITED + KEY + COMMAND + (DatabaseUnavailable, Locked, NotOwner, WorkerNotFound),
    ),
    Operation(
        path="/v2/find_user",
        responder=users.FindUser.on_get,
        tag=_USERS,
        may_have_key=True,
        answers={200: Answer("The account.", users.ShownUser)},
        refusals=LIMITED + _READ + (InvalidAPIKey, UserNotFound),
    ),
    Operation(
        path="/v2/users",
        responder=users.UsersRoute.on_get,
        tag=_USERS,
        query={
            "page": {"type": "integer", "minimum": 1, "default": 1},
            "sort": {"enum": ["kudos", "age"], "default": "kudos"},
        },
        answers={200: Answer("One page.", list[users.ShownUser])},
        refusals=LIMITED + _READ + (BadRequest,),
    ),
    Operation(
        path="/v2/users/{user_id}",
        responder=users.UserRoute.on_get,
        tag=_USERS,
        may_have_key=True,
        answers={200: Answer("The account.", users.ShownUser)},
        refusals=LIMITED + _READ + (UserNotFound,),
    ),
    Operation(
        path="/v2/users/{user_id}",
        responder=users.UserRoute.on_put,
        tag=_USERS,
        key=True,
        body=users.UserBody,
        examples=examples.USER,
        answers={200: Answer("What was changed.", users.ShownUserChange)},
        refusals=LIMITED
        + BODY
        + KEY
        + COMMAND
        + (
            AnonForbiddenUserMod,
            NotModerator,
            NotPrivileged,
            NoUserModSelected,
            NulByteInPayload,
            TooLongUserName,
            UserNotFound,
        ),
    ),
    Operation(
        path="/v2/users/{user_id}",
        responder=users.UserRoute.on_delete,
        tag=_USERS,
        key=True,
        answers={200: Answer("It is gone.", users.DeletedUser)},
        refusals=LIMITED
        + KEY
        + COMMAND
        + (AnonForbiddenUserMod, DatabaseUnavailable, NotAdmin, UserNotFound),
    ),
    Operation(
        path="/v2/sharedkeys",
        responder=shared_keys.SharedKeysRoute.on_put,
        tag=_USERS,
        key=True,
        body=shared_keys.SharedKeyBody,
        examples=examples.SHARED_KEY,
        answers={200: Answer("The key.", shared_keys.ShownSharedKey)},
        refusals=LIMITED + BODY + KEY + COMMAND + (AnonForbidden, Forbidden, NulByteInPayload),
    ),
    Operation(
        path="/v2/sharedkeys/{shared_key}",
        responder=shared_keys.SharedKeyRoute.on_get,
        tag=_USERS,
        answers={200: Answer("The key.", shared_keys.ShownSharedKey)},
        refusals=(*LIMITED, InvalidAPIKey, RedisUnavailable),
    ),
    Operation(
        path="/v2/sharedkeys/{shared_key}",
        responder=shared_keys.SharedKeyRoute.on_patch,
        tag=_USERS,
        key=True,
        body=shared_keys.SharedKeyBody,
        examples=examples.SHARED_KEY,
        answers={200: Answer("The key from now on.", shared_keys.ShownSharedKey)},
        refusals=LIMITED
        + BODY
        + KEY
        + COMMAND
        + (Forbidden, NoSharedKeyModSelected, NulByteInPayload),
    ),
    Operation(
        path="/v2/sharedkeys/{shared_key}",
        responder=shared_keys.SharedKeyRoute.on_delete,
        tag=_USERS,
        key=True,
        answers={200: Answer("It is gone.", shared_keys.SharedKeyGone)},
        refusals=LIMITED + KEY + COMMAND + (Forbidden,),
    ),
    Operation(
        path="/v2/status/models",
        responder=service_status.ModelsRoute.on_get,
        tag=_SERVICE,
        query={
            "type": {"enum": list(service_status.TYPES), "default": "image"},
            "model_state": {"enum": list(service_status.STATES), "default": "all"},
            "min_count": {"type": "integer"},
            "max_count": {"type": "integer"},
            "chat": {"type": "boolean", "default": False},
        },
        answers={200: Answer("The models.", list[service_status.ShownModel])},
        refusals=LIMITED + _READ + (BadRequest,),
    ),
    Operation(
        path="/v2/status/models/{model_name:path}",
        responder=service_status.ModelRoute.on_get,
        tag=_SERVICE,
        answers={200: Answer("The model, if anybody serves it.", list[service_status.ShownModel])},
        refusals=LIMITED + _READ + (UnknownChatModel,),
    ),
    Operation(
        path="/v2/status/performance",
        responder=service_status.PerformanceRoute.on_get,
        tag=_SERVICE,
        answers={200: Answer("How busy it is.", service_status.Performance)},
        refusals=LIMITED + _READ,
    ),
    Operation(
        path="/v2/status/heartbeat",
        responder=service_status.HeartbeatRoute.on_get,
        tag=_SERVICE,
        answers={200: Answer("How the process does.", service_status.Heartbeat)},
    ),
    Operation(
        path="/v2/stats/text/totals",
        responder=service_status.TotalsRoute.on_get,
        tag=_SERVICE,
        answers={200: Answer("The totals.", service_status.TextTotals)},
        refusals=LIMITED + _READ,
    ),
    Operation(
        path="/v2/stats/text/models",
        responder=service_status.TotalsByModel.on_get,
        tag=_SERVICE,
        answers={200: Answer("The replies of each model.", service_status.TextModels)},
        refusals=LIMITED + _READ,
    ),
    Operation(
        path="/v2/operations/ipaddr",
        responder=timeouts.TimeoutsRoute.on_get,
        tag=_SERVICE,
        key=True,
        answers={200: Answer("All of them.", list[timeouts.ShownTimeout])},
        refusals=LIMITED + KEY + COMMAND + (NotModerator,),
    ),
    Operation(
        path="/v2/operations/ipaddr",
        responder=timeouts.TimeoutsRoute.on_post,
        tag=_SERVICE,
        key=True,
        body=timeouts.TimeoutBody,
        examples=examples.TIMEOUT,
        answers={200: Answer("Set.", timeouts.Done)},
        refusals=LIMITED + BODY + KEY + COMMAND + (NotModerator,),
    ),
    Operation(
        path="/v2/operations/ipaddr",
        responder=timeouts.TimeoutsRoute.on_delete,
        tag=_SERVICE,
        key=True,
        body=timeouts.ClearTimeoutBody,
        examples=examples.CLEAR_TIMEOUT,
        answers={200: Answer("Cleared.", timeouts.Done)},
        refusals=LIMITED + BODY + KEY + (NotModerator,),
    ),
    Operation(
        path="/v2/openapi.json",
        responder=openapi.OpenApi.on_get,
        tag=_SERVICE,
        answers={200: Answer("OpenAPI 3.1.", dict)},
        refusals=LIMITED,
    ),
    Operation(
        path="/docs",
        responder=openapi.Docs.on_get,
        tag=_SERVICE,
        answers={200: Answer("The page.", content_types=(openapi.HTML,))},
        refusals=LIMITED,
    ),
    Operation(
        path="/docs/{name}",
        responder=openapi.DocsFile.on_get,
        tag=_SERVICE,
        answers={
            200: Answer("The file.", content_types=(openapi.CSS, openapi.SCRIPT, openapi.PNG)),
            404: Answer("No such file.", NotFound),
        },
        refusals=LIMITED,
    ),
    Operation(
        path="/health/live",
        responder=health.Live.on_get,
        tag=_SERVICE,
        answers={200: Answer("It is.", health.Alive)},
    ),
    Operation(
        path="/health/ready",
        responder=health.Ready.on_get,
        tag=_SERVICE,
        answers={
            200: Answer("It can serve.", health.Readiness),
            503: Answer("It cannot serve now.", health.NotReady, headers=("Retry-After",)),
        },
    ),
)


@functools.cache
def described() -> bytes:
    """The document of all of these, as it is served."""
    return msgspec.json.encode(document(OPERATIONS, HELD))
