"""The wheels alone are enough: commands and the demo, installed and outside of a checkout."""

import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.release.commands import run
from tools.release.artefacts import Build
from tools.release.packages import build_client, build_gateway, build_reference_vendor
from tools.release.requirements import read_pins
from tools.release.source import export

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "examples" / "reference_vendor"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels of the last commit, by the name of their project."""
    scratch = tmp_path_factory.mktemp("scratch")
    output = tmp_path_factory.mktemp("wheels")
    source = export(ROOT, "HEAD", scratch / "source")
    build = Build(source, output, scratch)
    for builder in (build_gateway, build_client, build_reference_vendor):
        builder(build)
    wheels = {}
    for path in output.glob("*.whl"):
        project, _, _ = path.name.partition("-")
        wheels[project] = path
    return wheels


@pytest.fixture
def environment(tmp_path):
    """A new environment: the dependencies of the checkout's environments, but nothing of ours."""
    folder = tmp_path / "environment"
    run(
        sys.executable,
        "-m",
        "venv",
        "--without-pip",
        str(folder),
    )
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = Path("lib") / version / "site-packages"
    borrowed = [ROOT / name / packages for name in (".venv", ".venv-vendor")]
    lines = [f"{path.resolve()}\n" for path in borrowed]
    (folder / packages / "dependencies.pth").write_text("".join(lines))
    return folder


def install(wheel, environment):
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(environment / "bin" / "python"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
        str(wheel),
    )


def test_the_wheel_runs_init_and_its_documents_outside_of_a_checkout(wheels, environment, tmp_path):
    install(wheels["bfia_gateway"], environment)
    command = str(environment / "bin" / "bfia-gateway")
    where = [
        str(environment / "bin" / "python"),
        "-c",
        "import gateway; print(gateway.__file__)",
    ]
    assert str(environment) in run(*where, folder=tmp_path)
    version = run(command, "--version", folder=tmp_path)
    assert wheels["bfia_gateway"].name.startswith(f"bfia_gateway-{version.strip()}-")
    run(command, "init", "--engine", "process", folder=tmp_path)
    assert (tmp_path / "node.yml").is_file()
    assert "first" in run(command, "docs", "first-node", folder=tmp_path)


@pytest.mark.slow
def test_the_demo_runs_with_two_wheels_outside_of_a_checkout(wheels, environment, tmp_path):
    install(wheels["bfia_gateway"], environment)
    install(wheels["bfia_reference_vendor"], environment)
    command = str(environment / "bin" / "bfia-gateway")
    output = run(
        command,
        "demo",
        "--key-length",
        "1024",
        folder=tmp_path,
    )
    assert "AUC, both together" in output
    assert "bfia-gateway demo --keep" in output
    settings = tmp_path / "var" / "demo" / "bank" / "node.yml"
    assert str(ROOT) not in settings.read_text()


def test_the_client_is_a_wheel_of_its_own(wheels, environment, tmp_path):
    install(wheels["bfia_gateway_client"], environment)
    python = str(environment / "bin" / "python")
    program = "import bfia_gateway_client as c; print(c.Client.__module__, c.__file__)"
    output = run(python, "-c", program, folder=tmp_path)
    assert output.startswith("bfia_gateway_client.client ")
    assert str(environment) in output


def test_the_gateway_has_the_documented_extras():
    extras = project(ROOT)["optional-dependencies"]
    assert extras.keys() >= {
        "grpc",
        "parquet",
        "k8s",
        "pkcs11",
        "postgres",
    }


def test_the_vendor_needs_the_packages_of_its_requirement_file():
    lines = (VENDOR / "requirements.in").read_text().splitlines()
    assert project(VENDOR)["dependencies"] == lines


def test_the_pinned_requirements_cover_every_extra():
    pins = {pin.name for pin in read_pins(ROOT / "requirements/gateway-all.txt")}
    missing = set()
    for lines in project(ROOT)["optional-dependencies"].values():
        missing |= {Requirement(line).name for line in lines} - pins
    assert missing == set(), "run: make lock"


def test_the_pinned_requirements_agree_with_each_other():
    full = {pin.name: pin.version for pin in read_pins(ROOT / "requirements/gateway-all.txt")}
    basic = {pin.name: pin.version for pin in read_pins(ROOT / "requirements/gateway.txt")}
    assert basic.items() <= full.items(), "run: make lock"


def project(folder):
    document = tomllib.loads((folder / "pyproject.toml").read_text())
    return document["project"]
