"""Runs that get their inputs only after their attestation report was verified."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import BinaryIO, NoReturn

import structlog

from gateway.attestation.sealed_inputs import key_hash, read_public_key
from gateway.attestation.verifiers import Verifiers
from gateway.data.combined_storage import Storages
from gateway.data.storage import METADATA
from gateway.domain.attestation import (
    Attestation,
    Claims,
    ReportRefused,
    RunFacts,
    check_claims,
    check_result,
    read_report,
    run_binding,
)
from gateway.domain.execution.messages import Attested, Broken
from gateway.domain.run import Address, LocalJob, Run
from gateway.domain.spec import Failure
from gateway.domain.states import RunStatus
from gateway.errors import Conflict, NotAllowed, NotFound
from gateway.jobs.executor import Executor
from gateway.jobs.tee_policies import TeePolicies
from gateway.runtime.context import NodeContext
from gateway.store.audit import SqlAudit

log = structlog.get_logger(__name__)

_ACTION = "tee report"  # in the audit


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
        policies: TeePolicies,
        verifiers: Verifiers,
        audit: SqlAudit,
    ) -> None:
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

        A refused report ends the run. A run that repeats its verified report, as it did not get the
        response, gets the same one. Raises `NotFound` for an unknown run, `Conflict` for a run that
        is not running, and `NotAllowed` with the reason of a refusal.
        """
        local, run = self._find_run(run_id)
        attestation = _attestation_of(run)
        digest = _digest(report)
        if attestation.verified_at is not None:
            _check_repetition(attestation, digest, public_key)
            self._check_policy(local, run, attestation)
            return self._inputs(run)
        try:
            claims = self._verified(local, run, attestation, report, public_key)
        except ReportRefused as refusal:
            self._refuse(local, run, refusal)
        # The audit precedes the record: a gateway that dies in between has handed over nothing.
        self._write_audit(
            local,
            run,
            status=200,
            detail={
                "platform": claims.platform,
                "measurement": claims.measurement,
                "hardware": claims.is_hardware,
                "demanded_by": attestation.demanded_by,
            },
        )
        now = self._clock()
        result = replace(
            attestation,
            platform=claims.platform,
            verified_at=now,
            measurement=claims.measurement,
            signer=claims.signer,
            tcb_status=claims.tcb_status,
            is_hardware=claims.is_hardware,
            public_key=public_key,
            report_digest=digest,
        )

        def check_first(current: LocalJob) -> None:
            _check_may_record(current.run(run_id), digest, public_key)

        self._executor.record(
            local.id,
            Attested(run.run_id, result, now),
            allowed=check_first,
        )
        return self._inputs(run)

    def open_input(
        self,
        run_id: str,
        name: str,
        file: str,
    ) -> SealedFile:
        """Open a file of an input of a run whose report was verified.

        The report has to meet the policies that are in force now; otherwise the run ends. Raises
        `NotFound`, and `NotAllowed`: TEE_REPORT_MISSING without a verified report, or the reason of
        the refusal.
        """
        local, run = self._find_run(run_id)
        attestation = _attestation_of(run)
        if attestation.verified_at is None:
            raise NotAllowed(
                "inputs are given only after the run's report was verified",
                reason="TEE_REPORT_MISSING",
            )
        self._check_policy(local, run, attestation)
        files = self._inputs(run).get(name)
        if files is None or file not in files.files:
            raise NotFound(f"the run has no file {file!r} of an input {name!r}")
        content = self._storage.open_file(files.address, file)
        return SealedFile(content, attestation.public_key)

    def _check_policy(
        self,
        local: LocalJob,
        run: Run,
        attestation: Attestation,
    ) -> None:
        """End a run whose verified report does not meet the policies any more.

        Raises `NotAllowed`.
        """
        provider = run.software.component.provider
        try:
            policy = self._policies.in_force(local.spec, provider, attestation)
            check_result(attestation, policy)
        except ReportRefused as refusal:
            self._refuse(local, run, refusal)

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
            raise _run_over()
        return local, run

    def _verified(
        self,
        local: LocalJob,
        run: Run,
        attestation: Attestation,
        report: object,
        public_key: str,
    ) -> Claims:
        """Return the claims of a report that fits the policies and the run.

        Raises `ReportRefused`.
        """
        provider = run.software.component.provider
        policy = self._policies.in_force(local.spec, provider, attestation)
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
        demanded_by = run.attestation.demanded_by if run.attestation else ()
        self._write_audit(
            local,
            run,
            status=403,
            detail={
                "reason": refusal.reason,
                "message": refusal.message,
                "demanded_by": demanded_by,
            },
        )
        self._executor.record(
            local.id,
            Broken(run.run_id, Failure(refusal.reason, refusal.message), self._clock()),
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


def _attestation_of(run: Run) -> Attestation:
    """Return what the run has to prove. Raises `NotAllowed` if it has to prove nothing."""
    if run.attestation is None:
        provider = run.software.component.provider
        raise NotAllowed(
            f"this node demands no report of provider {provider}: neither tee.providers nor a "
            "contract has a policy for it",
            reason="TEE_NOT_DEMANDED",
        )
    return run.attestation


def _check_may_record(
    run: Run | None,
    digest: str,
    public_key: str,
) -> None:
    """Raise `Conflict` for a run that has ended, or has brought another report since."""
    if run is None or run.status is not RunStatus.RUNNING:
        raise _run_over()
    attestation = run.attestation
    if attestation is not None and attestation.verified_at is not None:
        _check_repetition(attestation, digest, public_key)


def _check_repetition(
    attestation: Attestation,
    digest: str,
    public_key: str,
) -> None:
    """Raise `Conflict` unless report and key are those that were verified."""
    if attestation.report_digest != digest or attestation.public_key != public_key:
        raise Conflict(
            "another report of the run was verified before",
            reason="TEE_REPORT_REPEATED",
        )


def _run_over() -> Conflict:
    """Return the refusal of a run that has ended."""
    return Conflict("the run is over or being stopped", reason="RUN_OVER")


def _digest(report: object) -> str:
    """Return the SHA-256 of a report, in hexadecimal digits."""
    return sha256(json.dumps(report, sort_keys=True).encode()).hexdigest()
