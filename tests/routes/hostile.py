"""Route tables that want to take long, or much; run as a program, this reads each with little memory and time."""

import json
import resource
import sys
from collections.abc import Iterator

from route_table.document import MAX_TEXT, parse
from route_table.model import InvalidRoutes

MEMORY = 200 * 1024**2
"""bytes beyond what the program has before it begins"""
SECONDS = 20
"""of the processor, for one text: a bound for what never ends, not for what is quick"""


def texts() -> Iterator[tuple[str, str]]:
    m, n = MAX_TEXT, 20_000
    keys = "profile: spec, deadline: 10, enabled: yes, institution: x, relay: yes, server_name: n"
    yield "many keys", "A: {" + "b: c, " * (m // 7) + "}"
    yield "a long list", "A: [" + "x, " * (m // 4) + "]"
    yield "every route with every key", "".join(f"N{i}: {{url: 'https://h{i}', {keys}}}\n" for i in range(n))
    yield "10,000 routes", "".join(f"N{i}: {{url: 'https://h{i}', {keys}}}\n" for i in range(n // 2))
    yield "nothing but mistakes", "".join(f"N{i}: 1\n" for i in range(n))
    yield "a circle of all", "".join(f"N{i}: {{via: N{(i + 1) % n}}}\n" for i in range(n))
    yield "ways to nobody", "".join(f"N{i}: {{via: X{i}}}\n" for i in range(n))
    yield (
        "a chain of all",
        "".join(f"N{i}: {{via: N{i + 1}}}\n" for i in range(n - 1)) + f"N{n - 1}: {{url: 'http://h'}}",
    )
    yield "a long url", "A: {url: 'http://h" + "/a" * (m // 2 - 20) + "'}"
    yield "a long host", "A: {port: 1, host: '" + "a." * (m // 2 - 20) + "'}"
    yield "a long number", "A: {host: h, port: 1, deadline: " + "1" * (m - 60) + "}"
    yield "a long key", "A: {'" + "x" * (m - 20) + "': 1}"
    yield "a long node", "'" + "x" * (m - 20) + "': {host: h, port: 1}"
    for name, piece in (
        ("quotes", "'"),
        ("braces", "{"),
        ("dashes", "- "),
        ("question marks", "? "),
        ("spaces", " "),
        ("lines", "\n"),
        ("colons", ": "),
        ("remarks", "#\n"),
        ("exclamation marks", "!"),
        ("words", "a "),
        ("tabs", "\t"),
        ("documents", "---\n"),
        ("double quotes", '"\\u0041'),
        ("anchors", "&a "),
    ):
        yield name, piece * (m // len(piece))
    yield "too long", "x" * (m + 1)


def main() -> None:
    said = {}
    with open("/proc/self/statm", encoding="ascii") as sizes:
        has = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY, -1))
    for name, text in texts():
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + SECONDS, -1))
        try:
            said[name] = len(parse(text).routes)
        except InvalidRoutes as error:
            said[name] = str(error)[:200]
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
