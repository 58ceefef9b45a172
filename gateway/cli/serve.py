"""Starts one node and keeps it up."""

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvloop

from engines.base import Engine
from gateway.bootstrap.listeners import grpc
from gateway.bootstrap.node import Gateway
from gateway.bootstrap.parts import Pace, engine_of
from gateway.config.loader import REMOVED, load
from gateway.config.schema import Settings
from gateway.diagnostics.doctor import look
from gateway.http.server import serve
from gateway.runtime.context import current_trace
from gateway.store.timeline import without_tokens

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""of glibc's mallopt"""


def run(
    config: Path,
    log_format: str,
    ready_file: Path | None,
    engine: Callable[[Settings, str], Engine] | None = None,
    pace: Pace = Pace(),
) -> None:
    """Serve until a signal. Raises `Invalid` for a configuration that cannot work."""
    configure_logs(log_format)
    keep_freed_memory()
    sys.setswitchinterval(0.001)  # so that responses need not wait for busy threads
    settings = load(config)
    gateway = Gateway(settings, engine=engine, pace=pace)
    gateway.doctor = partial(
        look, settings, partial(engine_of, installation="doctor", instance="doctor"), config
    )
    log = structlog.get_logger("gateway")
    if unused := [path for path in settings.origins if path in REMOVED]:
        log.warning("settings of an earlier version have no effect: delete them", settings=unused)

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def end_session(session: str) -> None:
            asyncio.run_coroutine_threadsafe(gateway.broker.end_session(session), loop).result(30)

        gateway.sessions.on_end(end_session)
        gateway.drain.on_empty(lambda: os.kill(os.getpid(), signal.SIGTERM))
        gateway.start()

        def ready() -> None:
            log.info(
                "serving",
                node=settings.node.id,
                engine=settings.engine.kind,
                **gateway.addresses(),
            )
            if ready_file is not None:
                part = ready_file.with_suffix(".part")
                part.write_text(json.dumps({"pid": os.getpid(), **gateway.addresses()}))
                part.replace(ready_file)

        def leave() -> None:
            """End what clients follow or wait for."""
            gateway.leaving.set()
            gateway.broker.leave()

        following = asyncio.create_task(_follow_routes(gateway))
        try:
            further = (gateway.arrivals, gateway.tls, grpc(gateway), leave)
            await serve(gateway.apps, gateway.sockets, ready, None, *further)
        finally:
            following.cancel()
            await gateway.courier.close()
            await asyncio.to_thread(gateway.stop)
        log.info("stopped", node=settings.node.id)

    uvloop.run(main())


def keep_freed_memory() -> None:
    """Have each arena of glibc keep 16 MiB: asking the kernel anew took a quarter of a long message's time."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_THRESHOLD, 4 << 20)
        mallopt(_TRIM_THRESHOLD, 16 << 20)


async def _follow_routes(gateway: Gateway, every: float = 1.0) -> None:
    """Reload the route table whenever its file, or another gateway, has changed it."""
    log, last = structlog.get_logger("gateway"), ""
    while True:
        await asyncio.sleep(every)
        try:
            await asyncio.to_thread(gateway.routes.reload)
            last = ""
        except Exception as error:  # such as no connection to the database
            text = f"{type(error).__name__}: {error}"[:500]
            if text != last:
                log.warning("route table not reloaded", error=text)
            last = text


_OURS = ("gateway", "adapter", "engines", "provider_registry", "route_table")


def configure_logs(log_format: str) -> None:
    """Log to standard error as text or JSON, with the trace id; structlog and the standard library alike."""
    last: Any = structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    if log_format != "json":
        last = _as_text
        if sys.stderr.isatty():
            last = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    common: list[Any] = [
        _trace,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _hide_tokens,
    ]
    structlog.configure(
        processors=[*common, last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    logging.basicConfig(
        level=logging.WARNING,
        handlers=[handler],
        force=True,
    )
    for room in _OURS:
        logging.getLogger(room).setLevel(logging.INFO)
    logging.captureWarnings(True)


def _as_text(
    _logger: Any,
    _name: str,
    event: MutableMapping[str, Any],
) -> str:
    """Render a line for a log file or pipe: without colours, at a fifth of the cost."""
    at, level, text = event.pop("timestamp"), event.pop("level"), event.pop("event")
    trace = event.pop("exception", "")
    values = (
        f"{key}={v if (v := str(event[key])).isprintable() and ' ' not in v else repr(v)}"
        for key in sorted(event)
    )
    return f"{at} [{level:9}] {text:30} {' '.join(values)}" + (f"\n{trace}" if trace else "")


def _trace(
    _logger: Any,
    _name: str,
    event: MutableMapping[str, Any],
) -> MutableMapping[str, Any]:
    """Add the trace id of the work under way where the line does not name one itself."""
    if trace_id := current_trace():
        event.setdefault("trace_id", trace_id)
    return event


def _hide_tokens(
    _logger: Any,
    _name: str,
    event: MutableMapping[str, Any],
) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if isinstance(value, str) and name not in (
            "trace_id",
            "job",
            "sha256",
        ):  # others may choose the first two
            event[name] = without_tokens(value)
    return event
