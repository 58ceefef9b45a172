"""Moments as people write them in an address."""

from datetime import UTC, datetime

from gateway.domain.problems import Problem

_FIRST, _LAST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9998, 1, 1, tzinfo=UTC)


def moment(text: str) -> datetime:
    """Read a date, or date and time, in UTC where it names no zone. Raises `ValueError` with the rule."""
    rule = "must be a date or time such as 2026-11-21 or 2026-11-21T08:00Z"
    try:
        found = datetime.fromisoformat(text.strip().replace(" ", "+") if "T" in text else text.strip())
    except ValueError:
        raise ValueError(rule) from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if not _FIRST <= found <= _LAST:
        raise ValueError(rule)
    return found


def moments(problems: list[Problem], **texts: str) -> list[datetime | None]:
    """Read each text, an empty one as None; what is wrong with one becomes a problem by its name."""
    found: list[datetime | None] = []
    for path, text in texts.items():
        try:
            found.append(moment(text) if text else None)
        except ValueError as error:
            problems.append(Problem(path, str(error), text))
            found.append(None)
    return found
