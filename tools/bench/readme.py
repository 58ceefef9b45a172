"""Writes the figures of one whole run into both READMEs and performance pages, between their two
marks.
"""

# ruff: noqa: E501 (the lines of the pages)
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Shown = Mapping[str, Sequence[Sequence[Any]]]
"""the rows of each table that was printed, by the name of its part"""

BEGIN, END = "<!-- make bench ARGS=--readme writes what follows -->\n", "<!-- until here -->\n"
NEEDED = (
    "makespan",
    "channel",
    "create",
    "memory",
    "upload",
    "thousand",
    "beside",
    "ended",
    "failover",
)


class Missing(Exception):
    """A part was not measured, or a page has no place for the figures."""


def write(
    root: Path,
    machine: str,
    shown: Shown,
) -> None:
    """Put the figures into the pages. Raises `Missing`; then no page is changed."""
    if lacking := [name for name in NEEDED if not shown.get(name)]:
        raise Missing(f"not measured: {', '.join(lacking)}")
    found = figures(shown) | {"machine": machine}
    pages = {root / name: text.format_map(found) for name, text in TEXTS.items()}
    written = {
        page: between(page.read_text(encoding="utf-8"), text, page.name)
        for page, text in pages.items()
    }
    for page, text in written.items():
        page.write_text(text, encoding="utf-8")


def between(
    page: str,
    text: str,
    name: str,
) -> str:
    """Return the page with the text between its marks.

    Raises `Missing` where they are not there.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise Missing(f"{name} has no place for the figures")
    return before + BEGIN + text + END + after


def figures(shown: Shown) -> dict[str, str]:
    """Return each figure that the pages show, by the name that it has there."""
    found: dict[str, Any] = {}
    for tasks, poll, callback, bare, _, ratio, _ in shown["makespan"]:
        found |= {
            f"poll{tasks}": poll,
            f"callback{tasks}": callback,
            f"bare{tasks}": bare,
            f"ratio{tasks}": ratio,
        }
    for size, median, rate, *_ in shown["channel"]:
        found |= {f"push {size}": median, f"rate {size}": rate}
    rested, single, _, many = shown["create"]
    found |= {
        "rested": rested[2],
        "single": single[2],
        "single_rate": single[1],
    }
    found |= {
        "many": many[2],
        "many_rate": many[1],
        "memory": shown["memory"][0][0],
    }
    found |= dict(
        zip(("upload", "upload_time", "upload_rate", "grown"), shown["upload"][0], strict=True)
    )
    found |= dict(
        zip(
            ("jobs", "succeeded", "twice", "jobs_rate", "p50", "p99"),
            shown["thousand"][0],
            strict=True,
        )
    )
    found |= dict(
        zip(("tasks", "alone", "together", "beside", "large"), shown["beside"][0], strict=True)
    )
    found |= dict(zip(("ended", "without", "with", "slower"), shown["ended"][0], strict=True))
    found["failover"] = min(
        (row[0] for row in shown["failover"]), key=lambda value: float(value.split()[0])
    )
    found["failover_worst"] = max(
        (row[0] for row in shown["failover"]), key=lambda value: float(value.split()[0])
    )
    return {name: str(value) for name, value in found.items()}


TEXTS = {
    "README.md": """\
Ratios of one run on {machine}, against a floor measured in the same run; smaller is
better. [All figures](docs/performance.md).

| Measured | Floor | Ratio |
|---|---|---|
| a job of one task at two nodes (Docker) | the same containers, started bare | {ratio1} |
| a chain of ten tasks at two nodes (Docker) | the same containers, started bare | {ratio10} |
| a job next to one of {tasks} tasks | the same job alone | {beside} |
| a job in a database with {ended} ended jobs | the same job alone | {slower} |
""",
    "README.zh-CN.md": """\
在 {machine} 上一次测得，均为与同一次测量中的基准之比，越小越好。[全部数据](docs/performance.zh-CN.md)。

| 测量对象 | 基准 | 比值 |
|---|---|---|
| 两个节点上一个任务的作业（Docker） | 直接启动同样的容器 | {ratio1} |
| 两个节点上十个任务依次执行（Docker） | 直接启动同样的容器 | {ratio10} |
| 与 {tasks} 个任务的作业同时运行的小作业 | 单独运行 | {beside} |
| 数据库中有 {ended} 个已结束作业时的小作业 | 没有这些作业时 | {slower} |
""",
    "docs/performance.md": """\
Measured with `make bench` on {machine}, everything on the same cores; the ratios are to the same containers
started bare in the same run, both parties in parallel.

| Makespan of a job at two nodes, Docker | poll | callback | bare, engine's API | ratio |
|---|---|---|---|---|
| 1 task | {poll1} | {callback1} | {bare1} | {ratio1} |
| chain of 3 | {poll3} | {callback3} | {bare3} | {ratio3} |
| chain of 10 | {poll10} | {callback10} | {bare10} | {ratio10} |

| Channel: push at one node, pop at the other | median | rate |
|---|---|---|
| 1 KiB | {push 1 KiB} | {rate 1 KiB} |
| 1 MiB | {push 1 MiB} | {rate 1 MiB} |
| 64 MiB | {push 64 MiB} | {rate 64 MiB} |

| Under load (process engine: clients, both nodes and containers on the same cores) | |
|---|---|
| {jobs} jobs submitted together | {succeeded} succeeded, {twice} tasks started twice, {jobs_rate} |
| `status_all` meanwhile | p50 {p50}, p99 {p99} |
| a job beside one of {tasks} tasks, by the same job alone | {beside} |
| a job beside {ended} ended ones, by the same job alone | {slower} |
| one of two gateways dies: the other starts the next task after | {failover} to {failover_worst} |

`create_all` at two nodes answers in {rested} (median) where each job is posted after the last has ended; with one client
posting whole jobs without a pause in {single} at {single_rate}, with 32 clients, for ten seconds, in {many} at {many_rate}. An idle node
holds {memory}; an upload of {upload} made it grow by {grown}.
""",
    "docs/performance.zh-CN.md": """\
以下数据由 `make bench` 在 {machine} 上测得，所有进程共用这些核；比值以同一次测量中直接启动同样的容器（双方并行）为基准。

| 两个节点上一个作业的总时长（Docker） | 轮询 | 回调 | 直接调用引擎 API | 比值 |
|---|---|---|---|---|
| 1 个任务 | {poll1} | {callback1} | {bare1} | {ratio1} |
| 3 个任务依次执行 | {poll3} | {callback3} | {bare3} | {ratio3} |
| 10 个任务依次执行 | {poll10} | {callback10} | {bare10} | {ratio10} |

| 通道：一个节点 push，另一个节点 pop | 中位数 | 速率 |
|---|---|---|
| 1 KiB | {push 1 KiB} | {rate 1 KiB} |
| 1 MiB | {push 1 MiB} | {rate 1 MiB} |
| 64 MiB | {push 64 MiB} | {rate 64 MiB} |

| 大量并发（进程引擎：客户端、两个节点与容器共用这些核） | |
|---|---|
| 同时提交 {jobs} 个作业 | {succeeded} 个成功，{twice} 个任务被重复启动，{jobs_rate} |
| 其间的 `status_all` | p50 {p50}，p99 {p99} |
| 与一个 {tasks} 个任务的作业同时运行的小作业，与单独运行之比 | {beside} |
| 数据库中有 {ended} 个已结束作业时的小作业，与没有时之比 | {slower} |
| 两个网关之一被杀死，另一个启动下一个任务所需时间 | {failover} 至 {failover_worst} |

两个节点上的 `create_all`：每个作业在前一个结束后提交时，应答的中位数为 {rested}；一个客户端不间断提交时为 {single}（{single_rate}），
32 个客户端持续十秒时为 {many}（{many_rate}）。空闲节点占用 {memory} 内存；上传 {upload} 的表时增长 {grown}。
""",
}
