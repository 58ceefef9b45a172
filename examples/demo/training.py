"""Two institutions train a model together on this machine: the whole way, from configuration to result.

Everything goes through the interfaces that a real platform would use: two node processes, HTTP uploads,
``create_all``. What is shown comes from the nodes' answers alone.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.cells import set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.demo.nodes import (
    BANK,
    IMAGE,
    PARTNER,
    ROOT,
    VENDOR,
    DemoFailed,
    NodeProcess,
    await_ready,
    configure,
    interruptible,
    prepare,
    start,
    stop,
    uninterrupted,
)
from examples.demo.partners import become_partners
from gateway.cli.language import spoken, t


@dataclass(frozen=True)
class Options:
    """What the demo is to do; ``key_length`` is in bits."""

    engine: str = "process"
    data: str = "breast"
    keep: bool = False
    directory: Path = Path("var/demo")
    base_image: str = ""
    key_length: int = 2048


def run(options: Options, console: Console | None = None) -> dict[str, Any]:
    """Run the demo; return what it found. Raises `DemoFailed` with the cause.

    Whatever ends it, a signal too, nothing that it started is left running (but the nodes, where they are kept).
    """
    console = console or Console()
    began = time.monotonic()
    with interruptible():
        nodes = prepare(options.directory.resolve())
        if options.engine == "docker":
            with console.status(t("building the reference vendor's image")):
                _build_image(options)
        configure(nodes, options.engine)
        kept = False
        try:
            with console.status(t("starting two gateway nodes")):
                for node in nodes:
                    start(node)
                for node in nodes:
                    await_ready(node)
            result = _work(nodes, options, console, began)
            kept = options.keep
        finally:
            if not kept:
                with uninterrupted():
                    stop(nodes, options.engine)
        if kept:
            pids = " ".join(str(n.addresses["pid"]) for n in nodes)
            _show(console, f"\nThe nodes stay up. Stop them with: kill {pids}")
        else:
            _show(
                console,
                "next: make demo ARGS=--keep leaves both nodes up to try commands on; README.md sets up your own",
                highlight=False,
            )
        return result


def _show(
    console: Console,
    text: str,
    **options: Any,
) -> None:
    """Print a text in the language in use."""
    console.print(t(text), soft_wrap=True, **options)


def _work(
    nodes: list[NodeProcess],
    options: Options,
    console: Console,
    began: float,
) -> dict[str, Any]:
    for node in nodes:
        role = "guest, has the labels" if node.node == BANK else "host, has features only"
        pid = node.addresses["pid"]
        _show(console, f"[bold]{t(node.name)}[/] ({t(role)}): node {node.node}, process {pid},")
        _show(console, f"  peers {node.addresses['peer']}, console {node.operator}/")
    _become_partners(nodes, console)
    _register_and_upload(nodes, options, console)
    job_id = _submit(nodes[0], options)
    _show(console, f"submitted [bold]{job_id}[/]: Intersection, then HeteroSecureBoost\n")
    job = _watch(nodes[0], job_id, console)
    return _result(nodes, job, console, time.monotonic() - began)


def _build_image(options: Options) -> None:
    base = options.base_image
    if not base:
        local = subprocess.run(
            ["docker", "image", "inspect", "bfia-base:py311"], capture_output=True, check=False
        )
        base = "bfia-base:py311" if local.returncode == 0 else "python:3.11-slim"
    command = ["bash", str(VENDOR / "build_image.sh"), base, IMAGE, str(ROOT / ".venv-vendor")]
    try:
        built = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise DemoFailed(f"cannot build the image: {error}") from error
    if built.returncode != 0:
        output = (built.stdout + built.stderr)[-1500:]
        raise DemoFailed(
            f"cannot build the image from {base} (choose another with --base-image):\n{output}"
        )


# ---------------------------------------------------------------- the work


def _ask(
    method: str,
    url: str,
    **kwargs: Any,
) -> Any:
    try:
        # plain HTTP to loopback: no certificate is verified, and reading the authorities would cost the most
        headers = {"accept-language": spoken()}
        answer = httpx.request(
            method,
            url,
            headers=headers,
            timeout=60,
            trust_env=False,
            verify=False,
            **kwargs,
        )
        body = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise DemoFailed(f"{method} {url}: {error}") from error
    if answer.status_code >= 400 or body.get("code", 0) != 0:
        raise DemoFailed(f"{method} {url}: {body.get('msg') or body.get('message') or body}")
    return body


def _become_partners(nodes: list[NodeProcess], console: Console) -> None:
    """Let the nodes invite and accept each other, and show the words that their people would compare."""
    with console.status(t("the two become partners")):
        try:
            words = become_partners(
                [n.home for n in nodes], [str(n.addresses["peer"]) for n in nodes]
            )
        except subprocess.CalledProcessError as error:
            raise DemoFailed(f"the nodes do not become partners: {error.stderr}") from error
    _show(console, "each invites the other and accepts; people would compare these six words:")
    for node, shown in zip(nodes, words, strict=True):
        console.print(f"  {set_cell_size(t(node.name), 8)} [bold]{shown}[/]")
    _show(console, "  now partners: TLS with both certificates; requests, answers and jobs signed")
    bank, partner = nodes
    places = {"url": str(partner.addresses["peer"]), "address": str(bank.addresses["peer"])}
    _apply(bank, partner, {"kind": "contract", **places})
    _show(console, "  bank applied for a contract, partner approved it")


def _apply(
    node: NodeProcess,
    owner: NodeProcess,
    wanted: dict[str, Any],
) -> None:
    """Let a node apply for something, its partner's person approve it, and wait until the node knows."""
    at = "/api/v1/applications"
    applied = _ask("POST", f"{node.operator}{at}", json={"partner": owner.node, **wanted})
    waiting = _ask("GET", f"{owner.operator}{at}", params={"side": "theirs", "status": "APPLIED"})[
        "applications"
    ]
    for one in waiting:
        _ask(
            "POST",
            f"{owner.operator}{at}/{one['number']}/approve",
            json={"reason": "the demo's job"},
        )
    end = time.monotonic() + 30
    while _ask("GET", f"{node.operator}{at}/{applied['number']}")["status"] != "APPROVED":
        if time.monotonic() > end:
            raise DemoFailed(f"{node.name} has not received the approval of its {wanted['kind']}")
        time.sleep(0.05)


def _register_and_upload(
    nodes: list[NodeProcess],
    options: Options,
    console: Console,
) -> None:
    registration = json.loads((VENDOR / "register_reference.json").read_text(encoding="utf-8"))
    files = _data_files(options)
    _show(console, _ABOUT_DATA[options.data])
    for node, file, role in zip(nodes, files, ("guest", "host"), strict=True):
        _ask("POST", f"{node.operator}/v2/provider/register", json=registration)
        meta = {"delimiter": ",", "match_id_name": "id"} | (
            {"label_name": "y"} if role == "guest" else {}
        )
        form = {
            "namespace": "demo",
            "name": role,
            "head": "true",
            "partitions": "1",
            "meta": json.dumps(meta),
        }
        with file.open("rb") as stream:
            sent = {"file": (file.name, stream, "text/csv")}
            found = _ask(
                "POST", f"{node.operator}/v2/component/upload/file", data=form, files=sent
            )["data"]
        count, columns = found["count"], len(found["columns"])
        _show(
            console,
            f"{node.name}: registered the provider, uploaded demo#{role}, {count} rows x {columns} columns",
        )
    bank, partner = nodes
    why = {"reason": "the demo's job"}
    _ask("PUT", f"{bank.operator}/api/v1/datasets/demo/guest/grants/{partner.node}", json=why)
    _show(console, "bank: granted demo#guest to partner")
    _ask(
        "PUT",
        f"{partner.operator}/api/v1/datasets/demo/host/published",
        json={"nodes": [bank.node], **why},
    )
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


_ABOUT_DATA = {
    "breast": "data: breast-cancer diagnosis (public), its columns split between the two",
    "credit": "data: credit scoring, synthetic: no real person is behind any row",
}


def _data_files(options: Options) -> tuple[Path, Path]:
    if options.data == "breast":
        folder = ROOT / "examples" / "data"
        return folder / "breast_hetero_guest.csv", folder / "breast_hetero_host.csv"
    folder = options.directory.resolve() / "data"
    command = [
        str(ROOT / ".venv-vendor" / "bin" / "python"),
        str(ROOT / "examples" / "credit_data.py"),
        str(folder),
    ]
    made = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise DemoFailed(f"cannot make the credit data: {made.stderr[-800:]}")
    return folder / "credit_guest.csv", folder / "credit_host.csv"


def _submit(bank: NodeProcess, options: Options) -> str:
    body = job_body(options)
    return str(
        _ask("POST", f"{bank.operator}/v1/platform/schedule/job/create_all", json=body)["data"][
            "job_id"
        ]
    )


def job_body(options: Options) -> dict[str, Any]:
    """Return the request that the demo submits."""

    def component(
        name: str,
        kind: str,
        inputs: list[Any],
        outputs: list[tuple[str, str]],
    ) -> dict[str, Any]:
        return {
            "name": name,
            "componentName": kind,
            "provider": "reference",
            "version": "1.0.0",
            "input": inputs,
            "output": [{"type": t, "key": k} for t, k in outputs],
        }

    return {
        "flow_id": "demo",
        "dag": {
            "version": "2.0",
            "components": [
                component(
                    "intersect",
                    "Intersection",
                    [],
                    [("dataset", "train_data"), ("report", "report0")],
                ),
                component(
                    "secureboost",
                    "HeteroSecureBoost",
                    [{"type": "dataset", "key": "intersect.train_data"}],
                    [("dataset", "data0"), ("model", "model0")]
                    + [("report", f"report{i}") for i in range(3)],
                ),
            ],
        },
        "config": {
            "version": "2.0.0",
            "initiator": {"role": "guest", "node_id": BANK},
            "role": {"guest": [BANK], "host": [PARTNER]},
            "job_params": {"common": {"sync_type": "poll"}},
            "task_params": {
                "common": {
                    "intersect": {
                        "id": "id",
                        "intersect_method": "rsa",
                        "only_output_key": False,
                    },
                    "secureboost": {
                        "id": "id",
                        "label": "y",
                        "num_trees": 3,
                        "learning_rate": 0.5,
                        "tree_param": {"max_depth": 3},
                        "bin_num": 16,
                        "encrypt_param": {"method": "Paillier", "key_length": options.key_length},
                        "report_local_baseline": True,
                    },
                },
                "guest": {"0": {"intersect": {"dataset_id": "demo#guest"}}},
                "host": {"0": {"intersect": {"dataset_id": "demo#host"}}},
            },
        },
    }


# ---------------------------------------------------------------- what is shown


def _watch(
    bank: NodeProcess,
    job_id: str,
    console: Console,
    seconds: float = 600.0,
) -> dict[str, Any]:
    end = time.monotonic() + seconds
    with Live(console=console, refresh_per_second=8) as live:
        while True:
            job: dict[str, Any] = _ask("GET", f"{bank.operator}/api/v1/jobs/{job_id}")
            live.update(_progress(job))
            if job["status"] in ("FINISHED", "REJECTED"):
                break
            if time.monotonic() > end:
                raise DemoFailed(f"the job is still {job['status']} after {seconds:g} s")
            time.sleep(0.2)
    if job["outcome"] != "SUCCEEDED":
        failure = job.get("failure") or {}
        where = " ".join(str(failure[k]) for k in ("task", "role", "node") if failure.get(k))
        logs = f"{bank.home.parent}/*/state/runs"
        raise DemoFailed(
            f"the job ended as {job['outcome']} with {failure.get('reason')} ({where}), logs are below {logs}: "
            f"{failure.get('message')}"
        )
    return job


_STYLE = {
    "SUCCESS": "green",
    "RUNNING": "yellow",
    "FAILED": "red",
}


def _progress(job: dict[str, Any]) -> Group:
    table = Table(box=None, pad_edge=False)
    for heading in ("task", "bank (guest)", "partner (host)"):
        table.add_column(t(heading))
    for task in job["tasks"]:
        cells = [next(iter(task["nodes"].get(n, {}).values()), "-") for n in (BANK, PARTNER)]
        table.add_row(task["name"], *(Text(c, style=_STYLE.get(c, "dim")) for c in cells))
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(
            total=100,
            completed=job["progress"],
            width=50,
        ),
        Text(t(f"job {job['status']}, {job['progress']} %")),
    )
    return Group(table, line)


def _result(
    nodes: list[NodeProcess],
    job: dict[str, Any],
    console: Console,
    seconds: float,
) -> dict[str, Any]:
    reports = dict(_reports(nodes[0], job["job_id"]))
    intersect = reports.get(("intersect", "report0"))
    losses = reports.get(("secureboost", "report0")) or {}
    scores = reports.get(("secureboost", "report1")) or {}
    local = scores.get("local_baseline") or {}
    common = _common_ids(nodes[0], job["job_id"])
    table = Table(
        title=t("Result at the bank"),
        title_justify="left",
        show_header=False,
        box=None,
    )
    table.add_row(t("common ids"), common)
    table.add_row(
        t("AUC, both together"), f"[bold]{scores.get('auc'):.4f}[/]   KS {scores.get('ks'):.4f}"
    )
    if local:
        table.add_row(
            t("AUC, the bank alone"), f"{local.get('auc'):.4f}   KS {local.get('ks'):.4f}"
        )
    table.add_row(t("loss per tree"), "  ".join(f"{v:.4f}" for v in _loss_values(losses)))
    console.print()
    console.print(table)
    where = Table(
        title=t("Where things lie"),
        title_justify="left",
        show_header=False,
        box=None,
    )
    for node in nodes:
        where.add_row(t(f"{node.name}: models and reports"), str(node.home / "storage"))
        where.add_row(t(f"{node.name}: logs of the runs"), str(node.home / "state" / "runs"))
        where.add_row(t(f"{node.name}: the gateway's log"), str(node.home / "gateway.log"))
    console.print(where)
    _show(console, f"done in {seconds:.1f} s")
    return {
        "job": job,
        "common": common,
        "scores": scores,
        "loss": losses,
        "intersect": intersect,
    }


def _reports(node: NodeProcess, job_id: str) -> Iterator[tuple[tuple[str, str], Any]]:
    for output in _ask("GET", f"{node.operator}/api/v1/jobs/{job_id}/outputs")["outputs"]:
        yield (output["task"], output["key"]), output["value"]


def _common_ids(node: NodeProcess, job_id: str) -> str:
    """Return what the bank's report says of the intersection."""
    report = _ask("GET", f"{node.operator}/api/v1/jobs/{job_id}/outputs/intersect/guest.0/report0")
    return str(dict(report["rows"])["intersection"])


def _loss_values(report: Any) -> list[float]:
    values = report.get("loss") if isinstance(report, dict) else report
    return [float(v["loss"] if isinstance(v, dict) else v) for v in values or []]
