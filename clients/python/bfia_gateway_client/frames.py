"""Tables as data frames of pandas or polars.

Only the calls that return frames import one of these libraries: the client works without them.
"""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from bfia_gateway_client.calls import Json
from bfia_gateway_client.errors import Problem, invalid

LIBRARIES = ("pandas", "polars")  # in the order of preference
PARQUET_MAGIC = b"PAR1"  # the first bytes of a Parquet file
TEXT_TYPES = ("string", "str", "text", "varchar", "char")  # of columns, in lower case


def import_library(name: str = "") -> ModuleType:
    """Import pandas or polars, and return the module.

    ``name``: empty for the one that is imported already, else the one that is installed. Raises
    `Invalid` for another name, and if neither can be imported.
    """
    if name and name not in LIBRARIES:
        raise invalid(Problem("to", f"must be one of {', '.join(LIBRARIES)}", name))
    candidates = _candidates(name)
    for candidate in candidates:
        try:
            return importlib.import_module(candidate)
        except ImportError:
            continue
    libraries = " or ".join(candidates)
    text = f"needs {libraries}: pip install {candidates[0]}; or download the table as a file"
    raise invalid(Problem("to", text))


def _candidates(name: str) -> list[str]:
    """Return the named library, or both with the imported ones first."""
    if name:
        return [name]
    imported = [name for name in LIBRARIES if name in sys.modules]
    return list(dict.fromkeys([*imported, *LIBRARIES]))


class FrameReader:
    """A temporary file for a table, and the library that reads it as a frame. Use as a context."""

    def __init__(self, to: str, argument: str) -> None:
        """Prepare to read a table.

        - ``to``: pandas, polars, or empty for either
        - ``argument``: the caller's argument that names the table; a problem of the table has it
          as its path

        Raises `Invalid` before anything is downloaded.
        """
        self._argument = argument
        self._library: Any = import_library(to)
        self._folder = TemporaryDirectory(prefix="bfia-")
        self.file = Path(self._folder.name, "table")

    def __enter__(self) -> "FrameReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def frame(self, text: Sequence[str] = ()) -> Any:
        """Return the file's table, Parquet or CSV, as a frame.

        ``text``: columns of a CSV file to keep as text, even if they look like numbers. Raises
        `Invalid` for a file without a table.
        """
        if self._is_parquet():
            return self._library.read_parquet(self.file)
        if self._library.__name__ == "polars":
            return self._polars_frame(text)
        return self._pandas_frame(text)

    def _is_parquet(self) -> bool:
        """True if the file begins as Parquet files do."""
        with self.file.open("rb") as file:
            return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC

    def _polars_frame(self, text: Sequence[str]) -> Any:
        """Read a CSV file with polars. Raises `Invalid`."""
        polars = self._library
        types = dict.fromkeys(text, polars.String)
        try:
            return polars.read_csv(self.file, schema_overrides=types, infer_schema_length=None)
        except (ValueError, polars.exceptions.PolarsError) as error:
            raise invalid(Problem(self._argument, f"is not a table: {error}")) from error

    def _pandas_frame(self, text: Sequence[str]) -> Any:
        """Read a CSV file with pandas, twice. Raises `Invalid`.

        pandas takes "NA" and "None" as missing values in all columns or in none; in text they are
        values.
        """
        pandas = self._library

        def is_text(name: str) -> bool:
            return name in text

        try:
            frame = pandas.read_csv(
                self.file,
                dtype=dict.fromkeys(text, str),
            )
            text_frame = pandas.read_csv(
                self.file, usecols=is_text, dtype=str, keep_default_na=False, na_values=[""]
            )
        except ValueError as error:
            raise invalid(Problem(self._argument, f"is not a table: {error}")) from error
        frame[text_frame.columns] = text_frame
        return frame


def frame_of_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    to: str = "",
) -> Any:
    """Return rows as a frame. ``to``: pandas, polars, or empty for either. Raises `Invalid`."""
    library: Any = import_library(to)
    if library.__name__ == "polars":
        return library.DataFrame(
            rows,
            schema=list(columns),
            orient="row",
            infer_schema_length=None,
        )
    return library.DataFrame(rows, columns=list(columns))


def text_columns(columns: Sequence[Json], *id_columns: str) -> list[str]:
    """Return the names of the columns to read as text: those with a type for text, then those with
    ids.

    ``id_columns``: names of columns with ids; the table need not have them.
    """
    names = []
    text = []
    for column in columns:
        name = str(column["name"])
        names.append(name)
        if str(column.get("type", "")).lower() in TEXT_TYPES:
            text.append(name)
    ids = [name for name in id_columns if name in names]
    return list(dict.fromkeys([*text, *ids]))
