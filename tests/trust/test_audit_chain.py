"""No change of the audit log stays unseen, even by a person who can write the database."""

import json
from datetime import timedelta

import pytest

from gateway.identity.audit_chain import HEAD, hash_of, signed_head, verify_log
from gateway.identity.audit_head import Head, HeadFile
from gateway.identity.keys import KEY_GENERATORS, KeyPair, Keyring
from gateway.store import schema
from gateway.store.audit import SqlAudit
from tests.builders import at
from tests.cli import call
from tests.contracts.apis import run_in_threads
from tests.contracts.databases import a_store
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, ask, running, settings

PAIR = KeyPair(KEY_GENERATORS["ed25519"]())
OTHER_PAIR = KeyPair(KEY_GENERATORS["ed25519"]())


def store_in(folder):
    """Open a database below a folder."""
    return a_store(f"sqlite:///{folder / 'log.db'}")


def add_line(
    audit,
    number,
    who="ann",
    detail=None,
):
    """Add a line that is written a number of seconds after the beginning."""
    audit.add(at(number), who, "PUT /x", 200, None, detail or {})


def write_log(audit, head_file=None, **fields):
    """Write eleven lines; the heads are 6 and 11."""
    for number in range(5):
        add_line(audit, number, **fields)
    audit.sign(ME, PAIR, at(5), head_file)
    for number in range(5, 9):
        add_line(audit, number, **fields)
    audit.sign(ME, PAIR, at(9), head_file)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Give the lines of a log, in which the heads are 6 and 11."""
    with store_in(tmp_path_factory.mktemp("log")) as store:
        audit = SqlAudit(store)
        write_log(
            audit,
            who="ann 值",
            detail={
                "before": None,
                "after": [1, 0.5],
            },
        )
        return [dict(line) for line in audit.lines()]


def problems_of(lines, pair=PAIR, head=None):
    """Return the problems of a log after its way through JSON."""
    return verify_log(json.loads(json.dumps(lines)), [pair.public], head).problems


def rehash(lines, pair=None):
    """Number lines and compute their hashes, which needs no key; sign heads if there is a pair."""
    result = []
    previous_hash = ""
    for number, line in enumerate(lines, 1):
        line = {**line, "id": number}
        if pair is not None and line["action"] == HEAD:
            line["detail"] = {"head": signed_head(pair, ME, at(0), number - 1, previous_hash)}
        previous_hash = hash_of(line, previous_hash)
        result.append({**line, "hash": previous_hash})
    return result


def is_named(problems, text):
    """Return whether one of the problems contains a text."""
    return any(text in problem for problem in problems)


# ---------------------------------------------------------------- changes of lines


def test_an_unchanged_log_is_good(log):
    result = verify_log(log, [PAIR.public])
    assert result.problems == []
    assert result.lines == 11
    assert result.head == 11
    assert result.after_head == 0
    assert result.key == PAIR.id
    assert problems_of(rehash(log)) == []


def replace_line(log, number, *lines):
    """Return the log with other lines in the place of one."""
    return [*log[: number - 1], *lines, *log[number:]]


ALL_LINES = range(1, 12)
LINES_BEFORE_THE_LAST = range(1, 11)


@pytest.mark.parametrize("number", ALL_LINES)
def test_a_changed_line_is_named(log, number):
    line = log[number - 1]
    for key in line.keys() - {"id", "hash"}:
        value = {"other": 1} if key == "detail" else "other"
        problems = problems_of(replace_line(log, number, {**line, key: value}))
        assert is_named(problems, f"line {number} was changed"), key


@pytest.mark.parametrize("number", LINES_BEFORE_THE_LAST)
def test_a_line_changed_with_its_hash_is_named(log, number):
    previous_hash = ""
    if number > 1:
        previous_hash = log[number - 2]["hash"]
    line = {**log[number - 1], "who": "mallory"}
    line["hash"] = hash_of(line, previous_hash)

    problems = problems_of(replace_line(log, number, line))

    text = f"line {number + 1} was changed, or line {number} and its hash"
    assert is_named(problems, text)


@pytest.mark.parametrize("number", LINES_BEFORE_THE_LAST)
def test_a_missing_line_is_named(log, number):
    assert f"line {number} is missing" in problems_of(replace_line(log, number))


@pytest.mark.parametrize("number", ALL_LINES)
def test_a_repeated_line_is_named(log, number):
    line = log[number - 1]
    problems = problems_of(replace_line(log, number, line, line))
    assert is_named(problems, f"line {number} comes after line {number}")


@pytest.mark.parametrize("number", ALL_LINES)
def test_a_line_without_its_hash_is_named(log, number):
    line = {**log[number - 1], "hash": None}
    problems = problems_of(replace_line(log, number, line))
    has_line = is_named(problems, f"line {number} ")
    has_next_line = is_named(problems, f"line {number + 1} ")
    assert has_line or has_next_line


def test_lines_in_another_order_are_named(log):
    swapped = [*log[:2], log[3], log[2], *log[4:]]
    assert is_named(problems_of(swapped), "line 3 comes after line 4")


def test_lines_in_another_order_with_new_numbers_are_named(log):
    third = {**log[3], "id": 3}
    fourth = {**log[2], "id": 4}
    problems = problems_of([*log[:2], third, fourth, *log[4:]])
    assert problems[0].startswith("line 3 was changed")
    assert problems[1].startswith("line 4 was changed")


@pytest.mark.parametrize(
    "number",
    [2, 6, 8],
)
def test_recomputed_hashes_do_not_fit_the_signed_heads(log, number):
    changed = {**log[number - 1], "who": "mallory", "action": "PUT /x"}
    forgeries = {
        "changed": replace_line(log, number, changed),
        "removed": replace_line(log, number),
        "added": [*log[: number - 1], log[0], *log[number - 1 :]],
    }
    for name, lines in forgeries.items():
        assert is_named(problems_of(rehash(lines)), "signs another log"), name


@pytest.mark.parametrize(
    "number",
    [2, 6, 8],
)
def test_heads_that_are_signed_with_another_key_are_named(log, number):
    lines = rehash(replace_line(log, number), OTHER_PAIR)
    assert is_named(problems_of(lines), f"is signed with {OTHER_PAIR.id}")


def test_a_log_without_heads_is_named(log):
    lines = rehash([{**line, "action": "PUT /x"} for line in log])
    assert is_named(problems_of(lines), "no line is a signed head")


def test_a_log_is_verified_with_the_nodes_own_key_only(log):
    assert problems_of(log, OTHER_PAIR) != []


# ---------------------------------------------------------------- both ends of a log


def test_old_lines_may_be_removed_up_to_a_signed_head(log):
    result = verify_log(
        log[5:],
        [PAIR.public],
    )
    assert result.problems == []
    assert result.first == 6
    assert is_named(problems_of(log[6:]), "lines 1 to 6 are missing")


def test_a_head_is_signed_once_a_day_if_lines_follow_it(tmp_path):
    day = timedelta(days=1)
    with store_in(tmp_path) as store:
        audit = SqlAudit(store)

        def count_heads_after_signing(now, pair=PAIR):
            audit.sign_daily(ME, pair, now)
            return sum(line["action"] == HEAD for line in audit.lines())

        def add_request_about_heads(now):
            audit.add(
                now,
                "ann",
                f"PUT /{HEAD}",
                200,
                None,
                {},
            )  # is not a head itself

        assert count_heads_after_signing(at(0)) == 0
        add_request_about_heads(at(0))
        assert count_heads_after_signing(at(0), pair=None) == 0
        assert count_heads_after_signing(at(0)) == 1
        assert count_heads_after_signing(at(0) + day) == 1
        add_request_about_heads(at(9))
        assert count_heads_after_signing(at(9)) == 1
        assert count_heads_after_signing(at(0) + day) == 2
        assert verify_log(audit.lines(), [PAIR.public]).problems == []


@pytest.mark.parametrize(
    "remaining",
    [0, 1, 5, 6, 10],
)
def test_a_log_that_was_cut_off_at_its_end_is_named(tmp_path, remaining):
    head_file = HeadFile(tmp_path)
    with store_in(tmp_path) as store:
        audit = SqlAudit(store)
        write_log(audit, head_file)
        assert problems_with(audit, head_file) == []

        delete_lines(store, schema.audit.c.id > remaining)

        first_problem = problems_with(audit, head_file)[0]
        missing = f"lines {remaining + 1} to 11 are missing at the end"
        assert first_problem.startswith(f"{missing}: the node signed the last one at")


@pytest.mark.parametrize(
    "remaining",
    [0, 1, 5, 6, 10],
)
def test_new_lines_do_not_hide_that_a_log_was_cut_off(tmp_path, remaining):
    head_file = HeadFile(tmp_path)
    with store_in(tmp_path) as store:
        write_log(SqlAudit(store), head_file)
        delete_lines(store, schema.audit.c.id > remaining)

        audit = SqlAudit(store)
        for number in range(20):
            add_line(audit, number)
        audit.sign(ME, PAIR, at(30), head_file)

        text = "line 11 is not the one that the node signed at"
        assert is_named(problems_with(audit, head_file), text)


def problems_with(audit, head_file):
    """Return the problems of a log, which must reach the head in a file."""
    return verify_log(audit.lines(), [PAIR.public], head_file.read()).problems


def delete_lines(store, condition):
    """Delete lines of a log as a person with access to the database can."""
    with store.write() as connection:
        connection.execute(schema.audit.delete().where(condition))


def test_a_head_may_be_removed_with_the_oldest_lines(tmp_path):
    head_file = HeadFile(tmp_path)
    with store_in(tmp_path) as store:
        audit = SqlAudit(store)
        add_line(audit, 1)
        audit.sign(ME, PAIR, at(2), head_file)
        audit.sign(ME, PAIR, at(3))

        delete_lines(store, schema.audit.c.id < 3)

        assert problems_with(audit, head_file) == []
        audit.sign_daily(ME, PAIR, at(4), head_file)
        newest_hash = audit.list(limit=1)[0].hash or ""
        assert head_file.read() == Head(
            3,
            newest_hash,
            at(3).isoformat(),
        )


# ---------------------------------------------------------------- several gateways, older versions


def test_several_gateways_write_one_chain(database_url):
    with a_store(database_url) as first_store, a_store(database_url) as second_store:
        logs = [SqlAudit(first_store), SqlAudit(second_store)]
        numbers = iter(range(40))

        def write():
            for _ in range(5):
                number = next(numbers)
                detail = {
                    "half": "\ud83d",
                    "number": number,
                }  # half of a surrogate pair
                add_line(
                    logs[number % 2],
                    number,
                    detail=detail,
                )

        assert run_in_threads(8, write) == []
        logs[0].sign(ME, PAIR, at(40))
        result = verify_log(
            logs[1].lines(),
            [PAIR.public],
        )
        assert result.problems == []
        assert result.lines == 41


def insert_line_without_hash(store, number):
    """Insert a line as versions before the chain did."""
    line = {
        "who": "ann",
        "action": "PUT /x",
        "status": 200,
        "detail": {},
        "at": at(number),
    }
    with store.write() as connection:
        connection.execute(schema.audit.insert(), line)


def test_lines_from_before_the_chain_are_counted(tmp_path):
    with store_in(tmp_path) as store:
        for number in range(3):
            insert_line_without_hash(store, number)
        audit = SqlAudit(store)
        add_line(audit, 4)
        audit.sign(ME, PAIR, at(5))
        result = verify_log(
            audit.lines(),
            [PAIR.public],
        )
        assert result.problems == []
        assert result.lines == 5
        assert result.before == 3

        insert_line_without_hash(store, 6)
        assert problems_of([dict(line) for line in audit.lines()]) == [
            "line 6 has no hash: it was added, or an older version wrote it"
        ]


# ---------------------------------------------------------------- commands


@pytest.fixture
def config(tmp_path):
    """Give the configuration of a node whose audit has three lines and no head."""
    file = tmp_path / "node.yml"
    done = call(
        "init",
        "--node",
        "A1",
        "--engine",
        "process",
        "-o",
        str(file),
    )
    assert done.exit_code == 0
    for name in ("ann", "bob", "eve"):
        run_command(file, "token", "create", name, "--role", "admin")
    return file


def run_command(config, *words):
    """Run a command that must succeed; return its output."""
    done = call(*words, "--config", str(config))
    assert done.exit_code == 0, done.stdout
    return done.stdout


def check_is_bad(config, text, *words):
    """Check that verifying fails with a text in its output."""
    done = call("audit", "verify", *words, "--config", str(config))
    assert done.exit_code == 1
    assert text in done.stdout


def export(config, file):
    """Export the log into a file."""
    file.write_text(run_command(config, "audit", "export"))


def rotate_key(config):
    """Replace the node's key, which signs a head."""
    run_command(config, "identity", "rotate")
    run_command(config, "identity", "rotate", "--finish")


def test_a_log_without_a_signed_head_is_reported(config):
    output = call("audit", "verify", "--config", str(config)).stdout
    assert "no line is a signed head" in output


def test_an_export_is_verified_with_the_key_that_signed_it_last(config, tmp_path):
    exported = tmp_path / "audit.jsonl"
    export(config, exported)
    assert len(exported.read_text().splitlines()) == 4  # three tokens, and a head
    rotate_key(config)
    run_command(config, "audit", "verify")
    new_key = tmp_path / "keys.pem"
    new_key.write_text(run_command(config, "identity", "export"))

    by_new_key = call(
        "audit",
        "verify",
        str(exported),
        "--keys",
        str(new_key),
    )
    assert by_new_key.exit_code == 1
    assert "not a key of the node" in by_new_key.stdout

    export(config, exported)
    assert call("audit", "verify", str(exported), "--keys", str(new_key)).exit_code == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (schema.audit.update().values(who="mallory"), "was changed"),
        (schema.audit.delete(), "line 2 is missing"),
    ],
    ids=["changed", "removed"],
)
def test_the_command_names_a_changed_line(config, tmp_path, change, text):
    rotate_key(config)
    with a_store(f"sqlite:///{tmp_path / 'var/gateway.db'}") as store, store.write() as connection:
        connection.execute(change.where(schema.audit.c.id == 2))

    check_is_bad(config, text)


def test_the_command_names_a_log_that_was_emptied(config, tmp_path):
    rotate_key(config)
    with a_store(f"sqlite:///{tmp_path / 'var/gateway.db'}") as store:
        delete_lines(store, schema.audit.c.id > 0)

    check_is_bad(config, "are missing at the end")


def test_an_empty_export_is_reported(config, tmp_path):
    exported = tmp_path / "audit.jsonl"
    exported.write_text("")
    check_is_bad(config, "there are no lines", str(exported))


def test_an_export_with_an_invalid_line_is_refused(config, tmp_path):
    exported = tmp_path / "audit.jsonl"
    exported.write_text("{}\n")
    done = call(
        "audit",
        "verify",
        str(exported),
        "--config",
        str(config),
    )
    assert done.exit_code == 2


def test_a_running_node_signs_the_existing_log_and_chains_new_requests(tmp_path):
    pair = Keyring(tmp_path / "state").make("ed25519")
    with a_store(settings(tmp_path).database.url) as store:
        add_line(SqlAudit(store), 0)

    with running(tmp_path) as node:
        wait_for(lambda: signed_heads(node))
        for _ in range(2):
            response = ask(
                node,
                "operator",
                "POST",
                "/api/v1/gc",
                json={"dry_run": True},
            )
            assert response.status_code == 200
        result = verify_log(
            node.audit.lines(),
            [pair.public],
        )
        assert result.problems == []
        assert result.lines == 4
        assert result.after_head == 2


def signed_heads(node):
    """Return the signed heads in the audit of a node."""
    query = {"action": HEAD}
    return ask(node, "operator", "GET", "/api/v1/audit", params=query).json()["audit"]
