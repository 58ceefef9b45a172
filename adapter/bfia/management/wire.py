"""Bodies of the management layer, and the table of its kinds of audits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Json,
)
from pydantic_core import PydanticCustomError

from adapter.bfia.management.flows import flow_problems
from adapter.bfia.wire import Body, Id, Object, PermitToken, Response, Text
from gateway.config.schema.tee import TeePolicy
from gateway.domain.applications import Kind
from gateway.domain.approval import AuditStatus
from gateway.domain.problems import Problem
from route_table.certificates import encode_key, sealing_key
from route_table.model import NODE_ID, NODE_RULE
from route_table.readers import public_keys

# The standard names no unit of times: larger numbers are read as milliseconds, the first of which
# is a time in 2001. Years after 33658 cannot be written in seconds.
_LARGEST_SECONDS = 10**12
_LARGEST_TIME = 2**63 - 1  # the standard's type of times is int64
_LAST = datetime(9998, 1, 1, tzinfo=UTC)  # databases and Python cannot calculate with later times
_MOST_JOBS = 2**31 - 2  # of a permit; fits an integer column of any database
_MOST_SCOPE_IDS = 100  # of one key of a scope

# Algorithm -> its name in a contract. The names of Ed25519 and SM2 are ours, as the standard has
# none.
AUTH_TYPES = {
    "ed25519": "ED25519",
    "ecdsa-p256-sha256": "SHA256_ECDSA",
    "rsa-v1_5-sha256": "SHA256_RSA",
    "sm2": "SM2",
}


def moment(value: Any) -> datetime | None:
    """Read a time of the standard; None for null, 0 and empty text.

    A time after `_LAST` is read as `_LAST`: partners write such times for "never".
    """
    if value in (None, 0, "0", ""):
        return None
    try:
        number = int(value)
        seconds = float(number)
        if number > _LARGEST_SECONDS:
            seconds /= 1000
        if _LAST.timestamp() < seconds and number <= _LARGEST_TIME:
            return _LAST
        return datetime.fromtimestamp(seconds, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        raise PydanticCustomError(
            "time", "must be a time in seconds or milliseconds since 1970"
        ) from None


def milliseconds(at: datetime | None) -> int:
    """Write a time in the standard's form; 0 for none."""
    if at is None:
        return 0
    return int(at.timestamp() * 1000)


def _check_future(at: datetime | None) -> datetime | None:
    """Return a time unchanged if it is in the future; None unchanged, too.

    A pydantic validator, which raises PydanticCustomError otherwise.
    """
    if at is not None and at <= datetime.now(UTC):
        raise PydanticCustomError("time", "must lie in the future")
    return at


def _check_node_id(text: str) -> str:
    """Return a node's id unchanged if it is valid; see `_check_future`."""
    if not NODE_ID.fullmatch(text):
        raise PydanticCustomError("node", "{rule}", {"rule": NODE_RULE})
    return text


def is_url(text: str) -> bool:
    """True if a text has a host, and no invalid port; its scheme is not checked."""
    try:
        parts = urlsplit(text)
        has_usable_port = parts.port != 0  # the property raises ValueError for an invalid port
    except ValueError:
        return False
    return has_usable_port and bool(parts.hostname)


def _check_url(text: str) -> str:
    """Return a URL unchanged if a request can be sent there; see `_check_future`."""
    if not is_url(text):
        raise PydanticCustomError("url", "must be a URL such as https://host:port")
    return text


def _zero_as_none(value: Any) -> Any:
    """Return None for 0, which means no limit; any other value unchanged."""
    if value == 0:
        return None
    return value


def _check_code(text: str) -> str:
    """Return a component's code unchanged if it has a provider; see `_check_future`."""
    provider, slash, name = text.partition("/")
    if not (provider and slash and name):
        raise PydanticCustomError(
            "code", "must be provider/name, as the list of the node's components has it"
        )
    return text


def key_of(credential: str) -> str:
    """Return the public key, in the form of routes, of a key or certificate in PEM or base64.

    Raises ValueError for any other text, and for several keys.
    """
    if "BEGIN CERTIFICATE" in credential:
        try:
            credential = encode_key(
                x509.load_pem_x509_certificate(credential.encode()).public_key()
            )
        except (UnsupportedAlgorithm, x509.InvalidVersion) as error:
            raise ValueError from error
    [key] = public_keys(credential)
    return key


def _check_credential(text: str) -> str:
    """Return a credential unchanged if a key can be read from it; see `_check_future`."""
    try:
        key_of(text)
    except ValueError:
        rule = (
            "must be a public key (Ed25519, ECDSA on P-256, RSA from 2048 bits on, SM2) or a "
            "certificate (not SM2)"
        )
        raise PydanticCustomError("key", "{rule}", {"rule": rule}) from None
    return text


def _check_sealing_key(text: str) -> str:
    """Return a sealing key unchanged if messages can be sealed to it; see `_check_future`."""
    try:
        sealing_key(text)
    except ValueError:
        rule = "must be a public key for X25519 or SM2, in base64"
        raise PydanticCustomError("key", "{rule}", {"rule": rule}) from None
    return text


# A time in the future; None if there is none
Moment = Annotated[datetime | None, BeforeValidator(moment), AfterValidator(_check_future)]
Name = Annotated[str, Field(min_length=1, max_length=200)]  # of a flow or a model, in any script
Short = Annotated[str, Field(max_length=200)]
Long = Annotated[Text, Field(max_length=2000)]
Url = Annotated[
    str, Field(max_length=1000, pattern=r"^https?://[\x21-\x7e]+$"), AfterValidator(_check_url)
]
Credential = Annotated[
    str, Field(min_length=1, max_length=20_000), AfterValidator(_check_credential)
]
# Public key to which messages are sealed, in base64: an extension of the standard
SealingKey = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_check_sealing_key)]
# How many jobs may use something; None for no limit
JobLimit = Annotated[
    Annotated[int, Field(ge=1, le=_MOST_JOBS)] | None,
    BeforeValidator(_zero_as_none),
]


class NodeBody(Body):
    """A node's description of itself."""

    address: Url
    auth_credential: Credential
    auth_type: Short
    sealing_key: SealingKey | None = None
    inst_id: Short
    institution: Short
    name: Short
    system: Short
    system_version: Short
    description: Long = ""


class ApplyContract(NodeBody):
    """``node/contract/apply``.

    ``tee`` is an extension: the attestation reports of runs under the contract.
    """

    node_id: Annotated[Id, AfterValidator(_check_node_id)]
    expired_time: Moment = None
    tee: TeePolicy | None = None


class UpdateNode(NodeBody):
    """``node/update``."""

    contract_id: Id


class ConfirmContract(Body):
    """``node/contract/confirm``; ``tee`` is an extension, as in `ApplyContract`."""

    contract_id: Id
    status: AuditStatus
    auth_credential: Credential | None = None
    auth_type: Text = ""
    sealing_key: SealingKey | None = None
    expired_time: Moment = None
    tee: TeePolicy | None = None


class TerminateContract(Body):
    """``node/contract/terminate``."""

    contract_id: Id


ScopeIds = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=200)]],
    Field(max_length=_MOST_SCOPE_IDS),
]
Codes = Annotated[
    list[Annotated[str, Field(max_length=200), AfterValidator(_check_code)]],
    Field(max_length=_MOST_SCOPE_IDS),
]


class AuthScope(BaseModel):
    """``auth_scope``: the limits of a permit.

    An unknown key is refused: if it was ignored, the permit would open more than it names.
    """

    model_config = ConfigDict(extra="forbid")

    NODE: ScopeIds | None = None
    PROJECT: ScopeIds | None = None
    COMPONENT: Codes | None = None


class Permit(Body):
    """The owner's permit for the use of a dataset, model, flow or project.

    ``auth_scope`` is an extension: the owner has narrowed the scope of the application.
    """

    token: PermitToken
    resource_level: int = 1  # as `Audited.level`
    time_limit: Moment = None
    times_limit: JobLimit = None
    auth_scope: AuthScope | None = None


class Confirm(Body):
    """``…/audit/confirm``; a permit is an object, or its JSON as a text."""

    audit_id: Id
    status: AuditStatus
    resource_permit: Permit | Json[Permit] | None = None


class TerminateApplication(Body):
    """``…/audit/terminate``."""

    audit_id: Id


class Apply(Body):
    """``…/audit/apply``: the fields of every kind."""

    audit_id: Id
    contract_id: Text = Field(default="", max_length=100)


class ApplyDataset(Apply):
    """``dataset/audit/apply``."""

    contract_id: Id
    dataset_id: Annotated[str, Field(min_length=1, max_length=400)]
    auth_scope: AuthScope | None = None
    time_limit: Moment = None
    times_limit: JobLimit = None


class ApplyProject(Apply):
    """``project/audit/apply``."""

    contract_id: Id
    project_id: Id
    name: Short
    type: Text = Field(default="", max_length=200)
    datasets: list[Object] = Field(
        default_factory=list,
        max_length=1000,
    )


class ApplyFlow(Apply):
    """``flow/audit/apply``."""

    flow_id: Name
    name: Short
    dag: Object
    config: Object = Field(
        default_factory=dict,
        validation_alias=AliasChoices("config", "conf"),
    )
    description: Long = ""
    project_id: Text = Field(default="", max_length=200)


class ApplyModel(Apply):
    """``model/audit/apply``."""

    model_id: Name
    apply_project_id: Id
    task_id: Text = Field(default="", max_length=200)
    digest: Text = Field(default="", max_length=200)


def _no_problems(request: Mapping[str, Any]) -> Sequence[Problem]:
    """Return no problems: the model of the body checks all of it."""
    return ()


@dataclass(frozen=True)
class Audited:
    """One kind of audit."""

    kind: Kind
    body: type[Apply]
    subject: str  # field of the body with the id of the dataset, model, flow or project
    level: int  # ``resource_level`` of its permits
    example: Mapping[str, Any]  # fields of the body, for the API description
    # Returns the problems of a body that its model does not find; may take seconds.
    problems_in: Callable[[Mapping[str, Any]], Sequence[Problem]] = _no_problems


_A_FLOW = {
    "components": [
        {
            "name": "psi",
            "componentName": "PSI",
            "provider": "unionpay",
            "version": "2.0.0",
            "output": [{"type": "dataset", "key": "train_data"}],
        }
    ]
}
_AUDITS = (
    Audited(
        Kind.DATASET,
        ApplyDataset,
        "dataset_id",
        1,
        {"contract_id": "contract-1", "times_limit": 10},
    ),
    Audited(Kind.MODEL, ApplyModel, "model_id", 1, {"apply_project_id": "project-1"}),
    Audited(
        Kind.FLOW,
        ApplyFlow,
        "flow_id",
        2,
        {"name": "scoring", "dag": _A_FLOW},
        flow_problems,
    ),
    Audited(
        Kind.PROJECT,
        ApplyProject,
        "project_id",
        3,
        {"contract_id": "contract-1", "name": "scoring"},
    ),
)
AUDITED: Mapping[Kind, Audited] = {audited.kind: audited for audited in _AUDITS}

# An example of a node's description.
NODE: Mapping[str, Any] = {
    "node_id": "JG0100001100000012",
    "address": "https://gw.example.com:7380",
    "auth_credential": "MCowBQYDK2VwAyEAkL1d6x2Q+1HvLa5BU9gpYbdMfWDgRsuRgymNrdEg0WU=",
    "auth_type": "ED25519",
    "inst_id": "example",
    "institution": "Example Bank",
    "name": "example",
    "system": "example",
    "system_version": "1.0",
}


class ContractData(Response):
    """The response to ``node/contract/apply``."""

    contract_id: str


class NodeData(Response):
    """The response to ``node/query``."""

    node_id: str
    address: str
    inst_id: str
    institution: str
    name: str
    system: str
    system_version: str
    description: str
    auth_credential: str = ""
    auth_type: str = ""
    sealing_key: str = ""


class Records(Response):
    """A page of a list."""

    records: list[dict[str, Any]]
    total: int


class Record(Response):
    """One entry of a list, with its details."""
