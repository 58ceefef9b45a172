"""What an idle node loads: libraries that it does not use cost memory and a part of its start."""

import os
import signal
import sys

from tests.e2e.nodes import Federation, process_engine, wait_for

# Serves the node of its arguments by the installed command's entry point. On SIGUSR2 it writes the
# names of the loaded modules into a file.
SERVE_AND_LIST_MODULES = """
import pathlib, signal, sys
modules_file, _interpreter, _m, _module, *arguments = sys.argv[1:]

def write_modules(*_):
    names = [name for name, module in sys.modules.items() if module is not None]
    part = pathlib.Path(modules_file + ".part")
    part.write_text("\\n".join(names))
    part.rename(modules_file)

signal.signal(signal.SIGUSR2, write_modules)
sys.argv = ["bfia-gateway", *arguments]
from gateway.cli import begin
begin()
"""
# Requests of the programs that watch a node, and of its platform.
WATCHING = ("/health/live", "/health/ready", "/metrics", "/v1/platform/schedule/job/query_job_list")

# Packages and modules of a node with other engines or storages than the smallest one has, or of
# commands and requests that an idle node does not get.
UNUSED = {
    "authlib",
    "botocore",
    "click",
    "docker",
    "engines.docker",
    "engines.kubernetes",
    "engines.swarm",
    "gateway.admin.jobs",
    "gateway.bootstrap.operator_routers",
    "gateway.cli.main",
    "gateway.conformance",
    "gateway.console",
    "gateway.data.remote_storage",
    "gateway.diagnostics",
    "google.protobuf",
    "greenlet",
    "grpc",
    "h2",
    "httpcore",
    "httpx._main",
    "jsonschema",
    "lightkube",
    "opendal",
    "pkcs11",
    "pyarrow",
    "pydantic.v1",
    "pygments",
    "psycopg",
    "pymysql",
    "re2",
    "requests",
    "rich",
    "ruamel",
    "sqlalchemy.dialects.mysql",
    "sqlalchemy.dialects.postgresql",
    "typer",
    "urllib3",
    "uvicorn.main",
    "uvicorn.supervisors",
    "websockets",
}


def test_idle_node_loads_nothing_that_it_does_not_use(tmp_path):
    modules_file = tmp_path / "modules"
    federation = Federation(tmp_path / "nodes", ["A"], process_engine())
    node = federation["A"]
    node.prefix = [sys.executable, "-c", SERVE_AND_LIST_MODULES, str(modules_file)]
    with federation:
        for path in WATCHING:
            assert node.ask("GET", path).status_code == 200
        os.kill(node.addresses["pid"], signal.SIGUSR2)
        wait_for(modules_file.exists, about="the node has written its modules")
        assert node.ask("GET", "/api/v1/jobs").status_code == 200  # loads the rest
    loaded = set(modules_file.read_text().split())
    assert "gateway.bootstrap.node" in loaded
    assert loaded & UNUSED == set()
