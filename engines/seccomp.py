"""The system calls that containers may make: Docker's default profile, less four kinds of calls.

An AF_VSOCK socket reaches the hypervisor from any network, an AF_ALG socket the kernel's
cryptography, and io_uring makes calls that no profile sees. ``socketcall``, whose arguments a
profile cannot see, would create such sockets for 32-bit programs.

``python -m engines.seccomp`` prints the profile for a Docker daemon's configuration, and
``python -m engines.seccomp kubernetes`` the one for the machines of a cluster.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Rule = dict[str, Any]
Profile = dict[str, Any]

_DATA = Path(__file__).with_suffix(".json")
_ADMIN = "CAP_SYS_ADMIN"  # the capability that allows new namespaces

# Socket families: all below AF_ALG are allowed; above it, all except AF_VSOCK (40)
_AF_ALG = 38
_FAMILIES_ABOVE = (39, 41, 42, 43, 44, 45)
_SOCKET_CALLS = ("socket", "socketpair")

# Linux and 32-bit Linux, each also with the version number of an older kernel (UNAME26); the last
# value only asks for the present personality
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

# The flags of ``clone`` that create a namespace
# (NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET)
_NAMESPACE_FLAGS = 0x7E020000

# Error numbers
_NOT_PERMITTED = 1  # EPERM
_NO_SUCH_CALL = 38  # ENOSYS

# Each architecture with the 32-bit ones whose programs its kernel also runs
_ARCHITECTURES = {
    "SCMP_ARCH_X86_64": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"],
    "SCMP_ARCH_AARCH64": ["SCMP_ARCH_ARM"],
}

# Names of a daemon's profiles that no admin wrote; ``unconfined``: the daemon applies none
_DEFAULT_PROFILES = ("default", "builtin", "unconfined")


def docker_profile() -> Profile:
    """Return the profile in Docker's form.

    In this form some calls depend on a container's capabilities.
    """
    data = _read_data()
    rules = _common_rules(data)
    for rule in _clone_rules():
        # Not for containers with this capability: a rule below allows them ``clone`` and ``clone3``
        # without conditions.
        rule["excludes"] = {"caps": [_ADMIN]}
        rules.append(rule)
    for capability, names in data["with a capability"].items():
        rule = _allow(names.split())
        rule["includes"] = {"caps": [capability]}
        rules.append(rule)
    architectures = []
    for name, sub_architectures in _ARCHITECTURES.items():
        architectures.append({"architecture": name, "subArchitectures": sub_architectures})
    return _profile("archMap", architectures, rules)


def cluster_profile() -> Profile:
    """Return the profile in the form of container runtimes, for containers without capabilities."""
    architectures = []
    for name, sub_architectures in _ARCHITECTURES.items():
        architectures.append(name)
        architectures.extend(sub_architectures)
    rules = _common_rules(_read_data())
    rules.extend(_clone_rules())
    return _profile("architectures", architectures, rules)


def is_replaceable(security_options: Iterable[str]) -> bool:
    """Return whether our profile may replace the one that a daemon uses by default.

    False for a daemon without seccomp support, and for one whose profile an admin wrote. A daemon
    set to ``unconfined`` counts as using a default. ``security_options`` are the daemon's, such as
    ``name=seccomp,profile=builtin``.
    """
    for option in security_options:
        fields = dict(_fields(option))
        if fields.get("name") == "seccomp":
            return fields.get("profile", "default") in _DEFAULT_PROFILES
    return False


def _fields(option: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of an option such as ``name=seccomp,profile=builtin``."""
    for field in option.split(","):
        name, _, value = field.partition("=")
        yield name, value


def _read_data() -> Mapping[str, Mapping[str, str]]:
    """Return the calls that the profiles allow, as names separated by spaces.

    The keys are nested: "always" -> name of a group -> calls, and "with a capability" -> name of
    the capability -> calls. Names of groups are for readers only.
    """
    data: Mapping[str, Mapping[str, str]] = json.loads(_DATA.read_text(encoding="ascii"))
    return data


def _profile(
    architectures_key: str, architectures: Sequence[Any], rules: Sequence[Rule]
) -> Profile:
    """Return a profile that refuses every call without a rule."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _NOT_PERMITTED,
        architectures_key: architectures,
        "syscalls": rules,
    }


def _common_rules(data: Mapping[str, Mapping[str, str]]) -> list[Rule]:
    """Return the rules of both profiles, apart from those for ``clone``."""
    # For 32-bit programs ``socketcall`` bundles calls such as ``socket``, and a rule that allows
    # one of these allows ``socketcall`` as well. The refusal comes first to precede such rules. It
    # needs an error number other than the default one, as a rule equal to the default is ignored.
    rules = [_hide("socketcall")]
    for names in data["always"].values():
        rules.append(_allow(names.split()))
    # The rules name the allowed families, not the refused ones: a profile compares all 64 bits of a
    # value, and the kernel uses only 32, so a refused number with other high bits would
    # count as an allowed one.
    rules.append(_allow(_SOCKET_CALLS, _argument("SCMP_CMP_LT", _AF_ALG)))
    for family in _FAMILIES_ABOVE:
        rules.append(_allow(_SOCKET_CALLS, _argument("SCMP_CMP_EQ", family)))
    for personality in _PERSONALITIES:
        rules.append(_allow(["personality"], _argument("SCMP_CMP_EQ", personality)))
    return rules


def _clone_rules() -> list[Rule]:
    """Return the rules for new processes and threads, which may not be in a new namespace."""
    without_namespace = _argument("SCMP_CMP_MASKED_EQ", _NAMESPACE_FLAGS)
    # A profile cannot see the arguments of clone3.
    return [_allow(["clone"], without_namespace), _hide("clone3")]


def _hide(name: str) -> Rule:
    """Return a rule that makes a call appear to be missing, so that programs use another call."""
    return {
        "names": [name],
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": _NO_SUCH_CALL,
    }


def _allow(names: Sequence[str], *arguments: Mapping[str, Any]) -> Rule:
    """Return a rule that allows calls, if all the conditions on their arguments hold."""
    rule: Rule = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    if arguments:
        rule["args"] = list(arguments)
    return rule


def _argument(comparison: str, value: int) -> dict[str, Any]:
    """Return a condition on the first argument of a call."""
    return {"index": 0, "value": value, "op": comparison}


def main() -> None:
    """Print the profile that the command line names."""
    is_for_cluster = sys.argv[1:] == ["kubernetes"]
    if is_for_cluster:
        profile = cluster_profile()
    else:
        profile = docker_profile()
    print(json.dumps(profile, indent=1))


if __name__ == "__main__":
    main()
