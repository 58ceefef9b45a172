"""Rules of the packet filter of the daemon's host, for a gateway that runs in a container there."""

import json
from collections.abc import Sequence
from typing import Any

from docker import APIClient
from docker.errors import APIError, ImageNotFound
from docker.types import Mount

from engines.base import EngineError
from engines.docker.client import Connection, remove, translated
from engines.firewall_at_host import CHECK, CLOSE, HOST_ROOT

# The program in the gateway's image
_PROGRAM = ("python3", "-m", "engines.firewall_at_host")
# Binds packets to rules (NET_ADMIN, NET_RAW), and enters the host's root folder (SYS_CHROOT).
_CAPABILITIES = ("NET_ADMIN", "NET_RAW", "SYS_CHROOT")


class HostRules:
    """Makes and checks the rules of one bridge, each time in a container that lives a second.

    The container has the host's network and, read-only, its root folder. That is less than the
    Docker socket gives, which the gateway has anyway.
    """

    def __init__(self, client: Connection, image: str) -> None:
        """``image``: the gateway's own, which has the program."""
        self._client = client
        self._image = image

    def close(
        self,
        bridge: str,
        address: str,
        ports: Sequence[int],
    ) -> None:
        """Let containers reach only these ports of the gateway, at its address in the bridge.

        Raises `EngineError`.
        """
        fault = self._run(CLOSE, bridge, address, ports)
        if fault:
            raise EngineError(fault)

    def fault(
        self,
        bridge: str,
        address: str,
        ports: Sequence[int],
    ) -> str:
        """Return why containers may reach too much or too little; empty if the rules are in place.

        An error of the packet filter counts as such a reason. Raises `EngineError` if the daemon
        cannot run the program.
        """
        return self._run(CHECK, bridge, address, ports)

    def _run(
        self,
        action: str,
        bridge: str,
        address: str,
        ports: Sequence[int],
    ) -> str:
        """Run the program; return the fault or the error that it prints, empty without one.

        Raises `EngineError`.
        """
        command = [*_PROGRAM, action, bridge, address, *map(str, ports)]
        with translated():
            output = self._output_of(self._client(), command)
        try:
            outcome = json.loads(output)
        except ValueError:
            text = output.strip() or "it printed nothing"
            raise EngineError(f"the image {self._image} cannot make rules: {text[-200:]}") from None
        return str(outcome.get("error") or outcome.get("fault") or "")

    def _output_of(self, api: APIClient, command: Sequence[str]) -> str:
        """Run a command in a new container; return its output. Raises `EngineError`, APIError."""
        try:
            container = api.create_container(
                self._image,
                entrypoint=list(command),
                command=[],
                user="0",
                host_config=self._host_config(api),
            )
        except ImageNotFound as error:
            raise EngineError(
                f"there is no image {self._image}: engine.docker.rules_image names the gateway's "
                "own image"
            ) from error
        try:
            output = api.attach(container["Id"], stream=True)
            api.start(container["Id"])
        except APIError:
            remove(api, container["Id"])
            raise
        return b"".join(output).decode(errors="replace")

    def _host_config(self, api: APIClient) -> dict[str, Any]:
        """Return the daemon's settings for the container."""
        mounts = [
            Mount(HOST_ROOT, "/", type="bind", read_only=True),
            Mount(f"{HOST_ROOT}/run", "/run", type="bind"),  # iptables locks a file there
        ]
        config: dict[str, Any] = api.create_host_config(
            network_mode="host",
            userns_mode="host",  # a daemon with user namespaces has no other way to its network
            mounts=mounts,
            cap_drop=["ALL"],
            cap_add=list(_CAPABILITIES),
            security_opt=["no-new-privileges:true", "label=disable"],
            read_only=True,
            auto_remove=True,  # by the daemon, also if the gateway ends meanwhile
        )
        return config
