"""A bounded search of a storage for tables, in order to find unregistered ones."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.data.storage import PARTITION, wrong_names
from gateway.domain.run import Address

FIRST_PARTITION = f"{PARTITION}0"


@dataclass(frozen=True)
class TableSearch:
    """The filters and the bounds of a search."""

    namespace: str  # the only one that is searched; "": all
    skips_namespace: Callable[[str], bool]  # returns whether a namespace is not searched
    skips: Callable[[Address], bool]  # returns whether a table is left out of the result
    max_tables: int  # in the listing of one storage
    seconds: float  # for the whole search of one storage

    def deadline(self) -> float:
        """Return the end of a search that starts now, as of `time.monotonic`."""
        return time.monotonic() + self.seconds

    def accepts_namespace(self, namespace: str) -> bool:
        """Return whether the search includes a namespace."""
        if self.namespace not in ("", namespace):
            return False
        return not self.skips_namespace(namespace)

    def accepts(self, address: Address) -> bool:
        """Return whether a table at an address belongs to the result.

        A table whose names are not allowed does not, since nothing could use it.
        """
        return not wrong_names(address) and not self.skips(address)


@dataclass(frozen=True)
class TableListing:
    """The result of a search in one storage."""

    addresses: Sequence[Address]
    is_complete: bool  # False: cut at the bound of tables or of time
