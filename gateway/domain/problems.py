"""What is wrong with an input, as a value."""

from typing import Any, NamedTuple


class Problem(NamedTuple):
    """One thing wrong in an input: where, which rule, and what was found there."""

    path: str
    rule: str
    got: Any = None
    suggestion: str = ""
    """what to write instead, where that is obvious"""

    def __str__(self) -> str:
        found = "" if self.got is None or self.rule == "is missing" else f" (got {self._got})"
        return f"{self.path}: {self.rule}{found}{self._hint}"

    @property
    def said(self) -> str:
        """The rule and what was found, for a place where the path stands already."""
        return f"{self.rule}{'' if self.got is None else f' (got {self._got})'}{self._hint}"

    @property
    def _got(self) -> str:
        got = repr(self.got)
        return got if len(got) <= 200 else got[:200] + "…"

    @property
    def _hint(self) -> str:
        return f"; did you mean {self.suggestion}?" if self.suggestion else ""
