"""``client.providers``: algorithm images, and the components in them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bfia_gateway_client import types
from bfia_gateway_client.calls import Entries, Group, W, call, path_of, provider_named, segment

if TYPE_CHECKING:
    from bfia_gateway_client.wire import Wire


class Providers(Group[W]):
    """Providers. A full name is ``name:version@device``; parts may be left out where that is clear."""

    @call
    async def register(
        self,
        registration: Mapping[str, Any],
        *,
        strict: bool = False,
        reason: str = "",
    ) -> types.ProviderChanged:
        """Register an image with the descriptions of its components, or replace its registration.

        ``strict``: refuse an image that cannot be inspected. Raises `Invalid` with every problem of a description
        and its path; nothing is stored then. ``warnings`` of the result are what the check found beyond that.
        """
        query = {"strict": "true" if strict else None, "reason": reason}
        path = path_of("providers")
        return await self._ask(
            types.ProviderChanged, "POST", path, {**registration}, query=query, timeout=180
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
        """Return what is registered, at most ``limit``; ``in_use``: without what is retired."""
        narrow = {
            "name": name,
            "version": version,
            "component": component,
            "owner": owner,
        }
        query = {**narrow, "retired": "false" if in_use else None}
        return await self._list(types.Provider, path_of("providers"), "providers", limit, query)

    @call
    async def show(self, name: str) -> types.FullProvider:
        """Return a provider: images and digests, components, the jobs that use it, and what its check found."""
        return await self._ask(types.FullProvider, "GET", await _path(self._wire, name))

    @call
    async def parameters(self, name: str, component: str) -> dict[str, Any]:
        """Return a component's parameters as a JSON Schema: types, defaults, choices, meanings."""
        path = await _path(self._wire, name)
        found: dict[str, Any] = await self._wire.call(
            "GET", f"{path}/components/{segment(component)}/parameters"
        )
        return found

    @call
    async def history(self, name: str, *, limit: int = 20) -> Entries[types.Revision]:
        """Return who changed a provider, when and why; the newest first."""
        return await self._list(
            types.Revision, f"{await _path(self._wire, name)}/history", "history", limit
        )

    @call
    async def approve(
        self,
        name: str,
        *,
        image: str = "",
        reason: str = "",
    ) -> types.ProviderChanged:
        """Pin the images as they are now: after DIGEST_CHANGED, or when one was missing at the registration."""
        return await self._change(name, "approve", {"image": image, "reason": reason})

    @call
    async def retire(self, name: str, *, reason: str = "") -> types.ProviderChanged:
        """Retire a provider: new jobs cannot use it, those under way go on."""
        return await self._change(name, "retire", {"reason": reason})

    @call
    async def unretire(self, name: str, *, reason: str = "") -> types.ProviderChanged:
        """Put a retired provider into use again."""
        return await self._change(name, "unretire", {"reason": reason})

    async def _change(
        self,
        name: str,
        what: str,
        body: Mapping[str, str],
    ) -> types.ProviderChanged:
        path = f"{await _path(self._wire, name, retired=what == 'unretire')}/{what}"
        return await self._ask(types.ProviderChanged, "POST", path, {**body}, timeout=180)


async def _path(
    wire: "Wire",
    name: str,
    *,
    retired: bool = False,
) -> str:
    return f"{path_of('providers')}/{quote(await provider_named(wire, name, retired=retired), safe=':@')}"
