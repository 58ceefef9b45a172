#!/usr/bin/env python3.11
"""The last network plugin of a machine: before a pod begins, all pods are kept to the cluster's NetworkPolicies.

A pod whose name is not known yet sends and gets nothing. Holds what the shipped policies use: pods of the same
namespace, blocks of addresses, TCP ports by number or name; and leads Services of one pod to it. Rules are those
of the moment when the last pod began.
"""

import fcntl
import json
import os
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

OPEN, CLOSED = "RETURN", "DROP"


def main() -> None:
    """Act as CNI_COMMAND says; what to know is on stdin."""
    asked = json.load(sys.stdin)
    folder = Path(asked["addresses"])
    folder.mkdir(exist_ok=True)
    with (folder.parent / "policies.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        names = dict(
            pair.split("=", 1) for pair in os.environ.get("CNI_ARGS", "").split(";") if pair
        )
        own = folder / os.environ.get("CNI_CONTAINERID", "")
        if os.environ["CNI_COMMAND"] == "ADD":
            address = asked["prevResult"]["ips"][0]["address"].partition("/")[0]
            own.write_text(f"{names['K8S_POD_NAMESPACE']}/{names['K8S_POD_NAME']} {address}")
            newest = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime)
            enforce(asked, dict(file.read_text().split() for file in newest))
            print(json.dumps(asked["prevResult"]))
        elif os.environ["CNI_COMMAND"] == "DEL":
            own.unlink(missing_ok=True)
        elif os.environ["CNI_COMMAND"] == "VERSION":
            print(json.dumps({"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}))


def enforce(asked: dict, addresses: dict) -> None:
    """Write the rules of every machine; ``addresses`` by the pods' names."""
    ask = cluster(asked)
    pods = {
        f"{one['metadata']['namespace']}/{one['metadata']['name']}": one
        for one in ask("/api/v1/pods")
    }
    policies = ask("/apis/networking.k8s.io/v1/networkpolicies")
    known = {at: pods[name] for name, at in addresses.items() if name in pods}
    services = ["*nat", ":BFIA-SERVICES - [0:0]"]
    for service in ask("/api/v1/services"):
        spec = service["spec"]
        selector = {"matchLabels": spec.get("selector", {"": ""})}
        of = [at for at, pod in known.items() if selects(service, selector, pod)]
        for port in spec["ports"] if len(of) == 1 and spec["clusterIP"] != "None" else ():
            to = f"{of[0]}:{number(port['targetPort'], known[of[0]])}"
            match = f"-d {spec['clusterIP']} -p tcp --dport {port['port']}"
            services.append(f"-A BFIA-SERVICES {match} -j DNAT --to-destination {to}")
    for machine in asked["machines"]:
        lines = [*services, "COMMIT", "*filter"]
        for chain, way in (("BFIA-OUT", "-s"), ("BFIA-IN", "-d")):
            lines += [
                f":{chain} - [0:0]",
                f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j {OPEN}",
            ]
            for at, pod in known.items():
                lines += [
                    f"-A {chain} {way} {at} {rule}" for rule in rules(way, pod, policies, known)
                ]
            lines += [f"-A {chain} -j {CLOSED}"]
        enter = [
            "nsenter",
            f"--net=/var/run/netns/{machine}",
            "iptables-restore",
            "-w",
            "--noflush",
        ]
        subprocess.run(enter, input="\n".join([*lines, "COMMIT", ""]), text=True, check=True)


def rules(way: str, pod: dict, policies: list, known: dict) -> list:
    """Return what a pod may send (-s) or get (-d), the rest of a line each; the first that matches holds."""
    kind, list_, side, other = {
        "-s": ("Egress", "egress", "to", "-d"),
        "-d": ("Ingress", "ingress", "from", "-s"),
    }[way]
    mine = [one["spec"] for one in policies if selects(one, one["spec"]["podSelector"], pod)]
    mine = [spec for spec in mine if kind in spec["policyTypes"]]
    if not mine:
        return [f"-j {OPEN}"]
    found = []
    for rule in (rule for spec in mine for rule in spec.get(list_, ())):
        peers = [""]
        if side in rule:
            peers = [f"{other} {at} " for peer in rule[side] for at in blocks(peer, pod, known)]
        ports = [
            f"-p tcp --dport {number(port['port'], pod)} " for port in rule.get("ports", ())
        ] or [""]
        found += [f"{peer}{port}-j {OPEN}" for peer in peers for port in ports]
    return [*found, f"-j {CLOSED}"]


def blocks(peer: dict, pod: dict, known: dict) -> list:
    """Return the addresses of a peer that a rule names."""
    if "ipBlock" in peer:
        return [peer["ipBlock"]["cidr"]]
    return [at for at, one in known.items() if selects(pod, peer["podSelector"], one)]


def selects(by: dict, selector: dict, pod: dict) -> bool:
    """Say whether a selector in something of a namespace is about this pod."""
    labels = pod["metadata"].get("labels", {})
    if by["metadata"]["namespace"] != pod["metadata"]["namespace"]:
        return False
    there = {"Exists": True, "DoesNotExist": False}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        (wanted["key"] in labels) is there[wanted["operator"]]
        for wanted in selector.get("matchExpressions", ())
    )


def number(port: int | str, pod: dict) -> int:
    """Return a port by number; a name is one of the pod's own."""
    if isinstance(port, int):
        return port
    named = (one for container in pod["spec"]["containers"] for one in container.get("ports", ()))
    return next(one["containerPort"] for one in named if one.get("name") == port)


def cluster(asked: dict):
    """Return what lists the cluster's objects at a path."""
    context = ssl.create_default_context(cafile=f"{asked['pki']}/ca.crt")
    context.load_cert_chain(f"{asked['pki']}/admin.crt", f"{asked['pki']}/admin.key")

    def ask(path: str) -> list:
        with urllib.request.urlopen(asked["api"] + path, context=context, timeout=20) as answer:
            return json.load(answer)["items"]

    return ask


main()
