"""Large descriptions are read in a process with limits; whatever becomes of it, the answer says so."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.errors import Invalid
from gateway.providers.images import SMALL, Reader
from provider_registry import worker
from tests.registry.builders import a_component_request, a_description, a_request


def text_of(body: object) -> bytes:
    return json.dumps(body).encode().ljust(SMALL + 1)


def test_both_ways_read_the_same(tmp_path: Path):
    reader = Reader(tmp_path, 60.0)
    for body in (a_request(a_description(title="余", x=1)), a_component_request()):
        assert reader.read(text_of(body)) == reader.read(json.dumps(body).encode()) == reader.read(body)
    assert list(tmp_path.iterdir()) == []


def test_a_comma_after_a_last_entry_is_a_warning(tmp_path: Path):
    said = json.dumps(a_request(a_description(description='[1,] is no \\"list\\",}')))
    plain = Reader(tmp_path, 60.0).read(said.encode())[0]
    for text in (said[:-1] + " ,\n}", (said[:-1] + ",}").ljust(SMALL + 1)):
        provider, single = Reader(tmp_path, 60.0).read(text.encode())
        told, *others = provider.warnings
        assert told.path == "(document)" and "has a comma before a closing bracket" in told.rule
        assert (replace(provider, warnings=tuple(others)), single) == (plain, False)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (b"[" * (50 * 1024**2), "must not be longer than 16777216 bytes"),
        (b"[" * (15 * 1024**2), "must not hold more than 1000000 commas and opening brackets"),
        (b"[" * 500_000, "must not nest so deeply"),
        (
            json.dumps(a_request(metadata={"image": "a", "x": "y" * 5 * 1024**2})).encode(),
            "must not hold more than",
        ),
        (b'{"name": "a"' + b" " * SMALL, "must be JSON: "),
        (b'{"name": "a,}', "must be JSON: "),
        (b'{"name": ,}', "must be JSON: "),
        (text_of(a_request(metadata={"image": "a", "x": [0] * 200_000})), "must not hold more than"),
    ],
    ids=[
        "50 MB of brackets",
        "15 MB of brackets",
        "500,000 levels",
        "5 MB of text",
        "cut off",
        "cut off in a text",
        "a comma too many and no value",
        "many values",
    ],
)
def test_hostile_bodies_are_refused_by_the_worker(tmp_path: Path, body: bytes, rule: str):
    with pytest.raises(Invalid) as refused:
        Reader(tmp_path, 60.0).read(body)
    [problem] = refused.value.problems
    assert problem.path == "(document)" and problem.rule.startswith(rule)


def test_a_body_of_too_many_values_takes_no_worker(tmp_path: Path):
    with pytest.raises(Invalid, match="commas and opening brackets"):
        Reader(tmp_path / "no such folder" / "\0", 60.0).read(b"[" * 5_000_000)


def test_a_worker_that_does_not_end_is_ended_and_its_output_named(tmp_path: Path):
    with pytest.raises(Invalid) as refused:
        Reader(tmp_path, 0.001).read(text_of(a_request()))
    assert refused.value.reason == "NOT_CHECKED"
    [place] = tmp_path.iterdir()
    [problem] = refused.value.problems
    assert "providers.check_seconds" in problem.rule and str(place) in problem.rule
    assert {f.name for f in place.iterdir()} == {"request.json", "output.log"}


def test_a_worker_that_dies_leaves_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    interpreter = tmp_path / "broken"
    interpreter.write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(interpreter))
    with pytest.raises(Invalid, match="the worker ended with 3"):
        Reader(tmp_path / "places", 60.0).read(text_of(a_request()))
    [place] = (tmp_path / "places").iterdir()
    assert (place / "output.log").read_text() == "out of memory\n"


def test_only_the_newest_failures_are_kept(tmp_path: Path):
    for i in range(25):
        (tmp_path / str(i)).mkdir()
        os.utime(tmp_path / str(i), (i, i))
    with pytest.raises(Invalid):
        Reader(tmp_path, 0.001).read(text_of(a_request()))
    kept = {place.name for place in tmp_path.iterdir()}
    assert len(kept) == 20 and not kept & {"0", "5"} and "24" in kept


def test_the_worker_bounds_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = {}
    monkeypatch.setattr("sys.argv", ["", str(tmp_path / "in"), str(tmp_path / "result.json")])
    monkeypatch.setattr("resource.setrlimit", lambda what, limits: told.update({what: limits}))
    (tmp_path / "in").write_bytes(json.dumps(a_request()).encode())
    worker.main()
    assert sorted(told.values()) == sorted([(worker.CPU_SECONDS,) * 2, (worker.MEMORY,) * 2])
    assert json.loads((tmp_path / "result.json").read_text())["single"] is False
