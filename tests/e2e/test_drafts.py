"""What ``job draft`` writes runs as it is: nothing has to be known of a component to see it work."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from tests.e2e import jobs
from tests.e2e.nodes import REFERENCE_IMAGE, Federation, example, process_engine

CHAINS = [["reference/Intersection"], ["reference/Intersection", "reference/HeteroSecureBoost"]]


def some_rows(role: str, folder: Path, count: int = 24) -> Path:
    """Return the party's table with the first common ids only, sorted: default keys are slow on all of it."""
    tables = {r: (jobs.DATA / f"breast_hetero_{r}.csv").read_text().splitlines() for r in ("guest", "host")}
    ids = set.intersection(*({line.partition(",")[0] for line in t[1:]} for t in tables.values()))
    kept = sorted(line for line in tables[role][1:] if line.partition(",")[0] in sorted(ids)[:count])
    file = folder / f"{role}.csv"
    file.write_text("\n".join([tables[role][0], *kept]) + "\n")
    return file


@pytest.mark.slow
def test_drafts_run_unedited(tmp_path: Path):
    with Federation(tmp_path, [jobs.GUEST], process_engine(REFERENCE_IMAGE)) as federation:
        node = federation[jobs.GUEST]
        node.register(example("reference_vendor/register_reference.json"))
        for role in ("guest", "host"):
            node.upload(some_rows(role, tmp_path), "bank", role)
        begun = []
        for chain in CHAINS:
            words = ["job", "draft", *chain, "--config", str(node.home / "node.yml")]
            drafted = CliRunner().invoke(app, [*words, "--data", "guest=bank#guest", "--data", "host=bank#host"])
            assert drafted.exit_code == 0, drafted.output
            file = tmp_path / f"draft-{len(begun)}.yml"
            file.write_text(drafted.stdout)
            handed_in = CliRunner().invoke(app, ["job", "submit", str(file), "--url", node.operator])
            assert handed_in.exit_code == 0, handed_in.output
            begun.append(handed_in.stdout.strip())
        for job_id in begun:
            node.wait_job(job_id)
