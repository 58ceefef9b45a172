"""JSON of others that cannot be stored, or would take the process down, is refused."""

import pytest

from adapter.body import read_json
from gateway.errors import Invalid


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"a": 1,}',
        b"NaN",
        b"-Infinity",
        b"9" * 5000,
        b"[" * 5_000_000,
        b'{"a":' * 100_000,
        rb'"\ud800"',
        b'"\xed\xa0\x80"',
        b'"\xff"',
    ],
    ids=str,
)
def test_what_no_reader_of_json_takes_is_refused(text: bytes):
    with pytest.raises(Invalid, match="body: must be JSON: "):
        read_json(text)


def test_utf_8_with_a_byte_order_mark_and_whole_surrogate_pairs_are_read():
    assert read_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}
