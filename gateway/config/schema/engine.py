"""The sections ``engine`` and ``engines``, which run algorithms, and ``providers``."""

from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gateway.config.values import Section, require
from gateway.domain.foreign_engines import foreign_engine, foreign_engine_rule

# Address of a daemon. A host of ssh must not begin with a hyphen: ssh would read it as an option.
_DAEMON = r"^(unix:///.+|tcp://[^/]+|ssh://[^/-][^/]*(/.+)?)$"
# A placement constraint of `docker service create`, such as node.labels.zone == a.
Constraint = Annotated[str, Field(pattern=r"^(node|engine)\.[\w.-]+ *(==|!=) *[\w.:/-]+$")]
_GENERIC = r"^[\w.-]+$"  # the name of a Swarm's generic resource
_GPU = "The Swarm's generic resource for GPUs, as in node-generic-resources."
# A container that gets one of these folders controls the whole machine.
_WHOLE_MACHINE = ("/", "/run", "/var", "/var/run", "/proc", "/sys", "/dev", "/etc", "/root")


class Image(Section):
    """The local command that runs in place of an image."""

    command: list[str] = Field(
        min_length=1, description="Command line to run in place of the image."
    )


class ProcessEngineSettings(Section):
    """Algorithms as local processes, which have all rights of the gateway itself."""

    images: dict[str, Image] = Field(
        default_factory=dict, description="Image name -> the command that runs it."
    )


class StorageSource(Section):
    """A folder of the gateway as the Docker daemon knows it, if the gateway runs in a container."""

    bind: str | None = Field(default=None, description="Folder on the daemon's host.")
    volume: str | None = Field(default=None, description="Name of a Docker volume.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        """Require either a folder of the daemon's host or a volume."""
        has_bind = self.bind is not None
        has_volume = self.volume is not None
        require(has_bind != has_volume, "must have exactly one of bind and volume")
        return self


class TlsSettings(Section):
    """Certificates for a daemon at tcp://; the daemon's own is always checked against ``ca``."""

    ca: Path = Field(
        description="File with the certificate of the authority that signed the daemon's."
    )
    cert: Path | None = Field(default=None, description="File with our own certificate.")
    key: Path | None = Field(default=None, description="File with its key.")

    @model_validator(mode="after")
    def _pair(self) -> Self:
        """Require our certificate and its key together; without them we show none."""
        has_cert = self.cert is not None
        has_key = self.key is not None
        require(has_cert == has_key, "cert and key belong together")
        return self


class Daemon(Section):
    """Address of a Docker daemon or of a Swarm's manager, and the gateway's folders there."""

    base_url: str = Field(
        default="",
        pattern=f"^$|{_DAEMON}",
        description="Address of the daemon, unix://, tcp:// or ssh://; empty: the one in "
        "DOCKER_HOST.",
    )
    tls: TlsSettings | None = Field(
        default=None,
        description="Certificates for a daemon at tcp://.",
    )
    storage_source: StorageSource | None = Field(
        default=None,
        description="The storage on that machine; null: the same folder, or no shared folder for "
        "swarm.",
    )
    runs_source: StorageSource | None = Field(
        default=None,
        description="The folder of run logs (var/runs) on that machine; null: the same folder.",
    )

    @model_validator(mode="after")
    def _tls_fits(self) -> Self:
        """Refuse certificates for an address that does not use TLS."""
        has_tcp = self.base_url.startswith("tcp://")
        if self.tls is not None:
            require(has_tcp, "tls needs a base_url that begins with tcp://")
        return self


class Machines(Daemon):
    """A daemon's settings and those for the machines of a Swarm."""

    constraints: list[Constraint] = Field(
        default_factory=list,
        description="For swarm: machines that may take runs, as of docker service create.",
    )
    gpu: str = Field(
        default="NVIDIA-GPU",
        pattern=_GENERIC,
        description=_GPU,
    )

    def check_sources(self) -> None:
        """Check the shared folders of a Swarm.

        Raises `ValueError` for a volume: each machine of a Swarm has volumes of its own.
        """
        sources = {"storage_source": self.storage_source, "runs_source": self.runs_source}
        for name, source in sources.items():
            if source is not None:
                require(
                    source.volume is None,
                    f"{name}.volume: machines of a Swarm share no volumes; name a folder (bind)",
                )


class ExtraMount(Section):
    """A further folder or file that the containers of one provider see."""

    source: Path = Field(description="Folder or file on the daemon's host.")
    target: str = Field(pattern="^/", description="Path in the container.")
    read_only: bool = Field(default=True, description="false: the container may write there.")


class Allowance(Section):
    """Rights that an admin grants to the containers of one provider.

    Shown with each of their runs.
    """

    mounts: list[ExtraMount] = Field(default_factory=list, description="Further mounts.")
    capabilities: list[str] = Field(
        default_factory=list, description="Linux capabilities, such as NET_RAW."
    )
    compute: str | None = Field(
        default=None,
        pattern=r"^(spark|eggroll)://[^\s/@]+:\d{1,5}$",
        description="A computing engine for them, `system.compute`: spark://host:port or "
        "eggroll://host:port.",
    )
    n_threads: int | None = Field(
        default=None,
        gt=0,
        description="`config.n_threads`; null: the registration's value.",
    )
    chunk_size: int | None = Field(
        default=None,
        gt=0,
        description="`config.chunk_size`; null: the registration's value.",
    )

    @field_validator("mounts")
    @classmethod
    def _refuse_dangerous_mounts(cls, mounts: list[ExtraMount]) -> list[ExtraMount]:
        """Refuse mounts that break the isolation, such as the engine's socket (`_check_mount`)."""
        for mount in mounts:
            _check_mount(mount)
        return mounts


def _check_mount(mount: ExtraMount) -> None:
    """Check a further mount of a container.

    Raises `ValueError` for a source that is a relative path or gives control of the machine (a
    socket, a system folder), and for a target that would hide the gateway's own mounts.
    """
    source = mount.source
    is_plain = source.is_absolute() and ".." not in source.parts
    require(is_plain, f"{mount.source} is not an absolute path without ..")
    is_socket = source.suffix == ".sock"  # such as docker.sock
    # `Path` keeps two slashes at the beginning, which Linux reads as one.
    folder = str(source).replace("//", "/")
    controls_machine = is_socket or folder in _WHOLE_MACHINE
    require(
        not controls_machine,
        f"{mount.source} would hand the whole machine to the container",
    )
    # Containers resolve .. and repeated slashes, of which `normpath` keeps two at the beginning.
    target = PurePosixPath(normpath(f"/{mount.target.lstrip('/')}"))
    require(
        not target.is_relative_to("/bfia"),
        f"{mount.target} is the gateway's own; choose a target outside of /bfia",
    )


class Toleration(Section):
    """A taint that runs tolerate on Kubernetes nodes, with the fields of Kubernetes."""

    key: str = Field(default="", description="Name of the taint; empty, with operator Exists: any.")
    operator: Literal["Exists", "Equal"] = Field(
        default="Equal",
        description="Exists: any value.",
    )
    value: str = Field(default="", description="Value of the taint, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; null: all."
    )


class KubernetesEngineSettings(Section):
    """Algorithms as Jobs of a Kubernetes cluster.

    Its machines fetch images from the registries in ``engine.docker.registries``.
    """

    kind: ClassVar = "kubernetes"
    kubeconfig: Path | None = Field(
        default=None,
        description="Kubeconfig file; null: the file in KUBECONFIG, or in a pod its own service "
        "account.",
    )
    namespace: str = Field(
        default="", description="Namespace of the runs; empty: that of the file's current context."
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict, description="Labels of machines that take runs."
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, description="Taints of machines that take runs."
    )
    gpu: str = Field(
        default="nvidia.com/gpu",
        pattern=r"^[\w.-]+/[\w.-]+$",
        description="The machines' extended resource for GPUs, such as huawei.com/Ascend910.",
    )
    runtime_class: str = Field(
        default="", description="Runtime class of the runs; empty: the cluster's default."
    )
    priority_class: str = Field(
        default="", description="Priority class of the runs; empty: the default."
    )
    seccomp_profile: str = Field(
        default="",
        pattern=r"^([\w-][\w.-]*(/[\w-][\w.-]*)*)?$",
        description="Seccomp profile of the runs in each kubelet's folder seccomp; empty: the "
        "runtime's default.",
    )


class NamedEngine(Machines):
    """A further engine; a provider names it as ``metadata.engine`` or by its ``base_url``."""

    kind: Literal["docker", "swarm", "kubernetes"] = Field(
        default="docker", description="The kind of the engine."
    )
    kubernetes: KubernetesEngineSettings | None = Field(
        default=None, description="For kubernetes: the cluster and its settings."
    )
    outside: bool = Field(
        default=True, description="Containers there reach other machines, and so this gateway."
    )
    cpu: float | None = Field(
        default=None,
        gt=0,
        description="Its cores for jobs; null: all that it has.",
    )
    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="Its memory for jobs in GiB; null: all that it has.",
    )

    @model_validator(mode="after")
    def _fits_kind(self) -> Self:
        """Require the settings of the engine's kind, and refuse those of the other kinds."""
        is_kubernetes = self.kind == "kubernetes"
        has_cluster = self.kubernetes is not None
        require(
            is_kubernetes == has_cluster,
            "kind kubernetes and the section kubernetes belong together",
        )
        if is_kubernetes:
            settings_of_daemon = (self.base_url, self.tls, self.storage_source, self.runs_source)
            require(
                not any(settings_of_daemon),
                "base_url, tls, storage_source and runs_source are not for kind kubernetes",
            )
        else:
            require(self.base_url, f"kind {self.kind} needs base_url")
        if self.kind == "swarm":
            self.check_sources()
        else:
            # ``gpu`` has a default, so it counts only if the file sets it.
            has_swarm_setting = self.constraints or "gpu" in self.model_fields_set
            require(not has_swarm_setting, "constraints and gpu belong to kind swarm")
        return self


class SwarmEngineSettings(Machines):
    """Algorithms as tasks of a Docker Swarm.

    Images, users and allowances are those of ``engine.docker``.
    """

    kind: ClassVar = "swarm"

    @model_validator(mode="after")
    def _without_volumes(self) -> Self:
        """Refuse volumes as shared folders, see `check_sources`."""
        self.check_sources()
        return self


class SignatureRule(Section):
    """Signature that images need: by cosign, with one of the listed keys.

    The rule applies to the images of a provider, from a registry, or both.
    """

    provider: str = Field(
        default="*",
        min_length=1,
        description="Provider's name; * for any.",
    )
    registry: str = Field(
        default="*",
        min_length=1,
        description="Its image's registry, host[:port] or docker.io; * for any.",
    )
    keys: list[Path] = Field(
        min_length=1, description="Files with public keys in PEM; one of them will do."
    )


class DockerEngineSettings(Daemon):
    """Algorithms as containers of a Docker daemon."""

    kind: ClassVar = "docker"
    pull: Literal["never", "missing"] = Field(
        default="never",
        description="missing: an image that the daemon lacks is fetched before a job is READY.",
    )
    registries: list[str] = Field(
        default_factory=list,
        description="Registries images may be fetched from: host[:port], or docker.io for names "
        "without one.",
    )
    pull_seconds: float = Field(
        default=600.0,
        gt=0,
        description="Longest time for fetching one image.",
    )
    signatures: list[SignatureRule] = Field(
        default_factory=list,
        description="Images that have to be signed (cosign sign --key); the first rule about an "
        "image decides.",
    )
    network: str = Field(
        default="", description="Bridge network of the containers; default: bfia-<node>."
    )
    rules_image: str = Field(
        default="",
        description="The gateway's own image, if the gateway runs in a container: it makes the "
        "rules that isolate the network on the daemon's host.",
    )
    network_mode: Literal["bridge", "host"] = Field(
        default="bridge", description="host gives up isolation."
    )
    outside: bool = Field(
        default=False,
        description="Containers reach other machines; needed if the gateway is on another one.",
    )
    user: str = Field(
        default="65534:65534", description="User of containers whose image would run as root."
    )
    read_only_root: bool = Field(
        default=False,
        description="Containers can write only their outputs, their log and a small /tmp.",
    )
    allow: dict[str, Allowance] = Field(
        default_factory=dict,
        description="Additional rights of a provider's containers, by its name.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Require the registries images may come from, and a network that rules can close."""
        if self.pull == "missing":
            require(self.registries, "pull: missing needs at least one of registries")
        if self.rules_image:
            is_closed = self.network_mode == "bridge" and not self.outside
            require(
                self.network and is_closed,
                "rules_image needs network, the name of the network that the gateway's container "
                "is in, and neither network_mode: host nor outside: true",
            )
        return self


def _no_foreign_engine(kind: Any) -> Any:
    """Refuse the name of another platform's engine, with a message that says what to write."""
    engine = foreign_engine(kind)
    if engine:
        raise ValueError(foreign_engine_rule(engine))
    return kind


# The settings of an engine that runs containers.
MainEngine = DockerEngineSettings | SwarmEngineSettings | KubernetesEngineSettings


class EngineSettings(Section):
    """The engine that runs the algorithms."""

    kind: Annotated[
        Literal["docker", "swarm", "kubernetes", "process"], BeforeValidator(_no_foreign_engine)
    ] = Field(
        description="docker, swarm, kubernetes, or process (runs vendor code as the gateway). No "
        "default."
    )
    docker: DockerEngineSettings = Field(
        default=DockerEngineSettings(), description="For kind docker."
    )
    swarm: SwarmEngineSettings = Field(default=SwarmEngineSettings(), description="For kind swarm.")
    kubernetes: KubernetesEngineSettings = Field(
        default=KubernetesEngineSettings(), description="For kind kubernetes."
    )
    process: ProcessEngineSettings = Field(
        default=ProcessEngineSettings(), description="For kind process."
    )

    @property
    def main(self) -> MainEngine | None:
        """The settings of the daemon or cluster that runs containers; None for kind process."""
        by_kind: dict[str, MainEngine] = {
            "docker": self.docker,
            "swarm": self.swarm,
            "kubernetes": self.kubernetes,
        }
        return by_kind.get(self.kind)

    @model_validator(mode="after")
    def _signatures_kept(self) -> Self:
        """Refuse rules about signatures if the engine runs no images that could be checked."""
        if self.docker.signatures:
            has_images = self.main is not None
            require(
                has_images,
                f"docker.signatures cannot be kept by kind {self.kind}, which runs no images:"
                " take it out, or set kind: docker",
            )
        return self


class ProviderSettings(Section):
    """Requirements for the registration of an algorithm image."""

    image: Literal["warn", "require"] = Field(
        default="warn",
        description="require: a missing image causes the refusal of its registration, and of jobs.",
    )
