"""Help, messages and refusals in Chinese for who asks for it, and in English for everybody else."""

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from string import Formatter

import pytest
import yaml

from adapter.bfia import route_check
from engines.base import HOW_TO_HAVE_IT, EngineError
from examples.demo.nodes import NAMES
from examples.demo.training import DATA_DESCRIPTIONS
from gateway.bootstrap.node import Gateway
from gateway.cli import access
from gateway.cli.language import paragraphs, requested_language
from gateway.cli.tables import NEXT_STEPS, print_steps, table
from gateway.cli.values import difference, translate_own
from gateway.config.loader import load
from gateway.conformance.clauses import CLAUSES
from gateway.diagnostics import doctor
from gateway.domain.dry_run import CHECKS
from gateway.domain.events import NAME_OF
from gateway.domain.scheduling import messages
from gateway.domain.states import JOB, RUN, TASK, Outcome
from gateway.errors import GatewayError
from gateway.identity.audit_chain import HEAD
from gateway.language import catalogue
from gateway.runtime.trials import Result
from provider_registry.registry import Action
from tests.cli import everything
from tests.console import words
from tests.e2e.nodes import ROOT
from tests.inprocess import ask, running

ENTRIES = catalogue.entries_of("zh.yml")
PRODUCT = "gateway adapter engines provider_registry route_table"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "gateway.cli.main", *words]
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "BFIA_"))}
    return subprocess.run(
        line,
        cwd=ROOT,
        env=plain | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def check_chinese(texts: Iterable[str]) -> None:
    lacking = {one: left for one in texts if (left := english_in(one))}
    assert lacking == {}, f"gateway/language/zh.yml has no Chinese for {lacking}: add it"


def english_in(text: str) -> list[str]:
    """Return the English that is left in a text's Chinese; what was found and commands stay."""
    chinese = re.sub("（实际为 .*?）|`.*?`|\".*?\"|'.*?'", "", catalogue.translate(text, "zh"))
    kept = (
        r"register FILE|data upload --encoding|data grant|provider register|bfia-gateway( [a-z]+)+"
    )
    left = re.findall("[a-z]{2,} [a-z]{2,} [a-z]{2,}", re.sub(kept, "", chinese))
    return left if re.search("[\u4e00-\u9fff]", chinese) else [chinese]


def helps() -> Iterator[str]:
    for one in everything().values():
        for text in (one.help, one.epilog):
            yield from filter(None, paragraphs(text or ""))
        yield from filter(None, (getattr(parameter, "help", None) for parameter in one.params))


def test_every_help_text_is_there_in_chinese():
    wanted = set(helps())
    assert len(wanted) > 250
    check_chinese(wanted)


def test_a_translation_has_the_values_of_its_english_text():
    lines = (ROOT / "gateway/language/zh.yml").read_text(encoding="utf-8").splitlines()
    assert len(ENTRIES) == sum(line.startswith(('"', "'")) for line in lines), (
        "a text is there twice"
    )
    for english, chinese in ENTRIES.items():
        names = [
            {name for _, name, *_ in Formatter().parse(text) if name} for text in (english, chinese)
        ]
        assert names[0] == names[1], english
        assert not re.search("[\u4e00-\u9fff][,;?!]", chinese), f"{english}: ASCII punctuation"
        assert not re.search("[A-Z]_[A-Z]+：", chinese), (
            f"{english}: a reason is followed by an ASCII colon"
        )
        first = re.match(r"\{[a-z]\w*\}: ", english)
        assert not first or not chinese.startswith(f"{first[0][:-2]}："), (
            f"{english}: so is the name of a thing"
        )
        values = {
            name: "a.0" if name == "party" else "at 9" if name[0].isupper() else "9"
            for name in names[0]
        }
        twice = catalogue.translate(catalogue.translate(english.format_map(values), "zh"), "zh")
        assert not re.search(r"[a-z_]\.[a-z_.]+：[\w\"]", twice, re.ASCII), (
            "a setting has a colon of ASCII"
        )


def test_the_language_is_that_of_the_option_else_of_the_environment():
    for environment in ({"LANG": "zh_CN.UTF-8"}, {"LC_ALL": "zh_CN.UTF-8", "LANG": "en_GB.UTF-8"}):
        shown = run("--help", **environment).stdout
        assert "运行一个节点" in shown
        assert "显示本帮助并退出" in shown
    shown = run("job", "list", "--help", LANG="zh_CN.UTF-8").stdout
    assert "默认：" in shown
    assert "环境变量：" in shown
    assert "[default" not in shown
    for given, environment in (
        ([], {}),
        (["--lang", "en"], {"LANG": "zh_CN.UTF-8"}),
        ([], {"LANG": "de_DE"}),
    ):
        shown = run(*given, "job", "list", "--help", **environment).stdout
        assert "Show this message and exit" in shown
        assert not re.search("[\u4e00-\u9fff]", shown)
    assert [
        requested_language(w) for w in (["--lang=zh", "x"], ["--lang", "zh"], ["x", "--lang", "zh"])
    ] == [
        "zh",
        "zh",
        "en",
    ]


ALL_HELPS = """
import sys, typer
from click.testing import CliRunner
from gateway.cli.language import set_language, translated
from gateway.cli.main import app
from tests.cli import everything
set_language(sys.argv[1])
program = translated(typer.main.get_command(app))
for words in everything(program):
    print(CliRunner().invoke(program, [*words.split(), "--help"]).output)
"""


@pytest.mark.parametrize("language", ["en", "zh"])
def test_help_is_folded_in_80_columns_and_never_cut(language):
    line = [sys.executable, "-c", ALL_HELPS, language]
    environment = {k: v for k, v in os.environ.items() if k != "FORCE_COLOR"} | {"COLUMNS": "80"}
    shown = subprocess.run(
        line,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.count("--help") > 90
    assert ("用法" in shown) is (language == "zh")
    assert re.findall(r".*…[ │]*$", shown, re.M) == []


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("node")) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("accepted", "chinese"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", True),
        ("zh", True),
        ("en-GB,zh;q=0.5", False),
        ("", False),
        (";q=x,,zh;q=", True),
    ],
)
def test_a_refusal_is_in_the_language_that_is_liked_best(node, accepted, chinese):
    answer = ask(
        node, "operator", "GET", "/api/v1/jobs/none", headers={"accept-language": accepted}
    )
    body = answer.json()
    assert answer.status_code == 404
    assert body["data"]["reason"] == "JOB_UNKNOWN"
    assert body["msg"].startswith("JOB_UNKNOWN: ")
    assert bool(re.search("[\u4e00-\u9fff]", body["msg"])) is chinese
    if chinese:
        reason = catalogue.reasons()["JOB_UNKNOWN"]
        assert reason.means["zh"] in body["msg"]
        assert reason.next_step["zh"] in body["msg"]
        assert "none" in body["msg"]
    route = {"route": {"url": "ftp://x"}}
    answer = ask(
        node,
        "operator",
        "PUT",
        "/api/v1/routes/JG2",
        json=route,
        headers={"accept-language": accepted},
    )
    rules = [one["rule"] for one in answer.json()["data"]["problems"]]
    assert rules == [
        "必须以下列之一开头：http://, https://"
        if chinese
        else "must begin with one of http://, https://"
    ]


def test_texts_in_an_answer_are_in_the_readers_language_and_states_are_not(node):
    found = [
        ask(node, "operator", "GET", "/api/v1/engine", headers={"accept-language": of}).json()
        for of in ("zh", "en")
    ]
    gaps = [one["isolation"]["gaps"][0] for one in found]
    assert "不做任何隔离" in gaps[0]
    assert "keeps nothing apart" in gaps[1]
    assert [(one["kind"], one["answers"]) for one in found] == [("process", True)] * 2
    refused = {
        "checks": {"routes": {"problems": ["JG9.url: is missing"]}}
    }  # as /health/ready has it
    assert catalogue.of_texts(refused, "zh")["checks"]["routes"]["problems"] == ["JG9.url: 缺失"]
    for of, word in (("zh-CN", "没有路由到达节点"), ("", "has no route")):
        answer = ask(
            node, "operator", "POST", "/api/v1/routes/NONE/test", headers={"accept-language": of}
        ).json()
        assert [s["result"] for s in answer["steps"][:2]] == [
            "failed",
            "skipped",
        ]
        assert word in answer["steps"][0]["cause"]


def test_an_audit_entry_says_what_was_requested_in_words(node):
    ask(node, "operator", "POST", "/api/v1/undrain")
    for language, meant in (("zh", "恢复接受新作业"), ("en", "Take new jobs again")):
        accepted = {"accept-language": language}
        answer = ask(node, "operator", "GET", "/api/v1/audit", headers=accepted).json()
        newest = answer["audit"][0]
        assert newest["action"] == "POST /api/v1/undrain"
        assert newest["in_words"] == meant
        for text in ("/undrain", meant[:4]):
            found = ask(
                node, "operator", "GET", "/api/v1/audit", params={"action": text}, headers=accepted
            ).json()
            assert {one["in_words"] for one in found["audit"]} == {meant}


def test_the_audit_names_an_action_once_and_translates_no_name(monkeypatch):
    monkeypatch.setattr("gateway.cli.language._chosen", ["zh"])
    assert access._action({"action": "token revoke", "in_words": "撤销令牌"}) == "撤销令牌"
    assert [translate_own(who) for who in ("somebody", "storage", "root (command line)")] == [
        "未认证用户",
        "storage",
        "root（命令行）",
    ]
    shown = [
        difference(
            {
                "path": "a",
                "before": one,
                "after": None,
            }
        )
        for one in ("an object with 3 fields", "yes")
    ]
    assert shown == ["a: 含 3 个字段的对象 → –", 'a: "yes" → –']


def test_what_a_user_wrote_is_never_taken_for_a_template(tmp_path):
    hostile = "{0.__class__}; {x!r}\n" * 200
    for one in (hostile, "must not hold \ud800"):
        assert catalogue.translate(one, "zh") == one
    refused = run(
        "--lang",
        "zh",
        "model",
        "export",
        "m",
        "1",
        "-o",
        str(tmp_path),
        "--url",
        "http://127.0.0.1:9",
    )
    assert refused.returncode == 2
    assert str(tmp_path) in refused.stderr
    away = run("--lang", "zh", "job", "list", "--url", "http://127.0.0.1:9/{0.__class__}")
    assert "{0.__class__}" in away.stderr
    assert "没有应答" in away.stderr


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        (
            "  limits.foo: is not known here; known are a, b (got 1); did you mean bar?",
            "  limits.foo: 不是此处已知的名称；已知的有 a, b（实际为 1）；是否应为 bar？",
        ),
        ("x is odd (got 1)", "x is odd（实际为 1）"),
        (
            "a: must be unique in the flow (got 1); b: dataset c#d at JG2: x is odd; apply for it there (got 2)",
            "a: 在流程中必须唯一（实际为 1）；b: JG2 的数据集 c#d：x is odd；请向其申请（实际为 2）",
        ),
        (
            "must be an image that can be inspected"
            " (NO_DIGEST: the engine cannot tell this image from another with the same name)",
            "镜像必须能够检视（NO_DIGEST: 引擎无法区分该镜像与同名的其他镜像）",
        ),
        (
            "cannot listen on [::]:80: Address already in use; end what listens there, or change listen in n.yml",
            "无法监听 [::]:80：地址已被占用；请结束占用该地址的程序，或修改 n.yml 中的 listen",
        ),
        ("the job would fail (1 in the way, 11 to look at)", "作业会失败（1 项障碍，11 项需注意）"),
        ("1 dataset", "1 个数据集"),
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
            "no run here matches; there are: --party a.0; b.0 plays at node N: run the command there",
            "本节点没有运行；现有：--party a.0；b.0 在节点 N 上，请在该节点执行此命令",
        ),
        (
            "JG2 at http://b:1 says, unproven: NOT_AUTHORISED: node JG1 has no enabled route here: ask the admin"
            " of JG2 for one; this answer is not proven to be its own: it is the answer to another request",
            "JG2（http://b:1）称（未经签名证实）：NOT_AUTHORISED: 本节点没有到 JG1 的启用路由：请联系 JG2 的"
            "管理员添加；无法证明该应答出自该节点：它是对另一请求的应答",
        ),
        ("t.csv cannot be read: No such file or directory", "无法读取 t.csv：没有该文件或目录"),
        (
            "JG9.host: is missing; give host and port, or url; JG9.port: is missing; give host and port, or url",
            "JG9.host: 缺失；请写明 host 与 port，或 url；JG9.port: 缺失；请写明 host 与 port，或 url",
        ),
        (
            "n.yml cannot be used (DATABASE_IN_USE):\n  n.yml:3: database.url: is in use by another gateway"
            " process; several of them need mysql+pymysql://… (got 'x')",
            "n.yml 无法使用（DATABASE_IN_USE）：\n  n.yml:3: database.url: 正被另一个网关进程使用；"
            "多个网关须使用 mysql+pymysql://…（实际为 'x'）",
        ),
        (
            "registered, but not here: a:1 (COMMAND_NOT_FOUND: the image a:1 is to run /x, which is not an"
            " executable here), for p:1@docker; b:1 (DAEMON_NOT_ALLOWED), for b:1@docker",
            "已注册但本机没有：a:1（COMMAND_NOT_FOUND: 镜像 a:1 要运行的 /x 在本机不是可执行程序），"
            "用于 p:1@docker；b:1（DAEMON_NOT_ALLOWED），用于 b:1@docker",
        ),
        ("storage +0.0 s, database -0.1 s", "与本机的时差：存储 +0.0 秒，数据库 -0.1 秒"),
        ("auc 0.9, loss of 2 rows", "auc 0.9, loss：2 行"),
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
def test_a_rule_is_translated_behind_its_path_and_a_count_is_a_number(english, chinese):
    assert catalogue.translate(english, "zh") == chinese


def test_chinese_pages_use_one_word_per_term_and_the_screens_step_names():
    pages = [
        file
        for folder in ("", "docs", "compose", "examples")
        for file in (ROOT / folder).glob("*.zh-CN.md")
    ]
    texts = {file.name: file.read_text(encoding="utf-8") for file in pages}
    texts |= {
        f"{name}.yml": str(catalogue.entries_of(f"{name}.yml"))
        for name in ("zh", "settings", "reasons")
    }
    steps = "|".join({*doctor.STEPS, *route_check.STEPS})
    other = f"中继|中转|任务流|原地注册|文件夹|凭据|审计日志|作业审计|你|步骤 `({steps})`|`({steps})` ?(一步|步骤)"
    assert {
        name: found[0] for name, text in texts.items() if (found := re.search(other, text))
    } == {}
    said = {
        name: re.findall(r"对端(?!节点|口)", text) for name, text in texts.items() if ".yml" in name
    }
    assert not any(said.values()), said


def test_check_results_advice_and_empty_lists_exist_in_chinese():
    seen = re.findall(
        r'\b(?:ok|not_shown)\("([^"]{4,})"',
        (ROOT / "gateway/conformance/clauses.py").read_text(encoding="utf-8"),
    )
    texts = [*seen, *(clause.remedy for clause in CLAUSES), *NEXT_STEPS.values()]
    assert len(texts) > 50
    check_chinese(texts)
    page = (ROOT / "docs/conformance.zh-CN.md").read_text(encoding="utf-8").replace("&lt;", "<")
    assert [c.name for c in CLAUSES if catalogue.translate(c.remedy, "zh") not in page] == []


@cache
def trees(rooms: str) -> list[ast.Module]:
    """Return the modules below some rooms."""
    files = sorted(file for room in rooms.split() for file in (ROOT / room).rglob("*.py"))
    return [ast.parse(file.read_text(encoding="utf-8")) for file in files]


@cache
def calls_in(rooms: str) -> list[tuple[str, ast.Call, dict[str, list[ast.expr]]]]:
    """Return the calls below some rooms: the name, the call, and what has a name in the function before it."""
    found = []
    for tree in trees(rooms):
        functions = [
            one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for scope in (tree, *functions):
            named: dict[str, list[ast.expr]] = {}
            inside = list(ast.walk(scope))
            for one in inside:
                if (
                    isinstance(one, ast.Assign)
                    and isinstance(one.targets[0], ast.Name)
                    and scope is not tree
                ):
                    named.setdefault(one.targets[0].id, []).append(one.value)
            for one in inside:
                if isinstance(one, ast.Call):
                    found.append(
                        (getattr(one.func, "id", getattr(one.func, "attr", "")), one, named)
                    )
    return found


def texts_of(
    rooms: str,
    calls: set[str],
    at: int,
    words: int,
) -> list[str]:
    """Return the texts of calls below some rooms that have more than so many words; a value in them is a 9.

    Also those that have a name in the function before they are said.
    """
    texts: list[str] = []
    for name, call, assigned in calls_in(rooms):
        if name not in calls or len(call.args) <= at:
            continue
        argument = call.args[at]
        expressions = [argument]
        if isinstance(argument, ast.Name):
            expressions = assigned.get(argument.id, [])
        for expression in expressions:
            texts += _forms(expression)
    return [text for text in dict.fromkeys(texts) if len(re.findall("[a-z]{2,}", text)) > words]


def _forms(expression: ast.expr) -> Iterator[str]:
    """Yield the text of an expression, or both texts of a conditional one."""
    if isinstance(expression, ast.IfExp):
        yield text_of(expression.body)
        yield text_of(expression.orelse)
    else:
        yield text_of(expression)


def text_of(expression: ast.expr) -> str:
    """Return a text of the code; a value in it is a 9."""
    parts = expression.values if isinstance(expression, ast.JoinedStr) else [expression]
    return "".join(str(p.value) if isinstance(p, ast.Constant) else "9" for p in parts)


def named_rules(rooms: str) -> Iterator[str]:
    """Yield the texts below some rooms that are called ``rule`` before they become part of a problem."""
    for tree in trees(rooms):
        for one in ast.walk(tree):
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "rule":
                yield text_of(one.value)


GO_ON = (
    "FORMAT_MISMATCH: ",
    "STORAGE_MISMATCH: ",
    "cannot be a folder: ",
    "user 9 cannot make it in ",
)
GO_ON += ("has no counterpart among ", "stands for the newest version that ", "must be 9 text, ")
GO_ON += (
    "no component that is checked reads data of ",
    "--command: 9 is in ",
    "warning: 9: give it an id ",
)
GO_ON += (
    "must be UTF-8 text, ",
    "must be the only dataset of 9: ",
    "must have namespace and name for 9: ",
)
"""how rules begin whose end, or whose party, stands elsewhere"""


def test_every_message_rule_and_refusal_is_there_in_chinese():
    """Those whose words are all values, such as a name and a time, need none."""
    rules = {
        *texts_of(PRODUCT, {"Problem", "problem", "_problem"}, 1, 2),
        *texts_of(PRODUCT, {"Unusable"}, 0, 1),
    }
    rules |= {*texts_of("gateway/config", {"ValueError"}, 0, 2)}
    rules |= {rule for rule in named_rules(PRODUCT) if len(re.findall("[a-z]{2,}", rule)) > 2}
    wanted = {*texts_of("gateway/cli", {"say", "CallFailed", "NotFit"}, 0, 3), *rules}
    wanted |= {
        *texts_of("examples/demo", {"_show"}, 1, 0),
        *texts_of("examples/demo", {"DemoFailed", "t"}, 0, 0),
    }
    wanted |= {
        *NAMES.values(),
        *DATA_DESCRIPTIONS.values(),
        *texts_of("gateway/identity", {"_report"}, 0, 2),
    }
    wanted |= {
        *texts_of(PRODUCT, {*errors(GatewayError), *errors(EngineError)}, 0, 2),
        *whole_rules(),
    }
    wanted |= {*texts_of(PRODUCT, {"Failure"}, 1, 1), *texts_of("adapter/bfia", {"Refused"}, 1, 2)}
    wanted |= {
        case["rule"]
        for case in json.loads((ROOT / "tests/registry/broken.json").read_text())["broken"]
    }
    for schema in (ROOT / "provider_registry/schemas").iterdir():
        wanted |= {json.loads(rule) for rule in re.findall(r'"x-rule": (".*")', schema.read_text())}
    assert len(wanted) > 460
    assert wanted >= PUT_TOGETHER
    check_chinese(one for one in wanted - PUT_TOGETHER if not one.startswith(GO_ON))
    for rule in {one for one in rules - PUT_TOGETHER if not one.startswith(GO_ON)}:
        behind = catalogue.translate(f"config.a: {rule} (got 'b')", "zh")
        expected = f"config.a: {catalogue.translate(rule, 'zh')}（实际为 'b'）"
        assert behind.replace("：", ": ") == expected.replace("：", ": ")


def phrases(value: ast.expr, names: dict[str, ast.expr]) -> list[str]:
    """Return the texts that stand in the code for a value of a text."""
    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr():
            return ["".join((phrases(p, names) or [text_of(p)])[-1] for p in value.values)]
        case ast.FormattedValue():
            return phrases(value.value, names)
        case ast.IfExp():
            return [*phrases(value.body, names), *phrases(value.orelse, names)]
        case ast.BoolOp(op=ast.Or()):
            return phrases(value.values[-1], names)
        case ast.Call(
            func=ast.Name(id="counted"), args=[_, ast.Constant(value=str(one)), *several]
        ):
            return [f"1 {one}", f"9 {ast.literal_eval(several[0]) if several else f'{one}s'}"]
        case ast.Name(id=name) if name in names:
            return phrases(names[name], {k: v for k, v in names.items() if k != name})
    return []


def texts_with_phrases(rooms: str) -> Iterator[tuple[str, str]]:
    """Yield each text with a value that is a text too, and that one; others are a 9, or left out."""
    for tree in trees(rooms):
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            inside = list(ast.walk(function))
            stored = Counter(
                n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            )
            given = {
                ast.unparse(n.targets[0]): n.value for n in inside if isinstance(n, ast.Assign)
            }
            names = {name: value for name, value in given.items() if stored[name] == 1}
            for text in (one for one in inside if isinstance(one, ast.JoinedStr)):
                told = [
                    phrases(p, names) if isinstance(p, ast.FormattedValue) else []
                    for p in text.values
                ]
                parts = [
                    "" if "" in of else text_of(p) for p, of in zip(text.values, told, strict=True)
                ]
                for at, of in enumerate(told):
                    yield from (
                        ("".join([*parts[:at], phrase, *parts[at + 1 :]]), phrase) for phrase in of
                    )


def test_a_text_in_a_translated_text_is_translated_too():
    left = set()
    for text, phrase in texts_with_phrases(
        "gateway adapter/bfia engines provider_registry route_table"
    ):
        chinese = catalogue.translate(text, "zh")
        words = re.search(
            "[a-z]{3,}", re.sub(r"\w+[._]\w+|spec|fate|bfia-gateway .*", "", phrase)
        )  # not names
        if words and re.search("[\u4e00-\u9fff]", chinese) and phrase.strip(" ;,") in chinese:
            left.add((text, phrase, chinese))
    assert left == set()


PUT_TOGETHER = {"9; its run is 9", "its outputs are needed: 9. 9", "9 fate-partner here"}
PUT_TOGETHER |= {"what 9 wrote takes 9 of disk, 9", "9 made more than 9 files and folders"}
PUT_TOGETHER |= {"9 made folders in folders too deep to be measured; 9"}
PUT_TOGETHER |= {"9 was taken off its network and reaches no other party"}
PUT_TOGETHER |= {"RUN_TOKEN_REQUIRED: 9: send the value of config.token"}
PUT_TOGETHER |= {"must lie in one of this node's storages: 9the folder file://9; 9"}
PUT_TOGETHER |= {"9: if the partner says so by telephone, edit the route and decide again"}
PUT_TOGETHER |= {
    "must be 9",
    "must be 9 text, byte 9 is not; 9",
    "must be UTF-8 text, this looks like UTF-16; 9",
}
"""texts that are found with what stands in them"""


_LOGS = {"debug", "info", "warning", "error", "exception"}
_PARTS = r"""(9: |9; |, |: |; | )|send it as|the next page|of \{\}|The keys of an entry|.* ends before byte
(9\s)?put back|no component that is checked|--command: |last lines of|warning: 9: give|The Swarm's
.*\[9 bytes left out|has more than|pip install|must be (UTF-8|9) text|if it is in another|user 9 cannot make
cannot be a folder|.*had it granted until|task 9 as 9 reported the status 9, which is none|has no counterpart
the storage has 9 free|.*inside the gateway; it is|.*in version 9 of the route table|.*whose entry is disabled
use scheme http|has no component|SM2 needs|this node has 9|9 is published for|9 would be removed
the route of 9 has|.*did not decide on the job, submitted for|the route to node 9|node 9 has no route 9
job 9 waits until|.*which answers in the place of 9($|:| does not)|Delete first|this path knows 9
must have namespace and name for|must be the only dataset of|has other routes than the gateway
when it was stopped, 9|9 and inputs|9 does not report the state|FATE gives a job|FORMAT_MISMATCH:
free 9, borrowed|has no version|the job's pool|is not a party|its outputs are needed|plays at node
the container of 9 in task 9|9 says, unproven|node \(none named\)$"""
"""how texts begin that are only a part of another, or that no person reads"""


def put_together() -> Iterator[str]:
    """Yield the texts of the product that have values, or parts, wherever they stand, except in log lines."""
    checked = (
        "conformance",
        "management",
    )  # those of clauses and of endpoints are checked above and below
    for file in (one for room in PRODUCT.split() for one in sorted((ROOT / room).rglob("*.py"))):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = [
            one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        constants = [one.value for one in tree.body if isinstance(one, ast.Assign)]
        for scope in [*functions, *constants] if file.parent.name not in checked else []:
            inside = list(ast.walk(scope))
            stored = Counter(
                n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            )
            given = {
                ast.unparse(n.targets[0]): n.value for n in inside if isinstance(n, ast.Assign)
            }
            names = {name: value for name, value in given.items() if stored[name] == 1}
            left = {
                id(inner) for one in inside if _is_for_no_person(one) for inner in ast.walk(one)
            }
            for text in (
                one
                for one in inside
                if isinstance(one, ast.BinOp | ast.JoinedStr) or one in constants
            ):
                if id(text) not in left:
                    parts = [
                        n.id for n in ast.walk(text) if isinstance(n, ast.Name) and n.id in names
                    ]
                    left |= {
                        id(inner)
                        for part in [text, *map(names.get, parts)]
                        for inner in ast.walk(part)
                    }
                    yield from _all_forms(text, names)


def _is_for_no_person(one: ast.AST) -> bool:
    logged = (
        isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in _LOGS
    )
    return logged or (isinstance(one, ast.keyword) and one.arg in ("description", "summary"))


def _all_forms(given: ast.AST, names: dict[str, ast.expr]) -> list[str]:
    """Return every text that an expression may be; a value that is known only later is a 9."""
    match given:
        case ast.BinOp(op=ast.Add()):
            parts: list[ast.expr] = [given.left, given.right]
        case ast.JoinedStr():
            parts = given.values
        case ast.Name(id=name) if name in names:
            return _all_forms(names[name], {k: v for k, v in names.items() if k != name})
        case ast.IfExp():
            return [*_all_forms(given.body, names), *_all_forms(given.orelse, names)]
        case ast.FormattedValue():
            return _all_forms(given.value, names)
        case _:
            return phrases(given, {})[-1:] if isinstance(given, ast.expr) else []
    found = [""]
    for part in parts:
        found = [before + text for before in found for text in _all_forms(part, names) or ["9"]][
            :16
        ]
    return found


def test_a_text_with_a_value_is_there_in_chinese_wherever_it_stands():
    words = re.compile(r"(?<![\w./-])[a-z]{2,}(?![\w(.=/-])")
    parts = re.compile("|".join(_PARTS.split("\n")))
    found = {one for one in put_together() if len(words.findall(one)) > 2 and not parts.match(one)}
    values = ("9", "guest.0", "JG2", "9 files", "engine x", "must be a number")
    lacking = {t for t in found if re.search("[a-z]{2,} [a-z]{2,}", t) and english_in(t)}
    for value in values:
        lacking = {
            t
            for t in lacking
            if english_in(t.replace("9", value)) and english_in(t.replace("9", value, 1))
        }
    assert len(found) > 600
    assert lacking == set(), "gateway/language/zh.yml has no Chinese for them: add it"


def whole_rules() -> set[str]:
    """Return the product's texts that begin with ``must``; a value in them is a 9."""
    found = set()
    for tree in trees(PRODUCT):
        inner = {
            id(part)
            for one in ast.walk(tree)
            if isinstance(one, ast.JoinedStr)
            for part in one.values
        }
        texts = (
            text_of(one)
            for one in ast.walk(tree)
            if isinstance(one, ast.expr) and id(one) not in inner
        )
        found |= {text.replace("{}", "9") for text in texts if text.startswith("must ")}
    return found


def errors(kind: type) -> Iterator[str]:
    """Yield the names of an error and of those derived from it."""
    yield kind.__name__
    for one in kind.__subclasses__():
        yield from errors(one)


@pytest.mark.parametrize(
    "english",
    [
        "JG2: config.task_params.host.0.a.dataset_id: NOT_AUTHORISED: dataset demo#x is not at node JG2, or is not"
        " granted there to JG1, JG3; ask its admin (got 'demo#x')",
        "config.task_params.guest.0.a.dataset_id: NOT_AUTHORISED: dataset demo#x is not granted at node JG1:"
        " JG9 was"
        " never granted it; JG8 had it granted until 2026-11-27 02:52 UTC; ask its admin for a grant (got"
        " 'demo#x')",
        "JG1: NOT_AUTHORISED: output job-1#a of node JG1: JG2 was never granted it; its admin grants it by:"
        " bfia-gateway data grant 'job-1#a' JG2",
        "JG1: dag.components[0]: PROVIDER_UNKNOWN: no provider unionpay is registered; register it with:"
        " bfia-gateway provider register FILE (got 'unionpay:1.0.0/Intersection')",
        "dag.components[0]: VERSION_UNKNOWN: provider reference on docker has no version 9.9.9; it has 1.0.0"
        " (got 'x')",
        "dag.components[0]: COMPONENT_UNKNOWN: provider reference:1.0.0@docker has no component Sets; it has"
        " Intersection, HeteroLR (did you mean Intersection?) (got 'reference:1.0.0/Sets')",
        "dag.components[0]: PROVIDER_RETIRED: provider a:1@docker is retired: jobs that begin now cannot use it"
        " until an admin takes it back (bfia-gateway provider unretire); versions in use are 2, 3 (got 'a:1/B')",
        "config.a: DATASET_UNKNOWN: dataset a#b is not in this node's storage (got 'a#b')",
        "approval.rules[1]: approve changes nothing about a start, of which only a reject counts",
        "approval.rules[1]: approve changes nothing while approval.mode is off",
        "approval.rules[1]: approval.rules[0] comes first and matches all that it matches",
        "approval.rules[1]: write decide: reject or another command, or remove it; approval.rules[2]: put it"
        " before that rule, or remove it",
        "dagg: is not a field that this gateway knows; it is ignored (got 'an object'); did you mean dag?",
        "config.job_params.common.computing_engine: ENGINE_NOT_HERE: Spark is the business of a vendor's"
        " image, which"
        " may bring it along; this gateway starts containers (or processes in their place) and no computing engine"
        " (got 'spark')",
        "JG3: RESOURCES_BUSY: needs memory 8 GiB on node JG3, free memory 4 GiB",
        "one task at a time needs cpu 99 (guest.0), node JG1 has cpu 2, of which one job may hold cpu 1",
        "node: there is no route to JG9: no node of that id is known here; did you mean JG8? Add its route,"
        " or force"
        " it (got 'JG9')",
        "exit code 127; what it was to run was not found: a program that the image does not have, such as the"
        " interpreter in a script's first line or the program behind env",
        "exit code 137 by signal 9 after it reported RUNNING; its memory is limited, and programs that get no more"
        " end so",
        "old_job_id: task a is not inherited: the parameters of guest.0 differ: b, c",
        "its outputs are needed: version 1 of model m: job-1#out. Delete first what refers to them, jobs by"
        " `bfia-gateway job delete`, models by `bfia-gateway model delete` (see `model list`), or keep this job",
        "file:3: must be UTF-8 text, byte 3 is not; if it is in another encoding, name it: data upload --encoding"
        " (meta.encoding), one of gbk, big5 (got b'2')",
        "file: 3 more of this kind: repeated ids, in lines 5, 10, 17",
        "what guest.0 in task a wrote takes 2 GiB of disk, it may take 1 GiB of disk (resources.disk)",
        "host.0 in task a made more than 1000 files and folders",
        "the container of host.0 in task a was taken off its network and reaches no other party",
        "RUN_TOKEN_REQUIRED: x-ptp-token is missing: send the value of config.token",
        "the provider name a belongs to this node's admins, not to li; an admin can give it:"
        " bfia-gateway provider give",
        "place: must lie in one of this node's storages: the folder file:///srv; to add it, write in node.yml"
        " storages: {other: {url: s3://HOST:PORT/other, username: ACCESS_KEY, password_file: FILE}} (got 's3://a/b')",
        "name the calling node in the header x-source-node-id: no node that may call has a route of profile"
        " fate-partner here",
        "--command: 'a.py' is in /srv, and the program is started in a folder of its own; write /srv/a.py",
        "no component that is checked reads data of arbiter; there are roles guest, host and inputs none",
        "IMAGE_NOT_FOUND: the container engine has no image a:1; at JG2: " + HOW_TO_HAVE_IT,
    ],
)
def test_a_refusal_is_not_partly_english(english):
    assert english_in(english) == []
    assert "; " not in catalogue.translate(english, "zh")
    assert not re.search(r"(?<!\w)at JG", catalogue.translate(english, "zh"))
    assert set(re.findall(r"\bJG\d|\w+#\w+|[A-Z]+_[A-Z_]+", english)) <= set(
        re.findall(r"JG\d|\w+#\w+|[A-Z]+_[A-Z_]+", catalogue.translate(english, "zh"))
    )


def test_a_new_configuration_has_chinese_comments_and_equal_settings(tmp_path):
    for language in ("en", "zh"):
        file = tmp_path / language / "node.yml"
        made = run(
            "--lang", language, "init", "--engine", "process", "--node", "A1", "-o", str(file)
        )
        assert made.returncode == 0, made.stderr
    written = [file.read_text(encoding="utf-8") for file in (file, file.with_name("routes.yml"))]
    comments = [
        one for text in written for one in re.findall(r"(?:^|  )# (?!\s*\w+:)(.+)$", text, re.M)
    ]
    assert len(comments) > 90
    assert "本节点的标识，对端节点和作业均以此标识指代本节点。" in written[0]
    without = [one for one in comments if not re.search("[\u4e00-\u9fff]", one)]
    assert without == [], (
        f"gateway/language/settings.yml or zh.yml has no Chinese for {without}: add it"
    )
    assert yaml.safe_load(written[1]) == {}
    english = yaml.safe_load((tmp_path / "en/node.yml").read_text(encoding="utf-8"))
    assert yaml.safe_load(written[0].replace("/zh/", "/en/")) == english
    assert load(file, {}).node.id == "A1"


def test_a_result_of_doctor_is_in_chinese_and_a_state_of_a_job_is_not(monkeypatch, capsys):
    steps = [
        {
            "name": "database",
            "result": one,
            "seconds": 0.1,
            "cause": "",
            "found": "",
            "remedy": "",
        }
        for one in Result
    ]
    for language, results in (("en", "ok WARNING FAILED"), ("zh", "通过 警告 失败")):
        monkeypatch.setattr("gateway.cli.language._chosen", [language])
        print_steps("node.yml", steps)
        table("", ["job", "state"], [["job-1", "FAILED"]])
        shown = capsys.readouterr().out
        assert all(result in shown for result in results.split())
        assert "FAILED" in shown
    print_steps(
        "node.yml",
        [steps[-1] | {"result": "skipped", "name": name} for name in ("dns", "tcp", "tls")],
    )
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_what_is_wrong_with_a_description_stands_under_chinese_headings(tmp_path):
    file = tmp_path / "register.json"
    file.write_text(json.dumps({"name": "a", "devise": "docker"}))
    shown = run("--lang", "zh", "provider", "check", str(file), COLUMNS="120").stdout
    headings = re.findall(r"\w+", shown.splitlines()[1])
    assert headings == ["位置", "问题", "建议"]
    assert "device instead of devise" in shown


def test_what_the_parser_refuses_is_in_chinese_around_the_message_too():
    refused = run("--lang", "zh", "job", "list", "--nope").stderr
    assert "用法：" in refused
    assert "查看帮助：" in refused
    assert "没有选项" in refused
    assert "用法：" in run("--lang", "zh", "job", "list", "--help").stdout
    assert not re.search("Usage|Try |Possible", refused)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("init --port x", "'--port' 的取值无效：必须是整数"),
        ("init --node bad/id", "--node 'bad/id': 必须是节点标识：字母、数字"),
        ("init --port 99999", "'--port' 的取值无效：不得大于 65533"),
        ("job list --limit 0", "'--limit' 的取值无效：不得小于 1"),
        ("route add A --deadline x", "'--deadline' 的取值无效：必须是数值"),
        ("token create ann", "缺少选项 '--role'。可选："),
        ("init --auth=3", "选项 '--auth' 不带取值。"),
    ],
)
def test_what_the_parser_refuses_is_wholly_in_chinese(words, said):
    refused = run("--lang", "zh", *words.split()).stderr
    assert said in refused
    assert not re.search("Input|Missing|Choose|Option ", refused)


_STATES = {
    "job {}": JOB,
    "job {} here": JOB,
    "task {}": TASK,
    "run {}": RUN,
}
_REQUESTS = ("accepted", "refused", "not answered")
_EVENTS = {
    "with_note": 1,
    "Note": 1,
    "_conclude": 1,
    "_return": 2,
    "_asked": 1,
}
"""call -> the place of its event among its arguments"""
_KEPT_IN = ("event", "CALLED", "STUCK")
"""names that an event has before it is noted"""


def events() -> set[str]:
    """Return the name of each event that the product writes into a timeline, as far as it stands in the code."""
    found = set(NAME_OF)
    found |= {form.format(state) for form, states in _STATES.items() for state in states}
    found |= {"closing failed", "removing failed", "stopping failed"}
    found |= {f"ending as {outcome}" for outcome in Outcome}
    requests = {
        one.name for one in vars(messages).values() if hasattr(one, "call") and hasattr(one, "name")
    }
    found |= {f"{name} {word}" for name in requests for word in _REQUESTS}
    for tree in trees("gateway/domain gateway/jobs gateway/runtime gateway/store"):
        for node in ast.walk(tree):
            found |= set(_named(node))
    return found - {"run WAITING", "task PENDING"}  # nothing moves there


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        name, value = node.targets[0], node.value
        many = isinstance(name, ast.Tuple) and isinstance(value, ast.Tuple)
        pairs = zip(name.elts, value.elts, strict=True) if many else [(name, value)]
        yield from (
            text
            for name, value in pairs
            if getattr(name, "id", "") in _KEPT_IN
            for text in _texts(value)
        )
    if isinstance(node, ast.Call):
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        form = "{} requested" if called == "_asked" else "{}"
        given = node.args[_EVENTS[called] :][:1] if called in _EVENTS else []
        yield from (form.format(text) for one in given for text in _texts(one))


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the text that stands there, or both of a choice."""
    if isinstance(node, ast.IfExp):
        yield from (text for one in (node.body, node.orelse) for text in _texts(one))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def test_every_event_action_and_check_has_a_chinese_name(node):
    names = events() | {"token create", "token revoke", "identity rotate", "restore", "login", HEAD}
    names |= {"application changed by a partner", "route changed by a contract"}
    checks = {*doctor.STEPS, *route_check.STEPS, *CHECKS}
    names |= checks | {action.value for action in Action} | {clause.name for clause in CLAUSES}
    changes = {
        str(e.summary)
        for e in node.listeners.endpoints
        if e.methods - {"GET"} and e.include_in_schema
    }
    assert len(names) > 130
    assert len(changes) > 80
    check_chinese(names | changes)
    assert {f"=step {name}" for name in checks} - words()["zh"].keys() == set()
