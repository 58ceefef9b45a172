"""Versions side by side: at a partner, at the gateways of one node, and in a rehearsal.

The older ones are commits of the past. The next one is this one with a revision that adds.
"""

import json
import subprocess
import sys

import pytest

from gateway.store.database import newest_revision, schema_revisions
from tests.e2e import jobs
from tests.e2e.nodes import COMMAND, ROOT, Federation, environment_of, wait_for
from tests.e2e.two_gateways import shared_node
from tools.release.source import export

pytestmark = [
    pytest.mark.scale,
    pytest.mark.mariadb,
]

FORMER = "648138eb"  # the commit whose partners, and whose database, the release accepts
BEFORE = "cb6347d7"  # the last commit before revision 0025
NEXT = "0099_next"
REVISION = '''"""A revision as a later version may bring it."""

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{former}"


def upgrade():
    op.create_table("novelty", sa.Column("name", sa.String(64), primary_key=True))
    for name in ("job", "local_job", "task", "run"):
        op.add_column(name, sa.Column("novelty", sa.Integer))
'''
PROGRAM = f"""#!{sys.executable}
import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "clients" / "python")]}
from gateway.cli import begin
begin()
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The folders with the sources of each version."""
    folder = tmp_path_factory.mktemp("sources")
    for revision in (FORMER, BEFORE):
        export(ROOT, revision, folder / revision)
    export(ROOT, "HEAD", folder / NEXT)
    file = folder / NEXT / "gateway" / "store" / "migrations" / "versions" / f"{NEXT}.py"
    file.write_text(REVISION.format(revision=NEXT, former=newest_revision()))
    return folder


def exchange(gateway, sources):
    """Stop a gateway, and start it from other sources."""
    gateway.stop()
    gateway.sources = sources
    gateway.start()


@pytest.fixture
def register(tmp_path):
    folder = tmp_path / "register"
    folder.mkdir()
    return folder


# ------------------------------------------------------------ partners


@pytest.mark.parametrize("version", [FORMER, BEFORE])
def test_jobs_run_with_a_partner_of_an_older_version(version, sources, register, tmp_path):
    federation = Federation(
        tmp_path / "nodes",
        [jobs.GUEST, jobs.HOST],
        jobs.PATIENT_ENGINE,
    )
    partner = federation[jobs.HOST]
    partner.sources = sources / version
    with federation:
        for node in federation:
            node.register(jobs.A_PROVIDER)
        for guest, host in ((jobs.GUEST, jobs.HOST), (jobs.HOST, jobs.GUEST)):
            body = jobs.job_of(register, {"a": 0, "b": 0}, {"b": "a"})
            body["config"]["initiator"]["node_id"] = guest
            body["config"]["role"] = {"guest": [guest], "host": [host]}
            job_id = federation[guest].submit(body)
            for node in federation:
                node.wait_job(job_id)
        partner.stop()
        if version == BEFORE:
            check_rehearsal(partner, tmp_path)


def check_rehearsal(partner, folder):
    """Rehearse the upgrade of an older version to this one: no response differs."""
    program = folder / "bfia-gateway"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    words = ["upgrade", "rehearse", "--json", "--new", str(program)]
    result = subprocess.run(
        [*COMMAND, *words, "--config", str(partner.home / "node.yml")],
        cwd=partner.sources,
        env=environment_of(partner.sources),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["differences"] == []
    assert report["requests"] >= 4


# ------------------------------------------------------------ gateways of one node


def test_gateways_are_exchanged_one_after_the_other(sources, register, tmp_path, worker_id):
    """A job begins at the older version and ends at the newer one; both run jobs meanwhile."""
    with shared_node(tmp_path, f"{worker_id}_old", sources=sources / BEFORE) as nodes:
        first, second, _ = nodes
        job_id, end = submit_lasting_job(first, register, tmp_path)

        exchange(second, ROOT)
        assert revision_at(first) == newest_revision()
        run_jobs_at(nodes, register)

        exchange(first, ROOT)
        end.touch()
        for node in nodes:
            node.wait_job(job_id)
        assert started_once(register)


def test_an_older_gateway_starts_again_beside_a_newer_one(sources, register, tmp_path, worker_id):
    """An upgrade can also be taken back while jobs run, without restoring the database."""
    with shared_node(tmp_path, f"{worker_id}_next") as nodes:
        first, second, _ = nodes
        job_id, end = submit_lasting_job(second, register, tmp_path)

        exchange(second, sources / NEXT)
        assert revision_at(first) == NEXT
        exchange(first, ROOT)
        run_jobs_at(nodes, register)

        exchange(second, ROOT)
        end.touch()
        for node in nodes:
            node.wait_job(job_id)
        assert started_once(register)


def submit_lasting_job(gateway, register, folder):
    """Submit a job that lasts until a file exists; return its id and the file."""
    end = folder / "end"
    job_id = gateway.submit(jobs.job_of(register, {"lasting": 0}, until=str(end)))
    wait_for(lambda: len(jobs.running(register)) == 2, about="both containers run")
    return job_id, end


def run_jobs_at(nodes, register):
    """Run a job of each gateway of the guest's node, and observe it at the other."""
    first, second, host = nodes
    for name, gateway, other in (("a", first, second), ("b", second, first)):
        job_id = gateway.submit(jobs.job_of(register, {name: 0}))
        for node in (other, host):
            node.wait_job(job_id)


def revision_at(gateway):
    """Return the revision of the schema of a gateway's database."""
    return schema_revisions(gateway.settings["database"]["url"]).current


def started_once(register):
    """Return whether no container was started twice."""
    names = [file.name.rpartition(".")[0] for file in register.iterdir()]
    return len(names) == len(set(names))
