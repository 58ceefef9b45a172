"""``client.providers``: algorithm images, and the components in them."""

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bfia_gateway_client import types
from bfia_gateway_client.bridge import call
from bfia_gateway_client.calls import Entries, Group, Json, W, path_of, provider_named, segment

if TYPE_CHECKING:
    from bfia_gateway_client.wire import Wire


class Providers(Group[W]):
    """Providers. The ``reason`` of a change is shown in `history`.

    A full name is ``name:version@device``; version and device may be omitted if the rest is unique.
    """

    @call
    async def register(
        self,
        registration: Json,
        *,
        strict: bool = False,
        reason: str = "",
    ) -> types.ProviderChanged:
        """Register an image with the descriptions of its components, or replace its registration.

        ``strict``: refuse an image that cannot be inspected. Raises `Invalid` with the path of
        every mistake in a description; nothing is stored then. Minor findings are the ``warnings``
        of the result.
        """
        query = {"reason": reason}
        if strict:
            query["strict"] = "true"
        body = {**registration}
        return await self._ask(
            types.ProviderChanged, "POST", path_of("providers"), body, query=query, timeout=180
        )

    @call
    async def list(
        self,
        *,
        name: str = "",
        version: str = "",
        component: str = "",
        owner: str = "",
        in_use: bool = False,
        limit: int = 100,
    ) -> Entries[types.Provider]:
        """Return registered providers, at most ``limit``.

        ``owner``: the vendor that may change them. ``in_use``: without retired ones.
        """
        query = {
            "name": name,
            "version": version,
            "component": component,
            "owner": owner,
        }
        if in_use:
            query["retired"] = "false"  # a text, since a query leaves out False
        return await self._list(types.Provider, path_of("providers"), "providers", limit, query)

    @call
    async def show(self, name: str) -> types.FullProvider:
        """Return a provider: images and digests, components, jobs that use it, and the findings of
        its check.
        """
        path = await _path(self._wire, name)
        return await self._ask(types.FullProvider, "GET", path)

    @call
    async def parameters(self, name: str, component: str) -> dict[str, Any]:
        """Return a component's parameters as a JSON Schema: types, defaults, choices, meanings."""
        path = await _path(self._wire, name)
        schema: dict[str, Any] = await self._wire.call(
            "GET", f"{path}/components/{segment(component)}/parameters"
        )
        return schema

    @call
    async def history(
        self,
        name: str,
        *,
        limit: int = 20,
    ) -> Entries[types.Revision]:
        """Return the changes of a provider with author, time and reason; the newest first."""
        path = await _path(self._wire, name)
        return await self._list(types.Revision, f"{path}/history", "history", limit)

    @call
    async def approve(
        self,
        name: str,
        *,
        image: str = "",
        reason: str = "",
    ) -> types.ProviderChanged:
        """Pin the present digests of the images, or of one ``image``.

        This is needed after DIGEST_CHANGED, or if an image was missing at registration.
        """
        return await self._change(name, "approve", {"image": image, "reason": reason})

    @call
    async def retire(
        self,
        name: str,
        *,
        reason: str = "",
    ) -> types.ProviderChanged:
        """Retire a provider: new jobs cannot use it, running ones continue."""
        return await self._change(name, "retire", {"reason": reason})

    @call
    async def unretire(
        self,
        name: str,
        *,
        reason: str = "",
    ) -> types.ProviderChanged:
        """Put a retired provider into use again."""
        return await self._change(name, "unretire", {"reason": reason})

    async def _change(
        self,
        name: str,
        action: str,
        body: dict[str, str],
    ) -> types.ProviderChanged:
        """Change a provider. ``action``: approve, retire or unretire, the end of the path."""
        path = await _path(self._wire, name, retired=(action == "unretire"))
        return await self._ask(
            types.ProviderChanged,
            "POST",
            f"{path}/{action}",
            body,
            timeout=180,
        )


async def _path(
    wire: "Wire",
    name: str,
    *,
    retired: bool = False,
) -> str:
    """Return the path of a provider in the API. The name keeps ``:`` and ``@``, to be readable.

    ``retired``: as in `provider_named`. Raises the errors of `provider_named`.
    """
    full_name = await provider_named(wire, name, retired=retired)
    return f"{path_of('providers')}/{quote(full_name, safe=':@')}"
