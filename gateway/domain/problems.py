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
        got = repr(self.got)
        found = f" (got {got if len(got) <= 200 else got[:200] + '…'})"
        hint = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{self.path}: {self.rule}{'' if self.rule == 'is missing' else found}{hint}"
