"""Which keys an event's `apply` touches, by role: what `replay_event` must be given to fold it."""

from __future__ import annotations

from events import types
from events.base import Event
from events.keys import Keys

Touched = dict[str, str | list[str]]


def touched(keys: Keys, partition: int, event: Event) -> Touched:  # noqa: PLR0911, PLR0912 (one arm an event)
    """Role → key, or role → keys for a role that is a list.

    The partition is that of the log that holds the event.
    """
    match event:
        case types.Submitted() | types.Abandoned():
            return {
                "request": keys.request(event.request_id),
                "due_request": keys.due(partition, "request"),
            }
        case types.Assigned() | types.SubmittedReply():
            return {
                "request": keys.request(event.request_id),
                "generation": keys.generation(event.generation_id),
                "due_lease": keys.due(partition, "lease"),
                "due_request": keys.due(partition, "request"),
            }
        case types.Progressed():
            return {
                "generation": keys.generation(event.generation_id),
                "due_lease": keys.due(partition, "lease"),
            }
        case types.Refused():
            return {
                "request": keys.request(event.request_id),
                "generation": keys.generation(event.generation_id),
            }
        case types.Returned() | types.Faulted():
            return {
                "request": keys.request(event.request_id),
                "generation": keys.generation(event.generation_id),
                "due_lease": keys.due(partition, "lease"),
            }
        case types.Cancelled():
            return {
                "request": keys.request(event.request_id),
                "settled": [keys.generation(each) for each in event.settled],
                "due_lease": keys.due(partition, "lease"),
            }
        case types.Expired():
            return {
                "request": keys.request(event.request_id),
                "generations": [keys.generation(each) for each in event.generations],
                "due_lease": keys.due(partition, "lease"),
                "due_request": keys.due(partition, "request"),
            }
        case types.CheckedIn():
            seen: Touched = {"worker": keys.worker(event.worker_id)}
            if event.created:  # a name that it was given later may be registered elsewhere
                seen["worker_name"] = keys.worker_name(event.name)
            return seen
        case types.WorkerChanged() | types.WorkerDeleted():
            return {"worker": keys.worker(event.worker_id)}
        case types.NameClaimed():
            return {"worker_name": keys.worker_name(event.name)}
        case types.NameFreed():
            return {
                "worker_name": keys.worker_name(event.name),
                "fences": keys.fences(partition),
            }
        case types.WorkerRenamed():
            return {"worker": keys.worker(event.worker_id), "fences": keys.fences(partition)}
        case types.WorkerAborted() | types.WorkerNonconformant() | types.WorkerMeasured():
            return {"worker": keys.worker(event.worker_id), "fences": keys.fences(partition)}
        case types.AccountOpened():
            opened: Touched = {
                "account": keys.account(event.user_id),
                "clearing": keys.clearing(partition),
                "accounts": keys.accounts(partition),
            }
            if event.key:
                opened["api_key"] = keys.api_key(event.key)
            return opened
        case types.Admitted():
            admitted: Touched = {
                **_shared(keys, event.shared_key),
                "account": keys.account(event.user_id),
                "clearing": keys.clearing(partition),
                "due_admission": keys.due(partition, "admission"),
            }
            if event.operation_key:
                admitted["claim"] = keys.claim(event.user_id, event.operation_key)
            return admitted
        case types.WaitingChanged():
            return {"account": keys.account(event.user_id), "fences": keys.fences(partition)}
        case types.Unclaimed():
            return {
                "claim": keys.claim(event.user_id, event.operation_key),
                "fences": keys.fences(partition),
            }
        case types.ModesChanged():
            return {"modes": keys.modes()}
        case types.Released():
            return {
                "account": keys.account(event.user_id),
                "clearing": keys.clearing(partition),
                "due_admission": keys.due(partition, "admission"),
                "fences": keys.fences(partition),
            } | _shared(keys, event.shared_key)
        case types.AccountChanged():
            return {
                "account": keys.account(event.user_id),
                "due_recurring": keys.due(partition, "recurring"),
            }
        case types.AccountRekeyed():
            return {
                "account": keys.account(event.user_id),
                "api_key": keys.api_key(event.key),
                "former": keys.api_key(event.former),
            }
        case types.PasskeyChanged():
            return {
                "account": keys.account(event.user_id),
                "passkeys": keys.passkeys(partition),
            }
        case types.AccountDeleted():
            return {
                "account": keys.account(event.user_id),
                "due_recurring": keys.due(partition, "recurring"),
                "api_key": keys.api_key(event.key),
                "passkeys": keys.passkeys(partition),
                "of_account": keys.shared_keys(event.user_id),
                "shared_keys": [keys.shared_key(each) for each in event.shared_keys],
            }
        case types.SharedKeyOpened() | types.SharedKeyDeleted():
            return {
                "shared_key": keys.shared_key(event.shared_key),
                "of_account": keys.shared_keys(event.user_id),
            }
        case types.SharedKeyChanged():
            return {"shared_key": keys.shared_key(event.shared_key)}
        case types.Granted():
            return {
                "due_recurring": keys.due(partition, "recurring"),
                "account": keys.account(event.user_id),
                "clearing": keys.clearing(partition),
                "transfers": keys.transfers(event.user_id),
            }
        case types.Charged():
            return {
                "account": keys.account(event.user_id),
                "clearing": keys.clearing(partition),
                "fences": keys.fences(partition),
            } | _shared(keys, event.shared_key)
        case types.Rewarded():
            return {
                "account": keys.account(event.user_id),
                "clearing": keys.clearing(partition),
                "fences": keys.fences(partition),
            }
        case types.Promoted():
            return {"account": keys.account(event.user_id)}
        case types.Floored():
            return {
                "account": keys.account(event.user_id),
                "clearing": keys.clearing(partition),
            }
        case types.Transferred():
            return {
                "account": keys.account(event.user_id),
                "clearing": keys.clearing(partition),
                "transfers": keys.transfers(event.user_id),
            }
        case types.Received():
            return {
                "account": keys.account(event.user_id),
                "clearing": keys.clearing(partition),
                "transfers": keys.transfers(event.user_id),
                "fences": keys.fences(partition),
            } | _shared(keys, event.shared_key)
        case types.Settled():
            return {"fences": keys.fences(partition)}
        case _:
            raise TypeError(f"no keys are known for {type(event).__name__}")


def _shared(keys: Keys, shared_key: str) -> Touched:
    return {"shared_key": keys.shared_key(shared_key)} if shared_key else {}
