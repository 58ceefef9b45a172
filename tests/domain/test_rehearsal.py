"""Exchanges that an upgrade is rehearsed with, and the differences that it reports."""

from datetime import UTC, datetime

import pytest

from gateway.diagnostics.rehearsal import Played, changes, shape
from gateway.http.exchange_book import (
    KINDS,
    MAX_BODY,
    MAX_HEAD,
    ExchangeBook,
    RawExchange,
    kept_exchanges,
    masked,
    note_exchange,
)
from gateway.http.exchanges import PassedBody, PassedExchange


def a_raw_exchange(**fields):
    values = {
        "partner": "JG-one/two",
        "method": "POST",
        "path": "/v1/interconn/schedule/job/create",
        "query": "",
        "headers": {"content-type": "application/json", "x-node-id": "JG-one/two", "x-sign": "s"},
        "request": b'{"job_id": "j1", "secret": "s", "n": 17}',
        "status": 200,
        "response": b'{"code": 0, "msg": "success"}',
        "at": "2026-11-29T10:00:00+00:00",
    }
    return RawExchange(**{**values, **fields})


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"job_id": "j1", "code": 13}, {"job_id": "j1", "code": 13}),
        ({"password": "p", "rate": 0.3, "n": 7}, {"password": "x", "rate": 1.0, "n": 1}),
        ({"ok": True, "none": None, "empty": []}, {"ok": True, "none": None, "empty": []}),
        ({"dag": {"components": [{"name": "psi"}]}}, {"dag": {"components": [{"name": "psi"}]}}),
        ({"task_params": {"t": {"id": "id"}}}, {"task_params": {"t": {"id": "x"}}}),
        ({"dag": {"task_params": {"a": "b"}}}, {"dag": {"task_params": {"a": "x"}}}),
    ],
)  # fmt: skip
def test_values_are_masked_and_the_form_stays(value, kept):
    assert masked(value) == kept


def test_an_exchange_is_written_without_its_values(tmp_path):
    book = ExchangeBook(tmp_path / "exchanges")
    book.add(a_raw_exchange())

    book.save()

    (exchange,) = kept_exchanges(tmp_path / "exchanges")
    assert exchange.partner == "JG-one/two"
    assert exchange.request == {"job_id": "j1", "secret": "x", "n": 1}
    assert exchange.response == {"code": 0, "msg": "x"}
    assert exchange.headers["x-sign"] == "x"
    assert exchange.headers["x-node-id"] == "JG-one/two"


def test_the_last_of_each_kind_is_kept_and_only_so_many(tmp_path):
    book = ExchangeBook(tmp_path / "exchanges")
    for number in range(KINDS + 5):
        moment = f"2026-11-29T10:00:{number:02}+00:00"
        book.add(a_raw_exchange(path=f"/p{number}", at=moment))
        book.add(a_raw_exchange(path=f"/p{number}", at=moment, status=500))
        book.save()

    exchanges = kept_exchanges(tmp_path / "exchanges")

    assert len(exchanges) == KINDS
    assert {exchange.path for exchange in exchanges} == {f"/p{n}" for n in range(15, 25)}
    assert exchanges[-1].at > exchanges[0].at


UNUSABLE = {
    "no JSON": {"request": b"\xff" * MAX_BODY},
    "deep": {"request": b"[" * MAX_BODY},
    "deep, but closed": {"request": b"[" * 900 + b"]" * 900},
    "a control character": {"path": "/v1/interconn/schedule/\n"},
    "a query of another script": {"query": "é"},
    "a header of another script": {"headers": {"content-type": "é"}},
}


@pytest.mark.parametrize(
    "fields",
    UNUSABLE.values(),
    ids=UNUSABLE,
)
def test_what_cannot_be_played_is_not_kept_and_keeps_no_other_away(tmp_path, fields):
    book = ExchangeBook(tmp_path / "exchanges")
    book.add(a_raw_exchange(**fields))
    book.add(a_raw_exchange(partner="JG-other"))

    book.save()

    assert [exchange.partner for exchange in kept_exchanges(tmp_path / "exchanges")] == ["JG-other"]


def test_a_flood_of_other_paths_leaves_few_exchanges_in_memory(tmp_path):
    book = ExchangeBook(tmp_path / "exchanges")
    for number in range(1000):
        book.add(a_raw_exchange(path=f"/p{number}"))
        book.add(a_raw_exchange(partner=f"JG-{number}"))
    assert len(book) < 200


@pytest.mark.parametrize(
    ("length", "count"),
    [
        (100, 1),
        (MAX_HEAD, 0),
    ],
)
def test_an_exchange_with_a_long_head_is_not_noted(length, count):
    scope = {
        "method": "POST",
        "path": "/v1/interconn/schedule/none",
        "query_string": b"",
        "headers": [(b"x-any", b"a" * length)],
    }
    exchange = PassedExchange(
        "JG-one/two",
        scope,
        PassedBody(MAX_BODY),
        PassedBody(MAX_BODY),
        is_complete=True,
    )
    exchanges = []
    note_exchange(exchanges.append, lambda: datetime.now(UTC), exchange)
    assert len(exchanges) == count


def test_a_damaged_file_counts_as_empty(tmp_path):
    (tmp_path / "JG.json").write_text("[{")

    assert kept_exchanges(tmp_path) == []


def played(body, status=200):
    return Played(status, body.get("code"), shape(body))


@pytest.mark.parametrize(
    ("before", "after", "texts"),
    [
        ({"code": 0, "data": {"a": 1}}, {"code": 0, "data": {"a": 2, "b": "new"}}, []),
        ({"code": 0}, {"code": 3}, ["code 3 instead of 0"]),
        ({"data": {"a": 1}}, {"data": {}}, ["data.a is missing"]),
        ({"data": [{"a": 1}]}, {"data": [{"a": "1"}]}, ["data[].a is a text instead of a number"]),
        ({"a": None}, {"a": "text"}, []),
    ],
)
def test_what_a_caller_would_notice_is_a_difference(before, after, texts):
    assert changes(played(before), played(after)) == texts


def test_another_status_is_a_difference():
    assert changes(played({}), played({}, status=500)) == ["status 500 instead of 200"]
