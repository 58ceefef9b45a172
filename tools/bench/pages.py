"""The texts around the figures of a run, in both READMEs and both pages about performance.

Names in braces are those of `tools.bench.readme.figures`.
"""

# ruff: noqa: E501 - the lines of the pages

TEXTS = {
    "README.md": """\
Ratios of one run on {machine}.
Each compares with a floor or another product in the same run. [All figures](docs/performance.md).

| Time or memory (smaller is better) | divided by that of | Ratio |
|---|---|---|
| a job of one task at two nodes (Docker) | the same containers, started bare | {ratio 1} |
| a chain of ten tasks at two nodes (Docker) | the same containers, started bare | {ratio 10} |
| a job next to one of {tasks} tasks | the same job alone | {beside} |
| a job in a database with {ended} ended jobs | the same job alone | {slower} |
| 64 MiB from container to container, through two nodes | a bare relay of the same hops | {push_time} |
| memory of an idle node | FATE-Flow 2.2, idle | {memory_ratio} |

| Rate (larger is better) | divided by that of | 1 client | 8 clients | 32 clients |
|---|---|---|---|---|
| accepted jobs, while their processes run | FATE-Flow 2.2 | {by_fate 1} | {by_fate 8} | {by_fate 32} |
| accepted jobs, without containers | two bare FastAPI nodes that store and forward the body | {share 1} | {share 8} | {share 32} |
""",
    "README.zh-CN.md": """\
以下均为在 {machine_zh}上同一次测量中的比值，分别与最低开销基准或其他产品相比。[全部数据](docs/performance.zh-CN.md)。

| 时间或内存（越小越好） | 相比于 | 比值 |
|---|---|---|
| 两个节点上一个任务的作业（Docker） | 直接启动同样的容器 | {ratio 1} |
| 两个节点上十个任务依次执行（Docker） | 直接启动同样的容器 | {ratio 10} |
| 与 {tasks} 个任务的作业同时运行的小作业 | 单独运行 | {beside} |
| 数据库中有 {ended} 个已结束作业时的小作业 | 没有这些作业时 | {slower} |
| 64 MiB 经两个节点从容器到容器 | 跳数相同、只转发的节点 | {push_time} |
| 空闲节点的内存 | 空闲的 FATE-Flow 2.2 | {memory_ratio} |

| 速率（越大越好） | 相比于 | 1 个客户端 | 8 个客户端 | 32 个客户端 |
|---|---|---|---|---|
| 每秒接受的作业（其进程同时运行） | FATE-Flow 2.2 | {by_fate 1} | {by_fate 8} | {by_fate 32} |
| 每秒接受的作业（无容器） | 两个只保存并转发请求体的 FastAPI 节点 | {share 1} | {share 8} | {share 32} |
""",
    "docs/performance.md": """\
Measured with `make bench` on {machine}.
Clients, nodes and containers share the cores. Ratios compare figures of this run. *Before* is commit `648138eb`, on a
second machine. FATE-Flow is its published server, version 2.2.

| | Floor or peer | Before | Now | Aim |
|---|---|---|---|---|
| `create_all` while processes run, 1 client: per second (p50) | FATE-Flow {fate_rate 1} ({fate_median 1}) | 5.5/s (180 ms) | {rate 1} ({median 1}): {by_fate 1} | ahead of FATE-Flow |
| the same, 8 clients | FATE-Flow {fate_rate 8} ({fate_median 8}) | 19/s (273 ms) | {rate 8} ({median 8}): {by_fate 8} | ahead |
| the same, 32 clients | FATE-Flow {fate_rate 32} ({fate_median 32}) | 12/s (2,441 ms) | {rate 32} ({median 32}): {by_fate 32} | ahead |
| `create_all` without containers, 1 client | a bare pair {pair_rate 1} | 16/s | {alone_rate 1}: {share 1} | ≥ 0.5 of the pair |
| the same, 8 clients | a bare pair {pair_rate 8} | 55/s | {alone_rate 8}: {share 8} | ≥ 0.5 |
| the same, 32 clients | a bare pair {pair_rate 32} | 53/s | {alone_rate 32}: {share 32} | ≥ 0.5 |
| a chain of three tasks next to a job of {tasks} tasks | alone, {alone} | 4.9 | {beside} | ≤ 2 |
| time per task at 1, 10, 50, 200 independent tasks | – | 115, 81, 93, 149 ms | {per_task 1}, {per_task 10}, {per_task 50}, {per_task 200}; from 10 to 200: {growth 200} | ≤ 1.2 |
| a job of 2, 5, 10 parties behind a line of 20 ms | – | – | {line_job 2}, {line_job 5}, {line_job 10}; from 2 to 10: {line_job_growth 10} | ≤ 1.5 |
| its `create_all` | – | – | {line_create 2}, {line_create 5}, {line_create 10}; from 2 to 10: {line_create_growth 10} | ≤ 1.5 |
| a job of 2, 5, 10 parties, all nodes on these cores | – | 135, 259, 543 ms | {here_job 2}, {here_job 5}, {here_job 10}; from 2 to 10: {here_job_growth 10} | |
| its `create_all` | – | 30, 43, 101 ms | {here_create 2}, {here_create 5}, {here_create 10}; from 2 to 10: {here_create_growth 10} | |
| futex calls for a job of one task: scheduling node, node that takes part | – | 285, 107 | {scheduler_futex}, {participant_futex} | ≤ 300 |
| transactions for it (statements) | – | 16, 8 | {scheduler_transactions}, {participant_transactions} ({scheduler_statements}, {participant_statements}) | fewer |
| idle node, engine process | FATE-Flow {fate_flow_memory}, {fate_flow_threads} threads | 138 MiB, 23 threads | {memory}, {threads} threads | ≤ 100 MiB, ≤ 12 |
| idle node, engine docker | | – | {docker_memory}, {docker_threads} threads | |
| 64 MiB from container to container | a bare relay of the same hops, {relay_rate 64 MiB} | – | {push_rate 64 MiB}: {push_share 64 MiB} | ≥ 0.8 |

| Makespan of a job at two nodes, Docker | poll | callback | bare, on a bridge | bare, on the host's network | ratio to the bridge | to the host's network |
|---|---|---|---|---|---|---|
| 1 task | {poll 1} | {callback 1} | {bare 1} | {host 1} | {ratio 1} | {to_host 1} |
| chain of 3 | {poll 3} | {callback 3} | {bare 3} | {host 3} | {ratio 3} | {to_host 3} |
| chain of 10 | {poll 10} | {callback 10} | {bare 10} | {host 10} | {ratio 10} | {to_host 10} |

| Channel by HTTP: push at one node, pop at the other | median | rate | bare relay | share of it |
|---|---|---|---|---|
| 1 KiB | {push 1 KiB} | {push_rate 1 KiB} | {relay_rate 1 KiB} | {push_share 1 KiB} |
| 1 MiB | {push 1 MiB} | {push_rate 1 MiB} | {relay_rate 1 MiB} | {push_share 1 MiB} |
| 64 MiB | {push 64 MiB} | {push_rate 64 MiB} | {relay_rate 64 MiB} | {push_share 64 MiB} |

A job in a database with {ended} ended jobs takes {slower} times as long as without. When one of two gateways dies, the
other starts the next task after {failover} to {failover_worst}. An upload of {upload} made the node grow by {grown}.
""",
    "docs/performance.zh-CN.md": """\
以下数据由 `make bench` 在 {machine_zh}上测得，客户端、节点与容器共用这些核；比值均取自同一次测量。“之前”为另一台机器上的提交 `648138eb`。FATE-Flow 为其公开发布的 2.2 版服务。

| | 基准或同类 | 之前 | 现在 | 目标 |
|---|---|---|---|---|
| 进程运行时的 `create_all`，1 个客户端：每秒（p50） | FATE-Flow {fate_rate 1}（{fate_median 1}） | 5.5/s（180 ms） | {rate 1}（{median 1}）：{by_fate 1} | 超过 FATE-Flow |
| 同上，8 个客户端 | FATE-Flow {fate_rate 8}（{fate_median 8}） | 19/s（273 ms） | {rate 8}（{median 8}）：{by_fate 8} | 超过 |
| 同上，32 个客户端 | FATE-Flow {fate_rate 32}（{fate_median 32}） | 12/s（2,441 ms） | {rate 32}（{median 32}）：{by_fate 32} | 超过 |
| 无容器时的 `create_all`，1 个客户端 | 一对最简节点 {pair_rate 1} | 16/s | {alone_rate 1}：{share 1} | 不低于其 0.5 |
| 同上，8 个客户端 | 一对最简节点 {pair_rate 8} | 55/s | {alone_rate 8}：{share 8} | ≥ 0.5 |
| 同上，32 个客户端 | 一对最简节点 {pair_rate 32} | 53/s | {alone_rate 32}：{share 32} | ≥ 0.5 |
| 与 {tasks} 个任务的作业同时运行的三任务链 | 单独运行，{alone} | 4.9 | {beside} | ≤ 2 |
| 1、10、50、200 个独立任务时每个任务的时间 | – | 115、81、93、149 ms | {per_task 1}、{per_task 10}、{per_task 50}、{per_task 200}；200 个与 10 个之比 {growth 200} | ≤ 1.2 |
| 2、5、10 方的作业，其他各方在 20 ms 线路之后 | – | – | {line_job 2}、{line_job 5}、{line_job 10}；10 方与 2 方之比 {line_job_growth 10} | ≤ 1.5 |
| 其 `create_all` | – | – | {line_create 2}、{line_create 5}、{line_create 10}；10 方与 2 方之比 {line_create_growth 10} | ≤ 1.5 |
| 2、5、10 方的作业，所有节点共用这些核 | – | 135、259、543 ms | {here_job 2}、{here_job 5}、{here_job 10}；10 方与 2 方之比 {here_job_growth 10} | |
| 其 `create_all` | – | 30、43、101 ms | {here_create 2}、{here_create 5}、{here_create 10}；10 方与 2 方之比 {here_create_growth 10} | |
| 单任务作业的 futex 调用：调度节点、参与节点 | – | 285、107 | {scheduler_futex}、{participant_futex} | ≤ 300 |
| 其事务数（语句数） | – | 16、8 | {scheduler_transactions}、{participant_transactions}（{scheduler_statements}、{participant_statements}） | 更少 |
| 空闲节点，process 引擎 | FATE-Flow {fate_flow_memory}、{fate_flow_threads} 个线程 | 138 MiB、23 个线程 | {memory}、{threads} 个线程 | ≤ 100 MiB、≤ 12 |
| 空闲节点，docker 引擎 | | – | {docker_memory}、{docker_threads} 个线程 | |
| 64 MiB 从容器到容器 | 跳数相同、只转发的节点，{relay_rate 64 MiB} | – | {push_rate 64 MiB}：{push_share 64 MiB} | ≥ 0.8 |

| 两个节点上一个作业的总时长（Docker） | 轮询 | 回调 | 直接启动，桥接网络 | 直接启动，主机网络 | 与桥接之比 | 与主机网络之比 |
|---|---|---|---|---|---|---|
| 1 个任务 | {poll 1} | {callback 1} | {bare 1} | {host 1} | {ratio 1} | {to_host 1} |
| 3 个任务依次执行 | {poll 3} | {callback 3} | {bare 3} | {host 3} | {ratio 3} | {to_host 3} |
| 10 个任务依次执行 | {poll 10} | {callback 10} | {bare 10} | {host 10} | {ratio 10} | {to_host 10} |

| HTTP 通道：一个节点 push，另一个节点 pop | 中位数 | 速率 | 只转发的节点 | 占其比例 |
|---|---|---|---|---|
| 1 KiB | {push 1 KiB} | {push_rate 1 KiB} | {relay_rate 1 KiB} | {push_share 1 KiB} |
| 1 MiB | {push 1 MiB} | {push_rate 1 MiB} | {relay_rate 1 MiB} | {push_share 1 MiB} |
| 64 MiB | {push 64 MiB} | {push_rate 64 MiB} | {relay_rate 64 MiB} | {push_share 64 MiB} |

数据库中有 {ended} 个已结束作业时，作业用时为没有时的 {slower} 倍。两个网关之一被杀死后，另一个在 {failover} 至 {failover_worst} 后启动下一个任务。上传 {upload} 的表时，节点增长 {grown}。
""",
}
