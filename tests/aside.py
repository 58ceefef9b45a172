"""Tells where a function is called: on an event loop, where everybody waits for it, or in a thread of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


def watch(
    patch: pytest.MonkeyPatch,
    holder: Any,
    name: str,
) -> list[bool]:
    """Have each call of ``holder.name`` note whether it was made on an event loop; return the notes."""
    notes: list[bool] = []
    real: Callable[..., Any] = getattr(holder, name)

    def noting(*args: Any, **named: Any) -> Any:
        notes.append(asyncio._get_running_loop() is not None)
        return real(*args, **named)

    patch.setattr(holder, name, noting)
    return notes
