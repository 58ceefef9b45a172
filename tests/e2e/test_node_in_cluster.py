"""The shipped manifests with the tests' addresses: a node of two gateways in a cluster."""

import contextlib
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from gateway.identity.keys import Keyring
from gateway.identity.sealing_keys import SealingKeyFile
from tests import storages as real
from tests.contracts.databases import careless_database
from tests.contracts.test_isolation import LOOK
from tests.e2e import jobs
from tests.e2e.nodes import ROOT, Federation, Node, process_engine, wait_for
from tests.e2e.test_storages import TRAIN, names
from tests.services.cable import Cable, cable_to
from tests.services.clusters import kubectl, pushed, the_last_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.s3,
    pytest.mark.docker,
    pytest.mark.mariadb,
    pytest.mark.kubernetes,
]
TOKEN = "t" * 32
PODS = ("bfia-gateway-0", "bfia-gateway-1")


@dataclass
class Site:
    """The node in the cluster, its bucket, its partner outside, and the way in for peers."""

    namespace: str
    gateways: tuple[Node, Node]
    partner: Node
    bucket: real.Place
    way_in: Cable

    def kubectl(
        self,
        *words: str,
        stdin: str = "",
    ) -> str:
        return kubectl("-n", self.namespace, *words, stdin=stdin)

    def address(self, pod: str) -> str:
        return self.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}")


@pytest.fixture(scope="module")
def site(
    reference_image: str,
    gateway_image: str,
    worker_id: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("cluster")
    host, by_tls = (os.environ[f"BFIA_TEST_KUBERNETES_{name}"] for name in ("HOST", "TLS_REGISTRY"))
    key = Keyring(home / "guest").make("ed25519").public
    name = f"bfia-node-{uuid.uuid4().hex[:8]}"
    pushed("unionpay:2.0.0")
    image = f"{by_tls}/{pushed(gateway_image, f'bfia-gateway:{name}').partition('/')[2]}"
    with contextlib.ExitStack() as stack:
        bucket = stack.enter_context(real.bucket())
        url = sa.make_url(stack.enter_context(careless_database(f"{worker_id}_cluster")))
        database = stack.enter_context(cable_to((str(url.host), int(url.port or 0)), host))
        way_in = stack.enter_context(cable_to(("127.0.0.1", 1)))
        partner = Federation(
            home / "partner",
            [jobs.HOST],
            process_engine("unionpay:2.0.0"),
        )
        node = partner[jobs.HOST]
        port = node.peer_port
        node.settings["listen"]["peer"]["bind"] = f"{host}:{port}"
        node.route(
            **{jobs.GUEST: {"url": f"http://127.0.0.1:{way_in.server_address[1]}", "keys": key}}
        )
        stack.enter_context(partner)
        secret = {
            "token": TOKEN,
            "s3": os.environ["BFIA_TEST_S3_SECRET"],
            "database": url.set(host=host, port=database.server_address[1]).render_as_string(
                hide_password=False
            ),
        }
        stack.enter_context(the_last_of("kubernetes"))
        kubectl("create", "namespace", name)
        stack.callback(kubectl, "delete", "namespace", name, "--wait=false")
        literals = [f"--from-literal={key}={value}" for key, value in secret.items()]
        SealingKeyFile(home / "guest").ensure()
        identity = home / "guest" / "identity"
        files = [f"--from-file={use}={identity / use}.pem" for use in ("signing", "sealing")]
        kubectl("-n", name, "create", "secret", "generic", "bfia-gateway", *literals, *files)
        volumes = yaml.safe_dump_all(_volumes(name, home))
        kubectl(
            "apply",
            "-f",
            "-",
            stdin=volumes,
        )
        stack.callback(
            kubectl,
            "delete",
            "-f",
            "-",
            "--wait=false",
            stdin=volumes,
        )
        kubectl(
            "-n",
            name,
            "apply",
            "-f",
            "-",
            stdin=_manifests(home, image, bucket),
        )
        for pod in PODS:
            wait_for(
                lambda pod=pod: pod in kubectl("-n", name, "get", "pods", "-o", "name"),
                about="its pod",
            )
            kubectl("-n", name, "wait", "--for=condition=Ready", "--timeout=180s", f"pod/{pod}")
        gateways = tuple(stack.enter_context(_operated(name, pod, home)) for pod in PODS)
        site = Site(
            name,
            (gateways[0], gateways[1]),
            node,
            bucket,
            way_in,
        )
        way_in.target = (site.address(PODS[0]), 7380)
        their_key = Keyring(node.home / "state").pairs["signing"].public
        route = {
            "url": f"http://{host}:{port}",
            "keys": their_key,
        }
        response = site.gateways[0].ask(
            "PUT",
            f"/api/v1/routes/{jobs.HOST}",
            json={"route": route},
        )
        assert response.is_success, response.text
        yield site


def _manifests(
    home: Path,
    image: str,
    bucket: real.Place,
) -> str:
    """Return the shipped manifests with addresses and versions of the tests' cluster."""
    folder = home / "kubernetes"
    s3 = os.environ["BFIA_TEST_S3"].removeprefix("http://")
    s3_host, _, s3_port = s3.partition(":")
    lake = (
        f"s3://{s3}/{bucket.name}",
        f"region: default, username: {os.environ['BFIA_TEST_S3_KEY']}",
    )
    filled = {
        '"s3://10.0.0.7:9000/bfia", username: bfia': '"{}", {}'.format(*lake),
        "arn:aws:iam:::role/bfia-run": os.environ["BFIA_TEST_S3_ROLE"],
        "registry.example.com": f'"{os.environ["BFIA_TEST_KUBERNETES_TLS_REGISTRY"]}"',
        "[node.yml]": "[node.yml, ca.pem]",
        "          env:\n": (
            "          env:\n            - {name: SSL_CERT_FILE, value: /etc/bfia/ca.pem}\n"
        ),
        "bfia-gateway:0.1.0": image,
        "10.0.0.7/32": f"{s3_host}/32",
        "port: 9000": f"port: {s3_port}",
    }
    shutil.copytree(ROOT / "compose" / "kubernetes", folder)
    shutil.copy(
        Path(os.environ["BFIA_TEST_KUBERNETES"]) / "pki" / "ca.crt",
        folder / "ca.pem",
    )
    for file in folder.glob("*.yml"):
        text = file.read_text(encoding="utf-8")
        for shipped, ours in filled.items():
            text = text.replace(shipped, ours)
        file.write_text(text, encoding="utf-8")
    return kubectl("kustomize", str(folder)).replace("policy/v1\n", "policy/v1beta1\n")


def _volumes(
    namespace: str,
    home: Path,
) -> Iterator[dict[str, Any]]:
    """Return volumes for the node's claims; both machines see the folder."""
    for claim, mode in (
        ("bfia-storage", "ReadWriteMany"),
        *((f"state-{pod}", "ReadWriteOnce") for pod in PODS),
    ):
        folder = home / claim
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)
        spec = {
            "capacity": {"storage": "100Gi"},
            "accessModes": [mode],
            "hostPath": {"path": str(folder)},
            "claimRef": {
                "namespace": namespace,
                "name": claim,
            },
        }
        about = {"name": f"{namespace}-{claim}"}
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": about,
            "spec": spec,
        }


@contextlib.contextmanager
def _operated(
    namespace: str,
    pod: str,
    home: Path,
) -> Iterator[Node]:
    """Yield a gateway as its admin reaches it: by a forwarded port of this machine."""
    folder = Path(os.environ["BFIA_TEST_KUBERNETES"])
    line = [str(folder / "bin" / "kubectl"), "-n", namespace, "port-forward", f"pod/{pod}", ":7382"]
    environment = {**os.environ, "KUBECONFIG": str(folder / "admin.conf")}
    with subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().partition(" -> ")[0].rpartition(":")[2]
            about = {"operator": f"http://127.0.0.1:{port}"}
            headers = {"authorization": f"Bearer {TOKEN}"}
            yield Node(
                jobs.GUEST,
                home / pod,
                {},
                addresses=about,
                headers=headers,
            )
        finally:
            process.terminate()


def test_a_job_ends_well_although_a_gateway_dies(site):
    """The gateway that took the job is deleted while the job runs; the other one continues it."""
    taker, survivor = site.gateways
    vendor = f"{os.environ['BFIA_TEST_KUBERNETES_TLS_REGISTRY']}/unionpay:2.0.0"
    for node, image in ((taker, vendor), (site.partner, "unionpay:2.0.0")):
        body = jobs.example("register_unionpay.json")
        body["metadata"]["image"] = image
        node.register(body)
    jobs.upload(
        survivor,
        "guest",
        storage="lake",
    )
    jobs.upload(site.partner, "host")
    job_id = taker.submit(jobs.quick_job(jobs.GUEST, jobs.HOST, depth=5))

    def is_training() -> bool:
        job = survivor.job(job_id)
        assert not job.get("failure"), job["failure"]
        return any(
            run["task_name"] == TRAIN and run["status"] == "RUNNING" for run in job.get("runs", ())
        )

    wait_for(is_training, about="it trains")
    site.way_in.target = (site.address(PODS[1]), 7380)
    site.kubectl(
        "delete",
        "pod",
        PODS[0],
        "--grace-period=0",
        "--force",
    )
    survivor.wait_job(job_id, 400)
    assert {name.split("/")[0] for name in names(site.bucket)} >= {f"{job_id}-guest-0"}
    assert [model["version"] for model in survivor.get("/api/v1/models")["models"]] == [job_id]
    assert len(jobs.events(survivor, job_id, "job FINISHED")) == 1
    assert len(jobs.events(survivor, job_id, "task accepted")) == 2
    assert site.kubectl("get", "jobs", "-o", "name").split() == []


def test_a_run_reaches_nothing_of_the_gateway_but_its_containers_listener(site):
    address = site.address(PODS[1])
    doors = [f"{address}:{port}" for port in (7380, 7381, 7382)]
    with ThreadPoolExecutor() as pool:
        from_run, from_other_pod = pool.map(
            partial(_reached, site, doors),
            (
                {"bfia-run": "try"},
                {},
            ),
        )
    assert [from_run[door] for door in doors] == [False, True, False]
    assert [from_other_pod[door] for door in doors] == [True, False, True]


def _reached(
    site: Site,
    doors: list[str],
    labels: dict[str, str],
) -> dict[str, bool]:
    """Return which doors (addresses with ports) a pod with these labels can open."""
    name = f"try-{uuid.uuid4().hex[:8]}"
    image = f"{os.environ['BFIA_TEST_KUBERNETES_REGISTRY']}/bfia-base:py311"
    container = {
        "name": "try",
        "image": image,
        "command": ["python3", "-c", LOOK, *doors],
    }
    container["resources"] = {"requests": {"cpu": "0", "memory": "0"}}  # type: ignore[assignment]
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels,
        },
        "spec": spec,
    }
    site.kubectl(
        "create",
        "-f",
        "-",
        stdin=json.dumps(body),
    )
    phase = ("get", "pod", name, "-o", "jsonpath={.status.phase}")
    wait_for(lambda: site.kubectl(*phase) in ("Succeeded", "Failed"), about="it has looked")
    return dict(json.loads(site.kubectl("logs", name)))
