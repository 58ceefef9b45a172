"""The page of a report puts breaches first, and can be read whatever a node has sent."""

from dataclasses import replace

from gateway.conformance.platforms.findings import Exchange, Finding, deviates, fails, holds
from gateway.conformance.platforms.page import page
from tests.conformance.platforms.reports import report_content

NODE = "JG0100002200000020"


def page_of(findings: dict[str, Finding]) -> str:
    """Return the page of a report; ``findings``: by clause."""
    return page(report_content(NODE, findings))


def page_with_response(received: bytes) -> str:
    """Return the page of a report with one exchange."""
    exchange = Exchange(True, "POST", "/path", {}, b"", status=200, received=received)
    return page_of({"C-2-envelope": replace(fails("broken"), exchanges=(exchange,))})


def test_breaches_come_before_clauses_that_hold():
    html = page_of(
        {
            "C-2-envelope": holds("good"),
            "C-2-code": deviates("kuscia", "code 200"),
            "C-2-refusal": fails("no text"),
        }
    )
    places = [html.index(f"<b>{name}</b>") for name in ("C-2-refusal", "C-2-code", "C-2-envelope")]
    assert places == sorted(places)


def test_a_deviation_from_a_must_is_called_a_breach():
    must = page_of({"C-2-code": deviates("kuscia", "code 200")})
    should = page_of({"C-3.7-status": deviates("fate", "served by GET only")})
    assert "a breach all the same" in must
    assert "仍不符合标准" in must
    assert "a breach all the same" not in should


def test_code_in_a_clause_has_no_backticks():
    html = page_of({"C-2-envelope": fails("broken")})
    assert "<code>msg</code>" in html
    assert "`msg`" not in html


def test_control_characters_of_a_response_are_escaped():
    html = page_with_response(b"\x00\x1b[31m")
    assert "\\x00\\x1b[31m" in html
    assert "\x00" not in html


def test_long_bodies_are_shortened():
    html = page_with_response(b"[" * 3000)
    assert "[" * 2000 + "…" in html
    assert "[" * 2001 not in html


def test_one_request_is_singular():
    html = page_with_response(b"")
    assert "1 request<" in html
