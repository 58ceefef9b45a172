"""The first hour as a vendor, as a platform, as an admin: what the three pages tell to type, typed.

Each page's commands run in its order in one shell, in an empty folder. What differs from the page is said here:
the ports are free ones, the partner's address is that of a real node beside, and a node that is left running goes
to the background.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.nodes import REFERENCE_IMAGE, ROOT, Federation, example, process_engine

ME, PARTNER = "JG0100001100000010", "JG0100002200000020"
PARTNERS_ADDRESS = "10.0.0.7:7380"
"""as the pages name it"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("first_hour")]


def told(page: str) -> str:
    """Return a page's commands."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return "".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("name", ["vendor", "platform", "admin"])
def test_both_languages_tell_the_same(name: str):
    english, chinese = (
        [re.sub(" +# .*", "", c) for c in told(p).splitlines()] for p in (f"{name}.md", f"{name}.zh-CN.md")
    )
    assert english == chinese != []


def typed(page: str, folder: Path, names: dict[str, str]) -> str:
    """Run a page's commands in the folder; return what they printed. ``names``: what to type instead of what."""
    commands = told(page)
    for name, real in names.items():
        commands = commands.replace(name, real)
    serving = r"^(bfia-gateway serve .*)$"
    background = (
        "\\1 --ready-file up.json > serve.log 2>&1 &\nuntil [ -e up.json ]; do kill -0 $!; sleep 0.1; done"
    )
    commands = re.sub(serving, background, commands, flags=re.MULTILINE)
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    (bin_ / "bfia-gateway").write_text(f'#!/bin/sh\nexec {sys.executable} -m gateway.cli.main "$@"\n')
    (bin_ / "bfia-gateway").chmod(0o755)
    for part in ("examples", ".venv-vendor"):
        if not (folder / part).exists():
            (folder / part).symlink_to(ROOT / part)
    env = os.environ | {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "no_proxy": "*",
        "COLUMNS": "200",
    }
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; set -v\n{commands}"],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A partner's node with the vendor's image and its own table, and the place of our node, which is not up."""
    federation = Federation(tmp_path_factory.mktemp("hour"), [ME, PARTNER], process_engine(REFERENCE_IMAGE))
    partner = federation[PARTNER]
    try:
        partner.start()
        partner.register(example("reference_vendor/register_reference.json"))
        partner.upload(ROOT / "examples/data/breast_hetero_host.csv", "partner", "customers")
        yield federation
    finally:
        federation.__exit__(True)


def test_first_hour_of_an_admin(pair: Federation, tmp_path: Path):
    own = pair[ME].settings["listen"]
    ports = {"7380": own["peer"]["bind"], "7381": own["container"]["bind"], "7382": own["operator"]["bind"]}
    names = {PARTNERS_ADDRESS: pair[PARTNER].peer.removeprefix("http://"), "127.0.0.1:7382": ports["7382"]}
    # the addresses that `init` writes are others here, as an admin would change them
    moved = "; ".join(f's/bind: "[0-9.]*:{port}"/bind: "{bind}"/' for port, bind in ports.items())
    create = "bfia-gateway token create"
    said = typed("admin.md", tmp_path, names | {create: f"sed -i '{moved}' node.yml; {create}"})
    assert "data partner, contract 17" in said


def test_first_hour_of_a_vendor_and_then_of_a_platform(pair: Federation):
    me = pair[ME]
    me.start()
    names = {"127.0.0.1:7382": me.operator.removeprefix("http://")}
    typed("vendor.md", me.home, names)
    assert "SUCCEEDED" in typed("platform.md", me.home, names)
