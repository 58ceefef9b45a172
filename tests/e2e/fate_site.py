"""A site with FATE-Flow 2.2 as published: its server in an environment of its own."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from gateway.config.schema.partners import FateApp
from tests.e2e.nodes import ROOT, free_ports, wait_for
from tests.plain import NO_TLS

HOME = ROOT / ".venv-fate-flow"
PYTHON = HOME / "bin" / "python"
ADMIN = {"Appid": "admin"}

# FATE-Flow's own check of signatures, one request after the other. Each check reloads all
# permissions in place, so one of two concurrent ones may be refused (5004, or "dictionary changed
# size during iteration").
HOOK = """\
import threading

from fate_flow.hook import HookManager
from fate_flow.hook.flow import site_authentication

published, one_at_a_time = HookManager.SITE_AUTHENTICATION[0], threading.Lock()


def authentication(parm):
    with one_at_a_time:
        return published(parm)


HookManager.SITE_AUTHENTICATION[0] = authentication
"""


@dataclass
class FateSite:
    """FATE-Flow's server with a database and logs of its own below ``home``. Use as a context."""

    party: str
    home: Path
    # the proxy by which it reaches its partners
    proxy_port: int
    process: "subprocess.Popen[bytes] | None" = None
    port: int = 0

    def __enter__(self) -> "FateSite":
        self.port, grpc_port = free_ports(2)
        self.install(grpc_port)
        environment = os.environ | {
            "PYTHONPATH": str(self.home / "python"),
            "PYTHONWARNINGS": "ignore",
            "NO_PROXY": "*",
        }
        command = [str(PYTHON), str(self.home / "python/fate_flow/fate_flow_server.py")]
        with (self.home / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=environment,
            )
        try:
            wait_for(self._is_up, 800, 0.1, "FATE-Flow is up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.kill()  # it cannot be asked to end
        self.process.wait()

    def install(self, grpc_port: int) -> None:
        """Lay out the package as FATE deploys it, and configure it as a site's people do."""
        packages = next((HOME / "lib").glob("python3*/site-packages"))
        for name in ("fate_flow", "ofx"):
            shutil.copytree(
                packages / name,
                self.home / "python" / name,
            )
        shutil.move(
            self.home / "python/fate_flow/conf",
            self.home / "conf",
        )
        shutil.move(
            self.home / "python/fate_flow/fateflow.env",
            self.home / "fateflow.env",
        )
        (self.home / "python/one_at_a_time.py").write_text(HOOK)
        file = self.home / "conf/service_conf.yaml"
        config = yaml.safe_load(file.read_text())
        self.configure(config, grpc_port)
        file.write_text(yaml.safe_dump(config))

    def configure(
        self,
        config: dict[str, Any],
        grpc_port: int,
    ) -> None:
        """Set what a site's people set in the published configuration."""
        config["party_id"] = self.party
        config["fateflow"] |= {
            "http_port": self.port,
            "grpc_port": grpc_port,
            "proxy_name": "nginx",
        }
        # With "standalone" it would call only itself.
        config["default_engines"]["federation"] = "osx"
        config["authentication"]["site"] = True
        config["hook_module"]["site_authentication"] = "one_at_a_time"
        config["federation"]["nginx"] = {
            "host": "127.0.0.1",
            "http_port": self.proxy_port,
        }

    def _is_up(self) -> bool:
        assert self.process is not None, "the server was not started"
        assert self.process.poll() is None, self.log()
        try:
            return bool(self.get("/v2/provider/query", name="fate_flow")["code"] == 0)
        except httpx.TransportError:
            return False

    def get(
        self,
        path: str,
        **params: Any,
    ) -> dict[str, Any]:
        """Return the JSON of a path; ``params`` are its query."""
        return self._request(
            "GET",
            path,
            params=params,
        )

    def post(
        self,
        path: str,
        body: Any,
        **headers: str,
    ) -> dict[str, Any]:
        """Post a JSON body; return the JSON of the response."""
        return self._request(
            "POST",
            path,
            json=body,
            headers=headers,
        )

    def _request(
        self,
        method: str,
        path: str,
        **kwargs: Any,
    ) -> dict[str, Any]:
        response = httpx.request(
            method,
            f"http://127.0.0.1:{self.port}{path}",
            timeout=120,
            trust_env=False,
            verify=NO_TLS,
            **kwargs,
        )
        return dict(response.json())

    def register(
        self,
        name: str,
        version: str,
        program: Path,
        *components: str,
    ) -> None:
        """Register a program of this machine as a provider."""
        body = {
            "name": name,
            "version": version,
            "device": "local",
            "metadata": {
                "path": str(program.parent),
                "venv": str(program),
            },
            "components_description": {component: {} for component in components},
        }
        response = self.post("/v2/provider/register", body)
        assert response["code"] == 0, response

    def admit(
        self,
        party: str,
        partner_app: FateApp,
    ) -> FateApp:
        """Make an application that a party signs with, and enter the party's own.

        Returns the application that the site made.
        """
        app = self.post("/v2/app/site/create", {"party_id": party}, **ADMIN)["data"]
        grant = {
            "app_id": app["app_id"],
            "role": "site",
        }
        partner = {
            "party_id": party,
            "app_id": partner_app.app_id,
            "app_token": partner_app.app_token,
        }
        for path, body in (
            ("/v2/permission/grant", grant),
            ("/v2/app/partner/create", partner),
        ):
            response = self.post(path, body, **ADMIN)
            assert response["code"] == 0, response
        return FateApp(
            app_id=app["app_id"],
            app_token=app["app_token"],
        )

    def job(
        self,
        job_id: str,
    ) -> dict[str, Any]:
        """Return a job as FATE-Flow shows it to its people; empty before it has the job."""
        rows = self.get("/v2/job/query", job_id=job_id).get("data") or [{}]
        return dict(rows[0])

    def log(self) -> str:
        """Return the ends of the server's logs."""
        ends = []
        for file in (self.home / "server.log", *sorted(self.home.glob("logs/**/*ERROR.log"))):
            if file.exists():
                ends.append(f"--- {file}\n{file.read_text(errors='replace')[-3000:]}")
        return "\n".join(ends)
