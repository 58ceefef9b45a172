"""How the Docker daemon sees the gateway's folders, where the gateway itself runs in a container."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from docker.types import Mount as DockerMount

from engines.base import CreateFailed, Mount


@dataclass(frozen=True)
class Source:
    """A folder of the gateway that comes from the daemon's host or from a volume."""

    root: Path
    """as the gateway sees it"""
    bind: str = ""
    volume: str = ""


def source_of(root: Path | None, configured: Mapping[str, str] | None) -> tuple[Source, ...]:
    """Return the source that ``{"bind": folder}`` or ``{"volume": name}`` describes, none for None.

    Raises ValueError if it describes neither or both, or no root is given.
    """
    if configured is None:
        return ()
    if root is None or len(configured) != 1 or not set(configured) <= {"bind", "volume"}:
        raise ValueError("a source is one of bind and volume, and has a root")
    return (Source(root.absolute(), configured.get("bind", ""), configured.get("volume", "")),)


def as_the_daemon_sees(mount: Mount, sources: tuple[Source, ...], mountpoint: Callable[[str], str]) -> DockerMount:
    """Return the mount in the daemon's view; ``mountpoint`` tells where a volume lies. Raises `CreateFailed`."""
    if ".." in mount.source.parts or ".." in PurePosixPath(mount.target).parts:
        raise CreateFailed(f"a mount of {mount.source} at {mount.target} leads out of its folder")
    path = mount.source.absolute()
    seen = str(path)
    for source in sources:
        if path.is_relative_to(source.root):
            root = source.bind or mountpoint(source.volume)
            seen = str(PurePosixPath(root) / path.relative_to(source.root).as_posix())
            break
    return DockerMount(target=mount.target, source=seen, type="bind", read_only=mount.read_only)
