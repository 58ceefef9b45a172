"""The system calls that containers may make: those of Docker's default profile, less three kinds.

An AF_VSOCK socket reaches the hypervisor whatever network a container is in, an AF_ALG socket the kernel's
cryptography, and io_uring makes calls that no profile sees. ``socketcall``, whose arguments a profile cannot see,
would make such sockets for 32-bit programs.

``python -m engines.seccomp`` prints the profile for a Docker daemon's configuration, and
``python -m engines.seccomp kubernetes`` that for the machines of a cluster.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_DATA = Path(__file__).with_suffix(".json")
_ADMIN = "CAP_SYS_ADMIN"
_ALG = 38
_FAMILIES_ABOVE = (39, 41, 42, 43, 44, 45)
"""of sockets, without AF_VSOCK, which is 40"""
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Linux and BSD without options, of each also the form with an older version number; and a query"""
_NEW_NAMESPACES = 0x7E020000
"""the flags of ``clone`` that make one"""
_NOT_PERMITTED, _NO_SUCH_CALL = 1, 38
_ARCHITECTURES = {
    "SCMP_ARCH_X86_64": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"],
    "SCMP_ARCH_AARCH64": ["SCMP_ARCH_ARM"],
}


def docker_profile() -> dict[str, Any]:
    """Return the profile in Docker's form, where some calls depend on a container's capabilities."""
    data = json.loads(_DATA.read_text(encoding="ascii"))
    without_admin = {"excludes": {"caps": [_ADMIN]}}
    rules = _rules_for_all(data)
    rules += [{**rule, **without_admin} for rule in _rules_of_clone()]
    for capability, names in data["with a capability"].items():
        rules.append({**_allowed(names.split()), "includes": {"caps": [capability]}})
    architectures = [
        {"architecture": name, "subArchitectures": others}
        for name, others in _ARCHITECTURES.items()
    ]
    return {
        **_otherwise_refused(),
        "archMap": architectures,
        "syscalls": rules,
    }


def cluster_profile() -> dict[str, Any]:
    """Return the profile in the form of container runtimes, for containers without capabilities."""
    data = json.loads(_DATA.read_text(encoding="ascii"))
    architectures = [name for main, others in _ARCHITECTURES.items() for name in (main, *others)]
    rules = [*_rules_for_all(data), *_rules_of_clone()]
    return {
        **_otherwise_refused(),
        "architectures": architectures,
        "syscalls": rules,
    }


def is_replaceable(security_options: Iterable[str]) -> bool:
    """Whether a daemon that describes itself so applies profiles, and has none that its admin chose."""
    for option in security_options:
        fields = dict(field.partition("=")[::2] for field in option.split(","))
        if fields.get("name") == "seccomp":
            return fields.get("profile", "default") in ("default", "builtin", "unconfined")
    return False


def _otherwise_refused() -> dict[str, Any]:
    return {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": _NOT_PERMITTED}


def _rules_for_all(data: Mapping[str, Mapping[str, str]]) -> list[dict[str, Any]]:
    # first, and with an error of its own: else it came with the permission for the calls that it stands for
    rules = [_missing("socketcall")]
    rules += [_allowed(names.split()) for names in data["always"].values()]
    # those that may be made, by name: of the value a profile compares 64 bits, and the kernel takes 32
    rules.append(_allowed(["socket", "socketpair"], _argument("SCMP_CMP_LT", _ALG)))
    for family in _FAMILIES_ABOVE:
        rules.append(_allowed(["socket", "socketpair"], _argument("SCMP_CMP_EQ", family)))
    for personality in _PERSONALITIES:
        rules.append(_allowed(["personality"], _argument("SCMP_CMP_EQ", personality)))
    return rules


def _rules_of_clone() -> list[dict[str, Any]]:
    """Return how new processes and threads are made, in no new namespace."""
    plain = _allowed(["clone"], _argument("SCMP_CMP_MASKED_EQ", _NEW_NAMESPACES))
    # whose arguments a profile cannot see either
    return [plain, _missing("clone3")]


def _missing(name: str) -> dict[str, Any]:
    """Return a rule by which a call does not exist, so that programs make another one instead."""
    return {
        "names": [name],
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": _NO_SUCH_CALL,
    }


def _allowed(names: list[str], *arguments: Mapping[str, Any]) -> dict[str, Any]:
    rule: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ALLOW"}
    if arguments:
        rule["args"] = list(arguments)
    return rule


def _argument(comparison: str, value: int) -> dict[str, Any]:
    return {
        "index": 0,
        "value": value,
        "op": comparison,
    }


if __name__ == "__main__":
    profile = cluster_profile() if sys.argv[1:] == ["kubernetes"] else docker_profile()
    print(json.dumps(profile, indent=1))
