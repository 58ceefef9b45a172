"""The grants that follow from the approval of a partner's application, and end with it.

An application of this node itself (`Side.MINE`) brings no grant here: the partner grants.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from gateway.data.models import Models
from gateway.data.sharing import Sharing
from gateway.domain.applications import APPROVED, Application, Kind, Side
from gateway.domain.datasets import Grant
from gateway.domain.model_permits import requested_digest
from gateway.domain.permits import grant_reason, is_personal
from gateway.domain.run import Address
from gateway.domain.spec import NodeId
from gateway.errors import NotFound
from gateway.jobs.applications import Effect
from gateway.jobs.offers import Offers
from gateway.ports import Clock
from gateway.store.applications import SqlApplications


class DatasetGrants(Effect):
    """The grant of a dataset to the partner that applied for its use.

    A partner may have several permits for a dataset, with different scopes, but has one grant: it
    lasts until the last of these permits expires. Which jobs a permit opens is decided by
    `gateway.jobs.trust`.
    """

    def __init__(
        self,
        sharing: Sharing,
        offers: Offers,
        applications: SqlApplications,
        clock: Clock,
    ) -> None:
        self._sharing = sharing
        self._offers = offers
        self._applications = applications
        self._clock = clock

    def check(self, new: Application) -> None:
        """Raise `NotFound` for a dataset that is not offered to the partner, or does not exist."""
        self._offers.dataset(new.partner, new.subject)

    def lapsed(self, application: Application) -> Sequence[Application]:
        """Return the partner's other permits for the dataset if its grant was revoked.

        A revocation ends the permits, unless a crash interrupted it or an older version made it.
        """
        grant = self._find_grant(_address(application), application.partner)
        if grant is None or grant.revoked_at is None:
            return ()
        return self._others_in_force(application)

    def begin(self, application: Application, by: str) -> None:
        """Grant the dataset, unless a person has granted it for at least as long."""
        if application.side is not Side.THEIRS:
            return
        permits = [*self._others_in_force(application), application]
        if not self._has_lasting_personal_grant(application, _end_of(permits)):
            self._grant(permits, by)

    def end(
        self,
        application: Application,
        by: str,
        *,
        last: bool,
    ) -> None:
        """Revoke the grant, or shorten it if the partner has other permits for the dataset.

        A grant that a person has made is left alone: the reason of a grant names the application
        that it follows from. A revoked grant stays revoked, whatever permits remain.

        ``last`` (no other application for the dataset is in force) is not needed: the other
        applications are read here.
        """
        if application.side is not Side.THEIRS:
            return
        others = self._others_in_force(application)
        address = _address(application)
        if not self._has_grant_from(address, [*others, application]):
            return
        if others:
            self._grant(others, by)
            return
        with suppress(NotFound):
            self._sharing.revoke(address, application.partner, by)

    def _grant(self, permits: Sequence[Application], by: str) -> None:
        """Grant the dataset of a partner's permits until the last of them expires.

        The grant follows from the last permit.
        """
        last = permits[-1]
        self._sharing.grant(
            _address(last),
            last.partner,
            by,
            grant_reason(last),
            _end_of(permits),
        )

    def _others_in_force(self, application: Application) -> list[Application]:
        """Return the partner's other permits in force for the same dataset, oldest first."""
        now = self._clock()
        approved = self._applications.list(
            Side.THEIRS,
            Kind.DATASET,
            APPROVED,
            application.partner,
        )
        others = []
        for permit in approved:
            is_same_dataset = permit.subject == application.subject
            if is_same_dataset and permit.number != application.number and permit.holds(now):
                others.append(permit)
        return others

    def _has_grant_from(
        self,
        dataset: Address,
        permits: Sequence[Application],
    ) -> bool:
        """Return whether a partner has a grant that follows from a permit and is not revoked."""
        reasons = {grant_reason(permit) for permit in permits}
        grant = self._find_grant(dataset, permits[-1].partner)
        if grant is None or grant.revoked_at is not None:
            return False
        return grant.reason in reasons

    def _has_lasting_personal_grant(
        self,
        application: Application,
        end: datetime | None,
    ) -> bool:
        """Return whether a person's grant of the dataset is in force and lasts until ``end``.

        ``end``: None if the grant must not expire.
        """
        grant = self._find_grant(_address(application), application.partner)
        if grant is None or not is_personal(grant) or not grant.holds(self._clock()):
            return False
        if grant.expires_at is None:
            return True
        return end is not None and grant.expires_at >= end

    def _find_grant(self, dataset: Address, partner: NodeId) -> Grant | None:
        """Return a partner's grant of a dataset, even if it has ended; None without any."""
        for grant in self._sharing.grants.of(dataset):
            if grant.node == partner:
                return grant
        return None


class ModelGrants(Effect):
    """The grant of a model to the partner that applied for its use.

    The grant covers all versions of the model that are at this node when the grant is made, or
    those with the digest that the application names. New applications are not checked, as a refusal
    would disclose which models exist here.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def begin(self, application: Application, by: str) -> None:
        """Grant the versions of the model.

        Raises `NotFound` for a model that is not here, and `Conflict` if no version of it has the
        digest that the application names.
        """
        if application.side is Side.THEIRS:
            self._models.grant(
                application.subject,
                application.partner,
                allowed=True,
                digest=requested_digest(application),
            )

    def end(
        self,
        application: Application,
        by: str,
        *,
        last: bool,
    ) -> None:
        """Revoke the grant after the last application for the model."""
        if last and application.side is Side.THEIRS:
            with suppress(NotFound):
                self._models.grant(
                    application.subject,
                    application.partner,
                    allowed=False,
                )


def _address(application: Application) -> Address:
    """Return the address of the dataset that an application is for."""
    namespace, _, name = application.subject.partition("#")
    return Address(namespace, name)


def _end_of(permits: Sequence[Application]) -> datetime | None:
    """Return when the last of some permits expires; None if one of them never does."""
    ends = [permit.expires_at for permit in permits if permit.expires_at is not None]
    if len(ends) < len(permits):
        return None
    return max(ends)
