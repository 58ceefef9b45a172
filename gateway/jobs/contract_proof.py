"""Proof of a partner's messages about a contract, before and after the partner has a route."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.domain.applications import Application, Kind, Side
from gateway.domain.spec import NodeId
from gateway.errors import Conflict


class Signature(Protocol):
    """The signature of the current request."""

    @property
    def present(self) -> bool:
        """Whether the request has a signature in this gateway's form."""

    def check(self, keys: Sequence[str]) -> None:
        """Raise `NotAllowed` unless one of these public keys has signed the request."""


class ContractProof:
    """Checks messages about contracts against the keys that a person has compared."""

    def __init__(
        self,
        keys_of: Callable[[NodeId], Sequence[str]],
    ) -> None:
        """``keys_of`` returns the public keys in the route of a node."""
        self._keys_of = keys_of

    def check_message(self, application: Application, signature: Signature) -> None:
        """Raise `NotAllowed` unless a message about a contract is signed by a compared key.

        A person may have exempted a partner whose product does not sign. ``Application.signing`` is
        "off" then, or "accepted": a signature is checked if there is one.
        """
        keys = self._keys(application)
        if application.side is Side.THEIRS and not keys:
            # The partner's application was not signed either: that the sender knows the contract's
            # id is the only proof.
            return
        is_verifiable = bool(keys) and signature.present
        match application.signing:
            case "off":
                return
            case "accepted" if not is_verifiable:
                return
        signature.check(keys)

    def is_compared(self, application: Application, key: str) -> bool:
        """Return whether the key in a partner's answer is a compared one, so that it may be stored.

        False if no key was compared, because the partner's product does not sign. True for
        applications of other kinds, whose answers have no key. Raises `Conflict` if another key was
        compared.
        """
        if application.kind is not Kind.CONTRACT:
            return True
        keys = self._keys(application)
        if not keys:
            return False
        if key not in keys:
            text = (
                f"the answer of {application.partner} brings another key "
                "than the one that was compared before"
            )
            raise Conflict(text, reason="KEY_NOT_COMPARED")
        return True

    def _keys(self, application: Application) -> Sequence[str]:
        """Return the keys of the partner's route; without any, those recorded with the contract."""
        return self._keys_of(application.partner) or application.keys


def check_signed(application: Application) -> None:
    """Raise `Conflict` for the approval of an unsigned contract whose partner has to sign."""
    if application.kind is not Kind.CONTRACT:
        return
    if application.signing == "required" and not application.keys:
        text = (
            f"application {application.number} is not signed by its key, "
            "so anybody can have sent it, with another address: "
            f"have {application.partner} apply anew, "
            "or compare key and address and approve with --signing off"
        )
        raise Conflict(text, reason="APPLICATION_NOT_SIGNED")
