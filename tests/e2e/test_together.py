"""The page for two institutions works as it is written, from nothing to a shared result.

The commands of both sides run in the order of the page in one shell, each side's in a folder of its
own. They differ from the page in the addresses, in the vendor's code, which is a process, and in
the steps of people: these hand over files, compare the words, and fill in the draft.
"""

import re

from tests.e2e.nodes import ROOT, free_ports
from tests.e2e.test_pages import blocks, commands, run_commands

PAGE = "docs/together.md"
BANK = "JG0100001100000011"
PARTNER = "JG0100002200000020"
IMAGE = "bfia-reference-vendor:1.0.0"
VENDOR = ROOT / "examples/reference_vendor"
# Lets the vendor's code run as a process, as an admin without Docker does in node.yml.
USE_PROCESS = f"""
from pathlib import Path
command = "[env, PYTHONPATH={VENDOR}, {ROOT}/.venv-vendor/bin/python, -m, refvendor]"
file = Path("node.yml")
images = 'images: {{"{IMAGE}": {{command: ' + command + "}}}}"
file.write_text(file.read_text().replace("images: {{}}", images))
"""
TABLES = {
    "bank": "breast_hetero_guest.csv",
    "partner": "breast_hetero_host.csv",
}
NODES = {
    "bank": BANK,
    "partner": PARTNER,
}
OTHER = {
    "bank": "partner",
    "partner": "bank",
}


def first_of_three_ports():
    """Return a port that is free, as are the two after it."""
    while True:
        ports = free_ports(3)
        if ports == list(range(ports[0], ports[0] + 3)):
            return ports[0]


def begin(side, block):
    """Return the commands that give a side its node."""
    _, init, serve = commands(block)  # the package is installed
    port = first_of_three_ports()
    init = re.sub(" +#.*", "", init).replace(BANK, NODES[side])
    init = re.sub("https://[^ ]*", f"http://127.0.0.1:{port}", init)
    return [
        f"cd $home/{side}",
        f"{init} --port {port} --engine process",
        "python3 ../use_process.py",
        f"{serve} --config node.yml",  # `run_commands` puts it into the background
    ]


def at(side, lines):
    """Return commands of one side."""
    return [f"cd $home/{side}", *lines]


def become_partners(block):
    """Return the commands by which both accept the other's invitation, and test the route."""
    invite, accept, test = commands(block)
    lines = []
    for side in NODES:
        lines += at(side, [re.sub(" +#.*", "", invite)])
    for side, other in OTHER.items():
        hand_over = f"cp $home/{other}/invitation.json their-invitation.json"
        lines += at(side, [hand_over, f"{re.sub(' +#.*', '', accept)} <<< y"])
    for side, other in OTHER.items():
        lines += at(side, [test.replace(PARTNER, NODES[other])])
    return lines


def upload(block):
    """Return the commands by which each side uploads and grants its table."""
    of_bank, of_partner = block.split("# at the partner\n")
    lines = []
    for side, text in (("bank", of_bank), ("partner", of_partner)):
        copy = f"cp {ROOT}/examples/data/{TABLES[side]} customers.csv"
        lines += at(side, [copy, *text.splitlines()])
    return lines


def fill_in(block):
    """Return the commands that draft the job, and those of the person who completes the draft."""
    host = f"s/host: .*change this.*/host: [{PARTNER}]/"
    table = "/change this/s/namespace#name/data#customers/"
    return [*commands(block), f"sed -i '{host}; {table}' job.yml", "! grep 'change this' job.yml"]


def test_two_institutions_get_from_nothing_to_a_shared_result(tmp_path):
    install, partners, register, tables, draft, submit, result = blocks(PAGE, "sh")
    (tmp_path / "use_process.py").write_text(USE_PROCESS)
    lines = [f"home={tmp_path}"]
    for side in NODES:
        (tmp_path / side).mkdir()
        lines += begin(side, install)
    lines += become_partners(partners)
    registration = f"cp {VENDOR}/register_reference.json ."
    for side in NODES:
        lines += at(side, [registration, commands(register)[1]])
    lines += upload(tables)
    lines += at("bank", [*fill_in(draft), *commands(submit), *commands(result)])
    lines += at("partner", commands(result)[::2])  # the predictions are the bank's

    printed = run_commands("\n".join(lines) + "\n", tmp_path)

    assert "SUCCEEDED" in printed
    assert (tmp_path / "bank/predictions.csv").read_text().startswith("id,")
    assert printed.count("model") > 2
