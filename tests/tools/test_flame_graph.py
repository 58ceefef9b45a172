"""The flame graph of a job: from the samples of its stacks to the picture."""

from xml.etree import ElementTree

import pytest

from tools.bench.flame import stacks_of
from tools.bench.flame_graph import flame_graph, tree

SAMPLES = """\
thread (12): MainThread;<module> (gateway/cli/__main__.py:1);serve (uvicorn/server.py);a (x/b.py) 60
thread (13): lane-peer-0;Lane._run (gateway/runtime/lanes.py:5) 20
thread (14): uvloop_0;_worker (concurrent/futures/thread.py:78) 900
thread (13): lane-peer-0;Lane._run (gateway/runtime/lanes.py:5);wait (threading.py:327) 500
thread (12): MainThread;<module> (gateway/cli/__main__.py:1);serve (uvicorn/server.py:1) 20
"""
SVG = "{http://www.w3.org/2000/svg}"


def test_stacks_begin_with_the_thread_and_leave_waiting_ones_out():
    stacks = stacks_of(SAMPLES, 0.1)
    assert stacks == pytest.approx(
        {
            "event loop;uvicorn.server.serve;x.b.a": 0.06,
            "event loop;uvicorn.server.serve": 0.02,
            "calls to peers and engine;gateway.runtime.lanes.Lane._run": 0.02,
        }
    )


def test_a_function_is_as_wide_as_its_share():
    picture = ElementTree.fromstring(flame_graph(tree(stacks_of(SAMPLES, 0.1)), "A <job>"))
    widths = {}
    for group in picture.iter(f"{SVG}g"):
        title = group.findtext(f"{SVG}title")
        widths[title.partition(":")[0]] = float(group.find(f"{SVG}rect").get("width"))
    assert widths["uvicorn.server.serve"] == pytest.approx(0.8 * widths["all"])
    assert widths["x.b.a"] == pytest.approx(0.6 * widths["all"])
