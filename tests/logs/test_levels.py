"""The level of a log line, from the line alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.data.log_levels import LEVELS, level_of

DEBUG, INFO, ERROR = LEVELS
STREAMS = ("stdout", "stderr")

# Lines that name their level.
LEVEL_OF_LINE = {
    "debug looking": DEBUG,
    "TRACE looking": DEBUG,
    "2026-11-21 10:00:00,123 DEBUG looking": DEBUG,
    '{"time": "now", "level": "debug", "message": "error"}': DEBUG,
    "info done": INFO,
    "Warning: low": INFO,
    "WARN low": INFO,
    '{"level": "WARNING"}': INFO,
    "2026-11-21T10:00:00+0800 [info] done": INFO,
    "I1121 10:00:00.000001 12 f.cc:3] done": INFO,
    "ERROR broken": ERROR,
    "error: broken": ERROR,
    "[ERROR] broken": ERROR,
    "(fatal) broken": ERROR,
    "<critical> broken": ERROR,
    "CRITICAL:root:broken": ERROR,
    "2026-11-21T10:00:00.123Z error broken": ERROR,
    "\x1b[31mERROR\x1b[0m broken": ERROR,
    "[2026-11-21 10:00:00.123] [error] [f.cc:12] broken": ERROR,
    "E1121 10:00:00.000001 12 f.cc:3] broken": ERROR,
    "Traceback (most recent call last):": ERROR,
    '{"severity": "ERROR"}': ERROR,
    '  {"level": "error"}': ERROR,
}

LINES_WITHOUT_LEVEL = [
    "",
    "rows: 12",
    "12 34",
    "there was an error",
    "errors: 0",
    "error_count 0",
    "\x00\xff",
    "{broken json, error",
    '{"message": "error"}',
    '{"level": 50}',
    '["error"]',
]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(
    ("line", "level"),
    LEVEL_OF_LINE.items(),
)
def test_a_level_in_a_line_counts_on_either_stream(line, level, stream):
    assert level_of(line.encode(), stream) is level


@pytest.mark.parametrize("line", LINES_WITHOUT_LEVEL)
def test_a_line_without_a_level_is_info_on_stdout_and_error_on_stderr(line):
    assert level_of(line.encode(), "stdout") is INFO
    assert level_of(line.encode(), "stderr") is ERROR


def json_line(level: str) -> bytes:
    return json.dumps({"level": level}).encode()


@given(st.binary() | st.text().map(str.encode) | st.text().map(json_line))
def test_any_bytes_have_a_level(line):
    assert level_of(line, "stdout") in LEVELS


def test_json_that_is_nested_too_deeply_has_no_level():
    assert level_of(b'{"level":' * 30_000, "stdout") is INFO
