"""The console's files and a browser's session: texts, size, policy, and rights of a cookie."""

import gzip
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from gateway.auth import Role
from gateway.http.guard import cookie_name
from tests.console import FILES, modules, words
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, Node, token_of
from tests.world import NodeSetup

TOKEN = "0123456789abcdef0123"
NODE = NodeSetup(token=TOKEN)
SESSION = "/api/v1/session"
# The header that only the pages' own scripts can send.
FROM_CONSOLE = {"x-console": "1"}

# Calls whose first argument is a key of a text.
KEYED_CALL = re.compile(
    r'\b(?:translate|button|card|foldedCard|actionButton|act|field)\(\s*"([^"]+)"'
)
COLUMNS = re.compile(r"(?:\btable\(\s*|columns = )\[([^\]]*)\]")
FACTS = re.compile(r"\bfacts\(\[(.*?)\]\)", re.S)
EMPTY_TEXT = re.compile(r', "((?:no|nothing) [a-z ]+)"\)')
KEY = re.compile(r"[a-z][a-z0-9 ]*\??")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
CHINESE_WITH_ASCII_PUNCTUATION = re.compile(r"[\u4e00-\u9fff][,;?!]")
# Texts that are the same in Chinese.
UNTRANSLATED = {"sha256"}

# ---------------------------------------------------------------- texts


def keys_in_pages() -> set[str]:
    """Return the keys of texts in the pages, except composed keys.

    `test_composed_keys_have_texts` covers the composed keys.
    """
    keys = set()
    for module in modules():
        source = module.read_text(encoding="utf-8")
        keys |= set(KEYED_CALL.findall(source))
        keys |= set(EMPTY_TEXT.findall(source))
        for columns in COLUMNS.findall(source):
            keys |= set(re.findall(r'"([^"]+)"', columns))
        for facts in FACTS.findall(source):
            keys |= set(re.findall(r'\["([^"]+)"', facts))
    return {key for key in keys if KEY.fullmatch(key)}


def plain_keys(texts: dict[str, str]) -> set[str]:
    """Return the keys of texts that are no states."""
    return {key for key in texts if not key.startswith("=")}


def placeholders(text: str) -> list[str]:
    """Return the placeholders of a text, sorted."""
    return sorted(re.findall(r"\{\w+\}", text))


def test_every_text_exists_in_both_languages():
    chinese = words()["zh"]
    english = words()["en"]
    keys = keys_in_pages()

    assert plain_keys(chinese) == plain_keys(english)
    assert len(keys) > 130
    assert not keys - chinese.keys()


def test_chinese_texts_are_chinese_with_the_english_placeholders():
    english = words()["en"]
    for key, text in words()["zh"].items():
        if key not in UNTRANSLATED:
            assert CHINESE.search(text), key
        english_text = english.get(key, text)
        assert placeholders(text) == placeholders(english_text), key
        assert not CHINESE_WITH_ASCII_PUNCTUATION.search(text), f"{key}: ASCII punctuation"


CONFIRMED_ACTIONS = (
    "approve",
    "reject",
    "enable",
    "disable",
    "retire",
    "unretire",
    "revoke",
    "stop",
    "suspend",
    "resume",
)


@pytest.mark.parametrize("action", CONFIRMED_ACTIONS)
def test_an_action_and_its_question_have_texts(action):
    chinese = words()["zh"]
    assert action in chinese
    assert f"{action}?" in chinese


def test_composed_keys_have_texts():
    app = (FILES / "app.js").read_text("utf-8")
    pages = re.findall(r'^  (\w+): \{ list: "', app, re.M)

    assert len(pages) == 12
    for page in pages:
        assert f"page {page}" in words()["zh"]


# ---------------------------------------------------------------- files


def test_third_party_files_are_unchanged_and_licensed():
    vendor = FILES / "vendor"
    sums = {}
    listing = (vendor / "SHA256SUMS").read_text()
    for line in listing.splitlines():
        checksum, name = line.split()
        sums[name] = checksum
    published = [*vendor.glob("*.js"), *vendor.glob("*.css")]

    assert {file.name for file in published} == sums.keys()
    for file in published:
        content = file.read_bytes()
        checksum = hashlib.sha256(content).hexdigest()
        assert checksum == sums[file.name]
        package = file.name.partition(".min.")[0]
        assert (vendor / f"{package}.LICENSE").is_file()


REQUEST_TO_A_HOST = re.compile(rb"(?:src|href|from|import|url\()\s*[=(\"' ]*https?://")
INLINE_SCRIPT_OR_STYLE = re.compile(r"<script(?![^>]*src=)|<style|\son\w+=|javascript:")
TEXT_AS_MARKUP_OR_CODE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
)


LANGUAGE_BEGIN = re.compile(r"^  (?:en|zh): \{$", re.M)
ENTRY = re.compile(r'^    "([^"]+)": ', re.M)
FIRST_PAGE = FILES / "pages" / "overview.js"
STATIC_IMPORT = re.compile(r'^(?:import|export) [^;]*?"(\.[^"]+)";', re.M | re.S)


def files_of_first_visit() -> set[Path]:
    """Return the files that a browser loads for the first page, by following the imports."""
    modules_of_visit: set[Path] = set()
    waiting = [
        FILES / "app.js",
        FIRST_PAGE,
    ]
    while waiting:
        module = waiting.pop()
        if module not in modules_of_visit:
            modules_of_visit.add(module)
            waiting += imports_of(module)
    page = FILES / "index.html"
    style = FILES / "style.css"
    return modules_of_visit | {page, style}


def imports_of(module: Path) -> list[Path]:
    """Return the modules that a browser loads with a module."""
    source = module.read_text(encoding="utf-8")
    paths = []
    for path in STATIC_IMPORT.findall(source):
        file = module.parent / path
        paths.append(file.resolve())
    return paths


def compressed_size(files: Iterable[Path]) -> int:
    size = 0
    for file in files:
        content = file.read_bytes()
        size += len(gzip.compress(content))
    return size


def test_the_first_visit_is_small_as_pages_are_loaded_when_they_are_needed():
    files = files_of_first_visit()

    assert FILES / "words.js" in files
    assert compressed_size(files) < 50_000
    everything = [file for file in FILES.rglob("*") if file.is_file()]
    assert compressed_size(everything) < 170_000


def test_no_file_asks_another_host():
    for file in FILES.rglob("*"):
        if file.is_file():
            assert not REQUEST_TO_A_HOST.search(file.read_bytes()), file.name


def test_no_text_has_two_entries_in_a_language():
    script = (FILES / "words.js").read_text(encoding="utf-8")
    _, *languages = LANGUAGE_BEGIN.split(script)
    for texts in languages:
        keys = ENTRY.findall(texts)
        counts = Counter(keys)
        (_, largest_count), *_ = counts.most_common(1)
        assert largest_count == 1, counts.most_common(3)


def test_no_page_contains_inline_code_or_writes_markup():
    page = (FILES / "index.html").read_text(encoding="utf-8")
    assert not INLINE_SCRIPT_OR_STYLE.search(page)
    for module in modules():
        source = module.read_text(encoding="utf-8")
        assert not TEXT_AS_MARKUP_OR_CODE.search(source), module.name


# ---------------------------------------------------------------- sessions


def log_in(
    node: Node,
    token: str = TOKEN,
) -> dict[str, str]:
    """Log in with a token; return the header with the session's cookie."""
    response = node.post(SESSION, token=token)
    assert response.status_code == 200
    (cookie,) = response.headers.get_list("set-cookie")
    value, *attributes = cookie.split("; ")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(attributes)
    return {"cookie": value}


@pytest.mark.parametrize(
    "path",
    ["/console/", "/console/app.js", "/console/style.css"],
)
def test_the_pages_need_no_token_and_forbid_foreign_scripts(node, path):
    response = node.get(path)

    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_the_address_without_a_path_leads_to_the_console(node):
    assert node.get("/").headers["location"] == "/console/"


@pytest.mark.parametrize(
    "path", ["/console/none", "/console/../pages.py", "/console/%2e%2e/pages.py"]
)
def test_only_the_console_s_files_are_served(node, path):
    assert node.get(path).status_code in (401, 404)


def test_a_wrong_token_is_audited_but_a_missing_session_is_not(world):
    node = world.node(NODE)
    # A page that finds out whether its browser is logged in: that is no failed login.
    assert node.get(SESSION).status_code == 401

    assert node.get(SESSION, token="bfia_no").status_code == 401

    wait_for(
        lambda: node.audit.list(action=SESSION),
        about="a wrong token is in the audit",
    )
    (entry,) = node.audit.list(action=SESSION)
    assert entry.detail["reason"] == "TOKEN_UNKNOWN"


def test_a_cookie_reads_and_changes_only_with_the_pages_own_header(node):
    cookie = log_in(node)
    response = node.get(SESSION, headers=cookie)
    session = response.json()
    assert session["node"] == ME
    assert session["user"] == "operator"
    assert session["role"] == "admin"
    assert node.get("/api/v1/jobs", headers=cookie).status_code == 200

    def collect_garbage(**headers):
        return node.post(
            "/api/v1/gc",
            {"dry_run": True},
            headers=headers,
        )

    # As from a form on another site.
    refused = collect_garbage(**cookie).json()
    assert refused["data"]["reason"] == "NO_TOKEN"
    assert collect_garbage(**cookie, **FROM_CONSOLE).status_code == 200
    assert collect_garbage(**FROM_CONSOLE).status_code == 401


def test_a_cookie_of_another_node_is_refused(node):
    cookie = log_in(node)["cookie"]
    foreign = cookie.replace(
        cookie_name(ME),
        cookie_name("JG0100009900000099"),
    )

    response = node.get(
        "/api/v1/jobs",
        headers={"cookie": foreign},
    )

    assert response.status_code == 401


def test_a_logout_removes_the_cookie(node):
    cookie = log_in(node)

    response = node.request(
        "DELETE",
        SESSION,
        headers=cookie | FROM_CONSOLE,
    )

    (set_cookie,) = response.headers.get_list("set-cookie")
    assert "Max-Age=0" in set_cookie


def test_a_cookie_has_the_rights_of_its_token(node):
    cookie = log_in(node, token_of(node, Role.VIEWER))

    session = node.get(SESSION, headers=cookie).json()
    audit = node.get("/api/v1/audit", headers=cookie)
    assert session["role"] == "viewer"
    assert audit.status_code == 403
    change = node.post(
        "/api/v1/gc",
        {},
        headers=cookie | FROM_CONSOLE,
    )
    assert change.status_code == 403


def test_a_wrong_token_does_not_log_in(node):
    assert node.post(SESSION, token="bfia_no").status_code == 401


@pytest.mark.parametrize(
    ("language", "shown"),
    [
        ("zh", "等待开始"),  # neutral: it may be the partner who has to act
        ("en", None),  # shown as the standard names it
    ],
)
def test_a_pending_job_does_not_ask_its_reader_to_act(language, shown):
    assert words()[language].get("=PENDING") == shown
