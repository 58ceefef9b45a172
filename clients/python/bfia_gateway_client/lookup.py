"""The one of what a node lists that a name stands for."""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bfia_gateway_client.calls import path_of
from bfia_gateway_client.errors import Invalid, Refused

if TYPE_CHECKING:
    from bfia_gateway_client.wire import Wire


async def provider_named(wire: "Wire", name: str) -> str:
    """Return the full name, name:version@device, of the one provider that a name, perhaps in part, stands for.

    Raises `Invalid` (PROVIDER_AMBIGUOUS) where that is not clear, `Refused` (PROVIDER_UNKNOWN) for an unknown one.
    """
    if ":" in name and "@" in name:
        return name
    found = await wire.call("GET", path_of("providers"), query={"provider_name": name, "limit": 1000})
    keys = [str(one["provider_name"]) for one in found["providers"]]
    if len(keys) == 1:
        return keys[0]
    if keys:
        raise Invalid(f"{name} may be any of {', '.join(keys)}", reason="PROVIDER_AMBIGUOUS")
    every = await wire.call("GET", path_of("providers"), query={"limit": 1000})
    meant = near(name.partition(":")[0], (one["name"] for one in every["providers"]))
    text = f"no provider {name} is registered" + (f"; did you mean {meant}?" if meant else "")
    raise Refused(text, reason="PROVIDER_UNKNOWN")


def near(word: str, known: Iterable[str]) -> str:
    """Return which of the known words somebody meant; empty where that is not clear."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(word[:64].lower(), list(by_lower), n=1)
    return by_lower[found[0]] if found else ""
