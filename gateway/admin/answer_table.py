"""Which path of ours answers what; a path without a row has no JSON answer, or is missed by a test."""

from typing import Any

from pydantic import BaseModel, Field

from gateway.admin import answer_models as of
from gateway.admin import schemas as node
from gateway.http.described import Answers

_JOB = "/api/v1/jobs/{job_id}"
_DATASET = "/api/v1/datasets/{namespace}/{name}"
_MODEL = "/api/v1/models/{model_id}/{version}"
_PROVIDER = "/api/v1/providers/{provider_name}"
_PART = "{task}/{party}/{key}"


class Wrong(BaseModel):
    """One thing wrong in a request."""

    path: str = Field(examples=["limit"])
    rule: str = Field(examples=["must be a whole number from 1 to 1000"])
    got: Any = Field(default=None, examples=["abc"])
    suggestion: str = Field(default="", description="what was probably meant")


class Because(BaseModel):
    """Why something was refused, and every problem with its path."""

    reason: str = Field(examples=["INVALID"], description="stable; docs/reasons.md explains each")
    problems: list[Wrong] = Field(default_factory=list)


class Refusal(BaseModel):
    """Every answer that is no success; the HTTP status is the code."""

    code: int = Field(examples=[400])
    msg: str = Field(examples=["INVALID: limit: must be a whole number from 1 to 1000 (got 'abc')"])
    data: Because


ANSWERS: Answers = {
    ("get", "/health/live"): node.Live,
    ("get", "/health/ready"): node.Ready,
    ("get", "/api/v1/jobs"): of.Jobs,
    ("post", "/api/v1/jobs/plan"): of.Plan,
    ("post", "/api/v1/jobs/cancel-waiting"): of.Cancelled,
    ("get", _JOB): of.JobInFull,
    ("delete", _JOB): of.DeletedJob,
    ("delete", _JOB + "/tasks/{task}/outputs"): of.Deleted,
    ("get", f"{_JOB}/timeline"): of.Timeline,
    ("get", f"{_JOB}/outputs"): of.Outputs,
    ("get", f"{_JOB}/outputs/{_PART}"): of.Look,
    ("get", f"{_JOB}/metadata/{{task}}/{{party}}"): of.OutputFacts,
    ("get", f"{_JOB}/metadata/{_PART}"): of.OutputFacts,
    ("get", f"{_JOB}/reports"): of.Reports,
    ("get", f"{_JOB}/reports/{_PART}"): of.Report,
    ("post", f"{_JOB}/rerun"): of.Rerun,
    ("post", f"{_JOB}/approve"): of.Decided,
    ("post", f"{_JOB}/reject"): of.Decided,
    ("post", f"{_JOB}/suspend"): of.Suspended,
    ("post", f"{_JOB}/resume"): of.Suspended,
    ("get", "/api/v1/approvals"): of.Approvals,
    ("get", "/api/v1/gc"): of.Things,
    ("post", "/api/v1/gc"): of.Things,
    ("get", "/api/v1/drain"): node.Draining,
    ("post", "/api/v1/drain"): node.Draining,
    ("post", "/api/v1/undrain"): node.Draining,
    ("get", "/api/v1/settings"): node.SettingsShown,
    ("get", "/api/v1/engine"): node.Engine,
    ("get", "/api/v1/orphans"): node.Orphans,
    ("get", "/api/v1/resources"): node.Resources,
    ("get", "/api/v1/events"): node.Events,
    ("get", "/api/v1/events/webhooks"): node.Webhooks,
    ("get", "/api/v1/audit"): node.Audit,
    ("get", "/api/v1/tokens"): node.Tokens,
    ("get", "/api/v1/routes"): node.Routes,
    ("get", "/api/v1/routes/{node}"): node.OneRoute,
    ("put", "/api/v1/routes/{node}"): node.RouteVersionMade,
    ("patch", "/api/v1/routes/{node}"): node.RouteVersionMade,
    ("delete", "/api/v1/routes/{node}"): node.RouteVersionMade,
    ("post", "/api/v1/routes/{node}/test"): node.Trial,
    ("get", "/api/v1/route-versions"): node.RouteVersions,
    ("get", "/api/v1/route-versions/{number}"): node.RouteVersionInFull,
    ("post", "/api/v1/route-versions/{number}/rollback"): node.RouteVersionMade,
    ("get", "/api/v1/providers"): node.Providers,
    ("post", "/api/v1/providers"): node.ProviderWritten,
    ("get", _PROVIDER): node.ProviderInFull,
    ("get", _PROVIDER + "/components/{component}/parameters"): node.ParameterSchema,
    ("get", f"{_PROVIDER}/history"): node.Revisions,
    ("get", f"{_PROVIDER}/diff"): node.ProviderDiff,
    ("post", f"{_PROVIDER}/retire"): node.ProviderWritten,
    ("post", f"{_PROVIDER}/unretire"): node.ProviderWritten,
    ("post", f"{_PROVIDER}/approve"): node.ProviderWritten,
    ("put", "/api/v1/provider-owners/{name}"): node.Given,
    ("get", "/api/v1/schemas"): node.Schemas,
    ("get", "/api/v1/schemas/{name}"): node.JsonSchema,
    ("get", "/api/v1/datasets"): node.Datasets,
    ("get", _DATASET): node.DatasetInFull,
    ("delete", _DATASET): node.DatasetGone,
    ("get", f"{_DATASET}/preview"): node.DatasetPreview,
    ("post", f"{_DATASET}/disable"): node.DatasetLine,
    ("post", f"{_DATASET}/enable"): node.DatasetLine,
    ("get", "/api/v1/dataset-grants"): node.Grants,
    ("put", _DATASET + "/grants/{node}"): node.Granted,
    ("delete", _DATASET + "/grants/{node}"): node.Grant,
    ("get", "/api/v1/models"): node.Models,
    ("get", _MODEL): node.ModelInFull,
    ("delete", _MODEL): node.ModelGone,
    ("post", f"{_MODEL}/deploy"): node.ModelLine,
    ("post", f"{_MODEL}/undeploy"): node.ModelLine,
    ("post", "/api/v1/models/import"): node.ModelLine,
}
