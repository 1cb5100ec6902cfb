"""Why workers give chat jobs up: the words that they may send, and what clients read for each.

The log and the read model keep the word, never text of a worker (spec, Worker fault reasons).
"""

from __future__ import annotations

from collections.abc import Mapping

WORKER_FAULT = "ChatWorkerFault"
"""The `fault_rc` of a request whose worker said why it faulted."""

NONCONFORMANT = "ChatSubmitNonconformant"
"""The refusal whose job does not count as dropped: the worker generated, the model failed."""

MESSAGES: Mapping[str, str] = {
    "prompt_overflow": "The worker could not fit the prompt into its context.",
    "unbuildable_grammar": "The worker could not build the grammar the request's tool choice or "
    "response format needs.",
    "tool_violation": "The model's reply broke the request's tool controls.",
    "reply_refused": "The AI Horde refused the worker's reply.",
    "generation_error": "The worker's backend failed while generating.",
}
