"""Outputs, reports, models and datasets."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gateway.admin.responses.base import Object, Page
from gateway.data.outputs import Column, OutputMetadata
from gateway.data.reports import Series
from gateway.domain import spec

# ---------------------------------------------------------------- outputs and reports


class OutputPlace(BaseModel):
    """An output of a run, and the table or file that it is."""

    task: str
    party: str
    key: str
    namespace: str
    name: str


class Output(OutputPlace):
    """An output in the list."""

    task_id: str
    attempt: int
    inherited_from: str | None
    output: str
    there: bool = Field(description="it is in this node's storage")
    value: Any = Field(description="content of a small report")


class Outputs(BaseModel):
    """The outputs of a job's runs at this node."""

    outputs: list[Output]


class OutputPreview(OutputPlace):
    """The beginning of an output."""

    type: str
    kind: str
    bytes: int
    partitions: int
    columns: list[str] = []


class ReportLine(OutputPlace):
    """A report in the list."""

    output: str
    there: bool = Field(description="it is in this node's storage")
    url: str


class RunWarning(BaseModel):
    """A warning about the outputs of a run."""

    task: str
    party: str
    warning: str


class Reports(BaseModel):
    """The reports of a job's runs at this node."""

    reports: list[ReportLine]
    warnings: list[RunWarning]


class Report(OutputPlace):
    """A report: its figures, and its curves."""

    format: str
    values: Object
    series: list[Series]
    problem: str


class OutputsMetadata(BaseModel):
    """The metadata of outputs at all nodes."""

    outputs: list[OutputMetadata]


# ---------------------------------------------------------------- models


class Model(BaseModel):
    """A version of a model."""

    model_id: str
    version: str
    deployed: bool
    deployed_at: datetime | None
    granted: list[str] = Field(description="nodes that may use it beside its training's parties")
    here: list[str] = Field(description="the parties whose parts are at this node")
    imported: bool
    job_id: str
    flow_id: str
    created_at: datetime
    bytes: int
    url: str


class ModelsPage(Page):
    """Versions of models at this node."""

    models: list[Model]


class FullModel(Model):
    """A version of a model with its parties and files."""

    parties: list[spec.Party]
    models: list[Object]


class DeletedModel(BaseModel):
    """The version of a model that was deleted."""

    deleted: Model


class Difference(BaseModel):
    """A value that a prediction has other than its training."""

    path: str
    before: Any
    after: Any


class PredictionJob(BaseModel):
    """The job of a prediction; its id is empty for a dry run."""

    job_id: str
    differences: list[Difference]


# ---------------------------------------------------------------- datasets

StorageName = Annotated[
    str, Field(description="which of the node's storages it lies in; file: the node's folder")
]
RowCount = Annotated[int | None, Field(description="rows; null: not counted")]


class UnregisteredTable(BaseModel):
    """A table in one of the node's storages without a record."""

    dataset_id: str
    namespace: str
    name: str
    storage: StorageName
    url: str


class DatasetFields(BaseModel):
    """The fields that a dataset has in every response."""

    dataset_id: str = Field(examples=["testspace#test_guest"])
    namespace: str
    name: str
    count: RowCount
    partitions: int
    size: int
    storage: StorageName
    disabled: bool
    description: str
    created_at: datetime
    url: str


class Dataset(DatasetFields):
    """A dataset in the list, with the number of its columns."""

    columns: int


class DatasetsPage(Page):
    """Datasets of this node."""

    datasets: list[Dataset]
    unregistered: list[UnregisteredTable] = Field(
        description="tables that other programs left in the node's storages; on the first page"
    )
    warnings: list[str] = Field(
        description="storages that do not answer, or hold more tables than are listed"
    )


class DatasetPreview(BaseModel):
    """The first rows of a dataset."""

    dataset_id: str
    count: RowCount
    changed: str
    kind: str
    bytes: int
    columns: list[str]
    rows: list[list[str]]
    left_out: str = Field(description="what is not shown")


class Grant(BaseModel):
    """The permission of a node to use a dataset."""

    dataset_id: str
    node: str
    state: str = Field(description="in force, expired or revoked")
    granted_at: datetime
    granted_by: str
    reason: str
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class NewGrant(Grant):
    """A grant as it was just made."""

    warnings: list[str] = Field(description="such as: the node has no route")


class GrantsPage(Page):
    """Grants of this node's datasets."""

    grants: list[Grant]
    default: str = Field(description="what holds for a dataset that was never granted")


class FullDataset(DatasetFields):
    """A dataset with its columns, its grants, and the jobs that use it."""

    columns: list[Column]
    origin: str
    checksum: str
    format: str = Field(description="csv or parquet")
    in_place: bool = Field(description="registered where it lies: deleting it leaves its files")
    delimiter: str
    encoding: str
    label_name: str
    match_id_name: str
    meta: Object
    sid: str
    grants: list[Grant]
    published: list[str] = Field(description="partners that see it; *: all with a contract")
    grants_default: str
    used_by: list[str]
    warnings: list[str] = Field(description="what looked odd in it when it was read")
    changed: str = Field(
        description="how the files of a registered table have changed; empty: they have not"
    )
    there: bool
    away: str = Field(description="why the storage could not be read; empty: it answered")


class RegisteredDataset(FullDataset):
    """A dataset as it was just registered."""

    warnings: list[str] = Field(
        description="what looked odd in it, and which images may not be able to read it"
    )


class DeletedDataset(BaseModel):
    """The dataset that was deleted."""

    deleted: Dataset
