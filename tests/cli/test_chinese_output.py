"""Commands and endpoints use Chinese for readers who ask for it, and English for everybody else."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.bootstrap.node import Gateway
from gateway.cli.language import requested_language
from gateway.cli.tables import print_steps, table
from gateway.config.loader import load
from gateway.language import catalogue
from gateway.runtime.trials import Result
from tests import forks
from tests.cli.chinese import has_chinese
from tests.world import NodeSetup

NODE = NodeSetup()


def run_command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment that names no language except by ``environment``."""
    plain = {}
    for name, value in os.environ.items():
        if not name.startswith(("LC_", "LANG", "BFIA_")):
            plain[name] = value
    return forks.run(words, env=plain | environment)


def get_body(
    node: Gateway,
    path: str,
    language: str,
    **query: str,
) -> Any:
    """Return the body of a path in a language."""
    headers = {"accept-language": language}
    return node.get(path, headers=headers, params=query).json()


# ---------------------------------------------------------------- the choice of the language


@pytest.mark.parametrize(
    "environment",
    [
        {"LANG": "zh_CN.UTF-8"},
        {"LC_ALL": "zh_CN.UTF-8", "LANG": "en_GB.UTF-8"},
    ],
)
def test_help_is_in_chinese_by_the_environment(environment):
    printed = run_command("--help", **environment).stdout
    assert "运行一个节点" in printed
    assert "显示本帮助并退出" in printed


def test_the_words_around_an_option_are_in_chinese_too():
    printed = run_command("job", "list", "--help", LANG="zh_CN.UTF-8").stdout
    assert "默认：" in printed
    assert "环境变量：" in printed
    assert "[default" not in printed


@pytest.mark.parametrize(
    ("option", "environment"),
    [
        ([], {}),
        (["--lang", "en"], {"LANG": "zh_CN.UTF-8"}),
        ([], {"LANG": "de_DE"}),
    ],
    ids=["no-language", "option-wins", "unknown-language"],
)
def test_help_is_in_english_unless_chinese_is_chosen(option, environment):
    printed = run_command(*option, "job", "list", "--help", **environment).stdout
    assert "Show this message and exit" in printed
    assert not has_chinese(printed)


@pytest.mark.parametrize(
    ("words", "language"),
    [
        (["--lang=zh", "x"], "zh"),
        (["--lang", "zh"], "zh"),
        (["x", "--lang", "zh"], "en"),
    ],
)
def test_the_language_is_an_option_of_the_program_not_of_a_command(words, language):
    assert requested_language(words) == language


@pytest.mark.parametrize(
    ("accepted", "is_chinese"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", True),
        ("zh", True),
        ("en-GB,zh;q=0.5", False),
        ("", False),
        (";q=x,,zh;q=", True),
    ],
)
def test_a_refusal_is_in_the_preferred_language(node, accepted, is_chinese):
    headers = {"accept-language": accepted}

    response = node.get(
        "/api/v1/jobs/none",
        headers=headers,
    )
    assert response.status_code == 404
    body = response.json()
    assert body["data"]["reason"] == "JOB_UNKNOWN"
    assert body["msg"].startswith("JOB_UNKNOWN: ")
    assert has_chinese(body["msg"]) is is_chinese

    route = {"route": {"url": "ftp://x"}}
    response = node.request(
        "PUT",
        "/api/v1/routes/JG2",
        json=route,
        headers=headers,
    )
    (problem,) = response.json()["data"]["problems"]
    rules = {
        True: "必须以下列之一开头：http://, https://",
        False: "must begin with one of http://, https://",
    }
    assert problem["rule"] == rules[is_chinese]


def test_a_chinese_refusal_has_the_fact_before_the_next_step(node):
    message = get_body(node, "/api/v1/jobs/none", "zh")["msg"]
    step = catalogue.reasons()["JOB_UNKNOWN"].next_step["zh"]
    assert message == f"JOB_UNKNOWN: 本节点没有提交、调度或运行作业 none。{step}"


def test_a_refusal_that_has_no_chinese_begins_with_the_meaning():
    body = {"msg": "JOB_UNKNOWN: a partner's own words", "data": {}}
    message = catalogue.in_language(body, "JOB_UNKNOWN", "zh")["msg"]
    means = catalogue.reasons()["JOB_UNKNOWN"].means["zh"]
    assert message.startswith(f"JOB_UNKNOWN: {means}（a partner's own words）")


# ---------------------------------------------------------------- endpoints


@pytest.mark.parametrize(
    ("language", "gap"),
    [
        ("zh", "不做任何隔离"),
        ("en", "keeps nothing apart"),
    ],
)
def test_texts_of_a_response_are_translated_and_states_are_not(node, language, gap):
    engine = get_body(node, "/api/v1/engine", language)
    assert gap in engine["isolation"]["gaps"][0]
    assert engine["kind"] == "process"
    assert engine["answers"] is True


@pytest.mark.parametrize(
    ("language", "cause"),
    [
        ("zh-CN", "没有路由到达节点"),
        ("", "has no route"),
    ],
)
def test_the_steps_of_a_route_test_are_translated(node, language, cause):
    headers = {"accept-language": language}
    steps = node.post("/api/v1/routes/NONE/test", headers=headers).json()["steps"]
    assert [step["result"] for step in steps[:2]] == ["failed", "skipped"]
    assert cause in steps[0]["cause"]


@pytest.mark.parametrize(
    ("language", "in_words"),
    [
        ("zh", "恢复接受新作业"),
        ("en", "Accept new jobs again"),
    ],
)
def test_an_audit_entry_says_in_words_which_change_was_requested(node, language, in_words):
    node.post("/api/v1/undrain")

    newest = get_body(node, "/api/v1/audit", language)["audit"][0]
    assert newest["action"] == "POST /api/v1/undrain"
    assert newest["in_words"] == in_words

    for text in ("/undrain", in_words[:4]):
        entries = get_body(node, "/api/v1/audit", language, action=text)["audit"]
        assert {entry["in_words"] for entry in entries} == {in_words}


# ---------------------------------------------------------------- commands


def init_files(
    folder: Path,
    language: str,
) -> tuple[str, str]:
    """Create a configuration in a language; return the texts of node.yml and routes.yml."""
    file = folder / language / "node.yml"
    options = ["--engine", "process", "--node", "A1", "-o", str(file)]
    created = run_command("--lang", language, "init", *options)
    assert created.returncode == 0, created.stderr
    routes = file.with_name("routes.yml")
    return file.read_text(encoding="utf-8"), routes.read_text(encoding="utf-8")


def test_a_new_configuration_has_chinese_comments(tmp_path):
    texts = init_files(tmp_path, "zh")

    # a comment with a key and a colon is a setting that is commented out
    comments = []
    for text in texts:
        comments += re.findall(r"(?:^|  )# (?!\s*\w+:)(.+)$", text, re.M)
    assert len(comments) > 90
    english = [comment for comment in comments if not has_chinese(comment)]
    assert english == [], f"settings.yml or zh.yml of gateway/language lacks Chinese for {english}"
    assert "本节点的标识，对端节点和作业均以此标识指代本节点。" in texts[0]


def test_a_new_configuration_has_the_same_settings_in_each_language(tmp_path):
    english_node, _ = init_files(tmp_path, "en")
    chinese_node, chinese_routes = init_files(tmp_path, "zh")
    assert yaml.safe_load(chinese_node.replace("/zh/", "/en/")) == yaml.safe_load(english_node)
    assert yaml.safe_load(chinese_routes) == {}
    assert load(tmp_path / "zh" / "node.yml", {}).node.id == "A1"


def a_step(
    result: str,
    name: str = "database",
) -> dict[str, Any]:
    """Return a step of the doctor as its JSON has it."""
    return {
        "name": name,
        "result": result,
        "seconds": 0.1,
        "cause": "",
        "found": "",
        "remedy": "",
    }


@pytest.mark.parametrize(
    ("language", "results"),
    [
        ("en", ("ok", "WARNING", "FAILED")),
        ("zh", ("通过", "警告", "失败")),
    ],
)
def test_results_of_the_doctor_are_translated_and_job_states_are_not(
    use_language, capsys, language, results
):
    use_language(language)
    print_steps("node.yml", [a_step(result) for result in Result])
    table(
        "",
        ["job", "state"],
        [["job-1", "FAILED"]],
    )
    printed = capsys.readouterr().out
    for result in results:
        assert result in printed
    assert "FAILED" in printed


def test_a_skipped_step_is_one_line(capsys):
    print_steps("node.yml", [a_step("skipped", name) for name in ("dns", "tcp", "tls")])
    assert len(capsys.readouterr().out.splitlines()) == 4  # with the title


def test_problems_of_a_description_have_chinese_headings(tmp_path):
    file = tmp_path / "register.json"
    file.write_text(json.dumps({"name": "a", "devise": "docker"}))
    printed = run_command("--lang", "zh", "provider", "check", str(file), COLUMNS="120").stdout
    headings = re.findall(
        r"\w+",
        printed.splitlines()[1],
    )
    assert headings == ["位置", "问题", "建议"]
    assert "device instead of devise" in printed


def test_the_words_around_an_error_of_the_parser_are_in_chinese():
    refused = run_command("--lang", "zh", "job", "list", "--nope").stderr
    assert "用法：" in refused
    assert "查看帮助：" in refused
    assert "没有选项" in refused
    assert not re.search("Usage|Try |Possible", refused)

    help_text = run_command("--lang", "zh", "job", "list", "--help").stdout
    assert "用法：" in help_text


@pytest.mark.parametrize(
    ("words", "message"),
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
def test_an_error_of_the_parser_is_wholly_in_chinese(words, message):
    refused = run_command("--lang", "zh", *words.split()).stderr
    assert message in refused
    assert not re.search("Input|Missing|Choose|Option ", refused)
