"""The wire shows only the standard's states of any job, and progress that never falls."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from adapter.bfia.profiles import PROFILES, Profile
from adapter.bfia.views import status_body
from gateway.domain.job import Job
from gateway.domain.timeouts import Timing
from gateway.jobs.views import view
from tests.domain.clockwork import require
from tests.domain.strategies import PLAYED, plots
from tests.domain.world import World

JOB_WORDS = {"PENDING", "READY", "REJECTED", "RUNNING", "FINISHED"}
FINAL_JOB_WORDS = {"REJECTED", "FINISHED"}
TASK_WORDS = {"PENDING", "READY", "RUNNING", "SUCCESS", "FAILED"}


class WatchedWorld(World):
    """A world in which a peer of each dialect queries the job after every change."""

    queries = 0
    progress = 0

    def _check_move(self, old: Job, new: Job) -> None:
        super()._check_move(old, new)
        job_view = view(new, Timing())
        for profile in PROFILES.values():
            data = status_body(job_view, profile)
            self._check_task_words(data, profile)
            if profile.reads_job_status:
                self._check_job_status(data, profile)
            else:
                require(set(data) == {"status"}, f"{profile.name} is shown {set(data)}")
        self.progress = max(self.progress, job_view.progress)
        self.queries += 1

    def _check_task_words(
        self,
        data: dict[str, Any],
        profile: Profile,
    ) -> None:
        allowed = TASK_WORDS
        if not profile.knows_ready:
            allowed = TASK_WORDS - {"READY"}
        words = set(data["status"].values())
        require(words <= allowed, f"{profile.name} is shown {words}")

    def _check_job_status(
        self,
        data: dict[str, Any],
        profile: Profile,
    ) -> None:
        word = data["job_status"]
        outcome = data["outcome"]
        progress = data["progress"]
        require(word in JOB_WORDS, f"{profile.name} is shown {word}")

        is_over = word in FINAL_JOB_WORDS
        has_outcome = outcome is not None
        require(is_over is has_outcome, f"{word} with outcome {outcome}")

        require(progress >= self.progress, f"progress falls from {self.progress} to {progress}")
        is_complete = progress == 100
        has_succeeded = outcome == "SUCCEEDED"
        require(is_complete is has_succeeded, f"progress {progress} with outcome {outcome}")


@pytest.mark.slow
@given(plots())
@settings(PLAYED, max_examples=10)
def test_the_wire_shows_the_standards_states_and_progress_that_never_falls(plot):
    """Each flow is played six times with other times, order and luck."""
    for seed in range(6):
        world = WatchedWorld(replace(plot, seed=plot.seed + seed))
        job = world.run()

        assert world.queries > 0
        is_complete = job.progress == 100
        has_succeeded = str(job.outcome) == "SUCCEEDED"
        assert is_complete is has_succeeded
