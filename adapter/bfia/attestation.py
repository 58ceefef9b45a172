"""Paths of the standard's remote attestation of trusted execution environments (TEE).

Other nodes have a report verified at ``/v1/interconn/tee/uas/verify``, as the standard has it. The
containers of this node submit their reports, and fetch their inputs, below
``/v1/platform/tee``, an extension.
"""

import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from adapter.bfia import examples, wire
from adapter.bfia.envelope import Route, ok
from adapter.bfia.paths import ROOT
from adapter.bfia.requests import Caller, Peers, Sender, run_blocking
from adapter.body import JsonRoute
from gateway.attestation.sealed_inputs import read_public_key, sealed
from gateway.attestation.verifiers import Verifiers
from gateway.domain.attestation import UAS, Claims, ReportRefused, read_report
from gateway.errors import NotFound
from gateway.identity.keys import KeyPair
from gateway.jobs.attested_runs import AttestedRuns, SealedFile
from gateway.ports import Clock, Limiters

VERIFY = f"{ROOT}/tee/uas/verify"
_PLATFORM = "/v1/platform/tee"  # beginning of the paths for containers
_BINARY = "application/octet-stream"
_LARGEST_NONCE = 128  # hexadecimal digits: 64 bytes
_SUCCESS = "0"  # the standard's result code
_NO_HARDWARE = "success: a software report, which proves no hardware"


class VerificationRequest(BaseModel):
    """A report that a node has verified.

    The access key and its secret are not needed: the sender of the request is a known node.
    """

    biz_id: str = Field(default="", max_length=255)
    access_key: str = Field(default="", max_length=1024)
    access_secret: str = Field(default="", max_length=4096)
    nonce: str = Field(default="", max_length=_LARGEST_NONCE, pattern="^([0-9A-Fa-f]{2})*$")
    report: str | dict[str, Any] = Field(description="a unified attestation report")


class VerificationResult(wire.Response):
    """The result of a verification, in the standard's form."""

    result_code: str = Field(examples=[_SUCCESS], description="0, or the reason of a refusal")
    result_msg: str = Field(examples=["success"])
    attestation_result: str = Field(
        default="", description="unified attestation report of type Uas, signed by this node"
    )


class SubmittedReport(BaseModel):
    """The report of a run, with the public key that it is bound to."""

    model_config = ConfigDict(extra="forbid")

    report: str | dict[str, Any] = Field(description="a unified attestation report")
    pem_public_key: str = Field(max_length=4096, description="an X25519 key in PEM")


class Input(BaseModel):
    """An input of a run."""

    namespace: str
    name: str
    files: list[str]


class Inputs(wire.Response):
    """The inputs of a run whose report was verified."""

    inputs: dict[str, Input]


def peer_router(
    verifiers: Verifiers,
    signing_key: Callable[[], KeyPair | None],
    clock: Clock,
    peers: Peers,
) -> APIRouter:
    """Return the path at which other nodes have reports verified.

    ``signing_key`` returns this node's key, None without one.
    """
    router = APIRouter(tags=["attestation"], route_class=Route)

    @router.post(VERIFY, summary="Verify an attestation report (TEE, unified service)")
    async def verify(
        body: Annotated[VerificationRequest, examples.VERIFY_REPORT],
        caller: Caller = peers.caller,
    ) -> VerificationResult:
        """A report that is refused has its reason as ``result_code``; nothing is stored."""
        work = partial(_verification_result, verifiers, signing_key, clock, body)
        return await run_blocking(peers.limiters.verification, caller.sender, work)

    return router


def _verification_result(
    verifiers: Verifiers,
    signing_key: Callable[[], KeyPair | None],
    clock: Clock,
    body: VerificationRequest,
) -> VerificationResult:
    """Verify a report and sign the result."""
    try:
        key = _required(signing_key())
        claims = verifiers.verify(read_report(body.report), clock())
    except ReportRefused as refusal:
        return VerificationResult(
            result_code=refusal.reason,
            result_msg=refusal.message,
            attestation_result="",
        )
    message = "success"
    if not claims.is_hardware:
        message = _NO_HARDWARE
    return VerificationResult(
        result_code=_SUCCESS,
        result_msg=message,
        attestation_result=_signed_report(key, claims, body.nonce),
    )


def _required(key: KeyPair | None) -> KeyPair:
    """Return the key with which this node signs results. Raises `ReportRefused` without one."""
    if key is None:
        text = "this node has no key to sign results with: bfia-gateway identity rotate makes one"
        raise ReportRefused("TEE_SERVICE_WITHOUT_KEY", text)
    return key


def _signed_report(
    key: KeyPair,
    claims: Claims,
    nonce: str,
) -> str:
    """Return a report of type Uas: the verified quote, signed by this node."""
    result = json.dumps(
        {
            "int64_result_code": 0,
            "str_tee_platform": claims.platform,
            "hex_nonce": nonce.upper(),
            "b64_quote": claims.quote,
        }
    )
    signature = base64.b64encode(key.sign(result.encode())).decode()
    return json.dumps(
        {
            "str_report_version": "1.0",
            "str_report_type": UAS,
            "str_tee_platform": UAS,
            "json_report": json.dumps({"str_uas_result": result, "b64_signature": signature}),
        }
    )


def container_router(
    runs: AttestedRuns,
    limiters: Limiters,
    run_of_token: Callable[[str], str | None],
) -> APIRouter:
    """Return the paths at which runs submit their reports and fetch their inputs.

    ``run_of_token`` returns the run of a token, None for an unknown token.
    """
    router = APIRouter(tags=["container"], route_class=Route)
    token_query = Query(
        alias="run",
        description="the run's token; part of the address that the container got",
    )

    @router.post(f"{_PLATFORM}/report", summary="A run submits its attestation report")
    async def submit_report(
        body: Annotated[SubmittedReport, examples.SUBMIT_REPORT],
        sender: Sender,
        token: Annotated[str, token_query],
    ) -> wire.Answer[Inputs]:
        """The response lists the inputs. A refused report ends the run."""
        run_id = _run_of(token)
        work = partial(runs.submit_report, run_id, body.report, body.pem_public_key)
        inputs = await run_blocking(limiters.rest, sender, work)
        listed = {
            name: Input(
                namespace=files.address.namespace,
                name=files.address.name,
                files=list(files.files),
            )
            for name, files in inputs.items()
        }
        return ok(Inputs(inputs=listed))

    def _run_of(token: str) -> str:
        """Return the run of a token. Raises `NotFound`."""
        run_id = run_of_token(token)
        if run_id is None:
            raise NotFound("no run of this node has that token", reason="RUN_UNKNOWN")
        return run_id

    files = APIRouter(tags=["container"], route_class=JsonRoute)

    @files.get(
        f"{_PLATFORM}/input",
        summary="A file of an input, encrypted for the key of the run's report",
        response_class=StreamingResponse,
        responses={200: {"content": {_BINARY: {"schema": {"type": "string", "format": "binary"}}}}},
    )
    async def read_input(
        sender: Sender,
        token: Annotated[str, token_query],
        name: Annotated[str, Query(max_length=255, description="the input's name")],
        file: Annotated[str, Query(max_length=255, description="the file's name")],
    ) -> StreamingResponse:
        """Only after the run's report was verified."""
        work = partial(runs.open_input, _run_of(token), name, file)
        opened = await run_blocking(limiters.rest, sender, work)
        return StreamingResponse(
            _encrypted(opened),
            media_type=_BINARY,
        )

    router.include_router(files)
    return router


def _encrypted(file: SealedFile) -> Iterator[bytes]:
    """Yield a file's content, encrypted for its run; close it at the end."""
    with file.content as content:
        yield from sealed(content, read_public_key(file.public_key))
