"""A run in a cluster: a Job of one pod that never restarts, and the pod's view of the run.

The variables of a run are in a Secret of its Job. The Secret is deleted as soon as the run has started: if the pod
is removed from its machine, the cluster creates a second one, which cannot start without the Secret.
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
    TEMPORARY,
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
from engines.registry.names import DOCKER_HUB, PullRules

CONTAINER = "run"  # name of a pod's only container
STARTED = "bfia.begun"  # annotation of a Job whose program was started

# Labels
OWNER = "bfia-owner"  # node and installation, hashed
RUN = "bfia-run"

# Reasons of the cluster
_NEVER_STARTED = frozenset({"StartError", "ContainerCannotRun"})
_EVICTED = frozenset(
    {"Evicted", "Preempting", "Shutdown", "NodeShutdown", "Terminated", "NodeLost"}
)

_WEEK = (
    7 * 24 * 3600
)  # seconds after which the cluster ends a run, and removes it if no gateway does
_DEADLINE_MARGIN = 600  # seconds by which a Job outlives its pod
_DOCKER_HUB_LOGIN = "https://index.docker.io/v1/"


@dataclass(frozen=True)
class KubernetesOptions(ClusterOptions):
    """Which cluster to use, and how to run containers there."""

    kubeconfig: str = ""  # file; empty: as the environment says, in a pod its service account
    namespace: str = ""  # empty: the one of the file's current context
    pull: PullRules = field(default_factory=PullRules)
    saved_log_size: int = 32 * 1024 * 1024  # bytes of the log that `save_logs` keeps
    gpu: str = "nvidia.com/gpu"
    node_selector: Mapping[str, str] | None = None  # labels of the machines that take runs
    tolerations: tuple[Mapping[str, Any], ...] = ()
    runtime_class: str = ""
    priority_class: str = ""
    # File below the kubelets' folder for profiles, on every machine; empty: the container runtime's profile
    seccomp_profile: str = ""


@dataclass(frozen=True)
class WaitReason:
    """Why the program of a pod has not started yet; empty if the cluster does not say."""

    name: str = ""  # the cluster's word, such as ErrImagePull
    text: str = ""  # the cluster's sentence


class PodView:
    """The pod of a run as the API server describes it."""

    def __init__(self, pod: Any) -> None:
        self.name = str(pod.metadata.name)
        self.run = str((pod.metadata.labels or {}).get(RUN, ""))
        owners = pod.metadata.ownerReferences
        self.job = str(owners[0].uid) if owners else ""  # uid of the Job
        self.created = pod.metadata.creationTimestamp
        self.machine = str(pod.spec.nodeName or "")
        self.is_deleted = pod.metadata.deletionTimestamp is not None
        self.is_taken_up = False  # by the kubelet of its machine
        self._phase = ""
        self._reason = ""
        self._message = ""
        self._conditions: Mapping[str, Any] = {}
        self._says_ready = False
        self._waiting: Any = None
        self._running: Any = None
        self._ended: Any = None
        if pod.status:
            self._read_status(pod.status)

    def _read_status(self, status: Any) -> None:
        self.is_taken_up = bool(status.startTime)
        self._phase = str(status.phase or "")
        self._reason = str(status.reason or "")
        self._message = str(status.message or "")
        self._conditions = {condition.type: condition for condition in status.conditions or ()}
        if not status.containerStatuses:
            return
        container = status.containerStatuses[0]
        self._says_ready = bool(container.ready)
        if container.state:
            self._waiting = container.state.waiting
            self._running = container.state.running
            self._ended = container.state.terminated

    @property
    def has_started(self) -> bool:
        """Whether its program was started."""
        if self._ended is not None:
            return self._ended.reason not in _NEVER_STARTED and self._ended.startedAt is not None
        return self._running is not None

    @property
    def start_failure(self) -> str:
        """Why its program will never start; empty while it may."""
        if self._ended is not None:
            if self.has_started:
                return ""
            return str(self._ended.message or self._ended.reason)
        if self._phase == "Failed" and self._running is None:
            return f"{self._reason}: {self._message}"
        return ""

    @property
    def wait_reason(self) -> WaitReason:
        """Why its program has not started yet."""
        waiting = self._waiting
        if waiting is not None and waiting.reason != "ContainerCreating":
            name = str(waiting.reason or "")
            return WaitReason(name, str(waiting.message or name))
        scheduled = self._conditions.get("PodScheduled")
        if scheduled is not None and scheduled.status == "False":
            return WaitReason(str(scheduled.reason or ""), str(scheduled.message or ""))
        return WaitReason()

    @property
    def is_lost(self) -> bool:
        """Whether its machine is gone, or evicted it."""
        if self._running is not None:
            ready = self._conditions.get("Ready")
            return self._says_ready and ready is not None and ready.status != "True"
        return self.is_deleted or self._reason in _EVICTED

    @property
    def is_over(self) -> bool:
        """Whether its run does not continue."""
        return self._ended is not None or bool(self.start_failure) or self.is_lost

    def probe(self) -> Probe:
        """Return the state of the run if this is its first pod."""
        if not self.has_started or self.is_lost:
            return Missing()
        if self._running is not None:
            return Running(_to_datetime(self._running.startedAt))
        code = int(self._ended.exitCode)
        return Exited(
            code=code,
            signal=signal_of(code),
            oom_killed=self._ended.reason == "OOMKilled",
            started_at=_to_datetime(self._ended.startedAt),
            finished_at=_to_datetime(self._ended.finishedAt),
        )


def first_pod(pods: Iterable[PodView]) -> PodView | None:
    """Return the oldest pod of a Job, which is the run's; None without pods."""

    def age(pod: PodView) -> Any:
        return pod.created, pod.name

    return min(pods, key=age, default=None)


def owner_of(node: str, installation: str) -> str:
    """Return the value of the label `OWNER`, hashed because labels are limited in length and characters."""
    return hashlib.sha256(json.dumps([node, installation]).encode()).hexdigest()[:32]


def pull_name(run: str) -> str:
    """Return the name of the Secret with the login at a run's registry."""
    return f"{run}-pull"


def job_of(
    spec: LaunchSpec,
    image: RegistryImage,
    owner: str,
    pull: bool,
    options: KubernetesOptions,
) -> Job:
    """Return a run's Job, which starts nothing until its ``parallelism`` is 1.

    ``pull``: the pod needs the login of `pull_name`.
    """
    labels = {OWNER: owner, RUN: spec.name}
    pod = PodTemplateSpec(
        metadata=ObjectMeta(labels=labels), spec=_pod_spec(spec, image, pull, options)
    )
    annotations = {**spec.labels, "bfia.image": spec.image, STARTED: ""}
    return Job(
        metadata=ObjectMeta(name=spec.name, labels=labels, annotations=annotations),
        spec=JobSpec(
            template=pod,
            parallelism=0,
            completions=1,
            backoffLimit=0,
            # The pod's own deadline comes first: it keeps exit code and logs.
            activeDeadlineSeconds=_WEEK + _grace_seconds(options) + _DEADLINE_MARGIN,
            ttlSecondsAfterFinished=_WEEK,
        ),
    )


def _pod_spec(
    spec: LaunchSpec, image: RegistryImage, pull: bool, options: KubernetesOptions
) -> PodSpec:
    pod = PodSpec(
        containers=[_container(spec, image, options)],
        restartPolicy="Never",
        activeDeadlineSeconds=_WEEK,
        terminationGracePeriodSeconds=_grace_seconds(options),
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        # The first process of a namespace ignores signals without a handler; the run must not be it.
        shareProcessNamespace=True,
        securityContext=PodSecurityContext(seccompProfile=_seccomp_profile(options)),
        volumes=_volumes(spec, options),
        tolerations=_tolerations(options),
        runtimeClassName=options.runtime_class or None,
        priorityClassName=options.priority_class or None,
    )
    if pull:
        pod.imagePullSecrets = [LocalObjectReference(name=pull_name(spec.name))]
    if options.node_selector:
        pod.nodeSelector = dict(options.node_selector)
    return pod


def _tolerations(options: KubernetesOptions) -> list[Toleration]:
    """Return the configured tolerations, and two that keep a pod whose machine is gone.

    Otherwise the cluster would delete such a pod and start another one.
    """
    tolerations = []
    for taint in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{taint}"
        tolerations.append(Toleration(key=key, operator="Exists", effect="NoExecute"))
    for toleration in options.tolerations:
        tolerations.append(Toleration(**toleration))
    return tolerations


def _grace_seconds(options: KubernetesOptions) -> int:
    return max(1, round(options.grace))


def _seccomp_profile(options: KubernetesOptions) -> SeccompProfile:
    if options.seccomp_profile:
        return SeccompProfile(type="Localhost", localhostProfile=options.seccomp_profile)
    return SeccompProfile(type="RuntimeDefault")


def _container(spec: LaunchSpec, image: RegistryImage, options: KubernetesOptions) -> Container:
    mounts = []
    for name, path in _folders(spec, options).items():
        mounts.append(VolumeMount(name=name, mountPath=path))
    arguments = None
    if spec.command is not None:
        arguments = [_escaped(word) for word in spec.command]
    return Container(
        name=CONTAINER,
        image=image.reference,
        imagePullPolicy="IfNotPresent",
        args=arguments,
        workingDir=image.working_directory(HOME),
        env=_variables(spec, image),
        resources=_resources(spec, options),
        securityContext=_security_context(spec, image, options),
        volumeMounts=mounts,
        terminationMessagePolicy="File",
    )


def _variables(spec: LaunchSpec, image: RegistryImage) -> list[EnvVar]:
    """Return the variables of a run, whose values are in its Secret."""
    variables = []
    for number, name in enumerate(image.variables_for(spec, HOME)):
        key = SecretKeySelector(name=spec.name, key=_secret_key(number))
        variables.append(EnvVar(name=name, valueFrom=EnvVarSource(secretKeyRef=key)))
    return variables


def _secret_key(number: int) -> str:
    """Return the key of a variable's value in the Secret, by the variable's position."""
    return f"v{number}"


def _security_context(
    spec: LaunchSpec, image: RegistryImage, options: KubernetesOptions
) -> SecurityContext:
    context = SecurityContext(
        allowPrivilegeEscalation=False,
        privileged=False,
        readOnlyRootFilesystem=options.read_only_root,
        capabilities=Capabilities(drop=["ALL"], add=list(spec.capabilities) or None),
    )
    if image.runs_as_root:
        user, _, group = options.user.partition(":")
        context.runAsUser = int(user)
        context.runAsGroup = int(group or user)
        is_not_root = user != "0"
    else:
        is_not_root = image.user.isdecimal()  # machines cannot check a user given by name
    if is_not_root:
        context.runAsNonRoot = True
    return context


def _resources(spec: LaunchSpec, options: KubernetesOptions) -> ResourceRequirements:
    gpus = {}
    if spec.limits.gpu:
        gpus[options.gpu] = str(spec.limits.gpu)
    # Requests default to the limits, so zero has to be explicit.
    unreserved = {"cpu": "0", "memory": "0"}
    return ResourceRequirements(
        limits={**_amounts(spec.limits), **gpus},
        requests={**unreserved, **_amounts(spec.reserved), **gpus},
    )


def _amounts(limits: Limits) -> dict[str, str]:
    """Return cores and memory as quantities; only the machines' kubelets limit processes."""
    amounts = {}
    if limits.cpu is not None:
        amounts["cpu"] = f"{max(1, round(limits.cpu * 1000))}m"
    if limits.memory is not None:
        amounts["memory"] = str(limits.memory)
    return amounts


def _folders(spec: LaunchSpec, options: KubernetesOptions) -> dict[str, str]:
    """Return the private folders of a run by the names of their volumes."""
    paths = list(spec.private_folders)
    if options.read_only_root:
        paths.append(TEMPORARY)
    folders = {f"own-{number}": path for number, path in enumerate(paths)}
    return {**folders, "home": HOME, "shm": SHARED_MEMORY}


def _volumes(spec: LaunchSpec, options: KubernetesOptions) -> list[Volume]:
    """Return the volumes of a run's private folders."""
    return [
        Volume(name=name, emptyDir=_volume_source(name, spec, options))
        for name in _folders(spec, options)
    ]


def _volume_source(name: str, spec: LaunchSpec, options: KubernetesOptions) -> EmptyDirVolumeSource:
    """Return a small volume in memory; shared memory and home may be as large as the run."""
    if name == "home" and not options.read_only_root:
        return EmptyDirVolumeSource()  # on the machine's disk, like the container's own layer
    size: str | None = str(options.room)
    if name == "shm":
        memory = spec.limits.memory
        size = None if memory is None else str(memory)
    return EmptyDirVolumeSource(medium="Memory", sizeLimit=size)


def secrets_of(
    spec: LaunchSpec,
    image: RegistryImage,
    job: Job,
    owner: str,
    login: tuple[str, str] | None,
) -> list[Secret]:
    """Return the Secrets of a run's Job: its variables, and the login (user and password) at its registry."""
    assert job.metadata is not None
    job_reference = OwnerReference(
        apiVersion="batch/v1",
        kind="Job",
        name=spec.name,
        uid=str(job.metadata.uid),
        controller=True,
    )

    def secret(name: str, data: Mapping[str, bytes], kind: str) -> Secret:
        metadata = ObjectMeta(
            name=name,
            labels={OWNER: owner, RUN: spec.name},
            ownerReferences=[job_reference],
        )
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        return Secret(metadata=metadata, data=encoded, type=kind)

    values = {}
    for number, value in enumerate(image.variables_for(spec, HOME).values()):
        values[_secret_key(number)] = value.encode()
    secrets = [secret(spec.name, values, "Opaque")]
    if login is not None:
        content = {".dockerconfigjson": _docker_config(image.registry, login)}
        secrets.append(secret(pull_name(spec.name), content, "kubernetes.io/dockerconfigjson"))
    return secrets


def _docker_config(registry: str, login: tuple[str, str]) -> bytes:
    """Return a login in the form of Docker's configuration."""
    address = _DOCKER_HUB_LOGIN if registry == DOCKER_HUB else registry
    credentials = base64.b64encode(":".join(login).encode()).decode()
    return json.dumps({"auths": {address: {"auth": credentials}}}).encode()


def _escaped(word: str) -> str:
    """Return a word so that the cluster does not replace ``$(NAME)`` in it."""
    return word.replace("$", "$$")


def _to_datetime(timestamp: Any) -> datetime | None:
    """Return a time of the API server in UTC; the library leaves some as text."""
    if timestamp is None:
        return None
    moment: datetime = timestamp
    if isinstance(timestamp, str):
        moment = datetime.fromisoformat(timestamp)
    return moment.astimezone(UTC)
