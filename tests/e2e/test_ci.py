"""What the check of a submission installs on a bare machine, with stand-ins for the machine's own tools."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.nodes import ROOT

WHOLE = """#!/bin/bash
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
"""
NO_VENV = '#!/bin/bash\n[ "$2" != venv ]\n'
NO_PIP = WHOLE + '[ "$2" != pip ]\n'


@pytest.mark.parametrize(("python", "complete"), [(WHOLE, True), (NO_VENV, False), (NO_PIP, False)])
def test_what_a_virtual_environment_needs_is_installed_where_it_is_missing(
    tmp_path: Path, python: str, complete: bool
):
    asked = tmp_path / "asked"
    tools = {
        "python3.11": python,
        "dpkg-query": "#!/bin/bash\nexit 1\n",
        "apt-get": f'#!/bin/bash\necho "$@" >>{asked}\n',
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BFIA_RT": str(tmp_path / "rt")}
    command = ["bash", str(ROOT / ".ci" / "services.sh"), "python"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    installed = asked.read_text() if asked.exists() else ""
    if complete:
        assert installed == ""
    else:
        assert "python3.11-venv" in installed and "python3-pip" in installed


@pytest.mark.parametrize(("target", "developing"), [("demo", False), ("setup", True)])
def test_the_demo_installs_only_what_running_needs(target: str, developing: bool):
    done = subprocess.run(["make", "-nB", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "requirements/gateway.txt" in done.stdout
    assert [name in done.stdout for name in ("dev.txt", "requirements-test.txt")] == [developing, developing]
