"""A script whose interpreter is missing is named before it starts, with the interpreter."""

import contextlib
import io
import uuid
from collections.abc import Iterator

import docker
import pytest

from engines.base import CommandNotFound, Missing
from engines.docker.executables import check_env, check_script
from tests.contracts.engine_acts import WAITS, a_spec, ended
from tests.contracts.harnesses import DockerHarness

HERE = {"/usr/bin/env", "/bin/sh", "/usr/bin/python3"}
PATH = ("/usr/local/bin", "/usr/bin")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"#!/opt/python9\nprint()\n", "no executable /opt/python9"),
        (b"#! /opt/python9 -u\n", "no executable /opt/python9"),
        (b"#!/usr/bin/env python9\n", "no executable python9 on its PATH"),
        (b"#!/usr/bin/env -S A=1 python9 -u\n", "no executable python9 on its PATH"),
        (b"#!/usr/bin/env /opt/python9\n", "no executable /opt/python9 in it"),
        (b"#!/usr/bin/python3\r\nprint()\r\n", "Unix line ends"),
    ],
)
def test_what_a_script_needs_and_has_not_is_named(head: bytes, said: str):
    with pytest.raises(CommandNotFound) as caught:
        check_script("/app/run", head, PATH, HERE.__contains__)
    assert said in str(caught.value) and "/app/run" in str(caught.value)


@pytest.mark.parametrize(
    "head",
    [
        b"#!/bin/sh\n",
        b"#!/usr/bin/env python3\n",
        b"#!/usr/bin/env -S python3 -u\n",
        b"#!/usr/bin/env -u HOME python9\n",
        b"#!\n",
        b"\x7fELF",
        b"",
        b"echo\n",
    ],
)
def test_what_is_there_or_cannot_be_told_is_let_through(head: bytes):
    check_script("/app/run", head, PATH, HERE.__contains__)
    check_script("/app/run", b"#!/opt/python9\n", PATH, lambda path: None)


def test_env_itself_may_be_the_command():
    check_env("/usr/bin/env", ["A=1", "python3"], PATH, HERE.__contains__)
    check_env("/bin/sh", ["python9"], PATH, HERE.__contains__)
    with pytest.raises(CommandNotFound, match="python9 on its PATH"):
        check_env("/usr/bin/env", ["A=1", "python9"], PATH, HERE.__contains__)


@pytest.fixture(scope="module")
def harness(network: str) -> Iterator[DockerHarness]:
    with contextlib.closing(DockerHarness(network)) as harness:
        yield harness


@pytest.mark.docker
def test_an_images_scripts_are_looked_into_before_they_start(harness: DockerHarness):
    name = f"bfia-contract-{uuid.uuid4().hex[:12]}"
    text = (
        f"FROM {harness.image}\n"
        "RUN mkdir /app && cd /app && printf '#!/usr/bin/env python9\\n' > gone"
        " && printf '#!/bin/sh\\nexit 5\\n' > fine && printf '#!/bin/sh\\r\\n' > windows"
        " && chmod 755 * && ln -s /app/gone link\n"
    )
    client = docker.from_env()
    client.images.build(fileobj=io.BytesIO(text.encode()), tag=name, rm=True)
    engine = harness.engine()
    try:
        for command, said in (
            (("/app/gone",), "no executable python9"),
            (("/app/link",), "no executable python9"),
            (("/app/windows",), "Unix line ends"),
            (("env", "python9"), "no executable python9"),
        ):
            spec = a_spec(harness, WAITS, image=name, command=command)
            with pytest.raises(CommandNotFound, match=said):
                engine.launch(spec)
            assert engine.probe(spec.name) == Missing()
        spec = a_spec(harness, WAITS, image=name, command=("/app/fine",))
        engine.launch(spec)
        assert ended(engine, spec.name).code == 5
        engine.remove(spec.name)
    finally:
        client.images.remove(name, force=True)
        client.close()
