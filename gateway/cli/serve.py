"""Starts one node and keeps it up."""

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvloop

from engines.base import Engine
from gateway.bootstrap.engine_parts import engine_of
from gateway.bootstrap.link_services import link_service
from gateway.bootstrap.node import Gateway
from gateway.bootstrap.parts import Pace
from gateway.bootstrap.peer_services import PeerServices
from gateway.config.loader import REMOVED, load
from gateway.config.schema import Settings
from gateway.config.secrets import move_command, secrets_in_clear
from gateway.http.server import serve
from gateway.runtime.context import current_trace
from gateway.runtime.trials import Step
from gateway.store.timeline import without_tokens

# Numbers of parameters of glibc's mallopt.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
# Packages that log from INFO on; all others from WARNING on.
_PACKAGES = (
    "gateway",
    "adapter",
    "engines",
    "provider_registry",
    "route_table",
)
# Fields of a log line whose values are no secrets. Other nodes choose the trace id and the id of a
# job, so these may have the form of a token; a checksum may have it, too.
_FIELDS_WITHOUT_TOKENS = ("trace_id", "job", "sha256")
_LONGEST_ERROR = 500  # characters of a logged error of the route table
_END_SESSION_TIMEOUT = 30  # seconds that a thread waits for the end of a session


def run(
    config: Path,
    log_format: str,
    ready_file: Path | None,
    engine: Callable[[Settings, str], Engine] | None = None,
    pace: Pace = Pace(),
) -> None:
    """Serve until a signal.

    ``engine`` and ``pace`` replace the configured engine and intervals in tests and benchmarks.
    Raises `Invalid` for a configuration that cannot work.
    """
    configure_logs(log_format)
    keep_freed_memory()
    # Seconds after which a busy thread yields: the event loop has to respond quickly.
    sys.setswitchinterval(0.001)
    settings = load(config)
    gateway = Gateway(
        settings,
        engine=engine,
        pace=pace,
        doctor=partial(_check_node, settings, config),
    )
    _warn_of_secrets(settings, config)
    removed = [path for path in settings.origins if path in REMOVED]
    if removed:
        log = structlog.get_logger("gateway")
        log.warning("settings of an earlier version have no effect: delete them", settings=removed)
    uvloop.run(_run(gateway, ready_file))


def _check_node(settings: Settings, config: Path) -> Sequence[Step]:
    """Return the results of the doctor's checks of this node."""
    # Imported late: most nodes are never asked for these checks.
    from gateway.diagnostics.doctor import look

    # No container has the label of the made-up installation "doctor", so the engine that is made
    # for the checks sees and removes no run.
    make_engine = partial(engine_of, installation="doctor", instance="doctor")
    return look(settings, make_engine, config)


def _warn_of_secrets(settings: Settings, config: Path) -> None:
    """Log the settings that contain secrets in clear, and the storages that no run may use."""
    log = structlog.get_logger("gateway")
    in_clear = [secret.in_clear for secret in secrets_in_clear(settings)]
    if in_clear:
        log.warning(
            "the configuration file contains secrets in clear",
            settings=in_clear,
            next=move_command(config),
        )
    unusable = [name for name, storage in settings.storages.items() if not storage.serves_runs]
    if unusable:
        log.warning(
            "jobs with data in these storages are refused",
            storages=unusable,
            reason="STORAGE_KEY_NOT_SHARED",
            next="set role or share_key in storages",
        )


async def _run(gateway: Gateway, ready_file: Path | None) -> None:
    """Start a gateway, serve until a signal, and stop it."""
    services = gateway.services
    _end_sessions_on_this_loop(services.peers)
    services.scheduling.drain.on_empty(_terminate_this_process)
    gateway.start()
    exempt_objects_from_collection()

    def leave() -> None:
        """End requests that may last long: streams, and reads that wait for a message."""
        gateway.leaving.set()
        services.peers.broker.stop_pops()

    follower = asyncio.create_task(_follow_routes(gateway))
    try:
        await serve(
            gateway.apps,
            services.sockets.by_listener,
            ready=partial(_announce, gateway, ready_file),
            arrivals=services.sockets.arrivals,
            tls=services.sockets.tls,
            http2=gateway.grpc_servers(),
            links=link_service(services),
            before_stop=leave,
        )
    finally:
        follower.cancel()
        await services.peers.courier.close()
        await asyncio.to_thread(gateway.stop)
    structlog.get_logger("gateway").info("stopped", node=gateway.settings.node.id)


def _end_sessions_on_this_loop(peers: PeerServices) -> None:
    """When a thread of the gateway ends a session, have the broker end its part on this loop."""
    loop = asyncio.get_running_loop()

    def end_session(session: str) -> None:
        """End the broker's part of a session, and wait for it; called by the gateway's threads."""
        ending = peers.broker.end_session(session)
        asyncio.run_coroutine_threadsafe(ending, loop).result(_END_SESSION_TIMEOUT)

    peers.sessions.on_end(end_session)


def _terminate_this_process() -> None:
    """Send SIGTERM to this process, which then stops in an orderly way."""
    os.kill(os.getpid(), signal.SIGTERM)


def _announce(gateway: Gateway, ready_file: Path | None) -> None:
    """Report that the listeners respond: in the log, and in a file."""
    settings = gateway.settings
    addresses = gateway.addresses()
    log = structlog.get_logger("gateway")
    log.info("serving", node=settings.node.id, engine=settings.engine.kind, **addresses)
    if ready_file is not None:
        part = ready_file.with_suffix(".part")
        part.write_text(json.dumps({"pid": os.getpid(), **addresses}))
        part.replace(ready_file)


def keep_freed_memory() -> None:
    """Let each arena of glibc keep 16 MiB of freed memory.

    Without this, a quarter of the time of a long message went into requests for memory from the
    kernel.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # only glibc has it; the values are bytes
        mallopt(_MMAP_THRESHOLD, 4 << 20)
        mallopt(_TRIM_THRESHOLD, 16 << 20)


def exempt_objects_from_collection() -> None:
    """Let the garbage collector pass over all present objects for good.

    After the start, these objects last as long as the process. A collection that visits them stops
    all threads for 150 ms.
    """
    gc.freeze()


async def _follow_routes(gateway: Gateway, every: float = 1.0) -> None:
    """Reload the route table every few seconds: a new file or another gateway may have changed it.

    ``every`` is the pause between two reloads, in seconds.
    """
    log = structlog.get_logger("gateway")
    last_error = ""
    while True:
        await asyncio.sleep(every)
        try:
            await asyncio.to_thread(gateway.routes.reload)
            last_error = ""
        except Exception as error:  # such as no connection to the database
            text = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
            if text != last_error:
                log.warning("route table not reloaded", error=text)
            last_error = text


# ---------------------------------------------------------------- logs


def configure_logs(log_format: str) -> None:
    """Log to standard error, as text or JSON, from structlog and from the standard library."""
    renderer = _renderer(log_format)
    common: list[Any] = [
        _add_trace_id,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _hide_tokens,
    ]
    structlog.configure(
        processors=[*common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(
        level=logging.WARNING,
        handlers=[handler],
        force=True,
    )
    for package in _PACKAGES:
        logging.getLogger(package).setLevel(logging.INFO)
    logging.captureWarnings(True)


def _renderer(log_format: str) -> Any:
    """Return the renderer of log lines: JSON, or text, which is coloured in a terminal."""
    if log_format == "json":
        return structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    if sys.stderr.isatty():
        return structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    return _as_text


def _as_text(
    _logger: Any,
    _name: str,
    event: MutableMapping[str, Any],
) -> str:
    """Render a line for a log file or pipe: without colours, at a fifth of the cost."""
    timestamp = event.pop("timestamp")
    level = event.pop("level")
    message = event.pop("event")
    traceback = event.pop("exception", "")
    values = " ".join(f"{key}={_log_value(event[key])}" for key in sorted(event))
    line = f"{timestamp} [{level:9}] {message:30} {values}"
    if traceback:
        line += f"\n{traceback}"
    return line


def _log_value(value: Any) -> str:
    """Return a value as text, quoted if it has spaces or control characters."""
    text = str(value)
    if text.isprintable() and " " not in text:
        return text
    return repr(text)


def _add_trace_id(
    _logger: Any,
    _name: str,
    event: MutableMapping[str, Any],
) -> MutableMapping[str, Any]:
    """Add the trace id of the current work to a line that does not name one itself."""
    trace_id = current_trace()
    if trace_id:
        event.setdefault("trace_id", trace_id)
    return event


def _hide_tokens(
    _logger: Any,
    _name: str,
    event: MutableMapping[str, Any],
) -> MutableMapping[str, Any]:
    """Hide parts of values that look like tokens."""
    for name, value in event.items():
        if isinstance(value, str) and name not in _FIELDS_WITHOUT_TOKENS:
            event[name] = without_tokens(value)
    return event
