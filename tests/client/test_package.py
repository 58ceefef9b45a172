"""The client's package: its imports, its wheels, and the modules that a command loads."""

import ast
import asyncio
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import bfia_gateway_client
from bfia_gateway_client import AsyncClient, Client, Damaged
from bfia_gateway_client.bridge import run_blocking
from gateway.version import VERSION
from tests.inprocess import listening

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clients" / "python"


def test_the_client_needs_httpx_and_pydantic_alone():
    packages = set()
    for file in (PACKAGE / "bfia_gateway_client").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                packages |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                packages.add(str(node.module).partition(".")[0])
    assert packages - set(sys.stdlib_module_names) == {"bfia_gateway_client", "httpx", "pydantic"}


@pytest.mark.parametrize(
    "root",
    [ROOT, PACKAGE],
    ids=["the gateway's wheel", "its own wheel"],
)
def test_both_wheels_hold_the_whole_package_with_its_types(root, tmp_path):
    (wheel,) = WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    packed = zipfile.ZipFile(wheel).namelist()
    names = {name for name in packed if name.startswith("bfia_gateway_client/")}
    sources = {file.name for file in (PACKAGE / "bfia_gateway_client").glob("*.py")}
    files = sources | {"py.typed"}
    assert names == {f"bfia_gateway_client/{name}" for name in files}


def test_the_wheel_holds_every_page_of_the_documentation(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(
        directory=str(tmp_path),
        versions=["standard"],
    )
    packed = zipfile.ZipFile(wheel).namelist()
    folder = ROOT / "docs"
    for page in folder.rglob("*.md"):
        name = page.relative_to(folder)
        assert f"gateway/documents/{name}" in packed


def test_the_client_has_the_version_of_the_gateway():
    assert bfia_gateway_client.__version__ == VERSION


def test_the_help_loads_only_what_it_shows():
    code = (
        "import sys, typer; from gateway.cli.main import app; "
        "typer.main.get_command(app); print(*sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(process.stdout.split())
    assert "gateway.cli.node" in loaded
    libraries = {"httpx", "pydantic", "asyncio", "yaml", "re2"}
    modules = {
        "bfia_gateway_client.types",
        "gateway.auth",
        "gateway.cli.jobs",
        "gateway.cli.routes",
    }
    assert loaded & (libraries | modules) == set()


def test_a_blocking_call_must_not_wait_for_an_event_loop():
    with pytest.raises(RuntimeError, match="must not wait"):
        run_blocking(asyncio.sleep(0))


def test_a_damaged_download_is_refused_and_leaves_the_file_as_it_was(tmp_path):
    async def rows(_):
        return Response(
            b"id\n1\n",
            headers={"x-checksum-sha256": "00"},
        )

    app = Starlette(routes=[Route("/{path:path}", rows)])
    target = tmp_path / "rows.csv"
    target.write_text("before")
    with (
        listening(app) as port,
        Client(f"http://127.0.0.1:{port}") as client,
        pytest.raises(
            Damaged,
            match="nothing was kept",
        ),
    ):
        client.data.download(
            "bank#rows",
            target,
            progress=False,
        )
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_downloads_to_one_target_do_not_meet_in_another_file(tmp_path):
    both_began = asyncio.Barrier(2)

    async def halves():
        yield b"id\n"
        await both_began.wait()
        yield b"1\n"

    async def rows(_):
        checksum = hashlib.sha256(b"id\n1\n").hexdigest()
        return StreamingResponse(halves(), headers={"x-checksum-sha256": checksum})

    app = Starlette(routes=[Route("/{path:path}", rows)])
    target = tmp_path / "rows.csv"
    own_file = tmp_path / "rows.csv.part"
    own_file.write_text("the user's")

    async def download_twice(url):
        async with AsyncClient(url) as client:
            await asyncio.gather(
                client.data.download("bank#rows", target, progress=False),
                client.data.download("bank#rows", target, progress=False),
            )

    with listening(app) as port:
        asyncio.run(download_twice(f"http://127.0.0.1:{port}"))

    assert target.read_text() == "id\n1\n"
    assert own_file.read_text() == "the user's"
    assert set(tmp_path.iterdir()) == {target, own_file}
