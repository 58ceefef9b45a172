"""Runs that get their inputs only after their attestation report was verified."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO, NoReturn

import structlog

from gateway.attestation.sealed_inputs import key_hash, read_public_key
from gateway.attestation.verifiers import Verifiers
from gateway.data.combined_storage import Storages
from gateway.data.storage import METADATA
from gateway.domain.attestation import (
    Attestation,
    AttestationPolicy,
    Claims,
    ReportRefused,
    RunFacts,
    check_claims,
    read_report,
    run_binding,
)
from gateway.domain.execution.messages import Attested, Broken
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.spec import Failure
from gateway.domain.states import RunStatus
from gateway.errors import Conflict, NotAllowed, NotFound
from gateway.jobs.executor import Executor
from gateway.runtime.context import NodeContext
from gateway.store.audit import SqlAudit

log = structlog.get_logger(__name__)

_ACTION = "tee report"  # in the audit
_LONGEST_MESSAGE = 500  # characters of a refusal in the audit


@dataclass(frozen=True)
class InputFiles:
    """An input of a run, and the files that it consists of."""

    address: Address
    files: tuple[str, ...]


@dataclass(frozen=True)
class SealedFile:
    """A file of an input, and the key for which it has to be encrypted."""

    content: BinaryIO
    public_key: str  # PEM


class AttestedRuns:
    """Takes the reports of runs, and gives inputs to those whose report was verified."""

    def __init__(
        self,
        context: NodeContext,
        executor: Executor,
        storage: Storages,
        policies: Mapping[str, AttestationPolicy],
        verifiers: Verifiers,
        audit: SqlAudit,
    ) -> None:
        """``policies``: by the provider's name."""
        self._store = context.store
        self._clock = context.clock
        self._executor = executor
        self._storage = storage
        self._policies = policies
        self._verifiers = verifiers
        self._audit = audit

    def submit_report(
        self,
        run_id: str,
        report: object,
        public_key: str,
    ) -> Mapping[str, InputFiles]:
        """Verify the report of a run; return its inputs.

        A refused report ends the run. Raises `NotFound` for an unknown run, `Conflict` for a run
        that is not running, and `NotAllowed` with the reason of a refusal.
        """
        local, run = self._find_run(run_id)
        attestation = self._attestation_of(run)
        if attestation.verified_at is not None:
            raise Conflict("the run's report was verified before", reason="TEE_REPORT_REPEATED")
        try:
            claims = self._verified(run, report, public_key)
        except ReportRefused as refusal:
            self._refuse(local, run, refusal)
        now = self._clock()
        self._executor.record(
            local.id,
            Attested(run.run_id, _attestation(claims, public_key, now), now),
        )
        self._write_audit(
            local,
            run,
            status=200,
            detail={
                "platform": claims.platform,
                "measurement": claims.measurement,
                "hardware": claims.is_hardware,
            },
        )
        return self._inputs(run)

    def open_input(
        self,
        run_id: str,
        name: str,
        file: str,
    ) -> SealedFile:
        """Open a file of an input of a run whose report was verified.

        Raises `NotFound`, and `NotAllowed` (TEE_REPORT_MISSING) without a verified report.
        """
        _, run = self._find_run(run_id)
        attestation = self._attestation_of(run)
        if attestation.verified_at is None:
            raise NotAllowed(
                "inputs are given only after the run's report was verified",
                reason="TEE_REPORT_MISSING",
            )
        files = self._inputs(run).get(name)
        if files is None or file not in files.files:
            raise NotFound(f"the run has no file {file!r} of an input {name!r}")
        content = self._storage.open_file(files.address, file)
        return SealedFile(content, attestation.public_key)

    def _find_run(self, run_id: str) -> tuple[LocalJob, Run]:
        """Return a run that is running, with its job. Raises `NotFound` and `Conflict`."""
        job_id = self._store.job_of_run(run_id)
        if not job_id:
            raise NotFound("no run of this node has that token", reason="RUN_UNKNOWN")
        local = self._store.local_jobs.get(job_id)
        run = local.run(run_id)
        assert run is not None
        if run.status in (RunStatus.WAITING, RunStatus.LAUNCHING):
            raise Conflict(
                "the run's start is not recorded yet: repeat the request in a second",
                reason="TEE_RUN_STARTING",
            )
        if run.status is not RunStatus.RUNNING:
            raise Conflict("the run is over or being stopped", reason="RUN_OVER")
        return local, run

    def _attestation_of(self, run: Run) -> Attestation:
        """Return what the run has to prove. Raises `NotAllowed` if it has to prove nothing."""
        if run.attestation is None:
            provider = run.software.component.provider
            raise NotAllowed(
                f"this node demands no report of provider {provider}: tee.providers does not "
                "name it",
                reason="TEE_NOT_DEMANDED",
            )
        return run.attestation

    def _verified(
        self,
        run: Run,
        report: object,
        public_key: str,
    ) -> Claims:
        """Return the claims of a report that fits the policy and the run.

        Raises `ReportRefused`.
        """
        policy = self._policies.get(run.software.component.provider)
        if policy is None:  # the settings have changed since the launch
            raise ReportRefused("TEE_NOT_DEMANDED", "tee.providers does not name the provider")
        assert run.started_at is not None  # the run is running
        now = self._clock()
        facts = RunFacts(
            binding=run_binding(run.run_id, run.token, run.software.digest),
            key_hash=key_hash(read_public_key(public_key)),
            launched_at=run.started_at,
        )
        claims = self._verifiers.verify(read_report(report), now)
        check_claims(claims, policy, facts, now)
        return claims

    def _refuse(
        self,
        local: LocalJob,
        run: Run,
        refusal: ReportRefused,
    ) -> NoReturn:
        """End the run because of its report, and audit that. Raises `NotAllowed`."""
        log.warning(
            "a run's attestation report was refused",
            job=local.id,
            task=run.task_name,
            reason=refusal.reason,
        )
        self._executor.record(
            local.id,
            Broken(run.run_id, Failure(refusal.reason, refusal.message), self._clock()),
        )
        self._write_audit(
            local,
            run,
            status=403,
            detail={
                "reason": refusal.reason,
                "message": refusal.message[:_LONGEST_MESSAGE],
            },
        )
        raise NotAllowed(refusal.message, reason=refusal.reason)

    def _write_audit(
        self,
        local: LocalJob,
        run: Run,
        status: int,
        detail: Mapping[str, object],
    ) -> None:
        """Write the result of a report into the audit."""
        self._audit.add(
            self._clock(),
            f"run {run.name}",
            _ACTION,
            status,
            None,  # no envelope
            {
                "job": local.id,
                "task": run.task_name,
                "party": run.party.label,
                "provider": run.software.component.provider,
                **detail,
            },
        )

    def _inputs(self, run: Run) -> dict[str, InputFiles]:
        """Return the inputs of a run by name, without those that do not exist."""
        inputs = {}
        for name, address in run.data.inputs.items():
            if not self._storage.exists(address):
                continue
            files = [file.name for file in self._storage.partitions(address)]
            if METADATA in self._storage.files(address):
                files.append(METADATA)
            inputs[name] = InputFiles(address, tuple(files))
        return inputs


def _attestation(
    claims: Claims,
    public_key: str,
    now: datetime,
) -> Attestation:
    """Return the result of a verified report."""
    return Attestation(
        platform=claims.platform,
        verified_at=now,
        measurement=claims.measurement,
        signer=claims.signer,
        tcb_status=claims.tcb_status,
        is_hardware=claims.is_hardware,
        public_key=public_key,
    )
