"""``client.jobs``: draft, plan, submit and watch a job; read what its runs here wrote, left and reported."""

import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bfia_gateway_client import drafting, types
from bfia_gateway_client.calls import (
    Entries,
    Group,
    W,
    call,
    next_step_of,
    path_of,
    provider_named,
    segment,
    stream,
)
from bfia_gateway_client.errors import (
    GatewayError,
    JobFailed,
    Problem,
    StillRunning,
    harmless,
    invalid,
)
from bfia_gateway_client.frames import Picture, Reading, of_points, text_columns
from bfia_gateway_client.progress import OVER, Progress, looks
from bfia_gateway_client.transfers import download

_SCHEDULE = "/v1/platform/schedule/job"


class Jobs(Group[W]):
    """Jobs. A party is named by role and index, such as ``guest.0``; default: the only one here."""

    @call
    async def draft(
        self,
        components: Sequence[str],
        parties: Mapping[str, str],
        data: Mapping[str, str],
        *,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
        flow: str = "draft",
    ) -> dict[str, Any]:
        """Return a job of components in their order, each reading what those before it wrote; creates nothing.

        ``components``: PROVIDER/COMPONENT, as in ``reference/HeteroLR``; the tasks are named after them in lower
        case. ``parties``: role -> node. ``data``: role -> dataset of that node. ``parameters``: task -> values;
        what is left out is the component's default. The result may be changed before `plan` and `submit`. Raises
        `Invalid` with everything that is missing or unknown.
        """
        described = [await self._described(one) for one in components]
        return drafting.job(drafting.chained(described), parties, data, parameters or {}, flow)

    async def _described(self, text: str) -> drafting.Component:
        given, _, name = text.rpartition("/")
        if not given or not name:
            raise invalid(
                Problem(
                    "components", "must read PROVIDER/COMPONENT, such as reference/HeteroLR", text
                )
            )
        path = path_of("providers", await provider_named(self._wire, given))
        provider = await self._wire.call("GET", path)
        if name not in provider["components_description"]:
            there = ", ".join(provider["components_description"])
            raise invalid(
                Problem("components", f"is not a component of {given}; it has {there}", name)
            )
        form = await self._wire.call("GET", f"{path}/components/{segment(name)}/parameters")
        return drafting.of_description(provider, name, form)

    @call
    async def plan(self, job: Mapping[str, Any]) -> types.Plan:
        """Ask every party what would happen to a job, and create nothing; ``good``: no obstacle is known.

        Checked are images, data and grants, resources now, routes in both directions, and who has to approve.
        """
        return await self._ask(
            types.Plan, "POST", path_of("jobs", "plan"), _body_of(job), timeout=120
        )

    @call
    async def submit(self, job: Mapping[str, Any]) -> str:
        """Submit a job, and return its id when every node of it has accepted it.

        Raises `Invalid` with every mistake and its path, and `Refused`; where the job is kept all the same, its id
        is ``data["job_id"]`` of the error.
        """
        found = await self._wire.call("POST", f"{_SCHEDULE}/create_all", _body_of(job))
        return str(found["data"]["job_id"])

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
        limit: int = 20,
    ) -> Entries[types.ListedJob]:
        """Return jobs that this node schedules or takes part in, at most ``limit``, the newest first.

        ``status`` and ``outcome``: words with commas between. ``since``, ``until``: a date or time in UTC.
        """
        narrow = {
            "status": status,
            "outcome": outcome,
            "flow_id": flow,
            "partner": partner,
        }
        narrow |= {"since": since, "until": until}
        return await self._list(types.ListedJob, path_of("jobs"), "jobs", limit, narrow)

    @call
    async def show(self, job_id: str) -> types.Job:
        """Return a job: its tasks at each party, why it failed or what it waits for, its parameters."""
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

        A progress bar stands in the notebook or on the terminal meanwhile. Raises `JobFailed` where it did not
        succeed, unless ``check`` is False; `NoAnswer` where the node is silent for five minutes, `StillRunning`
        where the job is not over after ``timeout`` seconds.
        """
        job: dict[str, Any] = {}
        until = math.inf if timeout is None else time.monotonic() + timeout
        with Progress(job_id, shown=progress) as shown:
            async for job, trouble in looks(lambda: self._look(job_id), self._wire.sleep):
                shown.show(job["progress"] / 100, trouble or _in_short(job))
                if job["status"] not in OVER and time.monotonic() >= until:
                    raise StillRunning(f"{job_id} is {job['status']} after {timeout:g} s")
        if check and job["outcome"] != "SUCCEEDED":
            failure = job["failure"] or {"reason": job["outcome"], "message": ""}
            where = " ".join(
                f"{key} {failure[key]}" for key in ("task", "role", "node") if failure.get(key)
            )
            words = dict.fromkeys(
                (job["outcome"], failure["reason"], where, failure.get("message", ""))
            )
            meant = {}
            with suppress(GatewayError):
                meant = await self._wire.call("GET", path_of("reasons", failure["reason"]))
            raise JobFailed(
                f"{job_id} {': '.join(filter(None, words))}",
                reason=failure["reason"],
                next_step=next_step_of(meant.get("next_step", ""), job, failure),
                data=failure,
            )
        return types.Job.model_validate(job)

    @stream
    async def states(self, job_id: str) -> AsyncIterator[types.Job]:
        """Yield a job several times a second until it is over."""
        async for job, _ in looks(lambda: self._look(job_id), self._wire.sleep):
            yield types.Job.model_validate(job)

    async def _look(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._wire.call("GET", path_of("jobs", job_id))
        return found

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
        """Yield the lines that a run here wrote, control characters as ``?``; with ``follow`` until it is over.

        ``tail``: only so many at the end, 0: all. ``level``: debug (all), info or error, and worse.
        """
        job = await self._look(job_id)
        runs = [
            {
                **run,
                "task": run["task_name"],
                "party": f"{run['party']['role']}.{run['party']['index']}",
            }
            for run in job["runs"]
        ]
        fits = [run for run in runs if task in ("", run["task"]) and party in ("", run["party"])]
        chosen = max(_of_one("run", fits, runs), key=lambda run: int(run["attempt"]))
        query = {
            "tail": tail or None,
            "level": level,
            "follow": follow,
        }
        if follow:
            async for event, line in self._wire.events(chosen["log"], query):
                if event != "end":
                    yield harmless(line)
        else:
            async for line in self._wire.lines(chosen["log"], query):
                yield harmless(line)

    @call
    async def timeline(self, job_id: str) -> Entries[types.TimelineEntry]:
        """Return all that happened to a job here, in its order."""
        found = await self._wire.call("GET", path_of("jobs", job_id, "timeline"))
        return types.Timeline.model_validate(found).timeline

    @call
    async def outputs(self, job_id: str) -> Entries[types.Output]:
        """Return what the runs here left: tables, models, reports."""
        found = await self._wire.call("GET", path_of("jobs", job_id, "outputs"))
        return types.Outputs.model_validate(found).outputs

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
        """Return a table that a run left as a frame of pandas or polars (``to``; default: what is installed).

        Columns that the run declares as text, its ids, and those that ``text`` names are kept as text. Raises
        `Invalid` for another kind of output, and where neither library is installed.
        """
        with Reading(to) as reading, Progress(f"fetching {key}", shown=progress) as shown:
            party = party or await self._party(job_id, "outputs", task, key)
            about = await self._wire.call(
                "GET", path_of("jobs", job_id, "metadata", task, party, key)
            )
            (described,) = about["outputs"]
            if drafting.group_of(described["type"]) != "data":
                raise invalid(
                    Problem("key", f"is a {described['type']}, not a table; there is download", key)
                )
            known = text_columns(described["columns"], described["id_column"])
            path = await self._path(job_id, "outputs", task, key, party)
            await download(self._wire, f"{path}/download", reading.file, shown.moved)
            return reading.frame([*text, *known])

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
        """Write an output as it lies in the storage into a file (default: the key), and return its path."""
        target = Path(file or key)
        with Progress(f"fetching {key}", shown=progress) as shown:
            path = await self._path(job_id, "outputs", task, key, party)
            await download(self._wire, f"{path}/download", target, shown.moved)
        return target

    @call
    async def reports(self, job_id: str) -> types.Reports:
        """Return which reports the runs here wrote, and warnings about what they left."""
        return await self._ask(types.Reports, "GET", path_of("jobs", job_id, "reports"))

    @call
    async def report(
        self,
        job_id: str,
        task: str,
        key: str,
        party: str = "",
    ) -> types.Report:
        """Return a report: single ``values`` by their path, and ``series``, tables with columns and points."""
        return await self._ask(
            types.Report, "GET", await self._path(job_id, "reports", task, key, party)
        )

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
        """Return a table of a report, such as the loss of each iteration, as a frame; default: the first."""
        found = await self._wire.call("GET", await self._path(job_id, "reports", task, key, party))
        if not found["series"]:
            raise invalid(
                Problem("key", "this report has no tables: report() returns its values", key)
            )
        fits = [one for one in found["series"] if series in ("", one["name"])]
        if not fits:
            there = ", ".join(one["name"] for one in found["series"])
            raise invalid(
                Problem("series", f"is not a table of this report; there are: {there}", series)
            )
        return of_points(fits[0]["columns"], fits[0]["points"], to)

    @call
    async def plot(
        self,
        job_id: str,
        task: str,
        key: str,
        party: str = "",
        *,
        series: str = "",
    ) -> Picture:
        """Return a report as a picture, which a notebook shows; ``series``: one of its ``plots``."""
        pieces: Entries[bytes] = []
        path = await self._path(job_id, "reports", task, key, party)
        await self._wire.fetch(
            f"{path}/plot", lambda piece, _: pieces.append(piece), {"series": series}
        )
        return Picture(b"".join(pieces).decode())

    async def _path(
        self,
        job_id: str,
        kind: str,
        task: str,
        key: str,
        party: str,
    ) -> str:
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
        found = (await self._wire.call("GET", path_of("jobs", job_id, kind)))[kind]
        fits = [one for one in found if (one["task"], one["key"]) == (task, key)]
        return str(_of_one(kind.removesuffix("s"), fits, found)[-1]["party"])

    @call
    async def stop(self, job_id: str, task: str = "") -> None:
        """Stop a job at every node, or one task with all that needs its output. A second stop changes nothing."""
        body = {"job_id": job_id, **({"task_name": task} if task else {})}
        await self._wire.call("POST", f"{_SCHEDULE}/{'stop_task' if task else 'stop_all'}", body)

    @call
    async def rerun(
        self,
        job_id: str,
        start: str = "",
        *,
        parameters: Mapping[str, Any] | None = None,
    ) -> types.Rerun:
        """Run an ended job again from a task on, as a new job; what was finished before is taken over.

        ``start``: default the first task that has not succeeded. ``parameters``: as in ``task_params`` of a job.
        """
        body = {"from": start, "parameters": {**(parameters or {})}}
        return await self._ask(types.Rerun, "POST", path_of("jobs", job_id, "rerun"), body)

    @call
    async def approve(self, job_id: str, *, reason: str = "") -> types.Decided:
        """Agree to a job at this node."""
        return await self._ask(
            types.Decided, "POST", path_of("jobs", job_id, "approve"), {"reason": reason}
        )

    @call
    async def reject(self, job_id: str, *, reason: str = "") -> types.Decided:
        """Refuse a job at this node; it is then rejected at every node, and the reason goes there."""
        return await self._ask(
            types.Decided, "POST", path_of("jobs", job_id, "reject"), {"reason": reason}
        )

    @call
    async def delete(
        self,
        job_id: str,
        *,
        here: bool = False,
        reason: str = "",
    ) -> types.Deleted:
        """Delete an ended job with its logs and outputs here, and unless ``here`` its outputs at other nodes."""
        query = {"here": here, "reason": reason}
        return await self._ask(
            types.Deleted, "DELETE", path_of("jobs", job_id), query=query, timeout=120
        )


def _of_one(
    kind: str,
    fits: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
) -> Sequence[Mapping[str, Any]]:
    """Return the entries that fit, which are all of one task and party. Raises `Invalid` where that is not so."""
    if len({(one["task"], one["party"]) for one in fits}) == 1:
        return fits
    there = ", ".join(
        dict.fromkeys(f"{one['task']} {one.get('key', '')} of {one['party']}" for one in found)
    )
    what = f"more than one {kind}" if fits else f"no {kind}"
    raise invalid(
        Problem("party" if fits else "task", f"{what} here matches; there are: {there or 'none'}")
    )


def _in_short(job: Mapping[str, Any]) -> str:
    """Return the state of a job in a line: what runs, or what is waited for."""
    running = [task["name"] for task in job["tasks"] if task["status"] == "RUNNING"]
    waiting = (job["waiting"] or {}).get("message", "")
    return " ".join(filter(None, (job["outcome"] or job["status"], ", ".join(running) or waiting)))


def _body_of(job: Any) -> dict[str, Any]:
    if not isinstance(job, Mapping):
        raise invalid(
            Problem("job", "must be a mapping, such as json.load or jobs.draft returns", job)
        )
    return {**job}
