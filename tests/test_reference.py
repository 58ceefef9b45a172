"""The pages that are made from the code say what the code does now."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli.language import _PANELS
from gateway.language.catalogue import groups, reasons
from tools.docs import __main__ as documents

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("gateway", "adapter", "provider_registry", "route_table", "engines", "clients/python")
LOOKS_LIKE_ONE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
TLS = (
    "ACCESS_DENIED",
    "BAD_CERTIFICATE",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REQUIRED",
    "CERTIFICATE_UNKNOWN",
)
ELSEWHERE = {
    "ALL_SITES": "a word of a job's document",
    **dict.fromkeys((*TLS, "HANDSHAKE_FAILURE", "UNKNOWN_CA"), "alerts of TLS"),
    "BFIA_GATEWAY_SOURCE_PASSWORD": "the environment",
    "BFIA_GATEWAY_TOKEN": "the environment",
    "BFIA_GATEWAY_URL": "the environment",
    **dict.fromkeys(
        ("DOCKER_HOST", "HADOOP_USER_NAME", "SSL_CERT_FILE", "XDG_CACHE_HOME"), "the environment"
    ),
    **dict.fromkeys(("LC_ALL", "LC_MESSAGES"), "the environment"),
    **dict.fromkeys(_PANELS, "Typer's own texts"),
    "MAX_BYTES": "the name of a constant",
    **dict.fromkeys(("PERMISSION_DENIED", "RESOURCE_EXHAUSTED"), "status codes of gRPC"),
    **dict.fromkeys(("SHA256_ECDSA", "SHA256_RSA"), "the standard's algorithms"),
    **dict.fromkeys(("AF_ALG", "AF_VSOCK", "CAP_SYS_ADMIN"), "the kernel's"),
    **dict.fromkeys(("SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"), "of seccomp profiles"),
    **dict.fromkeys(("SCMP_CMP_EQ", "SCMP_CMP_LT", "SCMP_CMP_MASKED_EQ"), "of seccomp profiles"),
    **dict.fromkeys(("SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM", "SCMP_ARCH_X32"), "of seccomp profiles"),
    **dict.fromkeys(("SCMP_ARCH_X86", "SCMP_ARCH_X86_64"), "of seccomp profiles"),
    "SC_PAGE_SIZE": "sysconf",
    "SC_PHYS_PAGES": "sysconf",
    "EVP_PKEY2PKCS8": "OpenSSL",
}
"""words that look like a reason and are none"""


def test_no_cell_of_a_chinese_page_is_an_english_sentence():
    for name in (n for n in documents.PAGES if n.endswith(".zh-CN.md")):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            for cell in line.split(" | ") if line.startswith("| ") else ():
                prose = re.sub(r"`[^`]*`", "", cell)
                english = re.search(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}", prose)
                assert not english or re.search("[\u4e00-\u9fff]", prose), f"{name}: {line}"


@pytest.mark.parametrize("name", documents.PAGES)
def test_a_page_is_what_the_code_makes_of_it(name: str):
    written = (ROOT / name).read_text(encoding="utf-8")
    assert written == documents.PAGES[name](), f"{name} is behind the code: make docs"


def test_every_reason_in_the_code_is_explained():
    used = {word: where for word, where in reasons_in_code() if word not in ELSEWHERE}
    missing = {word: where for word, where in used.items() if word not in reasons()}
    assert missing == {}, "add them to gateway/language/reasons.yml, then: make docs"


def test_no_reason_is_explained_that_is_gone():
    words = {word for text, _ in texts_in_code() for word in re.findall("[A-Z_]{2,}", text)} | {
        "EXIT_n"
    }
    assert reasons().keys() - words == set()


def test_every_reason_is_explained_once_and_in_both_languages():
    found = [reason for group in groups() for reason in group.reasons]
    assert len({reason.name for reason in found}) == len(found)
    for reason in found:
        for text in (*reason.means.values(), *reason.next_step.values()):
            assert text.endswith((".", "?", "。", "？")), f"{reason.name}: {text}"
        assert set(reason.means) == set(reason.next_step) == {"en", "zh"}


def texts_in_code() -> Iterator[tuple[str, str]]:
    for where, node in code():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, where


def reasons_in_code() -> Iterator[tuple[str, str]]:
    """Yield words that have an underscore, and those without in the places where reasons stand."""
    for where, node in code():
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and LOOKS_LIKE_ONE.fullmatch(node.value)
        ):
            yield node.value, where
        for value in places(node):
            if (
                isinstance(value, ast.Constant)
                and isinstance(value.value, str)
                and value.value.isupper()
            ):
                yield value.value, where


def places(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what stands where a reason stands: ``reason=``, ``reason: …``, the first word of a failure or wait."""
    if isinstance(node, ast.keyword) and node.arg == "reason":
        yield node.value
    if isinstance(node, ast.Assign) and any(
        isinstance(t, ast.Name) and t.id == "reason" for t in node.targets
    ):
        yield node.value
    named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
    if isinstance(node, ast.Call) and named in ("Failure", "Waiting") and node.args:
        yield node.args[0]


def code() -> Iterator[tuple[str, ast.AST]]:
    """Yield every node of the syntax of our modules, and where it stands."""
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                yield f"{name}:{getattr(node, 'lineno', 0)}", node
