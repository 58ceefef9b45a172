"""Components of an artefact, read from hash-pinned requirement files as `uv pip compile` writes
them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from packaging.markers import Marker
from packaging.utils import canonicalize_name

from tools.release.artefacts import Component, ReleaseError

LICENCES = Path("requirements") / "licences.yml"
PYTHON_VERSIONS = ("3.11", "3.12", "3.13", "3.14")  # for which markers are evaluated
PIN = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+))?")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
VIA = re.compile(r" +# +(?:via )?(?P<name>-r \S+|[\w.-]+)(?: \(pyproject.toml\))?")
PROJECTS = frozenset({"bfia-gateway", "-r requirements.in"})  # what a file was compiled for


@dataclass(frozen=True)
class Pin:
    """A package of a requirement file, and the names of the packages that need it."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    needed_by: frozenset[str]


def components_of(
    root: Path,
    file: str,
    required: str = "",
) -> tuple[Component, ...]:
    """Return the packages of a requirement file that a Linux machine may install.

    ``file``: relative to the sources' folder ``root``. ``required``: a second file, whose packages
    are needed without any extra; by default those of ``file``.
    Raises `ReleaseError` for a package without a licence.
    """
    licences = read_licences(root)
    required_names = {pin.name for pin in read_pins(root / (required or file))}
    pins = [pin for pin in read_pins(root / file) if is_for_linux(pin.marker)]
    requires = defaultdict(set)
    for pin in pins:
        for name in pin.needed_by:
            requires[name].add(pin.name)
    components = []
    for pin in pins:
        component = Component(
            name=pin.name,
            version=pin.version,
            purl=f"pkg:pypi/{pin.name}@{pin.version}",
            licence=licence_of(pin.name, licences),
            sha256=pin.hashes,
            requires=tuple(sorted(requires[pin.name])),
            marker=pin.marker,
            is_direct=not pin.needed_by.isdisjoint(PROJECTS),
            is_optional=pin.name not in required_names,
        )
        components.append(component)
    return tuple(components)


def closure(
    components: Iterable[Component],
    names: Iterable[str],
) -> tuple[Component, ...]:
    """Return the components with some names, which are the direct ones, and all that these need."""
    by_name = defaultdict(list)
    for component in components:
        by_name[component.name].append(component)
    direct = [canonicalize_name(name) for name in names]
    reached: dict[str, Component] = {}
    waiting: list[str] = list(direct)
    while waiting:
        for component in by_name[waiting.pop()]:
            if component.purl not in reached:
                is_direct = component.name in direct
                reached[component.purl] = replace(component, is_direct=is_direct)
                waiting += component.requires
    return tuple(reached[purl] for purl in sorted(reached))


def read_pins(path: Path) -> Iterator[Pin]:
    """Yield the packages of a requirement file."""
    blocks: list[list[str]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if PIN.match(line):
            blocks.append([])
        if blocks:
            blocks[-1].append(line)
    for block in blocks:
        yield pin_of(block)


def pin_of(lines: list[str]) -> Pin:
    """Return the package of the lines that begin with its name."""
    match = PIN.match(lines[0])
    assert match is not None
    needed_by = set()
    for line in lines[1:]:
        via = VIA.fullmatch(line)
        if via is not None:
            needed_by.add(via["name"])
    return Pin(
        name=canonicalize_name(match["name"]),
        version=match["version"],
        marker=(match["marker"] or "").strip(),
        hashes=tuple(sorted(HASH.findall("\n".join(lines)))),
        needed_by=frozenset(needed_by),
    )


def is_for_linux(marker: str) -> bool:
    """True if CPython on Linux, of some version, installs a package with this marker."""
    if not marker:
        return True
    condition = Marker(marker)
    return any(condition.evaluate(linux_with(python)) for python in PYTHON_VERSIONS)


def linux_with(python: str) -> dict[str, str]:
    """Return the environment of markers for CPython on Linux."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }


def read_licences(root: Path) -> Mapping[str, str]:
    """Return the SPDX expression of each package."""
    licences: dict[str, str] = yaml.safe_load((root / LICENCES).read_text(encoding="utf-8"))
    return licences


def licence_of(name: str, licences: Mapping[str, str]) -> str:
    """Return the licence of a package. Raises `ReleaseError` if its line is missing."""
    if name not in licences:
        raise ReleaseError(
            f"{LICENCES} has no line for {name}: add its licence as an SPDX expression"
        )
    return licences[name]
