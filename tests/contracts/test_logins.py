"""Logins from the configuration of Docker of the gateway's user, and the faults of that file."""

import base64
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.base import ImageNotFound
from engines.docker import ContainerdEngine, DockerOptions
from engines.docker.client import Client
from engines.error_texts import pull_error
from engines.registry.logins import Login, login_for
from engines.registry.names import PullRules

SHOP = "registry.example"
ENTRY = {"auth": base64.b64encode(b"reader:open sesame").decode()}


@pytest.fixture
def file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """Return the path of the configuration; credential helpers are found in its folder."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv(
        "PATH",
        str(tmp_path),
        prepend=":",
    )
    return tmp_path / "config.json"


def install_helper(folder: Path, text: str) -> None:
    """Install the credential helper ``shop`` with this shell text."""
    program = folder / "docker-credential-shop"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


NOT_INSTALLED = (
    r"the credential helper docker-credential-no-such, which .*/config\.json names, "
    "is not installed"
)
BAD_ENTRY = r"the entry registry\.example of auths in .*/config\.json is not as"
INVALID_JSON = r".*/config\.json is not valid JSON \(.*\)"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"credsStore": "no-such"}, NOT_INSTALLED),
        ({"credHelpers": {SHOP: "no-such"}}, NOT_INSTALLED),
        (
            {
                "auths": {SHOP: {}},
                "credsStore": "no-such",
            },
            NOT_INSTALLED,
        ),
        ({"auths": {SHOP: {"auth": "?"}}}, BAD_ENTRY),
        ({"auths": {SHOP: "text"}}, BAD_ENTRY),
        ({"auths": ["text"]}, r"auths in .*/config\.json is not a JSON object"),
        ({"credHelpers": ["text"]}, r"credHelpers in .*/config\.json is not a JSON object"),
        (
            {"credsStore": ["text"]},
            "names a credential helper for registry.example that is not text",
        ),
        ([], r".*/config\.json holds no JSON object"),
    ],
)
def test_a_fault_of_the_content_is_named(file, content, problem):
    file.write_text(
        json.dumps(content),
        encoding="utf-8",
    )

    assert_problem(login_for(SHOP), problem)


@pytest.mark.parametrize("text", ["{", "\ufeff\x00"])
def test_a_file_that_is_not_json_is_named(file, text):
    file.write_text(text, encoding="utf-8")

    assert_problem(login_for(SHOP), INVALID_JSON)


def test_a_file_that_cannot_be_read_is_named(file):
    file.mkdir()

    assert_problem(login_for(SHOP), r".*/config\.json cannot be read \(Is a directory\)")


def assert_problem(login: Login, problem: str) -> None:
    """Check the problem, and that a refused pull explains it."""
    assert re.search(problem, login.problem)
    assert refusal(login).endswith(f"; it was asked without a login, as {login.problem}")


@pytest.mark.parametrize(
    "content",
    [
        {
            "auths": {SHOP: ENTRY},
            "credsStore": "no-such",
        },
        {"auths": {"other.example": {"auth": "?"}, SHOP: ENTRY}},
    ],
)
def test_the_entry_of_a_registry_is_enough(file, content):
    file.write_text(
        json.dumps(content),
        encoding="utf-8",
    )

    login = login_for(SHOP)

    assert login.problem == ""
    assert login.password == ("reader", "open sesame")


@pytest.mark.parametrize(
    "content",
    [
        {"credHelpers": {"harbor.example": "no-such"}},
        {"auths": []},
    ],
)
def test_faults_that_do_not_concern_the_registry_are_ignored(file, content):
    file.write_text(
        json.dumps(content),
        encoding="utf-8",
    )

    assert login_for(SHOP).problem == ""


def refusal(login: Login) -> str:
    """Return the error text of a pull that was refused with this login."""
    error = pull_error("image", "manifest unknown", login.explanation)
    assert isinstance(error, ImageNotFound)  # the class comes from the registry's own words
    return error.what


@pytest.mark.parametrize(
    ("text", "password", "problem"),
    [
        ('read shop; echo "{\\"Username\\": \\"$shop\\", \\"Secret\\": \\"s\\"}"', (SHOP, "s"), ""),
        ('echo "{\\"Username\\": \\"<token>\\", \\"Secret\\": \\"s\\"}"', None, ""),
        ("echo credentials not found in native keychain; exit 1", None, ""),
        ("echo no session >&2; exit 1", None, r"names, fails \(no session\)"),
        ("exit 3", None, r"names, fails \(exit code 3\)"),
        ("echo hello", None, "names, gives no login in the form"),
        ("echo []", None, "names, gives no login in the form"),
    ],
)
def test_a_helper_gives_the_login_and_its_faults_are_named(file, text, password, problem):
    file.write_text(json.dumps({"credsStore": "shop"}))
    install_helper(file.parent, text)

    login = login_for(SHOP)

    assert login.password == password
    assert bool(login.problem) is bool(problem)
    assert re.search(problem, login.problem)


def test_a_helper_that_cannot_be_run_is_named(file):
    file.write_text(json.dumps({"credsStore": "shop"}))
    program = file.parent / "docker-credential-shop"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    assert re.search(r"names, cannot be run \(No such file or directory\)", login_for(SHOP).problem)


@pytest.mark.docker
@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"auths": {"a": "b"}}', '{"auths": {"a": {"auth": "?"}}}', '{"proxies": 1}'],
)
def test_an_engine_answers_whatever_dockers_configuration_holds(file, content):
    file.write_text(content)
    with contextlib.closing(ContainerdEngine("alpha", "none", DockerOptions())) as engine:
        engine.check()


@pytest.mark.docker
@pytest.mark.registry
def test_a_pull_without_login_names_the_missing_helper(file, shop):
    file.write_text(json.dumps({"credsStore": "no-such"}))
    image = f"{shop}/a:1"
    options = DockerOptions(pull=PullRules(frozenset({shop}), 60.0))
    with contextlib.closing(ContainerdEngine("alpha", "none", options)) as engine:
        with pytest.raises(ImageNotFound, match=f"manifest unknown.*{NOT_INSTALLED}"):
            engine.ensure_image(image, print)
        with pytest.raises(ImageNotFound, match=f"manifest unknown.*{NOT_INSTALLED}"):
            engine.registry_digest(image, 60)


@pytest.mark.docker
def test_proxies_of_dockers_configuration_are_kept(file):
    proxies = {"default": {"httpProxy": "http://proxy.example:3128"}}
    file.write_text(json.dumps({"auths": {}, "proxies": proxies}))
    with contextlib.closing(Client(version="auto")) as client:
        assert client._proxy_configs.http == "http://proxy.example:3128"
