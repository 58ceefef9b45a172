"""Intersection: equals the intersection of sets, honours every parameter, tells the channel
nothing.
"""

import base64
import hashlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refvendor.components import links, matching
from refvendor.components.intersection import guest, host
from refvendor.contract import BadParameters, Table
from refvendor.crypto.hashing import HASHES, available, digest
from refvendor.memory import run_parties
from refvendor.registration import description

ROLES = {"guest": guest, "host": host}
SMALL = {"key_length": 1024}
RAW, RSA, ECDH = (
    {"intersect_method": method, "rsa_params": SMALL} for method in ("raw", "rsa", "ecdh")
)
GUEST_IDS = ["u3", "u1", "u2", "u9", "用户 7"]
HOST_IDS = ["u2", "u4", "用户 7", "u3"]
COMMON = ["u2", "u3", "用户 7"]


def table(ids, side):
    return Table(["no", "id", f"{side}_x"], [[str(n), i, f"{side}{n}"] for n, i in enumerate(ids)])


def intersect(
    parameters,
    guest_ids=GUEST_IDS,
    host_ids=HOST_IDS,
    *more_hosts,
    checked=True,
    **options,
):
    inputs = {
        "guest.0": {"train_data": table(guest_ids, "g")},
        "host.0": {"train_data": table(host_ids, "h")},
    }
    for number, ids in enumerate(more_hosts, start=1):
        inputs[f"host.{number}"] = {"train_data": table(ids, f"h{number}")}
    run = run_parties("Intersection", ROLES, inputs, parameters, seconds=20, **options)
    return run.require_success() if checked else run


def ids_of(run, party):
    output = run[party].io.tables["train_data"]
    place = output.header.index("id")
    return [row[place] for row in output.rows]


@pytest.fixture
def opened(monkeypatch):
    """What the parties say inside the sealed messages, as (kind, fields, blobs)."""
    sent = []
    send = links.SealedLink.send

    def record(
        self,
        kind,
        fields=None,
        blobs=(),
    ):
        sent.append((kind, dict(fields or {}), list(blobs)))
        send(self, kind, fields, blobs)

    monkeypatch.setattr(links.SealedLink, "send", record)
    return sent


def blob(sent, kind):
    return next(blobs[0] for name, _, blobs in sent if name == kind)


IDS = st.lists(
    st.text(
        st.characters(exclude_categories=("Cs",)),
        min_size=1,
        max_size=6,
    ),
    unique=True,
    max_size=12,
)


@pytest.mark.parametrize(
    "parameters",
    [RAW, RSA, ECDH],
    ids=["raw", "rsa", "ecdh"],
)
@settings(deadline=None, max_examples=12)
@given(
    IDS,
    IDS,
    IDS,
    st.randoms(use_true_random=False),
)
def test_every_party_gets_the_sorted_intersection(
    parameters,
    common,
    mine,
    theirs,
    rng,
):
    guest_ids, host_ids = list({*common, *mine}), list({*common, *theirs})
    rng.shuffle(guest_ids)
    rng.shuffle(host_ids)
    run = intersect(parameters, guest_ids, host_ids)
    expected = sorted(set(guest_ids) & set(host_ids))
    assert ids_of(run, "guest.0") == ids_of(run, "host.0") == expected


@pytest.mark.parametrize(
    "parameters", [RAW | {"join_role": "guest"}, RSA, ECDH], ids=["raw", "rsa", "ecdh"]
)
@settings(deadline=None, max_examples=8)
@given(IDS, IDS, IDS)
def test_several_hosts_intersect_with_all(
    parameters,
    a,
    b,
    c,
):
    run = intersect(parameters, list({*a, *b}), list({*b, *c}), list({*a, *b, *c}))
    expected = sorted(set(a + b) & set(b + c))
    assert [ids_of(run, party) for party in ("guest.0", "host.0", "host.1")] == [expected] * 3


@pytest.mark.parametrize(
    "method",
    [RAW, RSA, ECDH],
    ids=["raw", "rsa", "ecdh"],
)
def test_rows_keep_their_cells_and_reports_count(method):
    run = intersect(method | {"only_output_key": False})
    assert run["guest.0"].io.tables["train_data"].header == ["no", "id", "g_x"]
    assert run["guest.0"].io.tables["train_data"].rows == [
        ["2", "u2", "g2"],
        ["0", "u3", "g0"],
        ["4", "用户 7", "g4"],
    ]
    assert run["host.0"].io.tables["train_data"].rows == [
        ["0", "u2", "h0"],
        ["3", "u3", "h3"],
        ["2", "用户 7", "h2"],
    ]
    report = Table(
        ["party", "count"],
        [
            ["guest.0", "5"],
            ["host.0", "4"],
            ["intersection", "3"],
        ],
    )
    assert (
        run["guest.0"].io.tables["train-intersection"]
        == run["host.0"].io.tables["train-intersection"]
        == report
    )


def test_the_users_parameters_work_as_they_stand():
    rsa_params = {
        "hash_method": "sha256",
        "final_hash_method": "sha256",
        "key_length": 2048,
    }
    run = intersect(
        {
            "id": "id",
            "intersect_method": "rsa",
            "sync_intersect_ids": True,
            "only_output_key": False,
            "rsa_params": json.dumps(rsa_params),
        }
    )
    assert ids_of(run, "host.0") == COMMON
    assert [line for line in run["guest.0"].lines if line[0] == "warning"] == []


# --- each parameter changes output or messages, or is refused before any message


def test_id_names_the_column():
    run = intersect(RAW | {"id": "no"})
    assert run["guest.0"].io.tables["train_data"].header == ["no"]
    assert [row[0] for row in run["guest.0"].io.tables["train_data"].rows] == ["0", "1", "2", "3"]


def test_intersect_method_decides_the_messages(opened):
    kinds = []
    for parameters in (RAW, RSA, ECDH):
        opened.clear()
        intersect(parameters)
        kinds.append({kind for kind, _, _ in opened} - {"settings", "hits"})
    assert kinds == [
        {"tags"},
        {"key", "blinded", "signed"},
        {"points", "twice"},
    ]


@pytest.mark.parametrize(
    ("parameters", "passive"),
    [
        (RAW, "guest.0"),
        (RAW | {"join_role": "guest"}, "host.0"),
        (RSA, "host.0"),
        (ECDH, "host.0"),
    ],
)
@pytest.mark.parametrize(
    "off",
    [False, "False", "false"],
)
def test_sync_intersect_ids_false_keeps_the_hits_at_one_side(
    opened,
    parameters,
    passive,
    off,
):
    run = intersect(parameters | {"sync_intersect_ids": off, "only_output_key": False})
    knows = "host.0" if passive == "guest.0" else "guest.0"
    assert ids_of(run, knows) == COMMON
    assert ids_of(run, passive) == []
    assert len(run[passive].io.tables["train_data"].header) == 3
    assert run[passive].io.tables["train-intersection"].rows[-1] == ["intersection", ""]
    assert "hits" not in {kind for kind, _, _ in opened}


@pytest.mark.parametrize(
    ("value", "header"),
    [
        (True, ["id"]),
        ("True", ["id"]),
        (False, ["no", "id", "g_x"]),
    ],
)
def test_only_output_key_leaves_only_the_id(value, header):
    run = intersect(RAW | {"only_output_key": value})
    assert run["guest.0"].io.tables["train_data"].header == header


def test_use_hash_false_sends_ids_and_says_so(opened):
    run = intersect(RAW | {"use_hash": "false"})
    assert json.loads(blob(opened, "tags")) == sorted(GUEST_IDS)
    assert any("use_hash is false" in message for _, message, _ in run["guest.0"].lines)


@pytest.mark.parametrize("method", available())
def test_hash_method_salt_and_base64_decide_the_tags(opened, method):
    assert (
        ids_of(
            intersect(
                RAW
                | {
                    "hash_method": method,
                    "salt": "pepper",
                    "base64": False,
                }
            ),
            "guest.0",
        )
        == COMMON
    )
    tags = json.loads(blob(opened, "tags"))
    assert tags == sorted(digest(method, f"pepper{i}".encode()).hex() for i in GUEST_IDS)
    opened.clear()
    intersect(
        RAW
        | {
            "hash_method": method,
            "salt": 12345,
            "base64": True,
        }
    )
    tags = json.loads(blob(opened, "tags"))
    assert tags == sorted(
        base64.b64encode(digest(method, f"12345{i}".encode())).decode() for i in GUEST_IDS
    )


def test_an_empty_salt_is_a_salt(opened):
    intersect(RAW | {"salt": "", "base64": False})
    assert hashlib.sha256(b"u3").hexdigest() in json.loads(blob(opened, "tags"))


@pytest.mark.parametrize(
    ("role", "sender"),
    [
        ("host", "guest.0"),
        ("guest", "host.0"),
    ],
)
def test_join_role_names_the_side_that_collects(
    opened,
    role,
    sender,
):
    run = intersect(RAW | {"join_role": role})
    ids = GUEST_IDS if sender == "guest.0" else HOST_IDS
    assert len(json.loads(blob(opened, "tags"))) == len(ids)
    assert ids_of(run, "guest.0") == COMMON


def test_rsa_params_decide_the_signatures(opened, monkeypatch):
    used = []
    monkeypatch.setattr(
        matching, "digest", lambda name, *parts: used.append(name) or digest(name, *parts)
    )
    for params in (
        {"key_length": 1024},
        {
            "key_length": 1280,
            "hash_method": "sha512",
            "final_hash_method": "md5",
        },
    ):
        opened.clear()
        assert (
            ids_of(intersect({"intersect_method": "rsa", "rsa_params": params}), "host.0") == COMMON
        )
        assert len(blob(opened, "key")) * 8 == params["key_length"]
    assert set(used) == {"sha256", "md5"}


def test_rsa_hash_method_decides_what_is_signed():
    key = matching.rsa.generate(1024).public
    assert len({int(key.hashed(method, b"u1")) for method in available()}) == len(available())


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"intersect_method": "dh"}, "intersect_method: must be one of raw, rsa, ecdh"),
        ({"sync_intersect_ids": "maybe"}, "sync_intersect_ids: must be true or false"),
        ({"only_output_key": "maybe"}, "only_output_key"),
        ({"use_hash": "maybe"}, "use_hash"),
        ({"hash_method": "crc32"}, "hash_method: must be one of md5, sha1, sha256, sha512"),
        ({"salt": ["a"]}, "salt: must be text"),
        ({"salt": True}, "salt: must be text"),
        ({"base64": "maybe"}, "base64"),
        ({"join_role": "arbiter"}, "join_role: must be one of guest, host"),
        ({"rsa_params": "many"}, "rsa_params: must be an object"),
        ({"rsa_params": {"key_length": 1022}}, "rsa_params.key_length"),
        ({"rsa_params": {"key_length": 1025}}, "rsa_params.key_length: must be even"),
        ({"rsa_params": {"key_length": 65536}}, "rsa_params.key_length"),
        ({"rsa_params": {"hash_method": "none"}}, "rsa_params.hash_method"),
        ({"rsa_params": {"final_hash_method": "none"}}, "rsa_params.final_hash_method"),
        ({"id": ["a"]}, "id: must be text"),
    ],
)
def test_what_cannot_work_is_refused_by_name_before_any_message(parameters, words):
    run = intersect(
        parameters | {"early": 1},
        checked=False,
    )
    for party in ("guest.0", "host.0"):
        assert isinstance(run[party].error, BadParameters)
        assert words in str(run[party].error)
    assert run.channel.sent == []


def test_the_host_cannot_collect_for_several_hosts():
    run = intersect(
        RAW | {"join_role": "host"},
        ["a"],
        ["a"],
        ["a"],
        checked=False,
    )
    assert "join_role: must be guest when there are 2 hosts" in str(run["guest.0"].error)
    assert run.channel.sent == []


def test_unknown_and_idle_parameters_warn_and_do_not_fail():
    run = intersect(
        RSA
        | {
            "colour": "red",
            "salt": "x",
            "dataset_id": "a#b",
            "namespace": "a",
            "name": "b",
        }
    )
    warned = {
        fields.get("parameter") for level, _, fields in run["host.0"].lines if level == "warning"
    }
    assert warned == {"colour", "salt"}


def test_every_declared_parameter_is_read_and_shown_with_its_default():
    declared = {p["name"]: p["defaultValue"] for p in description("Intersection")["inputParam"]}
    run = intersect({name: json.loads(v) if v[:1] == "{" else v for name, v in declared.items()})
    by_default = intersect({})
    assert ids_of(run, "guest.0") == ids_of(by_default, "guest.0") == COMMON
    unknown = [line for line in run["guest.0"].lines if line[1] == "unknown parameter ignored"]
    assert unknown == []
    assert run["guest.0"].io.tables == by_default["guest.0"].io.tables


def test_the_description_lists_the_hashes_and_methods_there_are():
    declared = {p["name"]: p for p in description("Intersection")["inputParam"]}
    assert [b["value"] for b in declared["hash_method"]["bindingData"]] == list(HASHES)
    assert [b["value"] for b in declared["intersect_method"]["bindingData"]] == [
        "raw",
        "rsa",
        "ecdh",
    ]


@pytest.mark.parametrize(
    ("name", "mine", "theirs"),
    [
        ("intersect_method", RAW, ECDH),
        ("sync_intersect_ids", ECDH, ECDH | {"sync_intersect_ids": False}),
        ("salt", RAW, RAW | {"salt": "other"}),
        ("hash_method", RAW, RAW | {"hash_method": "sha512"}),
        ("join_role", RAW, RAW | {"join_role": "guest"}),
        ("rsa_params.key_length", RSA, RSA | {"rsa_params": {"key_length": 2048}}),
    ],
)
def test_parties_that_differ_name_what_differs(
    name,
    mine,
    theirs,
):
    run = intersect(lambda party: mine if party == "guest.0" else theirs, checked=False)
    for party in ("guest.0", "host.0"):
        assert isinstance(run[party].error, BadParameters)
        assert name in str(run[party].error)
    assert "12345" not in str(run["guest.0"].error)


# --- input that cannot work


def test_duplicate_and_empty_ids_are_refused_by_row_number():
    run = intersect(
        RAW,
        ["a", "b", "a", "", "b", "b"],
        ["a"],
        checked=False,
    )
    message = str(run["guest.0"].error)
    assert (
        "row 3 has the id of row 1; row 4 has an empty id; row 5 has the id of row 2; row 6 has"
        in message
    )
    assert isinstance(run["guest.0"].error, BadParameters)
    assert "guest.0 gave up" in str(run["host.0"].error), "the peer need not wait for the deadline"


def test_many_bad_rows_are_counted_not_listed():
    run = intersect(RAW, ["a"] * 1000, ["a"], checked=False)
    assert "and 979 more" in str(run["guest.0"].error)


def test_a_missing_column_is_refused_without_naming_those_that_are_there():
    run = intersect(
        RAW | {"id": "x1"},
        checked=False,
    )
    assert "no column 'x1' among its 3" in str(run["guest.0"].error)


def test_a_repeated_column_is_refused():
    twice = {"train_data": Table(["id", "id"], [["a", "b"]])}
    run = run_parties(
        "Intersection",
        ROLES,
        {"guest.0": twice, "host.0": twice},
        RAW,
    )
    assert "more than one column 'id'" in str(run["guest.0"].error)


# --- what the channel sees


SECRET_GUEST = [f"person-{n:05d}" for n in range(60)]
SECRET_HOST = [f"person-{n:05d}" for n in range(30, 90)]


def reversible(value):
    """An id, and the forms of it that an attacker could compute from a guess."""
    raw = value.encode()
    hashes = [
        digest(name, salt, raw)
        for name in HASHES
        if name in available()
        for salt in (b"", b"12345")
    ]
    hashes += [hashlib.sha512(raw).digest()]
    return [
        raw,
        *hashes,
        *(h.hex().encode() for h in hashes),
        *(base64.b64encode(h) for h in hashes),
    ]


@pytest.mark.parametrize(
    "parameters",
    [RSA, ECDH],
    ids=["rsa", "ecdh"],
)
def test_no_id_and_no_hash_of_one_is_sent_even_inside_the_seal(opened, parameters):
    rng = random.Random(1)
    guest_ids, host_ids = list(SECRET_GUEST), list(SECRET_HOST)
    rng.shuffle(guest_ids)
    rng.shuffle(host_ids)
    run = intersect(parameters, guest_ids, host_ids)
    assert len(ids_of(run, "guest.0")) == 30
    inside = b"\n".join(
        json.dumps(fields).encode() + b"".join(blobs) for _, fields, blobs in opened
    )
    outside = run.channel.all_bytes()
    assert len(inside) > 1000
    assert len(outside) > len(inside)
    for value in (*SECRET_GUEST, *SECRET_HOST):
        for trace in reversible(value):
            assert trace[:16] not in inside
            assert trace[:16] not in outside


@pytest.mark.parametrize(
    "parameters",
    [RSA, ECDH],
    ids=["rsa", "ecdh"],
)
def test_two_runs_have_no_ciphertext_in_common(opened, parameters):
    runs = []
    for _ in range(2):
        opened.clear()
        run = intersect(parameters, SECRET_GUEST, SECRET_HOST)
        parts = {
            b[i : i + 16]
            for kind, _, blobs in opened
            if kind != "hits"
            for b in blobs
            for i in range(0, len(b), 16)
        }
        runs.append((parts, {sent.payload for sent in run.channel.sent}))
    assert len(runs[0][0]) > 100
    assert not runs[0][0] & runs[1][0]
    assert not runs[0][1] & runs[1][1]


def test_raw_tags_are_visible_only_to_the_peer():
    run = intersect(RAW, SECRET_GUEST, SECRET_HOST)
    outside = run.channel.all_bytes()
    for value in SECRET_GUEST:
        assert not any(trace[:16] in outside for trace in reversible(value))


@pytest.mark.parametrize(
    "parameters",
    [RAW, RSA, ECDH],
    ids=["raw", "rsa", "ecdh"],
)
def test_the_order_of_the_file_is_not_sent(opened, parameters):
    """A party sends its ids sorted by their sent form; the peer's response keeps that order."""
    intersect(parameters, SECRET_GUEST, SECRET_HOST)
    for kind, _, blobs in opened:
        if kind == "tags":
            assert json.loads(blobs[0]) == sorted(json.loads(blobs[0]))
        if kind in ("points", "blinded", "signed"):
            size = {
                "points": 32,
                "blinded": 128,
                "signed": 16,
            }[kind]
            values = [blobs[-1][i : i + size] for i in range(0, len(blobs[-1]), size)]
            assert values == sorted(values)
            assert len(values) == 60
