"""Uploads over HTTP: both paths, their fields, and every refusal in the envelope."""

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import datetime
from io import RawIOBase
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from adapter.bfia import data, envelope
from adapter.bfia.examples import UPLOAD
from gateway.data.combined_storage import Storages
from gateway.data.datasets import Datasets
from gateway.data.file_storage import STAGING_FOLDER, FileStorage
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address
from gateway.errors import GatewayError
from gateway.http.streamed_bodies import READ, Rest
from tests.trust.test_connections import listening

# Uploads a file on the server, by its path; and the path to which a file is sent.
UPLOAD_PATH = "/v2/component/upload"
UPLOAD_FILE = "/v2/component/upload/file"

ROOT = Path(__file__).resolve().parents[3]
USERS_UPLOAD = json.loads((ROOT / "examples/upload_breast_hetero_guest.json").read_text())

# A table of 40 rows, and the dataset as which tests upload it.
TABLE = "id,y,x0\n" + "".join(f"u{i},{i % 2},{i / 8}\n" for i in range(40))
DATASET = {
    "namespace": "testspace",
    "name": "test_guest",
}
DATASET_ID = "testspace#test_guest"


class UploadSite:
    """A node's paths for data, called without a listener."""

    def __init__(
        self,
        folder: Path,
        *,
        max_upload: int = 10**6,
    ) -> None:
        # the folder whose files may be uploaded by their path
        self.server_files = folder / "server"
        self.server_files.mkdir()
        self.storage = Storages(FileStorage(folder / "storage"))
        self.datasets = Datasets(
            self.storage,
            MemoryDatasets(),
            [self.server_files],
        )
        self.app = FastAPI()
        self.app.include_router(data.router(data.Uploads(self.datasets, max_upload)))
        envelope.install(self.app)

    def post(
        self,
        path: str,
        **request: Any,
    ) -> httpx.Response:
        """Post a request; the keywords are the same as for httpx."""

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
                return await client.post(path, **request)

        return asyncio.run(send())

    def upload(self, **body: Any) -> dict[str, Any]:
        """Upload a file on the server; return the body of the response."""
        headers = {"content-type": "application/json"}
        response = self.post(
            UPLOAD_PATH,
            content=json.dumps(body),
            headers=headers,
        )
        return dict(response.json())

    def send(
        self,
        content: str | bytes = TABLE,
        **fields: str,
    ) -> dict[str, Any]:
        """Send a file in a form; return the body of the response."""
        files = {"file": ("guest.csv", content)}
        response = self.post(
            UPLOAD_FILE,
            data=DATASET | fields,
            files=files,
        )
        return dict(response.json())

    def send_form(self, *parts: bytes) -> dict[str, Any]:
        """Send a form as the bytes of its parts; return the body of the response."""
        headers = {"content-type": "multipart/form-data; boundary=b"}
        response = self.post(UPLOAD_FILE, content=stream(*parts), headers=headers)
        return dict(response.json())

    def stored_files(self) -> list[Path]:
        """Return every file and folder of the storage except its lock."""
        return [path for path in self.storage.root.rglob("*") if path.name != STAGING_FOLDER]


@pytest.fixture
def site(tmp_path: Path) -> UploadSite:
    return UploadSite(tmp_path)


async def stream(*parts: bytes) -> AsyncIterator[bytes]:
    """Yield the parts of a body."""
    for part in parts:
        yield part


def problem_paths(body: dict[str, Any]) -> set[str]:
    """Return the paths of the problems in a refusal."""
    return {problem["path"] for problem in body["data"]["problems"]}


# ---------------------------------------------------------------- successes


def test_the_users_upload_is_stored_as_requested(site):
    file = site.server_files / USERS_UPLOAD["file"]
    file.parent.mkdir(parents=True)
    file.write_text(TABLE)

    response = site.upload(**USERS_UPLOAD)

    assert response == {
        "code": 0,
        "message": "success",
        "data": {
            "namespace": "experiment",
            "name": "breast_hetero_guest",
            "dataset_id": "experiment#breast_hetero_guest",
            "count": 40,
            "columns": ["sid", "id", "y", "x0"],
            "partitions": 16,
            "checksum": hashlib.sha256(TABLE.encode()).hexdigest(),
            "encoding": "utf-8",
            "delimiter": ",",
            "warnings": [],
        },
    }
    address = site.datasets.resolve("experiment#breast_hetero_guest")
    assert len(site.storage.partitions(address)) == 16


def test_the_example_of_the_documentation_is_the_users_upload():
    assert UPLOAD == USERS_UPLOAD


def test_a_file_that_is_sent_is_stored_like_one_from_the_server(site):
    (site.server_files / "t.csv").write_text(TABLE)
    meta = {
        "label_name": "y",
        "match_id_name": "id",
        "source": "crm",
    }

    from_server = site.upload(
        file="t.csv",
        namespace="testspace",
        name="a",
        partitions=4,
        extend_sid=True,
        meta=meta,
    )
    sent = site.send(
        name="b",
        partitions="4",
        extend_sid="true",
        head="true",
        meta=json.dumps(meta),
    )

    assert from_server["code"] == 0
    assert sent["code"] == 0
    without_name = {
        "name": "",
        "dataset_id": "",
    }
    assert from_server["data"] | without_name == sent["data"] | without_name
    stored = site.datasets.get("testspace#b")
    assert dict(stored.meta) == meta | {
        "delimiter": ",",
        "encoding": "utf-8",
    }
    assert stored.origin == "file:guest.csv"
    assert site.datasets.get("testspace#a").origin == "path:t.csv"


@pytest.mark.parametrize("word", ["drop", "overwrite"])
def test_replacing_has_to_be_said(site, word):
    assert site.send()["code"] == 0

    again = site.send("id\n1\n")
    assert again["code"] == 409
    assert again["data"]["reason"] == "DATASET_EXISTS"
    assert site.datasets.get(DATASET_ID).count == 40

    replaced = site.send("id\n1\n", **{word: "true"})
    assert replaced["data"]["count"] == 1


def test_an_upload_goes_into_the_storage_that_it_names(site):
    assert site.send(storage="file")["code"] == 0

    unknown = site.send(
        storage="lake",
        overwrite="true",
    )
    assert unknown["code"] == 400
    assert problem_paths(unknown) == {"storage"}
    assert "one of this node's storages: file" in str(unknown)


def test_the_response_warns_of_odd_tables(site):
    [warning] = site.send("39, State-gov\n50, Self-emp\n")["data"]["warnings"]
    assert warning.startswith("line 1 has numbers where names of columns belong, such as '39'")


# ---------------------------------------------------------------- refused fields

WRONG_FIELDS = [
    {
        "file": "",
        "head": "perhaps",
        "partitions": 0,
        "namespace": "a#b",
        "name": "../x",
        "extend_sids": True,
    },
    {"partitions": True},
    {"partitions": 1.5},
    {"meta": "{"},
    {"meta": "[" * 100_000},
    {"meta": {"note": "\ud800"}},
    {"name": "\ud800"},
    {"name": "a/b"},
    {"name": ".hidden"},
    {"name": "n" * 256},
    {"description": "\ud800", "namespace": "n" * 129},
]


@pytest.mark.parametrize("fields", WRONG_FIELDS)
def test_every_impossible_value_is_named(site, fields):
    (site.server_files / "t.csv").write_text(TABLE)

    refusal = site.upload(**({"file": "t.csv"} | DATASET | fields))

    assert refusal["code"] == 400
    assert problem_paths(refusal) == set(fields)
    assert "message" in refusal
    assert "msg" not in refusal
    assert site.stored_files() == []


def test_all_problems_of_an_object_are_reported_together(site):
    meta = {
        "delimiter": "ab",
        "label_name": 3,
        "encoding": "utf-16",
    }
    refusal = site.upload(file="t.csv", **DATASET, meta=meta)
    assert problem_paths(refusal) == {"meta.delimiter", "meta.label_name", "meta.encoding"}
    assert site.stored_files() == []


def test_all_problems_of_a_form_are_reported_together(site):
    form = {
        "file": "/data/on/server.csv",
        "partitions": "1025",
        "meta": "[1]",
        "name": "a/b",
    }
    # fields without a file name, as `None` makes them
    files = [(name, (None, value)) for name, value in form.items()]

    refusal = site.post(UPLOAD_FILE, files=files).json()

    assert refusal["code"] == 400
    assert problem_paths(refusal) == set(form) | {"namespace"}
    assert site.stored_files() == []


@pytest.mark.parametrize(
    "file",
    ["../secret.csv", "/etc/hostname", "a/../../secret.csv"],
)
def test_a_path_outside_the_roots_is_refused(site, file):
    (site.server_files.parent / "secret.csv").write_text(TABLE)

    refusal = site.upload(file=file, **DATASET)

    assert refusal["code"] == 403
    assert refusal["data"]["reason"] == "PATH_NOT_ALLOWED"
    assert UPLOAD_FILE in refusal["message"]


def test_each_key_of_an_older_fate_gets_the_current_one(site):
    refusal = site.upload(
        file="guest.csv",
        head=1,
        partition=8,
        work_mode=0,
        backend=0,
        table_name="guest",
        namespace="experiment",
        id_delimiter=",",
        storage_engine="standalone",
        destroy=1,
    )

    problems = {problem["path"]: problem for problem in refusal["data"]["problems"]}
    suggestions = {path: problem.get("suggestion") for path, problem in problems.items()}
    assert suggestions == {
        "partition": "partitions",
        "table_name": "name",
        "name": "name instead of table_name",
        "id_delimiter": "meta.delimiter",
        "destroy": "overwrite",
        "work_mode": None,
        "backend": None,
        "storage_engine": None,
    }
    for path in ("work_mode", "backend", "storage_engine"):
        assert problems[path]["rule"].endswith("leave it out")


def test_keys_of_an_older_fate_in_a_form_get_the_current_ones(site):
    refusal = site.send(
        partition="8",
        table_name="guest",
    )
    problems = refusal["data"]["problems"]
    assert {problem["path"]: problem["suggestion"] for problem in problems} == {
        "partition": "partitions",
        "table_name": "name",
    }


# ---------------------------------------------------------------- refused tables


def test_problems_of_a_table_are_reported_with_their_line(site):
    meta = '{"match_id_name": "id", "label_name": "label"}'

    refusal = site.send(
        "id,y\n1,0\n1,1\n3\n",
        meta=meta,
    )

    assert problem_paths(refusal) == {"meta.label_name", "file:3", "file:4"}
    assert any("id, y" in problem["rule"] for problem in refusal["data"]["problems"])
    assert site.stored_files() == []


def test_rows_of_one_customer_are_stored_with_sids_of_their_own(site):
    clicks = "id,y,x0\n1001,1,0.25\n1002,0,1.5\n1001,0,0.75\n1001,1,2.0\n"
    meta = json.dumps({"match_id_name": "id", "label_name": "y"})

    refusal = site.send(clicks, meta=meta)
    assert problem_paths(refusal) == {"file:4", "file"}
    assert "set extend_sid: true" in refusal["data"]["problems"][0]["rule"]

    stored = site.send(
        clicks,
        meta=meta,
        extend_sid="true",
        partitions="3",
    )
    assert stored["code"] == 0
    assert stored["data"]["count"] == 4
    rows = list(site.storage.iter_rows(Address("testspace", "test_guest")))
    assert sorted(row[1] for row in rows) == ["1001", "1001", "1001", "1002"]
    assert len({row[0] for row in rows}) == 4

    empty_id = "id,y\n1,0\n,1\n"
    refusal = site.send(
        empty_id,
        meta=meta,
        extend_sid="true",
        overwrite="true",
    )
    assert problem_paths(refusal) == {"file:3"}


@pytest.mark.parametrize(
    "lines",
    [600, 2_000_000],
    ids=["a little", "by far"],
)
def test_a_file_over_the_limit_is_413_and_leaves_nothing(tmp_path, lines):
    site = UploadSite(tmp_path, max_upload=1000)
    files = {"file": ("t.csv", b"a\n" * lines)}

    response = site.post(
        UPLOAD_FILE,
        data=DATASET,
        files=files,
    )

    assert response.status_code == 413
    assert response.json()["code"] == 413
    assert site.stored_files() == []


def test_a_file_of_exactly_the_limit_is_stored(tmp_path):
    site = UploadSite(tmp_path, max_upload=1000)
    assert site.send("a\n" * 500)["code"] == 0


# ---------------------------------------------------------------- metadata


def test_published_readers_of_metadata_read_a_table(site):
    """FATE's and UnionPay's storages read both times as seconds since 1970."""
    site.send()

    metadata = site.storage.metadata(Address("testspace", "test_guest"))

    columns = [(column["name"], column["type"]) for column in metadata["column_info"]]
    assert columns == [
        ("id", "string"),
        ("y", "int"),
        ("x0", "float"),
    ]
    created = datetime.fromtimestamp(metadata["create_time"])
    expires = datetime.fromtimestamp(metadata["expire_time"])
    assert created < datetime.now() < expires


def test_both_bodies_are_in_the_interface_description(site):
    description = site.app.openapi()

    def content_of(
        path: str,
        kind: str,
    ) -> dict[str, Any]:
        return dict(description["paths"][path]["post"]["requestBody"]["content"][kind])

    body = content_of(UPLOAD_PATH, "application/json")
    assert body["schema"]["examples"] == [USERS_UPLOAD]

    form = content_of(UPLOAD_FILE, "multipart/form-data")
    fields = set(form["schema"]["properties"])
    assert fields == set(description["components"]["schemas"]["UploadBody"]["properties"])
    assert set(USERS_UPLOAD) <= fields

    example = {name: str(value) for name, value in form["example"].items()}
    content = example.pop("file")
    assert site.send(content, **example)["code"] == 0


# ---------------------------------------------------------------- forms, byte by byte


def form_field(name: str, value: str) -> bytes:
    """Return one field of a form whose boundary is ``b``."""
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


FIELDS = form_field("namespace", DATASET["namespace"]) + form_field(
    "name",
    DATASET["name"],
)
# What precedes the content of the file, and the end of a form.
FILE_HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="t.csv"\r\n\r\n'
END = b"--b--\r\n"
SHORT_FILE = FILE_HEAD + b"id\n1\n\r\n"

BROKEN_FORMS = {
    "empty": b"",
    "no form": b"nothing of a form",
    "no end of the file": FIELDS + FILE_HEAD + b"id\n1\n",
    "no end of the form": FIELDS + SHORT_FILE + b"--b\r\n",
    "field without a name": b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END,
    "long header": b"--b\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\nx\r\n" + END,
    "two files": SHORT_FILE + SHORT_FILE + END,
    "101 fields": form_field("k", "") * 101 + END,
    "no file": FIELDS + END,
    "file of another name": FIELDS + SHORT_FILE.replace(b'"file"', b'"table"') + END,
    "fields twice": FIELDS + FIELDS + SHORT_FILE + END,
}


@pytest.mark.parametrize(
    "form",
    BROKEN_FORMS.values(),
    ids=BROKEN_FORMS,
)
def test_an_incomplete_form_is_refused_and_leaves_nothing(site, form):
    refusal = site.send_form(form)
    assert refusal["code"] == 400
    assert refusal["data"]["problems"]
    assert site.stored_files() == []


def test_fields_behind_the_file_count_or_are_refused(site):
    file = FILE_HEAD + TABLE.encode() + b"\r\n"
    names = form_field("namespace", "n") + form_field("name", "t")

    first = site.send_form(file + names + form_field("partitions", "4") + END)
    assert first["data"]["partitions"] == 4

    overwrite = form_field("overwrite", "true")
    again = site.send_form(names + overwrite + file + form_field("description", "") + END)
    assert again["code"] == 0
    assert again["data"]["partitions"] == 1

    late = site.send_form(names + file + overwrite + END)
    assert late["code"] == 400
    assert problem_paths(late) == {"overwrite"}
    assert "before" in late["message"]

    refused = site.send_form(names + file + END)
    assert refused["data"]["reason"] == "DATASET_EXISTS"
    assert site.datasets.get("n#t").partitions == 1


def test_an_upload_that_breaks_off_leaves_nothing(site):
    """The client disconnects in the middle of the file."""
    half_form = {
        "type": "http.request",
        "body": FIELDS + FILE_HEAD + b"id\n" + b"1\n" * 400_000,
        "more_body": True,
    }
    messages = iter([half_form, {"type": "http.disconnect"}])
    # the storage's files before each message
    snapshots: list[list[Path]] = []

    async def receive() -> dict[str, Any]:
        snapshots.append(site.stored_files())
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        """Ignore the response."""

    scope = {
        "type": "http",
        "method": "POST",
        "path": UPLOAD_FILE,
        "raw_path": UPLOAD_FILE.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"multipart/form-data; boundary=b")],
        "root_path": "",
    }
    asyncio.run(site.app(scope, receive, send))

    before_disconnect = snapshots[-1]
    uploads = [path for path in before_disconnect if path.name == "upload"]
    assert any(path.parent.parent.name == STAGING_FOLDER for path in uploads)
    assert site.stored_files() == []
    assert not site.storage.exists(Address(**DATASET))


# ---------------------------------------------------------------- files read by a thread

# More than a connection gives in one read, so that the storing thread reads the rest.
LONG_TABLE = b"id,y\r\n" + b"".join(b"u%d,%d\r\n" % (i, i % 2) for i in range(60_000))
LATE_OVERWRITE = b'\r\nContent-Disposition: form-data; name="overwrite"\r\n\r\ntrue\r\n--b--\r\n'
LONG_FIELD = b'\r\nContent-Disposition: form-data; name="k"\r\n\r\n' + b"k" * 1_100_000
CLOSING = b"--\r\n"


def exchange_long_form(
    site: UploadSite,
    content: bytes,
    rest: bytes,
) -> dict[str, Any]:
    """Send a form through a listener; return the body of the response.

    ``rest`` follows the boundary after the file.
    """
    head, form = long_form(content, rest)
    with (
        listening(site.app) as port,
        socket.create_connection(("127.0.0.1", port), timeout=300) as client,
    ):
        client.sendall(head)
        client.sendall(form)
        with client.makefile("rb") as stream_of_response:
            response = stream_of_response.read()
    _, _, body = response.partition(b"\r\n\r\n")
    return dict(json.loads(body))


def long_form(
    content: bytes,
    rest: bytes,
) -> tuple[bytes, bytes]:
    """Return the head of a request and its form."""
    form = FIELDS + FILE_HEAD + content + b"\r\n--b" + rest
    head = (
        f"POST {UPLOAD_FILE} HTTP/1.1\r\n"
        "host: x\r\n"
        f"content-length: {len(form)}\r\n"
        "content-type: multipart/form-data; boundary=b\r\n\r\n"
    )
    return head.encode(), form


@pytest.fixture
def limited_site(tmp_path: Path) -> UploadSite:
    """A site that takes little more than the long table."""
    return UploadSite(
        tmp_path,
        max_upload=len(LONG_TABLE) + 100,
    )


def test_a_long_file_is_read_past_the_event_loop(limited_site):
    response = exchange_long_form(limited_site, LONG_TABLE, CLOSING)
    assert response["data"]["count"] == 60_000
    assert response["data"]["checksum"] == hashlib.sha256(LONG_TABLE).hexdigest()


LONG_BROKEN_FORMS = {
    "late overwrite": (
        LONG_TABLE,
        LATE_OVERWRITE,
        {"overwrite"},
    ),
    "column twice": (
        b"id,id\n" + LONG_TABLE,
        CLOSING,
        {"file:1"},
    ),
    "cell too many": (
        LONG_TABLE + b"1,2,3\r\n",
        CLOSING,
        {"file:60002"},
    ),
    "boundary in the file": (
        LONG_TABLE + b"\r\n--b1,2\r\n",
        CLOSING,
        {"body"},
    ),
}


@pytest.mark.parametrize(
    ("content", "rest", "paths"),
    LONG_BROKEN_FORMS.values(),
    ids=LONG_BROKEN_FORMS,
)
def test_a_long_file_with_a_problem_is_refused(limited_site, content, rest, paths):
    refusal = exchange_long_form(limited_site, content, rest)
    assert problem_paths(refusal) == paths
    assert limited_site.stored_files() == []


@pytest.mark.parametrize(
    ("content", "rest"),
    [(LONG_TABLE, LONG_FIELD), (LONG_TABLE * 2, CLOSING)],
    ids=["field", "file"],
)
def test_a_long_file_over_the_limit_is_refused(limited_site, content, rest):
    refusal = exchange_long_form(limited_site, content, rest)
    assert refusal["code"] == 413
    assert limited_site.stored_files() == []


def test_a_long_file_that_breaks_off_leaves_nothing(limited_site):
    head, form = long_form(LONG_TABLE, b"")
    with (
        listening(limited_site.app) as port,
        socket.create_connection(("127.0.0.1", port), timeout=300) as client,
    ):
        client.sendall(head)
        client.sendall(form[: len(form) // 2])
    assert limited_site.stored_files() == []


class SlowConnection(RawIOBase):
    """Gives some bytes in each read."""

    def __init__(self, content: bytes, step: int) -> None:
        self._content = content
        self._step = step

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes; return their number."""
        count = min(self._step, len(buffer))
        chunk = self._content[:count]
        self._content = self._content[count:]
        buffer[: len(chunk)] = chunk
        return len(chunk)


@pytest.mark.parametrize(
    "step",
    [1, 2, 3, 5, 1000],
)
@pytest.mark.parametrize(
    "content",
    [b"", b"\r", b"\r\n", b"\r\n--\r\n-\r\r\n--ma", b"a,b\r\n1,2\r\n" * 20],
)
def test_the_file_of_a_form_ends_at_its_mark(content, step):
    rests: list[bytes] = []

    def note_end() -> None:
        rests.append(part.after)

    with closing(SlowConnection(content + b"\r\n--mark--\r\n", step)) as connection:
        part = data.FilePart(connection, b"\r\n--mark", note_end)  # type: ignore[arg-type]
        file = read_all(part.readinto)

    assert file == content
    assert rests == [b"\r\n--mark--\r\n"]


def read_all(readinto: Callable[[memoryview], int]) -> bytes:
    """Read to the end, four bytes at a time."""
    buffer = memoryview(bytearray(4))
    content = b""
    count = readinto(buffer)
    while count:
        content += buffer[:count]
        count = readinto(buffer)
    return content


def test_the_end_of_a_file_may_come_after_the_end_of_the_node():
    ours, theirs = socket.socketpair()
    parts: list[data.FilePart] = []

    async def receive() -> dict[str, Any]:
        return {
            "type": "http.request",
            "body": FIELDS + FILE_HEAD + b"id",
            "more_body": True,
        }

    def accept(_: Any) -> bool:
        return True

    async def receive_until_cancelled(scope: dict[str, Any]) -> None:
        request = Request(scope, receive)
        form = data.receive(request, len, 10**6, accept, parts.append)
        receiving = asyncio.create_task(form)
        while not parts:
            await asyncio.sleep(0)
        receiving.cancel()

    with theirs, closing(Rest(ours, b"", 100)) as rest:

        def rest_of_body() -> Rest:
            return rest

        scope = {
            "type": "http",
            "headers": [(b"content-type", b"multipart/form-data; boundary=b")],
            "extensions": {READ: rest_of_body},
        }
        asyncio.run(receive_until_cancelled(scope))
        theirs.close()
        with pytest.raises(GatewayError, match="broken off"):
            read_all(parts[0].readinto)
