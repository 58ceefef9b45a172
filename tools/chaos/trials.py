"""Trials: a fault in a phase of a job, and the rules that must hold afterwards in any case."""

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import httpx

from tests.e2e.jobs import STOP, job_of, limited
from tests.e2e.nodes import Node, wait_for
from tools.chaos import clusters, links, pair, proxy
from tools.chaos.pair import Pair
from tools.chaos.world import World

PHASES = ("creating", "starting", "running", "stopping")
KILLS = ("kill guest", "kill host", "kill container", "kill database", "disk full")
FAULTS = (*proxy.FAULTS, *KILLS)
DAEMON_FAULTS = ("kill dockerd",)  # of an engine that is a process
ENDS_CONTAINERS = ("kill container", *DAEMON_FAULTS)

ENDED = ("FINISHED", "REJECTED")
TASK_SECONDS = {"a": 1.5, "b": 0.3}
_ROUNDS = 40  # of messages between the containers of closed nodes, so that faults meet them
_ENDLESS = 600.0  # seconds of a task that a trial stops
_EXPECTED_CONTAINERS = 4  # of a job that succeeds: two tasks at two parties
_LONGEST_STATE = 3000  # characters of a job in a message
_FILL_BLOCK = b"\0" * 65536
_CREATE = "/v1/platform/schedule/job/create_all"
_LIST = "/v1/platform/schedule/job/query_job_list"
# Outcomes of a job at the host, in addition to the scheduler's.
_NEVER_ACCEPTED = "never accepted"

Action = Callable[[], object]


@dataclass(frozen=True)
class Trial:
    """A fault in a phase."""

    phase: str
    fault: str
    seed: int
    retries: int = 0  # of a task, by the node
    brief: bool = False  # see `Containers.brief`


@dataclass(frozen=True)
class Result:
    """The end of a trial's job; ``broken``: the rule that did not hold, empty if all did."""

    trial: Trial
    outcome: str
    reason: str
    seconds: float
    broken: str = ""
    until_back: float = 0.0  # seconds from the end of a fault of links until a request passed


class Broken(AssertionError):
    """A rule that must hold after every trial does not."""


# ---------------------------------------------------------------- which trials


def all_trials(
    seed: int,
    engine: str = "process",
    paired: bool = False,
) -> list[Trial]:
    """Return a trial for each phase and each of its faults, in an order that the seed determines.

    ``paired``: the guest's node has two gateways.
    """
    is_cluster = engine in clusters.FAULTS
    engine_faults = _faults_of_engine(engine)
    combinations = list(_combinations(engine, paired))
    random = Random(seed)
    random.shuffle(combinations)
    if is_cluster:  # a short run, which plays the first trials, plays the cluster's own faults
        combinations.sort(key=lambda combination: combination[1] not in engine_faults)
    possible_retries = (0, 1) if is_cluster else (0,)
    trials = []
    for number, (phase, fault) in enumerate(combinations):
        retries = random.choice(possible_retries)
        trials.append(Trial(phase, fault, _trial_seed(seed, number), retries))
    return trials


def _combinations(
    engine: str,
    paired: bool,
) -> Iterator[tuple[str, str]]:
    """Yield each phase with each fault that makes sense in it."""
    if engine == "links":
        yield from itertools.product(PHASES, links.FAULTS)
        return
    faults = list(FAULTS)
    if paired:
        faults.remove("kill guest")
        faults = [*pair.FAULTS, *faults]
    if engine in clusters.FAULTS:  # the data is not on the disk that would be full
        faults.remove("disk full")
    faults += _faults_of_engine(engine)
    for phase in PHASES:
        for fault in faults:
            has_containers = phase in ("running", "stopping")
            if fault != "kill container" or has_containers:
                yield phase, fault


def _faults_of_engine(engine: str) -> tuple[str, ...]:
    """Return the faults of the engine itself."""
    if engine == "docker":
        return DAEMON_FAULTS
    return clusters.FAULTS.get(engine, ())


def sample(seed: int, engine: str) -> list[Trial]:
    """Return brief trials: one of each fault of a cluster or of links, and perhaps further ones."""
    samples = clusters.SAMPLE | {"links": links.SAMPLE}
    trials = []
    for number, (phase, fault) in enumerate(samples[engine]):
        trials.append(Trial(phase, fault, _trial_seed(seed, number), brief=True))
    return trials


def _trial_seed(seed: int, number: int) -> int:
    return seed * 1000 + number


def play(world: World, trial: Trial) -> Result:
    """Run a trial and check the rules. It leaves nothing for the next one."""
    start = time.monotonic()
    world.containers.forget()
    world.containers.brief = trial.brief
    outcome = ""
    reason = ""
    broken = ""
    try:
        job_id = _run_job(world, trial)
        outcome, reason = _check_rules(world, trial, job_id)
    except (AssertionError, httpx.HTTPError, OSError) as error:
        broken = f"{type(error).__name__}: {error}"
    return Result(
        trial,
        outcome,
        reason,
        time.monotonic() - start,
        broken,
        _seconds_until_back(world),
    )


def _seconds_until_back(world: World) -> float:
    """Return how long requests took to pass again after a fault of links; 0 without links."""
    if world.links is None:
        return 0.0
    return world.links.seconds_until_back


# ---------------------------------------------------------------- the job and the fault


def _run_job(world: World, trial: Trial) -> str:
    """Bring a job into the phase, cause the fault and end it.

    Return the job's id, or an empty text if no job was created.
    """
    random = Random(trial.seed)
    flow = f"trial-{trial.phase}-{trial.fault}-{trial.seed}".replace(" ", "-")
    body = _job(world, trial, flow)
    receiver = world.guest
    if isinstance(receiver, Pair):
        receiver.longest_silence = 0.0
        receiver = random.choice(receiver.gateways)
    cause_fault = _fault(world, trial, random, receiver)
    if trial.phase == "creating":
        _run_concurrently(partial(_submit, receiver, body), cause_fault)
        return _job_of_flow(world, flow)
    job_id = _submit(receiver, body)
    if not job_id:
        raise Broken("the job was not taken although nothing was wrong")
    if trial.phase == "starting":
        time.sleep(random.uniform(0.0, 0.3))
        cause_fault()
        return job_id
    _wait_for_containers(world)
    if trial.phase == "running":
        cause_fault()
        return job_id
    _run_concurrently(partial(_try_to_stop, world, job_id), cause_fault)
    _stop(world, job_id)  # the first request may have failed
    return job_id


def _job(
    world: World,
    trial: Trial,
    flow: str,
) -> dict[str, Any]:
    """Return a job of two tasks, one after the other."""
    seconds = dict(TASK_SECONDS)
    if trial.phase == "stopping":
        seconds["a"] = _ENDLESS
    rounds = _ROUNDS if world.links is not None else 0
    body: dict[str, Any] = job_of(
        world.containers.register_address,
        seconds,
        {"b": "a"},
        rounds=rounds,
    )
    body = limited(body, auto_retries=trial.retries)
    body["flow_id"] = flow
    return body


def _wait_for_containers(world: World) -> None:
    """Wait until both containers of the first task run."""

    def both_run() -> bool:
        return len(world.containers.started()) == 2

    wait_for(both_run, 60, 0.02, "both containers run")


def _run_concurrently(in_thread: Action, action: Action) -> None:
    """Run two actions at the same time; wait for the first one for at most two minutes."""
    thread = threading.Thread(target=in_thread)
    thread.start()
    action()
    thread.join(120)


def _submit(receiver: Node, body: Any) -> str:
    """Submit a job; return its id, or an empty text if it failed."""
    with contextlib.suppress(httpx.HTTPError, ValueError):
        response = receiver.post(_CREATE, body)
        if response["code"] == 0:
            return str(response["data"]["job_id"])
        if not str(response["msg"]):
            raise Broken(f"refused without a reason: {response}")
    return ""


def _job_of_flow(world: World, flow: str) -> str:
    """Return the job of a flow, as the response of create_all may be lost; "" without a job."""
    response = _response(partial(world.guest.get, _LIST, flow_id=flow))
    if response["code"] != 0:
        raise Broken(f"the list of jobs was refused: {response}")
    job_ids = list(response["data"]["job_list"])
    if len(job_ids) > 1:
        raise Broken(f"one create_all made {len(job_ids)} jobs")
    return "".join(job_ids)


def _try_to_stop(world: World, job_id: str) -> None:
    """Request the stop of a job once, whatever happens to the request."""
    with contextlib.suppress(httpx.HTTPError, ValueError):
        world.guest.post(STOP, {"job_id": job_id})


def _stop(world: World, job_id: str) -> None:
    """Request the stop of a job until the node accepts it."""

    def is_accepted() -> bool:
        response = _response(partial(world.guest.post, STOP, {"job_id": job_id}))
        return bool(response["code"] == 0)

    wait_for(is_accepted, 60, 0.5, "the stop")


def _response(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Repeat a request until the node responds, as it or its database may just have started."""

    def response() -> dict[str, Any] | None:
        with contextlib.suppress(httpx.HTTPError, ValueError):
            body = request()
            if body.get("code", 0) != 500:
                return body
        return None

    return dict(wait_for(response, 60, 0.2, "the node answers"))


def _fault(
    world: World,
    trial: Trial,
    random: Random,
    receiver: Node,
) -> Action:
    """Return the action that causes the fault, keeps it for a while, and ends it."""
    fault = trial.fault
    if isinstance(world.guest, Pair) and fault in pair.FAULTS:
        return pair.fault(world.guest, fault, receiver, random)
    if world.links is not None:
        return partial(world.links.cause, fault, random)
    if fault in world.containers.faults:
        return partial(world.containers.faults[fault], random)
    seconds = random.uniform(1.0, 4.0)
    if fault in proxy.FAULTS:
        return _network_fault(world, trial, random, seconds)
    victims: dict[str, Any] = {
        "kill guest": world.guest,
        "kill host": world.host,
        "kill database": world.database,
        "kill dockerd": world.docker,
    }
    if fault in victims:
        return partial(_kill_and_start, victims[fault], random)
    if fault == "kill container":
        return partial(world.containers.kill_one, random)
    return partial(_fill_disk, world, seconds)


def _network_fault(
    world: World,
    trial: Trial,
    random: Random,
    seconds: float,
) -> Action:
    """Return the action of a fault of one or both proxies."""
    proxies: Sequence[proxy.Proxy] = random.choice(
        (world.proxies, world.proxies[:1], world.proxies[1:])
    )
    share = random.choice((0.4, 0.7, 1.0))

    def disturb() -> None:
        for number, one_way in enumerate(proxies):
            one_way.turn(trial.fault, share, trial.seed + number)
        time.sleep(seconds)
        for one_way in proxies:
            one_way.turn("")

    return disturb


def _kill_and_start(victim: Any, random: Random) -> None:
    time.sleep(random.uniform(0.0, 0.6))
    victim.kill()
    time.sleep(random.uniform(0.0, 3.0))
    victim.start()


def _fill_disk(world: World, seconds: float) -> None:
    """Fill the disk of the storage for some seconds."""
    filler = world.disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(_FILL_BLOCK)
    time.sleep(seconds)
    filler.unlink()


# ---------------------------------------------------------------- the rules


def _check_rules(
    world: World,
    trial: Trial,
    job_id: str,
) -> tuple[str, str]:
    """Check every rule; return outcome and reason of the job. Raises `Broken`."""
    outcome = "none"
    reason = ""
    if job_id:
        outcome, reason = _agreed_end(world, job_id)
        _check_end(world, trial, outcome, reason)
    _check_containers(world, outcome)
    for node in world.gateways:
        wait_for(partial(_is_free, node), 60, 0.2, f"{node.id} holds nothing of it")
    return outcome, reason


def _check_containers(world: World, outcome: str) -> None:
    """Raise `Broken` if a container is left, was started twice, or is missing."""

    def none_is_left() -> bool:
        return not world.containers.remaining()

    wait_for(none_is_left, 60, 0.1, "no container is left")
    starts = Counter(name.rpartition(".")[0] for name in world.containers.started())
    repeated = [name for name, count in starts.items() if count > 1]
    if repeated:
        raise Broken(f"started twice: {repeated}")
    tasks_of_roles = {tuple(name.split(".")[:2]) for name in starts}
    missing = _EXPECTED_CONTAINERS - len(tasks_of_roles)
    if outcome == "SUCCEEDED" and missing:
        raise Broken(f"a success without {missing} of its containers")


def _agreed_end(world: World, job_id: str) -> tuple[str, str]:
    """Wait for the job's end at both nodes; return its outcome and reason.

    Raises `Broken` if the nodes disagree, or if a failure has no reason.
    """
    job = _ended_job(world, job_id)
    outcome = str(job["outcome"])
    failure = job.get("failure") or {}
    reason = str(failure.get("reason", ""))
    if outcome != "SUCCEEDED" and not reason:
        raise Broken(f"{outcome} for no reason: {job}")
    about = f"the host knows the end: {_job_text(world.host, job_id)}"
    host_outcome = wait_for(
        partial(_outcome_at_host, world, job_id),
        90,
        0.2,
        about,
    )
    if host_outcome == _NEVER_ACCEPTED:
        if outcome == "SUCCEEDED":
            raise Broken("a success without the host")
    elif host_outcome != outcome:
        raise Broken(f"the scheduling node says {outcome}, the other {host_outcome}")
    return outcome, reason


def _ended_job(world: World, job_id: str) -> dict[str, Any]:
    """Wait until the scheduling node has ended the job."""

    def ended_job() -> dict[str, Any] | None:
        job = _response(partial(world.guest.get, f"/api/v1/jobs/{job_id}"))
        if job.get("status") in ENDED:
            return job
        return None

    about = f"the job has ended: {_job_text(world.guest, job_id)}"
    return dict(wait_for(ended_job, 120, 0.2, about))


def _outcome_at_host(world: World, job_id: str) -> str:
    """Return the outcome of the job at the host; an empty text while it is under way there."""
    response = world.host.get(f"/api/v1/jobs/{job_id}/timeline")
    refusal = response.get("data") or {}
    if refusal.get("reason") == "JOB_UNKNOWN":
        return _NEVER_ACCEPTED
    details = {entry["event"]: entry["detail"] for entry in response["timeline"]}
    for event in ("job FINISHED here", "job REJECTED here"):
        if event in details:
            return str(details[event].get("outcome"))
    if "job READY here" in details:
        return ""
    return _NEVER_ACCEPTED


def _check_end(
    world: World,
    trial: Trial,
    outcome: str,
    reason: str,
) -> None:
    """Raise `Broken` if the fault cannot be the cause of the job's end."""
    if isinstance(world.guest, Pair) and trial.fault in pair.FAULTS:
        _check_end_of_pair(world.guest, trial, outcome, reason)
        return
    engine_reasons = world.containers.reasons(trial.fault)
    possible = _possible_outcomes(trial, engine_reasons)
    if outcome not in possible:
        raise Broken(f"{outcome} because of {reason}; expected {' or '.join(possible)}")
    if outcome != "FAILED":
        return
    if trial.fault in DAEMON_FAULTS and reason != "ENGINE_DOWN":
        raise Broken(f"the daemon died, and the failure is called {reason}")
    if engine_reasons and reason not in engine_reasons:
        raise Broken(f"the failure is called {reason}, not {' or '.join(engine_reasons)}")


def _check_end_of_pair(
    guest: Pair,
    trial: Trial,
    outcome: str,
    reason: str,
) -> None:
    ends: Mapping[str, tuple[str, ...]] = pair.possible_ends(
        trial.fault,
        trial.phase,
        guest,
    )
    reasons = ends.get(outcome)
    is_possible = reasons is not None and (not reasons or reason in reasons)
    if not is_possible:
        silence = f"silent for {guest.longest_silence:.1f} s"
        raise Broken(f"{outcome} because of {reason}, {silence}; expected {ends}")


def _possible_outcomes(
    trial: Trial,
    engine_reasons: Sequence[str],
) -> tuple[str, ...]:
    """Return the outcomes of a job that a fault may cause.

    ``engine_reasons``: the reasons for which a fault of the engine may end a job.
    """
    breaks_runs = bool(engine_reasons) or trial.fault in (*ENDS_CONTAINERS, "disk full")
    if trial.phase == "stopping":
        return ("STOPPED", "FAILED") if breaks_runs else ("STOPPED",)
    if trial.fault == "kill container":
        return ("SUCCEEDED",) if trial.retries else ("FAILED",)
    if breaks_runs:
        return ("SUCCEEDED", "FAILED", "REJECTED")
    if trial.phase == "creating":
        return ("SUCCEEDED", "REJECTED")
    return ("SUCCEEDED",)


def _is_free(node: Node) -> bool:
    """Return whether a node has no orphans and no reserved resources; False without a response."""
    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
        orphans = node.get("/api/v1/orphans")
        resources = node.get("/api/v1/resources")
        return orphans == {"unknown": [], "lost": []} and not any(_holders(resources))
    return False


def _holders(value: Any) -> Iterator[Any]:
    """Yield the entries of all lists ``holders`` in a response, at any depth."""
    if isinstance(value, list):
        for inner in value:
            yield from _holders(inner)
    elif isinstance(value, dict):
        yield from value.get("holders") or ()
        for inner in value.values():
            yield from _holders(inner)


def _job_text(node: Node, job_id: str) -> str:
    """Return a job as a node shows it, for messages."""
    with contextlib.suppress(httpx.HTTPError, ValueError):
        return str(node.job(job_id))[:_LONGEST_STATE]
    return "(the node does not answer)"
