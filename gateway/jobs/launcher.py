"""Starts the container of a run: its image, its folders, its environment, its limits."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from engines.base import (
    Engine,
    EngineDown,
    EngineError,
    ImageNotFound,
    LaunchSpec,
    Limits,
    Mount,
    labels,
)
from engines.multi import SeveralEngines
from gateway.config.engine import Allowance
from gateway.data.workspace import DiskWatch, Placement, Workspace
from gateway.domain import approval
from gateway.domain.execution.messages import (
    Done,
    Event,
    Fetching,
    Launched,
    LaunchFailed,
    Prepare,
    Prepared,
)
from gateway.domain.redaction import for_others
from gateway.domain.run import LocalJob, Run
from gateway.domain.spec import Failure, NodeId
from gateway.errors import EngineFailed, GatewayError, StorageFailed
from gateway.ports import Site
from gateway.providers.images import Signatures
from gateway.runtime.context import NodeContext, Peers
from gateway.runtime.loop import while_away

log = structlog.get_logger(__name__)

_EVERY = 2.0
"""seconds between two lines of progress in the job's record"""


@dataclass(frozen=True)
class Place:
    """What all containers of this node share; known once the listeners are up."""

    callback_base: str
    transport: str
    institution_of: Callable[[NodeId], str]
    installation: str
    secret_of: Callable[[str], str]
    """makes the token that stands for an id"""


@dataclass(frozen=True)
class Rules:
    """What runs may have, and which images they may start from."""

    allow: Mapping[str, Allowance]
    """by the provider's name"""
    signatures: Signatures
    pinned: Callable[[str, str, str, str], str]
    """approves the digest of an image that none was approved of; returns the one that is approved then"""
    limits: Callable[[Run], Mapping[str, float | None]]


class Launching:
    """Launches runs on the node's engines."""

    def __init__(
        self,
        context: NodeContext,
        engine: Engine,
        peers: Peers,
        workspace: Workspace,
        disk: DiskWatch,
        place: Callable[[], Place],
        rules: Rules,
    ) -> None:
        """``place`` raises `EngineFailed` where containers cannot reach this gateway."""
        self.engine = engine
        self._store = context.store
        self._clock = context.clock
        self._peers = peers
        self.workspace = workspace
        self.disk = disk
        self._place = place
        self._rules = rules

    def engine_at(self, name: str) -> Engine:
        """Return one of several engines by its name; without a name the main one."""
        return self.engine.at(name) if isinstance(self.engine, SeveralEngines) else self.engine

    def address_of(self, run: Run) -> str:
        """Return the address from which a run's requests come; empty where the engine does not know."""
        try:
            return self.engine.address(run.name)
        except EngineError:
            return ""

    def digest_now(self, run: Run) -> str:
        """Return the digest of a run's image at its engine. Raises `EngineError`."""
        return self.engine_at(run.engine).image_digest(run.image)

    def launch(
        self,
        local: LocalJob,
        run: Run,
        fetching: bool,
    ) -> Event:
        """Start the container of a run; return what came of it.

        Raises `ImageIsFetched` where the image is not here, unless ``fetching``: then it is fetched first.
        """
        try:
            self.disk.check_room(run)
            digest = self._image(local, run, fetching)
            signed = self._rules.signatures.check(
                run.component.provider, run.image, self.engine_at(run.engine)
            )
            current = while_away(lambda: self._store.local_jobs.get(local.id))
            if any(r.run_id == run.run_id and r.over for r in current.runs):
                raise _NotWanted  # a process that was frozen may since have been given up by another
            expected = run.expected_digest or self._pinned(run, signed)
            self.engine.launch(self._spec(local, run, expected))
        except _NotWanted:
            return LaunchFailed(run.run_id, Failure("STOPPED", "stopped on request"), self._clock())
        except (EngineError, EngineFailed, StorageFailed) as error:
            return self._not_launched(run, error.reason, str(error))
        except (OSError, GatewayError) as error:
            return self._not_launched(run, "CREATE_FAILED", str(error))
        return Launched(run.run_id, self._clock(), digest, _described(self._allowed(run)))

    def _not_launched(
        self,
        run: Run,
        reason: str,
        text: str,
    ) -> LaunchFailed:
        """Return the failure in words for every party; the whole of them stays in the timeline here."""
        words = for_others(text)
        return LaunchFailed(
            run.run_id, Failure(reason, words), self._clock(), text if text != words else ""
        )

    def _image(
        self,
        local: LocalJob,
        run: Run,
        fetching: bool,
    ) -> str:
        try:
            return self.digest_now(run)
        except ImageNotFound:
            if not fetching:
                raise ImageIsFetched from None

        def report(progress: str) -> None:
            log.info(
                "an image is fetched",
                image=run.image,
                job=local.id,
                task=run.task_name,
                progress=progress,
            )
            current = self._store.local_jobs.get(local.id)
            if any(r.run_id == run.run_id and r.stop_at is not None for r in current.runs):
                raise _NotWanted

        return self.engine_at(run.engine).ensure_image(run.image, report)

    def prepare(
        self,
        local: LocalJob,
        action: Prepare,
        record: Callable[[str, Event], object],
    ) -> Event:
        """Have every image of a job here, one after the other; an engine that is away is asked again later."""
        images = dict(local.preparation.images) if local.preparation else {}
        for number, (image, engine) in enumerate(images.items(), 1):
            report = self._reporting(local.id, f"{number} of {len(images)}, {image}: ", record)
            try:
                self.engine_at(engine).ensure_image(image, report)
            except _NotWanted:
                return Done(action, self._clock(), final=False, message="not wanted any more")
            except EngineDown as error:
                return Done(action, self._clock(), final=False, message=str(error))
            except EngineError as error:
                return Prepared(Failure(error.reason, for_others(str(error))), self._clock())
        return Prepared(None, self._clock())

    def _reporting(
        self,
        job_id: str,
        prefix: str,
        record: Callable[[str, Event], object],
    ) -> Callable[[str], None]:
        """Return what writes down how far an image has come, now and then; it ends what nobody wants any more."""
        reported_at, last = 0.0, ""

        def report(progress: str) -> None:
            nonlocal reported_at, last
            if (now := time.monotonic()) - reported_at < _EVERY:
                return
            if approval.pending_preparation(self._store.local_jobs.get(job_id)) is None:
                raise _NotWanted
            if progress != last:
                log.info("an image is fetched", job=job_id, progress=prefix + progress)
                record(job_id, Fetching(prefix + progress, self._clock()))
            reported_at, last = now, progress

        return report

    def _pinned(self, run: Run, signed: str) -> str:
        """Return the approved digest of an image that was not here when its provider was registered.

        The first start approves it. Empty for an engine that tells none. Raises `EngineError`.
        """
        digest = signed or self.engine_at(run.engine).image_facts(run.image).digest
        ref = run.component
        if not digest:
            return ""
        return while_away(lambda: self._rules.pinned(ref.provider, ref.version, run.image, digest))

    def _allowed(self, run: Run) -> Allowance:
        return self._rules.allow.get(run.component.provider, Allowance())

    def environment(self, local: LocalJob, run: Run) -> dict[str, str]:
        """Return the variables of a run's container, secrets included. Raises `EngineFailed`."""
        return self._environment(local, run, self.workspace.placement(run), self._place())

    def _environment(
        self,
        local: LocalJob,
        run: Run,
        placement: Placement,
        place: Place,
    ) -> dict[str, str]:
        secret = place.secret_of(run.run_id)
        site = Site(
            storage_url=placement.storage_url,
            callback_url=f"{place.callback_base}/v1/platform/schedule/task/callback?run={secret}",
            transport=place.transport,
            log_path=placement.log_path,
            checkpoint=placement.checkpoint,
            checkpoint_at=placement.checkpoint_at,
            institution_of={n: place.institution_of(n) for n in local.spec.nodes},
            compute=(allowed := self._allowed(run)).compute or "",
            tuning={"n_threads": allowed.n_threads or 0, "chunk_size": allowed.chunk_size or 0},
        )
        run = replace(run, token=place.secret_of(run.token))
        return self._peers.adapter(local.spec.protocol).environment(local, run, site)

    def _spec(
        self,
        local: LocalJob,
        run: Run,
        expected: str,
    ) -> LaunchSpec:
        placement, place = self.workspace.prepare(run), self._place()
        party, allowed = run.party, self._allowed(run)
        more = (Mount(mount.source, mount.target, mount.read_only) for mount in allowed.mounts)
        return LaunchSpec(
            name=run.name,
            image=run.image,
            environment=self._environment(local, run, placement, place),
            labels=labels(
                local.node,
                place.installation,
                local.id,
                run.task_id,
                party.role,
                party.index,
                run.attempt,
            ),
            limits=_limits(self._rules.limits(run)),
            reserved=_limits(run.limits),
            mounts=(*placement.mounts, *more),
            digest=expected,  # else another image could come in between
            capabilities=tuple(allowed.capabilities),
            engine=run.engine,
            private_folders=placement.own,
            reach=placement.reach,
        )


class ImageIsFetched(Exception):
    """The image is not here and has to be fetched first."""


class _NotWanted(Exception):
    """The run, or the job, was stopped while its image was fetched, or before it was started."""


def _described(allowed: Allowance) -> tuple[str, ...]:
    """Return in words what a run has beyond the ordinary, for those who look at it."""
    mounts = (
        f"{m.source} at {m.target}, {'read-only' if m.read_only else 'writable'}"
        for m in allowed.mounts
    )
    return (*mounts, *(f"capability {name}" for name in allowed.capabilities))


def _limits(limits: Mapping[str, float | None]) -> Limits:
    memory = limits.get("memory")
    pids = limits.get("pids")
    return Limits(
        cpu=limits.get("cpu"),
        memory=None if memory is None else int(memory),
        pids=None if pids is None else int(pids),
        gpu=int(limits.get("gpu") or 0),
    )
