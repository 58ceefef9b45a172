"""``client.models``: the trained models at this node."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bfia_gateway_client import types
from bfia_gateway_client.bridge import call
from bfia_gateway_client.calls import Entries, Group, W, path_of
from bfia_gateway_client.progress import Progress
from bfia_gateway_client.transfers import download, open_for_upload
from bfia_gateway_client.wire import File


class Models(Group[W]):
    """Models. A model has the id of its flow, a version the id of the job that trained it."""

    @call
    async def list(
        self,
        model_id: str = "",
        *,
        limit: int = 100,
    ) -> Entries[types.Model]:
        """Return versions, of all models or of one; at most ``limit``, the newest first."""
        query = {"model_id": model_id}
        return await self._list(types.Model, path_of("models"), "models", limit, query)

    @call
    async def show(
        self,
        model_id: str,
        version: str,
        *,
        verify: bool = False,
    ) -> types.FullModel:
        """Return a version with its parties and files.

        ``verify``: compare the files with their checksums; ``damage`` then names missing and
        changed files.
        """
        path = path_of("models", model_id, version)
        return await self._ask(
            types.FullModel,
            "GET",
            path,
            query={"verify": verify},
        )

    @call
    async def deploy(
        self,
        model_id: str,
        version: str,
        *,
        nodes: Sequence[str] | None = None,
    ) -> types.Model:
        """Let jobs predict with a version.

        ``nodes``: further nodes that may use it like the nodes that trained it; None: no change.
        """
        body = None
        if nodes is not None:
            body = {"nodes": sorted(nodes)}
        path = path_of("models", model_id, version, "deploy")
        return await self._ask(types.Model, "POST", path, body)

    @call
    async def undeploy(self, model_id: str, version: str) -> types.Model:
        """Refuse further jobs that predict with a version; running jobs continue."""
        path = path_of("models", model_id, version, "undeploy")
        return await self._ask(types.Model, "POST", path)

    @call
    async def predict(
        self,
        model_id: str,
        version: str,
        data: Mapping[str, str],
        *,
        dry_run: bool = False,
    ) -> types.PredictionJob:
        """Submit a job that predicts with a version: the flow of its training, with other tables.

        ``data``: the dataset of each party that trained with one, by party such as ``guest.0``.
        ``dry_run``: only return the differences from the training. Raises `Invalid`, and `Refused`
        (MODEL_NOT_DEPLOYED and others).
        """
        body = {"datasets": {**data}, "dry_run": dry_run}
        path = path_of("models", model_id, version, "predict")
        return await self._ask(
            types.PredictionJob,
            "POST",
            path,
            body,
            timeout=120,
        )

    @call
    async def export(
        self,
        model_id: str,
        version: str,
        file: str | Path = "",
        *,
        progress: bool = True,
    ) -> Path:
        """Write a version into a zip file, with the checksums of its files, and return the path."""
        target = Path(file or f"{model_id}-{version}.zip")
        path = path_of("models", model_id, version, "export")
        with Progress(f"fetching {target.name}", enabled=progress) as bar:
            await download(self._wire, path, target, bar.advance)
        return target

    @call
    async def import_(self, file: str | Path) -> types.Model:
        """Add the version in a zip file; it is stored only if every checksum matches."""
        path = path_of("models", "import")
        with open_for_upload(file) as (archive, name):
            upload = File(name, archive, "application/zip")
            return await self._ask(
                types.Model,
                "POST",
                path,
                file=upload,
                timeout=None,
            )

    @call
    async def delete(self, model_id: str, version: str) -> types.DeletedModel:
        """Delete a version and its files. Raises `Refused` while it is deployed or in use."""
        return await self._ask(types.DeletedModel, "DELETE", path_of("models", model_id, version))
