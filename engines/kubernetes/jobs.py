"""A run in a cluster: a Job of one pod that never restarts, and what the pod says of the run.

The variables of a run are in a Secret of its Job. The Secret is deleted as soon as the run has
started: if the pod is removed from its machine, the cluster creates a second one, which cannot
start without the Secret.
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
STARTED = "bfia.begun"  # annotation of a Job: empty until its program was started

# Labels
OWNER = "bfia-owner"  # node and installation, hashed
RUN = "bfia-run"  # name of the run

# The cluster's reasons for the end of a container that never started, and for the end of a pod that
# a machine gave up
_NEVER_STARTED = frozenset({"StartError", "ContainerCannotRun"})
_EVICTED = frozenset(
    {"Evicted", "Preempting", "Shutdown", "NodeShutdown", "Terminated", "NodeLost"}
)

# Seconds. Both the longest time of a run, and how long the cluster keeps a finished Job that no
# gateway has removed
_WEEK = 7 * 24 * 3600
_DEADLINE_MARGIN = 600  # seconds by which a Job outlives its pod
# Docker Hub's name in Docker's configuration
_DOCKER_HUB_LOGIN = "https://index.docker.io/v1/"


@dataclass(frozen=True)
class KubernetesOptions(ClusterOptions):
    """Which cluster to use, and how to run containers there."""

    # Path of the kubeconfig. Empty: if the gateway runs in a pod, the pod's service account; else
    # $KUBECONFIG or ~/.kube/config
    kubeconfig: str = ""
    namespace: str = ""  # empty: the one of the kubeconfig's current context
    pull: PullRules = field(default_factory=PullRules)
    saved_log_size: int = 32 * 1024 * 1024  # bytes of the log that `save_logs` keeps
    gpu: str = "nvidia.com/gpu"  # as in `ClusterOptions`
    node_selector: Mapping[str, str] | None = None  # labels of the machines that take runs
    tolerations: tuple[Mapping[str, Any], ...] = ()  # of pods, in the cluster's notation
    runtime_class: str = ""  # name of a RuntimeClass; empty: the cluster's default
    priority_class: str = ""  # name of a PriorityClass; empty: the cluster's default
    # File below the kubelets' folder for profiles, on every machine; empty: the container runtime's
    # profile
    seccomp_profile: str = ""


@dataclass(frozen=True)
class WaitReason:
    """Why the program of a pod has not started yet; empty if the cluster does not say."""

    name: str = ""  # the cluster's word, such as ErrImagePull
    text: str = ""  # the cluster's sentence


class PodView:
    """The pod of a run as the API server describes it."""

    def __init__(self, pod: Any) -> None:
        """``pod``: the library's object, whose status may be missing or lack any of its fields."""
        metadata = pod.metadata
        labels = metadata.labels or {}
        owners = metadata.ownerReferences
        self.name = str(metadata.name)
        self.run = str(labels.get(RUN, ""))
        self.job = ""  # uid of the Job
        if owners:
            self.job = str(owners[0].uid)
        self.created = metadata.creationTimestamp
        self.machine = _text(pod.spec.nodeName)  # empty: it is not placed yet
        self.is_deleted = metadata.deletionTimestamp is not None
        self.is_taken_up = False  # whether the kubelet of its machine has accepted it
        self._phase = ""
        self._reason = ""
        self._message = ""
        self._conditions: dict[str, Any] = {}  # by type
        self._says_ready = False  # the flag ``ready`` of the container
        # The state of the container: at most one is not None
        self._waiting: Any = None
        self._running: Any = None
        self._ended: Any = None
        if pod.status:
            self._read_status(pod.status)

    def _read_status(self, status: Any) -> None:
        """Read the status of the pod, and that of its container if it has one yet."""
        self.is_taken_up = bool(status.startTime)
        self._phase = _text(status.phase)
        self._reason = _text(status.reason)
        self._message = _text(status.message)
        for condition in status.conditions or ():
            self._conditions[condition.type] = condition
        if status.containerStatuses:
            self._read_container(status.containerStatuses[0])

    def _read_container(self, status: Any) -> None:
        """Read the status of the pod's only container."""
        self._says_ready = bool(status.ready)
        if status.state:
            self._waiting = status.state.waiting
            self._running = status.state.running
            self._ended = status.state.terminated

    @property
    def has_started(self) -> bool:
        """Whether its program was started."""
        if self._ended is None:
            return self._running is not None
        failed_to_start = self._ended.reason in _NEVER_STARTED
        return not failed_to_start and self._ended.startedAt is not None

    @property
    def start_failure(self) -> str:
        """Why its program will never start; empty while it may, and once it was started."""
        if self.has_started:
            return ""
        if self._ended is not None:
            return str(self._ended.message or self._ended.reason)
        if self._phase == "Failed":
            return f"{self._reason}: {self._message}"
        return ""

    @property
    def wait_reason(self) -> WaitReason:
        """Why its program has not started yet.

        The reason of the container comes first, then the reason of the placement. Empty while the
        container is only being created, and as long as the cluster gives neither reason.
        """
        waiting = self._waiting
        if waiting is not None and waiting.reason != "ContainerCreating":
            name = _text(waiting.reason)
            return WaitReason(name, _text(waiting.message) or name)
        scheduled = self._conditions.get("PodScheduled")
        if scheduled is not None and scheduled.status == "False":
            return WaitReason(_text(scheduled.reason), _text(scheduled.message))
        return WaitReason()

    @property
    def is_lost(self) -> bool:
        """Whether the pod was deleted or evicted, or its machine is gone.

        The status of a container stays as it was when its machine disappeared: ready and running.
        Only the pod's condition Ready, which the cluster sets, becomes false.
        """
        if self._running is None:  # it has not started, or has ended
            return self.is_deleted or self._reason in _EVICTED
        ready = self._conditions.get("Ready")
        is_ready = ready is None or ready.status == "True"
        return self._says_ready and not is_ready

    @property
    def has_log(self) -> bool:
        """Whether its program was started on a machine that still has the log."""
        return self.has_started and not self.is_lost

    @property
    def is_over(self) -> bool:
        """Whether its run will not continue: it has exited, cannot start, or is lost."""
        has_exited = self._ended is not None
        return any((has_exited, self.start_failure, self.is_lost))

    def probe(self) -> Probe:
        """Return the state of the run, provided that this is its first pod."""
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


def _text(value: str | None) -> str:
    """Return a text of the API server; empty if the server gives none."""
    return value or ""


def first_pod(pods: Iterable[PodView]) -> PodView | None:
    """Return the oldest pod of a Job, which is the run's; None without pods."""

    def age(pod: PodView) -> Any:
        return pod.created, pod.name

    return min(pods, key=age, default=None)


def owner_of(node: str, installation: str) -> str:
    """Return the value of the label `OWNER`.

    It is hashed, because the values of labels are limited in length and characters.
    """
    return hashlib.sha256(json.dumps([node, installation]).encode()).hexdigest()[:32]


def login_secret_name(run: str) -> str:
    """Return the name of the Secret with the login at a run's registry."""
    return f"{run}-pull"


def job_of(
    spec: LaunchSpec,
    image: RegistryImage,
    owner: str,
    needs_login: bool,
    options: KubernetesOptions,
) -> Job:
    """Return a run's Job, which starts nothing until its ``parallelism`` is 1.

    ``owner``: as `owner_of` returns it; ``needs_login``: the machine needs the login in the Secret
    `login_secret_name` to pull the image.
    """
    labels = {OWNER: owner, RUN: spec.name}
    pod = PodTemplateSpec(
        metadata=ObjectMeta(labels=labels), spec=_pod_spec(spec, image, needs_login, options)
    )
    annotations = {**spec.labels, "bfia.image": spec.image, STARTED: ""}
    return Job(
        metadata=ObjectMeta(
            name=spec.name,
            labels=labels,
            annotations=annotations,
        ),
        spec=JobSpec(
            template=pod,
            parallelism=0,
            completions=1,
            backoffLimit=0,
            # The pod's own deadline comes first: it ends the program, but leaves exit code and log.
            # This one deletes the pod.
            activeDeadlineSeconds=_WEEK + _grace_seconds(options) + _DEADLINE_MARGIN,
            ttlSecondsAfterFinished=_WEEK,
        ),
    )


def _pod_spec(
    spec: LaunchSpec, image: RegistryImage, needs_login: bool, options: KubernetesOptions
) -> PodSpec:
    """Return the pod of a run; ``needs_login``: as for `job_of`."""
    pod = PodSpec(
        containers=[_container(spec, image, options)],
        restartPolicy="Never",
        activeDeadlineSeconds=_WEEK,
        terminationGracePeriodSeconds=_grace_seconds(options),
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        # The first process of a namespace ignores every signal without a handler. In a namespace of
        # the whole pod, the first process is the pod's own, not the run's program.
        shareProcessNamespace=True,
        securityContext=PodSecurityContext(seccompProfile=_seccomp_profile(options)),
        volumes=_volumes(spec, options),
        tolerations=_tolerations(options),
        runtimeClassName=options.runtime_class or None,
        priorityClassName=options.priority_class or None,
    )
    if needs_login:
        pod.imagePullSecrets = [LocalObjectReference(name=login_secret_name(spec.name))]
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
    """Return the seconds between SIGTERM and SIGKILL, which the cluster takes as a whole number."""
    return max(1, round(options.grace))


def _seccomp_profile(options: KubernetesOptions) -> SeccompProfile:
    """Return the configured profile of system calls, else the container runtime's."""
    if options.seccomp_profile:
        return SeccompProfile(type="Localhost", localhostProfile=options.seccomp_profile)
    return SeccompProfile(type="RuntimeDefault")


def _container(spec: LaunchSpec, image: RegistryImage, options: KubernetesOptions) -> Container:
    """Return the only container of a run's pod."""
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
        key = SecretKeySelector(
            name=spec.name,
            key=_secret_key(number),
        )
        variables.append(EnvVar(name=name, valueFrom=EnvVarSource(secretKeyRef=key)))
    return variables


def _secret_key(number: int) -> str:
    """Return the key of a variable's value in the Secret, by the variable's position."""
    return f"v{number}"


def _security_context(
    spec: LaunchSpec, image: RegistryImage, options: KubernetesOptions
) -> SecurityContext:
    """Return the confinement of the container.

    If the image would run as root, the container gets the configured user. Machines refuse a
    container that would run as root nevertheless, if they can check that.
    """
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
    """Return the limits and requests of the container. GPUs are requested as they are limited."""
    gpus = {}
    if spec.limits.gpu:
        gpus[options.gpu] = str(spec.limits.gpu)
    unreserved = {"cpu": "0", "memory": "0"}  # a missing request would default to the limit
    return ResourceRequirements(
        limits={**_amounts(spec.limits), **gpus},
        requests={**unreserved, **_amounts(spec.reserved), **gpus},
    )


def _amounts(limits: Limits) -> dict[str, str]:
    """Return cores and memory as quantities; an amount without a limit is omitted.

    The number of processes is limited only by the machines' kubelets.
    """
    amounts = {}
    if limits.cpu is not None:
        amounts["cpu"] = f"{max(1, round(limits.cpu * 1000))}m"
    if limits.memory is not None:
        amounts["memory"] = str(limits.memory)
    return amounts


def _folders(spec: LaunchSpec, options: KubernetesOptions) -> dict[str, str]:
    """Return the path of each private folder of a run; the keys are the names of the volumes."""
    paths = list(spec.private_folders)
    if options.read_only_root:
        paths.append(TEMPORARY)
    folders = {f"own-{number}": path for number, path in enumerate(paths)}
    return {**folders, "home": HOME, "shm": SHARED_MEMORY}


def _volumes(spec: LaunchSpec, options: KubernetesOptions) -> list[Volume]:
    """Return the volumes of a run's private folders."""
    volumes = []
    for name in _folders(spec, options):
        volumes.append(Volume(name=name, emptyDir=_volume_source(name, spec, options)))
    return volumes


def _volume_source(name: str, spec: LaunchSpec, options: KubernetesOptions) -> EmptyDirVolumeSource:
    """Return an empty volume, in memory except for the home folder.

    Shared memory may be as large as the run's memory limit. The home folder is on the machine's
    disk, as the container's own layer is; if that layer is read-only, the home folder is in memory,
    too.
    """
    if name == "home" and not options.read_only_root:
        return EmptyDirVolumeSource()
    if name != "shm":
        return EmptyDirVolumeSource(medium="Memory", sizeLimit=str(options.room))
    size = None
    if spec.limits.memory is not None:
        size = str(spec.limits.memory)
    return EmptyDirVolumeSource(medium="Memory", sizeLimit=size)


def secrets_of(
    spec: LaunchSpec,
    image: RegistryImage,
    job: Job,
    owner: str,
    login: tuple[str, str] | None,
) -> list[Secret]:
    """Return the Secrets of a run's Job: its variables, and the login at its registry.

    ``owner``: as `owner_of` returns it; ``login``: user and password; None without a login.
    """
    values = {}
    for number, value in enumerate(image.variables_for(spec, HOME).values()):
        values[_secret_key(number)] = value.encode()
    secrets = [_secret(spec.name, values, secret_type="Opaque", job=job, owner=owner)]
    if login is not None:
        content = {".dockerconfigjson": _docker_config(image.registry, login)}
        login_type = "kubernetes.io/dockerconfigjson"
        secrets.append(_secret(login_secret_name(spec.name), content, login_type, job, owner))
    return secrets


def _secret(
    name: str,
    data: Mapping[str, bytes],
    secret_type: str,
    job: Job,
    owner: str,
) -> Secret:
    """Return a Secret that the cluster deletes with a run's Job."""
    assert job.metadata is not None
    run = str(job.metadata.name)
    job_reference = OwnerReference(
        apiVersion="batch/v1",
        kind="Job",
        name=run,
        uid=str(job.metadata.uid),
        controller=True,
    )
    metadata = ObjectMeta(
        name=name,
        labels={OWNER: owner, RUN: run},
        ownerReferences=[job_reference],
    )
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return Secret(metadata=metadata, data=encoded, type=secret_type)


def _docker_config(registry: str, login: tuple[str, str]) -> bytes:
    """Return a login (user and password) in the form of Docker's configuration."""
    address = registry
    if registry == DOCKER_HUB:
        address = _DOCKER_HUB_LOGIN
    credentials = base64.b64encode(":".join(login).encode()).decode()
    document = {"auths": {address: {"auth": credentials}}}
    return json.dumps(document).encode()


def _escaped(word: str) -> str:
    """Return a word so that the cluster does not replace ``$(NAME)`` in it."""
    return word.replace("$", "$$")


def _to_datetime(timestamp: Any) -> datetime | None:
    """Return a time of the API server in UTC; None if the server gives no time.

    ``timestamp``: a datetime, or text, which the library leaves in some places.
    """
    if timestamp is None:
        return None
    moment: datetime = timestamp
    if isinstance(timestamp, str):
        moment = datetime.fromisoformat(timestamp)
    return moment.astimezone(UTC)
