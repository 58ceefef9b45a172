"""Tables as data frames of pandas or polars, whichever is installed; neither is needed for anything else."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from bfia_gateway_client.errors import Problem, invalid

KNOWN = ("pandas", "polars")
_TEXT = ("string", "str", "text", "varchar", "char")


def library(name: str = "") -> ModuleType:
    """Return pandas or polars; without a name the one that is in use, else pandas. Raises `Invalid`."""
    if name and name not in KNOWN:
        raise invalid(Problem("to", f"must be one of {', '.join(KNOWN)}", name))
    wanted = [name] if name else sorted(KNOWN, key=lambda one: one not in sys.modules)
    for one in wanted:
        try:
            return importlib.import_module(one)
        except ImportError:
            continue
    text = f"needs {' or '.join(wanted)}: pip install {wanted[0]}; or download the table as a file"
    raise invalid(Problem("to", text))


class Reading:
    """A folder for a table on its way into a frame. Use as a context."""

    def __init__(self, to: str) -> None:
        self._frames = library(to)  # before anything is downloaded
        self._folder = TemporaryDirectory(prefix="bfia-")
        self.file = Path(self._folder.name, "table")

    def __enter__(self) -> "Reading":
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def frame(self, text: Sequence[str] = ()) -> Any:
        """Return the table in the file as a frame. ``text``: columns of text, whatever they look like."""
        with self.file.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        frames: Any = self._frames
        is_polars = frames.__name__ == "polars"
        broken = frames.exceptions.PolarsError if is_polars else ValueError
        if parquet:
            return frames.read_parquet(self.file)
        try:
            if is_polars:
                kinds = dict.fromkeys(text, frames.String)
                return frames.read_csv(self.file, schema_overrides=kinds, infer_schema_length=None)
            table = frames.read_csv(self.file, dtype=dict.fromkeys(text, str))
            own = {
                "usecols": lambda name: name in text,
                "dtype": str,
                "keep_default_na": False,
                "na_values": [""],
            }
            texts = frames.read_csv(self.file, **own)  # there "NA" and "None" are words
            table[texts.columns] = texts
            return table
        except (ValueError, broken) as error:
            raise invalid(Problem("key", f"is not a table: {error}")) from error


def of_points(
    columns: Sequence[str],
    points: Sequence[Sequence[Any]],
    to: str = "",
) -> Any:
    """Return rows as a frame."""
    frames: Any = library(to)
    if frames.__name__ == "polars":
        return frames.DataFrame(
            points,
            schema=list(columns),
            orient="row",
            infer_schema_length=None,
        )
    return frames.DataFrame(points, columns=list(columns))


def text_columns(columns: Sequence[Mapping[str, Any]], *ids: str) -> list[str]:
    """Return which columns hold text: by their declared type, and those with ids."""
    names = [str(one["name"]) for one in columns]
    declared = [str(one["name"]) for one in columns if str(one.get("type", "")).lower() in _TEXT]
    return list(dict.fromkeys([*declared, *(one for one in ids if one in names)]))


class Picture:
    """A picture as SVG, which a notebook shows by itself."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, file: str | Path) -> None:
        """Write it into a file, which browsers show."""
        Path(file).write_text(self.svg, encoding="utf-8")

    def __repr__(self) -> str:
        return (
            f"<Picture of {len(self.svg)} bytes of SVG; a notebook shows it, save(file) writes it>"
        )
