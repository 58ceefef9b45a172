"""Bandwidths of partners, as people write them."""

import pytest

from route_table.document import parse
from route_table.model import InvalidRoutes
from route_table.rates import RATE_RULE, read_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("20MB", 20_000_000),
        ("20 MB", 20_000_000),
        ("20MB/s", 20_000_000),
        ("20M", 20_000_000),
        ("1.5MiB", 1_572_864),
        ("512KiB", 524_288),
        ("600kB", 600_000),
        ("1GB", 1_000_000_000),
        ("1TB", 10**12),
        ("20000000", 20_000_000),
    ],
)
def test_a_rate_has_bytes_per_second(text, rate):
    assert read_rate(text) == rate
    table = parse(f"a: {{url: 'http://a.example', bandwidth: {text}}}")
    assert table.routes["a"].bandwidth == rate


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-20MB",
        "511KiB",
        "1.1TB",
        "20Mbit",
        "20mb",
        "fast",
        "1e9",
        "inf",
        "٢٠MB",
        "9" * 400,
        "true",
    ],
)
def test_another_rate_is_a_named_problem(text):
    with pytest.raises(ValueError, match="bytes per second"):
        read_rate(text)
    with pytest.raises(InvalidRoutes) as caught:
        parse(f"a: {{url: 'http://a.example', bandwidth: '{text}'}}")
    assert "a.bandwidth" in str(caught.value)
    assert RATE_RULE in str(caught.value)


def test_a_route_without_a_bandwidth_takes_that_of_the_node():
    table = parse("a: {url: 'http://a.example'}")
    assert table.routes["a"].bandwidth is None
