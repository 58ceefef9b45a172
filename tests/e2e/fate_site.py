"""A site with FATE-Flow 2.2 as published: its server in an environment of its own."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from gateway.config.schema import FateApp
from tests.e2e.nodes import ROOT, free_ports, wait_for
from tests.plain import NO_TLS

HOME = ROOT / ".venv-fate-flow"
PYTHON = HOME / "bin" / "python"
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
"""FATE-Flow's own check of signatures, one request after the other: each reloads the permissions of all in place,
so of two at once one may be refused (5004, or "dictionary changed size during iteration")"""


@dataclass
class FateSite:
    """FATE-Flow's server with a database and logs of its own below ``home``. Use as a context."""

    party: str
    home: Path
    proxy_port: int
    process: "subprocess.Popen[bytes] | None" = None
    port: int = 0

    def __enter__(self) -> "FateSite":
        self.port, grpc = free_ports(2)
        self._installed(grpc)
        env = {
            **os.environ,
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
                env=env,
            )
        try:
            wait_for(self._up, 60, 0.1, "FATE-Flow is up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.kill()  # it has no way to end
        self.process.wait()

    def _installed(self, grpc: int) -> None:
        """Lay out the package as FATE deploys it, and set what a site's people set."""
        packages = next((HOME / "lib").glob("python3*/site-packages"))
        for name in ("fate_flow", "ofx"):
            shutil.copytree(packages / name, self.home / "python" / name)
        shutil.move(self.home / "python/fate_flow/conf", self.home / "conf")
        shutil.move(self.home / "python/fate_flow/fateflow.env", self.home / "fateflow.env")
        file = self.home / "conf/service_conf.yaml"
        conf = yaml.safe_load(file.read_text())
        conf["party_id"] = self.party
        conf["fateflow"] |= {
            "http_port": self.port,
            "grpc_port": grpc,
            "proxy_name": "nginx",
        }
        conf["default_engines"]["federation"] = (
            "osx"  # with ``standalone`` it would call only itself
        )
        conf["authentication"]["site"] = True
        conf["hook_module"]["site_authentication"] = "one_at_a_time"
        (self.home / "python/one_at_a_time.py").write_text(HOOK)
        conf["federation"]["nginx"] = {"host": "127.0.0.1", "http_port": self.proxy_port}
        file.write_text(yaml.safe_dump(conf))

    def _up(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()
        try:
            return bool(self.get("/v2/provider/query", name="fate_flow")["code"] == 0)
        except httpx.TransportError:
            return False

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}{path}"
        return dict(
            httpx.get(
                url,
                params=params,
                timeout=120,
                trust_env=False,
                verify=NO_TLS,
            ).json()
        )

    def post(
        self,
        path: str,
        body: Any,
        **headers: str,
    ) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}{path}"
        return dict(
            httpx.post(
                url,
                json=body,
                headers=headers,
                timeout=120,
                trust_env=False,
                verify=NO_TLS,
            ).json()
        )

    def register(
        self,
        name: str,
        version: str,
        program: Path,
        *components: str,
    ) -> None:
        """Register a program of this machine as a provider."""
        place = {"path": str(program.parent), "venv": str(program)}
        described: dict[str, Any] = {component: {} for component in components}
        body = {
            "name": name,
            "version": version,
            "device": "local",
            "metadata": place,
        }
        answer = self.post("/v2/provider/register", body | {"components_description": described})
        assert answer["code"] == 0, answer

    def admit(self, party: str, ours: FateApp) -> FateApp:
        """Give a party an application to sign with, and take the one that it gave; return the site's."""
        admin = {"Appid": "admin"}
        made = self.post("/v2/app/site/create", {"party_id": party}, **admin)["data"]
        for path, body in (
            ("/v2/permission/grant", {"app_id": made["app_id"], "role": "site"}),
            (
                "/v2/app/partner/create",
                {
                    "party_id": party,
                    "app_id": ours.app_id,
                    "app_token": ours.app_token,
                },
            ),
        ):
            answer = self.post(path, body, **admin)
            assert answer["code"] == 0, answer
        return FateApp(app_id=made["app_id"], app_token=made["app_token"])

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the job as FATE-Flow shows it to its people; empty while it has none."""
        rows = self.get("/v2/job/query", job_id=job_id).get("data") or [{}]
        return dict(rows[0])

    def log(self) -> str:
        logs = [self.home / "server.log", *sorted(self.home.glob("logs/**/*ERROR.log"))]
        return "\n".join(
            f"--- {p}\n{p.read_text(errors='replace')[-3000:]}" for p in logs if p.exists()
        )
