"""The child process of `patterns`: reads [[pattern, value], …] and writes one mark for each.

``1`` matches as a whole, ``0`` does not, ``?`` cannot be told. Each mark is written at once, so that the
parent has those before an endless match. Uses the standard library only and is started by its path.
"""

import json
import re
import resource
import sys

CPU_SECONDS = 5
"""an end of its own, should the parent die before it can end this process"""


def main() -> None:
    """Answer what stands on the standard input; ends by SIGXCPU when its time is over."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    for pattern, value in json.load(sys.stdin.buffer):
        try:
            mark = "0" if re.fullmatch(pattern, value) is None else "1"
        except (re.error, RecursionError, OverflowError):
            mark = "?"
        sys.stdout.write(mark)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
