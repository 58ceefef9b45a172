"""Database servers that a trial may kill."""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pymysql

from tests.e2e.nodes import free_ports, wait_for

_START_TIMEOUT = 60  # seconds


class Database(ABC):
    """A server of its own, with a database for each node. Needs root."""

    def __init__(self, home: Path) -> None:
        """``home``: its folder, which must not exist yet."""
        self.home = home
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Database":
        self.home.mkdir()
        self.install()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server, and wait until it responds."""
        with (self.home / "log").open("ab") as log:
            self._process = self.launch(log.fileno())
        wait_for(self.responds, _START_TIMEOUT, 0.1, "the database responds")

    def log(self) -> str:
        """Return what the server has logged."""
        return (self.home / "log").read_text(errors="replace")

    def kill(self) -> None:
        """Kill the server, if it runs."""
        if self._process is None:
            return
        # A stopped process starts no further children, which end by themselves without it.
        self._process.send_signal(signal.SIGSTOP)
        children = _children(self._process.pid)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        wait_for(lambda: not any(map(_runs, children)), about="the server's processes end")

    @abstractmethod
    def install(self) -> None:
        """Create the files of the server."""

    @abstractmethod
    def launch(self, log: int) -> "subprocess.Popen[bytes]":
        """Start the process of the server; ``log``: the file descriptor for its messages."""

    @abstractmethod
    def responds(self) -> bool:
        """Return whether a client can connect."""

    @abstractmethod
    def url(self, name: str) -> str:
        """Create a database, and return its address."""

    @abstractmethod
    def installation(self, name: str) -> str:
        """Return the id of the installation that uses a database; empty before it does."""


class MariaDB(Database):
    """A server of MariaDB."""

    def install(self) -> None:
        self._temporary.mkdir()
        command = [
            "mariadb-install-db",
            "--no-defaults",
            "--user=root",
            f"--datadir={self._data}",
            f"--tmpdir={self._temporary}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        subprocess.run(
            command,
            check=True,
            capture_output=True,
        )

    def launch(self, log: int) -> "subprocess.Popen[bytes]":
        command = [
            "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={self._data}",
            # A server that starts deletes the temporary tables of others in a shared folder.
            f"--tmpdir={self._temporary}",
            f"--socket={self._socket}",
            f"--pid-file={self.home / 'm.pid'}",
            "--skip-name-resolve",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--innodb-buffer-pool-size=32M",
        ]
        search_path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PATH": search_path},
        )

    def responds(self) -> bool:
        # The driver would leave its socket open if nothing listens.
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(self._socket) != 0:
                return False
        try:
            self._connection().close()
        except pymysql.Error:
            return False
        return True

    def url(self, name: str) -> str:
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.execute("create user if not exists bfia@'127.0.0.1' identified by 'bfia'")
            cursor.execute(f"create database {name}")
            cursor.execute(f"grant all on {name}.* to bfia@'127.0.0.1'")
        return f"mysql+pymysql://bfia:bfia@127.0.0.1:{self.port}/{name}"

    def installation(self, name: str) -> str:
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"select id from {name}.installation")
            return str((cursor.fetchone() or ("",))[0])

    @property
    def _data(self) -> Path:
        return self.home / "data"

    @property
    def _temporary(self) -> Path:
        return self.home / "tmp"

    @property
    def _socket(self) -> str:
        return str(self.home / "s.sock")

    def _connection(self) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        return pymysql.connect(
            unix_socket=self._socket,
            user="root",
        )


class PostgreSQL(Database):
    """A server of PostgreSQL, which runs as Debian's user, since it refuses to run as root."""

    def __enter__(self) -> "Database":
        # The user cannot enter the folder of the world.
        self._data = Path(tempfile.mkdtemp(prefix="bfia-pg-"))
        self._user = pwd.getpwnam("postgres")
        os.chown(self._data, self._user.pw_uid, self._user.pw_gid)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        # A server that was killed would leave shared memory behind.
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
        shutil.rmtree(self._data)

    def install(self) -> None:
        command = [
            self._program("initdb"),
            f"--pgdata={self._data}",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--auth=trust",
            "--no-sync",
        ]
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            cwd="/",
            user=self._user.pw_uid,
            group=self._user.pw_gid,
            extra_groups=[],
        )

    def launch(self, log: int) -> "subprocess.Popen[bytes]":
        # Left by a server that was killed, and its number may be another process by now.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        command = [
            self._program("postgres"),
            *("-D", str(self._data)),
            *("-h", "127.0.0.1"),
            *("-p", str(self.port)),
            *("-k", ""),  # without a socket file
            *("-c", "fsync=off"),  # the machine itself does not die
        ]
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            user=self._user.pw_uid,
            group=self._user.pw_gid,
            extra_groups=[],
        )

    def responds(self) -> bool:
        try:
            self._connection().close()
        except psycopg.Error:
            return False
        return True

    def url(self, name: str) -> str:
        with self._connection() as connection:
            connection.execute(f'create database "{name}"'.encode())
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{name}"

    def installation(self, name: str) -> str:
        with self._connection(name) as connection:
            row = connection.execute("select id from installation").fetchone()
            return str((row or ("",))[0])

    def _connection(self, database: str = "postgres") -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            dbname=database,
            autocommit=True,
        )

    def _program(self, name: str) -> str:
        """Return the path of a program of the newest version that Debian has installed."""
        versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")

        def version(path: Path) -> list[int]:
            return [int(part) for part in re.findall(r"\d+", str(path))]

        return str(max(versions, key=version))


DATABASES: Mapping[str, type[Database]] = {
    "mariadb": MariaDB,
    "postgresql": PostgreSQL,
}


def _children(pid: int) -> list[int]:
    """Return the child processes of a process; none if it has ended."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(text) for text in children.read_text().split()]
    except OSError:
        return []


def _runs(pid: int) -> bool:
    """Return whether a process exists, and is not only an entry that its parent has yet to read."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
