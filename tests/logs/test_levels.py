"""How serious a line is, told from the line alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.data.log_levels import LEVELS, level_of

DEBUG, INFO, ERROR = LEVELS

BY_LEVEL = {
    DEBUG: [
        *("debug looking", "TRACE looking", "2026-11-21 10:00:00,123 DEBUG looking"),
        '{"time": "now", "level": "debug", "message": "error"}',
    ],
    INFO: [
        *("info done", "Warning: low", "WARN low", '{"level": "WARNING"}'),
        *("2026-11-21T10:00:00+0800 [info] done", "I1121 10:00:00.000001 12 f.cc:3] done"),
    ],
    ERROR: [
        *("ERROR broken", "error: broken", "[ERROR] broken", "(fatal) broken", "<critical> broken"),
        *(
            "CRITICAL:root:broken",
            "2026-11-21T10:00:00.123Z error broken",
            "\x1b[31mERROR\x1b[0m broken",
        ),
        *(
            "[2026-11-21 10:00:00.123] [error] [f.cc:12] broken",
            "E1121 10:00:00.000001 12 f.cc:3] broken",
        ),
        *("Traceback (most recent call last):", '{"severity": "ERROR"}', '  {"level": "error"}'),
    ],
}
UNSAID = [
    *("", "rows: 12", "12 34", "there was an error", "errors: 0", "error_count 0", "\x00\xff"),
    *("{broken json, error", '{"message": "error"}', '{"level": 50}', '["error"]'),
]


@pytest.mark.parametrize(
    ("line", "level"), [(line, level) for level, found in BY_LEVEL.items() for line in found]
)
def test_a_level_in_a_line_counts_on_either_stream(line, level):
    assert {level_of(line.encode(), stream) for stream in ("stdout", "stderr")} == {level}


@pytest.mark.parametrize("line", UNSAID)
def test_a_line_without_a_level_is_info_on_stdout_and_error_on_stderr(line):
    assert [level_of(line.encode(), stream) for stream in ("stdout", "stderr")] == [INFO, ERROR]


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.text().map(lambda level: json.dumps({"level": level}).encode())
)
def test_any_bytes_have_a_level(line):
    assert level_of(line, "stdout") in LEVELS
    assert level_of(b'{"level":' * 30_000, "stdout") is INFO  # nested too deeply
