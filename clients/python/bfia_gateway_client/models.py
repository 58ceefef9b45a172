"""``client.models``: the models that trainings left at this node."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bfia_gateway_client import types
from bfia_gateway_client.calls import Entries, Group, W, call, path_of
from bfia_gateway_client.progress import Progress
from bfia_gateway_client.transfers import download, opened
from bfia_gateway_client.wire import File


class Models(Group[W]):
    """Models. The id of a model is the flow's, a version's that of the job which trained it."""

    @call
    async def list(self, model_id: str = "", *, limit: int = 100) -> Entries[types.Model]:
        """Return versions, at most ``limit``, the newest first."""
        return await self._list(
            types.Model, path_of("models"), "models", limit, {"model_id": model_id}
        )

    @call
    async def show(
        self,
        model_id: str,
        version: str,
        *,
        verify: bool = False,
    ) -> types.FullModel:
        """Return a version with its parties and files.

        ``verify``: compare the files with their checksums; ``damage`` then names what is gone or changed.
        """
        return await self._ask(
            types.FullModel, "GET", path_of("models", model_id, version), query={"verify": verify}
        )

    @call
    async def deploy(
        self,
        model_id: str,
        version: str,
        *,
        nodes: Sequence[str] | None = None,
    ) -> types.Model:
        """Let jobs predict with a version; ``nodes`` may beside those that trained it, None: those of before."""
        body = None if nodes is None else {"nodes": sorted(nodes)}
        return await self._ask(
            types.Model, "POST", path_of("models", model_id, version, "deploy"), body
        )

    @call
    async def undeploy(self, model_id: str, version: str) -> types.Model:
        """Take no further job that predicts with a version; those under way go on."""
        return await self._ask(
            types.Model, "POST", path_of("models", model_id, version, "undeploy")
        )

    @call
    async def predict(
        self,
        model_id: str,
        version: str,
        data: Mapping[str, str],
        *,
        dry_run: bool = False,
    ) -> types.PredictionJob:
        """Submit a job that predicts with a version: its training again, with other tables.

        ``data``: party, such as ``guest.0``, and dataset, for each that trained with one. ``dry_run``: only return
        what would differ from the training. Raises `Invalid`, and `Refused` (MODEL_NOT_DEPLOYED and others).
        """
        body = {"datasets": {**data}, "dry_run": dry_run}
        path = path_of("models", model_id, version, "predict")
        return await self._ask(types.PredictionJob, "POST", path, body, timeout=120)

    @call
    async def export(
        self,
        model_id: str,
        version: str,
        file: str | Path = "",
        *,
        progress: bool = True,
    ) -> Path:
        """Write a version into a zip, with the checksums of its files, and return its path."""
        target = Path(file or f"{model_id}-{version}.zip")
        with Progress(f"fetching {target.name}", shown=progress) as shown:
            await download(
                self._wire, path_of("models", model_id, version, "export"), target, shown.moved
            )
        return target

    @call
    async def import_(self, file: str | Path) -> types.Model:
        """Add the version that an archive holds; nothing is kept unless every checksum is right."""
        with opened(file) as (archive, name):
            sent = File(name, archive, "application/zip")
            return await self._ask(
                types.Model, "POST", path_of("models", "import"), file=sent, timeout=None
            )

    @call
    async def delete(self, model_id: str, version: str) -> types.DeletedModel:
        """Delete a version and its files. Raises `Refused` while it is deployed or in use."""
        return await self._ask(types.DeletedModel, "DELETE", path_of("models", model_id, version))
