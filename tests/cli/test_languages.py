"""Every text of the product that people read has a Chinese translation, and keeps its values."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from string import Formatter

import pytest

from adapter.bfia import route_check
from engines.base import EngineError
from gateway.cli.demo.nodes import NAMES
from gateway.cli.demo.training import DATA_DESCRIPTIONS
from gateway.cli.language import paragraphs
from gateway.cli.tables import NEXT_STEPS
from gateway.conformance.clauses import CLAUSES
from gateway.diagnostics import doctor
from gateway.domain.dry_run import CHECKS
from gateway.errors import GatewayError
from gateway.identity.audit_chain import HEAD
from gateway.language import catalogue
from provider_registry.revisions import Action
from tests.cli import all_commands
from tests.cli.chinese import check_chinese, english_in, has_chinese
from tests.cli.product_texts import (
    PRODUCT,
    composed_texts,
    rule_variables,
    source,
    texts_with_must,
    texts_with_phrases,
    timeline_events,
)
from tests.console import words
from tests.e2e.nodes import ROOT
from tests.world import NodeSetup

NODE = NodeSetup()

CATALOGUES = ("zh", "settings", "reasons")  # files of gateway/language with Chinese texts
CHECK_STEPS = {*doctor.STEPS, *route_check.STEPS}

# Terms that pages and catalogues must not use; each has one agreed translation.
WRONG_TERMS = "合同|中继|中转|任务流|原地注册|文件夹|凭据|审计日志|作业审计|你"

# Entries of the audit that are not changes by an endpoint.
FURTHER_AUDIT_ACTIONS = {
    "token create",
    "token revoke",
    "identity rotate",
    "restore",
    "login",
    "application changed by a partner",
    "route changed by a contract",
    "tee report",
    HEAD,
}

PRINT_ALL_HELP = """
import sys, typer
from click.testing import CliRunner
from gateway.cli.language import set_language, translated
from gateway.cli.main import app
from tests.cli import all_commands
set_language(sys.argv[1])
program = translated(typer.main.get_command(app))
for words in all_commands(program):
    print(CliRunner().invoke(program, [*words.split(), "--help"]).output)
"""


# ---------------------------------------------------------------- help and catalogue


def test_every_help_text_has_a_chinese_translation():
    texts = set(help_texts())
    assert len(texts) > 250
    check_chinese(texts)


def help_texts() -> Iterator[str]:
    """Yield the paragraphs of every command's help, and the help of its parameters."""
    for command in all_commands().values():
        texts = [*paragraphs(command.help or ""), *paragraphs(command.epilog or "")]
        for parameter in command.params:
            texts.append(getattr(parameter, "help", None) or "")
        yield from filter(None, texts)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_help_is_folded_in_80_columns_and_never_cut(language):
    environment = os.environ | {"COLUMNS": "80"}
    environment.pop("FORCE_COLOR", None)
    printed = subprocess.run(
        [sys.executable, "-c", PRINT_ALL_HELP, language],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.count("--help") > 90
    assert ("用法" in printed) is (language == "zh")
    assert re.findall(r".*…[ │]*$", printed, re.M) == []


def test_no_text_is_in_the_catalogue_twice():
    lines = (ROOT / "gateway/language/zh.yml").read_text(encoding="utf-8").splitlines()
    entries = sum(line.startswith(('"', "'")) for line in lines)
    assert len(catalogue.entries_of("zh.yml")) == entries


def test_a_translation_has_the_values_of_its_english_text():
    for english, chinese in catalogue.entries_of("zh.yml").items():
        assert placeholders(english) == placeholders(chinese), english


def test_a_translation_has_chinese_punctuation_except_after_names():
    for english, chinese in catalogue.entries_of("zh.yml").items():
        assert not re.search("[\u4e00-\u9fff][,;?!]", chinese), f"{english}: ASCII punctuation"
        ends_reason_with_wide_colon = re.search("[A-Z]_[A-Z]+：", chinese)
        assert not ends_reason_with_wide_colon, f"{english}: a reason needs an ASCII colon"
        name = re.match(r"(\{[a-z]\w*\}): ", english)
        if name:
            assert not chinese.startswith(f"{name[1]}："), f"{english}: a name needs an ASCII colon"


def test_a_text_that_is_translated_twice_keeps_the_colon_after_a_setting():
    for english in catalogue.entries_of("zh.yml"):
        values = {name: example_value(name) for name in placeholders(english)}
        chinese = catalogue.translate(english.format_map(values), "zh")
        twice = catalogue.translate(chinese, "zh")
        wide_colon = re.search(r"[a-z_]\.[a-z_.]+：[\w\"]", twice, re.ASCII)
        assert not wide_colon, "a setting needs an ASCII colon"


def placeholders(text: str) -> set[str]:
    """Return the names of a text's placeholders."""
    return {name for _, name, *_ in Formatter().parse(text) if name}


def example_value(placeholder: str) -> str:
    """Return a value that a placeholder of the catalogue accepts."""
    if placeholder == "party":
        return "a.0"
    if placeholder[0].isupper():  # an optional part of a sentence
        return "at 9"
    return "9"


def test_chinese_texts_use_one_word_per_term_and_the_names_of_steps():
    texts = {}
    for folder in ("", "docs", "compose", "examples"):
        for page in (ROOT / folder).glob("*.zh-CN.md"):
            texts[page.name] = page.read_text(encoding="utf-8")
    for name in CATALOGUES:
        texts[f"{name}.yml"] = str(catalogue.entries_of(f"{name}.yml"))
    steps = "|".join(CHECK_STEPS)
    wrong = re.compile(rf"{WRONG_TERMS}|步骤 `({steps})`|`({steps})` ?(一步|步骤)")

    wrong_by_file = {name: wrong.search(text) for name, text in texts.items()}

    assert {name: match[0] for name, match in wrong_by_file.items() if match} == {}
    for name in CATALOGUES:
        # the word for a peer is used for the peer node and the peer listener only
        assert re.findall(r"对端(?!节点|口)", texts[f"{name}.yml"]) == [], name


# ---------------------------------------------------------------- texts in the code


def test_check_results_advice_and_empty_lists_exist_in_chinese():
    clauses = (ROOT / "gateway/conformance/clauses.py").read_text(encoding="utf-8")
    results = re.findall(r'\b(?:ok|not_shown)\("([^"]{4,})"', clauses)
    texts = [*results, *(clause.remedy for clause in CLAUSES), *NEXT_STEPS.values()]
    assert len(texts) > 50
    check_chinese(texts)

    page = (ROOT / "docs/conformance.zh-CN.md").read_text(encoding="utf-8").replace("&lt;", "<")
    for clause in CLAUSES:
        assert catalogue.translate(clause.remedy, "zh") in page, clause.name


RULE_SOURCES = (
    source(
        PRODUCT,
        {"Problem", "problem", "_problem"},
        position=1,
        min_words=3,
    ),
    source(
        PRODUCT,
        {"Unusable"},
        position=0,
        min_words=2,
    ),
    source(
        "gateway/config",
        {"ValueError"},
        position=0,
        min_words=3,
    ),
    source(
        "gateway/config",
        {"require"},
        position=1,
        min_words=3,
    ),
)
MESSAGE_SOURCES = (
    source(
        "gateway/cli",
        {"say", "CallFailed", "NotFit"},
        position=0,
        min_words=4,
    ),
    source(
        "gateway/cli/demo",
        {"_show"},
        position=1,
        min_words=1,
    ),
    source(
        "gateway/cli/demo",
        {"DemoFailed", "t"},
        position=0,
        min_words=1,
    ),
    source(
        "gateway/identity",
        {"_report"},
        position=0,
        min_words=3,
    ),
    source(
        PRODUCT,
        {"Failure"},
        position=1,
        min_words=2,
    ),
    source(
        "adapter/bfia",
        {"Refused"},
        position=1,
        min_words=3,
    ),
)

# Beginnings of rules; the code adds the end, or the party, elsewhere.
INCOMPLETE_RULES = (
    "FORMAT_MISMATCH: ",
    "STORAGE_MISMATCH: ",
    "cannot be a folder: ",
    "user 9 cannot make it in ",
    "has no counterpart among ",
    "stands for the newest version that ",
    "must be 9 text, ",
    "no component that is checked reads data of ",
    "--command: 9 is in ",
    "warning: 9: give it an id ",
    "must be UTF-8 text, ",
    "must be the only dataset of 9: ",
    "must have namespace and name for 9: ",
)

# Texts that have a translation only together with their values.
TRANSLATED_WITH_VALUES = {
    "9; its run is 9",
    "its outputs are needed: 9. 9",
    "what 9 wrote takes 9 of disk, 9",
    "9 made more than 9 files and folders",
    "9 made folders in folders too deep to be measured; 9",
    "9 was taken off its network and reaches no other party",
    "RUN_TOKEN_REQUIRED: 9: send the value of config.token",
    "must lie in one of this node's storages: 9the folder file://9; 9",
    "9: if the partner says so by telephone, edit the route and decide again",
    "must be 9",
    "must be 9 text, byte 9 is not; 9",
    "must be UTF-8 text, this looks like UTF-16; 9",
}


def test_every_message_rule_and_refusal_has_a_chinese_translation():
    texts = rules() | messages()
    assert len(texts) > 460
    assert texts >= TRANSLATED_WITH_VALUES
    check_chinese(complete_texts(texts))


def test_a_rule_is_translated_between_its_path_and_its_value():
    for rule in complete_texts(rules()):
        translation = catalogue.translate(f"config.a: {rule} (got 'b')", "zh")
        expected = f"config.a: {catalogue.translate(rule, 'zh')}（实际为 'b'）"
        assert translation.replace("：", ": ") == expected.replace(
            "：",
            ": ",
        )


def rules() -> set[str]:
    """Return the texts of problems."""
    texts = set(rule_variables(PRODUCT, min_words=3))
    for rule_source in RULE_SOURCES:
        texts |= set(rule_source.texts())
    return texts


def messages() -> set[str]:
    """Return further texts for people: messages of commands and the demo, failures, refusals."""
    texts = texts_with_must() | set(NAMES.values()) | set(DATA_DESCRIPTIONS.values())
    errors = {*subclass_names(GatewayError), *subclass_names(EngineError)}
    for message_source in (*MESSAGE_SOURCES, source(PRODUCT, errors, position=0, min_words=3)):
        texts |= set(message_source.texts())

    broken = json.loads((ROOT / "tests/registry/broken.json").read_text())
    texts |= {case["rule"] for case in broken["broken"]}
    for schema in (ROOT / "provider_registry/schemas").iterdir():
        quoted = re.findall(r'"x-rule": (".*")', schema.read_text())
        texts |= {json.loads(rule) for rule in quoted}
    return texts


def complete_texts(texts: set[str]) -> set[str]:
    """Return the texts that have a translation as they are in the code."""
    return {
        text for text in texts - TRANSLATED_WITH_VALUES if not text.startswith(INCOMPLETE_RULES)
    }


def subclass_names(kind: type) -> Iterator[str]:
    """Yield the names of an error and of all errors derived from it."""
    yield kind.__name__
    for subclass in kind.__subclasses__():
        yield from subclass_names(subclass)


def test_a_text_in_a_translated_text_is_translated_too():
    untranslated = set()
    for text, phrase in texts_with_phrases(
        "gateway adapter/bfia engines provider_registry route_table"
    ):
        chinese = catalogue.translate(text, "zh")
        without_names = re.sub(r"\w+[._]\w+|spec|fate|bfia-gateway .*", "", phrase)
        has_words = re.search("[a-z]{3,}", without_names)
        if has_words and has_chinese(chinese) and phrase.strip(" ;,") in chinese:
            untranslated.add((text, phrase, chinese))
    assert untranslated == set()


# Beginnings of texts that are parts of other texts, or that no person reads.
PARTS_OF_TEXTS = (
    "(9: |9; |, |: |; | )|send it as|the next page|of \\{\\}|The keys of an entry",
    ".* ends before byte|(9\\s)?put back|no component that is checked|--command: ",
    "last lines of|warning: 9: give|The Swarm's|.*\\[9 bytes left out|has more than|pip install",
    "must be (UTF-8|9) text|if it is in another|user 9 cannot make|cannot be a folder",
    ".*had it granted until|task 9 as 9 reported the status 9, which is none|has no counterpart",
    "the storage has 9 free|.*inside the gateway; it is|.*in version 9 of the route table",
    ".*whose entry is disabled|use scheme http|has no component|SM2 needs|this node has 9",
    "9 is published for|9 would be removed|the route of 9 has",
    ".*did not decide on the job, submitted for|the route to node 9|node 9 has no route 9",
    "job 9 waits until|.*which answers in the place of 9($|:| does not)|Delete first",
    "this path knows 9|must have namespace and name for|must be the only dataset of",
    "has other routes than the gateway|when it was stopped, 9|9 and inputs",
    "9 does not report the state|FATE gives a job|FORMAT_MISMATCH:|free 9, borrowed",
    "has no version|the job's pool|is not a party|its outputs are needed|plays at node",
    "the container of 9 in task 9|9 says, unproven|node \\(none named\\)$",
)

# Values in place of the 9; translations accept only some of them at some places.
EXAMPLE_VALUES = ("9", "guest.0", "JG2", "9 files", "engine x", "must be a number")


def test_a_text_with_a_value_has_a_chinese_translation_in_every_module():
    part = re.compile("|".join(PARTS_OF_TEXTS))
    word = re.compile(r"(?<![\w./-])[a-z]{2,}(?![\w(.=/-])")
    texts = {text for text in composed_texts() if len(word.findall(text)) > 2}
    texts = {text for text in texts if not part.match(text)}
    assert len(texts) > 600

    untranslated = {text for text in texts if is_untranslated_with_values(text)}
    assert untranslated == set(), "gateway/language/zh.yml has no Chinese for them: add it"


def is_untranslated_with_values(text: str) -> bool:
    """True if a text has no translation, whatever example value is in it."""
    if not re.search("[a-z]{2,} [a-z]{2,}", text) or not english_in(text):
        return False
    for value in EXAMPLE_VALUES:
        if not english_in(text.replace("9", value)) or not english_in(text.replace("9", value, 1)):
            return False
    return True


# ---------------------------------------------------------------- events, actions and checks


def test_every_event_action_and_check_has_a_chinese_name(node):
    checks = CHECK_STEPS | set(CHECKS)
    names = timeline_events() | FURTHER_AUDIT_ACTIONS | checks
    names |= {action.value for action in Action}
    names |= {clause.name for clause in CLAUSES}
    assert len(names) > 130

    changes = set()
    for endpoint in node.listeners.endpoints:
        if endpoint.methods - {"GET"} and endpoint.include_in_schema:
            changes.add(str(endpoint.summary))
    assert len(changes) > 80

    check_chinese(names | changes)
    console_names = {f"=step {name}" for name in checks}
    assert console_names - words()["zh"].keys() == set()
