"""What a run is in a cluster: a Job of one pod that is never started again, and what its pod says of it.

The variables of a run are in a Secret of the Job. It is deleted as soon as the run has begun: a second pod, which
the cluster makes for a Job whose pod was removed from its machine, cannot start without it.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lightkube.models.batch_v1 import JobSpec
from lightkube.models.core_v1 import (
    Capabilities,
    Container,
    EmptyDirVolumeSource,
    EnvVar,
    EnvVarSource,
    LocalObjectReference,
    PodSecurityContext,
    PodSpec,
    PodTemplateSpec,
    ResourceRequirements,
    SeccompProfile,
    SecretKeySelector,
    SecurityContext,
    Toleration,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Secret

from engines.base import (
    HOME,
    SHARED_MEMORY,
    ClusterOptions,
    Exited,
    LaunchSpec,
    Limits,
    Missing,
    Probe,
    Running,
    signal_of,
)
from engines.kubernetes.images import RegistryImage
from engines.registry.names import PullRules

CONTAINER = "run"
BEGUN = "bfia.begun"
"""annotation of a Job whose program was started"""
OWNER, RUN = "bfia-owner", "bfia-run"
"""labels: of which node and installation, and which run; their values are hashed where they have to be"""

_NEVER_BEGAN = frozenset({"StartError", "ContainerCannotRun"})
_TAKEN_AWAY = frozenset(
    {"Evicted", "Preempting", "Shutdown", "NodeShutdown", "Terminated", "NodeLost"}
)
_WEEK = 7 * 24 * 3600
"""seconds after which the cluster ends a run, and then removes it, should no gateway be there"""


@dataclass(frozen=True)
class KubernetesOptions(ClusterOptions):
    """Which cluster to use, and how to run there."""

    kubeconfig: str = ""
    """file; default as the environment says, in a pod its service account"""
    namespace: str = ""
    """default that of the file's current context"""
    pull: PullRules = field(default_factory=PullRules)
    saved_log_size: int = 32 * 1024 * 1024
    """bytes of the log that `save_logs` keeps"""
    gpu: str = "nvidia.com/gpu"
    node_selector: Mapping[str, str] | None = None
    """labels of the machines that take runs"""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    runtime_class: str = ""
    priority_class: str = ""
    seccomp_profile: str = ""
    """file below the kubelets' folder for profiles, on every machine; default that of the container runtime"""


class PodView:
    """One pod of a run as the API server describes it."""

    def __init__(self, pod: Any) -> None:
        status = pod.status
        self.name = str(pod.metadata.name)
        self.run = str((pod.metadata.labels or {}).get(RUN, ""))
        self.job = next((str(owner.uid) for owner in pod.metadata.ownerReferences or ()), "")
        self.created = pod.metadata.creationTimestamp
        self.machine = str(pod.spec.nodeName or "")
        self.taken_up = bool(status and status.startTime)
        """whether its machine knows of it"""
        self.deleted = pod.metadata.deletionTimestamp is not None
        self._phase = str(status.phase or "") if status else ""
        self._reason = str(status.reason or "") if status else ""
        self._message = str(status.message or "") if status else ""
        self._conditions = {one.type: one for one in (status.conditions or () if status else ())}
        seen = next(iter(status.containerStatuses or ()), None) if status else None
        state = seen.state if seen else None
        self._says_ready = bool(seen and seen.ready)
        self._waiting = state.waiting if state else None
        self._running = state.running if state else None
        self._ended = state.terminated if state else None

    @property
    def begun(self) -> bool:
        """Whether its program was started."""
        if self._ended is not None:
            return self._ended.reason not in _NEVER_BEGAN and self._ended.startedAt is not None
        return self._running is not None

    @property
    def failed(self) -> str:
        """Why its program will not be started; empty while it may be."""
        if self._ended is not None and not self.begun:
            return str(self._ended.message or self._ended.reason)
        if self._phase == "Failed" and self._ended is None and self._running is None:
            return f"{self._reason}: {self._message}"
        return ""

    @property
    def waits_for(self) -> tuple[str, str]:
        """Return why its program was not started yet, as the cluster names it, and the cluster's sentence."""
        if self._waiting is not None and self._waiting.reason != "ContainerCreating":
            return str(self._waiting.reason or ""), str(
                self._waiting.message or self._waiting.reason or ""
            )
        scheduled = self._conditions.get("PodScheduled")
        if scheduled is not None and scheduled.status == "False":
            return str(scheduled.reason or ""), str(scheduled.message or "")
        return "", ""

    @property
    def lost(self) -> bool:
        """Whether its machine is gone, or has put it out."""
        if self._running is not None:
            ready = self._conditions.get("Ready")
            return self._says_ready and ready is not None and ready.status != "True"
        return self.deleted or self._reason in _TAKEN_AWAY

    @property
    def over(self) -> bool:
        """Whether its run does not go on."""
        return self._ended is not None or bool(self.failed) or self.lost

    def probe(self) -> Probe:
        """Return the state of a run whose pod this is."""
        if not self.begun or self.lost:
            return Missing()
        if self._running is not None:
            return Running(_time(self._running.startedAt))
        ended: Any = self._ended
        code = int(ended.exitCode)
        oom = ended.reason == "OOMKilled"
        return Exited(code, signal_of(code), oom, _time(ended.startedAt), _time(ended.finishedAt))


def first(pods: Iterable[PodView]) -> PodView | None:
    """Return a Job's own pod: the one that was made first."""
    return min(pods, key=lambda pod: (pod.created, pod.name), default=None)


def owner_of(node: str, installation: str) -> str:
    """Return the value of the label `OWNER`, which may have neither any length nor any character."""
    return hashlib.sha256(json.dumps([node, installation]).encode()).hexdigest()[:32]


def job_of(
    spec: LaunchSpec,
    image: RegistryImage,
    owner: str,
    pull: bool,
    options: KubernetesOptions,
) -> Job:
    """Return a run's Job, which starts nothing before its ``parallelism`` is 1."""
    ids = {OWNER: owner, RUN: spec.name}
    grace = max(1, round(options.grace))
    pod = PodSpec(
        containers=[_container(spec, image, options)],
        restartPolicy="Never",
        activeDeadlineSeconds=_WEEK,
        terminationGracePeriodSeconds=grace,
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        # so that the first process of the run is not the first of its namespace, which signals would not end
        shareProcessNamespace=True,
        securityContext=PodSecurityContext(seccompProfile=_system_calls(options)),
        volumes=_volumes(spec, options),
        imagePullSecrets=[LocalObjectReference(name=pull_name(spec.name))] if pull else None,
        nodeSelector=dict(options.node_selector) if options.node_selector else None,
        # a machine that is gone would have its pods deleted, and another pod started
        tolerations=[
            *(
                Toleration(
                    key=f"node.kubernetes.io/{why}",
                    operator="Exists",
                    effect="NoExecute",
                )
                for why in ("not-ready", "unreachable")
            ),
            *(Toleration(**one) for one in options.tolerations),
        ],
        runtimeClassName=options.runtime_class or None,
        priorityClassName=options.priority_class or None,
    )
    return Job(
        metadata=ObjectMeta(
            name=spec.name,
            labels=ids,
            annotations={
                **spec.labels,
                "bfia.image": spec.image,
                BEGUN: "",
            },
        ),
        spec=JobSpec(
            template=PodTemplateSpec(metadata=ObjectMeta(labels=ids), spec=pod),
            parallelism=0,
            completions=1,
            backoffLimit=0,
            # the pod's own comes first: it keeps exit code and logs
            activeDeadlineSeconds=_WEEK + grace + 600,
            ttlSecondsAfterFinished=_WEEK,
        ),
    )


def secrets_of(
    spec: LaunchSpec,
    image: RegistryImage,
    job: Job,
    owner: str,
    login: tuple[str, str] | None,
) -> list[Secret]:
    """Return the Secrets of a run's Job: its variables, and the login at its image's registry."""
    assert job.metadata is not None
    owned_by = OwnerReference(
        apiVersion="batch/v1",
        kind="Job",
        name=spec.name,
        uid=str(job.metadata.uid),
        controller=True,
    )

    def secret(
        name: str,
        data: Mapping[str, bytes],
        kind: str,
    ) -> Secret:
        about = ObjectMeta(
            name=name,
            labels={OWNER: owner, RUN: spec.name},
            ownerReferences=[owned_by],
        )
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        return Secret(
            metadata=about,
            data=encoded,
            type=kind,
        )

    variables = image.variables_for(spec, HOME)
    values = {f"v{n}": value.encode() for n, value in enumerate(variables.values())}
    made = [secret(spec.name, values, "Opaque")]
    if login is not None:
        place = "https://index.docker.io/v1/" if image.registry == "docker.io" else image.registry
        auths = {place: {"auth": base64.b64encode(":".join(login).encode()).decode()}}
        text = {".dockerconfigjson": json.dumps({"auths": auths}).encode()}
        made.append(secret(pull_name(spec.name), text, "kubernetes.io/dockerconfigjson"))
    return made


def pull_name(run: str) -> str:
    """Return the name of the Secret with the login at a run's registry."""
    return f"{run}-pull"


def _container(
    spec: LaunchSpec,
    image: RegistryImage,
    options: KubernetesOptions,
) -> Container:
    user, _, group = options.user.partition(":")
    ours = image.runs_as_root
    gpus = {options.gpu: str(spec.limits.gpu)} if spec.limits.gpu else {}
    return Container(
        name=CONTAINER,
        image=image.reference,
        imagePullPolicy="IfNotPresent",
        args=None if spec.command is None else [_plain(word) for word in spec.command],
        workingDir=image.working_directory(HOME),
        env=[
            EnvVar(
                name=name,
                valueFrom=EnvVarSource(secretKeyRef=SecretKeySelector(name=spec.name, key=f"v{n}")),
            )
            for n, name in enumerate(image.variables_for(spec, HOME))
        ],
        resources=ResourceRequirements(
            limits={**_amounts(spec.limits), **gpus},
            requests={
                "cpu": "0",
                "memory": "0",
                **_amounts(spec.reserved),
                **gpus,
            },  # left out: as the limits
        ),
        securityContext=SecurityContext(
            allowPrivilegeEscalation=False,
            privileged=False,
            readOnlyRootFilesystem=options.read_only_root,
            capabilities=Capabilities(drop=["ALL"], add=list(spec.capabilities) or None),
            runAsUser=int(user) if ours else None,
            runAsGroup=int(group or user) if ours else None,
            # of a user with a name, machines cannot tell
            runAsNonRoot=True if (ours and user != "0") or image.user.isdecimal() else None,
        ),
        volumeMounts=[
            VolumeMount(name=name, mountPath=path) for name, path in _folders(spec, options).items()
        ],
        terminationMessagePolicy="File",
    )


def _system_calls(options: KubernetesOptions) -> SeccompProfile:
    if options.seccomp_profile:
        return SeccompProfile(type="Localhost", localhostProfile=options.seccomp_profile)
    return SeccompProfile(type="RuntimeDefault")


def _folders(spec: LaunchSpec, options: KubernetesOptions) -> dict[str, str]:
    """Return the folders that a run has for itself, by the names of their volumes."""
    paths = [*spec.private_folders, *(["/tmp"] if options.read_only_root else [])]
    own = {f"own-{n}": path for n, path in enumerate(paths)}
    return {
        **own,
        "home": HOME,
        "shm": SHARED_MEMORY,
    }


def _volumes(spec: LaunchSpec, options: KubernetesOptions) -> list[Volume]:
    """Return the volumes of these folders: in memory and small, but for those that may be as large as the run."""
    volumes = []
    for name in _folders(spec, options):
        source = EmptyDirVolumeSource(medium="Memory", sizeLimit=str(options.room))
        if name == "shm":
            size = None if spec.limits.memory is None else str(spec.limits.memory)
            source = EmptyDirVolumeSource(medium="Memory", sizeLimit=size)
        elif name == "home" and not options.read_only_root:
            source = EmptyDirVolumeSource()  # on the machine's disk, as the container's own layer
        volumes.append(Volume(name=name, emptyDir=source))
    return volumes


def _amounts(limits: Limits) -> dict[str, str]:
    """Return cores and memory; processes are limited by each machine's kubelet alone."""
    most = {
        "cpu": None if limits.cpu is None else f"{max(1, round(limits.cpu * 1000))}m",
        "memory": limits.memory,
    }
    return {name: str(value) for name, value in most.items() if value is not None}


def _plain(word: str) -> str:
    """Return what a cluster, which fills in ``$(NAME)``, hands on as this word."""
    return word.replace("$", "$$")


def _time(seen: Any) -> datetime | None:
    if seen is None:
        return None
    return (datetime.fromisoformat(seen) if isinstance(seen, str) else seen).astimezone(UTC)
