"""The documentation comes with the node: pages at ``/docs/``, and the command ``docs``."""

import re

import pytest

from tests.cli.test_commands import call
from tests.e2e.nodes import ROOT
from tests.world import NodeSetup

NODE = NodeSetup(token="0123456789abcdef0123")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("vendor.md", "<h1"),
        ("vendor.zh-CN.md", 'lang="zh-CN"'),
        ("adr/README.md", "<table>|<ol>"),
    ],
)
def test_a_page_is_served_without_a_token(node, page, words):
    response = node.get(f"/docs/{page}", headers={"authorization": ""})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert re.search(words, response.text)


def test_every_link_of_every_page_opens(node):
    broken = set()
    for file in sorted((ROOT / "docs").glob("*.md")):
        page = node.get(f"/docs/{file.name}").text
        for link in re.findall(r'href="([^"#:]+\.(?:md|json|png))(?:#[^"]*)?"', page):
            path = link if link.startswith("/") else f"/docs/{link}"
            if node.get(path).status_code != 200:
                broken.add((file.name, link))
    assert broken == set()


def test_a_link_to_a_heading_finds_its_anchor(node):
    page = node.get("/docs/containers.md").text
    anchors = set(re.findall(r'<h\d id="([^"]+)"', page))
    links = set(re.findall(r"containers\.md#([\w-]+)", (ROOT / "docs/security.md").read_text()))
    assert links <= anchors


@pytest.mark.parametrize("path", ["nosuch.md", "%2e%2e/pyproject.toml", "adr"])
def test_nothing_else_is_served_below_the_documentation(node, path):
    response = node.get(f"/docs/{path}")
    assert response.status_code == 404


def test_the_command_lists_the_pages_and_prints_one():
    listed = call("docs")
    assert listed.exit_code == 0
    assert "vendor" in listed.stdout

    printed = call("docs", "docs/vendor.md")
    assert printed.stdout.startswith("# ")

    refused = call("docs", "vendr")
    assert refused.exit_code == 2
    assert "did you mean vendor?" in refused.stderr
