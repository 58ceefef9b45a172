"""Real reverse proxies on loopback, with the configurations of ``docs/network.md``."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.certificates import Authority
from tests.e2e.nodes import free_ports
from tests.services import listens, started

PAGE = Path(__file__).parents[2] / "docs" / "network.md"
PROGRAMS = ("/usr/sbin/nginx", "/usr/sbin/haproxy")
# The address of the node in the page.
_NODE = "127.0.0.1:7380"


@dataclass(frozen=True)
class Site:
    """Where a proxy works, which node it serves, and whose certificates it accepts."""

    home: Path
    node: str  # host and port
    authority: Authority
    port: int
    address: str = "127.0.0.1"  # of the proxy


def configuration(language: str) -> str:
    """Return the block of the page in a language of configurations."""
    block = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    return block[1]


def adapted(
    text: str,
    site: Site,
    replacements: Mapping[str, str],
) -> str:
    """Return a configuration with a site's addresses and files in place of the page's."""
    files = site.authority.sign("proxy", site.address)
    pem = site.home / "proxy.pem"
    pem.write_text(Path(files.certificate).read_text() + Path(files.key).read_text())
    values = {
        _NODE: site.node,
        "/etc/bfia/proxy.crt": files.certificate,
        "/etc/bfia/proxy.key": files.key,
        "/etc/bfia/proxy.pem": str(pem),
        "/etc/bfia/partners-ca.crt": site.authority.file,
        **replacements,
    }
    for old, new in values.items():
        text = text.replace(old, new)
    return text


def nginx(site: Site) -> list[str]:
    """Write the configuration of nginx; return the command that runs it."""
    server = adapted(
        configuration("nginx"),
        site,
        {"listen 443": f"listen {site.address}:{site.port}"},
    )
    folders = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = [f"{folder}_temp_path {site.home}/{folder};" for folder in folders]
    lines = [
        "daemon off;",
        "user root;",
        f"pid {site.home}/pid;",
        "events {}",
        "http {",
        "access_log off;",
        *temporary,
        server,
        "}",
    ]
    file = site.home / "nginx.conf"
    file.write_text("\n".join(lines))
    return ["/usr/sbin/nginx", "-e", "stderr", "-c", str(file)]


def haproxy(site: Site) -> list[str]:
    """Write the configuration of HAProxy; return the command that runs it."""
    text = adapted(
        configuration("haproxy"),
        site,
        {"bind :443": f"bind {site.address}:{site.port}"},
    )
    file = site.home / "haproxy.cfg"
    file.write_text(text)
    return ["/usr/sbin/haproxy", "-db", "-f", str(file)]


@contextmanager
def running(
    command_of: Callable[[Site], list[str]],
    home: Path,
    node: str,
    authority: Authority,
) -> Iterator[str]:
    """Run a proxy before a node (host and port); yield the URL at which partners reach the node."""
    home.mkdir(parents=True)
    (port,) = free_ports(1)
    site = Site(home, node, authority, port)
    command = command_of(site)
    process = started(command, home / "log", partial(listens, port))
    try:
        yield f"https://127.0.0.1:{port}/bfia"
    finally:
        process.terminate()
        process.wait(60)
