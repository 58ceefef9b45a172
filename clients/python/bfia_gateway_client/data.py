"""``client.data``: this node's datasets, and which partners may use them."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from bfia_gateway_client import types
from bfia_gateway_client.bridge import call
from bfia_gateway_client.calls import Entries, Group, W, path_of
from bfia_gateway_client.errors import Problem, invalid
from bfia_gateway_client.frames import FrameReader, frame_of_rows, text_columns
from bfia_gateway_client.progress import Progress
from bfia_gateway_client.transfers import (
    ReportingFile,
    download,
    open_for_upload,
    send_table,
)


class Data(Group[W]):
    """Datasets. A dataset's id is ``namespace#name``. A ``reason`` is noted in the audit log."""

    @call
    async def upload(
        self,
        table: str | Path | BinaryIO,
        namespace: str,
        name: str,
        *,
        match_id: str = "",
        label: str = "",
        partitions: int = 1,
        description: str = "",
        overwrite: bool = False,
        delimiter: str = "",
        encoding: str = "",
        storage: str = "",
        progress: bool = True,
    ) -> types.Stored:
        """Upload a CSV file, by its path or as an open binary file; a refused upload leaves nothing
        at the node.

        ``match_id``: the column with the ids to match with other parties; ``label``: the column
        with the label. ``partitions``: the number of files into which the table is divided by match
        id. ``delimiter``, ``encoding``: detected by default. ``storage``: one of the node's
        storages. Raises `Invalid` with the line of each mistake, and `Refused` (DATASET_EXISTS) for
        an existing dataset without ``overwrite``.
        """
        fields = {
            "namespace": namespace,
            "name": name,
            "description": description,
            "storage": storage,
            "partitions": str(partitions),
            "overwrite": str(bool(overwrite)).lower(),
        }
        meta = {
            "delimiter": delimiter,
            "encoding": encoding,
            "match_id_name": match_id,
            "label_name": label,
        }
        with (
            open_for_upload(table) as (file, file_name),
            Progress(f"sending {file_name}", enabled=progress) as bar,
        ):
            reporting: Any = ReportingFile(file, bar.advance)
            stored = await send_table(self._wire, file_name, reporting, fields, meta)
        return types.Stored.model_validate(stored)

    @call
    async def register(
        self,
        place: str,
        namespace: str,
        name: str,
        *,
        match_id: str = "",
        label: str = "",
        count: bool = False,
        description: str = "",
        overwrite: bool = False,
        reason: str = "",
    ) -> types.RegisteredDataset:
        """Register a table in its present location, such as ``s3://bucket/path``; nothing is
        copied.

        ``count``: read the entire table, count its rows, and check that no id repeats.
        """
        body = {
            "place": place,
            "namespace": namespace,
            "name": name,
            "match_id_name": match_id,
            "label_name": label,
            "description": description,
            "overwrite": overwrite,
            "count": count,
            "reason": reason,
        }
        return await self._ask(
            types.RegisteredDataset, "POST", path_of("datasets"), body, timeout=None
        )

    @call
    async def list(
        self,
        *,
        namespace: str = "",
        limit: int = 100,
    ) -> Entries[types.Dataset]:
        """Return datasets, at most ``limit``, in the order of their ids."""
        # A text, since a query leaves out False.
        query = {"namespace": namespace, "unregistered": "false"}
        return await self._list(types.Dataset, path_of("datasets"), "datasets", limit, query)

    @call
    async def show(self, dataset: str) -> types.FullDataset:
        """Return a dataset with its columns, its origin, its grants and the jobs that use it."""
        return await self._ask(types.FullDataset, "GET", _path(dataset))

    @call
    async def preview(
        self,
        dataset: str,
        rows: int = 10,
        *,
        to: str = "",
    ) -> Any:
        """Return the first ``rows`` rows of a dataset as a frame; every cell is text.

        ``rows``: at most 100. ``to``: pandas or polars; default: the installed one.
        """
        path = _path(dataset, "preview")
        preview = await self._wire.call(
            "GET",
            path,
            query={"rows": rows},
        )
        return frame_of_rows(preview["columns"], preview["rows"], to)

    @call
    async def table(
        self,
        dataset: str,
        *,
        to: str = "",
        text: Sequence[str] = (),
        progress: bool = True,
    ) -> Any:
        """Return an entire dataset as a frame of pandas or polars (``to``; default: the installed
        one).

        Columns with ids, columns that the dataset declares as text, and those that ``text`` names
        are read as text, even if their values look like numbers.
        """
        with (
            FrameReader(to, "dataset") as reader,
            Progress(f"fetching {dataset}", enabled=progress) as bar,
        ):
            about = await self._wire.call("GET", _path(dataset))
            # ``sid``: the column of ids that an upload may add
            declared = text_columns(about["columns"], about["match_id_name"], about["sid"])
            await download(self._wire, _path(dataset, "download"), reader.file, bar.advance)
            return reader.frame([*text, *declared])

    @call
    async def download(
        self,
        dataset: str,
        file: str | Path = "",
        *,
        progress: bool = True,
    ) -> Path:
        """Write a dataset in its stored form into a file (default: its name with an extension);
        return the path.

        An existing file is replaced after the download is complete and its checksum matches. Raises
        `Damaged` if the checksum differs.
        """
        if not file:
            about = await self._wire.call("GET", _path(dataset))
            file = f"{about['name']}.{about['format']}"
        with Progress(f"fetching {dataset}", enabled=progress) as bar:
            await download(self._wire, _path(dataset, "download"), Path(file), bar.advance)
        return Path(file)

    @call
    async def grant(
        self,
        dataset: str,
        node: str,
        *,
        days: float | None = None,
        expires_at: datetime | None = None,
        force: bool = False,
        reason: str = "",
    ) -> types.NewGrant:
        """Let jobs with a partner node use a dataset.

        The grant ends after ``days``, at ``expires_at``, which must have a time zone, or when it is
        revoked. ``force``: accept a node without a route.
        """
        body: dict[str, Any] = {"force": force, "reason": reason}
        if days is not None:
            body["days"] = days
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        return await self._ask(types.NewGrant, "PUT", _path(dataset, "grants", node), body)

    @call
    async def revoke(self, dataset: str, node: str) -> types.Grant:
        """Revoke a grant: no further run of a job with the node starts with the dataset."""
        return await self._ask(types.Grant, "DELETE", _path(dataset, "grants", node))

    @call
    async def grants(
        self,
        *,
        dataset: str = "",
        node: str = "",
        limit: int = 100,
    ) -> Entries[types.Grant]:
        """Return the grants of all datasets, or of one, or to one node; at most ``limit``."""
        query = {"dataset_id": dataset, "node": node}
        return await self._list(types.Grant, path_of("dataset-grants"), "grants", limit, query)

    @call
    async def disable(
        self,
        dataset: str,
        *,
        reason: str = "",
    ) -> types.Dataset:
        """Disable a dataset: new jobs with it are refused, and no further run of present jobs
        starts.
        """
        return await self._ask(
            types.Dataset,
            "POST",
            _path(dataset, "disable"),
            {"reason": reason},
        )

    @call
    async def enable(
        self,
        dataset: str,
        *,
        reason: str = "",
    ) -> types.Dataset:
        """Enable a disabled dataset."""
        return await self._ask(
            types.Dataset,
            "POST",
            _path(dataset, "enable"),
            {"reason": reason},
        )

    @call
    async def delete(self, dataset: str) -> types.DeletedDataset:
        """Delete a dataset and its grants; the files of a registered table stay.

        Raises `Refused` (DATASET_IN_USE) while a running job uses it.
        """
        return await self._ask(types.DeletedDataset, "DELETE", _path(dataset))


def _path(dataset: str, *parts: str) -> str:
    """Return the path of a dataset in the API. Raises `Invalid` for an id of another form."""
    namespace, _, name = dataset.partition("#")
    if not namespace or not name:
        raise invalid(Problem("dataset", "must be namespace#name", dataset))
    return path_of("datasets", namespace, name, *parts)
