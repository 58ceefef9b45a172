"""Whatever happens to a job, the wire shows the standard's states only, and progress that never falls."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from adapter.bfia.profiles import PROFILES
from adapter.bfia.translate import status_body
from gateway.domain.job import Job
from gateway.domain.timeouts import Timing
from gateway.jobs.views import view
from tests.domain.clockwork import Broken
from tests.domain.strategies import PLAYED, plots
from tests.domain.world import World

JOB_WORDS = {"PENDING", "READY", "REJECTED", "RUNNING", "FINISHED"}
TASK_WORDS = {"PENDING", "READY", "RUNNING", "SUCCESS", "FAILED"}


class Watched(World):
    """A world in which somebody of each dialect asks after every change of the job."""

    shown = 0
    progress = 0

    def _check_move(self, old: Job, new: Job) -> None:
        super()._check_move(old, new)
        seen = view(new, Timing())
        for name, profile in PROFILES.items():
            data = status_body(seen, profile)
            words = set(data["status"].values())
            if not words <= (TASK_WORDS if profile.knows_ready else TASK_WORDS - {"READY"}):
                raise Broken(f"{name} is shown {words}")
            if profile.reads_job_status:
                words = {data["job_status"]}
                if not words <= JOB_WORDS:
                    raise Broken(f"{name} is shown {words}")
                over = data["job_status"] in ("FINISHED", "REJECTED")
                if over is not (data["outcome"] is not None):
                    raise Broken(f"{data['job_status']} with outcome {data['outcome']}")
                if data["progress"] < self.progress:
                    raise Broken(f"progress falls from {self.progress} to {data['progress']}")
                if (data["progress"] == 100) is not (data["outcome"] == "SUCCEEDED"):
                    raise Broken(f"progress {data['progress']} with outcome {data['outcome']}")
            elif set(data) != {"status"}:
                raise Broken(f"{name} is shown {set(data)}")
        self.progress = max(self.progress, seen.progress)
        self.shown += 1


@pytest.mark.slow
@given(plots())
@settings(PLAYED, max_examples=10)
def test_the_wire_shows_the_standards_states_and_progress_that_never_falls(plot):
    """Each flow with other times, order and luck six times."""
    for seed in range(6):
        world = Watched(replace(plot, seed=plot.seed + seed))
        job = world.run()
        assert world.shown
        assert (job.progress == 100) is (str(job.outcome) == "SUCCEEDED")
