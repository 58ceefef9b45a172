"""The permits of partners for models, as conditions of jobs that predict."""

from gateway.data.models import Models, Refusal
from gateway.domain import datasets
from gateway.domain import models as model_rules
from gateway.domain.applications import APPROVED, Application, Kind, Side
from gateway.domain.model_permits import ModelFinding, decide_model, requested_digest
from gateway.domain.models import ModelVersion
from gateway.domain.permit_scope import Use, missing_scope
from gateway.domain.problems import Problem
from gateway.domain.spec import JobSpec, NodeId
from gateway.jobs.permit_holdings import PermitHoldings
from gateway.ports import Clock
from gateway.store.applications import SqlApplications

_MODEL_ID = "config.job_params.common.model_id"  # path of the problems in a job
_MODEL_VERSION = "config.job_params.common.model_version"


class ModelPermits:
    """Decides whether the permits of a job's nodes cover the model with which it predicts."""

    def __init__(
        self,
        node: NodeId,
        applications: SqlApplications,
        models: Models,
        holdings: PermitHoldings,
        clock: Clock,
    ) -> None:
        self._node = node
        self._applications = applications
        self._models = models
        self._holdings = holdings
        self._clock = clock

    def refusal(
        self,
        spec: JobSpec,
        audited_project: str,
    ) -> Refusal | None:
        """Return the refusal of a job whose model is another than its permits are for, or None.

        A node needs no permit for a model that it has trained with, or that a person has granted to
        it. ``audited_project`` is as in `PermitHoldings.project_with`.
        """
        model = model_rules.model_version(spec)
        if not model.predicts:
            return None
        trainers = self._models.trainers(model.model_id, model.version)
        for partner in datasets.partners(spec, self._node):
            permits = self._permits(partner, model)
            if not permits or partner in trainers:
                continue
            use = Use(partner, self._holdings.project_with(partner, spec, audited_project))
            refusal = self._partner_refusal(permits, use, model)
            if refusal is not None:
                return refusal
        return None

    def _permits(self, partner: NodeId, model: ModelVersion) -> list[Application]:
        """Return the permits of a partner for a model that are in force, oldest first."""
        now = self._clock()
        approved = self._applications.list(
            Side.THEIRS,
            Kind.MODEL,
            APPROVED,
            partner,
        )
        return [
            permit for permit in approved if permit.subject == model.model_id and permit.holds(now)
        ]

    def _partner_refusal(
        self,
        permits: list[Application],
        use: Use,
        model: ModelVersion,
    ) -> Refusal | None:
        """Return the refusal of a job for one partner's permits for the model, or None."""
        digest = self._models.digest(model.model_id, model.version)
        what = f"version {model.version} of model {model.model_id}"
        newest = permits[-1]
        match decide_model(permits, use, digest):
            case ModelFinding.OTHER_DIGEST:
                rule = (
                    f"the model at {self._node} has the digest {digest}; "
                    f"the permit of {use.node} is for {requested_digest(newest)}; apply for it anew"
                )
                reason = "MODEL_DIGEST_DIFFERS"
                problem = Problem(_MODEL_VERSION, rule, model.version, reason=reason)
                return Refusal(reason, problem)
            case ModelFinding.OUT_OF_SCOPE:
                needed = missing_scope(newest.scope, use)
                rule = (
                    f"the permit of {use.node} for {what} is only for "
                    f"{newest.scope}; this job needs one for {needed}; apply for it there"
                )
                reason = "PERMIT_OUT_OF_SCOPE"
                problem = Problem(_MODEL_ID, rule, model.model_id, reason=reason)
                return Refusal(reason, problem)
        return None
