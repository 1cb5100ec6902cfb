"""The document tells of every route, truly; the page shows it without a network.

That it tells of every answer is held by every other test of the API: see tests/api/described.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import falcon.asgi
import falcon.inspect
import falcon.testing
import httpx
import pytest
import schemathesis
from swagger_ui_bundle import swagger_ui_path

import api.errors
from api import openapi
from api.description import examples
from api.description.operations import OPERATIONS, described
from handlers import errors
from handlers.accounts import open_account
from tests.api.described import document, operations, undescribed
from tests.api.site import SECRET, Site, opened

UNTOLD = {
    errors.Refused,  # no refusal by itself
    errors.Unserved,
}


def routes(app: Any) -> dict[tuple[str, str], str]:
    """The responders of an app's routes by method and path, as `Class.on_method`."""
    while not isinstance(app, falcon.asgi.App):
        app = app._app  # what wraps an app does not show it
    return {
        (method.method.lower(), route.path): f"{route.class_name}.{method.function_name}"
        for route in falcon.inspect.inspect_routes(app)
        for method in route.methods
        if not method.internal  # OPTIONS and 405, which Falcon answers on every path
    }


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of the document."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from nodes(each)


async def test_every_route_is_described_and_nothing_else(site: Site) -> None:
    found = routes(site.app)
    told = {
        (each.method, each.path): each.responder.__qualname__.rpartition(".<locals>.")[2]
        for each in OPERATIONS
    }

    assert found.keys() - told.keys() == set(), (
        "Tell of it: add the route to OPERATIONS in api/description/operations.py, with the struct "
        "that it decodes, those that it encodes, and the refusals that it may raise"
    )
    assert told.keys() - found.keys() == set(), (
        "There is no such route any more: drop it from OPERATIONS in api/description/operations.py"
    )
    assert told == found


def test_the_document_is_valid_openapi() -> None:
    assert document()["openapi"] == "3.1.0"

    schemathesis.openapi.from_dict(document()).validate()


def test_every_reference_leads_somewhere() -> None:
    for node in nodes(document()):
        if isinstance(node.get("$ref"), str):
            place: Any = document()
            for key in node["$ref"].removeprefix("#/").split("/"):
                place = place[key]
            assert place


def test_every_component_is_used() -> None:
    used = {node["$ref"] for node in nodes(document()) if isinstance(node.get("$ref"), str)}
    used |= {"#/components/securitySchemes/apikey"}

    for kind, named in document()["components"].items():
        assert {f"#/components/{kind}/{name}" for name in named} <= used


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]

    assert len(set(names)) == len(names)
    assert all(operation["summary"] for _, _, operation in operations())
    assert not any("`" in operation["summary"] for _, _, operation in operations())


def test_descriptions_do_not_speak_of_papers_that_callers_have_not() -> None:
    for node in nodes(document()):
        if isinstance(told := node.get("description"), str):
            assert not re.search(r"\(spec\b|\.md\b|\(\d+\.\d", told), told


def test_every_field_says_what_it_holds() -> None:
    """What is kept as raw JSON is told of in HELD."""
    for name, schema in document()["components"]["schemas"].items():
        for field, told in schema.get("properties", {}).items():
            assert told != {}, f"{name}.{field}: add it to HELD in api/description/operations.py"


def test_patterns_are_those_of_json_schema() -> None:
    """Python's own dialect has anchors that others refuse."""
    for node in nodes(document()):
        if isinstance(node.get("pattern"), str):
            assert not re.search(r"\\[AZz]|\(\?P", node["pattern"])


def test_every_refusal_is_told_of_somewhere() -> None:
    told = {kind for each in OPERATIONS for kind in each.refusals}

    assert set(api.errors.STATUSES) - told == UNTOLD, (
        "No operation tells of these: see `refusals` in api/description/operations.py"
    )


def test_a_refusal_stands_under_its_status() -> None:
    for each in OPERATIONS:
        responses = document()["paths"][each.shown_path][each.method]["responses"]
        for kind in each.refusals:
            response = responses[str(api.errors.STATUSES[kind])]
            if "$ref" in response:
                assert response["$ref"] == f"#/components/responses/{kind.__name__}"
                response = document()["components"]["responses"][kind.__name__]
            schema = response["content"]["application/json"]["schema"]
            assert kind.__name__ in schema["properties"]["rc"]["enum"]
            assert kind().message in response["description"]


async def test_every_example_is_accepted(site: Site) -> None:
    path = "/v2/generate/{}".format
    (pop,) = examples.POP.values()
    (progress,) = examples.PROGRESS.values()
    *chat_replies, text_reply = examples.SUBMIT.values()

    async def popped() -> Any:
        await site.project()
        answer = await site.post(path("text/pop"), pop, site.owner_key)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(route: str, body: Any, key: str) -> int:
        return (await site.post(path(route), body, key)).status_code

    assert (await popped())["id"] is None
    await site.project()  # a worker is there
    for body, reply in zip(examples.CHAT.values(), chat_replies, strict=True):
        assert await post("chat/async", body, site.client_key) == 202
        job = await popped()
        assert job["model"] == examples.MODEL
        id_ = {"id": job["id"]}
        if job["payload"].get("stream_progress"):
            assert await post("text/progress", {**progress, **id_}, site.owner_key) == 200
        assert await post("text/submit", {**reply, **id_}, site.owner_key) == 200
    for body in examples.TEXT.values():
        assert await post("text/async", body, site.client_key) == 202
        id_ = {"id": (await popped())["id"]}
        assert await post("text/submit", {**text_reply, **id_}, site.owner_key) == 200


async def test_every_example_for_operators_is_accepted(redis_url: str, migrated_url: str) -> None:
    name = "moderator"
    async with opened(redis_url, migrated_url, admins=f"{name}#3") as site:
        _, key = await open_account(site.parts.log, SECRET, name, moderator=True)
        bodies = [
            *(("PUT", "/v2/status/modes", body) for body in examples.MODES.values()),
            *(("POST", "/v2/workers/messages", body) for body in examples.MESSAGE.values()),
            *(("POST", "/v2/operations/ipaddr", body) for body in examples.TIMEOUT.values()),
            *(
                ("DELETE", "/v2/operations/ipaddr", body)
                for body in examples.CLEAR_TIMEOUT.values()
            ),
        ]

        worker = (await site.http.get("/v2/workers/name/w")).json()["id"]
        bodies += [("PUT", f"/v2/workers/{worker}", body) for body in examples.WORKER.values()]
        bodies += [("PUT", "/v2/users/1", body) for body in examples.USER.values()]
        made = await site.http.put("/v2/sharedkeys", json={}, headers={"apikey": key})
        shared = f"/v2/sharedkeys/{made.json()['id']}"
        for body in examples.SHARED_KEY.values():
            bodies += [("PUT", "/v2/sharedkeys", body), ("PATCH", shared, body)]

        for method, path, body in bodies:
            answer = await site.http.request(method, path, json=body, headers={"apikey": key})
            assert answer.status_code == 200, answer.text


def test_every_body_has_an_example() -> None:
    for method, path, operation in operations():
        if "requestBody" in operation:
            told = operation["requestBody"]["content"]["application/json"]
            assert told.get("examples"), f"{method} {path}: see api/description/examples.py"


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, b'{"accepted_seq":1,"cancelled":false}', None),
        (200, b'{"accepted_seq":"1","cancelled":false}', "is not of type"),
        (200, b'{"accepted_seq":1,"cancelled":false,"more":1}', "Additional properties"),
        (202, b'{"accepted_seq":1,"cancelled":false}', "this status is not described"),
        (404, b'{"message":"No.","rc":"ChatJobAborted"}', None),
        (404, b'{"message":"No.","rc":"RequestNotFound"}', "is not one of"),
        (404, b'{"message":"No.","rc":"NotFound"}', None),
        (404, b'{"rc":"ChatJobAborted"}', "required"),
    ],
)
def test_what_holds_answers_to_the_document_finds_what_is_wrong(
    status: int, body: bytes, problem: str | None
) -> None:
    headers = httpx.Headers({"content-type": api.errors.JSON})
    found = undescribed("POST", "/v2/generate/text/progress", status, body, headers)

    assert (found is None) if problem is None else (found is not None and problem in found)


# what is served


@pytest.fixture
def pages() -> falcon.testing.TestClient:
    """The document and its page alone."""
    app: falcon.asgi.App[Any, Any] = falcon.asgi.App()
    api.errors.install(app)
    app.add_route("/v2/openapi.json", openapi.OpenApi(described()))
    app.add_route("/docs", openapi.Docs())
    app.add_route("/docs/{name}", openapi.DocsFile())
    return falcon.testing.TestClient(app)


async def test_the_document_and_its_page_are_served(site: Site) -> None:
    answer = await site.http.get("/v2/openapi.json")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == api.errors.JSON
    assert answer.json() == document()
    assert (await site.http.get("/docs")).status_code == 200


def test_the_page_loads_what_is_served_beside_it_and_nothing_else(
    pages: falcon.testing.TestClient,
) -> None:
    page = pages.simulate_get("/docs")
    links = re.findall(r'(?:src|href)="([^"]*)"', page.text)

    assert page.headers["content-type"] == openapi.HTML
    assert len(links) == 5
    for link in links:
        found = pages.simulate_get(f"/{link}")
        kind = link.rpartition(".")[2]
        assert found.status_code == 200
        assert found.content
        assert {"css": "text/css", "js": "text/javascript", "png": "image/png"}.get(
            kind, "application/json"
        ) == found.headers["content-type"].partition(";")[0]
        assert found.headers["x-content-type-options"] == "nosniff"
    assert '"v2/openapi.json"' in pages.simulate_get("/docs/page.js").text


def test_the_page_may_load_from_its_own_origin_only(pages: falcon.testing.TestClient) -> None:
    policy = dict(
        part.strip().split(" ", 1)
        for part in pages.simulate_get("/docs").headers["content-security-policy"].split(";")
    )

    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"


def test_the_renderer_knows_this_version_of_openapi() -> None:
    """Swagger UI 4 shows an error in place of a document of 3.1."""
    script = (swagger_ui_path / "swagger-ui-bundle.js").read_text()

    assert re.search(r"\^3\\\.1\\\.", script)


@pytest.mark.parametrize(
    "name",
    [
        "index.html",
        "swagger-ui.js",
        "../../../__init__.py",
        "..%2f..%2f__init__.py",
        "%2e%2e/%2e%2e/__init__.py",
        "..\\..\\__init__.py",
        "%2fetc%2fpasswd",
        "page.js%00",
        "swagger-ui.css/",
        "",
    ],
)
def test_no_other_file_is_served(pages: falcon.testing.TestClient, name: str) -> None:
    found = pages.simulate_get(f"/docs/{name}")

    assert (found.status_code, found.json["rc"]) == (404, "NotFound")
