"""What an idle node loads: libraries that it does not use cost memory and a part of its start."""

import sys

from tests.e2e.nodes import Federation, process_engine

# Serves the node of its arguments by the installed command's entry point, and writes the names of
# the loaded modules into a file at the end.
SERVE_AND_LIST_MODULES = """
import atexit, pathlib, sys
modules_file, _interpreter, _m, _module, *arguments = sys.argv[1:]

@atexit.register
def write_modules():
    names = [name for name, module in sys.modules.items() if module is not None]
    pathlib.Path(modules_file).write_text("\\n".join(names))

sys.argv = ["bfia-gateway", *arguments]
from gateway.cli import begin
begin()
"""

# Packages and modules of a node with other engines or storages than the smallest one has, or of
# commands and requests that an idle node does not get.
UNUSED = {
    "authlib",
    "botocore",
    "docker",
    "engines.docker",
    "engines.kubernetes",
    "engines.swarm",
    "gateway.conformance",
    "gateway.data.remote_storage",
    "gateway.diagnostics",
    "grpc",
    "httpx._main",
    "jsonschema",
    "lightkube",
    "opendal",
    "pkcs11",
    "pyarrow",
    "pydantic.v1",
    "pygments",
    "pymysql",
    "re2",
    "requests",
    "rich",
    "ruamel",
    "urllib3",
}


def test_idle_node_loads_nothing_that_it_does_not_use(tmp_path):
    modules_file = tmp_path / "modules"
    federation = Federation(tmp_path / "nodes", ["A"], process_engine())
    federation["A"].prefix = [sys.executable, "-c", SERVE_AND_LIST_MODULES, str(modules_file)]
    with federation:
        assert federation["A"].ask("GET", "/health/live").status_code == 200
    loaded = set(modules_file.read_text().split())
    assert "gateway.bootstrap.node" in loaded
    assert loaded & UNUSED == set()
