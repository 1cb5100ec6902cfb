"""The words of the chat declaration. The lists grow; a word never changes meaning."""

from __future__ import annotations

FEATURES = frozenset(
    {
        "seed",
        "reasoning_effort",
        "presence_penalty",
        "frequency_penalty",
        "vision",
        "tools",
        "json_object",
        "json_schema",
        "tools_with_response_format",
    }
)
"""What a backend can do (spec, Chat declaration on pop)."""

GUARANTEES = frozenset(
    {
        "tool_choice_enforced",
        "single_tool_call_enforced",
        "structured_output_enforced",
        "prompt_overflow_refused",
    }
)
"""What a backend keeps exactly (spec, Guarantees). One list with the features on the wire."""

IMAGE_TRANSPORTS = frozenset({"url", "base64", "messages_url"})
