"""Dates and times in the parameters of requests."""

from datetime import UTC, datetime

# Moments outside of these limits cannot be converted to every time zone, or to a timestamp.
_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)
_LATEST = datetime(9998, 1, 1, tzinfo=UTC)


def parse_moment(text: object) -> datetime | None:
    """Parse a date, or date and time, in UTC if it names no zone; return None for an empty text.

    Raises `ValueError`, also for other values than text, and moments outside of the limits.
    """
    if not text:
        return None
    rule = "must be a date or time such as 2026-11-21 or 2026-11-21T08:00Z"
    if not isinstance(text, str):
        raise ValueError(rule)
    stripped = text.strip()
    if "T" in stripped:
        stripped = stripped.replace(" ", "+")  # a plus in a URL that was not escaped
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError as error:
        raise ValueError(rule) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if not _EARLIEST <= moment <= _LATEST:
        raise ValueError(rule)
    return moment
