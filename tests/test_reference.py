"""The pages that are generated from the code are up to date, and every reason is explained."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.language import _PANELS
from gateway.language.catalogue import groups, reasons
from tools.docs import __main__ as documents

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("gateway", "adapter", "provider_registry", "route_table", "engines", "clients/python")
LOOKS_LIKE_A_REASON = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")

# Words in the code that look like a reason and are none, by their subject.
OTHER_WORDS = {
    "a job's document": ["ALL_SITES"],
    "names of constants": ["MAX_BYTES"],
    "Typer's own texts": list(_PANELS),
    "environment variables": [
        "BFIA_GATEWAY_SOURCE_PASSWORD",
        "BFIA_GATEWAY_TOKEN",
        "BFIA_GATEWAY_URL",
        "DOCKER_HOST",
        "HADOOP_CONF_DIR",
        "HADOOP_USER_NAME",
        "KRB5_CLIENT_KTNAME",
        "LC_ALL",
        "LC_MESSAGES",
        "SSL_CERT_FILE",
        "XDG_CACHE_HOME",
    ],
    "alerts of TLS": [
        "ACCESS_DENIED",
        "BAD_CERTIFICATE",
        "CERTIFICATE_EXPIRED",
        "CERTIFICATE_REQUIRED",
        "CERTIFICATE_UNKNOWN",
        "HANDSHAKE_FAILURE",
        "UNKNOWN_CA",
    ],
    "status codes of gRPC": ["PERMISSION_DENIED", "RESOURCE_EXHAUSTED"],
    "the standard's platforms of TEEs": ["SGX_DCAP", "SGX_EPID"],
    "the standard's algorithms": ["SHA256_ECDSA", "SHA256_RSA"],
    "the kernel": [
        "AF_ALG",
        "AF_VSOCK",
        "CAP_SYS_ADMIN",
        "NET_ADMIN",
        "NET_RAW",
        "SYS_CHROOT",
    ],
    "sysconf": ["SC_PAGE_SIZE", "SC_PHYS_PAGES"],
    "OpenSSL": ["EVP_PKEY2PKCS8"],
    "seccomp profiles": [
        "SCMP_ACT_ALLOW",
        "SCMP_ACT_ERRNO",
        "SCMP_ARCH_AARCH64",
        "SCMP_ARCH_ARM",
        "SCMP_ARCH_X32",
        "SCMP_ARCH_X86",
        "SCMP_ARCH_X86_64",
        "SCMP_CMP_EQ",
        "SCMP_CMP_LT",
        "SCMP_CMP_MASKED_EQ",
    ],
}


def test_no_cell_of_a_chinese_page_is_an_english_sentence():
    for page in documents.PAGES:
        if not page.endswith(".zh-CN.md"):
            continue
        for cell in table_cells(page):
            prose = re.sub(r"`[^`]*`", "", cell)
            is_english = re.search(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}", prose)
            has_chinese = re.search("[\u4e00-\u9fff]", prose)
            assert not is_english or has_chinese, f"{page}: {cell}"


@pytest.mark.parametrize("page", documents.PAGES)
def test_a_page_is_what_the_code_makes_of_it(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == documents.PAGES[page](), f"{page} is behind the code: make docs"


def test_every_reason_in_the_code_is_explained():
    allowed = set(reasons()).union(*OTHER_WORDS.values())
    missing = {}
    for word, place in reasons_in_code():
        if word not in allowed:
            missing[word] = place
    assert missing == {}, "add them to gateway/language/reasons.yml, then: make docs"


def test_every_explained_reason_is_used():
    words = {"EXIT_n"}
    for node, _ in syntax_nodes():
        if is_text(node):
            words.update(re.findall("[A-Z_]{2,}", node.value))
    assert reasons().keys() - words == set()


def test_every_reason_is_explained_once_and_in_both_languages():
    names = []
    for group in groups():
        for reason in group.reasons:
            names.append(reason.name)
            assert set(reason.means) == {"en", "zh"}
            assert set(reason.next_step) == {"en", "zh"}
            for text in (*reason.means.values(), *reason.next_step.values()):
                assert text.endswith((".", "?", "。", "？")), f"{reason.name}: {text}"
    assert len(set(names)) == len(names)


def table_cells(page: str) -> Iterator[str]:
    """Yield the cells of a page's tables."""
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield from line.split(" | ")


def reasons_in_code() -> Iterator[tuple[str, str]]:
    """Yield possible reasons, each with its place.

    A word with an underscore may be one anywhere; a single word only where the code names a reason.
    """
    for node, place in syntax_nodes():
        if is_text(node) and LOOKS_LIKE_A_REASON.fullmatch(node.value):
            yield node.value, place
        value = named_reason(node)
        if is_text(value) and value.value.isupper():
            yield value.value, place


def named_reason(node: ast.AST) -> ast.AST | None:
    """Return the value that a piece of syntax uses as a reason; None if it uses none.

    That is ``reason=…`` in a call, ``reason = …``, and the first argument of a failure or wait.
    """
    match node:
        case ast.keyword(arg="reason", value=value):
            return value
        case ast.Assign(targets=targets, value=value) if is_reason_among(targets):
            return value
        case ast.Call(func=ast.Name(id="Failure" | "Waiting"), args=[first, *_]):
            return first
    return None


def is_reason_among(targets: list[ast.expr]) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "reason" for target in targets)


def is_text(node: Any) -> bool:
    """Return whether a piece of syntax is a string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def syntax_nodes() -> Iterator[tuple[ast.AST, str]]:
    """Yield every piece of syntax of the product, with its file and line."""
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            name = file.relative_to(ROOT)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                yield node, f"{name}:{getattr(node, 'lineno', 0)}"
