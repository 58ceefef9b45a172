"""However large and strange JSON of others is, it is looked through in pieces, and not on the event loop."""

import asyncio
import json

import pytest

from adapter import json as adapter_json
from adapter.json import MOST_SIGNS, NotFit, read_aside, read_json
from provider_registry.model import counted, pieces
from tests.aside import watch


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


@pytest.mark.parametrize("size", [10, 70_000])
def test_a_large_text_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch, size: int):
    on_the_loop = watch(monkeypatch, adapter_json, "read_json")
    said = {"a": [1.5, {"b": None}], "text": "中" * size}
    assert asyncio.run(read_aside(json.dumps(said, ensure_ascii=False).encode())) == said
    assert on_the_loop == [size == 10]


def test_half_a_pair_is_found_wherever_pieces_meet():
    whole = '"\\ud83d\\ude00",' * 50_000  # whole pairs look alike and are none
    assert len(read_json(f"[{whole}1]".encode())) == 50_001
    for shift in range(12):
        text = f'["{"x" * shift}{"x" * ((1 << 19) - 10)}\\ud800"]'.encode()
        with pytest.raises(NotFit, match="half of a surrogate pair"):
            read_json(text)


@pytest.mark.parametrize("text", [b"[" * 5_000_000, b"[" + b"0," * MOST_SIGNS + b"0]", b"{}," * 200_000])
def test_more_values_than_anybody_needs_are_refused_before_they_are_parsed(
    monkeypatch: pytest.MonkeyPatch, text: bytes
):
    parsed = watch(monkeypatch, json, "loads")
    with pytest.raises(NotFit, match=f"must not hold more than {MOST_SIGNS} commas and opening brackets"):
        read_json(text)
    assert parsed == []
