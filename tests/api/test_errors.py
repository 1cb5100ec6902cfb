"""Every refusal has a status, a code and a sentence; nothing else gets out."""

from __future__ import annotations

from collections.abc import Iterator

import falcon.asgi
import falcon.testing
import pytest
from redis.exceptions import BusyLoadingError

import api.errors
from handlers import errors
from lua.link import Unavailable
from projections.database import DatabaseUnavailable
from tests.logged import logged


def below(kind: type[errors.Refused]) -> Iterator[type[errors.Refused]]:
    yield kind
    for child in kind.__subclasses__():
        yield from below(child)


REFUSALS = sorted(set(below(errors.Refused)), key=lambda kind: kind.__name__)


class Raises:
    """A resource that answers with whatever it is given."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def on_post(self, req: falcon.asgi.Request, _resp: falcon.asgi.Response) -> None:
        req.context.raw = await req.stream.read()
        raise self._error


def answer(error: Exception, body: bytes = b"") -> falcon.testing.Result:
    app = falcon.asgi.App()
    api.errors.install(app)
    app.add_route("/", Raises(error))
    return falcon.testing.TestClient(app).simulate_post("/", body=body)


def test_the_table_names_every_refusal_and_no_other() -> None:
    assert set(api.errors.STATUSES) == set(REFUSALS)


@pytest.mark.parametrize("kind", REFUSALS, ids=lambda kind: kind.__name__)
def test_a_refusal_is_answered_with_its_code_and_its_sentence(kind: type[errors.Refused]) -> None:
    found = answer(kind())

    assert found.status_code == api.errors.STATUSES[kind]
    assert found.json["rc"] == kind.__name__
    assert "\n" not in found.json["message"]
    assert len(found.json["message"]) > 10
    assert ("retry-after" in found.headers) is (found.status_code == 503)
    assert issubclass(kind, errors.Unserved) is (found.status_code == 503)


def test_what_belongs_to_a_refusal_is_beside_it() -> None:
    assert answer(errors.ChatProgressOutOfSequence(expected_seq=3)).json["expected_seq"] == 3
    assert answer(errors.BadRequest(errors={"a": "b"})).json["errors"] == {"a": "b"}


@pytest.mark.parametrize("kind", [errors.RequestTooLarge, errors.RequestTimeout])
def test_the_connection_is_closed_where_the_body_was_not_read(kind: type[errors.Refused]) -> None:
    assert answer(kind()).headers["connection"] == "close"


@pytest.mark.parametrize(
    ("error", "rc"),
    [
        (DatabaseUnavailable(), "DatabaseUnavailable"),
        (Unavailable("gone", sent=True), "RedisUnavailable"),
        (BusyLoadingError("LOADING"), "RedisUnavailable"),
    ],
)
def test_a_server_that_is_away_is_503(error: Exception, rc: str) -> None:
    found = answer(error)

    assert (found.status_code, found.json["rc"]) == (503, rc)
    assert found.headers["retry-after"]


def test_a_bug_is_logged_with_the_shape_of_its_input_and_without_its_words() -> None:
    with logged(api.errors.logger) as lines:
        found = answer(ZeroDivisionError("1/0"), b'{"model":"secret","n":[1,2],"x":{"y":null}}')

    assert (found.status_code, found.json["rc"]) == (500, "InternalServerError")
    assert "1/0" not in found.text
    (line,) = lines
    assert line["shape"] == {"model": "str(6)", "n": ["list(2)", "int"], "x": {"y": "NoneType"}}
    assert "secret" not in str(line)


def test_the_shape_of_what_is_no_json_is_its_size() -> None:
    assert api.errors.shape(b"nonsense") == "8 bytes"
    assert api.errors.shape(b"[" * 100_000) == "100000 bytes"


def test_an_unknown_route_and_a_wrong_method_are_answered_in_our_shape() -> None:
    client = falcon.testing.TestClient(_empty())

    assert client.simulate_get("/nope").json["rc"] == "NotFound"
    wrong = client.simulate_get("/")
    assert (wrong.status_code, wrong.json["rc"]) == (405, "MethodNotAllowed")
    assert "POST" in wrong.headers["allow"]


def _empty() -> falcon.asgi.App:
    app = falcon.asgi.App()
    api.errors.install(app)
    app.add_route("/", Raises(ValueError()))
    return app
