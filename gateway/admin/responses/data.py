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
    """An output of a run: its name in the job, and its address in the storage."""

    task: str = Field(description="its name in the flow")
    party: str = Field(description="such as guest.0")
    key: str = Field(description="the output's key in the flow")
    namespace: str = Field(description="first part of its address in the storage")
    name: str = Field(description="second part of its address in the storage")


class Output(OutputPlace):
    """An output in the list."""

    task_id: str
    attempt: int = Field(description="of the run, counted from 0")
    inherited_from: str | None = Field(
        description="the earlier job whose run wrote it; null: this job"
    )
    output: str = Field(description="its name in the component's description")
    there: bool = Field(description="it is in this node's storage")
    value: Any = Field(
        description="content of a small JSON document, if the reader may see it; otherwise null"
    )


class Outputs(BaseModel):
    """The outputs of a job's runs at this node."""

    outputs: list[Output]


class OutputPreview(OutputPlace):
    """The beginning of an output.

    There are further fields: ``rows`` for a table, ``value`` for JSON, and always ``left_out``,
    which describes the part that is not shown.
    """

    type: str = Field(description="as the flow declares it: dataset, model or report")
    kind: str = Field(description="how it could be read: table, json or bytes")
    bytes: int = Field(description="size of the complete output")
    partitions: int
    columns: list[str] = Field(default=[], description="of a table")


class ReportLine(OutputPlace):
    """A report in the list."""

    output: str = Field(description="its name in the component's description")
    there: bool = Field(description="it is in this node's storage")
    url: str = Field(description="path of the report in this API")


class RunWarning(BaseModel):
    """A warning about the outputs of a run."""

    task: str = Field(description="its name in the flow")
    party: str = Field(description="such as guest.0")
    warning: str


class Reports(BaseModel):
    """The reports of a job's runs at this node."""

    reports: list[ReportLine]
    warnings: list[RunWarning]


class Report(OutputPlace):
    """A report: its figures, and its curves."""

    format: str = Field(description="json or csv")
    values: Object = Field(description="single values by path, such as baseline.auc")
    series: list[Series] = Field(description="tables for plots, each with its columns and points")
    problem: str = Field(description="why it cannot be read; empty: it could be read")


class OutputsMetadata(BaseModel):
    """The metadata of a task's outputs at this node or at a partner."""

    outputs: list[OutputMetadata]


# ---------------------------------------------------------------- models


class Model(BaseModel):
    """A version of a model."""

    model_id: str
    version: str
    deployed: bool
    deployed_at: datetime | None
    granted: list[str] = Field(
        description="nodes that may use it besides the parties of its training"
    )
    here: list[str] = Field(description="the parties whose parts are at this node")
    imported: bool = Field(description="it came from an archive, not from a job here")
    job_id: str = Field(description="of the training")
    flow_id: str = Field(description="of the training")
    created_at: datetime
    bytes: int = Field(description="size of the parts at this node")
    url: str = Field(description="path of the version in this API")


class ModelsPage(Page):
    """Versions of models at this node."""

    models: list[Model]


class FullModel(Model):
    """A version of a model with its parties and files."""

    digest: str = Field(
        description=(
            "sha256 of its file here, hex; of several files, of the list of their digests and names"
        )
    )
    parties: list[spec.Party] = Field(description="all parties of the training")
    models: list[Object] = Field(
        description="for each party here: its name, and its parts with their files"
    )


class DeletedModel(BaseModel):
    """The version of a model that was deleted."""

    deleted: Model


class Difference(BaseModel):
    """A value of a prediction's job that differs from the training's."""

    path: str = Field(description="of the value, in the job")
    before: Any = Field(description="in the training")
    after: Any = Field(description="in the prediction")


class PredictionJob(BaseModel):
    """The job of a prediction; its id is empty for a dry run."""

    job_id: str
    differences: list[Difference]


# ---------------------------------------------------------------- datasets

StorageName = Annotated[
    str, Field(description="name of the node's storage that has it; file: the node's folder")
]
RowCount = Annotated[int | None, Field(description="rows; null: not counted")]


class UnregisteredTable(BaseModel):
    """A table in one of the node's storages without a record."""

    dataset_id: str
    namespace: str
    name: str
    storage: StorageName
    url: str = Field(description="path that it would have in this API as a dataset")


class DatasetFields(BaseModel):
    """The fields that a dataset has in every response."""

    dataset_id: str = Field(examples=["testspace#test_guest"])
    namespace: str
    name: str
    count: RowCount
    partitions: int = Field(description="files that it consists of")
    size: int = Field(description="bytes of the uploaded file, or of the registered files")
    storage: StorageName
    disabled: bool = Field(description="jobs must not use it")
    description: str
    created_at: datetime
    url: str = Field(description="path of the dataset in this API")


class Dataset(DatasetFields):
    """A dataset in the list, with the number of its columns."""

    columns: int = Field(description="how many it has")


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
    changed: str = Field(
        description="how the files of a registered table have changed; empty: they have not"
    )
    kind: str = Field(description="how it could be read: table, json or bytes")
    bytes: int = Field(description="size of the complete table")
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
    default: str = Field(
        description="what holds for a dataset that was never granted: the setting data.grants"
    )


class FullDataset(DatasetFields):
    """A dataset with its columns, its grants, and the jobs that use it."""

    columns: list[Column]
    origin: str = Field(
        description=(
            "file:<name> or path:<path> of the uploaded file, or place:<address> of the registered "
            "table; empty: another program left it in the storage"
        )
    )
    checksum: str = Field(description="sha256 of the uploaded file, hex")
    format: str = Field(description="csv or parquet")
    in_place: bool = Field(description="registered without a copy: deleting it leaves its files")
    delimiter: str
    encoding: str
    label_name: str = Field(description="column of the labels; empty: none")
    match_id_name: str = Field(
        description="column of the ids by which parties match rows; empty: none was named"
    )
    meta: Object = Field(description="further fields that the user gave it")
    sid: str = Field(description="column of ids that the upload added; empty: none was added")
    grants: list[Grant]
    published: list[str] = Field(description="partners that see it; *: all with a contract")
    grants_default: str = Field(
        description="what holds for a dataset that was never granted: the setting data.grants"
    )
    used_by: list[str] = Field(description="ids of jobs that use it")
    warnings: list[str] = Field(description="what looked odd in it when it was read")
    changed: str = Field(
        description="how the files of a registered table have changed; empty: they have not"
    )
    there: bool = Field(description="its files are in the storage")
    away: str = Field(description="why the storage could not be read; empty: it answered")


class RegisteredDataset(FullDataset):
    """A dataset as it was just registered."""

    warnings: list[str] = Field(
        description="what looked odd in it, and which images may not be able to read it"
    )


class DeletedDataset(BaseModel):
    """The dataset that was deleted."""

    deleted: Dataset
