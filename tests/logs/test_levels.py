"""How serious a line is, told from the line alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.data.log_levels import LEVELS, Level, level_of

DEBUG, INFO, ERROR = LEVELS


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("debug looking", DEBUG),
        ("TRACE looking", DEBUG),
        ("info done", INFO),
        ("Warning: low", INFO),
        ("WARN low", INFO),
        ("ERROR broken", ERROR),
        ("error: broken", ERROR),
        ("[ERROR] broken", ERROR),
        ("(fatal) broken", ERROR),
        ("<critical> broken", ERROR),
        ("CRITICAL:root:broken", ERROR),
        ("2026-11-21 10:00:00,123 DEBUG looking", DEBUG),
        ("2026-11-21T10:00:00.123Z error broken", ERROR),
        ("2026-11-21T10:00:00+0800 [info] done", INFO),
        ("[2026-11-21 10:00:00.123] [error] [f.cc:12] broken", ERROR),
        ("I1121 10:00:00.000001 12 f.cc:3] done", INFO),
        ("E1121 10:00:00.000001 12 f.cc:3] broken", ERROR),
        ("\x1b[31mERROR\x1b[0m broken", ERROR),
        ("Traceback (most recent call last):", ERROR),
        ('{"time": "now", "level": "debug", "message": "error"}', DEBUG),
        ('{"level": "WARNING"}', INFO),
        ('{"severity": "ERROR"}', ERROR),
        ('  {"level": "error"}', ERROR),
    ],
)
def test_a_line_that_says_its_level_is_believed_on_either_stream(line: str, level: Level):
    assert {level_of(line.encode(), stream) for stream in ("stdout", "stderr")} == {level}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "rows: 12",
        "12 34",
        "there was an error",
        "errors: 0",
        "error_count 0",
        "{broken json, error",
        '{"message": "error"}',
        '{"level": 50}',
        '["error"]',
        "\x00\xff",
    ],
)
def test_a_line_that_does_not_is_info_on_stdout_and_error_on_stderr(line: str):
    assert level_of(line.encode(), "stdout") is INFO
    assert level_of(line.encode(), "stderr") is ERROR


@given(
    st.binary() | st.text().map(str.encode) | st.text().map(lambda level: json.dumps({"level": level}).encode())
)
def test_any_bytes_have_a_level(line: bytes):
    assert level_of(line, "stdout") in LEVELS


def test_a_deeply_nested_line_is_no_trouble():
    assert level_of(b'{"level":' * 30_000, "stdout") is INFO
