"""Which test shows which item of the specification: the mark, the list of items, docs/spec.md.

`@spec("Tools", 3)` says that a test shows item 3 of that section, numbered as below: rows of its
tables and bullets of its lists, in the order of the page. `make docs` writes the table from the
marks; tests/test_spec.py holds it to them, and every item to at least one test.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

spec = pytest.mark.spec

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "spec.md"

SECTIONS: dict[str, tuple[str, ...]] = {
    "Routes": (
        "POST /v2/generate/chat/async queues: 202; 200 for a repeated operation key",
        "GET /v2/generate/chat/status/<id> shows status, generations and replies",
        "DELETE /v2/generate/chat/status/<id> cancels",
        "chat ids are 404 on text routes and the other way round",
        "the answer has no is_possible; a warning where no worker can serve it",
    ),
    "Order of a submission": (
        "the body's size, declared or chunked",
        "the body is parsed and validated",
        "the operation key is looked up, for a known account",
        "the admission flag",
        "maintenance, authentication, concurrency, countermeasures, moderation",
        "the model: known, and served",
        "max_tokens is lowered to what workers declare",
        "the context is sized, the params are validated, the request is created",
    ),
    "Known models": (
        "known by the text model reference",
        "known by an online worker's chat declaration",
        "UnknownChatModel before sizing and any row, dry runs included",
        "NoEligibleWorker for a known model without an online chat worker, dry runs included",
        "its sentence for one model",
        "its sentence for several",
        "no impossible_reason in its body",
        "every entry of models has to be known; the first unknown one is named by its path",
    ),
    "Operation key": (
        "a repeat with the same fingerprint: 200 with the first id and kudos",
        "a repeat with another fingerprint: OperationKeyConflict",
        "answered before concurrency, availability and model checks",
        "of concurrent submissions one is queued, the others answer with it",
        "of concurrent submissions that differ, the losers get OperationKeyConflict",
        "the same key of another user is a claim of its own",
        "a dry run neither looks up nor claims",
        "the claim lasts as long as the request",
        "what the fingerprint covers",
        "defaults filled in, both token limits, order of models, model and models: equal",
        "what the fingerprint leaves out",
    ),
    "Admission flag": (
        "off: 503 ChatAdmissionDisabled, dry runs included",
        "off: everything already queued is served",
        "off: a repeated operation key still answers 200",
    ),
    "Rate limits": (
        "two budgets for one address",
        "unset, they follow the text submit limits",
        "the forwarded address counts with a known passkey",
        "clients behind one address share its budgets",
        "a whitelisted service address gets the text route's whitelisted limits",
        "the per-key limit is the text route's",
        "each route counts its own",
        "an exceeded limit is 429",
    ),
    "Request body": (
        "model: exactly one of model and models",
        "models: 1 to 5, each non-empty and listed once",
        "messages: at least one, of five roles",
        "max_tokens, max_completion_tokens: 16 to 16384, default 512, both only when equal",
        "temperature, top_p as the text params",
        "frequency_penalty, presence_penalty: -2 to 2, forwarded",
        "seed, forwarded",
        "reasoning_effort: its six values, forwarded unchanged",
        "stop: a string is a list of one",
        "n: only 1",
        "stream stores the stream hint",
        "stream_options, user, metadata: accepted, not applied",
        "tools, tool_choice, parallel_tool_calls: stored and forwarded",
        "response_format: stored and forwarded",
        "horde: the extension object",
        "content: a string, or text parts, or images of a user message",
        "name on system, developer and user messages",
        "developer is stored as system",
        "out of range: 400, never clamped",
    ),
    "horde object": (
        "only",
        "ignore, not beside only",
        "trusted_workers, validated_backends",
        "slow_workers",
        "max_context_length",
        "context_fit",
        "conformance",
        "openai_guards",
        "include_reasoning: accepted, not stored",
        "availability_mode: accepted, not stored",
        "max_kudos",
        "dry_run",
        "operation_key",
        "options of text requests that chat has not",
    ),
    "Images": (
        "at most 20 in a request",
        "at most 5 MiB each, of a data URL at parse time",
        "at most 25 MiB in all at parse time",
    ),
    "Tools": (
        "tools: at most 128 functions; names; empty or null is none",
        "tool_choice: its values; null is none",
        "parallel_tool_calls: a boolean; null is none",
        "response_format: its types; text or null is none",
        "at most 256 KiB of tools, choice and format",
        "schemas nest at most 10 levels below their root",
        "tool_choice or parallel_tool_calls without tools: conflict, in OpenAI's words",
        "tool_choice of a function that tools does not define: conflict",
        "a strict json_schema: additionalProperties false and all properties required, everywhere",
        "a strict function: the same, by its own path",
        "an assistant message's tool_calls: 1 to 128, content null or absent beside them",
        "a tool message: content and tool_call_id",
        "history: another message while calls are unanswered",
        "history: a tool message without open calls, or a second answer",
        "history: an id that the assistant message did not issue",
        "history: an id repeated within one assistant message",
        "history: it ends with calls unanswered",
        "stored and sent unchanged, an absent content as null",
        "chat_extras holds what changes the answer, in the client's shape",
        "tool_choice none beside tools is stored",
    ),
    "Features": (
        "seed",
        "reasoning_effort",
        "presence_penalty",
        "frequency_penalty",
        "vision",
        "tools",
        "json_object",
        "json_schema",
        "tools_with_response_format",
        "a field at its default needs none",
    ),
    "Guarantees": (
        "tool_choice_enforced",
        "single_tool_call_enforced: never needed",
        "structured_output_enforced",
        "prompt_overflow_refused: always",
        "best_effort needs none",
        "the temperature of a request that forwards tools",
    ),
    "Refused keys and values": (
        "any other key, named",
        "a message key outside its role's",
        "another role",
        "a content part of another type",
        "an unknown key in horde",
        "n other than 1",
        "more than 1024 messages, or 1 MiB of text",
        "a body over 36 MiB comes before all of these",
        "two values that conflict: ChatRequestConflict",
        "wrong types and forms: BadRequest",
    ),
    "Context adjustments": (
        "grow raises the context and is shown on the status",
        "null where nothing was changed",
        "max_tokens above every worker's max_length is lowered, recorded first",
        "sizing, allowance and estimate use the lowered length; dry runs too",
        "max_context_length above every declaration is not lowered",
        "horde.chat.max_length_lowered",
        "reject: PromptExceedsContext",
        "truncate_oldest drops whole turns, oldest first",
        "system and developer messages, the latest user message and all after it stay",
        "what still does not fit: PromptExceedsContext",
        "both changes are recorded, with estimates and the number of messages",
        "no grow entry where the context was at the bound",
        "horde.text.context_fit",
        "a dry run is trimmed the same way; resolved.context_fit is grow",
    ),
    "Flattened prompt": (
        "role: text, parts and messages joined by newlines",
        "[image] for an image part",
        "tool calls as compact JSON behind the text; a tool message is tool: <text>",
        "the stored tools follow as compact JSON; a response format does not",
        "the estimate: characters, and 512 tokens an image",
        "the replacement filter is applied to each message text and mirrored",
        "a text that the filter empties is an empty string",
        "tool arguments, definitions and formats are not rewritten",
        "only kept turns are stored; submitted_prompt holds the whole submission",
    ),
    "Chat declaration on pop": (
        "chat_jobs",
        "prompt_jobs: false needs chat_jobs",
        "chat_features: unknown values are ignored, absent means none",
        "chat_limits, with tools_max_temperature",
        "model_id: one of models",
        "image_transports: unknown values are ignored",
        "stored and matched at every pop, inside the check-in window too",
        "a pop without chat_jobs withdraws the whole declaration",
        "an incomplete or contradictory one: ChatDeclarationInvalid",
    ),
    "Tool temperature limit": (
        "a worker whose limit is below the request's temperature is refused, in both modes",
        "a worker without the limit applies every temperature",
    ),
    "Eligibility": (
        "the worker declared chat_jobs on its latest pop, with one of the request's models",
        "every feature and guarantee, and an image transport for images",
        "the chat limits, and tools_max_temperature",
        "only and ignore, trusted, validated, slow workers",
        "what a serving worker cannot take is accepted and waits with is_possible false",
        "a worker of before chat sees no chat request; chat workers take text in text limits",
    ),
    "Impossible reason": (
        "missing_declarations, image_transports among them",
        "exceeded_limits",
        "null otherwise: nobody, somebody, or a reason that may pass",
        "whom the request's own restrictions leave out has no say",
        "an assigned job keeps the declaration that it was assigned under",
    ),
    "Job lease": (
        "150 seconds, whatever the length, of text and chat alike",
        "a late submit: AbortedGen with the lease; accepted until the janitor comes by",
        "a post extends a streamed lease to 150 seconds after it",
        "never beyond 600 seconds for a trusted owner",
        "never beyond 200 seconds for any other",
        "no extension by a repeat, nor after the lapse, nor after a cancel",
        "a job that does not stream keeps the base lease",
        "a chat job is offered to whom finishes it within the lease less 30 seconds",
        "a worker without a measured speed counts as 10 tokens a second",
        "a legacy text job is offered all the same, and told of",
        "horde.text.lease_renewals",
        "horde.text.stale_aborts",
        "horde.pop.lease_capacity_limited",
        "horde.text.gate_shadow.assignments",
        "horde.text.gate_shadow.outcomes",
        "horde.text.gate_shadow.service_seconds",
    ),
    "Streaming progress": (
        "the worker owner's API key, judged from the lease alone",
        "seq counts from 1",
        "content, empty only beside reasoning; reasoning_content",
        "accepted_seq and cancelled; a repeat is answered the same and not appended",
        "400: neither content nor reasoning",
        "404 ChatJobAborted",
        "404 ChatProgressNotStreaming",
        "403 WrongCredentials",
        "409 ChatProgressOutOfSequence with expected_seq",
        "413 ChatProgressCapReached",
        "503 ChatProgressUnavailable",
        "a fault ends the stream's part of a generation",
        "a cancel flags the lease and ends it there; posts are still answered",
    ),
    "Chat job pop response": (
        "messages as stored",
        "tools and format only when stored",
        "sampling fields always, with the client's value or the default",
        "stop_sequence, seed, reasoning_effort only when sent",
        "the validated budgets, and n",
        "tool_choice none sends no tool keys",
        "a forced function is sent alone, as required",
    ),
    "Structured submit": (
        "message: content, 1 to 128 tool_calls, reasoning_content; null content only with calls",
        "finish_reason: its four values; tool_calls needs calls",
        "native_finish_reason: at most 32 characters",
        "prompt_tokens, completion_tokens: 0 to 10,000,000 or null",
        "reasoning_tokens: the same",
        "model_id: the assigned model",
        "state as for text jobs",
        "fault_reason with state faulted",
        "chat and text submits are told apart by their keys",
        "ChatSubmitInvalid, ChatModelMismatch; a text job's submit with message",
        "a faulted submit needs neither generation nor message",
        "a reply for a faulted generation is AbortedGen, and is not remembered",
        "the submit that crosses the limit faults the request",
        "NUL is replaced in every stored string",
        "an empty content completes, and is counted by model unless it carries calls",
    ),
    "Reasoning": (
        "stored beside content, NUL replaced, only when submitted, and shown",
        "its characters count with the content and the calls",
        "at most 1 MiB of UTF-8",
    ),
    "Reply verification": (
        "a call of no tool of the request, or any without tools: ChatSubmitInvalid",
        "two calls with the same id: ChatSubmitInvalid",
        "a call under tool_choice none: nonconformant when strict",
        "no call under required: nonconformant when strict",
        "no call, or another function, under a function choice: nonconformant when strict",
        "more than one call under parallel_tool_calls false: the first is kept when strict",
        "json_object, or json_schema without strict: a JSON object when strict",
        "json_schema with strict true: content matches the schema when strict",
        "the reduction runs first, the finish reason is kept",
        "a tool_calls finish under a function choice is stored as stop, in either mode",
        "calls without content are exempt from the format",
        "JSON as Python reads it, NaN and Infinity refused",
        "a strict schema by the draft of its $schema, 2020-12 otherwise",
        "references resolve inside the schema only",
        "a schema that cannot be compiled: nonconformant, and the message says so",
    ),
    "Refusal record and worker counters": (
        "a refusal is stored before the 400: message, return code; the job stays pending",
        "a later refusal overwrites both",
        "fault_reason and fault_rc on the status once faulted, and in the signal",
        "ChatSubmitNonconformant stored: nonconformant_replies counts, for faults and lapses",
        "any other, or none: a dropped job",
        "nonconformant replies do not count toward the hourly threshold",
    ),
    "Worker fault reasons": (
        "prompt_overflow",
        "unbuildable_grammar",
        "tool_violation",
        "reply_refused",
        "generation_error",
        "unknown or missing: not stored, accepted; a refusal of the same generation stands",
    ),
    "Completion signal": (
        "generation: a submit stored a generation",
        "done: after generation, when the request is complete",
        "cancelled",
        "faulted: the request was faulted, or claimed by its expiry; with fault fields",
    ),
    "Worker details": (
        "accepts_chat_jobs and accepts_prompt_jobs of the last pop",
        "no chat where the worker takes no chat jobs",
        "chat.model_id",
        "chat.features",
        "chat.limits",
        "chat.image_transports",
        "only recognised names, sorted",
        "kept for 30 seconds",
    ),
    "Pricing": (
        "a chat job is charged and rewarded as a text job with the same output",
        "characters of content, reasoning, names and arguments of calls",
        "a quarter of them, rounded up, at least 20 tokens, at most max_length",
        "upfront kudos by the largest model of the list",
        "the quote by the first listed model",
        "a cancelled stream is settled on what was posted; before any post on 20 tokens",
        "where that is lost, on the bytes that its lease counted",
        "the charge at the model that served it",
        "reported token counts are stored and shown, and charged for never",
        "the status tells of a chat reply all that was submitted, its charge_basis and its wait",
        "the text status tells none of that",
        "a job that does not stream is paid for its reply after a cancel",
        "settled_character_count of a settled generation alone: it has no basis, no finish_reason",
    ),
    "Free output allowance": (
        "at most the allowance: admitted without a hold",
        "above it the kudos are held at admission, or 403 KudosUpfront states the allowance",
        "a text request with allow_downgrade is lowered to the allowance instead",
        "NoEligibleWorker where nobody can serve what would be refused for kudos; its sentences",
        "no eligible worker: the floor",
        "up to full_wait: the ceiling",
        "from floor_wait on: the floor",
        "competing_tokens, competing_jobs: what an eligible worker could take",
        "between them: by the wait, rounded",
        "tokens_per_second: each thread once, an unmeasured worker at 10",
        "ceiling: HORDE_TEXT_FREE_OUTPUT_CEILING, 4096",
        "floor: HORDE_TEXT_FREE_OUTPUT_FLOOR, 512",
        "full_wait: HORDE_TEXT_FREE_OUTPUT_WAIT_FULL_SECONDS, 60",
        "floor_wait: HORDE_TEXT_FREE_OUTPUT_WAIT_FLOOR_SECONDS, 300",
        "the wait of the status, without the request's own output",
        "a chat request on a shared model does not compete for text-only workers",
        "slow_workers false always holds",
        "HORDE_UPFRONT_KUDOS_ON_WORKERLIST holds for listed workers, and forbids a downgrade",
        "a dry run measures, and is never refused for kudos",
        "after a downgrade the workers are asked for again",
        "covered by the hold, or within the floor: queued whether or not somebody can serve it",
        "horde.text.free_allowance.decisions",
        "horde.text.free_allowance.estimated_wait_seconds",
        "horde.text.queue_wait_seconds",
        "a dry run is not recorded; the downgrade has a log line",
        "an empty shared key: free within the allowance, as the anonymous account",
    ),
    "Accounts": (
        "an API key is kept as its HMAC; an unknown one is 401 InvalidAPIKey",
        "GET /v2/find_user: itself; of a shared key's owner what everyone is told; 401, 404",
        "GET /v2/users: 25 a page, by kudos or age",
        "GET /v2/users/<id>: what everyone is told; 404",
        "more to itself, most to moderators",
        "PUT: who may change what; nothing of the anonymous account",
        "moderator comes with trust; trust ends the pause of the workers",
        "education raises the concurrency to 200, 0 to 500 by moderators",
        "the passkey of a service's proxies",
        "DELETE: name and keys are gone, the number and its ledger stay",
        "another API key ends the former one",
        "hordechat user and hordechat kudos",
        "60 calls a minute to the routes of an account",
    ),
    "Shared keys": (
        "PUT makes one: its fields, their ranges and defaults",
        "GET needs no key; PATCH and DELETE are the owner's",
        "at most 3, 10 of a trusted account, 1000 of one of education",
        "a request with it is its owner's: priority, concurrency, kudos",
        "SharedKeyExpired",
        "SharedKeyInsufficientKudos; text may be lowered, at priority -50",
        "max_text_tokens: BadRequest",
        "every charge and tax counts against it, down to 0",
        "the generate routes and find_user take it, and no other",
        "5 are made a minute",
    ),
    "Kudos": (
        "the worked examples of what jobs cost and earn: A, A2, B, C, E",
        "the worked examples of quotes: A, B, D",
        "the tax, the burn, and nothing else: 1 + Σ(price + 1)",
        "the context factor, 1.2 to 30",
        "a model outside the reference",
        "HORDE_REQUIRE_MATCHED_TARGETING: a tenth of a kudos",
        "floors by the kind of account, each lift a movement of its own",
        "what may be held: the balance less its floor and other holds, under any interleaving",
        "a hold is used up by charges; what is left is free in the end",
        "half of what an owner earns who is not trusted waits, and all that is for uptime",
        "trust: more than the threshold, seven days, not suspicious",
        "suspicion: how fast a reply may come",
        "records count what was asked for, once for each job that is paid for",
        "usage_multiplier scales the records alone",
        "a worker's kudos_rewards and kudos_details",
        "the reward for uptime",
        "more than 600 seconds online; maintenance, pauses and absence are none",
        "priority: the balance, less of it where flagged, -50 of an empty shared key",
        "POST /v2/kudos/transfer: its refusals",
        "nothing goes back for 60 seconds",
        "Idempotency-Key",
        "once a second and 90 times an hour, 600 from a whitelisted address",
        "grants, and monthly kudos",
        "each generation is charged and rewarded once, whoever settles it and when",
        "all accounts and clearing make zero; log, Redis and Postgres agree",
        "the ledger of an account, kept when it is deleted",
        "the kudos of a status: what its request was charged so far",
        "a second submit is DuplicateGen, one that comes too late AbortedGen: neither pays",
    ),
    "Chat model list": (
        "chat=true: the models that an online chat worker serves, and how",
        "without it the plain list",
        "chat=true with another type is refused",
        "count leaves out the threads of workers that take no text jobs",
        "a model that only those serve is listed, with count 0",
        "workers",
        "max_context_length",
        "max_length",
        "features",
        "created",
        "queued and jobs are shared with text requests",
        "one list for two seconds",
    ),
    "Worker and status routes": (
        "GET /v2/workers: those online, by type or name",
        "one worker by id or name, online or not",
        "moderators see more",
        "PUT: who may change what",
        "maintenance, and what the worker is told",
        "a new name: whose it may be, and whom it leads to meanwhile",
        "DELETE frees the name; 423 while it holds a job",
        "messages for workers: who leaves, reads and deletes them",
        "messages come with pops",
        "GET /v2/status/models: type, counts, model_state",
        "GET /v2/status/models/<name>",
        "GET /v2/status/performance",
        "GET /v2/status/heartbeat: 200 always, without a limit",
        "GET /v2/stats/text/totals and /v2/stats/text/models",
    ),
    "Text requests": (
        "prompt is required and not empty",
        "params: ranges and defaults",
        "max_context_length at least max_length",
        "sampler_order of seven entries",
        "stop sequences: 128 distinct, 2000 characters",
        "models: any, none means any",
        "workers and worker_blacklist",
        "trusted_workers, validated_backends, slow_workers",
        "n of 1 to 20 independent jobs",
        "dry_run",
        "disable_batching needs trust for several jobs",
        "context_fit ignore, reject, grow",
        "what is out of scope is refused or ignored",
        "202 with the estimate",
        "status fields and generations",
        "cancel",
        "stored parameters with the submitting key",
        "popped and submitted by the same workers",
        "concurrency: waiting jobs of the account",
    ),
}


class Place(NamedTuple):
    """One item of the specification."""

    section: str
    item: int  # from 1


def places() -> Iterator[Place]:
    """Every item."""
    for section, items in SECTIONS.items():
        for number in range(1, len(items) + 1):
            yield Place(section, number)


@functools.cache
def marked() -> dict[Place, list[str]]:
    """Tests by the items that they are marked with, as `file::test`."""
    found: dict[Place, list[str]] = {}
    for path in sorted(HERE.rglob("test_*.py")):
        name = path.relative_to(HERE.parent).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for section, *items in map(_arguments, node.decorator_list):
                for item in items:
                    place = Place(str(section), int(item))
                    found.setdefault(place, []).append(f"{name}::{node.name}")
    return found


def _arguments(decorator: ast.expr) -> tuple[object, ...]:
    """What `@spec(section, item, …)` says; a section without items for any other decorator."""
    match decorator:
        case ast.Call(func=ast.Name(id="spec"), args=args):
            return tuple(ast.literal_eval(each) for each in args)
    return ("",)


def page() -> str:
    """docs/spec.md."""
    lines = [
        "# The specification, item by item",
        "",
        "Which tests show which item, by the marks in tests/. This page is written by `make docs`.",
    ]
    found = marked()
    for section, items in SECTIONS.items():
        lines += ["", f"## {section}", "", "| # | item | tests |", "|---|---|---|"]
        for number, item in enumerate(items, 1):
            tests = "<br>".join(f"`{test}`" for test in found.get(Place(section, number), ()))
            lines.append(f"| {number} | {item} | {tests} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
