"""Two institutions train a model together on this machine, from their configuration to the result.

The demo uses only interfaces that a real platform uses: two node processes, HTTP uploads,
``create_all``. All that it prints comes from the nodes' responses.
"""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.cells import set_cell_size
from rich.console import Console

from gateway.cli.demo.api import request
from gateway.cli.demo.display import load_reports, print_result, watch
from gateway.cli.demo.failure import DemoFailed
from gateway.cli.demo.job import job_body
from gateway.cli.demo.nodes import (
    BANK,
    NodeProcess,
    await_ready,
    configure,
    interruptible,
    prepare,
    start,
    stop,
    uninterrupted,
)
from gateway.cli.demo.partners import become_partners
from gateway.cli.demo.vendor import (
    EXAMPLES,
    IS_INSTALLED,
    VENDOR,
    build_image,
    vendor_command,
    vendor_python,
)
from gateway.cli.language import t

APPROVAL_TIMEOUT = 30.0  # seconds until a node knows of an approval
LINK_TIMEOUT = 30.0  # seconds until a link to the bank stands
LOCAL_BASE_IMAGE = "bfia-base:py311"
PUBLIC_BASE_IMAGE = "python:3.11-slim"
DATA_DESCRIPTIONS = {
    "breast": "data: breast-cancer diagnosis (public), its columns split between the two",
    "credit": "data: credit scoring, synthetic: no real person is behind any row",
}


@dataclass(frozen=True)
class Options:
    """The choices of a demo's user; ``key_length`` is in bits."""

    engine: str = "process"
    data: str = "breast"
    keep: bool = False
    directory: Path = Path("var/demo")
    base_image: str = ""
    key_length: int = 2048
    closed: bool = False  # the partner has no open port
    vendor_python: Path | None = None  # interpreter with the reference vendor


def run(
    options: Options,
    console: Console | None = None,
) -> dict[str, Any]:
    """Run the demo; return the job and its reports. Raises `DemoFailed` with the cause.

    Every end, including a signal, ends all started processes, except the nodes of a successful demo
    with ``keep``.
    """
    console = console or Console()
    start_time = time.monotonic()
    with interruptible():
        nodes = prepare(options.directory.resolve())
        configure(nodes, options.engine, _provide_vendor(options, console))
        keep_nodes = False
        try:
            _start_nodes(nodes, console)
            result = _train(nodes, options, console, start_time)
            keep_nodes = options.keep
        finally:
            if not keep_nodes:
                with uninterrupted():
                    stop(nodes, options.engine)
        _show_next_step(nodes, console, nodes_are_up=keep_nodes)
        return result


def _show(console: Console, text: str, **options: Any) -> None:
    """Print a text in the language in use."""
    console.print(t(text), soft_wrap=True, **options)


def _show_next_step(
    nodes: Sequence[NodeProcess],
    console: Console,
    *,
    nodes_are_up: bool,
) -> None:
    if nodes_are_up:
        pids = " ".join(str(node.addresses["pid"]) for node in nodes)
        bank, partner = (node.config for node in nodes)
        _show(
            console,
            f"\nCommands reach a node by --config: {bank} and {partner}",
            highlight=False,
        )
        _show(console, f"The nodes stay up. Stop them with: kill {pids}")
        return
    if IS_INSTALLED:
        next_step = (
            "next: bfia-gateway demo --keep leaves both nodes up to try commands on; bfia-gateway "
            "docs first-node sets up your own"
        )
    else:
        next_step = (
            "next: make demo ARGS=--keep leaves both nodes up to try commands on; README.md sets "
            "up your own"
        )
    _show(console, next_step, highlight=False)


# ------------------------------------------------------------ image and nodes


def _provide_vendor(options: Options, console: Console) -> list[str]:
    """Return the command of the reference vendor; none for Docker, for which its image is built."""
    if options.engine != "docker":
        return vendor_command(options.vendor_python)
    with console.status(t("building the reference vendor's image")):
        build_image(options.base_image or _default_base_image())
    return []


def _default_base_image() -> str:
    """Return the base image on this machine if there is one, else the public one."""
    inspection = subprocess.run(
        ["docker", "image", "inspect", LOCAL_BASE_IMAGE], capture_output=True, check=False
    )
    if inspection.returncode == 0:
        return LOCAL_BASE_IMAGE
    return PUBLIC_BASE_IMAGE


def _start_nodes(
    nodes: Sequence[NodeProcess],
    console: Console,
) -> None:
    with console.status(t("starting two gateway nodes")):
        for node in nodes:
            start(node)
        for node in nodes:
            await_ready(node)


def _show_node(node: NodeProcess, console: Console) -> None:
    role = t("host, has features only")
    if node.node == BANK:
        role = t("guest, has the labels")
    pid = node.addresses["pid"]
    _show(console, f"[bold]{t(node.name)}[/] ({role}): node {node.node}, process {pid},")
    _show(console, f"  peers {node.addresses['peer']}, console {node.operator}/")


# ------------------------------------------------------------ the training


def _train(
    nodes: Sequence[NodeProcess],
    options: Options,
    console: Console,
    start_time: float,
) -> dict[str, Any]:
    """Let the nodes become partners and train a model; return the job and its reports."""
    for node in nodes:
        _show_node(node, console)
    _become_partners(nodes, console)
    if options.closed:
        bank, partner = nodes
        _keep_links(bank, partner, console)
    _register_and_upload(nodes, options, console)
    _share_datasets(nodes, console)
    bank = nodes[0]
    job_id = _submit(bank, options)
    _show(console, f"submitted [bold]{job_id}[/]: Intersection, then HeteroSecureBoost\n")
    job = watch(bank, job_id, console)
    reports = load_reports(bank, job_id)
    print_result(reports, nodes, console)
    seconds = time.monotonic() - start_time
    _show(console, f"done in {seconds:.1f} s")
    return {
        "job": job,
        "common": reports.common_ids,
        "scores": reports.scores,
        "loss": reports.losses,
        "intersect": reports.intersect,
    }


def _become_partners(
    nodes: Sequence[NodeProcess],
    console: Console,
) -> None:
    """Let the nodes invite and accept each other, and show the words that their people would
    compare.
    """
    homes = [node.home for node in nodes]
    addresses = [str(node.addresses["peer"]) for node in nodes]
    with console.status(t("the two become partners")):
        try:
            words = become_partners(homes, addresses)
        except subprocess.CalledProcessError as error:
            raise DemoFailed(f"the nodes do not become partners: {error.stderr}") from error
    _show(console, "each invites the other and accepts; people would compare these six words:")
    for node, words_of_node in zip(nodes, words, strict=True):
        console.print(f"  {set_cell_size(t(node.name), 8)} [bold]{words_of_node}[/]")
    _show(console, "  now partners: TLS with both certificates; requests, answers and jobs signed")
    _show(console, "  messages between their containers are sealed from end to end")
    bank, partner = nodes
    bank_address, partner_address = addresses
    contract = {
        "kind": "contract",
        "url": partner_address,
        "address": bank_address,
    }
    _apply(bank, partner, contract)
    _show(console, "  bank applied for a contract, partner approved it")


def _keep_links(
    bank: NodeProcess,
    partner: NodeProcess,
    console: Console,
) -> None:
    """Let the partner dial the bank, whose route to the partner loses its address.

    Raises `DemoFailed` if no link stands after `LINK_TIMEOUT`.
    """
    route_of_partner = f"{bank.operator}/api/v1/routes/{partner.node}"
    route_of_bank = f"{partner.operator}/api/v1/routes/{bank.node}"
    request("PATCH", route_of_partner, json={"route": {"reached": "by-link"}})
    request("PATCH", route_of_bank, json={"route": {"dial": "out"}})
    deadline = time.monotonic() + LINK_TIMEOUT
    route = request("GET", route_of_partner)["route"]
    while not route["links"]:
        if time.monotonic() > deadline:
            raise DemoFailed("the partner opens no link to the bank")
        time.sleep(0.05)
        route = request("GET", route_of_partner)["route"]
    _show(console, "  partner needs no open port now: it dials, and bank calls it over the links")
    url = route["url"]
    address = route["links"][0]["address"]
    _show(console, f"  bank's address for partner is {url} now, a link from {address}")


def _apply(
    applicant: NodeProcess,
    owner: NodeProcess,
    application: Mapping[str, Any],
) -> None:
    """Let a node apply for something and its partner approve it, and wait until the applicant
    knows.

    Raises `DemoFailed` after `APPROVAL_TIMEOUT`.
    """
    own_url = f"{applicant.operator}/api/v1/applications"
    owner_url = f"{owner.operator}/api/v1/applications"
    sent = request("POST", own_url, json={"partner": owner.node, **application})
    received = request(
        "GET",
        owner_url,
        params={
            "side": "theirs",
            "status": "APPLIED",
        },
    )
    for entry in received["applications"]:
        decision = {"reason": "the demo's job"}
        request("POST", f"{owner_url}/{entry['number']}/approve", json=decision)
    deadline = time.monotonic() + APPROVAL_TIMEOUT
    while request("GET", f"{own_url}/{sent['number']}")["status"] != "APPROVED":
        if time.monotonic() > deadline:
            raise DemoFailed(
                f"{applicant.name} has not received the approval of its {application['kind']}"
            )
        time.sleep(0.05)


def _register_and_upload(
    nodes: Sequence[NodeProcess],
    options: Options,
    console: Console,
) -> None:
    """Register the reference vendor at both nodes, and upload a table to each."""
    registration = json.loads((VENDOR / "register_reference.json").read_text(encoding="utf-8"))
    _show(console, DATA_DESCRIPTIONS[options.data])
    files = _data_files(options)
    for node, file, role in zip(nodes, files, ("guest", "host"), strict=True):
        request("POST", f"{node.operator}/v2/provider/register", json=registration)
        stored = _upload(node, file, role)
        rows = stored["count"]
        columns = len(stored["columns"])
        _show(
            console,
            f"{node.name}: registered the provider, uploaded demo#{role}, {rows} rows x "
            f"{columns} columns",
        )


def _upload(
    node: NodeProcess,
    file: Path,
    role: str,
) -> dict[str, Any]:
    """Upload a table as the dataset demo#ROLE; return the node's description of it."""
    meta = {"delimiter": ",", "match_id_name": "id"}
    if role == "guest":
        meta["label_name"] = "y"
    form = {
        "namespace": "demo",
        "name": role,
        "head": "true",
        "partitions": "1",
        "meta": json.dumps(meta),
    }
    url = f"{node.operator}/v2/component/upload/file"
    with file.open("rb") as stream:
        parts = {"file": (file.name, stream, "text/csv")}
        response = request("POST", url, data=form, files=parts)
    stored: dict[str, Any] = response["data"]
    return stored


def _share_datasets(
    nodes: Sequence[NodeProcess],
    console: Console,
) -> None:
    """Let each node permit the other to use its dataset: the bank by a grant, the partner by an
    application.
    """
    bank, partner = nodes
    reason = {"reason": "the demo's job"}
    grant_url = f"{bank.operator}/api/v1/datasets/demo/guest/grants/{partner.node}"
    request("PUT", grant_url, json=reason)
    _show(console, "bank: granted demo#guest to partner")
    published_url = f"{partner.operator}/api/v1/datasets/demo/host/published"
    request("PUT", published_url, json={"nodes": [bank.node], **reason})
    _apply(
        bank,
        partner,
        {
            "kind": "dataset",
            "subject": "demo#host",
            "jobs": 1,
        },
    )
    _show(console, "partner: published demo#host; bank applied for it and got a permit for one job")


def _data_files(options: Options) -> tuple[Path, Path]:
    """Return the tables of guest and host. Raises `DemoFailed` if credit data cannot be made."""
    if options.data == "breast":
        folder = EXAMPLES / "data"
        return folder / "breast_hetero_guest.csv", folder / "breast_hetero_host.csv"
    folder = options.directory.resolve() / "data"
    python = vendor_python(options.vendor_python)
    script = EXAMPLES / "credit_data.py"
    command = [str(python), str(script), str(folder)]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise DemoFailed(f"cannot make the credit data: {process.stderr[-800:]}")
    return folder / "credit_guest.csv", folder / "credit_host.csv"


def _submit(bank: NodeProcess, options: Options) -> str:
    """Submit the demo's job; return its id."""
    url = f"{bank.operator}/v1/platform/schedule/job/create_all"
    response = request(
        "POST",
        url,
        json=job_body(options.key_length),
    )
    return str(response["data"]["job_id"])
