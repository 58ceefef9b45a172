"""Observes on which thread a function is called: an event loop, which it would block, or a
worker.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


def watch(
    patch: pytest.MonkeyPatch,
    holder: Any,
    name: str,
) -> list[bool]:
    """Record calls of ``holder.name``; return a list that grows by True for a call on an event
    loop.
    """
    on_loop: list[bool] = []
    original: Callable[..., Any] = getattr(holder, name)

    def recording(*args: Any, **kwargs: Any) -> Any:
        on_loop.append(asyncio._get_running_loop() is not None)
        return original(*args, **kwargs)

    patch.setattr(holder, name, recording)
    return on_loop
