"""The client's package: what it imports, what comes with it, and what a command loads of it."""

import ast
import asyncio
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest
from hatchling.builders.wheel import WheelBuilder

import bfia_gateway_client
from bfia_gateway_client import Client, Damaged
from bfia_gateway_client.bridge import run_blocking
from gateway.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clients" / "python"


def test_it_needs_httpx_and_pydantic_alone():
    packages = set()
    for file in (PACKAGE / "bfia_gateway_client").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                packages |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                packages.add(str(node.module).partition(".")[0])
    assert packages - set(sys.stdlib_module_names) == {"bfia_gateway_client", "httpx", "pydantic"}


@pytest.mark.parametrize("root", [ROOT, PACKAGE], ids=["the gateway's wheel", "its own wheel"])
def test_both_wheels_hold_the_whole_package_with_its_types(root, tmp_path):
    (wheel,) = WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    names = {
        name
        for name in zipfile.ZipFile(wheel).namelist()
        if name.startswith("bfia_gateway_client/")
    }
    files = {
        file.name
        for file in (PACKAGE / "bfia_gateway_client").glob("*")
        if file.suffix in (".py", ".typed")
    }
    assert names == {f"bfia_gateway_client/{name}" for name in files}
    assert "py.typed" in files


def test_it_has_the_version_of_the_gateway():
    assert bfia_gateway_client.__version__ == VERSION


def test_help_loads_no_library_and_no_command_that_it_does_not_show():
    code = "import sys, typer; from gateway.cli.main import app; typer.main.get_command(app); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "gateway.cli.node" in loaded
    heavy = {"httpx", "pydantic", "asyncio", "yaml", "re2", "bfia_gateway_client.types"}
    assert loaded & {*heavy, "gateway.auth", "gateway.cli.jobs", "gateway.cli.routes"} == set()


def test_a_blocking_call_that_would_wait_for_a_loop_is_an_error():
    with pytest.raises(RuntimeError, match="must not wait"):
        run_blocking(asyncio.sleep(0))


def test_a_download_that_is_not_what_the_node_sent_leaves_nothing(tmp_path):
    def node(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"id\n1\n", headers={"x-checksum-sha256": "00"})

    target = tmp_path / "rows.csv"
    target.write_text("before")
    with Client("http://127.0.0.1:9") as client:
        client._wire._http = httpx.Client(base_url=client.url, transport=httpx.MockTransport(node))
        with pytest.raises(Damaged, match="nothing was kept"):
            client.data.download("bank#rows", target, progress=False)
    assert target.read_text() == "before"
    assert [*tmp_path.iterdir()] == [target]
