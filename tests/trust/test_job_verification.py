"""Checks of a finished job's signatures, at its nodes and from its archive."""

import json
import zipfile

import pytest

from gateway.jobs.bundle_document import FILE, document, verify
from tests.cli import call
from tests.inprocess import ME, PEER, ask
from tests.trust.bundles import STRANGERS_PAIR, a_job, signing_nodes


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with signing_nodes(tmp_path_factory.mktemp("nodes")) as world:
        yield world


@pytest.fixture(scope="module")
def finished_job(world):
    """Give the id of a signed job that has run to its end."""
    spec = a_job()
    world.me.coordinator.submit_job(spec, ME)
    world.end_all(spec)
    world.closed(
        spec.job_id,
        world.me,
        world.peer,
    )
    return spec.job_id


def bundle_document(gateway, job_id):
    """Return the document by which a finished job can be verified."""
    return ask(gateway, "operator", "GET", f"/api/v1/jobs/{job_id}/bundle").json()


def results_of(bundle):
    """Return the results of a verification, by check; None means that it could not be made."""
    return {result.check: result.good for result in verify(bundle)}


def test_a_finished_job_passes_every_check_at_both_nodes(world, finished_job):
    for gateway, party in ((world.me, "guest.0"), (world.peer, "host.0")):
        bundle = bundle_document(gateway, finished_job)
        stored = document(gateway.store.local_jobs.get(finished_job))
        assert bundle == json.loads(json.dumps(stored))
        checks = (
            "signature",
            "job_id",
            "node",
            "flow",
            "parties",
            "common",
            party,
            f"{party} of a, attempt 1",
        )
        assert results_of(bundle) == dict.fromkeys(checks, True)


def test_job_verify_reads_an_archive_or_asks_the_node(world, finished_job, tmp_path):
    archive = tmp_path / "job.zip"
    response = ask(world.peer, "operator", "GET", f"/api/v1/jobs/{finished_job}/archive")
    archive.write_bytes(response.content)

    done = call(
        "job",
        "verify",
        str(archive),
        "--config",
        str(tmp_path / "none.yml"),
    )

    assert done.exit_code == 0
    assert ME in done.stdout
    assert "DIFFERS" not in done.stdout
    url = world.peer.addresses()["operator"]
    of_node = call("job", "verify", finished_job, "--url", url)
    assert of_node.stdout == done.stdout


@pytest.mark.parametrize("name", ["the first characters", "last"])
def test_job_verify_takes_a_short_name_of_a_job(world, name):
    spec = a_job()
    world.me.coordinator.submit_job(spec, ME)
    world.end_all(spec)
    world.closed(
        spec.job_id,
        world.me,
        world.peer,
    )
    short_name = name if name == "last" else spec.job_id[:9]
    url = world.peer.addresses()["operator"]

    done = call("job", "verify", short_name, "--url", url)

    assert done.exit_code == 0
    assert done.stdout == call("job", "verify", spec.job_id, "--url", url).stdout


def test_job_verify_shows_where_what_ran_differs_from_what_was_signed(world, finished_job):
    bundle = bundle_document(world.peer, finished_job)
    run = bundle["runs"][0]
    assert run["digest"] != "sha256:other"
    other_run = {**run, "digest": "sha256:other"}

    of_other_image = {**bundle, "runs": [other_run]}
    assert results_of(of_other_image)[run["run"]] is False
    approved_here = {**of_other_image, "images": {run["component"]: "sha256:other"}}
    assert results_of(approved_here)[run["run"]] is None
    masked = {**bundle, "parts": {**bundle["parts"], "host.0": {"password": "***"}}}
    assert results_of(masked)["host.0"] is None
    changed = {**bundle, "parts": {**bundle["parts"], "host.0": {}}}
    assert results_of(changed)["host.0"] is False
    of_another_job = world.me.bundles.bundles_for(a_job(), [PEER])[PEER]
    assert results_of({**bundle, "bundle": of_another_job})["job_id"] is False
    of_stranger = {**bundle, "public_key": STRANGERS_PAIR.public}
    assert results_of(of_stranger) == {"signature": False}
    assert results_of({**bundle, "bundle": None}) == {"signature": False}


def write_archive(file, content):
    """Write the archive of a job with a bundle document."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(FILE, content)


def test_an_incomplete_archive_is_refused(world, finished_job, tmp_path):
    archive = tmp_path / "job.zip"
    bundle = bundle_document(world.peer, finished_job)
    write_archive(archive, json.dumps({**bundle, "parts": None}))
    assert call("job", "verify", str(archive)).exit_code == 2


def test_a_file_that_is_not_an_archive_is_refused(tmp_path):
    archive = tmp_path / "job.zip"
    archive.write_bytes(b"no zip")
    assert call("job", "verify", str(archive)).exit_code == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "is not the archive of a job"),
        (b" " * 2**24 + b"{}", "is not the archive of a job"),
        (b"{}", f"{FILE} of"),
    ],
    ids=["deeply nested", "expands", "empty"],
)
def test_an_archive_that_expands_or_is_empty_is_refused(tmp_path, content, message):
    archive = tmp_path / "job.zip"
    write_archive(archive, content)

    done = call("job", "verify", str(archive))

    assert done.exit_code == 2
    assert message in done.stderr
