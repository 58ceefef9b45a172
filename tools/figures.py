"""Prints how large the project is: modules and lines by room, tests, documents.

python tools/figures.py
"""

import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("gateway", "adapter", "engines", "provider_registry", "route_table", "clients")
SMALLEST, LARGEST = 40, 600


def listed(*folders: str) -> list[Path]:
    """Return the files below some folders that git tracks."""
    names = subprocess.run(
        ["git", "ls-files", *folders],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for name in names.stdout.splitlines() if (path := ROOT / name).is_file()]


def lines(path: Path) -> int:
    """Count a file's lines."""
    return path.read_text(encoding="utf-8").count("\n")


def modules() -> dict[str, int]:
    """Return the lines of each module of the product, but for packages', migrations' and generated ones."""
    return {
        str(path.relative_to(ROOT)): lines(path)
        for path in listed(*PRODUCT)
        if path.suffix == ".py" and path.name not in {"__init__.py", "__main__.py", "types.py", "version.py"}
        and "migrations" not in path.parts
    }  # fmt: skip


def main() -> None:
    """Print the figures."""
    rooms: dict[str, list[int]] = defaultdict(list)
    for path in listed(*PRODUCT):
        if path.suffix == ".py":
            inside = path.relative_to(ROOT).parts[:-1]
            rooms["/".join(inside[:3])].append(lines(path))
    for room, sizes in sorted(rooms.items()):
        print(f"{room:32}{len(sizes):6} modules{sum(sizes):8} lines")
    found = modules()
    total = [size for sizes in rooms.values() for size in sizes]
    print(f"{'product':32}{len(total):6} modules{sum(total):8} lines")
    print(
        f"modules under {SMALLEST} lines: {sum(size < SMALLEST for size in found.values())}, ",
        end="",
    )
    print(f"over {LARGEST}: {sum(size > LARGEST for size in found.values())}")
    for name, folders in {
        "tests": ["tests"],
        "tools": ["tools"],
        "examples": ["examples"],
    }.items():
        files = [path for path in listed(*folders) if path.suffix == ".py"]
        print(f"{name:32}{len(files):6} modules{sum(map(lines, files)):8} lines")
    pages = [path for path in listed() if path.suffix == ".md"]
    print(f"{'documents':32}{len(pages):6} pages  {sum(map(lines, pages)):8} lines")


if __name__ == "__main__":
    main()
