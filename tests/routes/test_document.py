"""The YAML form of a route table: read, refused with paths and lines, and written back."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from route_table.document import MAX_PROBLEMS, MAX_TEXT, parse
from route_table.keys import KEYS
from route_table.model import PROFILES, InvalidRoutes, Route, RouteTable, UnknownNode
from tests.routes.builders import dump

KEY = "MCowBQYDK2VwAyEAJrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs="
SEALING_KEY = "MCowBQYDK2VuAyEAzDUeWp1MYJ+Ixq3hF0lRkIx4acJxBb2W163eHC5XeA4="
PEM = f"-----BEGIN PUBLIC KEY-----\n{KEY}\n-----END PUBLIC KEY-----\n"


def parse_route(text):
    """Return the only route of a table."""
    [route] = parse(text).routes.values()
    return route


def test_every_key_of_an_entry_is_read():
    text = """{A1: {url: 'https://Gateway.Example:7380/bfia/', profile: fate,
      institution: JG0100001100000000, deadline: 2.5, enabled: false}}"""

    url = "https://gateway.example:7380/bfia"
    assert parse_route(text) == Route(
        "A1",
        url,
        "fate",
        "JG0100001100000000",
        2.5,
        False,
    )


@pytest.mark.parametrize(
    ("spelling", "enabled"),
    [
        ("true", True),
        ("Yes", True),
        ("on", True),
        ("'false'", False),
        ("OFF", False),
    ],
)
def test_each_spelling_of_enabled_is_read(spelling, enabled):
    assert parse_route(f"A: {{host: h, port: 1, enabled: {spelling}}}").enabled is enabled


@pytest.mark.parametrize(
    ("keys", "signing"),
    [
        ({}, "accepted"),
        ({"keys": KEY}, "required"),
        ({"keys": PEM + PEM}, "required"),
        ({"keys": f"{KEY}, {KEY}", "signing": "accepted"}, "accepted"),
        ({"signing": "off"}, "off"),
        ({"signing": False}, "off"),
        ({"signing": "No"}, "off"),
    ],
)
def test_keys_are_read_in_each_form_and_require_signatures_by_default(keys, signing):
    route = parse_route(yaml.safe_dump({"A": {"url": "http://h"} | keys}))

    assert route.signing_mode == signing
    assert set(route.keys) <= {KEY}
    assert bool(route.keys) is ("keys" in keys)
    assert parse_route(dump(RouteTable(1, {"A": route}))) == route


@pytest.mark.parametrize(
    ("keys", "sealing"),
    [
        ("", "off"),
        (", sealing: required", "required"),
        (f", sealing_key: {SEALING_KEY}", "accepted"),
        (f", sealing_key: {SEALING_KEY}, sealing: required", "required"),
        (f", sealing_key: {SEALING_KEY}, sealing: off", "off"),
        (f", sealing_key: {SEALING_KEY}, sealing: 'off'", "off"),
    ],
)
def test_messages_are_sealed_by_default_where_there_is_a_key_for_it(keys, sealing):
    route = parse_route(f"A: {{host: h, port: 1{keys}}}")

    assert route.sealing_mode == sealing
    assert parse_route(dump(RouteTable(1, {"A": route}))) == route


@pytest.mark.parametrize(
    ("keys", "is_sealed"),
    [
        ("", False),
        (f", sealing_key: {SEALING_KEY}", False),
        (f", sealing_key: {SEALING_KEY}, control_sealing: accepted", True),
        (", control_sealing: accepted", False),
        (", control_sealing: required", True),
    ],
)
def test_control_requests_are_sealed_only_where_the_route_says_so(keys, is_sealed):
    route = parse_route(f"A: {{host: h, port: 1{keys}}}")

    assert route.seals_control == is_sealed


@pytest.mark.parametrize("mode", ["required", "accepted"])
@pytest.mark.parametrize("signing", ["off", "no"])
def test_sealed_control_requests_need_signatures(mode, signing):
    with pytest.raises(InvalidRoutes, match="by which repeated requests are refused"):
        parse(f"A: {{host: h, port: 1, signing: {signing}, control_sealing: {mode}}}")


def test_a_sealing_key_is_read_in_pem_form():
    pem = f"-----BEGIN PUBLIC KEY-----\n{SEALING_KEY}\n-----END PUBLIC KEY-----\n"
    route = parse_route(yaml.safe_dump({"A": {"url": "http://h", "sealing_key": pem}}))

    assert route.sealing_key == SEALING_KEY


@pytest.mark.parametrize("key", [KEY, f"'{SEALING_KEY}, {SEALING_KEY}'", "AAAA", "x"])
def test_a_key_that_nothing_can_be_sealed_to_is_a_problem(key):
    with pytest.raises(InvalidRoutes) as error:
        parse(f"A: {{host: h, port: 1, sealing_key: {key}}}")

    assert [problem.path for problem in error.value.problems] == ["A.sealing_key"]


def test_a_node_id_is_the_text_that_is_written():
    node_ids = ["0123", "no", "yes", "null", "22:30", "1e3", "0x1F", "1_000", "2026-11-21"]
    text = "".join(f"{node_id}: {{host: h, port: 1}}\n" for node_id in node_ids)

    assert list(parse(text).routes) == node_ids


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("{host: h, port: 9380}", "http://h:9380"),
        ("{host: H.Example., port: '443', scheme: HTTPS}", "https://h.example."),
        ("{host: h, port: 80}", "http://h"),
        ("{host: h, port: 080}", "http://h"),
        ("{host: '::1', port: 9380}", "http://[::1]:9380"),
        ("{host: '[2001:DB8:0::1]', port: 9380}", "http://[2001:db8::1]:9380"),
        ("{host: my_service, port: 9380}", "http://my_service:9380"),
        ("{url: 'http://h'}", "http://h"),
        ("{url: 'HTTP://H:80/'}", "http://h"),
        ("{url: 'https://h:80/a/b%20c//'}", "https://h:80/a/b%20c"),
        ("{url: 'http://[::1]:9380/x'}", "http://[::1]:9380/x"),
        ("{host: h, port: 9380, transport: 'HTTP://T:80/'}", "http://h:9380"),
    ],
)
def test_an_address_is_normalised(entry, url):
    assert parse_route(f"A: {entry}").url == url


@pytest.mark.parametrize(
    ("text", "path", "rule"),
    [
        ("", "(document)", "has no entries"),
        ("~", "(document)", "has no entries"),
        ("[a]", "(document)", "line 1: must map node ids to routes"),
        (
            "A: {host: h, port: 1}\n---\nB: {}",
            "(document)",
            "line 2: is not YAML: but found another document",
        ),
        ("A:\n  host: h\n  port: 1\n host: h\n", "(document)", "line 4: is not YAML: "),
        ("x" * (MAX_TEXT + 1), "(document)", f"must not be longer than {MAX_TEXT} characters"),
        ("\nA: &x {host: h, port: 1}", "(document)", "line 2: must not use anchors"),
        ("A: *x", "(document)", "line 1: must not use anchors"),
        ("A: !!python/object:os.system {}", "(document)", "line 1: must not use anchors"),
        ("? [a, b]\n: {}", "(document)", "line 1: must have text for a key"),
        ("[" * 100_000, "(document)", "line 1: must not nest deeper than 8 levels"),
        ("A:\n", "A", "line 1: must be a mapping with host and port, or url"),
        ("'a b': {host: h, port: 1}", '["a b"]', "line 1: must be a node id"),
        (f"{'a' * 200}: {{host: h, port: 1}}", f'["{"a" * 128}…"]', "line 1: must be a node id"),
        (
            "A: {host: h, port: 1}\nA: {host: i, port: 1}",
            "A",
            "line 2: duplicate key; first in line 1",
        ),
        ("A:\n  host: h\n  port: 1\n  host: i", "A.host", "line 4: duplicate key; first in line 2"),
        ("A:\n  port: 1", "A.host", "line 2: is missing; give host and port, or url"),
        ("A: {host: h, port: }", "A.port", "line 1: has no value"),
        ("A: {url: [h]}", "A.url", "line 1: must be a single value"),
        (
            "A:\n  host: h\n  port: 1\n  enable: no",
            "A.enable",
            "line 4: unknown key; did you mean enabled?",
        ),
        (
            "A: {host: h, port: 1, weight: 3}",
            "A.weight",
            f"line 1: unknown key; known are {', '.join(KEYS)}",
        ),
        ("A: {host: h, port: 0}", "A.port", "line 1: must be a whole"),
        ("A: {host: h, port: 65536}", "A.port", "line 1: must be a whole"),
        ("A: {host: h, port: 9.8}", "A.port", "line 1: must be a whole"),
        ("A: {host: h, port: 1, scheme: ftp}", "A.scheme", "line 1: must be one of http, https"),
        ("A: {url: 'http://h', port: 1}", "A.port", "line 1: must not be given with url"),
        ("A: {url: 'h:9380'}", "A.url", "line 1: must begin with one of http://, https://"),
        (
            "A: {url: 'ftp://h', ca: /a, certificate: /c, key: /k}",
            "A.url",
            "line 1: must begin with one of",
        ),
        ("A: {url: 'http://'}", "A.url", "line 1: must name a valid host"),
        ("A: {url: 'http://10.0.0.300:1'}", "A.url", "line 1: must name a valid host"),
        ("A: {url: 'http://h:0'}", "A.url", "line 1: must have a port from 1 to 65535"),
        ("A: {url: 'http://h:99999'}", "A.url", "line 1: must be a URL such as"),
        ("A: {url: 'http://u:secret@h'}", "A.url", "line 1: must not hold a user name or password"),
        ("A: {url: 'http://h/?a=1'}", "A.url", "line 1: must not have a query or fragment"),
        ("A: {url: 'http://h/a/../b'}", "A.url", "line 1: must have a plain path, if any"),
        (
            'A: {url: "http://h/\\ta"}',
            "A.url",
            "line 1: must not hold spaces or control characters",
        ),
        ("A: {host: h, port: 1, profile: fat}", "A.profile", "line 1: must be one of spec, fate, "),
        ("A: {host: h, port: 1, institution: 'a b'}", "A.institution", "line 1: must be an id"),
        (
            "A: {host: h, port: 1, deadline: 0}",
            "A.deadline",
            "line 1: must be a number of seconds above 0",
        ),
        (
            "A: {host: h, port: 1, deadline: .inf}",
            "A.deadline",
            "line 1: must be a number of seconds above 0",
        ),
        ("A: {host: h, port: 1, enabled: maybe}", "A.enabled", "line 1: must be true or false"),
        ("A: {host: h, port: 1, relay: 2}", "A.relay", "line 1: must be true or false"),
        (
            "A: {host: h, port: 1, components: 'a/b, c'}",
            "A.components",
            "line 1: must be patterns such as",
        ),
        (
            "A: {host: h, port: 1, peer_certificate: 'sha256:x'}",
            "A.peer_certificate",
            "line 1: must be subject",
        ),
        (
            "A: {host: h, port: 1, keys: 'MCow'}",
            "A.keys",
            "line 1: must be public keys for Ed25519",
        ),
        ("A: {host: h, port: 1, keys: ','}", "A.keys", "line 1: must be public keys for Ed25519"),
        (
            "A: {host: h, port: 1, signing: maybe}",
            "A.signing",
            "line 1: must be one of required, accepted, off",
        ),
        (
            "A: {host: h, port: 1, sealing: true}",
            "A.sealing",
            "line 1: must be one of required, accepted, off",
        ),
        (
            "default: {host: h, port: 1, signing: required}",
            "default.signing",
            "line 1: needs keys, which belong",
        ),
        (
            "A: {host: h, port: 1, profile: fate-partner, signing: required}",
            "A.signing",
            "line 1: has no use for",
        ),
        (
            f"A: {{host: h, port: 1, profile: fate-partner, keys: {KEY}}}",
            "A.keys",
            "line 1: has no use for FATE's",
        ),
        (
            f"default: {{url: 'http://x', keys: {KEY}}}",
            "default.keys",
            "line 1: belongs to one node",
        ),
        (
            "X: {url: 'http://x'}\nA: {via: X, host: h}",
            "A.host",
            "line 2: must not be given with via",
        ),
        (
            "A: {host: h, port: 1, transport: t:2}",
            "A.transport",
            "line 1: must begin with one of http",
        ),
        (
            "A: {host: h, port: 1, transport: 'grpc://t'}",
            "A.transport",
            "line 1: must have a port and no path",
        ),
        (
            "A: {host: h, port: 1, transport: 'grpcs://t:2/p'}",
            "A.transport",
            "line 1: must have a port and no path",
        ),
        ("A: {url: 'grpc://h:2'}", "A.url", "line 1: must begin with one of http://, https://"),
        (
            "X: {url: 'http://x'}\nA: {via: X, transport: 'http://t'}",
            "A.transport",
            "line 2: must not be given",
        ),
        ("A: {via: X}", "A.via", "line 1: names a node without an entry of its own"),
        ("D: {via: A}\nA: {via: B}\nB: {via: A}", "A.via", "line 2: leads in a circle"),
        (
            "default: {url: 'http://x', institution: JG}",
            "default.institution",
            "line 1: belongs to one node",
        ),
        ("A: {host: h, port: 1, ca: /ca.pem}", "A.ca", "line 1: has no use without https"),
        (
            "X: {url: 'https://x'}\nA: {via: X, ca: /ca.pem}",
            "A.ca",
            "line 2: belongs to the entry of the node",
        ),
        ("A: {url: 'https://x', ca: \"a\\tb\"}", "A.ca", "line 1: must be the path of a PEM file"),
        (
            "A: {url: 'https://x', certificate: /c.pem}",
            "A.key",
            "line 1: is missing beside certificate",
        ),
        (
            "A: {url: 'https://x', server_name: 'a/b'}",
            "A.server_name",
            "line 1: must be a host name",
        ),
    ],
    ids=lambda text: text[:40],
)
def test_a_broken_table_is_refused_with_one_problem_at_its_place(text, path, rule):
    with pytest.raises(InvalidRoutes) as refusal:
        parse(text)

    [problem] = refusal.value.problems
    assert problem.path == path
    assert problem.rule.startswith(rule)
    assert "secret" not in str(problem)


@pytest.mark.parametrize(
    "host",
    ["http://h", "999.1.1.1", "fe80::1%eth0", "a b", "-a", "h/x"],
)
def test_a_malformed_host_is_refused(host):
    with pytest.raises(InvalidRoutes) as refusal:
        parse(f"A: {{host: '{host}', port: 1}}")

    [problem] = refusal.value.problems
    assert problem.path == "A.host"
    assert problem.rule.startswith("line 1: must be a host name or an address")


def test_a_node_behind_others_is_reached_at_the_nearest_of_them():
    table = parse(
        "B: {via: Y, profile: fate, deadline: 3, institution: JG}\n"
        "Y: {via: X}\n"
        "X: {url: 'http://x', transport: 'https://t', profile: kuscia, "
        "ca: /ca.pem, server_name: gw}"
    )

    route = table.resolve("B")

    assert route.node == "B"
    assert route.via == "X"
    assert route.url == "http://x"
    assert route.profile == "fate"
    assert route.deadline == 3.0
    assert route.institution == "JG"
    assert route.channel.url == "https://t"
    assert route.channel.node == "B"
    assert route.ca == "/ca.pem"
    assert route.server_name == "gw"
    assert table.resolve("X").via is None


def test_without_a_transport_the_channel_uses_the_url():
    assert parse("A: {host: h, port: 80}").resolve("A").channel.url == "http://h"


def test_the_default_route_serves_nodes_without_an_entry_but_admits_none():
    table = parse(
        "X: {url: 'http://x'}\nD: {url: 'http://d', enabled: no}\ndefault: {via: X, relay: yes}"
    )

    route = table.resolve("far")
    assert route.node == "far"
    assert route.via == "X"
    assert route.url == "http://x"
    assert route.relay is True
    assert not table.knows("far")
    assert not table.knows("default")
    assert table.knows("X")
    for node in ("D", "default"):  # a disabled node is not reached by a detour
        with pytest.raises(UnknownNode):
            table.resolve(node)


def test_a_default_route_with_an_address_is_its_own_relay():
    assert parse("default: {url: 'http://e'}").resolve("far").via == "default"


def test_a_node_behind_a_disabled_one_is_not_reached():
    table = parse("B: {via: X}\nX: {url: 'http://x', enabled: no}")

    with pytest.raises(UnknownNode, match="'B' goes via 'X', whose entry is disabled"):
        table.resolve("B")


def test_all_problems_are_reported_together():
    with pytest.raises(InvalidRoutes) as refusal:
        parse("A:\n  hosst: h\n  port: x\nB: 1\n'': {url: 'x'}\n")

    problems = [(problem.path, problem.rule) for problem in refusal.value.problems]
    assert problems == [
        ("A.hosst", "line 2: unknown key; did you mean host?"),
        ("A.host", "line 2: is missing; give host and port, or url"),
        ("A.port", "line 3: must be a whole number from 1 to 65535"),
        ("B", "line 4: must be a mapping with host and port, or url"),
        (
            '[""]',
            "line 5: must be a node id: letters, digits and . _ : @ - inside, "
            "at most 100 characters",
        ),
        ('[""].url', "line 5: must begin with one of http://, https://"),
    ]


def test_a_long_list_of_problems_is_cut():
    text = "".join(f"A{number}: 1\n" for number in range(MAX_PROBLEMS + 5))

    with pytest.raises(InvalidRoutes) as refusal:
        parse(text)

    *listed, last = refusal.value.problems
    assert len(listed) == MAX_PROBLEMS
    assert last.rule == f"has more than the {MAX_PROBLEMS} problems listed here"


# ------------------------------------------------------------ any table and any text


NODE_IDS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._:@-]{0,20}[A-Za-z0-9])?", fullmatch=True)
ROUTES = st.builds(
    Route,
    node=NODE_IDS,
    url=st.builds(
        lambda scheme, host, port, prefix: f"{scheme}://{host}:{port}{prefix}",
        st.sampled_from(["http", "https"]),
        st.sampled_from(["127.0.0.1", "[::1]", "gateway.example", "a-b"]),
        st.integers(1024, 65535),
        st.sampled_from(["", "/bfia", "/a/b%20c"]),
    ),
    profile=st.sampled_from(PROFILES),
    institution=st.none() | NODE_IDS,
    deadline=st.floats(0.0001, 3600) | st.integers(1, 3600).map(float),
    enabled=st.booleans(),
    relay=st.booleans(),
    components=st.sampled_from([(), ("*",), ("unionpay/*", "a/b")]),
    transport=st.none() | st.just("https://transport.example:7304"),
)
ROUTES_BEHIND_HOP = st.builds(
    Route,
    node=NODE_IDS.map(lambda node: f"{node}.behind"),
    url=st.just(""),
    via=st.just("hop"),
    relay=st.booleans(),
    profile=st.sampled_from(PROFILES),
)
HOP = Route(
    "hop",
    "https://hop",
    ca="/ca.pem",
    certificate="/c: d.pem",
    key="/k#.pem",
    server_name="hop.example",
)


def node_of(route):
    return route.node


@given(
    st.lists(
        ROUTES,
        unique_by=node_of,
        max_size=8,
    ),
    st.lists(ROUTES_BEHIND_HOP, max_size=3),
)
def test_a_table_that_is_written_is_read_back_the_same(routes, routes_behind_hop):
    by_node = {route.node: route for route in [*routes, *routes_behind_hop, HOP]}
    by_node.pop("default", None)
    table = RouteTable(3, by_node)

    copy = parse(dump(table), version=3)

    assert list(copy.routes) == list(table.routes)
    for node, route in copy.routes.items():
        assert route.deadline == pytest.approx(table.routes[node].deadline)
    assert dump(copy) == dump(table)
    assert parse(dump(copy), version=3) == copy


MARKS = st.sampled_from(list(":{}[]'\"&*!|>?-#%@`~\n \t\x00\u2028é"))
WORDS = st.sampled_from(
    ["A", "B", "0123", "host", "port", "url", "80", "http://h", "no", "---", "...", ", ", ": "]
)
FRAGMENTS = MARKS | WORDS
VALUES = st.sampled_from(
    [
        "h",
        "/p",
        "127.0.0.1",
        "80",
        "0",
        "http",
        "https://h/p",
        "fate",
        "true",
        "no",
        "~",
        "''",
        "[1]",
        "{}",
    ]
)
ENTRIES = st.dictionaries(
    NODE_IDS,
    st.dictionaries(st.sampled_from((*KEYS, "hots")), VALUES, max_size=6),
    min_size=1,
    max_size=4,
)


def write_entries(table):
    """Write entries with their values, which are YAML, as they are."""
    lines = []
    for node, entry in table.items():
        pairs = ", ".join(f"{key}: {value}" for key, value in entry.items())
        lines.append(f"'{node}': {{{pairs}}}")
    return "\n".join(lines)


@given(
    st.text(max_size=80)
    | st.lists(FRAGMENTS, max_size=40).map(" ".join)
    | st.lists(FRAGMENTS, max_size=40).map("".join)
    | st.text("\ud800\udfffA: {}\n", max_size=20)
    | ENTRIES.map(write_entries)
)
def test_any_text_gives_a_table_or_the_declared_refusal(text):
    try:
        table = parse(text)
    except InvalidRoutes as error:
        assert error.problems
        for problem in error.problems:
            str(problem).encode()
            assert problem.path == "(document)" or "line " in problem.rule
    else:
        assert parse(dump(table)).routes == table.routes
        for node, route in table.routes.items():
            assert route.node == node
            assert not route.url.endswith("/")
            assert bool(route.url) is (route.via is None)


def test_a_refused_url_gives_no_further_problem_of_the_keys_for_tls():
    with pytest.raises(InvalidRoutes) as refused:
        parse("A: {url: [h], ca: a.pem}")

    assert [problem.path for problem in refused.value.problems] == ["A.url"]


def test_the_documents_name_every_key_of_an_entry_as_the_code_does():
    folder = Path(__file__).resolve().parents[2] / "docs"
    rows = "\n".join(f"| `{name}` | {key.about} |" for name, key in KEYS.items())

    english = (folder / "routes.md").read_text(encoding="utf-8")
    assert f"<!-- keys -->\n| Key | Meaning |\n|---|---|\n{rows}\n<!-- end of keys -->" in english
    chinese = (folder / "routes.zh-CN.md").read_text(encoding="utf-8")
    table = chinese.partition("<!-- keys -->")[2].partition("<!-- end of keys -->")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(KEYS)


def test_a_long_text_of_blank_lines_is_refused_without_delay():
    """Bad input: a pattern that runs across lines would take hours."""
    with pytest.raises(InvalidRoutes, match="is not YAML"):
        parse("a: [" + "\n" * 2_000_000)


def test_a_line_for_an_empty_table_before_entries_is_named():
    with pytest.raises(InvalidRoutes, match=r"remove the line \{\}"):
        parse("  {}  # none yet\nJG0100001100000010: {host: a, port: 1}\n")
