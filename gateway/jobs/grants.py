"""The grants that follow from the approval of a partner's application, and end with it.

An application of this node itself (`Side.MINE`) brings no grant here: the partner grants.
"""

from contextlib import suppress

from gateway.data.models import Models
from gateway.data.sharing import Sharing
from gateway.domain.applications import Application, Side
from gateway.domain.run import Address
from gateway.errors import NotFound
from gateway.jobs.applications import Effect
from gateway.jobs.offers import Offers


class DatasetGrants(Effect):
    """The grant of a dataset to the partner that applied for its use."""

    def __init__(self, sharing: Sharing, offers: Offers) -> None:
        self._sharing = sharing
        self._offers = offers

    def check(self, new: Application) -> None:
        """Raise `NotFound` for a dataset that is not offered to the partner, or does not exist."""
        self._offers.dataset(new.partner, new.subject)

    def begin(self, application: Application, by: str) -> None:
        """Grant the dataset."""
        if application.side is not Side.THEIRS:
            return
        self._sharing.grant(
            _address(application),
            application.partner,
            by,
            _reason(application),
            application.expires_at,
        )

    def end(
        self,
        application: Application,
        by: str,
        *,
        last: bool,
    ) -> None:
        """Revoke the grant, unless another grant has replaced it.

        ``last`` (no other application for the dataset is in force) is not needed: the reason of
        the grant names the application.
        """
        if application.side is not Side.THEIRS:
            return
        address = _address(application)
        for grant in self._sharing.grants.of(address):
            is_of_partner = grant.node == application.partner
            is_from_application = grant.reason == _reason(application)
            if is_of_partner and is_from_application:
                with suppress(NotFound):
                    self._sharing.revoke(address, application.partner, by)
                return


class ModelGrants(Effect):
    """The grant of a model to the partner that applied for its use.

    The grant covers all versions of the model that are at this node when the grant is made. New
    applications are not checked, as a refusal would disclose which models exist here.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def begin(self, application: Application, by: str) -> None:
        """Grant all versions of the model. Raises `NotFound` for a model that is not here."""
        if application.side is Side.THEIRS:
            self._models.grant(
                application.subject,
                application.partner,
                allowed=True,
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


def _reason(application: Application) -> str:
    """Return the reason stored with the grant that follows from an application.

    By this text `DatasetGrants.end` recognises the grant.
    """
    return f"application {application.number}"
