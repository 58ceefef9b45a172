"""The keys of the node's signed statements: job bundles and heads of the audit log."""

from collections.abc import Sequence

from gateway.identity.keys import Keyring
from gateway.identity.signers import Signer

_PROBE = b"bfia-gateway checks that it can sign"


class StatementKeys:
    """The key that signs statements, and the keys with which they are verified.

    Without a `Signer` of its own, the node's key pair signs them.
    """

    def __init__(
        self,
        keyring: Keyring,
        signer: Signer | None = None,
        further: Sequence[str] = (),
    ) -> None:
        """``further``: public keys of earlier or coming statements, in the form of routes."""
        self._keyring = keyring
        self._signer = signer
        self._further = tuple(further)

    @property
    def signing(self) -> Signer | None:
        """The key that signs; None if the node has none.

        Raises `Invalid` if the file of the key pair cannot be used.
        """
        return self._signer or self._keyring.signing

    @property
    def external(self) -> Signer | None:
        """The configured signer; None if the node's key pair signs."""
        return self._signer

    @property
    def further(self) -> tuple[str, ...]:
        """Public keys of earlier or coming statements."""
        return self._further

    @property
    def for_partners(self) -> list[str]:
        """The public keys that partners have to know: also those that sign requests.

        Raises `Invalid` if the file of a key pair cannot be used.
        """
        keys = [pair.public for pair in self._keyring.pairs.values()]
        if self._signer is not None:
            keys.append(self._signer.public)
        return list(dict.fromkeys([*keys, *self._further]))

    @property
    def for_audit(self) -> list[str]:
        """The public keys with which the newest head of the audit log must be signed.

        The node's key pair does not count while another key signs: a copy of ``state_dir`` must not
        be enough to sign another log. Raises `Invalid` if the file of a key pair cannot be
        used.
        """
        if self._signer is None:
            return self.for_partners
        return [self._signer.public, *self._further]

    def check(self) -> None:
        """Raise `SigningFailed` if the configured signer cannot sign now.

        Does nothing if the node's key pair signs. Takes at most `signers.SIGN_TIMEOUT` seconds.
        """
        if self._signer is not None:
            self._signer.sign(_PROBE)
