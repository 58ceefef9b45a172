"""JSON of others that cannot be stored, or would take the process down, is refused."""

import pytest

from adapter.body import read_json
from gateway.errors import Invalid
from provider_registry.model import counted, pieces


class Counting(bytes):
    """A text that notes how much of it was looked at in one go."""

    largest = total = 0

    def count(self, sign: object, start: int = 0, end: int | None = None) -> int:
        size = (len(self) if end is None else end) - start
        self.largest, self.total = max(self.largest, size), self.total + size
        return super().count(sign, start, end)


def test_a_text_is_counted_in_pieces_and_no_further_than_needed():
    text = Counting(b"[," * (4 << 20))
    assert counted(text, b"[,", 1000) > 1000
    assert text.largest <= 1 << 20 and text.total < len(text) // 2
    assert counted(text, b"[,", 1 << 30) == len(text)
    assert counted(b"", b",", 0) == 0
    assert [end - start for start, end in pieces(b"x" * (1 << 20) + b"y")][-1] == 1


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
