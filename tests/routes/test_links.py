"""Entries of nodes that are reached by links, or to which links are kept."""

import pytest

from route_table.document import parse
from route_table.editing import Change, apply
from route_table.model import InvalidRoutes, link_url
from tests.routes.test_document import KEY

BY_LINK = f"A:\n  reached: by-link\n  keys: {KEY}\n"
DIALLED = f"A:\n  url: https://a.example\n  dial: out\n  keys: {KEY}\n"


def test_a_node_that_dials_in_has_the_url_of_its_links():
    route = parse(BY_LINK).resolve("A")
    assert (route.reached, route.url) == ("by-link", link_url("A"))
    assert route.channel == route


def test_a_node_that_is_dialled_keeps_its_address():
    route = parse(DIALLED).resolve("A")
    assert (route.dial, route.url) == ("out", "https://a.example")


def test_a_node_behind_one_that_dials_in_has_the_url_of_its_links():
    table = parse(BY_LINK + "B:\n  via: A\n")
    assert (table.resolve("B").url, table.resolve("B").via) == (link_url("A"), "A")


# Name -> keys of the entry, the key with the problem, the beginning of its rule.
MISTAKES = {
    "a link without keys": ("reached: by-link", "keys", "is missing beside dial or"),
    "dialling without keys": ("url: http://a:1, dial: out", "keys", "is missing beside dial or"),
    "a link and an address": (f"reached: by-link, url: http://a:1, keys: {KEY}", "url", "must not"),
    "a link and a next hop": (f"reached: by-link, via: B, keys: {KEY}", "via", "must not"),
    "both directions": (f"reached: by-link, dial: out, keys: {KEY}", "dial", "must not"),
    "a link and an authority": (f"reached: by-link, ca: a.pem, keys: {KEY}", "ca", "has no use"),
    "dialling through another": (
        f"via: B, dial: out, keys: {KEY}",
        "dial",
        "must not be given with via",
    ),
    "another direction": (f"url: http://a:1, dial: in, keys: {KEY}", "dial", "must be one of out"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_link_is_named(mistake):
    keys, key, rule = MISTAKES[mistake]
    with pytest.raises(InvalidRoutes) as raised:
        parse(f"A: {{{keys}}}\nB: {{url: 'http://b:1'}}\n")
    (problem,) = raised.value.problems
    assert problem.path == f"A.{key}"
    assert rule in problem.rule


def test_the_default_route_has_no_link():
    with pytest.raises(InvalidRoutes) as raised:
        parse(f"default: {{reached: by-link, keys: {KEY}}}\n")
    assert "default.reached" in {problem.path for problem in raised.value.problems}


def test_a_link_replaces_an_address_and_the_other_way_round():
    text = apply(DIALLED, Change("A", {"reached": "by-link"}, replaces=False))
    assert parse(text).routes == parse(BY_LINK).routes
    text = apply(text, Change("A", {"url": "https://a.example", "dial": "out"}, replaces=False))
    assert parse(text).routes == parse(DIALLED).routes
