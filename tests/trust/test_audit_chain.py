"""Whoever can write the database cannot change the audit log unseen: each line, each order, each head."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.identity.audit_chain import HEAD, hash_of, signed_head, verify_log
from gateway.identity.audit_head import Head, HeadFile
from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring
from gateway.store import schema
from gateway.store.audit import SqlAudit
from tests.builders import at
from tests.cli import call
from tests.contracts.apis import at_once
from tests.contracts.databases import a_store
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask, running, settings

OWN, ANOTHER = (KeyPair(KEY_GENERATORS["ed25519"]()) for _ in range(2))
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """Eleven lines: heads are 6 and 11."""
    with a_store(f"sqlite:///{tmp_path_factory.mktemp('log') / 'log.db'}") as store:
        audit = SqlAudit(store)
        for number in range(9):
            audit.add(
                at(number),
                f"ann {number} 值",
                "PUT /x",
                200,
                None,
                {"before": None, "after": [number, 0.5]},
            )
            if number == 4:
                audit.sign(ME, OWN, at(5))
        audit.sign(ME, OWN, at(9))
        return [dict(line) for line in audit.lines()]


def problems(lines: Lines, key: KeyPair = OWN) -> list[str]:
    return verify_log(json.loads(json.dumps(lines)), [key.public]).problems


def rehashed(lines: Lines, pair: KeyPair | None = None) -> Lines:
    """Compute every hash anew, as anybody can; ``pair``: and the heads, with a key."""
    made: Lines = []
    previous = ""
    for number, line in enumerate(lines, 1):
        line = {**line, "id": number}
        if pair and line["action"] == HEAD:
            line["detail"] = {"head": signed_head(pair, ME, at(0), number - 1, previous)}
        previous = hash_of(line, previous)
        made.append({**line, "hash": previous})
    return made


def test_a_log_as_it_was_written_is_good(log: Lines):
    found = verify_log(log, [OWN.public])
    assert (found.problems, found.lines, found.head, found.after_head, found.key) == (
        [],
        11,
        11,
        0,
        OWN.id,
    )
    assert problems(rehashed(log)) == []


def test_a_changed_a_missing_and_an_added_line_is_named(log: Lines):
    for place, line in enumerate(log):
        number, before, after = place + 1, log[:place], log[place + 1 :]
        for key in line.keys() - {"id", "hash"}:
            found = problems(
                [*before, {**line, key: {"other": 1} if key == "detail" else "other"}, *after]
            )
            assert any(f"line {number} was changed" in text for text in found), (number, key)
        with_hash = {**line, "who": "mallory"}
        with_hash["hash"] = hash_of(with_hash, log[place - 1]["hash"] if place else "")
        found = problems([*before, with_hash, *after])
        assert not after or any(
            f"line {number + 1} was changed, or line {number} and its hash" in t for t in found
        )
        assert not after or f"line {number} is missing" in problems([*before, *after])
        found = problems([*before, line, line, *after])
        assert any(f"line {number} comes after line {number}" in text for text in found)
        found = problems([*before, {**line, "hash": None}, *after])
        assert any(f"line {number} " in text or f"line {number + 1} " in text for text in found)


def test_lines_in_another_order_are_named(log: Lines):
    assert any(
        "line 3 comes after line 4" in text
        for text in problems([*log[:2], log[3], log[2], *log[4:]])
    )
    swapped = [*log[:2], {**log[3], "id": 3}, {**log[2], "id": 4}, *log[4:]]
    assert [text[:18] for text in problems(swapped)][:2] == [
        "line 3 was changed",
        "line 4 was changed",
    ]


@pytest.mark.parametrize("at_line", [2, 6, 8])
def test_hashes_that_are_computed_anew_do_not_fit_the_signed_heads(log: Lines, at_line: int):
    place = at_line - 1
    changed = rehashed(
        [
            *log[:place],
            {
                **log[place],
                "who": "mallory",
                "action": "PUT /x",
            },
            *log[at_line:],
        ]
    )
    removed = rehashed([*log[:place], *log[at_line:]])
    added = rehashed([*log[:place], log[0], *log[place:]])
    for lines in (changed, removed, added):
        assert any("signs another log" in text for text in problems(lines))
    others = rehashed([*log[:place], *log[at_line:]], ANOTHER)
    assert any(f"is signed with {ANOTHER.id}" in text for text in problems(others))
    nobodys = [{**line, "action": "PUT /x"} for line in log]
    assert any("no line is a signed head" in text for text in problems(rehashed(nobodys)))
    assert problems(log, ANOTHER) != []


def test_old_lines_may_go_up_to_a_signed_head(log: Lines):
    found = verify_log(log[5:], [OWN.public])
    assert (found.problems, found.first) == ([], 6)
    assert any("lines 1 to 6 are missing" in text for text in problems(log[6:]))


def test_a_head_is_signed_once_a_day_if_lines_follow_it(tmp_path: Path):
    with a_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        audit, day = SqlAudit(store), timedelta(days=1)
        for now, pair, more, heads in (
            (at(0), OWN, False, 0),
            (at(0), None, True, 0),
            (at(0), OWN, False, 1),
            (at(0) + day, OWN, False, 1),
            (at(9), OWN, True, 1),
            (at(0) + day, OWN, False, 2),
        ):
            if more:
                audit.add(now, "ann", f"PUT /{HEAD}", 200, None, {})
            audit.sign_daily(ME, pair, now)
            assert sum(line["action"] == HEAD for line in audit.lines()) == heads
        assert verify_log(audit.lines(), [OWN.public]).problems == []


@pytest.mark.parametrize("left", [0, 1, 5, 6, 10])
def test_a_log_that_was_cut_off_at_its_end_is_named(tmp_path: Path, left: int):
    kept = HeadFile(tmp_path)
    with a_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        audit = SqlAudit(store)
        for number in range(9):
            audit.add(at(number), "ann", "PUT /x", 200, None, {})
            if number == 4:
                audit.sign(ME, OWN, at(5), kept)
        audit.sign(ME, OWN, at(9), kept)
        assert verify_log(audit.lines(), [OWN.public], kept.read()).problems == []
        with store.write() as connection:
            connection.execute(schema.audit.delete().where(schema.audit.c.id > left))
        (found, *_) = verify_log(audit.lines(), [OWN.public], kept.read()).problems
        assert found.startswith(
            f"lines {left + 1} to 11 are missing at the end: the node signed the last one at"
        )
        longer = SqlAudit(store)
        for number in range(20):
            longer.add(at(number), "ann", "PUT /x", 200, None, {})
        longer.sign(ME, OWN, at(30), kept)
        problems = verify_log(longer.lines(), [OWN.public], kept.read()).problems
        assert any("line 11 is not the one that the node signed at" in text for text in problems)


def test_a_head_may_go_with_the_oldest_lines(tmp_path: Path):
    kept = HeadFile(tmp_path)
    with a_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        audit = SqlAudit(store)
        audit.add(at(1), "ann", "PUT /x", 200, None, {})
        audit.sign(ME, OWN, at(2), kept)
        audit.sign(ME, OWN, at(3))
        with store.write() as connection:
            connection.execute(schema.audit.delete().where(schema.audit.c.id < 3))
        assert verify_log(audit.lines(), [OWN.public], kept.read()).problems == []
        audit.sign_daily(ME, OWN, at(4), kept)
        assert kept.read() == Head(3, audit.list(limit=1)[0].hash or "", at(3).isoformat())


def test_several_gateways_write_one_chain(database_url: str):
    with a_store(database_url) as one, a_store(database_url) as other:
        logs = [SqlAudit(one), SqlAudit(other)]
        turns = iter(range(40))

        def write() -> None:
            for _ in range(5):
                number = next(turns)
                logs[number % 2].add(
                    at(number), "ann", "PUT /x", 200, None, {"half": "\ud83d", "number": number}
                )

        assert at_once(8, write) == []
        logs[0].sign(ME, OWN, at(40))
        found = verify_log(logs[1].lines(), [OWN.public])
        assert (found.problems, found.lines) == ([], 41)


def test_lines_from_before_the_chain_stay_and_are_counted(tmp_path: Path):
    with a_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        old = {
            "who": "ann",
            "action": "PUT /x",
            "status": 200,
            "detail": {},
        }
        with store.write() as connection:
            connection.execute(schema.audit.insert(), [{**old, "at": at(n)} for n in range(3)])
        audit = SqlAudit(store)
        audit.add(at(4), "ann", "PUT /x", 200, None, {})
        audit.sign(ME, OWN, at(5))
        found = verify_log(audit.lines(), [OWN.public])
        assert (found.problems, found.lines, found.before) == ([], 5, 3)
        with store.write() as connection:
            connection.execute(schema.audit.insert(), {**old, "at": at(6)})
        assert problems(list(map(dict, audit.lines()))) == [
            "line 6 has no hash: it was added, or an older version wrote it"
        ]


def test_a_nodes_log_is_exported_signed_and_verified_by_command(tmp_path: Path):
    config, exported, pem = (tmp_path / name for name in ("node.yml", "audit.jsonl", "keys.pem"))
    assert call("init", "--node", "A1", "--engine", "process", "-o", str(config)).exit_code == 0
    here = ("--config", str(config))
    for name in ("ann", "bob", "eve"):
        assert call("token", "create", name, "--role", "admin", *here).exit_code == 0
    assert "no line is a signed head" in call("audit", "verify", *here).stdout
    exported.write_text(call("audit", "export", *here).stdout)
    assert len(exported.read_text().splitlines()) == 4
    for command in (
        ("identity", "rotate"),
        ("identity", "rotate", "--finish"),
        ("audit", "verify"),
    ):
        done = call(*command, *here)
        assert done.exit_code == 0, done.stdout
    pem.write_text(call("identity", "export", *here).stdout)
    by_new_key = call("audit", "verify", str(exported), "--keys", str(pem))
    assert by_new_key.exit_code == 1 and "not a key of the node" in by_new_key.stdout
    exported.write_text(call("audit", "export", *here).stdout)
    assert call("audit", "verify", str(exported), "--keys", str(pem)).exit_code == 0
    second = schema.audit.c.id == 2
    tamper = {
        "was changed": schema.audit.update().values(who="mallory"),
        "line 2 is missing": schema.audit.delete(),
    }
    for words, statement in tamper.items():
        with (
            a_store(f"sqlite:///{tmp_path / 'var/gateway.db'}") as store,
            store.write() as connection,
        ):
            connection.execute(statement.where(second))
        done = call("audit", "verify", *here)
        assert done.exit_code == 1 and words in done.stdout
    with a_store(f"sqlite:///{tmp_path / 'var/gateway.db'}") as store, store.write() as connection:
        connection.execute(schema.audit.delete())
    done = call("audit", "verify", *here)
    assert done.exit_code == 1 and "are missing at the end" in done.stdout
    exported.write_text("")
    done = call("audit", "verify", str(exported), *here)
    assert done.exit_code == 1 and "there are no lines" in done.stdout
    exported.write_text("{}\n")
    assert call("audit", "verify", str(exported), *here).exit_code == 2


def test_a_running_node_chains_what_it_is_asked_and_signs_what_it_finds(tmp_path: Path):
    pair = Keyring(tmp_path / "state").make("ed25519")
    with a_store(settings(tmp_path).database.url) as store:
        SqlAudit(store).add(at(0), "ann", "PUT /x", 200, None, {})
    with running(tmp_path) as node:
        signed = {"params": {"action": HEAD}}
        wait_for(lambda: ask(node, "operator", "GET", "/api/v1/audit", **signed).json()["audit"])
        for _ in range(2):
            assert (
                ask(node, "operator", "POST", "/api/v1/gc", json={"dry_run": True}).status_code
                == 200
            )
        found = verify_log(node.audit.lines(), [pair.public])
        assert (found.problems, found.lines, found.after_head) == ([], 4, 2)
