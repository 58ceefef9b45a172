"""How messages with values, paths and several parts are translated into Chinese."""

import re

import pytest

from engines.base import MISSING_IMAGE_REMEDY
from gateway.cli import access
from gateway.cli.values import difference, translate_own
from gateway.language import catalogue
from gateway.language.catalogue import translate
from tests.cli.chinese import english_in
from tests.cli.test_chinese_output import run_command

# Names, ids and reasons in a text, which a translation keeps.
NAMES = re.compile(r"\bJG\d|\w+#\w+|[A-Z]+_[A-Z_]+")


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        (
            "  limits.foo: is not known here; known are a, b (got 1); did you mean bar?",
            "  limits.foo: 不是此处已知的名称；已知的有 a, b（实际为 1）；是否应为 bar？",
        ),
        ("x is odd (got 1)", "x is odd（实际为 1）"),
        (
            "a: must be unique in the flow (got 1); b: dataset c#d at JG2: x is odd; apply for it "
            "there (got 2)",
            "a: 在流程中必须唯一（实际为 1）；b: JG2 的数据集 c#d：x is odd；请向其申请（实际为 2）",
        ),
        (
            "must be an image that can be inspected"
            " (NO_DIGEST: the engine cannot tell this image from another with the same name)",
            "镜像必须能够检视（NO_DIGEST: 引擎无法区分该镜像与同名的其他镜像）",
        ),
        (
            "cannot listen on [::]:80: Address already in use; end what listens there, or change "
            "listen in n.yml",
            "无法监听 [::]:80：地址已被占用；请结束占用该地址的程序，或修改 n.yml 中的 listen",
        ),
        (
            "This job would fail: 1 problem, 11 warnings.",
            "该作业会失败：1 个问题，11 条警告。",
        ),
        (
            "No obstacle found, 1 wait, 2 warnings, 3 unknown: read them before you submit.",
            "未发现障碍，但有 1 项需等待，2 条警告，3 项未知，提交前请先查看。",
        ),
        ("1 dataset", "1 个数据集"),
        (
            "use of data#customers by JG2 approved until 2026-12-29",
            "已批准 JG2 使用 data#customers，有效至 2026-12-29",
        ),
        (
            "no job j-1 was submitted, is scheduled or runs here",
            "本节点没有提交、调度或运行作业 j-1",
        ),
        (
            "docker with gpu 2, and 1 further engine: far (swarm) has cpu 3, memory 8 GiB",
            "docker，gpu 2，另有 1 个引擎：far（swarm）有 cpu 3, memory 8 GiB",
        ),
        (
            "guest.0 reported it; guest.0, host.0 reported A, B",
            "guest.0 已报告；guest.0, host.0 报告了 A, B",
        ),
        ("a model reported it", "a model reported it"),
        (
            "JG1: a: is missing; did you mean b?; JG2: c: is missing",
            "JG1: a: 缺失；是否应为 b？JG2: c: 缺失",
        ),
        ("NOT_AUTHORISED: a#b: x; ask its admin", "NOT_AUTHORISED: a#b: x；请联系其管理员"),
        ("li at JG2 refused", "JG2 的 li 已拒绝"),
        (
            "job a has no run of b as c.0 here; c.0 plays at node N",
            "作业 a 的任务 b 没有以 c.0 在本节点运行；c.0 在节点 N 上",
        ),
        (
            "no run here matches; there are: --party a.0; b.0 plays at node N: run the command "
            "there",
            "本节点没有运行；现有：--party a.0；b.0 在节点 N 上，请在该节点执行此命令",
        ),
        (
            "JG2 at http://b:1 says, unproven: NOT_AUTHORISED: node JG1 has no enabled route here: "
            "ask the admin"
            " of JG2 for one; this answer is not proven to be its own: it is the answer to another "
            "request",
            "JG2（http://b:1）称（未经签名证实）：NOT_AUTHORISED: 本节点没有到 JG1 的启用路由：请联系 JG2 的"
            "管理员添加；无法证明该应答出自该节点：它是对另一请求的应答",
        ),
        ("t.csv cannot be read: No such file or directory", "无法读取 t.csv：没有该文件或目录"),
        (
            "JG9.host: is missing; give host and port, or url; JG9.port: is missing; give host and "
            "port, or url",
            "JG9.host: 缺失；请写明 host 与 port，或 url；JG9.port: 缺失；请写明 host 与 port，或 url",
        ),
        (
            "n.yml cannot be used (DATABASE_IN_USE):\n  n.yml:3: database.url: is in use by "
            "another gateway"
            " process; several of them need MariaDB or PostgreSQL (got 'x')",
            "n.yml 无法使用（DATABASE_IN_USE）：\n  n.yml:3: database.url: 正被另一个网关进程使用；"
            "多个网关须使用 MariaDB 或 PostgreSQL（实际为 'x'）",
        ),
        (
            "registered, but not here: a:1 (COMMAND_NOT_FOUND: the image a:1 is to run /x, which "
            "is not an"
            " executable here), for p:1@docker; b:1 (DAEMON_NOT_ALLOWED), for b:1@docker",
            "已注册但本机没有：a:1（COMMAND_NOT_FOUND: 镜像 a:1 要运行的 /x 在本机不是可执行程序），"
            "用于 p:1@docker；b:1（DAEMON_NOT_ALLOWED），用于 b:1@docker",
        ),
        ("storage +0.0 s, database -0.1 s", "与本机的时差：存储 +0.0 秒，数据库 -0.1 秒"),
        ("auc 0.9, loss of 2 rows", "auc 0.9, loss：2 行"),
        (
            "tee.platform: must suit all of provider acme and contract 3 with JG1 (got 'TDX')",
            "tee.platform: 须同时符合：算法提供商 acme、与 JG1 的合约 3（实际为 'TDX'）",
        ),
        (
            "for provider acme: Software; for contract 3 with JG1: SGX_DCAP",
            "算法提供商 acme：Software；与 JG1 的合约 3：SGX_DCAP",
        ),
        (
            "a: 缺失\nnext for INVALID: 按所列问题更正。",
            "a: 缺失\nINVALID 的下一步：按所列问题更正。",
        ),
        (
            "a#b is granted to JG2 until 2026-12-27 05:11 UTC",
            "a#b 已授权给 JG2，有效期至 2026-12-27 05:11 UTC",
        ),
        (
            "channel, topic t: 1 message, 84 bytes, the oldest for 0 s; guest.0 waiting",
            "通道主题 t：1 条消息，84 字节，最早的已等待 0 秒；guest.0 正在等待",
        ),
        (
            "trained by guest.0 at JG1, host.0 at JG2 in job-1",
            "由 JG1 的 guest.0，JG2 的 host.0 在 job-1 中训练",
        ),
        (
            "guest.0 asks for cpu 64, the engine of node JG1 has 2",
            "guest.0 申请 cpu 64，节点 JG1 的引擎 共有 2",
        ),
        (
            "newest head: line 9, signed t with k; 1 line after it",
            "最新链头：第 9 行，于 t 用 k 签名；其后有 1 行",
        ),
        (
            "JG2 at http://b:1 answers HTTP 429: JG1 sends more than 9 requests a minute",
            "JG2（http://b:1）返回 HTTP 429：JG1 每分钟的请求超过 9 个",
        ),
        ("JG2, institution bank", "JG2，机构 bank"),
        ("yes, where method.rsa or method.ecdh", "是，当 method.rsa or method.ecdh 时"),
        (": " * 9_000, ": " * 9_000),
        (
            "stopped by JG2, which has no time to say more",
            "stopped by JG2, which has no time to say more",
        ),
        (
            "dataset a#b is granted to 1000 nodes already",
            "dataset a#b is granted to 1000 nodes already",
        ),
        ("a partner wrote that it says: ok", "a partner wrote that it says: ok"),
        ("there is no clause foo; there are: starts", "没有条款 foo；可选的有：starts"),
    ],
)
def test_each_part_of_a_message_is_translated_and_its_values_stay(english, chinese):
    assert translate(english, "zh") == chinese


@pytest.mark.parametrize(
    "english",
    [
        "JG2: config.task_params.host.0.a.dataset_id: NOT_AUTHORISED: dataset demo#x is not at "
        "node JG2, or is not"
        " granted there to JG1, JG3; ask its admin (got 'demo#x')",
        "config.task_params.guest.0.a.dataset_id: NOT_AUTHORISED: dataset demo#x is not granted at "
        "node JG1:"
        " JG9 was"
        " never granted it; JG8 had it granted until 2026-11-27 02:52 UTC; ask its admin for a "
        "grant (got"
        " 'demo#x')",
        "JG1: NOT_AUTHORISED: output job-1#a of node JG1: JG2 was never granted it; its admin "
        "grants it by:"
        " bfia-gateway data grant 'job-1#a' JG2",
        "JG1: dag.components[0]: PROVIDER_UNKNOWN: no provider unionpay is registered; register it "
        "with:"
        " bfia-gateway provider register FILE (got 'unionpay:1.0.0/Intersection')",
        "dag.components[0]: VERSION_UNKNOWN: provider reference on docker has no version 9.9.9; it "
        "has 1.0.0"
        " (got 'x')",
        "dag.components[0]: COMPONENT_UNKNOWN: provider reference:1.0.0@docker has no component "
        "Sets; it has"
        " Intersection, HeteroLR (did you mean Intersection?) (got 'reference:1.0.0/Sets')",
        "dag.components[0]: PROVIDER_RETIRED: provider a:1@docker is retired: jobs that begin now "
        "cannot use it"
        " until an admin takes it back (bfia-gateway provider unretire); versions in use are 2, 3 "
        "(got 'a:1/B')",
        "config.a: DATASET_UNKNOWN: dataset a#b is not in this node's storage (got 'a#b')",
        "approval.rules[1]: approve changes nothing about a start, of which only a reject counts",
        "approval.rules[1]: approve changes nothing while approval.mode is off",
        "approval.rules[1]: approval.rules[0] comes first and matches all that it matches",
        "approval.rules[1]: write decide: reject or another command, or remove it; "
        "approval.rules[2]: put it"
        " before that rule, or remove it",
        "dagg: is not a field that this gateway knows; it is ignored (got 'an object'); did you "
        "mean dag?",
        "config.job_params.common.computing_engine: ENGINE_NOT_HERE: Spark is the business of a "
        "vendor's"
        " image, which"
        " may bring it along; this gateway starts containers (or processes in their place) and no "
        "computing engine"
        " (got 'spark')",
        "JG3: RESOURCES_BUSY: needs memory 8 GiB on node JG3, free memory 4 GiB",
        "one task at a time needs cpu 99 (guest.0), node JG1 has cpu 2, of which one job may hold "
        "cpu 1",
        "node: there is no route to JG9: no node of that id is known here; did you mean JG8? Add "
        "its route,"
        " or force"
        " it (got 'JG9')",
        "exit code 127; the program to run was not found: one that the image does not have, such "
        "as the interpreter in a script's first line or the program behind env",
        "exit code 137 by signal 9 after it reported RUNNING; its memory is limited, and programs "
        "that get no more memory often end in this way",
        "old_job_id: task a is not inherited: the parameters of guest.0 differ: b, c",
        "its outputs are needed: version 1 of model m: job-1#out. Delete first what refers to "
        "them, jobs by"
        " `bfia-gateway job delete`, models by `bfia-gateway model delete` (see `model list`), or "
        "keep this job",
        "file:3: must be UTF-8 text, byte 3 is not; if it is in another encoding, name it: data "
        "upload --encoding"
        " (meta.encoding), one of gbk, big5 (got b'2')",
        "file: 3 more of this kind: repeated ids, in lines 5, 10, 17",
        "what guest.0 in task a wrote takes 2 GiB of disk, it may take 1 GiB of disk "
        "(resources.disk)",
        "host.0 in task a made more than 1000 files and folders",
        "the container of host.0 in task a was taken off its network and reaches no other party",
        "RUN_TOKEN_REQUIRED: x-ptp-token is missing: send the value of config.token",
        "the provider name a belongs to this node's admins, not to li; an admin can give it:"
        " bfia-gateway provider give",
        "place: must lie in one of this node's storages: the folder file:///srv; to add it, write "
        "in node.yml"
        " storages: {other: {url: s3://HOST:PORT/other, username: ACCESS_KEY, password_file: "
        "FILE}} (got 's3://a/b')",
        "name the calling node in the header x-source-node-id: no node that may call has a route "
        "of profile"
        " fate-partner here",
        "--command: 'a.py' is in /srv, and the program is started in a folder of its own; write "
        "/srv/a.py",
        "no component that is checked reads data of arbiter; there are roles guest, host and "
        "inputs none",
        "IMAGE_NOT_FOUND: the container engine has no image a:1; at JG2: " + MISSING_IMAGE_REMEDY,
    ],
)
def test_a_refusal_is_not_partly_english(english):
    chinese = translate(english, "zh")

    assert english_in(english) == []
    assert "; " not in chinese
    assert not re.search(r"(?<!\w)at JG", chinese)
    # within Chinese, a name has no word boundary before it
    names_in_chinese = re.findall(r"JG\d|\w+#\w+|[A-Z]+_[A-Z_]+", chinese)
    assert set(NAMES.findall(english)) <= set(names_in_chinese)


def test_the_problems_of_the_health_check_are_translated():
    body = {"checks": {"routes": {"problems": ["JG9.url: is missing"]}}}
    translated = catalogue.of_texts(body, "zh")
    assert translated["checks"]["routes"]["problems"] == ["JG9.url: 缺失"]


# ---------------------------------------------------------------- texts of users


@pytest.mark.parametrize("text", ["{0.__class__}; {x!r}\n" * 200, "must not hold \ud800"])
def test_the_text_of_a_user_is_never_a_template(text):
    assert translate(text, "zh") == text


def test_a_template_in_an_option_is_printed_as_it_is(tmp_path):
    export = ["model", "export", "m", "1", "-o", str(tmp_path), "--url", "http://127.0.0.1:9"]
    refused = run_command("--lang", "zh", *export)
    assert refused.returncode == 2
    assert str(tmp_path) in refused.stderr

    url = "http://127.0.0.1:9/{0.__class__}"
    unreachable = run_command("--lang", "zh", "job", "list", "--url", url)
    assert "{0.__class__}" in unreachable.stderr
    assert "没有应答" in unreachable.stderr


# ---------------------------------------------------------------- the audit


@pytest.fixture
def chinese_commands(use_language) -> None:
    """Let commands in this process print Chinese."""
    use_language("zh")


def test_the_audit_names_an_action_once(chinese_commands):
    entry = {"action": "token revoke", "in_words": "撤销令牌"}
    assert access._action(entry) == "撤销令牌"


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ("somebody", "未认证用户"),
        ("storage", "storage"),
        ("application 2", "申请 2"),
        ("application for li", "application for li"),
        ("root (command line)", "root（命令行）"),
    ],
)
def test_the_audit_translates_no_name(chinese_commands, who, expected):
    assert translate_own(who) == expected


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("an object with 3 fields", "a: 含 3 个字段的对象 → –"),
        ("yes", 'a: "yes" → –'),
    ],
)
def test_a_difference_translates_only_the_words_of_the_gateway(chinese_commands, before, expected):
    change = {
        "path": "a",
        "before": before,
        "after": None,
    }
    assert difference(change) == expected
