"""A log that a test can read."""

from typing import Any


class Lines(list[tuple[str, str, dict[str, Any]]]):
    """The lines of a `Log`: level, message and fields."""

    def __call__(
        self,
        level: str,
        message: str,
        **fields: Any,
    ) -> None:
        self.append((level, message, fields))
