"""What follows from an application: of a contract a route, of a dataset a grant; they end with it."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gateway.auth import origin
from gateway.data.models import Models
from gateway.data.sharing import Sharing
from gateway.domain.applications import Application, Side
from gateway.domain.problems import Problem
from gateway.domain.run import Address
from gateway.errors import Conflict, Invalid, NotFound
from gateway.jobs.offers import Offers
from route_table.document import Change
from route_table.live import LiveRoutes
from route_table.model import InvalidRoutes


class ContractRoutes:
    """The route of a partner, as its contract says."""

    def __init__(self, routes: LiveRoutes, key_of: Callable[[str], str]) -> None:
        """``key_of`` returns a credential's public key as routes hold it."""
        self._routes = routes
        self._key_of = key_of

    def check(self, new: Application) -> None:
        """Take every application."""

    def begin(self, known: Application, by: str) -> None:
        """Write address and key, and enable the route; what else a route that is there says stays.

        Raises `Conflict` for another address or key than a route has: anybody can apply in the name of a partner.
        """
        given = known.request if known.side is Side.THEIRS else known.answer
        values: dict[str, Any] = {"url": known.url, "enabled": True}
        if credential := given.get("auth_credential"):
            values |= {"keys": self._key_of(credential), "signing": known.signing}
        before = self._routes.table.routes.get(known.partner)
        proven = origin().node == known.partner  # by the keys that the route has
        if before is not None and proven:
            values.pop("signing", None)  # an update of the partner's: that stays as people here have it
        elif before is not None and before.keys:
            same_address = bool(before.via) or known.url.rstrip("/") == before.url.rstrip("/")
            if values.get("keys") not in before.keys or not same_address:
                text = f"the route of {known.partner} has another address or key; anybody can apply in its name"
                raise Conflict(f"{text}: if the partner says so by telephone, edit the route and decide again")
            del values["keys"]  # the route may have the next key, too
        if before is not None and before.via:
            del values["url"]
        try:
            self._routes.edit(Change(known.partner, values, whole=False), by or "contract", f"contract {known.id}")
        except InvalidRoutes as error:
            raise Invalid((Problem(*p) for p in error.problems), reason="ROUTE_INVALID") from error

    def end(self, known: Application, by: str, *, last: bool) -> None:
        """Disable the route, unless another contract is in force, such as a renewed one."""
        if last and known.partner in self._routes.table.routes:
            change = Change(known.partner, {"enabled": False}, whole=False)
            self._routes.edit(change, by or "contract", f"contract {known.id} has ended")


class DatasetGrants:
    """The grant of a dataset to the partner that applied for its use."""

    def __init__(self, sharing: Sharing, offers: Offers) -> None:
        self._sharing = sharing
        self._offers = offers

    def check(self, new: Application) -> None:
        """Raise `NotFound` for a dataset that is not published for the partner, or not there."""
        self._offers.dataset(new.partner, new.subject)

    def begin(self, known: Application, by: str) -> None:
        """Grant it."""
        if known.side is Side.THEIRS:
            self._sharing.grant(_address(known), known.partner, by, _reason(known), known.expires_at)

    def end(self, known: Application, by: str, *, last: bool) -> None:
        """Revoke that grant, unless another one has taken its place."""
        mine = (g for g in self._sharing.grants(_address(known)) if g.node == known.partner)
        if known.side is Side.THEIRS and any(grant.reason == _reason(known) for grant in mine):
            with suppress(NotFound):
                self._sharing.revoke(_address(known), known.partner, by)


class ModelGrants:
    """The right of the partner that applied to use the versions of a model that are here."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def check(self, new: Application) -> None:
        """Take every application: an answer would say which models are here."""

    def begin(self, known: Application, by: str) -> None:
        """Grant them."""
        if known.side is Side.THEIRS:
            self._models.grant(known.subject, known.partner, allowed=True)

    def end(self, known: Application, by: str, *, last: bool) -> None:
        """Take that back."""
        if last and known.side is Side.THEIRS:
            with suppress(NotFound):
                self._models.grant(known.subject, known.partner, allowed=False)


def _address(known: Application) -> Address:
    namespace, _, name = known.subject.partition("#")
    return Address(namespace, name)


def _reason(known: Application) -> str:
    return f"application {known.number}"
