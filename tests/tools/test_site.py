"""The documentation as a site: what MkDocs gets, and how its links are checked."""

from pathlib import PurePosixPath

import pytest

from gateway.language.catalogue import reasons
from tools.site import LANGUAGES
from tools.site.links import LinkRewriter, broken_links
from tools.site.messages import messages
from tools.site.navigation import menu
from tools.site.pages import Page, html_of, pages
from tools.site.reason_pages import reason_pages, with_links

ENGLISH = Page(PurePosixPath("docs/routes.md"), "en", PurePosixPath("routes.md"))


@pytest.fixture
def rewriter(tmp_path):
    return LinkRewriter(pages(), "en", "1.2.3", tmp_path)


def test_every_chinese_page_has_the_place_of_its_english_one():
    targets = {"en": set(), "zh": set()}
    for page in pages().values():
        targets[page.language].add(page.target)

    assert targets["zh"] <= targets["en"]
    assert PurePosixPath("index.md") in targets["zh"]


@pytest.mark.parametrize(
    ("link", "rewritten"),
    [
        ("[a](signing.md#keys)", "[a](signing.md#keys)"),
        ("[a](README.md)", "[a](index.md)"),
        ("[a](../ARCHITECTURE.md)", "[a](project/ARCHITECTURE.md)"),
        ("[中文](routes.zh-CN.md)", "[中文](../../zh/1.2.3/routes.html)"),
        ("[two\nlines](signing.md)", "[two\nlines](signing.md)"),
        ("[the tests](../tests)", "the tests"),
        ("[here](#below)", "[here](#below)"),
        ("[out](https://example.org/x.md)", "[out](https://example.org/x.md)"),
        ("```\n[code](nosuch.md)\n```", "```\n[code](nosuch.md)\n```"),
    ],
)
def test_links_lead_to_the_pages_of_the_site(rewriter, link, rewritten):
    assert rewriter.rewrite(ENGLISH, link) == rewritten


def test_a_file_that_is_no_page_comes_along(rewriter, tmp_path):
    text = rewriter.rewrite(ENGLISH, "[p](../adapter/bfia/channel/ptp.proto)")

    assert text == "[p](files/adapter/bfia/channel/ptp.proto)"
    assert (tmp_path / "files/adapter/bfia/channel/ptp.proto").is_file()


def test_the_menu_is_the_table_of_the_first_page():
    index = "| [Start](a.md) | x |\n| **Vendors** | |\n| [Check](b.md), [More](c.md) | y |\n"

    assert menu(index, "en") == [
        {"Start": "index.md"},
        {"Start": "a.md"},
        {"Vendors": [{"Check": "b.md"}, {"More": "c.md"}]},
    ]


def test_every_reason_has_a_page_in_both_languages():
    for language in LANGUAGES:
        written = {path.stem for path in reason_pages(language)}

        assert written == set(reasons())


def test_a_reason_page_has_cause_next_step_and_an_example():
    page = reason_pages("en")[PurePosixPath("reasons/REASON_UNKNOWN.md")]

    assert "No reason has that name." in page
    assert "Check the spelling" in page
    assert "- no reason is called ⟨reason⟩" in page
    assert '"code": 404' in page


def test_messages_are_those_of_the_code():
    by_reason = messages(frozenset(reasons()))

    message = by_reason["TOKEN_EXPIRED"][0]
    assert message.text == "the token of ⟨name⟩ expired at ⟨expires_at⟩ UTC"
    assert len(by_reason) > len(reasons()) / 2


def test_the_table_of_reasons_leads_to_their_pages():
    assert with_links("| `BUSY` | x | y |") == "| [`BUSY`](reasons/BUSY.md) | x | y |\n"


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "b.html").write_text('<h1 id="x">b</h1>')
    addresses = ["b.html", "b.html#x", "b.html#y", "c.html", "https://example.org/c.html"]
    links = "".join(f'<a href="{address}">a</a>' for address in addresses)
    (tmp_path / "a.html").write_text(links)

    assert sorted(broken_links(tmp_path)) == [
        "a.html: b.html#y: no such heading",
        "a.html: c.html: no such file",
    ]


def test_a_readme_becomes_the_index_of_its_folder():
    assert html_of(PurePosixPath("adr/README.md")) == PurePosixPath("adr/index.html")
