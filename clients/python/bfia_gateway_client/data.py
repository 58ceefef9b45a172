"""``client.data``: this node's datasets, and which partners may use them."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from bfia_gateway_client import types
from bfia_gateway_client.calls import Entries, Group, W, call, path_of
from bfia_gateway_client.errors import Problem, invalid
from bfia_gateway_client.frames import Reading, of_points, text_columns
from bfia_gateway_client.progress import Progress
from bfia_gateway_client.transfers import Watched, download, opened, send_table


class Data(Group[W]):
    """Datasets. A dataset's id is ``namespace#name``."""

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
        """Send a CSV file, by its path or as an open binary file; an upload that is refused leaves nothing there.

        ``match_id``: the column with the ids to match with other parties; ``label``: that with the label.
        ``partitions``: into how many files it is divided, by match id. ``delimiter``, ``encoding``: recognised
        where they are not given. ``storage``: which of the node's storages. Raises `Invalid` with the line of each
        mistake, and `Refused` (DATASET_EXISTS) without ``overwrite``.
        """
        fields = {
            "namespace": namespace,
            "name": name,
            "description": description,
            "storage": storage,
        }
        options = {"partitions": str(partitions), "overwrite": "true" if overwrite else "false"}
        meta = {
            "delimiter": delimiter,
            "encoding": encoding,
            "match_id_name": match_id,
            "label_name": label,
        }
        with (
            opened(table) as (file, sent_as),
            Progress(f"sending {sent_as}", shown=progress) as shown,
        ):
            watched: Any = Watched(file, shown.moved)
            found = await send_table(self._wire, sent_as, watched, {**fields, **options}, meta)
        return types.Stored.model_validate(found)

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
        """Register a table where it lies, such as ``s3://bucket/path``; nothing is copied.

        ``count``: read all of it, count its rows, and check that no id repeats.
        """
        body: dict[str, Any] = {
            "place": place,
            "namespace": namespace,
            "name": name,
            "match_id_name": match_id,
        }
        body |= {
            "label_name": label,
            "description": description,
            "overwrite": overwrite,
            "count": count,
        }
        body |= {"reason": reason}
        return await self._ask(
            types.RegisteredDataset, "POST", path_of("datasets"), body, timeout=None
        )

    @call
    async def list(self, *, namespace: str = "", limit: int = 100) -> Entries[types.Dataset]:
        """Return datasets, at most ``limit``, by their ids."""
        query = {
            "namespace": namespace,
            "unregistered": "false",
        }
        return await self._list(
            types.Dataset,
            path_of("datasets"),
            "datasets",
            limit,
            query,
        )

    @call
    async def show(self, dataset: str) -> types.FullDataset:
        """Return a dataset: its columns, where it came from, who may use it, which jobs do."""
        return await self._ask(types.FullDataset, "GET", _path(dataset))

    @call
    async def preview(
        self,
        dataset: str,
        rows: int = 10,
        *,
        to: str = "",
    ) -> Any:
        """Return the first rows, at most 100, as a frame; every cell is text. ``to``: pandas or polars."""
        found = await self._wire.call("GET", _path(dataset, "preview"), query={"rows": rows})
        return of_points(found["columns"], found["rows"], to)

    @call
    async def table(
        self,
        dataset: str,
        *,
        to: str = "",
        text: Sequence[str] = (),
        progress: bool = True,
    ) -> Any:
        """Return all of a dataset as a frame of pandas or polars (``to``; default: the one that is installed).

        Match ids, columns of text, and those that ``text`` names are kept as text.
        """
        with Reading(to) as reading, Progress(f"fetching {dataset}", shown=progress) as shown:
            about = await self._wire.call("GET", _path(dataset))
            await download(self._wire, _path(dataset, "download"), reading.file, shown.moved)
            return reading.frame(
                [*text, *text_columns(about["columns"], about["match_id_name"], about["sid"])]
            )

    @call
    async def download(
        self,
        dataset: str,
        file: str | Path = "",
        *,
        progress: bool = True,
    ) -> Path:
        """Write a dataset as it is stored into a file, and return its path; default: its name with an extension.

        An existing file is replaced once the new one is whole and has the checksum that the node names. Raises
        `Damaged` where it has not.
        """
        if not file:
            about = await self._wire.call("GET", _path(dataset))
            file = f"{about['name']}.{about['format']}"
        with Progress(f"fetching {dataset}", shown=progress) as shown:
            await download(self._wire, _path(dataset, "download"), Path(file), shown.moved)
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
        """Let jobs with a partner node use a dataset: for so many days, until a time, or until it is revoked.

        ``expires_at`` has a zone. ``force``: also a node without a route here.
        """
        until = expires_at.isoformat() if expires_at else None
        given = {
            "days": days,
            "expires_at": until,
            "force": force,
            "reason": reason,
        }
        body = {key: value for key, value in given.items() if value is not None}
        return await self._ask(types.NewGrant, "PUT", _path(dataset, "grants", node), body)

    @call
    async def revoke(self, dataset: str, node: str) -> types.Grant:
        """Revoke a grant; nothing further starts."""
        return await self._ask(types.Grant, "DELETE", _path(dataset, "grants", node))

    @call
    async def grants(
        self,
        *,
        dataset: str = "",
        node: str = "",
        limit: int = 100,
    ) -> Entries[types.Grant]:
        """Return who was granted which dataset, at most ``limit`` entries."""
        narrow = {"dataset_id": dataset, "node": node}
        return await self._list(types.Grant, path_of("dataset-grants"), "grants", limit, narrow)

    @call
    async def disable(self, dataset: str, *, reason: str = "") -> types.Dataset:
        """Take a dataset out of use: jobs that name it are refused, nothing further of those here starts."""
        return await self._ask(types.Dataset, "POST", _path(dataset, "disable"), {"reason": reason})

    @call
    async def enable(self, dataset: str, *, reason: str = "") -> types.Dataset:
        """Take a disabled dataset into use again."""
        return await self._ask(types.Dataset, "POST", _path(dataset, "enable"), {"reason": reason})

    @call
    async def delete(self, dataset: str) -> types.DeletedDataset:
        """Delete a dataset and its grants; the files of one that was registered where it lies stay.

        Raises `Refused` (DATASET_IN_USE) while a job that is not over uses it.
        """
        return await self._ask(types.DeletedDataset, "DELETE", _path(dataset))


def _path(dataset: str, *parts: str) -> str:
    """Return the path of a dataset. Raises `Invalid`."""
    namespace, _, name = dataset.partition("#")
    if not (namespace and name):
        raise invalid(Problem("dataset", "must be namespace#name", dataset))
    return path_of("datasets", namespace, name, *parts)
