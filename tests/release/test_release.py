"""A release built from the last commit: complete, signed, and every changed byte is found."""

import json
import subprocess
import tarfile

import pytest

from tests.release.conftest import build_signed
from tools.release import signatures
from tools.release.__main__ import main
from tools.release.artefacts import ReleaseError
from tools.release.builders import build_release
from tools.release.files import refuse_other_versions
from tools.release.verify import problems_of


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip_a_bit(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def named_files(problems):
    """Return the files that the lines of problems name, as one text."""
    lines = [line.partition(": ")[0] for line in problems]
    return " ".join(lines)


def run(*command, folder):
    process = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        check=True,
    )
    return process.stdout


def test_a_release_is_correct_and_shows_its_key(release, key, capsys):
    trusted = f"{key}.pub"
    code = main(["verify", str(release), "--public-key", trusted])
    output = capsys.readouterr().out
    assert code == 0, output
    der = signatures.read_private_key(key).public_key()
    assert signatures.fingerprint(der) in output


def test_the_same_commit_gives_the_same_bytes(release, key, tmp_path):
    second = tmp_path / "second"
    build_signed(second, key)
    assert contents(second) == contents(release)


@pytest.mark.parametrize("position", [0, 5, -1])
def test_one_changed_byte_in_any_file_is_found(copy, position):
    unnoticed = []
    for path in sorted(copy.iterdir()):
        content = path.read_bytes()
        flip_a_bit(path, position)
        problems = problems_of(copy)
        path.write_bytes(content)
        if path.name not in named_files(problems):
            unnoticed.append(path.name)
    assert unnoticed == []
    assert problems_of(copy) == []


def test_missing_and_additional_files_are_found(copy):
    wheel = next(copy.glob("bfia_gateway-*.whl"))
    wheel.rename(copy / "renamed.whl")
    problems = problems_of(copy)
    assert f"{wheel.name}: missing" in problems
    assert "renamed.whl: not listed in SHA256SUMS" in problems


def test_a_release_that_was_signed_by_another_key_is_found(copy, public_key, tmp_path):
    path = tmp_path / "forged.key"
    signatures.make_key(path)
    forged_key = signatures.read_private_key(path)
    signatures.sign_release(copy, forged_key)
    assert problems_of(copy) == []
    problems = problems_of(copy, public_key)
    assert problems == ["release.pub: not the public key that you trust"]


def test_a_release_without_signatures_is_not_correct(copy):
    for name in signatures.FILES:
        (copy / name).unlink()
    (problem,) = problems_of(copy)
    assert problem.startswith("release.pub, SHA256SUMS.sig, provenance.dsse.json: missing")


def test_common_tools_verify_a_release(release, tmp_path):
    run(
        "sha256sum",
        "--check",
        "--strict",
        "SHA256SUMS",
        folder=release,
    )
    signature = tmp_path / "signature"
    decoded = run("base64", "--decode", "SHA256SUMS.sig", folder=release)
    signature.write_bytes(decoded)
    output = run(
        "openssl",
        "dgst",
        "-sha256",
        "-verify",
        "release.pub",
        "-signature",
        str(signature),
        "SHA256SUMS",
        folder=release,
    )
    assert output == b"Verified OK\n"


def test_the_provenance_names_the_commit_and_each_file(release):
    text = (release / "provenance.json").read_text()
    statement = json.loads(text)
    kind = statement["predicateType"]
    assert kind == "https://slsa.dev/provenance/v1"
    definition = statement["predicate"]["buildDefinition"]
    commit = definition["externalParameters"]["commit"]
    head = run("git", "rev-parse", "HEAD", folder=".")
    assert commit == head.decode().strip()
    subjects = {subject["name"] for subject in statement["subject"]}
    later_files = {
        "provenance.json",
        "SHA256SUMS",
        *signatures.FILES,
    }
    assert subjects == contents(release).keys() - later_files


# Fields of SLSA's provenance v1; of a resource: in-toto's descriptor.
BUILD_FIELDS = {
    "buildType",
    "externalParameters",
    "internalParameters",
    "resolvedDependencies",
}
RUN_FIELDS = {"builder", "metadata", "byproducts"}
RESOURCE_FIELDS = {"name", "uri", "digest", "mediaType", "downloadLocation", "annotations"}


def test_the_provenance_has_the_form_of_slsa(release):
    statement = json.loads((release / "provenance.json").read_text())
    assert statement.keys() == {"_type", "subject", "predicateType", "predicate"}
    predicate = statement["predicate"]
    assert predicate.keys() == {"buildDefinition", "runDetails"}
    definition = predicate["buildDefinition"]
    assert definition.keys() == BUILD_FIELDS
    assert definition["buildType"].startswith("urn:")
    assert predicate["runDetails"].keys() <= RUN_FIELDS
    builder = predicate["runDetails"]["builder"]
    assert builder.keys() <= {"id", "version", "builderDependencies"}
    assert all(isinstance(version, str) for version in builder["version"].values())
    for resource in (*statement["subject"], *definition["resolvedDependencies"]):
        assert resource.keys() <= RESOURCE_FIELDS
        assert resource["digest"]


@pytest.fixture(scope="module")
def inventory(release):
    """The SBOM of the gateway's wheel."""
    (path,) = release.glob("bfia_gateway-*.whl.cdx.json")
    return json.loads(path.read_text())


def components_by_name(inventory):
    return {component["name"]: component for component in inventory["components"]}


def needs_of(inventory, reference):
    for entry in inventory["dependencies"]:
        if entry["ref"] == reference:
            return entry["dependsOn"]
    return None


def test_an_inventory_gives_version_licence_and_hashes_of_each_package(inventory):
    for component in inventory["components"]:
        name = component["name"]
        version = component["version"]
        assert component["purl"] == f"pkg:pypi/{name}@{version}"
        (licence,) = component["licenses"]
        assert licence["expression"]
        assert component["hashes"]


def test_an_inventory_marks_extras_and_omits_other_systems(inventory):
    components = components_by_name(inventory)
    assert components["fastapi"]["scope"] == "required"
    assert components["grpcio"]["scope"] == "optional"
    assert "pywin32" not in components


def test_an_inventory_shows_which_package_needs_which(inventory):
    components = components_by_name(inventory)
    markdown = components["markdown-it-py"]["purl"]
    urls = components["mdurl"]["purl"]
    assert needs_of(inventory, markdown) == [urls]
    wheel = inventory["metadata"]["component"]["bom-ref"]
    direct = needs_of(inventory, wheel)
    assert markdown in direct
    assert urls not in direct


def test_a_folder_with_files_is_left_alone(tmp_path):
    (tmp_path / "precious").touch()
    with pytest.raises(ReleaseError, match="not empty"):
        build_release(tmp_path, "HEAD")
    assert list(contents(tmp_path)) == ["precious"]


def test_a_key_is_private_and_never_overwritten(key):
    mode = key.stat().st_mode
    assert mode & 0o777 == 0o600
    with pytest.raises(ReleaseError, match="never overwritten"):
        signatures.make_key(key)


def test_a_deployment_for_another_version_is_refused(tmp_path):
    file = tmp_path / "compose" / "one-node.yml"
    file.parent.mkdir()
    file.write_text("image: ${GATEWAY_IMAGE:-bfia-gateway:0.0.9}\n")
    with pytest.raises(ReleaseError, match=r"one-node\.yml names bfia-gateway:0\.0\.9"):
        refuse_other_versions(file.parent, "0.1.0")


def test_archives_have_the_files_for_clusters_and_the_documents(release):
    names = names_in(release, "deployment")
    assert "compose/kubernetes/gateway.yml" in names
    assert "compose/.env.example" in names
    assert "compose/images.txt" in names
    names = names_in(release, "documents")
    assert "docs/first-node.zh-CN.md" in names
    assert "CHANGELOG.md" in names


def names_in(release, kind):
    (path,) = release.glob(f"bfia-gateway-*-{kind}.tar.gz")
    root = path.name.removesuffix(".tar.gz")
    with tarfile.open(path) as archive:
        return {name.removeprefix(f"{root}/") for name in archive.getnames()}
