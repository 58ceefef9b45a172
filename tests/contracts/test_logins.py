"""Docker's configuration as the gateway's user has it, with what is wrong there."""

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
from engines.messages import pull_error
from engines.registry.logins import Login, login_for
from engines.registry.names import PullRules

SHOP = "registry.example"
ENTRY = {"auth": base64.b64encode(b"reader:open sesame").decode()}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the path of the configuration, beside which helpers are found."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "config.json"


def helper(folder: Path, text: str) -> None:
    program = folder / "docker-credential-shop"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


NOT_INSTALLED = r"the credential helper docker-credential-no-such, which .*/config\.json names, is not installed"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"credsStore": "no-such"}, NOT_INSTALLED),
        ({"credHelpers": {SHOP: "no-such"}}, NOT_INSTALLED),
        ({"auths": {SHOP: {}}, "credsStore": "no-such"}, NOT_INSTALLED),
        ({"credHelpers": {"harbor.example": "no-such"}}, ""),
        ({"auths": {SHOP: ENTRY}, "credsStore": "no-such"}, ""),
        ({"auths": {"other.example": {"auth": "?"}, SHOP: ENTRY}}, ""),
        (
            {"auths": {SHOP: {"auth": "?"}}},
            r"the entry registry\.example of auths in .*/config\.json is not as",
        ),
        (
            {"auths": {SHOP: "text"}},
            r"the entry registry\.example of auths in .*/config\.json is not as",
        ),
        ({"auths": []}, ""),
        ({"auths": ["text"]}, r"auths in .*/config\.json is not a JSON object"),
        ({"credHelpers": ["text"]}, r"credHelpers in .*/config\.json is not a JSON object"),
        (
            {"credsStore": ["text"]},
            "names a credential helper for registry.example that is not text",
        ),
        ([], r".*/config\.json holds no JSON object"),
        ("{", r".*/config\.json is not valid JSON \(.*\)"),
        ("\ufeff\x00", r".*/config\.json is not valid JSON \(.*\)"),
        (None, r".*/config\.json cannot be read \(Is a directory\)"),
    ],
)
def test_what_is_wrong_with_a_login_is_named(file, content, problem):
    if content is None:
        file.mkdir()
    else:
        file.write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
        )
    login = login_for(SHOP)
    assert bool(login.problem) is bool(problem)
    if problem:
        assert refused(login).endswith(f"; it was asked without a login, as {login.problem}")
        assert re.search(problem, login.problem)
    elif "auths" in str(content) and content != {"auths": []}:
        assert login.password == ("reader", "open sesame")


def refused(login: Login) -> str:
    error = pull_error("image", "manifest unknown", login.explanation)
    assert isinstance(error, ImageNotFound)  # by the registry's own words
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
def test_a_helper_is_asked_and_its_faults_are_named(file, text, password, problem):
    file.write_text(json.dumps({"credsStore": "shop"}))
    helper(file.parent, text)
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
def test_an_image_without_login_is_asked_for_and_the_helper_named(file, shop):
    file.write_text(json.dumps({"credsStore": "no-such"}))
    options = DockerOptions(pull=PullRules(frozenset({shop}), 60.0))
    with contextlib.closing(ContainerdEngine("alpha", "none", options)) as engine:
        for ask in (
            lambda: engine.ensure_image(f"{shop}/a:1", print),
            lambda: engine.registry_digest(f"{shop}/a:1", 60),
        ):
            with pytest.raises(ImageNotFound, match=f"manifest unknown.*{NOT_INSTALLED}"):
                ask()


@pytest.mark.docker
def test_proxies_of_dockers_configuration_are_kept(file):
    proxies = {"default": {"httpProxy": "http://proxy.example:3128"}}
    file.write_text(json.dumps({"auths": {}, "proxies": proxies}))
    with contextlib.closing(Client(version="auto")) as client:
        assert client._proxy_configs.http == "http://proxy.example:3128"
