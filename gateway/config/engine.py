"""The settings of engines: Docker daemons, Swarms, Kubernetes, and local processes."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gateway.config.values import Section
from gateway.domain.validation import foreign_engine, foreign_engine_rule

_DAEMON = r"^(unix:///.+|tcp://[^/]+|ssh://[^/-][^/]*(/.+)?)$"
Constraint = Annotated[str, Field(pattern=r"^(node|engine)\.[\w.-]+ *(==|!=) *[\w.:/-]+$")]
_GENERIC = r"^[\w.-]+$"
_GPU = "The Swarm's generic resource that stands for GPUs, as in node-generic-resources."
# Folders that give a container the whole machine.
_WHOLE_MACHINE = ("/", "/run", "/var", "/var/run", "/proc", "/sys", "/dev", "/etc", "/root")


class Image(Section):
    """The local command in place of an image."""

    command: list[str] = Field(
        min_length=1, description="Command line to run in place of the image."
    )


class ProcessEngineSettings(Section):
    """Algorithms as local processes, with the gateway's own rights."""

    images: dict[str, Image] = Field(
        default_factory=dict, description="Image name -> the command that runs it."
    )


class StorageSource(Section):
    """The Docker daemon's view of the storage, where the gateway itself runs in a container."""

    bind: str | None = Field(default=None, description="Folder on the daemon's host.")
    volume: str | None = Field(default=None, description="Name of a Docker volume.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.bind is None) == (self.volume is None):
            raise ValueError("must have exactly one of bind and volume")
        return self


class TlsSettings(Section):
    """Who the daemon is, and who we are; the daemon's certificate is always checked."""

    ca: Path = Field(
        description="File with the certificate of the authority that signed the daemon's."
    )
    cert: Path | None = Field(default=None, description="File with our own certificate.")
    key: Path | None = Field(default=None, description="File with its key.")

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together")
        return self


class Daemon(Section):
    """Where a Docker daemon, or a manager of a Swarm, is reached."""

    base_url: str = Field(
        default="",
        pattern=f"^$|{_DAEMON}",
        description="Its address, unix://, tcp:// or ssh://; empty: as DOCKER_HOST says.",
    )
    tls: TlsSettings | None = Field(default=None, description="Certificates for one at tcp://.")
    storage_source: StorageSource | None = Field(
        default=None,
        description="The storage on that machine; null: the same folder; for swarm, no shared "
        "folder.",
    )
    runs_source: StorageSource | None = Field(
        default=None, description="The same for the folder of run logs (var/runs)."
    )

    @model_validator(mode="after")
    def _tls_fits(self) -> Self:
        if self.tls is not None and not self.base_url.startswith("tcp://"):
            raise ValueError("tls needs a base_url that begins with tcp://")
        return self


class Machines(Daemon):
    """What is said of a Swarm."""

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
        """Raise `ValueError` for a volume, which the machines of a Swarm do not share."""
        sources = {"storage_source": self.storage_source, "runs_source": self.runs_source}
        for name, source in sources.items():
            if source is not None and source.volume is not None:
                raise ValueError(
                    f"{name}.volume: machines of a Swarm share no volumes; name a folder (bind)"
                )


class ExtraMount(Section):
    """A folder or file that containers of one provider see beyond the ordinary."""

    source: Path = Field(description="Folder or file on the daemon's host.")
    target: str = Field(pattern="^/", description="Path in the container.")
    read_only: bool = Field(default=True, description="false: the container may write there.")


class Allowance(Section):
    """What an admin grants the containers of one provider. Shown with every run that has it."""

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
        description="`config.n_threads`; null: what the registration says.",
    )
    chunk_size: int | None = Field(
        default=None,
        gt=0,
        description="`config.chunk_size`; null: what the registration says.",
    )

    @field_validator("mounts")
    @classmethod
    def _without_engine(cls, mounts: list[ExtraMount]) -> list[ExtraMount]:
        for mount in mounts:
            _check_mount(mount)
        return mounts


def _check_mount(mount: ExtraMount) -> None:
    """Raise `ValueError` for a mount that gives a container the machine, or hides the gateway's own files."""
    source = mount.source
    if not source.is_absolute() or ".." in source.parts:
        raise ValueError(f"{mount.source} is not an absolute path without ..")
    if source.suffix == ".sock" or str(source) in _WHOLE_MACHINE:
        raise ValueError(f"{mount.source} would hand the whole machine to the container")
    if mount.target.startswith("/bfia"):
        raise ValueError(f"{mount.target} is the gateway's own; choose a target outside of /bfia")


class Toleration(Section):
    """A taint of machines that runs tolerate."""

    key: str = Field(default="", description="Name of the taint; empty, with operator Exists: any.")
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="Exists: any value.")
    value: str = Field(default="", description="Value of the taint, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; null: all."
    )


class KubernetesEngineSettings(Section):
    """Algorithms as Jobs of a Kubernetes, whose machines fetch images from engine.docker.registries."""

    kind: ClassVar = "kubernetes"
    kubeconfig: Path | None = Field(
        default=None,
        description="File; null: as KUBECONFIG says, in a pod its own service account.",
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
        description="The machines' extended resource that stands for GPUs, such as "
        "huawei.com/Ascend910.",
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
    """A further engine, which providers may name as ``metadata.engine`` or by its address (``base_url``)."""

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
        is_kubernetes = self.kind == "kubernetes"
        if is_kubernetes != (self.kubernetes is not None):
            raise ValueError("kind kubernetes and the section kubernetes belong together")
        if is_kubernetes:
            self._check_no_daemon()
        elif not self.base_url:
            raise ValueError(f"kind {self.kind} needs base_url")
        if self.kind == "swarm":
            self.check_sources()
        elif self.constraints or "gpu" in self.model_fields_set:
            raise ValueError("constraints and gpu belong to kind swarm")
        return self

    def _check_no_daemon(self) -> None:
        """Raise `ValueError` for a setting of a daemon."""
        settings_of_daemon = (self.base_url, self.tls, self.storage_source, self.runs_source)
        if any(settings_of_daemon):
            raise ValueError(
                "base_url, tls, storage_source and runs_source are not for kind kubernetes"
            )


class SwarmEngineSettings(Machines):
    """Algorithms as tasks of a Docker Swarm; images, users and allowances are as ``engine.docker`` says."""

    kind: ClassVar = "swarm"

    @model_validator(mode="after")
    def _without_volumes(self) -> Self:
        self.check_sources()
        return self


class SignatureRule(Section):
    """Whose signature the images of a provider, or from a registry, need: cosign's, with a key of one's own."""

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
        description="missing: images that are not here are fetched before a job is READY.",
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
        if self.pull == "missing" and not self.registries:
            raise ValueError("pull: missing needs at least one of registries")
        return self


def _no_foreign_engine(kind: Any) -> Any:
    engine = foreign_engine(kind)
    if engine:
        raise ValueError(foreign_engine_rule(engine))
    return kind


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
        """The settings of the daemon or cluster that runs containers; None for processes."""
        by_kind: dict[str, MainEngine] = {
            "docker": self.docker,
            "swarm": self.swarm,
            "kubernetes": self.kubernetes,
        }
        return by_kind.get(self.kind)

    @model_validator(mode="after")
    def _signatures_kept(self) -> Self:
        if self.main is None and self.docker.signatures:
            raise ValueError(
                f"docker.signatures cannot be kept by kind {self.kind}, which runs no images:"
                " take it out, or set kind: docker"
            )
        return self
