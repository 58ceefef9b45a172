"""The report in software, and the inputs that a platform gives in return."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_scalarmult,
    crypto_scalarmult_base,
)
from nacl.signing import SigningKey
from refvendor.attestation import (
    STARTING,
    X25519_DER,
    ChannelKey,
    NotAttested,
    _derive,
    fetch_inputs,
    measurement_of,
)
from refvendor.contract import StorageFailed

BINDING = "00" * 32


def sealed(key_der, *chunks):
    """Encrypt a file as the platform does."""
    recipient = key_der.removeprefix(X25519_DER)
    private = bytes(range(32))
    public = crypto_scalarmult_base(private)
    key = _derive(crypto_scalarmult(private, recipient), public + recipient)
    content = public
    for number, chunk in enumerate(chunks):
        is_last = number == len(chunks) - 1
        nonce = bytes([is_last]) + bytes(3) + number.to_bytes(8, "big")
        frame = crypto_aead_chacha20poly1305_ietf_encrypt(chunk, None, nonce, key)
        content += len(frame).to_bytes(4, "big") + frame
    return content


@contextmanager
def platform(*answers):
    """Serve answers to reports, one after the other; files are of one key that the test knows."""
    remaining = list(answers)
    reports = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            reports.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.respond(json.dumps(remaining.pop(0)).encode())

        def respond(self, content):
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/platform/tee/report?run=r", reports
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def refused(reason):
    return {"code": 403, "msg": f"{reason}: no", "data": {"reason": reason}}


def submit(url, folder):
    return fetch_inputs(url, BINDING, SigningKey.generate(), folder, sleep=lambda _: None)


def test_a_refused_report_ends_the_run(tmp_path):
    with (
        platform(refused("TEE_OTHER_RUN")) as (url, _),
        pytest.raises(NotAttested, match="TEE_OTHER_RUN"),
    ):
        submit(url, tmp_path)


def test_a_report_is_repeated_while_the_run_starts(tmp_path):
    accepted = {"code": 0, "msg": "success", "data": {"inputs": {}}}
    with platform(refused(STARTING), accepted) as (url, reports):
        submit(url, tmp_path)

    assert len(reports) == 2
    body = json.loads(reports[0]["report"]["json_report"])
    assert json.loads(body["json_attributes"])["hex_user_data"].startswith(BINDING)


def test_a_file_in_frames_is_decrypted():
    key = ChannelKey()

    assert key.open(sealed(key.der, b"id,x\n", b"a,1\n")) == b"id,x\na,1\n"


@pytest.mark.parametrize("keep", [10, 40, -1])
def test_a_cut_file_is_refused(keep):
    key = ChannelKey()
    content = sealed(key.der, b"id,x\n", b"a,1\n")

    with pytest.raises(StorageFailed):
        key.open(content[:keep])


def test_a_file_without_its_last_frame_is_refused():
    key = ChannelKey()
    content = sealed(key.der, b"id,x\n", b"a,1\n")
    last_frame = 4 + len(b"a,1\n") + 16

    with pytest.raises(StorageFailed):
        key.open(content[:-last_frame])


def test_a_change_of_the_code_changes_its_measurement(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = measurement_of(tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")

    assert measurement_of(tmp_path) != before
