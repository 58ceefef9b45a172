"""Builds the keys of the node's signed statements from its settings."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.config.schema import Settings
from gateway.config.schema.identity import StatementsKey, TokenSettings
from gateway.config.secret_command import CommandFailed, secret_printed_by
from gateway.domain.problems import Problem
from gateway.errors import Invalid, SigningFailed
from gateway.identity.command_key import CommandKey
from gateway.identity.keys import Keyring
from gateway.identity.signers import ExternalSigner, KeyHolder
from gateway.identity.statement_keys import StatementKeys
from gateway.identity.token_key import TokenAddress, TokenKey
from route_table.readers import public_keys

_SIGNER_PATH = "identity.statements_key"  # path of the setting
_PIN_UNREADABLE = "TOKEN_PIN_UNREADABLE"
_MAX_FILE = 65_536  # characters of a file with keys or a PIN
_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO  # rights that the mode of a PIN file must not grant
# The key of each token in use, by its settings: a process logs in to a token once.
_TOKEN_KEYS: dict[str, TokenKey] = {}


def statement_keys_of(settings: Settings) -> StatementKeys:
    """Return the keys of a node's signed statements; no private key is used yet.

    Raises `Invalid` (PUBLIC_KEY_UNUSABLE) for a file without a usable public key.
    """
    identity = settings.identity
    further: list[str] = []
    for number, file in enumerate(identity.further_keys):
        further += _keys_in(file, f"identity.further_keys[{number}]")
    signer = None
    if identity.statements_key is not None:
        signer = _signer_of(identity.statements_key)
    return StatementKeys(Keyring(settings.state_dir), signer, further)


def check_signer(keys: StatementKeys) -> None:
    """Raise `Invalid`, with the reason of the failure, if the configured signer cannot sign."""
    try:
        keys.check()
    except SigningFailed as error:
        raise Invalid([Problem(_SIGNER_PATH, error.message)], reason=error.reason) from error


# ---------------------------------------------------------------- keys


def _signer_of(key: StatementsKey) -> ExternalSigner:
    """Return the signer whose private key lies elsewhere. Raises `Invalid`."""
    path = f"{_SIGNER_PATH}.public_key"
    keys = _keys_in(key.public_key, path)
    if len(keys) > 1:
        raise _unusable(path, "must contain one public key only", key.public_key)
    return ExternalSigner(keys[0], _holder_of(key))


def _holder_of(key: StatementsKey) -> KeyHolder:
    """Return the place of a private key."""
    token = key.pkcs11
    if token is None:
        return CommandKey(key.command)
    address = TokenAddress(
        module=str(token.module),
        token=token.token,
        key=token.key,
    )
    return _TOKEN_KEYS.setdefault(
        token.model_dump_json(),
        TokenKey(address, _PinSource(token)),
    )


def _keys_in(
    file: Path,
    path: str,
) -> tuple[str, ...]:
    """Return the public keys in a PEM file; ``path`` is its setting's. Raises `Invalid`."""
    try:
        with file.open(encoding="utf-8") as stream:
            return public_keys(stream.read(_MAX_FILE))
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}", file) from error
    except ValueError as error:
        raise _unusable(path, "must be a public key in PEM form", file) from error


def _unusable(path: str, rule: str, file: Path) -> Invalid:
    """Return the error of a setting whose file cannot be used."""
    return Invalid(
        [Problem(path, rule, str(file))],
        reason="PUBLIC_KEY_UNUSABLE",
    )


# ---------------------------------------------------------------- the PIN


@dataclass(frozen=True)
class _PinSource:
    """Reads a token's PIN from the place that its settings name."""

    token: TokenSettings

    def __call__(self) -> str:
        """Return the PIN. Raises `SigningFailed` (TOKEN_PIN_UNREADABLE)."""
        token = self.token
        if token.pin_command:
            return _printed_pin(token.pin_command)
        if token.pin_file is not None:
            place = f"the PIN file {token.pin_file}"
            pin = _pin_in_file(token.pin_file)
        else:
            place = f"the environment variable {token.pin_variable}"
            pin = os.environ.get(token.pin_variable, "")
        if not pin:
            raise _unreadable_pin(f"{place} contains no PIN")
        return pin


def _pin_in_file(file: Path) -> str:
    """Return the PIN in a file that its owner alone can read. Raises `SigningFailed`."""
    try:
        with file.open(encoding="utf-8") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            pin = stream.read(_MAX_FILE).strip()
    except (OSError, ValueError) as error:
        raise _unreadable_pin(f"the PIN file {file} cannot be read: {error}") from error
    if mode & _OTHER_USERS:
        raise _unreadable_pin(f"others may read the PIN file {file}: chmod 600 {file}")
    return pin


def _printed_pin(command: Sequence[str]) -> str:
    """Return the PIN that a command prints. Raises `SigningFailed`."""
    try:
        return secret_printed_by(command)
    except CommandFailed as error:
        text = f"the command {command[0]}, which has to print the PIN, {error}"
        raise _unreadable_pin(text) from error


def _unreadable_pin(text: str) -> SigningFailed:
    """Return the error of a PIN that cannot be read."""
    return SigningFailed(text, reason=_PIN_UNREADABLE)
