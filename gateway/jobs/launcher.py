"""Starts the container of a run: its image, its folders, its environment, its limits."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from gateway.config.schema.engine import Allowance
from gateway.data.workspace import DiskWatch, Placement, Workspace
from gateway.domain import approval
from gateway.domain.attestation import STORAGE_RULE, Attestation, run_binding
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
from gateway.domain.spec import Failure, JobSpec, NodeId
from gateway.errors import DatabaseAway, EngineFailed, GatewayError, StorageFailed
from gateway.ports import AttestationSite, Site
from gateway.providers.images import SignaturePolicy
from gateway.providers.rights import rights_in_words
from gateway.runtime.context import NodeContext, Peers
from gateway.runtime.loop import wait_for_database

log = structlog.get_logger(__name__)

_PROGRESS_INTERVAL = 2.0  # seconds between two lines of progress in the job's record

Record = Callable[[str, Event], object]  # takes a job's id and an event, which it records
Progress = Callable[[str], None]  # takes the progress of a pull, in words


@dataclass(frozen=True)
class SharedSite:
    """The part of a `Site` that all containers of this node share; known once it listens."""

    callback_base: str  # base URL for callbacks
    transport: str  # host:port at which containers reach the channel
    institution_of: Callable[[NodeId], str]  # returns the institution that runs a node
    installation: str  # id of this installation of the gateway, for labels
    # Takes `Run.run_id` or `Run.token`; returns the secret with which a container proves that it is
    # the container of this run. The secret begins with the value taken.
    secret_of: Callable[[str], str]


@dataclass(frozen=True)
class LaunchRules:
    """The privileges of runs, and the images that they may start from."""

    allow: Mapping[str, Allowance]  # by the provider's name
    signatures: SignaturePolicy
    # Takes provider, version, image and digest, and returns the approved digest of the image. If
    # the image has none yet, the passed digest becomes the approved one.
    pinned: Callable[[str, str, str, str], str]
    # Returns the limits that the engine enforces for a run. If the job requests none, they follow
    # from the capacity of the engine.
    limits: Callable[[Run], Mapping[str, float | None]]
    # Takes a job and a provider's name; returns the report that its runs have to bring, None
    # without one. Raises `Invalid` for policies that contradict each other.
    demanded_report: Callable[[JobSpec, str], Attestation | None]
    # Whether a run's access to a storage, by its name, can be limited to its own outputs.
    limits_access: Callable[[str], bool]


class ImageMissing(Exception):
    """The image is missing and has to be pulled first."""


class _Stopped(Exception):
    """A launch or a pull is not needed any more.

    The run is over, or is stopped during the pull of its image, or the job does not wait for its
    images any more.
    """


class Launching:
    """Launches runs on the node's engines."""

    def __init__(
        self,
        context: NodeContext,
        engine: Engine,
        peers: Peers,
        workspace: Workspace,
        disk: DiskWatch,
        shared_site: Callable[[], SharedSite],
        rules: LaunchRules,
    ) -> None:
        """``shared_site`` raises `EngineFailed` if containers cannot reach this gateway."""
        self.engine = engine
        self.workspace = workspace
        self.disk = disk
        self._store = context.store
        self._clock = context.clock
        self._peers = peers
        self._shared_site = shared_site
        self._rules = rules

    def engine_at(self, name: str) -> Engine:
        """Return an engine by its name; an empty name means the main one.

        A node with a single engine has only this one, whatever the name.
        """
        if isinstance(self.engine, SeveralEngines):
            return self.engine.at(name)
        return self.engine

    def address_of(self, run: Run) -> str:
        """Return the address of a run's container; empty if the engine does not know it."""
        try:
            return self.engine.address(run.name)
        except EngineError:
            return ""

    def digest_now(self, run: Run) -> str:
        """Return the digest of a run's image at its engine. Raises `EngineError`."""
        return self.engine_at(run.engine).image_digest(run.software.image)

    # -------------------------------------------------- launching a run

    def launch(
        self,
        local: LocalJob,
        run: Run,
        fetching: bool,
    ) -> Event:
        """Start the container of a run; return the resulting event.

        A missing image is pulled first if ``fetching``, otherwise `ImageMissing` is raised.
        """
        software = run.software
        try:
            run = self._with_demanded_report(local, run)
            self._check_inputs(run)
            self.disk.check_room(run)
            # This digest is only recorded with the run. It need not be compared with the approved
            # digest here: the engine refuses to launch an image with any other digest.
            digest = self._ensure_image(local, run, fetching)
            # The digest whose signature is valid; empty if this image needs no signature.
            signed_digest = self._rules.signatures.check(
                software.component.provider,
                software.image,
                self.engine_at(run.engine),
            )
            self._check_not_over(local, run)  # the steps above may have taken long
            approved_digest = software.expected_digest or self._pinned(run, signed_digest)
            self.engine.launch(self._spec(local, run, approved_digest, digest))
        except _Stopped:
            return LaunchFailed(
                run.run_id,
                Failure("STOPPED", "stopped on request"),
                self._clock(),
            )
        except (EngineError, EngineFailed, StorageFailed) as error:
            return self._not_launched(run, error.reason, str(error))
        except (OSError, GatewayError) as error:
            return self._not_launched(run, "CREATE_FAILED", str(error))
        return Launched(
            run.run_id,
            self._clock(),
            image_digest=digest,
            granted=rights_in_words(self._allowed(run)),
            attestation=run.attestation,
        )

    def _check_inputs(self, run: Run) -> None:
        """Raise `EngineFailed` if a run could get inputs without its attestation report.

        Credentials that open more than its outputs would let it read its inputs at their storage.
        """
        if run.attestation is None:
            return
        addresses = (*run.data.inputs.values(), *run.data.outputs.values())
        if not all(self._rules.limits_access(address.storage) for address in addresses):
            raise EngineFailed(STORAGE_RULE, reason="TEE_STORAGE")

    def _with_demanded_report(self, local: LocalJob, run: Run) -> Run:
        """Return a run with the report that it has to bring. Raises `Invalid`."""
        provider = run.software.component.provider
        return replace(
            run,
            attestation=self._rules.demanded_report(local.spec, provider),
        )

    def _check_not_over(self, local: LocalJob, run: Run) -> None:
        """Raise `_Stopped` if the run is over, according to the current record of its job.

        Another process may have given the run up while this one was suspended. A run whose stop is
        requested but which is not over is launched all the same; its stop follows.
        """

        def current_job() -> LocalJob:
            return self._store.local_jobs.get(local.id)

        if _is_over(wait_for_database(current_job), run):
            raise _Stopped

    def _not_launched(
        self,
        run: Run,
        reason: str,
        text: str,
    ) -> LaunchFailed:
        """Return the event of a failed launch.

        Every party sees the failure, without details of this node. The full text is only in the
        timeline of this node.
        """
        words = for_others(text)
        full_text = ""
        if text != words:
            full_text = text
        return LaunchFailed(
            run.run_id,
            Failure(reason, words),
            self._clock(),
            engine_message=full_text,
        )

    def _ensure_image(
        self,
        local: LocalJob,
        run: Run,
        fetching: bool,
    ) -> str:
        """Return the current digest of a run's image; pull a missing image if ``fetching``.

        Raises `ImageMissing` without ``fetching``, `_Stopped` for a run that is stopped during the
        pull, and `EngineError`.
        """
        image = run.software.image
        try:
            return self.digest_now(run)
        except ImageNotFound:
            if not fetching:
                raise ImageMissing from None

        def report(progress: str) -> None:  # called by the engine from time to time
            log.info(
                "an image is fetched",
                image=image,
                job=local.id,
                task=run.task_name,
                progress=progress,
            )
            with suppress(DatabaseAway):  # the pull goes on, and the next report asks again
                if _is_being_stopped(self._store.local_jobs.get(local.id), run):
                    raise _Stopped

        return self.engine_at(run.engine).ensure_image(image, report)

    def _pinned(self, run: Run, signed_digest: str) -> str:
        """Return the approved digest of an image that was missing when its provider was registered.

        The first start of the image approves a digest: ``signed_digest`` if it is not empty,
        otherwise the current one. Empty for an engine without digests. Raises `EngineError`.
        """
        image = run.software.image
        digest = signed_digest or self.engine_at(run.engine).image_metadata(image).digest
        ref = run.software.component
        if not digest:
            return ""

        def approve() -> str:
            return self._rules.pinned(
                ref.provider,
                ref.version,
                image,
                digest,
            )

        return wait_for_database(approve)

    # -------------------------------------------------- pulling a job's images beforehand

    def prepare(
        self,
        local: LocalJob,
        action: Prepare,
        record: Record,
    ) -> Event:
        """Pull every missing image of a job, one after the other; return the resulting event.

        If an engine does not respond, the event is not final, and the action is repeated later. The
        pulls end early if the job does not wait for its images any more.
        """
        images: dict[str, str] = {}  # image -> name of its engine
        if local.preparation is not None:
            images.update(local.preparation.images)
        for number, (image, engine) in enumerate(images.items(), 1):
            prefix = f"{number} of {len(images)}, {image}: "
            report = self._progress_reporter(local.id, prefix, record)
            try:
                self.engine_at(engine).ensure_image(image, report)
            except _Stopped:
                # The job has moved on and ignores this event, so nothing is repeated although it is
                # not final.
                return Done(
                    action,
                    self._clock(),
                    final=False,
                    message="not wanted any more",
                )
            except EngineDown as error:
                return Done(
                    action,
                    self._clock(),
                    final=False,
                    message=str(error),
                )
            except EngineError as error:
                return Prepared(
                    Failure(error.reason, for_others(str(error))),
                    self._clock(),
                )
        return Prepared(None, self._clock())

    def _progress_reporter(
        self,
        job_id: str,
        prefix: str,
        record: Record,
    ) -> Progress:
        """Return a function that records the progress of a pull.

        The function records it at most every `_PROGRESS_INTERVAL` seconds, and raises `_Stopped`
        once the job does not wait for its images any more. ``prefix`` precedes each progress.
        """
        reported_at = 0.0
        last_progress = ""

        def report(progress: str) -> None:
            nonlocal reported_at, last_progress
            now = time.monotonic()
            if now - reported_at < _PROGRESS_INTERVAL:
                return
            reported_at = now
            with suppress(DatabaseAway):  # the pull goes on, and the next report tries again
                if approval.pending_preparation(self._store.local_jobs.get(job_id)) is None:
                    raise _Stopped
                if progress == last_progress:
                    return
                log.info(
                    "an image is fetched",
                    job=job_id,
                    progress=prefix + progress,
                )
                record(job_id, Fetching(prefix + progress, self._clock()))
                last_progress = progress

        return report

    # -------------------------------------------------- the container

    def environment(
        self,
        local: LocalJob,
        run: Run,
    ) -> dict[str, str]:
        """Return the variables of a run's container, secrets included. Raises `EngineFailed`."""
        return self._environment(
            local,
            run,
            self.workspace.placement(run),
            self._shared_site(),
            run.software.digest,
        )

    def _allowed(self, run: Run) -> Allowance:
        """Return the privileges that the settings give to containers of the run's provider."""
        return self._rules.allow.get(
            run.software.component.provider,
            Allowance(),
        )

    def _environment(
        self,
        local: LocalJob,
        run: Run,
        placement: Placement,
        shared_site: SharedSite,
        digest: str,
    ) -> dict[str, str]:
        """Return the variables of a run's container, as the job's protocol defines them.

        ``digest``: of its image, as its attestation report has to state it.
        """
        secret = shared_site.secret_of(run.run_id)
        callback = f"{shared_site.callback_base}/v1/platform/schedule/task/callback"
        allowance = self._allowed(run)
        site = Site(
            storage_url=placement.storage_url,
            callback_url=f"{callback}?run={secret}",
            transport=shared_site.transport,
            log_path=placement.log_path,
            checkpoint=placement.checkpoint,
            checkpoint_at=placement.checkpoint_at,
            institution_of={node: shared_site.institution_of(node) for node in local.spec.nodes},
            compute=allowance.compute or "",
            tuning={
                "n_threads": allowance.n_threads or 0,  # 0: not set
                "chunk_size": allowance.chunk_size or 0,
            },
            attestation=_attestation_site(run, shared_site, digest),
        )
        run = _without_inputs(run)
        # The copy for the adapter has the secret that the container presents to the channel.
        run = replace(
            run,
            token=shared_site.secret_of(run.token),
        )
        return self._peers.adapter(local.spec.protocol).environment(local, run, site)

    def _spec(
        self,
        local: LocalJob,
        run: Run,
        approved_digest: str,
        digest: str,
    ) -> LaunchSpec:
        """Return the description of a run's container.

        ``approved_digest`` is the only digest that its image may have; empty: any. ``digest`` is
        the one that it has now.
        """
        placement = self.workspace.prepare(_without_inputs(run))
        shared_site = self._shared_site()
        party = run.party
        allowance = self._allowed(run)
        allowed_mounts = [
            Mount(mount.source, mount.target, mount.read_only) for mount in allowance.mounts
        ]
        return LaunchSpec(
            name=run.name,
            image=run.software.image,
            environment=self._environment(local, run, placement, shared_site, digest),
            labels=labels(
                node=local.node,
                installation=shared_site.installation,
                job=local.id,
                task=run.task_id,
                role=party.role,
                index=party.index,
                attempt=run.attempt,
            ),
            limits=_limits(self._rules.limits(run)),  # what the engine lets the run use
            reserved=_limits(run.limits),  # what an engine of several machines sets aside for it
            mounts=(*placement.mounts, *allowed_mounts),
            digest=approved_digest,  # since the image's name may refer to another image by now
            capabilities=tuple(allowance.capabilities),
            engine=run.engine,
            later_runs=local.expected_runs,
            private_folders=placement.private_folders,
            reach=placement.reach,
        )


def _attestation_site(
    run: Run,
    shared_site: SharedSite,
    digest: str,
) -> AttestationSite | None:
    """Return what a run needs for its attestation report; None if none is demanded."""
    if run.attestation is None:
        return None
    secret = shared_site.secret_of(run.run_id)
    return AttestationSite(
        platform=run.attestation.platform,
        url=f"{shared_site.callback_base}/v1/platform/tee/report?run={secret}",
        binding=run_binding(run.run_id, run.token, digest).hex(),
    )


def _without_inputs(run: Run) -> Run:
    """Return a run as its container sees it: without inputs before its report is verified."""
    if run.attestation is None:
        return run
    return replace(run, data=replace(run.data, inputs={}))


def _is_over(local: LocalJob, run: Run) -> bool:
    """Return whether a run has ended, according to the current record of its job."""
    current = local.run(run.run_id)
    return current is not None and current.over


def _is_being_stopped(local: LocalJob, run: Run) -> bool:
    """Return whether a stop of a run was requested, according to the current record of its job."""
    current = local.run(run.run_id)
    return current is not None and current.stop_at is not None


def _limits(limits: Mapping[str, float | None]) -> Limits:
    """Return limits in the types of an engine: whole bytes, processes and devices."""
    return Limits(
        cpu=limits.get("cpu"),
        memory=_whole(limits.get("memory")),
        pids=_whole(limits.get("pids")),
        gpu=_whole(limits.get("gpu")) or 0,
    )


def _whole(number: float | None) -> int | None:
    """Return a number without its fraction; None for None."""
    if number is None:
        return None
    return int(number)
