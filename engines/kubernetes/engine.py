"""Runs algorithm images as Jobs of a Kubernetes cluster, in one namespace.

The cluster holds all state. A run is a Job of one pod, with its variables in a Secret of the Job. A
launch creates the Job in a form that starts nothing, then the Secret, then lets the Job start. If
the gateway is killed in between, the next launch of the run completes it.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightkube.core.generic_client import ALL_NS
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Node, Pod, ResourceQuota, Secret
from lightkube.utils.quantity import parse_quantity

from engines.base import (
    Capacity,
    CreateFailed,
    EngineDown,
    EngineError,
    ImageMetadata,
    ImageNotFound,
    Isolation,
    LaunchSpec,
    ListedRun,
    Missing,
    NotSupported,
    Probe,
    PullDenied,
    PullTimeout,
    Watch,
    belongs_to,
    check_digest,
    check_launch,
    is_name,
    run_labels,
)
from engines.error_texts import pull_error, start_error
from engines.kubernetes.client import Cluster, PodWatch, translated
from engines.kubernetes.images import RegistryImage, RegistryImages
from engines.kubernetes.jobs import (
    CONTAINER,
    OWNER,
    RUN,
    STARTED,
    KubernetesOptions,
    PodView,
    first_pod,
    job_of,
    login_secret_name,
    owner_of,
    secrets_of,
)
from engines.logs import StreamingEngine
from engines.registry.logins import login_for
from engines.watch import wait_for_end, wait_for_start

# False: a run may reach the other runs, its host and other machines, as far as is known here.
_ISOLATION = Isolation(
    tasks=False,
    host=False,
    outside=False,
    gaps=(
        "what runs reach is up to the NetworkPolicy of their namespace, and the API server does "
        "not say whether the cluster's network keeps to it: try it from a pod (bfia-gateway docs "
        "kubernetes)",
    ),
)
_REPLACED = "its pod was evicted or deleted before it was seen to have begun"

# Reasons of a pod that waits
_IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
)
_START_FAILURES = ("CreateContainerError", "RunContainerError")


class KubernetesEngine(StreamingEngine):
    """Jobs of one namespace. `engines.base.Engine` specifies the methods.

    A machine pulls an image when it first needs it. Disk use is unknown, as only the machines know
    it. Runs have no address of their own, as requests may come from a machine's address, which
    other pods share.
    """

    kind = "kubernetes"
    capabilities = frozenset({"fractional_cpu", "oom_flag", "network", "capabilities"})

    def __init__(
        self,
        node: str,
        installation: str,
        options: KubernetesOptions = KubernetesOptions(),
        *,
        cluster: Cluster | None = None,
        images: RegistryImages | None = None,
    ) -> None:
        """Take the parts of an engine, which connects only when it is first used.

        - ``node``, ``installation``: the owner of the runs; Jobs of others are not touched
        - ``cluster``: the namespace of the runs; None: the one that the options name
        - ``images``: finds the images of runs; None: at the registries that the options allow
        """
        self._node = node
        self._installation = installation
        self._options = options
        self._owner = owner_of(node, installation)
        self._cluster = cluster or Cluster(options.kubeconfig, options.namespace)
        self._images = images or RegistryImages(options.pull)
        self._saved_log_size = options.saved_log_size
        self._watches: list[Watch] = []

    def check(self) -> None:
        """Ask for a Job that does not exist.

        If the API server accepts our credentials, it answers that there is none, which counts as
        success.
        """
        with translated(EngineDown):
            self._cluster.get(Job, "none")

    def capacity(self) -> Capacity:
        """Return the resources within the namespace's quota and the machines that may take runs.

        Raises `EngineDown` also if neither a quota nor the machines are known.
        """
        with translated(EngineDown):
            quotas = [quota.spec.hard or {} for quota in self._cluster.list(ResourceQuota)]
            machines = self._machines()
            pods = self._pods_of_others(machines or {})
        if machines == {}:  # None means that we may not list them
            raise EngineDown("none of the cluster's machines that may take runs is ready")
        cpu = _amount_within(_bounds("cpu", quotas, machines, pods))
        memory = _amount_within(_bounds("memory", quotas, machines, pods))
        gpu = _amount_within(_bounds(self._options.gpu, quotas, machines, pods))
        if cpu is None or memory is None:
            raise _TotalsUnknown(
                "what the cluster has is unknown: the gateway may not list its nodes, and the "
                "namespace has no quota of cpu and memory"
            )
        gpu = gpu or _Amount(0, 0)
        used_by_others = Capacity(
            cpu.used,
            int(memory.used),
            int(gpu.used),
        )
        return Capacity(
            cpu.total,
            int(memory.total),
            int(gpu.total),
            used_by_others,
        )

    def image_metadata(self, image: str) -> ImageMetadata:
        """Return the metadata that the registry has now."""
        self.check()  # the registry may respond, but no image can run while the cluster does not
        return self._images.find(image)

    def registry_digest(self, image: str, seconds: float) -> str:
        """Return the digest in the registry.

        ``seconds`` is not used, as the client has its own limit.
        """
        reference = self._images.find(image).reference
        return reference.partition("@")[2]

    def isolation(self) -> Isolation:
        """Check that the cluster responds; its network policies cannot be checked from here."""
        self.check()
        return _ISOLATION

    def launch(self, spec: LaunchSpec) -> None:
        """Create the run's Job and start it.

        An earlier launch is resumed at the step that it has reached.
        """
        check_launch(spec)
        if spec.mounts:
            raise NotSupported(
                "no folder is shared with the machines of a cluster: use data at a storage "
                "elsewhere (storages)"
            )
        image = self._images.find(spec.image)
        check_digest(spec, image.digest)
        with translated(CreateFailed):
            job = self._job(spec.name)
            if job is None:
                job = self._create(spec, image)
            if not _is_marked_started(job):
                self._start(spec, image, job)

    def probe(self, name: str) -> Probe:
        """Return the state of the run's pod."""
        with translated():
            pod = self._first_pod_of(name)
        if pod is None:
            return Missing()
        return pod.probe()

    def stop(self, name: str, grace: float) -> None:
        """Have the run's machine send SIGTERM, then SIGKILL.

        The argument ``grace`` is not used: at the launch, the pod got the configured time between
        the two signals.
        """

        def request_end() -> bool:
            """Give the pod a deadline. Return True, so that the request is not repeated."""
            pod = self._first_pod_of(name)
            if pod is not None:
                # Unlike deletion, a deadline keeps exit code and logs.
                self._cluster.patch(
                    Pod,
                    pod.name,
                    {"spec": {"activeDeadlineSeconds": 1}},
                )
            return True

        with translated():
            wait_for_end(self, name, request_end, self._options.grace)

    def remove(self, name: str) -> None:
        """Remove the run's Job with its pods and Secrets."""
        with translated():
            job = self._job(name)
            if job is None:
                return
            pods = self._pods(job)
            # The cluster deletes remaining Secrets with their Job, but only some time later. A run
            # marked as started hardly ever has any, as `_mark_started` deletes them.
            if not _is_marked_started(job):
                self._delete_secrets(job)
            self._cluster.delete(Job, name)  # before its pods, which it would replace
            self._delete_pods(pods)

    def list(self) -> Sequence[ListedRun]:
        """Return the Jobs of this node and installation."""
        with translated():
            jobs_and_pods = list(self._all())
        runs = []
        for job, pod in jobs_and_pods:
            probe: Probe = Missing()
            if pod is not None:
                probe = pod.probe()
            runs.append(ListedRun(_name_of(job), run_labels(job.metadata.annotations), probe))
        return runs

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        """Watch the pods. Each time they are listed, launches of a killed gateway are completed."""
        labels = f"{OWNER}={self._owner}"
        watch = PodWatch(self._cluster, labels, self._complete_launches, on_exit, on_away)
        self._watches.append(watch)
        return watch

    def close(self) -> None:
        """End the watches, then the connections."""
        for watch in self._watches:
            watch.close()
        self._cluster.close()

    # ------------------------------------------------------------ launching

    def _create(self, spec: LaunchSpec, image: RegistryImage) -> Any:
        """Create a run's Job, which starts nothing yet.

        Returns the existing Job if another gateway of this node just created it. Raises
        `CreateFailed` if the name belongs to another installation.
        """
        needs_login = login_for(image.registry).password is not None
        job = self._cluster.create(job_of(spec, image, self._owner, needs_login, self._options))
        if job is None:  # the name is in use
            job = self._job(spec.name)
        if job is None:
            raise CreateFailed(f"the name {spec.name} is taken by another installation")
        return job

    def _start(self, spec: LaunchSpec, image: RegistryImage, job: Any) -> None:
        """Let a Job start its pod, unless an earlier launch did so; wait until the pod has started.

        Raises `CreateFailed` if the Job had an earlier pod, which may have started unseen.
        """
        may_start_pod = bool(job.spec.parallelism)
        if not may_start_pod:  # no launch has completed `_release`
            self._release(spec, image, job)
        elif self._was_replaced(job):
            self.remove(spec.name)
            raise CreateFailed(_REPLACED)
        self._wait_until_started(job)
        self._mark_started(job)

    def _release(self, spec: LaunchSpec, image: RegistryImage, job: Any) -> None:
        """Create the Secrets of a Job, and let the Job start its pod.

        Secrets that an interrupted launch has created stay as they are.
        """
        login = login_for(image.registry).password
        for secret in secrets_of(spec, image, job, self._owner, login):
            self._cluster.create(secret)
        self._cluster.patch(
            Job,
            spec.name,
            {"spec": {"parallelism": 1}},
        )

    def _wait_until_started(self, job: Any) -> None:
        """Wait until the run has started. Raises as `wait_for_start` does."""
        name = _name_of(job)
        pod_names = set[str]()  # of all pods of the Job so far; `_is_replaced` adds them

        def has_started(place_time_over: bool, start_time_over: bool) -> bool:
            pod = first_pod(self._pods(job))
            if pod is not None and pod.has_started:
                return True
            if pod is None and self._job(name) is None:
                raise CreateFailed("it was removed before it had begun")
            # An earlier pod may have started without being seen, so its successor must not start.
            if _is_replaced(pod, pod_names):
                raise CreateFailed(_REPLACED)
            self._check_may_start(job, pod, place_time_over, start_time_over)
            return False

        wait_for_start(
            self, name, has_started, self._options.place_seconds, self._options.pull.max_seconds
        )

    def _check_may_start(
        self,
        job: Any,
        pod: PodView | None,
        place_time_over: bool,
        start_time_over: bool,
    ) -> None:
        """Raise a subclass of `EngineError` if a run will not start.

        ``pod`` is None before the cluster has created it; the flags are those of
        `engines.watch.HasStarted`.
        """
        if pod is None:
            if place_time_over:
                raise self._placement_error(job, pod)
            return
        self._check_pod_may_start(job, pod)
        if place_time_over and not pod.is_taken_up:
            raise self._placement_error(job, pod)
        if start_time_over:
            raise self._late_error(pod)

    @staticmethod
    def _check_pod_may_start(job: Any, pod: PodView) -> None:
        """Raise a subclass of `EngineError` if a pod will never start its program.

        A failed pull is final if the registry refuses the image or does not have it; the machine
        repeats a pull after every other error.
        """
        if pod.start_failure:
            raise start_error(pod.start_failure)
        reason = pod.wait_reason
        if reason.name in _START_FAILURES:
            raise start_error(reason.text)
        if reason.name in _IMAGE_REASONS:
            error = pull_error(str(job.metadata.annotations["bfia.image"]), reason.text)
            if isinstance(error, PullDenied | ImageNotFound):
                raise error

    def _placement_error(self, job: Any, pod: PodView | None) -> EngineError:
        """Return why no machine has taken up a run in time.

        The reason is in the pod, if the cluster has created it, else in an event about the Job.
        """
        why = ""
        if pod is not None:
            if pod.machine:
                return CreateFailed(f"{pod.machine}, on which it was placed, does not take it up")
            why = pod.wait_reason.text
        if not why:
            why = self._event_about("Job", _name_of(job)) or "nothing was scheduled"
        return CreateFailed(f"no machine of the cluster takes it: {why}")

    def _late_error(self, pod: PodView) -> EngineError:
        """Return why a run did not start in time on its machine."""
        reason = pod.wait_reason
        error_type: type[EngineError] = CreateFailed
        if reason.name in _IMAGE_REASONS:
            error_type = PullTimeout
        why = reason.text or self._event_about("Pod", pod.name)
        return error_type(
            f"it did not begin in time on its machine ({reason.name or 'unknown'}): {why}"
        )

    def _event_about(self, kind: str, name: str) -> str:
        """Return the cluster's last warning about a Job or a pod, such as an exhausted quota.

        ``kind``: Job or Pod. Empty without a warning.
        """
        events = self._cluster.list(
            Event, fields=f"involvedObject.kind={kind},involvedObject.name={name}"
        )
        warnings = [str(event.message) for event in events if event.type == "Warning"]
        return next(reversed(warnings), "")

    # ------------------------------------------------------------ starting only once

    def _mark_started(self, job: Any) -> None:
        """Mark a run as started, and delete its Secrets, without which no other pod can start.

        So the run cannot start a second time if its pod is removed.
        """
        annotations = {STARTED: "true"}
        self._cluster.patch(
            Job,
            _name_of(job),
            {"metadata": {"annotations": annotations}},
        )
        self._delete_secrets(job)

    def _delete_secrets(self, job: Any) -> None:
        """Delete the Secrets of a run, which may be gone."""
        name = _name_of(job)
        self._cluster.delete(Secret, name)
        self._cluster.delete(Secret, login_secret_name(name))

    def _delete_pods(self, pods: Iterable[PodView]) -> None:
        """Delete pods, with a second between SIGTERM and SIGKILL."""
        for pod in pods:
            self._cluster.delete(Pod, pod.name, grace=1)

    def _was_replaced(self, job: Any) -> bool:
        """Whether a Job has had a pod before the present one; that pod may have started unseen."""
        fields = f"involvedObject.uid={job.metadata.uid},reason=SuccessfulCreate"
        created = set()
        for event in self._cluster.list(Event, fields=fields):
            pod_name = str(event.message).split()[-1]  # the message is: Created pod: <name>
            created.add(pod_name)
        # The pods are listed after the events, so a created pod that is missing here is gone.
        existing = {pod.name for pod in self._pods(job)}
        has_several = len(existing) > 1
        return has_several or not created <= existing

    def _end_second_start(self, job: Any) -> None:
        """End the pod of a run that started twice.

        The Job stays: without it, a launch would start the run again.
        """
        self._delete_secrets(job)  # first: a pod that the Job creates next must not start
        self._delete_pods(self._pods(job))
        self._mark_started(job)

    def _complete_launches(self) -> Sequence[str]:
        """Complete the launches of a gateway that was killed.

        Returns the runs that are over and have no pod whose exit could be seen.
        """
        lost = []
        for job, pod in self._all():
            is_lost = not self._complete_launch(job, pod)
            if is_lost:
                lost.append(_name_of(job))
        return lost

    def _complete_launch(self, job: Any, pod: PodView | None) -> bool:
        """Mark a run as started if its pod has started and an interrupted launch has not done so.

        Returns False if the run is lost: the pod in which it started is gone, or the run started a
        second time in another pod, which is ended here. Returns True for every other run, also for
        one that has not started.
        """
        has_started = pod is not None and pod.has_started
        is_marked = _is_marked_started(job)
        if not has_started:
            # If the run is marked, the pod in which it started is gone, even if another pod has
            # replaced that one.
            return not is_marked
        if is_marked:
            return True
        if self._was_replaced(job):
            self._end_second_start(job)
            return False
        self._mark_started(job)
        return True

    # ------------------------------------------------------------ looking up

    def _job(self, name: str) -> Any:
        """Return the Job of a run of this node; None if there is none, or it is another node's."""
        if not is_name(name):
            return None
        job = self._cluster.get(Job, name)
        if job is None:
            return None
        annotations = job.metadata.annotations or {}
        if belongs_to(annotations, self._node, self._installation):
            return job
        return None

    def _first_pod_of(self, name: str) -> PodView | None:
        """Return the pod of one of this node's runs; None if the run or its pod does not exist."""
        job = self._job(name)
        if job is None:
            return None
        return first_pod(self._pods(job))

    def _pods(self, job: Any) -> Sequence[PodView]:
        """Return all pods of a Job."""
        # An earlier Job of this name may still have pods.
        pods = map(PodView, self._cluster.list(Pod, f"{RUN}={job.metadata.name}"))
        return [pod for pod in pods if pod.job == job.metadata.uid]

    def _all(self) -> Iterator[tuple[Any, PodView | None]]:
        """Yield each Job of this node with its run's pod; None in place of a missing pod."""
        label = f"{OWNER}={self._owner}"
        jobs = self._cluster.list(Job, label)
        pods = list(map(PodView, self._cluster.list(Pod, label)))
        for job in jobs:
            yield job, first_pod(pod for pod in pods if pod.job == job.metadata.uid)

    def _streams(self, name: str) -> Sequence[Iterable[bytes]]:
        """Return both streams as stdout, as a cluster does not separate them.

        Nothing for a run that was not started, or whose machine is gone.
        """
        with translated():
            pod = self._first_pod_of(name)
        if pod is None or not pod.has_log:
            return ()
        return self._log_of(pod), ()

    def _log_of(self, pod: PodView) -> Iterator[bytes]:
        """Yield the log of a pod's container, which is requested when it is read."""
        with translated():
            yield from self._cluster.log(pod.name, CONTAINER)

    def _machines(self) -> Mapping[str, Mapping[str, str]] | None:
        """Return the resources of each machine that may take runs, by the machine's name.

        None without the right to list machines.
        """
        selector = self._options.node_selector or {}
        labels = ",".join(f"{name}={value}" for name, value in selector.items())
        nodes = self._cluster.list_if_allowed(Node, labels=labels)
        if nodes is None:
            return None
        may_take_runs = filter(_may_take_runs, nodes)
        return {node.metadata.name: node.status.allocatable for node in may_take_runs}

    def _pods_of_others(self, machines: Container[str]) -> "_OtherPods":
        """Return the pods of others that have not ended, as far as we may list them."""
        selectors = {
            "labels": f"{OWNER}!={self._owner}",
            "fields": "status.phase!=Succeeded,status.phase!=Failed",
        }
        in_namespace = self._cluster.list(Pod, **selectors)
        everywhere: Sequence[Any] | None = None
        if machines:
            everywhere = self._cluster.list_if_allowed(Pod, **selectors, namespace=ALL_NS)
        # Without the right to list the pods of all namespaces, only those of ours are visible.
        visible = everywhere or in_namespace
        on_machines = [pod for pod in visible if pod.spec.nodeName in machines]
        return _OtherPods(in_namespace, on_machines)


def _is_replaced(pod: PodView | None, pod_names: set[str]) -> bool:
    """Whether a Job's pod is gone, is being deleted, or follows another one.

    ``pod_names``: the names of the Job's pods so far, to which the pod's is added.
    """
    if pod is None:
        return bool(pod_names)
    pod_names.add(pod.name)
    return pod.is_deleted or len(pod_names) > 1


class _TotalsUnknown(EngineDown):
    """The cluster does not say how many resources it has."""

    remedy = "give the namespace a ResourceQuota of cpu and memory, or let the account list nodes"


@dataclass(frozen=True)
class _OtherPods:
    """Pods of others than this node."""

    in_namespace: Sequence[Any]
    on_machines: Sequence[Any]  # that may take our runs


@dataclass(frozen=True)
class _Amount:
    """An amount of a resource, and the share that others use."""

    total: float
    used: float


def _bounds(
    resource: str,
    quotas: Sequence[Mapping[str, str]],
    machines: Mapping[str, Mapping[str, str]] | None,
    pods: _OtherPods,
) -> list[_Amount]:
    """Return the amounts of a resource by each quota and at all machines together.

    ``resource``: cpu, memory, or the name of the resource that counts GPUs; empty if none does, for
    which every amount is 0. ``machines``: None if they are unknown.
    """
    bounds = []
    for quota in quotas:
        # A bare name, such as "cpu", limits the requests.
        for name in (f"limits.{resource}", f"requests.{resource}", resource):
            if name in quota:
                bounds.append(_quota_bound(resource, name, quota, pods))
    if machines is not None:
        total = sum(_number(machine.get(resource, "0")) for machine in machines.values())
        bounds.append(_Amount(total, _sum_of_pods(pods.on_machines, resource, "requests")))
    return bounds


def _quota_bound(
    resource: str,
    name: str,
    quota: Mapping[str, str],
    pods: _OtherPods,
) -> _Amount:
    """Return the amount of a resource by one entry of a quota; ``name``: that of the entry.

    An entry ``limits.…`` counts the limits of pods, every other entry their requests.
    """
    section = "requests"
    if name.startswith("limits."):
        section = "limits"
    return _Amount(
        _number(quota[name]),
        _sum_of_pods(pods.in_namespace, resource, section),
    )


def _sum_of_pods(
    pods: Sequence[Any],
    resource: str,
    section: str,
) -> float:
    """Return the sum of pods' limits or requests (``section``) for a resource."""
    total = 0.0
    for pod in pods:
        for container in pod.spec.containers:
            amounts = getattr(container.resources, section, None) or {}
            total += _number(amounts.get(resource, "0"))
    return total


def _amount_within(bounds: Sequence[_Amount]) -> _Amount | None:
    """Return the amount that is within all bounds; None if there is no bound.

    Its total is the smallest total. Its free amount (total less use) is the smallest free amount,
    but not below 0.
    """
    if not bounds:
        return None
    total = min(bound.total for bound in bounds)
    free = max(min(bound.total - bound.used for bound in bounds), 0)
    return _Amount(total, total - free)


def _number(quantity: str) -> float:
    """Return a quantity of the cluster, such as ``500m`` or ``2Gi``, as a number."""
    return float(parse_quantity(quantity) or 0)


def _may_take_runs(node: Any) -> bool:
    """Whether a machine responds, and its admin lets it take pods."""
    statuses = {condition.type: condition.status for condition in node.status.conditions}
    is_ready = statuses.get("Ready") == "True"
    return is_ready and not node.spec.unschedulable


def _is_marked_started(job: Any) -> bool:
    """Whether a launch has seen the run's program start."""
    return bool(job.metadata.annotations.get(STARTED))


def _name_of(job: Any) -> str:
    """Return the name of a Job, which is that of its run."""
    return str(job.metadata.name)
