"""The address and credentials of a storage elsewhere (S3, HDFS), and its clients."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import certifi

from gateway.errors import StorageAway, StorageFailed

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from opendal import Operator

# Kinds of storages, by their names in ``storageEngine``; FILE is the node's own folder. The same
# word in ``Address.in_place`` marks a table that is a single file.
S3 = "s3"
HDFS = "hdfs"
FILE = "file"

# Addressing of S3: the bucket's position in the URL of a request
AUTO = "auto"  # detected at the first request, and treated as PATH until then
PATH = "path"  # in the path
VIRTUAL = "virtual"  # before the host

_WEB_PORTS = {"http": 80, "https": 443}  # of a URL without a port
TIMEOUT = 20.0  # seconds for one request
RETRIES = 3  # repetitions of a failed request
# A storage that takes longer to write, read and delete the sample counts as slow.
SAMPLE_SECONDS = 10.0
# HTTP statuses of S3 and STS after which the same request may succeed later.
_BUSY_STATUSES = (409, 500, 502, 503, 504)


@dataclass(frozen=True)
class Remote:
    """Address and credentials of a storage elsewhere."""

    name: str  # in the node's settings
    kind: str  # s3 or hdfs
    host: str
    port: int
    folder: str  # bucket of S3, or the folder of HDFS with all data
    username: str = ""  # access key of S3, or user of HDFS
    password: str = ""
    token: str = ""  # of temporary credentials of S3, or of a run at HDFS
    tls: bool = False
    region: str = "us-east-1"
    role: str = ""  # of S3, assumed for each run; empty: runs have no credentials of their own
    principal: str = ""  # of HDFS with Kerberos; empty: HDFS believes the user name
    keytab: str = ""  # file with the key of the principal
    web: str = ""  # URL of WebHDFS, with Kerberos
    share_key: bool = False  # whether runs without credentials of their own get the node's
    datanodes: tuple[str, ...] = ()  # ``address:port`` of the servers with the blocks of HDFS
    addressing: str = PATH  # of S3: AUTO, PATH or VIRTUAL

    def operator(self) -> "Operator":
        """Return a new client for reading and writing, with timeouts and retries."""
        # A node whose data is in its folder does without the library's 5 MB.
        from opendal.layers import TimeoutLayer  # noqa: PLC0415

        operator = self._hdfs_operator() if self.kind == HDFS else self._s3_operator()
        return operator.layer(TimeoutLayer(timeout=TIMEOUT, io_timeout=TIMEOUT))

    def _hdfs_operator(self) -> "Operator":
        """Return a client of HDFS for reading and writing."""
        from opendal import Operator  # noqa: PLC0415 - as in `operator`

        if self.keytab:
            self.use_keytab()
        elif self.username:
            # The library takes the user from the environment alone, so all storages on HDFS have
            # the same user.
            os.environ["HADOOP_USER_NAME"] = self.username
        name_node = f"hdfs://{self.host}:{self.port}"
        return Operator(
            "hdfs-native",
            name_node=name_node,
            root=self.folder,
        )

    def use_keytab(self) -> None:
        """Have the GSSAPI library of this process get its tickets with the keytab.

        It takes its settings from the environment alone, so all storages on HDFS have the same
        principal. The tickets stay in memory.
        """
        os.environ["KRB5_CLIENT_KTNAME"] = f"FILE:{self.keytab}"
        os.environ["KRB5CCNAME"] = "MEMORY:bfia-gateway"
        # The client of HDFS takes Kerberos from its own configuration only.
        os.environ["HADOOP_CONF_DIR"] = str(Path(__file__).with_name("hadoop_kerberos"))

    def _s3_operator(self) -> "Operator":
        """Return a client of S3, which takes nothing from the machine's own configuration of S3."""
        from opendal import Operator  # noqa: PLC0415 - as in `operator`
        from opendal.layers import RetryLayer  # noqa: PLC0415

        _ensure_certificate_authorities()
        options = {
            "endpoint": self.endpoint,
            "bucket": self.folder,
            "region": self.region,
            "access_key_id": self.username,
            "secret_access_key": self.password,
            "disable_config_load": "true",
            "disable_ec2_metadata": "true",
        }
        if self.addressing == VIRTUAL:
            options["enable_virtual_host_style"] = "true"
        if self.token:
            options["session_token"] = self.token
        # Not for HDFS, whose client retries by itself. Delays are in seconds.
        retries = RetryLayer(
            max_times=RETRIES,
            min_delay=0.2,
            max_delay=2.0,
        )
        return Operator("s3", **options).layer(retries)

    @contextmanager
    def client(
        self,
        service: str,
        denial: str = "denies access",
    ) -> Iterator[Any]:
        """Yield a client for requests that `operator` does not offer; ``service``: s3 or sts.

        Inside the context, errors of the client become `StorageAway` if the server cannot be
        reached or is busy, else `StorageFailed` with the text ``denial``.
        """
        # Imported late, as in `_client`.
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            yield _client(self, service)
        except ClientError as error:
            code = client_error_code(error)
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status in _BUSY_STATUSES:
                raise StorageAway(f"storage {self.name} is busy: {code}") from None
            raise StorageFailed(f"storage {self.name} {denial}: {code}") from None
        except BotoCoreError as error:
            text = f"storage {self.name} cannot be reached: {type(error).__name__}"
            raise StorageAway(text) from None

    @property
    def services(self) -> tuple[str, ...]:
        """The ``host:port`` of each server that a run must reach to use the storage."""
        host = self.host
        if self.addressing == VIRTUAL:
            host = f"{self.folder}.{host}"
        name_node = [f"{host}:{self.port}"]
        if self.web:
            web = urlsplit(self.web)
            name_node.append(f"{web.hostname}:{web.port or _WEB_PORTS[web.scheme]}")
        return (*name_node, *self.datanodes)

    @property
    def has_run_credentials(self) -> bool:
        """Whether each run gets credentials of its own."""
        return bool(self.role or self.principal)

    @property
    def shares_key_of_s3(self) -> bool:
        """Whether runs get the node's own key of S3."""
        return self.kind == S3 and not self.role

    @property
    def believes_names(self) -> bool:
        """Whether the storage lets every client in under the user name that the client gives."""
        return self.kind == HDFS and not self.principal

    @property
    def serves_runs(self) -> bool:
        """Whether runs get any credentials: their own, or the node's if these are shared."""
        return self.has_run_credentials or self.share_key

    @property
    def endpoint(self) -> str:
        """The URL of S3's interface."""
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self.host}:{self.port}"

    def url(self) -> str:
        """Return the URL of the storage with its credentials, as containers get it.

        It is the value of ``system.storage`` (component layer 4.2).
        """
        values = {
            "username": self.username,
            "password": self.password,
        }
        values["token"] = self.token
        if self.kind == HDFS:
            values["dir"] = self.folder
            values["web"] = self.web
        else:
            values["bucket"] = self.folder
            if self.region != Remote.region:  # the class has the default
                values["region"] = self.region
        if self.tls:
            values["scheme"] = "https"
        if self.addressing == VIRTUAL:
            values["addressing"] = VIRTUAL
        present = {name: value for name, value in values.items() if value}
        query = urlencode(present, quote_via=quote)
        return f"{self.kind}://{self.host}:{self.port}?{query}"


@cache
def _ensure_certificate_authorities() -> None:
    """Have the library use certifi's certificate authorities on a machine without any.

    Without certificate authorities, the library fails even for plain http.
    """
    paths = ssl.get_default_verify_paths()
    has_folder = paths.capath is not None and bool(os.listdir(paths.capath))
    if not paths.cafile and not has_folder:
        os.environ["SSL_CERT_FILE"] = certifi.where()


@cache
def _client(remote: Remote, service: str) -> Any:
    """Return botocore's client of a service; clients are kept, since building one takes long."""
    import botocore.session  # noqa: PLC0415 - a node without S3 starts sooner without it
    from botocore.config import Config  # noqa: PLC0415

    addressing = VIRTUAL if remote.addressing == VIRTUAL else PATH
    config = Config(
        connect_timeout=5,
        read_timeout=20,
        retries={"max_attempts": 2},
        proxies={},
        s3={"addressing_style": addressing},
    )
    return botocore.session.Session().create_client(
        service,
        endpoint_url=remote.endpoint,
        region_name=remote.region,
        aws_access_key_id=remote.username,
        aws_secret_access_key=remote.password,
        aws_session_token=remote.token or None,
        config=config,
    )


def client_error_code(error: "ClientError") -> str:
    """Return the code of an error response; "" without one.

    Some servers put the code one level higher in the response than S3 does.
    """
    code = error.response.get("Error", {}).get("Code")
    return str(code or error.response.get("Code", ""))
