"""What an admin grants the containers of one provider beyond the ordinary."""

from dataclasses import dataclass

from engines.base import Mount


@dataclass(frozen=True)
class Grant:
    """Folders of the host and Linux capabilities; nothing is the ordinary."""

    mounts: tuple[Mount, ...] = ()
    capabilities: tuple[str, ...] = ()

    @property
    def described(self) -> tuple[str, ...]:
        """Return it in words, for those who look at a run."""
        mounts = (f"{m.source} at {m.target}, {'read-only' if m.read_only else 'writable'}" for m in self.mounts)
        return (*mounts, *(f"capability {name}" for name in self.capabilities))


NOTHING = Grant()
