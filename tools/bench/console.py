"""Requests of the console's pages at a node with many jobs.

Chromium visits each page; every request of the page is then repeated and timed.
"""

import gzip
import statistics
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Browser, Route

from tests.e2e.nodes import Node
from tests.plain import NO_TLS
from tests.services.browser import chromium
from tools.bench.parts import milliseconds

PAGES = (
    "overview",
    "jobs",
    "jobs/{job}",
    "submit",
    "approvals",
    "data",
    "models",
    "providers",
    "partners",
    "node",
)
HEADINGS = [
    "page",
    "requests to the API",
    "slowest",
    "all, one after the other",
    "first visit, gzipped",
]
_STREAM_MARK = "follow=1"  # in the path of a stream, which ends only with the page


def visits(
    node: Node,
    job_id: str,
    rounds: int,
) -> Iterator[list[Any]]:
    """Yield a row for each page."""
    with (
        chromium() as browser,
        httpx.Client(
            base_url=node.operator,
            verify=NO_TLS,
            trust_env=False,
        ) as client,
    ):
        for page in PAGES:
            paths = requested_paths(
                browser,
                node.operator,
                page.format(job=job_id),
            )
            yield _row(client, page.format(job="ID"), paths, rounds)


def _row(
    client: httpx.Client,
    page: str,
    paths: list[str],
    rounds: int,
) -> list[Any]:
    """Repeat the requests of a page; requests for files of the console count only by size."""
    total_size = 0
    api_times = []
    for path in paths:
        responses = [_timed(client, path) for _ in range(rounds)]
        total_size += responses[0][1]
        if not path.startswith("/console"):
            api_times.append(statistics.median(seconds for seconds, _ in responses))
    slowest = milliseconds(max(api_times))
    total = milliseconds(sum(api_times))
    return [page, len(api_times), slowest, total, f"{total_size / 1000:.0f} kB"]


def requested_paths(
    browser: Browser,
    url: str,
    page: str,
) -> list[str]:
    """Return the paths that a page requests at its first visit, each once, except streams."""
    paths: dict[str, None] = {}

    def record(route: Route) -> None:
        parts = urlsplit(route.request.url)
        path = parts.path
        if parts.query:
            path += f"?{parts.query}"
        if _STREAM_MARK in path:
            route.abort()
        else:
            paths[path] = None
            route.continue_()

    with browser.new_context() as context:
        context.route("**/*", record)
        tab = context.new_page()
        tab.goto(f"{url}/console/#/{page}", wait_until="networkidle")
        tab.locator("main h1").wait_for()
        tab.wait_for_load_state("networkidle")
    return list(paths)


def _timed(
    client: httpx.Client,
    path: str,
) -> tuple[float, int]:
    """Return the seconds of one request, and the compressed bytes of its response."""
    start = time.perf_counter()
    response = client.get(path).raise_for_status()
    return time.perf_counter() - start, len(gzip.compress(response.content))
