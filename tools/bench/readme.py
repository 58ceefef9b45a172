"""Writes the figures of one run into both READMEs and performance pages, between their marks."""

# ruff: noqa: E501 - the lines of the pages
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The rows of each printed table, by the name of the table.
PrintedRows = Mapping[str, Sequence[Sequence[Any]]]

# The marks around the figures in a page.
BEGIN = "<!-- make bench ARGS=--readme writes what follows -->\n"
END = "<!-- until here -->\n"
# Parts whose figures the pages contain.
NEEDED = (
    "makespan",
    "channel",
    "create",
    "idle",
    "upload",
    "thousand",
    "beside",
    "ended",
    "failover",
)
_IDLE_PROCESSES = 3  # the node with two engines, and FATE-Flow's server
# Names in the pages for the columns of tables with one row.
_COLUMNS = {
    "upload": ("upload", "upload_time", "upload_rate", "grown"),
    "thousand": ("jobs", "succeeded", "twice", "jobs_rate", "p50", "p99"),
    "beside": ("tasks", "alone", "together", "beside", "large"),
    "ended": ("ended", "without", "with", "slower"),
}


class Missing(Exception):
    """A part was not measured, or a page has no place for the figures."""


def write(
    root: Path,
    machine: str,
    printed: PrintedRows,
) -> None:
    """Write the figures into the pages. Raises `Missing`, before any page has changed."""
    missing = [name for name in NEEDED if not printed.get(name)]
    if missing:
        raise Missing(f"not measured: {', '.join(missing)}")
    values = {**figures(printed), "machine": machine}
    contents = {}
    for name, text in TEXTS.items():
        page = root / name
        contents[page] = replaced(page, text.format_map(values))
    for page, content in contents.items():
        page.write_text(content, encoding="utf-8")


def replaced(page: Path, text: str) -> str:
    """Return a page with the text between its marks. Raises `Missing` without marks."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise Missing(f"{page.name} has no place for the figures")
    return before + BEGIN + text + END + after


def figures(printed: PrintedRows) -> dict[str, str]:
    """Return the figures by their names in the pages."""
    values: dict[str, Any] = {
        **_makespan_figures(printed["makespan"]),
        **_create_figures(printed["create"]),
        **_failover_figures(printed["failover"]),
        **_idle_figures(printed["idle"]),
    }
    for size, median, rate, *_ in printed["channel"]:
        values[f"push {size}"] = median
        values[f"rate {size}"] = rate
    for name, columns in _COLUMNS.items():
        values |= zip(
            columns,
            printed[name][0],
            strict=True,
        )
    return {name: str(value) for name, value in values.items()}


def _makespan_figures(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    values = {}
    for tasks, poll, callback, bare, _, ratio, _ in rows:
        values[f"poll{tasks}"] = poll
        values[f"callback{tasks}"] = callback
        values[f"bare{tasks}"] = bare
        values[f"ratio{tasks}"] = ratio
    return values


def _create_figures(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the rates and medians of create_all; see the headings of the table."""
    paused, *unpaused = rows
    values = {
        "rested": paused[2],
        "bare_rested": paused[4],
    }
    for clients, rate, median, bare_rate, bare_median, share in unpaused:
        values[f"create{clients}"] = f"{rate}, {median}"
        values[f"bare_create{clients}"] = f"{bare_rate}, {bare_median}"
        values[f"create_share{clients}"] = share
    return values


def _idle_figures(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return memory and threads of the idle processes. Raises `Missing` without FATE-Flow's."""
    if len(rows) < _IDLE_PROCESSES:
        raise Missing("not measured: FATE-Flow's server; make setup installs it")
    node, _, fate_flow = rows
    return {
        "memory": node[1],
        "threads": node[2],
        "fate_flow_memory": fate_flow[1],
        "fate_flow_threads": fate_flow[2],
    }


def _failover_figures(rows: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return the shortest and the longest failover; a row is a text such as ``2.1 s``."""
    times = sorted((row[0] for row in rows), key=_seconds)
    return {
        "failover": times[0],
        "failover_worst": times[-1],
    }


def _seconds(text: str) -> float:
    return float(text.split()[0])


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

| `create_all` of whole jobs, whose tasks run meanwhile: rate and median | two nodes | a bare pair of FastAPI nodes | share |
|---|---|---|---|
| 1 client | {create1} | {bare_create1} | {create_share1} |
| 8 clients | {create8} | {bare_create8} | {create_share8} |
| 32 clients | {create32} | {bare_create32} | {create_share32} |

Where each job is posted after the last has ended, the medians are {rested} and {bare_rested}. An idle node holds
{memory} in {threads} threads, FATE-Flow's idle server {fate_flow_memory} in {fate_flow_threads}; an upload of {upload} made the node grow by {grown}.
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

| 提交完整作业的 `create_all`（任务同时运行）：速率与中位数 | 两个节点 | 一对最简 FastAPI 节点 | 占比 |
|---|---|---|---|
| 1 个客户端 | {create1} | {bare_create1} | {create_share1} |
| 8 个客户端 | {create8} | {bare_create8} | {create_share8} |
| 32 个客户端 | {create32} | {bare_create32} | {create_share32} |

每个作业在前一个结束后提交时，中位数分别为 {rested} 与 {bare_rested}。空闲节点占用 {memory} 内存、{threads} 个线程，空闲的 FATE-Flow 服务占用 {fate_flow_memory}、{fate_flow_threads} 个线程；
上传 {upload} 的表时，节点增长 {grown}。
""",
}
