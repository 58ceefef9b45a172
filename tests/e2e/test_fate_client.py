"""FATE 2.2's published client drives a real node: its ``flow`` command, and its pipeline's BFIA path.

The client sits in an environment of its own (``make .venv-fate-client/.done``) and is used as it was published.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
import yaml

from tests.e2e import jobs
from tests.e2e.conftest import IMAGES
from tests.e2e.nodes import ROOT, Federation, Node, example, process_engine, wait_for
from tests.e2e.recorder import Recorder, Seen

pytestmark = [pytest.mark.fate_client, pytest.mark.slow, pytest.mark.xdist_group("fate_client")]

CLIENT = ROOT / ".venv-fate-client"
REGISTRATION = ROOT / "examples" / "register_unionpay.json"
GOLDEN = ROOT / "tests" / "adapter" / "fate" / "golden"
ALIGN, TRAIN = "intersect_rsa_1", "hetero_secureboost_1"
GUEST = ("-r", "guest", "-p", jobs.GUEST)


@dataclass
class Flow:
    """FATE's client with settings of its own, and a process of it that takes one command after the other."""

    home: Path
    process: "subprocess.Popen[str] | None" = None
    env: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> "Flow":
        package = next((CLIENT / "lib").glob("python3*/site-packages/fate_client"))
        shutil.copytree(package, self.home / "fate_client")  # it keeps its settings beside its code
        self.env = {**os.environ, "PYTHONPATH": str(self.home), "PYTHONWARNINGS": "ignore", "NO_PROXY": "*"}
        command = [str(CLIENT / "bin" / "python"), str(ROOT / "tests/e2e/fate_driver.py"), "flow"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=self.env, stdin=pipe, stdout=pipe, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None and self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def run(self, *words: object) -> str:
        """Run ``flow`` with these words; return what it printed."""
        assert self.process is not None and self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([str(word) for word in words]) + "\n")
        self.process.stdin.flush()
        return str(json.loads(self.process.stdout.readline()))

    def __call__(self, *words: object, code: int = 0) -> Any:
        """Run ``flow``; return ``data`` of its answer. Fails for another code."""
        said = self.answer(*words)
        assert said["code"] == code, said
        return said.get("data")

    def answer(self, *words: object) -> dict[str, Any]:
        text = self.run(*words)
        assert text.startswith("{"), text
        return dict(json.loads(text))

    def binary(self, *words: object) -> dict[str, Any]:
        """Run the installed command as a person would."""
        command = [str(CLIENT / "bin" / "flow"), *map(str, words)]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout))


@dataclass
class Site:
    """Two institutions; the guest's people have FATE's client."""

    flow: Flow
    guest: Node
    home: Path
    seen: list[Seen]
    trained: str = ""
    printed: str = ""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that registered, uploaded and trained with FATE's client alone; what it sent is recorded."""
    home = tmp_path_factory.mktemp("fate")
    settings = {"fate": {"enabled": True}, "data": {"roots": [str(ROOT)]}}
    engine = process_engine(*IMAGES)
    with Federation(home / "nodes", [jobs.GUEST, jobs.HOST], engine, **settings) as nodes, Flow(home) as flow:
        host, guest = nodes[jobs.HOST], nodes[jobs.GUEST]
        host.register(example(REGISTRATION.name))
        jobs.upload(host, "host")
        with Recorder({"": httpx.URL(guest.operator).port or 0}) as recorder:
            made = Site(flow, guest, home, recorder.seen)
            said = flow.binary("init", "--ip", "127.0.0.1", "--port", recorder.port)
            assert said["code"] == 0, said
            assert flow.binary("provider", "register", "-c", REGISTRATION) == {
                "code": 0,
                "message": "create success",
            }
            meta = {"delimiter": ",", "label_name": "y", "match_id_name": "id"}
            upload = {
                "file": str(jobs.DATA / "breast_hetero_guest.csv"),
                "head": True,
                "partitions": 1,
                "meta": meta,
            }
            upload |= {"namespace": "testspace", "name": "test_guest"}
            (home / "upload.json").write_text(json.dumps(upload))
            assert flow("data", "upload-file", "-c", home / "upload.json")["count"] == 540
            made.printed = _pipeline(flow, guest)
            made.trained = json.loads(made.printed.splitlines()[-1])["job_id"]
            yield made


def _pipeline(flow: Flow, node: Node) -> str:
    command = [str(CLIENT / "bin" / "python"), str(ROOT / "tests/e2e/fate_driver.py"), "pipeline"]
    command += [str(REGISTRATION), jobs.GUEST, jobs.HOST]
    done = subprocess.run(command, env=flow.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:] + node.run_logs()
    return done.stdout


def of_task(site: Site, task: str = TRAIN) -> tuple[str, ...]:
    return ("-j", site.trained, *GUEST, "-tn", task)


def test_the_pipeline_trains_the_users_model(site: Site):
    assert "Job is success" in site.printed
    job = site.guest.wait_job(site.trained)
    assert {t["name"]: t["status"] for t in job["tasks"]} == {ALIGN: "SUCCESS", TRAIN: "SUCCESS"}
    told = json.loads(site.printed.splitlines()[-1])
    assert (told["model_id"], told["version"]) == (job["model"]["model_id"], job["model"]["version"])


def test_jobs_and_tasks_are_found(site: Site):
    (row,) = site.flow("job", "query", "-j", site.trained, *GUEST, "-s", "success")
    assert (row["status"], row["progress"], row["role"], row["party_id"]) == ("success", 100, "guest", jobs.GUEST)
    assert row["model_version"] == site.trained and row["dag"]["kind"] == "bfia"
    tasks = site.flow("task", "query", "-j", site.trained, *GUEST)
    assert {t["task_name"]: (t["status"], t["party_status"], t["task_version"]) for t in tasks} == {
        ALIGN: ("success", "success", 0),
        TRAIN: ("success", "success", 0),
    }
    assert site.flow("task", "list", "-j", site.trained)["count"] == 2
    assert site.trained in [r["job_id"] for r in site.flow("job", "list")["data"]]
    needs = site.flow("job", "dependency", "-j", site.trained, *GUEST)["dependencies"]
    assert needs[TRAIN][0]["component_name"] == ALIGN
    assert site.flow("site", "query") == {"party_id": jobs.GUEST}
    assert site.flow("server", "info")[0]["http_port"]
    assert [p["name"] for p in site.flow("provider", "query", "--name", "unionpay")] == ["unionpay"]


def test_outputs_are_seen_and_downloaded(site: Site):
    metrics = {m["name"]: m["data"] for m in site.flow("output", "query-metric", *of_task(site))}
    assert metrics["train-auc"]["auc"] > 0.99
    assert {m["name"] for m in site.flow("output", "query-metric-key", *of_task(site))} == set(metrics)
    assert site.flow("output", "query-model", *of_task(site))["model"]["component"] == "HeteroSecureBoost"
    assert set(site.flow("output", "query-data-table", *of_task(site, ALIGN))) == {"train_data"}
    (shown,) = site.flow("output", "display-data", *of_task(site, ALIGN))["train_data"]
    assert len(shown["data"]) == 100 and shown["metadata"]["header"][0] == "id" and shown["total"] == 509
    out = site.home / "out"
    name = f"{site.trained}_guest_{jobs.GUEST}"
    site.flow("output", "download-data", *of_task(site, ALIGN), "-o", out)
    table = (out / f"output_data_{name}_{ALIGN}" / "train_data" / "0.csv").read_text().splitlines()
    assert len(table) == 510 and table[0].startswith("id,y")
    site.flow("output", "download-model", *of_task(site), "-o", out)
    model = (out / f"output_model_{name}_{TRAIN}" / "model" / "data_0").read_text()
    assert json.loads(model)["component"] == "HeteroSecureBoost"


def test_logs_are_read_and_downloaded(site: Site):
    of_party = ("-j", site.trained, *GUEST, "--log-type", "task_info")
    number = site.flow("log", "count", *of_party)
    lines = site.flow("log", "query", *of_party)
    assert [line["line_num"] for line in lines] == list(range(1, number + 1)) and "run started" in lines[0][
        "content"
    ]
    assert len(site.flow("log", "query", *of_party, "-tn", ALIGN)) < number
    assert site.flow("log", "query", "-j", site.trained, *GUEST, "--log-type", "schedule_info")
    site.flow("job", "download-log", "-j", site.trained, "-o", site.home)
    folder = site.home / f"{site.trained}_logs"
    assert (folder / "schedule.log").read_text()
    assert "run started" in (folder / "guest" / jobs.GUEST / ALIGN / "0" / "stdout.log").read_text()


def test_tables_come_and_go(site: Site):
    named = ("--name", "by_path", "--namespace", "testspace")
    body = example("upload_breast_hetero_guest.json") | {"namespace": "testspace", "name": "by_path"}
    (site.home / "path.json").write_text(json.dumps(body))
    upload = site.flow.answer("data", "upload", "-c", site.home / "path.json")
    (row,) = site.flow("job", "query", "-j", upload["job_id"])  # as the pipeline waits for an upload
    assert row["status"] == "success"
    table = site.flow("table", "query", *named, "-d", "true")
    assert table["count"] == 540 and len(table["display"]) == 100 and not table["path"]
    site.flow("data", "download", *named, "-o", site.home / "table")
    assert len((site.home / "table" / "data" / "0.csv").read_text().splitlines()) == 541
    site.flow("data", "download-component", *named, "-o", "/anywhere", code=6001)
    site.flow("table", "delete", *named)
    site.flow("table", "query", *named, code=7001)


def test_a_job_is_stopped_and_run_again_from_where_it_stood(site: Site):
    described = json.loads((GOLDEN / "pipeline-bfia.json").read_text(encoding="utf-8"))
    described["kind"] = "fate"
    tasks = described["dag"]["tasks"]
    for task in tasks.values():  # FATE's own form: outputs and providers are looked up
        del task["outputs"], task["conf"]
    tasks[TRAIN]["parameters"] |= {"num_trees": 500, "id": "id", "label": "y"}
    (site.home / "job.yaml").write_text(yaml.safe_dump(described))
    job_id = site.flow.answer("job", "submit", "-c", site.home / "job.yaml")["job_id"]

    def running() -> bool:
        return "running" in {t["status"] for t in site.flow("task", "query", "-j", job_id, "-tn", TRAIN)}

    wait_for(running, 90, 0.2, "the second task runs")
    site.flow("job", "add-notes", "-j", job_id, *GUEST, "--notes", "too many trees")
    site.flow("job", "stop", "-j", job_id)
    site.guest.wait_job(job_id, outcome="STOPPED")
    (row,) = site.flow("job", "query", "-j", job_id, *GUEST)
    assert (row["status"], row["description"]) == ("canceled", "too many trees")
    assert row["protocol"] == row["dag"]["kind"] == "fate"
    again = site.flow("job", "rerun", "-j", job_id)
    assert again["inherits"] == [ALIGN] and again["runs"] == [TRAIN]
    (taken,) = site.flow("task", "query", "-j", again["job_id"], *GUEST, "-tn", ALIGN)
    assert taken["inherited_from"] == {"job_id": job_id}
    site.flow("job", "stop", "-j", again["job_id"])
    site.guest.wait_job(again["job_id"], outcome="STOPPED")
    assert site.flow("job", "clean-queue") == {}
    said = site.flow.answer("output", "delete-metric", "-j", job_id, *GUEST, "-tn", ALIGN)
    assert said["data"]["reason"] == "OUTPUTS_IN_USE" and again["job_id"] in said["message"]
    wait_for(lambda: site.flow.answer("job", "clean", "-j", again["job_id"])["code"] == 0, 20, 0.2)  # tidied up
    site.flow("job", "query", "-j", again["job_id"], code=1001)
    site.flow("output", "delete-metric", "-j", job_id, *GUEST, "-tn", ALIGN)
    assert site.flow("output", "query-metric", "-j", job_id, *GUEST, "-tn", ALIGN) == []
    site.flow("output", "delete-model", "-j", job_id, *GUEST, "-tn", ALIGN)


def test_what_is_refused_is_told_in_full(site: Site):
    site.flow("job", "query", "-j", "job-404", code=1001)
    site.flow("task", "query", "-j", site.trained, "-tn", "nothing", code=2000)
    said = site.flow.answer("client", "create-client", "--app-name", "x")
    assert said["code"] == 6001 and "token create" in said["message"]


def test_the_client_still_sends_what_the_exchanges_say(site: Site):
    """Every request that is marked as recorded has the form of one that the client sent in this module."""
    calls: list[tuple[object, ...]] = [
        ("job", "list"),
        ("task", "list", "-j", site.trained),
        ("job", "clean-queue"),
    ]
    calls += [("site", "query"), ("task", "query", "-j", site.trained, "-tn", ALIGN)]
    for words in calls:
        site.flow(*words)
    sent: dict[str, set[frozenset[str]]] = {}
    for seen in site.seen:
        url = urlsplit(seen.path)
        names = {k for k, _ in parse_qsl(url.query)} | set(seen.body if isinstance(seen.body, dict) else ())
        sent.setdefault(url.path, set()).add(frozenset(names))
    exchanges = json.loads((GOLDEN / "client-exchanges.json").read_text(encoding="utf-8"))
    recorded = [e for e in exchanges if e["by"] == "recorded" and e["path"] in sent]
    asked = [(one["path"], set(one["asks"] or {})) for one in recorded]
    for path, names in asked:
        assert any(names <= known or known <= names for known in sent[path]), (path, names)
    assert len({one["path"] for one in recorded}) >= 5


def test_every_command_of_the_pages_is_run_here():
    source = Path(__file__).read_text(encoding="utf-8")
    pages = [
        (ROOT / "docs" / f"fate-tools{language}.md").read_text(encoding="utf-8") for language in ("", ".zh-CN")
    ]
    named = [re.findall(r"^flow ([a-z-]+ [a-z-]+)", page, re.MULTILINE) for page in pages]
    assert named[0] == named[1] and len(named[0]) > 30
    for command in named[0]:
        words = " ".join(w for w in command.split() if not w.startswith("-"))
        quoted = ", ".join(f'"{word}"' for word in words.split())
        assert quoted in source, command
