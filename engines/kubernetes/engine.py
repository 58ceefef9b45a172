"""Runs algorithm images as Jobs of a Kubernetes, in one namespace of it.

The cluster holds all state. A run is a Job of one pod, with its variables in a Secret that goes with it. A Job is
created so that it starts nothing, then its Secret, then it is set going: what a gateway that is killed in between
leaves, its next launch completes.
"""

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
from engines.kubernetes.client import Cluster, PodWatch, translated
from engines.kubernetes.images import RegistryImage, RegistryImages
from engines.kubernetes.jobs import (
    BEGUN,
    CONTAINER,
    OWNER,
    RUN,
    KubernetesOptions,
    PodView,
    first,
    job_of,
    owner_of,
    pull_name,
    secrets_of,
)
from engines.logs import StreamingEngine
from engines.messages import pull_error, start_error
from engines.registry.logins import login_for
from engines.watch import wait_for_end, wait_for_start

log = logging.getLogger(__name__)

_ISOLATION = Isolation(
    tasks=False,
    host=False,
    outside=False,
    gaps=(
        "what runs reach is up to the NetworkPolicy of their namespace, and the API server does not say whether "
        "the cluster's network keeps to it: try it from a pod (docs/kubernetes.md)",
    ),
)
_REPLACED = "its pod was evicted or deleted before it was seen to have begun"
_IMAGE = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
)
_NOT_STARTED = ("CreateContainerError", "RunContainerError")


class KubernetesEngine(StreamingEngine):
    """Jobs of one namespace; see `engines.base.Engine` for what each method promises.

    A machine fetches an image when it first needs it. Only the machines know what runs have written, and requests
    may come from a machine's address, which others there share.
    """

    kind = "kubernetes"
    capabilities = frozenset({"fractional_cpu", "oom_flag", "network", "capabilities"})

    def __init__(
        self,
        node: str,
        installation: str,
        options: KubernetesOptions = KubernetesOptions(),
    ) -> None:
        """Connects only when first used."""
        self._node = node
        self._installation = installation
        self._options = options
        self._owner = owner_of(node, installation)
        self._cluster = Cluster(options.kubeconfig, options.namespace)
        self._images = RegistryImages(options.pull)
        self._saved_log_size = options.saved_log_size
        self._watches: list[Watch] = []

    def check(self) -> None:
        with translated(EngineDown):
            self._cluster.get(Job, "none")

    def capacity(self) -> Capacity:
        """Return what the machines that may take runs have, at most the namespace's quota, and what others use."""
        with translated(EngineDown):
            quotas = [quota.spec.hard or {} for quota in self._cluster.list(ResourceQuota)]
            machines = self._machines()
            beside, there = self._others(machines or {})
        if machines == {}:
            raise EngineDown("none of the cluster's machines that may take runs is ready")
        gpu = self._options.gpu

        def bounds(kind: str) -> Iterator[tuple[float, float]]:
            for hard in quotas:
                names = (f"limits.{kind}", f"requests.{kind}", kind)
                yield from (
                    (_number(hard[name]), _asked(beside, kind, name))
                    for name in names
                    if name in hard
                )
            if machines is not None:
                yield (
                    sum(_number(has.get(kind, "0")) for has in machines.values()),
                    _asked(there, kind),
                )

        cpu, memory, gpus = ([*bounds(kind)] for kind in ("cpu", "memory", gpu))
        if not cpu or not memory:
            raise _TotalsUnknown(
                "what the cluster has is unknown: the gateway may not list its nodes, and the namespace has no "
                "quota of cpu and memory"
            )
        (cores, of_cores), (size, of_size), (devices, of_devices) = map(_least, (cpu, memory, gpus))
        return Capacity(
            cores, int(size), int(devices), Capacity(of_cores, int(of_size), int(of_devices))
        )

    def image_facts(self, image: str) -> ImageMetadata:
        self.check()  # of a cluster that is away, nothing is known
        return self._images.find(image)

    def registry_digest(self, image: str, seconds: float) -> str:
        return self._images.find(image).reference.partition("@")[2]

    def isolation(self) -> Isolation:
        self.check()
        return _ISOLATION

    def launch(self, spec: LaunchSpec) -> None:
        check_launch(spec)
        if spec.mounts:
            raise NotSupported(
                "no folder is shared with the machines of a cluster: use data at a storage elsewhere (storages)"
            )
        image = self._images.find(spec.image)
        check_digest(spec, image.digest)
        with translated(CreateFailed):
            job = self._job(spec.name) or self._create(spec, image)
            if _is_begun(job):
                return
            if not job.spec.parallelism:
                self._set_going(spec, image, job)
            elif self._was_replaced(job):
                self.remove(spec.name)
                raise CreateFailed(_REPLACED)
            self._wait_until_up(job)
            self._mark_begun(job)

    def probe(self, name: str) -> Probe:
        with translated():
            pod = self._pod(self._job(name))
        return Missing() if pod is None else pod.probe()

    def stop(self, name: str, grace: float) -> None:
        """Have the run's machine send SIGTERM, and SIGKILL after the grace that the run was started with."""

        def ask() -> bool:
            if pod := self._pod(
                self._job(name)
            ):  # unlike deletion, a deadline keeps exit code and logs
                self._cluster.patch(Pod, pod.name, {"spec": {"activeDeadlineSeconds": 1}})
            return True

        with translated():
            wait_for_end(self, name, ask, self._options.grace)

    def remove(self, name: str) -> None:
        with translated():
            if (job := self._job(name)) is None:
                return
            pods = self._pods(job)
            if not _is_begun(job):  # else they are gone, or go with the Job
                self._forget_secrets(job)
            self._cluster.delete(Job, name)  # first: it would replace its pod
            for pod in pods:
                self._cluster.delete(Pod, pod.name, grace=1)

    def list(self) -> Sequence[ListedRun]:
        with translated():
            seen = [*self._all()]
        return [
            ListedRun(
                str(job.metadata.name),
                run_labels(job.metadata.annotations),
                pod.probe() if pod else Missing(),
            )
            for job, pod in seen
        ]

    def watch(
        self, on_exit: Callable[[str], None], on_away: Callable[[str], None] | None = None
    ) -> Watch:
        watch = PodWatch(self._cluster, f"{OWNER}={self._owner}", self._take_up, on_exit, on_away)
        self._watches.append(watch)
        return watch

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._cluster.close()

    # ------------------------------------------------------------ beginning

    def _create(self, spec: LaunchSpec, image: RegistryImage) -> Any:
        """Create a run's Job, which starts nothing yet, or return the one that another has just created."""
        pull = login_for(image.registry).password is not None
        created = self._cluster.create(job_of(spec, image, self._owner, pull, self._options))
        if created is None and (created := self._job(spec.name)) is None:
            raise CreateFailed(f"the name {spec.name} is taken by another installation")
        return created

    def _set_going(
        self,
        spec: LaunchSpec,
        image: RegistryImage,
        job: Any,
    ) -> None:
        login = login_for(image.registry).password
        for secret in secrets_of(spec, image, job, self._owner, login):
            self._cluster.create(secret)  # unless a launch that was cut off has
        self._cluster.patch(Job, spec.name, {"spec": {"parallelism": 1}})

    def _wait_until_up(self, job: Any) -> None:
        """Raise what `wait_for_start` says."""
        name, own = str(job.metadata.name), set[str]()

        def begun(unplaced: bool, late: bool) -> bool:
            pod = first(self._pods(job))
            if pod is not None and pod.begun:
                return True
            if pod is None and self._job(name) is None:
                raise CreateFailed("it was removed before it had begun")
            own.update([] if pod is None else [pod.name])
            # it may have begun unseen: the one in its place must not
            replaced = own - {pod.name if pod is not None else ""} or (
                pod is not None and pod.deleted
            )
            if (
                why := CreateFailed(_REPLACED)
                if replaced
                else self._hindrance(job, pod, unplaced, late)
            ):
                raise why
            return False

        wait_for_start(self, name, begun, self._options.place_seconds, self._options.pull.deadline)

    def _hindrance(
        self,
        job: Any,
        pod: PodView | None,
        unplaced: bool,
        late: bool,
    ) -> EngineError | None:
        """Return why a run will not begin; None while it may."""
        if pod is not None and pod.failed:
            return start_error(pod.failed)
        name = str(job.metadata.name)
        reason, text = ("", "") if pod is None else pod.waits_for
        if reason in _NOT_STARTED:
            return start_error(text)
        image_error = pull_error(str(job.metadata.annotations["bfia.image"]), text)
        if reason in _IMAGE and isinstance(
            image_error, PullDenied | ImageNotFound
        ):  # else it tries again
            return image_error
        if unplaced and (pod is None or not pod.taken_up):
            if pod is not None and pod.machine:
                return CreateFailed(f"{pod.machine}, on which it was placed, does not take it up")
            why = text or self._event_about("Job", name) or "nothing was scheduled"
            return CreateFailed(f"no machine of the cluster takes it: {why}")
        if late:
            why = text or self._event_about("Pod", pod.name if pod else name)
            kind = PullTimeout if reason in _IMAGE else CreateFailed
            return kind(f"it did not begin in time on its machine ({reason or 'unknown'}): {why}")
        return None

    def _event_about(self, kind: str, name: str) -> str:
        """Return what the cluster last said of a Job without a pod, such as about a quota, or of a pod."""
        events = self._cluster.list(
            Event, fields=f"involvedObject.kind={kind},involvedObject.name={name}"
        )
        warnings = [event for event in events if event.type == "Warning"]
        return str(warnings[-1].message) if warnings else ""

    def _mark_begun(self, job: Any) -> None:
        """Keep a run from being started a second time, by whatever removes its pod."""
        self._cluster.patch(
            Job, str(job.metadata.name), {"metadata": {"annotations": {BEGUN: "true"}}}
        )
        self._forget_secrets(job)

    def _forget_secrets(self, job: Any) -> None:
        for name in (str(job.metadata.name), pull_name(job.metadata.name)):
            self._cluster.delete(Secret, name)

    def _was_replaced(self, job: Any) -> bool:
        """Return whether a Job has had another pod, which may have begun while no gateway saw it."""
        of_job = f"involvedObject.uid={job.metadata.uid},reason=SuccessfulCreate"
        made = {
            str(event.message).split()[-1] for event in self._cluster.list(Event, fields=of_job)
        }
        left = {pod.name for pod in self._pods(job)}  # listed later: what is not among them is gone
        return len(left) > 1 or not made <= left

    def _put_out(self, job: Any) -> None:
        """End what began a second time. The Job stays, marked: without it, a launch would begin anew."""
        self._forget_secrets(job)
        for pod in self._pods(job):
            self._cluster.delete(Pod, pod.name, grace=1)
        self._mark_begun(job)

    def _take_up(self) -> Sequence[str]:
        """Complete what a gateway that was killed had begun; return the runs that no pod reports any more."""
        lost = []
        for job, pod in self._all():
            name = str(job.metadata.name)
            if pod is not None and pod.begun:
                if _is_begun(job):
                    continue
                if self._was_replaced(job):
                    self._put_out(job)
                    lost.append(name)
                else:
                    self._mark_begun(job)
            elif _is_begun(job):
                lost.append(name)
        return lost

    # ------------------------------------------------------------ looking

    def _job(self, name: str) -> Any:
        """Return the Job of a run of ours."""
        if not is_name(name):
            return None
        job = self._cluster.get(Job, name)
        ours = job is not None and belongs_to(
            job.metadata.annotations or {}, self._node, self._installation
        )
        return job if ours else None

    def _pod(self, job: Any) -> PodView | None:
        return None if job is None else first(self._pods(job))

    def _pods(self, job: Any) -> Sequence[PodView]:
        found = map(PodView, self._cluster.list(Pod, f"{RUN}={job.metadata.name}"))
        return [pod for pod in found if pod.job == job.metadata.uid]

    def _all(self) -> Iterator[tuple[Any, PodView | None]]:
        """Yield each Job of ours with its own pod."""
        label = f"{OWNER}={self._owner}"
        jobs, pods = (
            self._cluster.list(Job, label),
            [PodView(pod) for pod in self._cluster.list(Pod, label)],
        )
        for job in jobs:
            yield job, first(pod for pod in pods if pod.job == job.metadata.uid)

    def _streams(self, name: str) -> Sequence[Iterable[bytes]]:
        """Return both streams as the first, as which a cluster keeps them."""
        with translated():
            pod = self._pod(self._job(name))
        return () if pod is None or not pod.begun or pod.lost else (self._written_by(pod), ())

    def _written_by(self, pod: PodView) -> Iterator[bytes]:
        with translated():
            yield from self._cluster.log(pod.name, CONTAINER)

    def _machines(self) -> Mapping[str, Mapping[str, str]] | None:
        """Return what each machine has that may take runs, None if we may not know."""
        wanted = self._options.node_selector or {}
        nodes = self._cluster.allowed(
            Node, labels=",".join(f"{name}={value}" for name, value in wanted.items())
        )
        if nodes is None:
            return None
        return {
            node.metadata.name: node.status.allocatable
            for node in nodes
            if not node.spec.unschedulable
            and any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
        }

    def _others(self, machines: Container[str]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the pods of others in our namespace, and those on these machines as far as we may know."""
        which = {
            "labels": f"{OWNER}!={self._owner}",
            "fields": "status.phase!=Succeeded,status.phase!=Failed",
        }
        beside = self._cluster.list(Pod, **which)
        anywhere = (
            self._cluster.allowed(Pod, **which, namespace=ALL_NS) if machines else None
        ) or beside
        return beside, [pod for pod in anywhere if pod.spec.nodeName in machines]


class _TotalsUnknown(EngineDown):
    remedy = "give the namespace a ResourceQuota of cpu and memory, or let the account list nodes"


def _number(quantity: str) -> float:
    return float(parse_quantity(quantity) or 0)


def _asked(
    pods: Sequence[Any],
    kind: str,
    name: str = "",
) -> float:
    """Return what pods request, or for a quota of that name have as limits."""
    which = "limits" if name.startswith("limits.") else "requests"
    asked = (
        getattr(one.resources, which, None) or {} for pod in pods for one in pod.spec.containers
    )
    return sum(_number(amounts.get(kind, "0")) for amounts in asked)


def _least(bounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return how much there is within all bounds, and how much of that others take; of none, nothing."""
    has = min((most for most, _ in bounds), default=0)
    return has, has - max(min((most - taken for most, taken in bounds), default=0), 0)


def _is_begun(job: Any) -> bool:
    return bool(job.metadata.annotations.get(BEGUN))
