import io
import json
import logging

import pytest
import structlog

from hordechat import logs


@pytest.fixture
def lines():
    stream = io.StringIO()
    logs.configure("INFO", "settler", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    structlog.reset_defaults()
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)


def test_a_line_is_json_with_the_four_keys_in_front(lines):
    structlog.get_logger().info("moved", position="5-1", amount=b"\xff")

    (line,) = lines()
    assert list(line)[:4] == ["ts", "level", "process", "event"]
    assert (line["level"], line["process"], line["event"]) == ("info", "settler", "moved")
    assert line["position"] == "5-1"


def test_what_json_cannot_say_is_shown_as_text(lines):
    structlog.get_logger().info("odd", value=object)

    assert lines()[0]["value"] == "<class 'object'>"


def test_lines_below_the_level_are_left_out(lines):
    structlog.get_logger().debug("noise")

    assert lines() == []


def test_records_of_other_libraries_have_the_same_shape(lines):
    logging.getLogger("somebody").warning("careful %s", 1, extra={"ids": [1]})

    (line,) = lines()
    assert (line["event"], line["level"], line["process"]) == ("careful 1", "warning", "settler")
    assert line["ids"] == [1]


def test_an_exception_is_one_line(lines):
    try:
        int("no")
    except ValueError:
        structlog.get_logger().exception("failed")

    (line,) = lines()
    assert "ValueError: invalid" in line["exception"]
