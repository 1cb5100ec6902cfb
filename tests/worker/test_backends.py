"""What backends make of a job."""

import json
from typing import Any

import pytest

from tests.worker.conftest import DROP, Stub, a_job, a_text_job
from worker.backends import Backend, Delta, JobFailed, Reply, choose
from worker.backends.echo import Echo
from worker.backends.openai import OpenAI, request_body
from worker.backends.prompt import fitting


def payload(**more: Any) -> dict[str, Any]:
    return a_job(**more)[1]["payload"]


def text_payload(prompt: str, **more: Any) -> dict[str, Any]:
    return a_text_job("g1", prompt, **more)[1]["payload"]


async def answer(backend: Backend, asked: dict[str, Any]) -> tuple[list[Delta], Reply]:
    parts = [part async for part in backend.generate(asked)]
    *deltas, reply = parts
    assert isinstance(reply, Reply)
    return deltas, reply


def sse(*chunks: object) -> tuple[int, bytes, dict[str, str]]:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
    return 200, ": keep-alive\n\n".join(lines).encode(), {"Content-Type": "text/event-stream"}


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


class TestEcho:
    async def test_the_last_user_message_comes_back(self) -> None:
        asked = payload()
        asked["messages"] = [
            {"role": "user", "content": "first"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": None},
        ]

        _, reply = await answer(Echo(), asked)

        assert (reply.content, reply.finish_reason) == ("a\nb", "stop")

    @pytest.mark.parametrize("text", ["", "   ", "one", " a  b\n", "x " * 400])
    async def test_its_pieces_join_to_the_whole(self, text: str) -> None:
        deltas, reply = await answer(Echo(pause=0), payload(stream=True, text=text))

        assert "".join(each.content for each in deltas) == text == reply.content
        assert len(deltas) <= 12
        assert all(each.content for each in deltas)

    @pytest.mark.parametrize(
        ("asked", "content", "finish"),
        [
            ({"stop_sequence": ["zz", "c", ""]}, "ab ", "stop"),
            ({"max_length": 1}, "ab c", "length"),
            ({"max_length": 1, "stop_sequence": ["d"]}, "ab c", "stop"),
        ],
    )
    async def test_it_keeps_length_and_stop_sequences(
        self, asked: dict[str, Any], content: str, finish: str
    ) -> None:
        _, reply = await answer(Echo(), payload(text="ab cd", **asked))

        assert (reply.content, reply.finish_reason) == (content, finish)

    async def test_a_prompt_that_does_not_fit_is_refused(self) -> None:
        with pytest.raises(JobFailed) as failed:
            await answer(Echo(max_context_length=513), payload(text="12345"))

        assert failed.value.reason == "prompt_overflow"

    @pytest.mark.parametrize(
        ("asked", "content", "finish"),
        [
            ({}, "Once upon a time", "stop"),
            ({"max_length": 1}, "time", "stop"),
            ({"stop_sequence": ["upon"]}, "Once ", "stop"),
        ],
    )
    async def test_the_end_of_a_text_jobs_prompt_comes_back(
        self, asked: dict[str, Any], content: str, finish: str
    ) -> None:
        _, reply = await answer(Echo(), text_payload("Once upon a time", **asked))

        assert (reply.content, reply.finish_reason) == (content, finish)


def test_the_front_of_a_prompt_makes_room_for_the_reply() -> None:
    asked = text_payload("front" + "x" * 4 * 20, max_length=80, max_context_length=100)

    assert fitting(asked, 4096) == "x" * 4 * 20
    assert fitting(asked, 90) == "x" * 4 * 10
    assert fitting(asked, 80) == ""
    assert fitting(text_payload("all of it"), 4096) == "all of it"


class TestRequestBody:
    def test_every_field_of_the_job_is_handed_on(self) -> None:
        asked = payload(
            temperature=0.5,
            top_p=0.9,
            stop_sequence=["x"],
            seed=0,
            tools=[{"type": "function"}],
            top_k=40,
            min_p=0,
            rep_pen=1.1,
        )

        assert request_body(asked, "m") == {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 512,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "top_p": 0.9,
            "stop": ["x"],
            "seed": 0,
            "tools": [{"type": "function"}],
            "top_k": 40,
            "repetition_penalty": 1.1,
            "repeat_penalty": 1.1,
        }


class TestOpenAI:
    async def test_chunks_become_deltas_and_a_reply(self, backend_server: Stub) -> None:
        backend_server.scripts["completions"].append(
            sse(
                chunk(role="assistant"),
                chunk(reasoning_content="hm"),
                chunk(content="Hel"),
                chunk(content="lo"),
                chunk("stop"),
                {
                    "choices": [],
                    "usage": {
                        "prompt_tokens": 5,
                        "completion_tokens": 3,
                        "completion_tokens_details": {"reasoning_tokens": 1},
                    },
                },
            )
        )
        backend = OpenAI(f"{backend_server.url}/v1", "m", key="sk")

        deltas, reply = await answer(backend, payload())
        await backend.close()

        path, body, headers = backend_server.seen[0]
        assert (path, body["model"], headers["authorization"]) == (
            "/v1/chat/completions",
            "m",
            "Bearer sk",
        )
        assert deltas == [Delta("", "hm"), Delta("Hel"), Delta("lo")]
        assert reply == Reply(
            content="Hello",
            finish_reason="stop",
            reasoning="hm",
            native_finish_reason="stop",
            prompt_tokens=5,
            completion_tokens=3,
            reasoning_tokens=1,
        )

    async def test_a_text_job_is_a_completion(self, backend_server: Stub) -> None:
        backend_server.scripts["completions"].append(
            sse(
                {"choices": [{"index": 0, "text": " there", "finish_reason": None}]},
                {"choices": [{"index": 0, "text": " was", "finish_reason": "length"}]},
            )
        )
        backend = OpenAI(f"{backend_server.url}/v1", "m")
        asked = text_payload("Once", temperature=0.5, rep_pen=1.1, stop_sequence=["x"])

        _, reply = await answer(backend, asked)
        await backend.close()

        path, body, _ = backend_server.seen[0]
        assert path == "/v1/completions"
        assert body == {
            "model": "m",
            "prompt": "Once",
            "max_tokens": 80,
            "temperature": 0.5,
            "stop": ["x"],
            "repetition_penalty": 1.1,
            "repeat_penalty": 1.1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        assert reply == Reply(
            content=" there was", finish_reason="length", native_finish_reason="length"
        )

    async def test_tool_calls_are_put_together(self, backend_server: Stub) -> None:
        def part(index: int, **function: str) -> dict[str, Any]:
            return {"index": index, "function": function}

        backend_server.scripts["completions"].append(
            sse(
                chunk(tool_calls=[part(0, name="f", arguments="{") | {"id": "c0"}]),
                chunk(tool_calls=[part(0, arguments='"a":1}'), part(1, name="g", arguments="{}")]),
                chunk("tool_calls"),
            )
        )
        backend = OpenAI(f"{backend_server.url}/v1", "m")

        deltas, reply = await answer(backend, payload())
        await backend.close()

        assert deltas == []
        assert reply.content is None
        assert reply.finish_reason == "tool_calls"
        assert reply.tool_calls == (
            {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "call_1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        )

    async def test_a_surrogate_pair_cut_between_chunks_is_whole_in_the_reply(
        self, backend_server: Stub
    ) -> None:
        backend_server.scripts["completions"].append(
            sse(chunk(content="\ud83d"), chunk(content="\ude00"), chunk("stop"))
        )
        backend = OpenAI(f"{backend_server.url}/v1", "m")

        deltas, reply = await answer(backend, payload())
        await backend.close()

        assert reply.content == "\U0001f600"
        assert all(each.content.isprintable() or each.content == "\ufffd" for each in deltas)

    @pytest.mark.parametrize(
        ("scripted", "reason"),
        [
            (
                (400, {"error": {"code": "context_length_exceeded", "message": "too long"}}),
                "prompt_overflow",
            ),
            ((400, {"error": {"message": "no such key"}}), "generation_error"),
            ((500, b"boom"), "generation_error"),
            (sse(chunk(content="a"), {"error": {"message": "out of memory"}}), "generation_error"),
            (sse(chunk(content="a")), "generation_error"),
            ((200, b"data: {nonsense\n\n"), "generation_error"),
            ((200, b'data: {"choices": [null]}\n\n'), "generation_error"),
            (DROP, "generation_error"),
        ],
    )
    async def test_whatever_goes_wrong_is_a_failed_job(
        self, backend_server: Stub, scripted: object, reason: str
    ) -> None:
        backend_server.scripts["completions"].append(scripted)
        backend = OpenAI(f"{backend_server.url}/v1", "m")

        with pytest.raises(JobFailed) as failed:
            await answer(backend, payload())
        await backend.close()

        assert failed.value.reason == reason

    async def test_it_takes_over_the_servers_context_length(self, backend_server: Stub) -> None:
        backend = OpenAI(f"{backend_server.url}/v1/", "m")

        await backend.open()
        await backend.close()

        assert backend.max_context_length == 4096

    @pytest.mark.parametrize("scripted", [DROP, (404, b""), (200, {"data": [{"id": "other"}]})])
    async def test_a_server_that_cannot_serve_the_model_is_told_at_the_start(
        self, backend_server: Stub, scripted: object
    ) -> None:
        backend_server.scripts["models"].append(scripted)
        backend = OpenAI(f"{backend_server.url}/v1", "m")

        with pytest.raises(JobFailed):
            await backend.open()
        await backend.close()


def test_a_backend_is_chosen_by_name_or_url() -> None:
    assert isinstance(choose("echo", "m"), Echo)
    assert isinstance(choose("http://127.0.0.1:1/v1", "m"), OpenAI)
    with pytest.raises(ValueError, match="neither"):
        choose("gpt", "m")
