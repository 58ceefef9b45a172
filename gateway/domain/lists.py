"""Lists of names in messages to people."""

from collections.abc import Sequence


def listed(
    names: Sequence[str],
    limit: int = 3,
) -> str:
    """Return the first ``limit`` names in one line, and the number of the others.

    For example "a, b, c and 2 more".
    """
    text = ", ".join(names[:limit])
    hidden = len(names) - limit
    if hidden > 0:
        text += f" and {hidden} more"
    return text
