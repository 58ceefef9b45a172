"""The settings in ``job_params.common`` that change how a job is run, as typed values.

Each setting is read when it is accessed: a job under validation may still hold values that
`gateway.domain.validation` refuses. Null and absent are the same.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

T = TypeVar("T")

# Name of a setting of one task -> field of `TaskLimits`.
_TASK_SETTINGS: Mapping[str, str] = {
    "timeout": "timeout",
    "auto_retries": "retries",
    "auto_retry_delay": "retry_delay",
}


@dataclass(frozen=True)
class TaskLimits:
    """The limits of one task; times in seconds."""

    timeout: float | None = None  # of one attempt, from its first start on; None: no limit
    retries: int = 0  # how often a failed task is retried
    retry_delay: float = 0.0  # between the failure of an attempt and the start of the next one


@dataclass(frozen=True)
class JobLimits:
    """The limits of a job and its tasks: extensions, absent by default."""

    # seconds, counted from when every node had started the job; None: no limit
    job_timeout: float | None = None
    default: TaskLimits = TaskLimits()
    tasks: Mapping[str, TaskLimits] = field(default_factory=dict)  # tasks with limits of their own

    def of(self, task: str) -> TaskLimits:
        """Return the limits of one task: its own, or the default of the job."""
        return self.tasks.get(task, self.default)


@dataclass(frozen=True)
class JobSettings:
    """A typed view of the common settings of a job."""

    common: Mapping[str, Any]  # as they were submitted

    def _or_default(self, name: str, default: T) -> T:
        """Return a setting, or the default if the setting is null or absent.

        An empty value, such as 0 or an empty text, is replaced by the default as well.
        """
        value: T = self.common.get(name) or default
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean setting, written as a boolean or as text; false by default.

        Upper and lower case are the same in a text, and any text but "true" is false.
        """
        return str(self.common.get(name)).lower() == "true"

    @property
    def strict(self) -> bool:
        """Whether warnings about the submitted job reject it, as problems do; false by default."""
        return self.flag("strict")

    @property
    def checkpoints(self) -> bool:
        """Whether each task gets a folder that survives its attempts; false by default."""
        return self.flag("checkpoints")

    @property
    def task_sessions(self) -> bool:
        """Whether each attempt of a task has a session of its own on the channel.

        False by default: all containers of a job share one session.
        """
        return self.flag("task_sessions")

    @property
    def by_callback(self) -> bool:
        """Whether participants push their states; by default the scheduler polls.

        This is the standard's ``sync_type``.
        """
        return self.common.get("sync_type") == "callback"

    @property
    def priority(self) -> int:
        """The job's place in a queue for resources: higher goes first; 0 by default.

        Negative priorities are valid.
        """
        return self._or_default("priority", 0)

    @property
    def task_parallelism(self) -> int | None:
        """The number of tasks that may be under way at the same time; None: no limit."""
        return self.common.get("task_parallelism")

    @property
    def inherit(self) -> tuple[str, ...] | None:
        """The tasks that the job has to inherit from its earlier job (``old_job_id``).

        None if the setting is absent: the job then inherits every task that is unchanged.
        """
        tasks = self.common.get("inherit")
        if tasks is None:
            return None
        return tuple(tasks)

    @property
    def min_parties(self) -> Mapping[str, Any]:
        """The number of parties that are enough, by role.

        Empty by default. `gateway.domain.quorum` has the rule for roles without a number.
        """
        return self._or_default("min_parties", {})

    @property
    def required_parties(self) -> frozenset[str]:
        """Labels of the parties, such as ``guest.0``, without which the job does not run.

        Empty by default. `gateway.domain.quorum` has the rule for parties that are not listed.
        """
        return frozenset(self._or_default("required_parties", ()))

    @property
    def tolerable_tasks(self) -> Collection[str]:
        """The tasks that may fail while the job still succeeds; empty by default.

        Tasks that need the output of a failed one never start.
        """
        return self._or_default("tolerable_tasks", ())

    @property
    def time_limits(self) -> JobLimits:
        """How long the job and its tasks may take, and how often a task is retried.

        The entry of a task in ``tasks`` comes before the settings that the job has for all tasks.
        """
        default = TaskLimits(
            timeout=self.common.get("task_timeout"),
            retries=self._or_default("auto_retries", 0),
            retry_delay=self._or_default("auto_retry_delay", 0.0),
        )
        entries: Mapping[str, Mapping[str, Any]] = self._or_default("tasks", {})
        tasks = {name: _task_limits(entry, default) for name, entry in entries.items()}
        return JobLimits(
            job_timeout=self.common.get("timeout"),
            default=default,
            tasks=tasks,
        )


def _task_limits(
    entry: Mapping[str, Any],
    default: TaskLimits,
) -> TaskLimits:
    """Return the limits in a task's own entry; limits that it leaves out are the default's.

    Null in the entry is the same as leaving the limit out.
    """
    changes = {}
    for setting, field_name in _TASK_SETTINGS.items():
        value = entry.get(setting)
        if value is not None:
            changes[field_name] = value
    return replace(default, **changes)
