"""Numbers of things in words."""


def counted(count: int, thing: str, things: str = "") -> str:
    """Return ``1 job``, ``2 jobs``. ``things`` is the plural where it is more than an s."""
    return f"{count} {thing if count == 1 else things or f'{thing}s'}"
