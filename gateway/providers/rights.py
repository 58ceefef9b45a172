"""Rights of a provider's containers beyond the usual ones."""

from gateway.config.schema.engine import Allowance


def rights_in_words(allowance: Allowance) -> tuple[str, ...]:
    """Return what an admin allows containers, as people read it; empty for nothing."""
    rights = []
    for mount in allowance.mounts:
        if mount.read_only:
            rights.append(f"{mount.source} at {mount.target}, read-only")
        else:
            rights.append(f"{mount.source} at {mount.target}, writable")
    for name in allowance.capabilities:
        rights.append(f"capability {name}")
    if allowance.compute is not None:
        rights.append(f"computing engine {allowance.compute}")
    return tuple(rights)
