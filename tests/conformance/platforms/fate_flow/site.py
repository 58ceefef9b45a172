"""A site with FATE-Flow 2.2.0 that serves BFIA: the published adapter, completed for the tests."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.fate_site import FateSite

_HERE = Path(__file__).parent
_ADAPTER = "fate_flow/adapter/bfia"
# Modules that the wheel lacks; each gets all names of `completion`.
_LACKING_MODULES = (
    "utils/api_utils",
    "utils/entity/code",
    "utils/entity/status",
    "utils/spec/artifact",
    "utils/spec/job",
    "utils/spec/task",
)
_CALLBACK = 'CALLBACK_ADDRESS = "http://127.0.0.1:9380"'  # as published


class BfiaSite(FateSite):
    """FATE-Flow's server with its BFIA adapter.

    Its home must be called ``fate_flow``: the server finds the adapter below the first folder of
    this name.
    """

    def __init__(
        self,
        party: str,
        home: Path,
        partners: Mapping[str, int],
        utils: Path | None = None,
    ) -> None:
        """``partners``: the ports of partners at this machine, by their node ids.

        ``utils``: a folder with the lacking modules from FATE-Flow's source; None takes ours.
        """
        super().__init__(party, home, proxy_port=0)
        self._partners = partners
        self._utils = utils

    def install(self, grpc_port: int) -> None:
        """Lay out the package, and add the missing modules."""
        super().install(grpc_port)
        python = self.home / "python"
        shutil.copy(_HERE / "docker_stand_in.py", python / "docker.py")
        if self._utils is None:
            _complete(python)
        else:
            shutil.copytree(self._utils, python / _ADAPTER / "utils")
        self._configure_adapter(python / _ADAPTER)

    def configure(self, config: dict[str, Any], grpc_port: int) -> None:
        """Configure a site without FATE's own partners and signatures."""
        super().configure(config, grpc_port)
        config["default_engines"]["federation"] = "standalone"
        config["authentication"]["site"] = False

    def _configure_adapter(self, adapter: Path) -> None:
        """Set the ports of the partners, and the site's own port for containers."""
        ports = {self.party: self.port, **self._partners}
        routes = {node: {"host": "127.0.0.1", "port": port} for node, port in ports.items()}
        conf = adapter / "conf"
        conf.mkdir()
        (conf / "route_table.yaml").write_text(yaml.safe_dump(routes))
        settings = adapter / "settings.py"
        published = settings.read_text()
        assert _CALLBACK in published
        address = _CALLBACK.replace("9380", str(self.port))
        settings.write_text(published.replace(_CALLBACK, address))

    def register_probe(self, description: Mapping[str, Any]) -> None:
        """Register a component whose containers succeed."""
        body = {
            "name": description["provider"],
            "version": description["version"],
            "device": "docker",
            "protocol": "bfia",
            "metadata": {"base_url": "", "image": "stand-in"},
            "components_description": {description["componentName"]: dict(description)},
        }
        response = self.post("/v2/provider/register", body)
        assert response["code"] == 0, response


def _complete(python: Path) -> None:
    """Add our replacement of the modules that the wheel lacks."""
    shutil.copy(_HERE / "completion.py", python / "bfia_completion.py")
    for name in _LACKING_MODULES:
        file = python / _ADAPTER / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("from bfia_completion import *\n")
