"""``client.jobs``: draft, plan, submit and watch jobs.

Also reads the logs, outputs and reports of their runs at this node.
"""

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bfia_gateway_client import drafting, types
from bfia_gateway_client.bridge import call, stream
from bfia_gateway_client.calls import (
    Entries,
    Group,
    Json,
    W,
    next_step_of,
    path_of,
    provider_named,
    segment,
)
from bfia_gateway_client.errors import (
    GatewayError,
    JobFailed,
    Problem,
    StillRunning,
    harmless,
    invalid,
)
from bfia_gateway_client.frames import FrameReader, frame_of_rows, text_columns
from bfia_gateway_client.progress import OVER, Progress, watch_job
from bfia_gateway_client.transfers import download

SCHEDULE_PATH = "/v1/platform/schedule/job"


class Jobs(Group[W]):
    """Jobs. A party is named by role and index, such as ``guest.0``; default: the only one here."""

    @call
    async def draft(
        self,
        components: Sequence[str],
        parties: Mapping[str, str],
        data: Mapping[str, str],
        *,
        parameters: Mapping[str, Json] | None = None,
        flow: str = "draft",
    ) -> dict[str, Any]:
        """Return a job of components in sequence, each of which reads the newest table of the
        earlier ones. No job is created.

        ``components``: PROVIDER/COMPONENT, as in ``reference/HeteroLR``; the tasks are named after
        them in lower case. ``parties``: role -> node. ``data``: role -> dataset of that node.
        ``parameters``: task -> values; omitted ones have the component's default. The result may be
        changed before `plan` and `submit`. Raises `Invalid` with all that is missing or unknown.
        """
        described = [await self._component(reference) for reference in components]
        return drafting.job(drafting.chained(described), parties, data, parameters or {}, flow)

    async def _component(self, reference: str) -> drafting.Component:
        """Load a component by its reference, PROVIDER/COMPONENT.

        Raises `Invalid` for an unknown one.
        """
        provider_name, _, name = reference.rpartition("/")
        is_complete = bool(provider_name) and bool(name)
        if not is_complete:
            text = "must read PROVIDER/COMPONENT, such as reference/HeteroLR"
            raise invalid(Problem("components", text, reference))
        path = path_of("providers", await provider_named(self._wire, provider_name))
        provider = await self._wire.call("GET", path)
        if name not in provider["components_description"]:
            names = ", ".join(provider["components_description"])
            text = f"is not a component of {provider_name}; it has {names}"
            raise invalid(Problem("components", text, name))
        form = await self._wire.call("GET", f"{path}/components/{segment(name)}/parameters")
        return drafting.of_description(provider, name, form)

    @call
    async def plan(self, job: Json) -> types.Plan:
        """Ask every party whether a job could run, and create nothing; ``good``: no obstacle is
        known.

        Checks images, data and grants, present resources, routes in both directions, and required
        approvals.
        """
        path = path_of("jobs", "plan")
        return await self._ask(
            types.Plan,
            "POST",
            path,
            _body_of(job),
            timeout=120,
        )

    @call
    async def submit(self, job: Json, *, key: str = "") -> str:
        """Submit a job, and return its id after every participating node has accepted it.

        ``key``: a text of your choice, another one for each job. A submission that repeats key and
        job returns the id of the first one's job, for example after a lost response.

        Raises `Invalid` with the path of every mistake, and `Refused`; if the job is kept in spite
        of that, its id is ``data["job_id"]`` of the error.
        """
        headers = {}
        if key:
            headers["Idempotency-Key"] = key
        response = await self._wire.call(
            "POST",
            f"{SCHEDULE_PATH}/create_all",
            _body_of(job),
            headers=headers,
        )
        return str(response["data"]["job_id"])

    @call
    async def list(
        self,
        *,
        status: str = "",
        outcome: str = "",
        flow: str = "",
        partner: str = "",
        since: str = "",
        until: str = "",
        text: str = "",
        user: str = "",
        component: str = "",
        reason: str = "",
        limit: int = 20,
    ) -> Entries[types.ListedJob]:
        """Return jobs that this node schedules or takes part in, at most ``limit``, the newest
        first.

        ``status`` and ``outcome``: one or several, separated by commas. ``partner``: the id of a
        node. ``since``, ``until``: a date or time in UTC. ``text`` occurs in the id, flow,
        submitter, nodes or components; ``component``: its name, or provider/name; ``reason``: of
        the failure.
        """
        query = {
            "status": status,
            "outcome": outcome,
            "flow_id": flow,
            "partner": partner,
            "since": since,
            "until": until,
            "text": text,
            "user": user,
            "component": component,
            "reason": reason,
        }
        return await self._list(types.ListedJob, path_of("jobs"), "jobs", limit, query)

    @call
    async def show(self, job_id: str) -> types.Job:
        """Return a job: its parameters, its tasks at each party, and the reason why it failed or
        waits.
        """
        return await self._ask(types.Job, "GET", path_of("jobs", job_id))

    @call
    async def watch(
        self,
        job_id: str,
        *,
        check: bool = True,
        progress: bool = True,
        timeout: float | None = None,
    ) -> types.Job:
        """Wait until a job is over, also through a restart of the node, and return it.

        Shows a progress bar in the notebook or on the terminal. Raises `JobFailed` if the job did
        not succeed, unless ``check`` is False; `NoAnswer` if the node is silent for five minutes;
        `StillRunning` if the job is not over after ``timeout`` seconds.
        """
        job: dict[str, Any] = {}
        deadline = math.inf
        if timeout is not None:
            deadline = time.monotonic() + timeout
        with Progress(job_id, enabled=progress) as bar:
            async for job, trouble in self._states(job_id):
                bar.show(job["progress"] / 100, trouble or _state_line(job))
                if job["status"] not in OVER and time.monotonic() >= deadline:
                    raise StillRunning(f"{job_id} is {job['status']} after {timeout:g} s")
        if check and job["outcome"] != "SUCCEEDED":
            raise await self._failure_of(job)
        return types.Job.model_validate(job)

    async def _failure_of(self, job: Json) -> JobFailed:
        """Return the error for a job without success, with the next step that its node advises."""
        failure = job["failure"] or {"reason": job["outcome"], "message": ""}
        reason = failure["reason"]
        explanation = {}
        # The node has no explanation of a reason that only a partner uses.
        with suppress(GatewayError):
            explanation = await self._wire.call("GET", path_of("reasons", reason))
        return JobFailed(
            f"{job['job_id']} {_failure_line(job['outcome'], failure)}",
            reason=reason,
            next_step=next_step_of(explanation.get("next_step", ""), job, failure),
            data=failure,
        )

    @stream
    async def states(self, job_id: str) -> AsyncIterator[types.Job]:
        """Yield a job several times a second until it is over."""
        async for job, _ in self._states(job_id):
            yield types.Job.model_validate(job)

    def _states(
        self,
        job_id: str,
    ) -> AsyncGenerator[tuple[dict[str, Any], str], None]:
        """Yield the job until it is over, each time with a notice.

        The notice is empty unless the node is silent, see `watch_job`.
        """

        async def fetch() -> dict[str, Any]:
            return await self._fetch(job_id)

        return watch_job(fetch, self._wire.sleep)

    async def _fetch(self, job_id: str) -> dict[str, Any]:
        """Return a job as the node describes it now."""
        job: dict[str, Any] = await self._wire.call(
            "GET",
            path_of("jobs", job_id),
        )
        return job

    @stream
    async def logs(
        self,
        job_id: str,
        task: str = "",
        party: str = "",
        *,
        tail: int = 0,
        level: str = "debug",
        follow: bool = False,
    ) -> AsyncIterator[str]:
        """Yield the log of a run here, control characters as ``?``; with ``follow`` until the run
        is over.

        ``tail``: only that number of lines at the end, 0: all. ``level``: the lowest level of the
        lines: debug (all), info or error.
        """
        path = await self._log_path(job_id, task, party)
        query = {"tail": tail or None, "level": level, "follow": follow}
        if follow:
            async for event, line in self._wire.events(path, query):
                if event != "end":  # this last event has no line of the log
                    yield harmless(line)
        else:
            async for line in self._wire.lines(path, query):
                yield harmless(line)

    async def _log_path(self, job_id: str, task: str, party: str) -> str:
        """Return the path of the log of a task's latest run.

        ``task``, ``party``: empty for the only one. Raises `Invalid` if no run, or runs of several
        tasks or parties, match.
        """
        job = await self._fetch(job_id)
        runs = []  # with the keys ``task`` and ``party``, as entries of outputs have them
        matches = []
        for run in job["runs"]:
            label = f"{run['party']['role']}.{run['party']['index']}"
            entry = {**run, "task": run["task_name"], "party": label}
            runs.append(entry)
            if task in ("", run["task_name"]) and party in ("", label):
                matches.append(entry)
        attempts = _of_one_party("run", matches, runs)
        latest = max(attempts, key=_attempt)
        return str(latest["log"])

    @call
    async def timeline(self, job_id: str) -> Entries[types.TimelineEntry]:
        """Return the events of a job at this node, in order."""
        response = await self._wire.call("GET", path_of("jobs", job_id, "timeline"))
        return types.Timeline.model_validate(response).timeline

    @call
    async def outputs(self, job_id: str) -> Entries[types.Output]:
        """Return the outputs of the runs here: tables, models, reports."""
        response = await self._wire.call("GET", path_of("jobs", job_id, "outputs"))
        return types.Outputs.model_validate(response).outputs

    @call
    async def table(
        self,
        job_id: str,
        task: str,
        key: str,
        party: str = "",
        *,
        to: str = "",
        text: Sequence[str] = (),
        progress: bool = True,
    ) -> Any:
        """Return an output table as a frame of pandas or polars (``to``; default: the installed
        one).

        Columns with ids, columns that the run declares as text, and those that ``text`` names are
        read as text, even if their values look like numbers. Raises `Invalid` for another kind of
        output, and if neither library is installed.
        """
        with FrameReader(to, "key") as reader, Progress(f"fetching {key}", enabled=progress) as bar:
            party = party or await self._party(job_id, "outputs", task, key)
            path = path_of("jobs", job_id, "metadata", task, party, key)
            metadata = await self._wire.call("GET", path)
            (output,) = metadata["outputs"]  # the path names a single output
            if drafting.group_of(output["type"]) != "data":
                problem = f"is a {output['type']}, not a table; download() fetches it as a file"
                raise invalid(Problem("key", problem, key))
            path = await self._path(job_id, "outputs", task, key, party)
            await download(self._wire, f"{path}/download", reader.file, bar.advance)
            declared = text_columns(output["columns"], output["id_column"])
            return reader.frame([*text, *declared])

    @call
    async def download(
        self,
        job_id: str,
        task: str,
        key: str,
        party: str = "",
        *,
        file: str | Path = "",
        progress: bool = True,
    ) -> Path:
        """Write an output in its stored form into a file (default: the key), and return the
        path.
        """
        target = Path(file or key)
        with Progress(f"fetching {key}", enabled=progress) as bar:
            path = await self._path(job_id, "outputs", task, key, party)
            await download(self._wire, f"{path}/download", target, bar.advance)
        return target

    @call
    async def reports(self, job_id: str) -> types.Reports:
        """Return the reports of the runs here, and warnings about their outputs."""
        return await self._ask(types.Reports, "GET", path_of("jobs", job_id, "reports"))

    @call
    async def report(
        self,
        job_id: str,
        task: str,
        key: str,
        party: str = "",
    ) -> types.Report:
        """Return a report: single ``values`` by their path, and ``series``, tables with columns and
        points.
        """
        path = await self._path(job_id, "reports", task, key, party)
        return await self._ask(types.Report, "GET", path)

    @call
    async def curve(
        self,
        job_id: str,
        task: str,
        key: str,
        party: str = "",
        *,
        series: str = "",
        to: str = "",
    ) -> Any:
        """Return a table of a report, such as the loss of each iteration, as a frame; default: the
        first.
        """
        path = await self._path(job_id, "reports", task, key, party)
        report = await self._wire.call("GET", path)
        if not report["series"]:
            text = "this report has no tables: report() returns its values"
            raise invalid(Problem("key", text, key))
        for table in report["series"]:
            if series in ("", table["name"]):
                return frame_of_rows(table["columns"], table["points"], to)
        names = ", ".join(table["name"] for table in report["series"])
        text = f"is not a table of this report; there are: {names}"
        raise invalid(Problem("series", text, series))

    async def _path(
        self,
        job_id: str,
        kind: str,
        task: str,
        key: str,
        party: str,
    ) -> str:
        """Return the path of an output or report. Raises `Invalid` as `_party` does.

        ``kind``: outputs or reports; ``party``: empty for the only one here.
        """
        party = party or await self._party(job_id, kind, task, key)
        return path_of("jobs", job_id, kind, task, party, key)

    async def _party(
        self,
        job_id: str,
        kind: str,
        task: str,
        key: str,
    ) -> str:
        """Return the one party here that has an output or a report. Raises `Invalid`."""
        response = await self._wire.call("GET", path_of("jobs", job_id, kind))
        entries = response[kind]
        matches = [entry for entry in entries if (entry["task"], entry["key"]) == (task, key)]
        entries_of_party = _of_one_party(kind.removesuffix("s"), matches, entries)
        return str(entries_of_party[0]["party"])  # all of these entries have the same party

    @call
    async def stop(self, job_id: str, task: str = "") -> None:
        """Stop a job at every node, or one task with its successors.

        A second stop changes nothing.
        """
        if task:
            body = {"job_id": job_id, "task_name": task}
            await self._wire.call("POST", f"{SCHEDULE_PATH}/stop_task", body)
        else:
            await self._wire.call("POST", f"{SCHEDULE_PATH}/stop_all", {"job_id": job_id})

    @call
    async def rerun(
        self,
        job_id: str,
        start: str = "",
        *,
        parameters: Json | None = None,
    ) -> types.Rerun:
        """Run an ended job again from a task on, as a new job that reuses the outputs of earlier
        tasks.

        ``start``: default the first task without success. ``parameters``: as in ``task_params`` of
        a job.
        """
        body = {"from": start, "parameters": {**(parameters or {})}}
        return await self._ask(types.Rerun, "POST", path_of("jobs", job_id, "rerun"), body)

    @call
    async def approve(
        self,
        job_id: str,
        *,
        reason: str = "",
    ) -> types.Decided:
        """Approve a job at this node."""
        path = path_of("jobs", job_id, "approve")
        return await self._ask(types.Decided, "POST", path, {"reason": reason})

    @call
    async def reject(
        self,
        job_id: str,
        *,
        reason: str = "",
    ) -> types.Decided:
        """Reject a job at this node; every node then rejects it and receives the reason."""
        path = path_of("jobs", job_id, "reject")
        return await self._ask(types.Decided, "POST", path, {"reason": reason})

    @call
    async def delete(
        self,
        job_id: str,
        *,
        here: bool = False,
        reason: str = "",
    ) -> types.Deleted:
        """Delete an ended job with its logs and outputs here; unless ``here``, also its outputs at
        other nodes.
        """
        query = {"here": here, "reason": reason}
        return await self._ask(
            types.Deleted, "DELETE", path_of("jobs", job_id), query=query, timeout=120
        )

    @call
    async def clean(
        self,
        job_id: str,
        task: str,
        *,
        metrics: bool = False,
        everywhere: bool = False,
        dry_run: bool = False,
    ) -> types.Deleted:
        """Delete the tables and models, or with ``metrics`` the reports, of a task of an ended job.

        Only here; with ``everywhere`` at all nodes of the job, whose results are in ``nodes``.
        """
        content = "metrics" if metrics else "outputs"
        query = {
            "content": content,
            "everywhere": everywhere,
            "dry_run": dry_run,
        }
        path = path_of("jobs", job_id, "tasks", task, "outputs")
        return await self._ask(types.Deleted, "DELETE", path, query=query, timeout=120)


def _attempt(run: Json) -> int:
    """Return the number of a run's attempt."""
    return int(run["attempt"])


def _of_one_party(
    kind: str,
    matches: Sequence[Json],
    entries: Sequence[Json],
) -> Sequence[Json]:
    """Return the matching entries, all of one task and party.

    ``kind``: how messages name an entry; ``entries``: all of them. Raises `Invalid` if nothing
    matches, or entries of several tasks or parties do.
    """
    tasks_of_parties = {(entry["task"], entry["party"]) for entry in matches}
    if len(tasks_of_parties) == 1:
        return matches
    labels = [f"{entry['task']} {entry.get('key', '')} of {entry['party']}" for entry in entries]
    choices = ", ".join(dict.fromkeys(labels)) or "none"
    if matches:
        text = f"more than one {kind} here matches; there are: {choices}"
        raise invalid(Problem("party", text))
    raise invalid(Problem("task", f"no {kind} here matches; there are: {choices}"))


def _failure_line(outcome: str, failure: Json) -> str:
    """Return outcome, reason, place and message of a failure, each text only once."""
    places = []
    for key in ("task", "role", "node"):
        if failure.get(key):
            places.append(f"{key} {failure[key]}")
    parts = [
        outcome,
        failure["reason"],
        " ".join(places),
        failure.get("message", ""),
    ]
    return ": ".join(filter(None, dict.fromkeys(parts)))


def _state_line(job: Json) -> str:
    """Return a job's state with its running tasks, else with the reason why it waits."""
    running = [task["name"] for task in job["tasks"] if task["status"] == "RUNNING"]
    waiting = (job["waiting"] or {}).get("message", "")
    parts = [job["outcome"] or job["status"], ", ".join(running) or waiting]
    return " ".join(filter(None, parts))


def _body_of(job: Any) -> dict[str, Any]:
    """Return a job as the body of a request. Raises `Invalid` for anything but a mapping."""
    if not isinstance(job, Mapping):
        text = "must be a mapping, such as json.load or jobs.draft returns"
        raise invalid(Problem("job", text, job))
    return {**job}
