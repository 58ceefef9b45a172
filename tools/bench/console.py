"""What the console asks of a node with many jobs: each request of a page in Chromium, sent again
and timed.
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

PAGES = ("jobs", "jobs/{job}", "submit", "approvals", "data", "providers", "partners", "node")
HEADS = [
    "page",
    "requests to the API",
    "slowest",
    "all, one after the other",
    "first visit, gzipped",
]
_FOLLOWS = "follow=1"
"""in the path of a stream, which ends with the page"""


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
            paths = asked(browser, node.operator, page.format(job=job_id))
            size, times = 0, []
            for path in paths:
                found = [_timed(client, path) for _ in range(rounds)]
                size += found[0][1]
                if not path.startswith("/console"):
                    times.append(statistics.median(seconds for seconds, _ in found))
            shown = [f"{seconds * 1000:.0f} ms" for seconds in (max(times), sum(times))]
            yield [page.format(job="ID"), len(times), *shown, f"{size / 1000:.0f} kB"]


def asked(
    browser: Browser,
    url: str,
    page: str,
) -> list[str]:
    """Return the paths that a first visit of a page asks for, until nothing further is asked
    for.
    """
    found: list[str] = []

    def note(route: Route) -> None:
        at = urlsplit(route.request.url)
        path = f"{at.path}?{at.query}" if at.query else at.path
        if _FOLLOWS in path:
            route.abort()
        else:
            found.append(path)
            route.continue_()

    with browser.new_context() as context:
        context.route("**/*", note)
        visited = context.new_page()
        visited.goto(f"{url}/console/#/{page}", wait_until="networkidle")
        visited.locator("main h1").wait_for()
        visited.wait_for_load_state("networkidle")
    return list(dict.fromkeys(found))


def _timed(client: httpx.Client, path: str) -> tuple[float, int]:
    """Return the seconds of one request, and the bytes of its response once compressed."""
    began = time.perf_counter()
    answer = client.get(path).raise_for_status()
    return time.perf_counter() - began, len(gzip.compress(answer.content))
