"""Bodies that a reader of the document may send as they are. A test does: each is accepted.

All of them speak of one model, so that a worker's example gets a client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Examples = Mapping[str, Mapping[str, Any]]
"""Bodies by what they show."""

MODEL = "koboldcpp/Qwen3-8B"
_GENERATION = "7e7d4a0e-2f0b-4d8a-9d7c-6a1f3c5b8e21"
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
        },
    },
}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"place":"Utrecht"}'},
}

CHAT: Examples = {
    "A question": {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Answer in one sentence."},
            {"role": "user", "content": "Why is the sky blue?"},
        ],
        "max_tokens": 200,
        "stream": True,
    },
    "The reply to a tool call": {
        "models": [MODEL],
        "messages": [
            {"role": "user", "content": "Do I need an umbrella in Utrecht?"},
            {"role": "assistant", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Rain until six."},
        ],
        "tools": [_TOOL],
        "temperature": 0.2,
        "horde": {"conformance": "best_effort"},
    },
}

TEXT: Examples = {
    "A story": {
        "prompt": "Once upon a time",
        "params": {"max_length": 120, "temperature": 0.8, "stop_sequence": ["The end"]},
        "models": [MODEL],
    },
}

POP: Examples = {
    "A worker of chat jobs": {
        "name": "Attic",
        "models": [MODEL],
        "bridge_agent": "hordechat:0.1:example",
        "threads": 1,
        "max_length": 2048,
        "max_context_length": 8192,
        "chat_jobs": True,
        "model_id": MODEL,
        "chat_features": ["tools", "prompt_overflow_refused"],
        "chat_limits": {"max_context_length": 8192, "max_length": 2048},
    }
}

SUBMIT: Examples = {
    "A reply to a chat job": {
        "id": _GENERATION,
        "model_id": MODEL,
        "message": {"role": "assistant", "content": "Because air scatters blue light most."},
        "finish_reason": "stop",
        "prompt_tokens": 24,
        "completion_tokens": 9,
    },
    "Giving a chat job up": {"id": _GENERATION, "state": "faulted", "model_id": MODEL},
    "A reply to a text job": {"id": _GENERATION, "generation": ", the sky was blue."},
}

PROGRESS: Examples = {
    "The first words": {"id": _GENERATION, "seq": 1, "delta": {"content": "Because air"}}
}

MODES: Examples = {"Taking no new requests": {"maintenance": True}}

WORKER: Examples = {
    "Into maintenance": {"maintenance": True, "maintenance_msg": "New disks, back on Friday."},
    "Another name": {"name": "Attic, north side"},
    "What people read of it": {"info": "Two cards in an attic, off at night."},
}

USER: Examples = {
    "Another name, by itself": {"username": "alice", "contact": "alice@example.org"},
    "Trust, by a moderator": {"trusted": True, "admin_comment": "Met at the fair."},
}

SHARED_KEY: Examples = {
    "For a class, for a month": {
        "name": "Evening class",
        "kudos": 2000,
        "expiry": 30,
        "max_text_tokens": 300,
    },
}

MESSAGE: Examples = {
    "To all workers, for a day": {
        "message": "Version 2 of the worker is out. Please update.",
        "expiry": 24,
    },
}

TIMEOUT: Examples = {
    "An address for a day": {"ipaddr": "203.0.113.7", "hours": 24},
    "A network for an hour": {"ipaddr": "2001:db8::/48", "hours": 1},
}

CLEAR_TIMEOUT: Examples = {"An address": {"ipaddr": "203.0.113.7"}}

TRANSFER: Examples = {
    "To an account": {"username": "Ada#7", "amount": 250},
    "To a shared key": {"username": _GENERATION, "amount": 12.5},
}
