"""A private key in a token or behind a command signs jobs and the audit log."""

import json
import os
import sys
import threading
from contextlib import contextmanager
from functools import partial

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pkcs11 import TokenFlag

from gateway.config.loader import load
from gateway.config.statement_keys import check_signer, statement_keys_of
from gateway.diagnostics.machine import modes_of
from gateway.diagnostics.network import statements_of
from gateway.errors import Invalid, SigningFailed
from gateway.identity.audit_chain import verify_log
from gateway.identity.command_key import CommandKey
from gateway.identity.keys import Keyring, is_valid_signature
from gateway.identity.signers import ExternalSigner
from gateway.identity.statements import open_envelope
from gateway.identity.token_key import TokenAddress, TokenKey
from gateway.identity.token_session import login_danger
from gateway.jobs.bundle_statement import KIND
from gateway.runtime.trials import Result
from gateway.store.audit import SqlAudit
from route_table.certificates import public_key
from tests import forks
from tests.builders import at
from tests.cli import call
from tests.contracts.apis import two_nodes
from tests.contracts.databases import a_store
from tests.e2e.nodes import wait_for
from tests.inprocess import ME, PEER
from tests.services.signing import public
from tests.services.softhsm import KEY, LABEL, MODULE, PIN, new_pair, softhsm
from tests.trust.agreeing import set_routes
from tests.trust.bundles import a_job

CONTENT = b"a statement"


@pytest.fixture
def pair():
    return new_pair()


@pytest.fixture
def token(tmp_path, pair):
    with softhsm(tmp_path / "hsm", pair) as token:
        yield token


def private_file(folder, pair):
    """Write the private key of a signing command; return the file."""
    file = folder / "elsewhere.pem"
    content = pair.private.private_bytes(
        Encoding.PEM,
        PrivateFormat.PKCS8,
        NoEncryption(),
    )
    file.write_bytes(content)
    return str(file)


def by_command(folder, pair, *command):
    """Return the section ``identity`` of a node that signs with a command."""
    file = public(pair.private, folder, "public.pem")
    return {"statements_key": {"public_key": str(file), "command": list(command)}}


def openssl(folder, pair):
    """Return the section ``identity`` of a node that signs with OpenSSL."""
    sign = (
        "openssl",
        "dgst",
        "-sha256",
        "-sign",
        private_file(folder, pair),
    )
    return by_command(folder, pair, *sign)


def python(text):
    """Return the command that runs a Python program."""
    return [sys.executable, "-c", text]


def settings_with(folder, identity):
    """Return settings with a section ``identity``."""
    values = {
        "node": {"id": ME},
        "engine": {"kind": "process"},
        "state_dir": str(folder / "state"),
        "identity": identity,
    }
    return load(None, values)


def refusal_of(signer):
    """Return the reason for which a signer does not sign."""
    with pytest.raises(SigningFailed) as failure:
        signer.sign(CONTENT)
    return failure.value.reason


# ---------------------------------------------------------------- signing


@pytest.mark.parametrize("algorithm", ["ecdsa-p256-sha256", "rsa-v1_5-sha256", "ed25519"])
def test_a_key_in_a_token_signs_as_its_algorithm_wants_it(tmp_path, algorithm):
    pair = new_pair(algorithm)
    with softhsm(tmp_path / "hsm", pair):
        holder = TokenKey(TokenAddress(MODULE, LABEL, KEY), lambda: PIN)
        signer = ExternalSigner(pair.public, holder)
        signatures = [signer.sign(CONTENT) for _ in range(2)]

    assert (signer.id, signer.algorithm) == (pair.id, algorithm)
    for signature in signatures:
        assert is_valid_signature(public_key(pair.public), signature, CONTENT)


@pytest.mark.parametrize("algorithm", ["ecdsa-p256-sha256", "rsa-v1_5-sha256"])
def test_a_command_signs_what_it_reads(tmp_path, algorithm):
    pair = new_pair(algorithm)
    signer = statement_keys_of(settings_with(tmp_path, openssl(tmp_path, pair))).signing
    signature = signer.sign(CONTENT)
    assert is_valid_signature(public_key(pair.public), signature, CONTENT)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ed25519", ()),
        ("sm2", ("-digest", "sm3", "-pkeyopt", "distid:1234567812345678")),
    ],
    ids=["ed25519", "sm2"],
)
def test_a_command_signs_with_keys_that_need_no_digest(tmp_path, algorithm, options):
    pair = new_pair(algorithm)
    key_file = private_file(tmp_path, pair)
    sign = ["openssl", "pkeyutl", "-sign", "-inkey", key_file, "-rawin", "-in", "/dev/stdin"]
    signature = ExternalSigner(pair.public, CommandKey([*sign, *options])).sign(CONTENT)
    assert is_valid_signature(public_key(pair.public), signature, CONTENT)


@contextmanager
def trusting_nodes(home, identity):
    """Serve two nodes; the peer knows the keys that `ME` tells its partners."""
    for node in (ME, PEER):
        Keyring(home / node / "state").make("ed25519")
    with two_nodes(home, me={"identity": identity}) as world:
        keys = {
            ME: statement_keys_of(world.me.settings).for_partners,
            PEER: statement_keys_of(world.peer.settings).for_partners,
        }
        for gateway, partner in ((world.me, world.peer), (world.peer, world.me)):
            entry = {
                "url": partner.addresses()["peer"],
                "keys": ",".join(keys[partner.settings.node.id]),
                "bundles": "required",
            }
            set_routes(gateway, {partner.settings.node.id: entry})
        yield world


def test_a_partner_accepts_a_job_that_a_token_has_signed(tmp_path, token, pair):
    with trusting_nodes(tmp_path, token.settings()) as world:
        spec = a_job()
        world.me.job_requests.submit(spec)
        agreement = world.peer.store.local_jobs.get(spec.job_id).agreement

    assert agreement.key == pair.public
    open_envelope(agreement.bundle, KIND, [pair.public])
    state = world.me.settings.state_dir
    # The pairs for requests and for the sealing of messages.
    key_files = {file.name for file in state.rglob("*") if holds_private_key(file)}
    assert key_files == {"signing.pem", "sealing.pem"}
    assert Keyring(state).signing.id != pair.id


def holds_private_key(file):
    """Return whether a file contains a private key."""
    return file.is_file() and b"PRIVATE KEY" in file.read_bytes()


def test_a_job_that_cannot_be_signed_is_refused(tmp_path, pair):
    absent = tmp_path / "absent"
    sign = f"test ! -e {absent} && openssl dgst -sha256 -sign {private_file(tmp_path, pair)}"
    with trusting_nodes(tmp_path, by_command(tmp_path, pair, "sh", "-c", sign)) as world:
        absent.touch()
        spec = a_job()
        with pytest.raises(SigningFailed) as refusal:
            world.me.job_requests.submit(spec)
        assert refusal.value.reason == "SIGNER_FAILED"
        assert world.me.store.jobs.find(spec.job_id) is None

        absent.unlink()
        world.me.job_requests.submit(spec)
        assert world.peer.store.local_jobs.get(spec.job_id).agreement.key == pair.public


# ---------------------------------------------------------------- partners


@pytest.fixture
def config(tmp_path, token):
    """Give the configuration of a new node, with the key in a token."""
    file = tmp_path / "node.yml"
    result = call(
        "init",
        "--node",
        "A1",
        "--engine",
        "process",
        "-o",
        str(file),
    )
    assert result.exit_code == 0, result.stderr
    use(file, token.settings())
    return file


def use(config, identity):
    """Replace the section ``identity`` of a configuration."""
    values = yaml.safe_load(config.read_text())
    values["identity"] = identity
    config.write_text(yaml.safe_dump(values))


def output_of(config, *words):
    """Run a command with ``--json``; return the printed object."""
    result = call(*words, "--config", str(config), "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_an_invitation_has_the_keys_of_requests_and_of_jobs(config, pair):
    node_key = Keyring(config.parent / "var").signing
    invitation = output_of(config, "partner", "invite", "--address", "https://a.example")
    assert invitation["keys"] == [node_key.public, pair.public]

    keys = output_of(config, "identity", "show")["keys"]
    assert [(key["use"], key["id"]) for key in keys] == [
        ("signing", node_key.id),
        ("statements", pair.id),
    ]


def test_a_coming_key_is_announced_and_an_earlier_one_accepted(config, tmp_path, token):
    coming = new_pair("ed25519")
    file = public(coming.private, tmp_path, "coming.pem")
    use(
        config,
        token.settings() | {"further_keys": [str(file)]},
    )
    invitation = output_of(config, "partner", "invite", "--address", "https://a.example")
    assert invitation["keys"][-1] == coming.public
    assert coming.public in statement_keys_of(load(config)).for_audit


# ---------------------------------------------------------------- the audit log


def test_only_the_key_in_the_token_signs_the_audit_log(config, pair):
    exported = config.parent / "audit.jsonl"
    assert call("identity", "rotate", "--config", str(config)).exit_code == 0  # writes a line
    exported.write_text(call("audit", "export", "--config", str(config)).stdout)

    verified = output_of(config, "audit", "verify", str(exported))
    assert (verified["problems"], verified["key"]) == (
        [],
        pair.id,
    )

    signed_by_copied_key(config.parent)
    forged = call("audit", "verify", "--config", str(config))
    assert forged.exit_code == 1
    assert "not a key of the node" in forged.stdout


def signed_by_copied_key(folder):
    """Sign the audit log with the key pair in ``state_dir``."""
    with a_store(f"sqlite:///{folder / 'var/gateway.db'}") as store:
        SqlAudit(store).sign("A1", Keyring(folder / "var").signing, at(9))


def test_the_audit_log_survives_the_change_to_a_token_and_back(tmp_path, token, pair):
    node_key = Keyring(tmp_path / "state").make("ed25519")
    in_token = statement_keys_of(settings_with(tmp_path, token.settings())).signing
    with a_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        audit = SqlAudit(store)
        for number, signer in enumerate([node_key, in_token, node_key]):
            audit.add(
                at(number),
                "ann",
                "PUT /x",
                200,
                None,
                {},
            )
            audit.sign_daily(ME, signer, at(number))
            verified = verify_log(audit.lines(), [signer.public])
            assert (verified.problems, verified.key) == (
                [],
                signer.id,
            )


class _SlowSigner:
    """Signs with a pair; a line is added to the log during its first signature."""

    def __init__(self, pair, audit):
        self.id = pair.id
        self.public = pair.public
        self.algorithm = pair.algorithm
        self.signatures = 0
        self._pair = pair
        self._audit = audit

    def sign(self, content):
        self.signatures += 1
        if self.signatures == 1:
            line = (
                at(5),
                "li",
                "PUT /y",
                200,
                None,
                {},
            )
            writer = threading.Thread(
                target=self._audit.add,
                args=line,
            )
            writer.start()
            writer.join(10)
            assert not writer.is_alive()
        return self._pair.sign(content)


def test_the_log_is_written_while_its_head_is_being_signed(tmp_path, pair):
    with a_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        audit = SqlAudit(store)
        audit.add(
            at(0),
            "ann",
            "PUT /x",
            200,
            None,
            {},
        )
        signer = _SlowSigner(pair, audit)
        audit.sign(ME, signer, at(6))
        verified = verify_log(audit.lines(), [pair.public])

    assert verified.problems == []
    assert (verified.lines, verified.after_head, signer.signatures) == (3, 0, 2)


# ---------------------------------------------------------------- failures


def without(key):
    """Return a function that deletes a file of the token."""

    def delete(token):
        (token.folder / key).unlink()

    return delete


def open_pin_file(token):
    token.pin_file.chmod(0o640)


def empty_pin_file(token):
    token.pin_file.write_text("\n")


def wrong_pin(token):
    token.pin_file.write_text("1111")


def leave(token):
    """Leave the token as it is."""


@pytest.mark.parametrize(
    ("damage", "changes", "reason"),
    [
        (leave, {"token": "another"}, "TOKEN_MISSING"),
        (leave, {"module": "/usr/lib/none.so"}, "TOKEN_MISSING"),
        (leave, {"key": "another"}, "TOKEN_KEY_MISSING"),
        (wrong_pin, {}, "TOKEN_PIN_REFUSED"),
        (without("pin"), {}, "TOKEN_PIN_UNREADABLE"),
        (open_pin_file, {}, "TOKEN_PIN_UNREADABLE"),
        (empty_pin_file, {}, "TOKEN_PIN_UNREADABLE"),
        (without("public.pem"), {}, "PUBLIC_KEY_UNUSABLE"),
    ],
    ids=[
        "no token",
        "no module",
        "no key",
        "PIN",
        "no PIN",
        "open PIN",
        "empty PIN",
        "no public key",
    ],
)
def test_an_unusable_token_has_a_reason_and_a_remedy(tmp_path, token, damage, changes, reason):
    damage(token)
    settings = settings_with(tmp_path, token.settings(**changes))
    with pytest.raises(Invalid) as refusal:
        check_signer(statement_keys_of(settings))
    assert refusal.value.reason == reason

    step = statements_of(settings)
    assert step.result is Result.FAILED
    assert step.remedy


def test_a_private_key_in_place_of_the_public_one_has_its_own_remedy(tmp_path, pair):
    identity = by_command(tmp_path, pair, "/bin/true")
    identity["statements_key"]["public_key"] = private_file(tmp_path, pair)

    step = statements_of(settings_with(tmp_path, identity))

    assert step.result is Result.FAILED
    assert "identity.statements_key.public_key" in step.cause
    assert "openssl pkey -in KEY -pubout" in step.remedy
    assert "rotate" not in step.remedy


def test_an_export_that_cannot_be_signed_is_refused_with_its_reason(config, token):
    wrong_pin(token)
    result = call("audit", "export", "--config", str(config))
    assert result.exit_code == 1
    assert "TOKEN_PIN_REFUSED" in result.stderr
    assert result.stdout == ""


def test_a_node_does_not_start_with_a_key_that_cannot_sign(config, token):
    wrong_pin(token)
    process = forks.run(["serve", "--config", str(config)])
    assert process.returncode == 2
    assert "TOKEN_PIN_REFUSED" in process.stderr
    assert "identity.statements_key" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_usable_token_is_named_by_the_doctor(tmp_path, token, pair):
    step = statements_of(settings_with(tmp_path, token.settings()))
    assert step.result is Result.OK
    assert pair.id in step.found


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit(3)", "SIGNER_FAILED"),
        ("print('no signature')", "SIGNATURE_UNUSABLE"),
        ("", "SIGNATURE_UNUSABLE"),
        ("while True: print('x' * 1000)", "SIGNATURE_UNUSABLE"),
    ],
    ids=["fails", "text", "nothing", "endless"],
)
def test_a_command_without_a_signature_is_refused(pair, program, reason):
    signer = ExternalSigner(pair.public, CommandKey(python(program)))
    assert refusal_of(signer) == reason


@pytest.mark.parametrize(
    "command",
    [["/no/such/program"], ["echo", "\0"]],
    ids=["no program", "null character"],
)
def test_a_command_that_cannot_be_run_is_refused(pair, command):
    signer = ExternalSigner(pair.public, CommandKey(command))
    assert refusal_of(signer) == "SIGNER_FAILED"


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path, pair):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # The child has the pipe open for as long as it lives.
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reading:
        hang = ["sh", "-c", f"sh -c 'exec 3>{pipe}; echo started >&3; sleep 600' ; true"]
        signer = ExternalSigner(pair.public, CommandKey(hang, timeout=1.0))
        assert refusal_of(signer) == "SIGNER_TIMEOUT"
        os.set_blocking(reading.fileno(), True)
        assert reading.read() == "started\n"  # up to the end of the last process that writes


def test_a_signature_of_another_key_is_never_used(tmp_path, pair):
    foreign_pair = new_pair()
    command = openssl(tmp_path, foreign_pair)["statements_key"]["command"]
    assert refusal_of(ExternalSigner(pair.public, CommandKey(command))) == "SIGNATURE_UNUSABLE"


def test_a_token_that_hangs_stops_no_caller_for_long(token, pair):
    logins = []
    may_go_on = threading.Event()

    def slow_pin():
        logins.append(PIN)
        may_go_on.wait(60)
        return PIN

    key = TokenKey(
        TokenAddress(MODULE, LABEL, KEY),
        slow_pin,
        timeout=0.1,
    )
    signer = ExternalSigner(pair.public, key)
    assert refusal_of(signer) == "SIGNER_TIMEOUT"
    assert refusal_of(signer) == "SIGNER_TIMEOUT"
    assert len(logins) == 1  # the second caller does not add a call that hangs

    may_go_on.set()
    wait_for(partial(signs, signer), 30, 0.02, "the token signs again")


def signs(signer):
    """Return whether a signer signs now."""
    try:
        return bool(signer.sign(CONTENT))
    except SigningFailed:
        return False


def test_a_refused_pin_is_tried_once_until_it_changes(token, pair):
    pins = ["1111", "1111", PIN]
    key = TokenKey(TokenAddress(MODULE, LABEL, KEY), lambda: pins[0])
    signer = ExternalSigner(pair.public, key)
    for text in ("refuses the PIN", "not tried again"):
        with pytest.raises(SigningFailed, match=text) as failure:
            signer.sign(CONTENT)
        assert failure.value.reason == "TOKEN_PIN_REFUSED"
        del pins[0]
    assert signer.sign(CONTENT)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (TokenFlag.USER_PIN_LOCKED, "is locked"),
        (TokenFlag.USER_PIN_FINAL_TRY, "by hand"),
        (TokenFlag.USER_PIN_COUNT_LOW | TokenFlag.TOKEN_INITIALIZED, ""),
    ],
)
def test_the_last_try_of_a_pin_is_left_to_people(flags, text):
    danger = login_danger(int(flags))
    assert text in danger
    assert bool(danger) == bool(text)


@pytest.mark.parametrize(
    "source",
    [
        {"pin_variable": "TOKEN_PIN"},
        {"pin_command": ["echo", PIN]},
    ],
    ids=["environment", "command"],
)
def test_a_pin_comes_from_the_environment_or_a_command_too(tmp_path, token, monkeypatch, source):
    monkeypatch.setenv("TOKEN_PIN", PIN)
    identity = token.settings(pin_file=None, **source)
    signer = statement_keys_of(settings_with(tmp_path, identity)).signing
    assert signer.sign(CONTENT)


@pytest.mark.parametrize(
    "source",
    [
        {"pin_variable": "NO_SUCH_PIN"},
        {"pin_command": ["false"]},
        {"pin_command": ["yes"]},
        {"pin_command": ["echo", "\0"]},
    ],
    ids=["environment", "command", "endless output", "null character"],
)
def test_a_pin_that_is_not_there_is_named(tmp_path, token, source):
    identity = token.settings(pin_file=None, **source)
    signer = statement_keys_of(settings_with(tmp_path, identity)).signing
    assert refusal_of(signer) == "TOKEN_PIN_UNREADABLE"


def test_a_node_without_the_extra_is_told_to_install_it(token, pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "pkcs11.exceptions", None)
    key = TokenKey(TokenAddress(MODULE, LABEL, KEY), lambda: PIN)
    with pytest.raises(SigningFailed, match=r"bfia-gateway\[pkcs11\]"):
        ExternalSigner(pair.public, key).sign(CONTENT)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"pin_file": None}, "identity.statements_key.pkcs11"),
        ({"pin_variable": "TOO"}, "identity.statements_key.pkcs11"),
        ({"pin": PIN}, "identity.statements_key.pkcs11.pin"),
    ],
    ids=["none", "two", "in clear"],
)
def test_a_pin_has_one_source_and_is_never_in_the_settings(tmp_path, token, changes, path):
    with pytest.raises(Invalid) as refusal:
        settings_with(tmp_path, token.settings(**changes))
    assert path in [problem.path for problem in refusal.value.problems]
    assert PIN not in str(refusal.value)


def test_a_key_is_in_a_token_or_behind_a_command_not_both(tmp_path, token):
    identity = token.settings()
    identity["statements_key"]["command"] = ["sign"]
    with pytest.raises(Invalid, match="one of pkcs11 and command"):
        settings_with(tmp_path, identity)


def test_the_doctor_warns_of_a_pin_file_that_others_may_read(tmp_path, token):
    open_pin_file(token)
    step = modes_of(settings_with(tmp_path, token.settings()), None)
    assert step.result is Result.WARNING
    assert str(token.pin_file) in step.cause
