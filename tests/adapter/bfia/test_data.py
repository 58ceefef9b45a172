"""Uploading over HTTP: both ways, their keys, and every refusal in the envelope."""

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncIterator
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
from gateway.data.file_storage import FOLDER, FileStorage
from gateway.domain.datasets import MemoryDatasets
from gateway.domain.run import Address
from gateway.errors import GatewayError
from gateway.http.streamed_bodies import READ, Rest
from tests.trust.test_connections import listening

ROOT = Path(__file__).resolve().parents[3]
USERS = json.loads((ROOT / "examples/upload_breast_hetero_guest.json").read_text())
TABLE = "id,y,x0\n" + "".join(f"u{i},{i % 2},{i / 8}\n" for i in range(40))
KEYS = {"namespace": "testspace", "name": "test_guest"}


class Site:
    """A node's data paths, asked in the process."""

    def __init__(self, folder: Path, *, max_upload: int = 10**6) -> None:
        self.roots = folder / "server"
        self.roots.mkdir()
        self.storage = Storages(FileStorage(folder / "storage"))
        self.datasets = Datasets(self.storage, MemoryDatasets(), [self.roots])
        self.app = FastAPI()
        self.app.include_router(data.router(data.Uploads(self.datasets, max_upload)))
        envelope.install(self.app)

    def post(self, path: str, **request: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
                return await client.post(path, **request)

        return asyncio.run(ask())

    def upload(self, **body: Any) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        return self.post("/v2/component/upload", content=json.dumps(body), headers=headers).json()

    def send(self, content: str | bytes = TABLE, **fields: str) -> dict[str, Any]:
        return self.post(
            "/v2/component/upload/file",
            data={**KEYS, **fields},
            files={"file": ("guest.csv", content)},
        ).json()

    def left(self) -> list[Path]:
        """Everything in the storage but the file that is only a lock."""
        return [p for p in self.storage.root.rglob("*") if p.name != FOLDER]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def paths(answer: dict[str, Any]) -> set[str]:
    return {p["path"] for p in answer["data"]["problems"]}


def test_the_users_upload_is_stored_as_asked(site: Site) -> None:
    file = site.roots / USERS["file"]
    file.parent.mkdir(parents=True)
    file.write_text(TABLE)
    answer = site.upload(**USERS)
    assert answer == {
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
    assert UPLOAD == USERS


def test_a_file_that_is_sent_is_stored_like_one_from_the_server(site: Site) -> None:
    (site.roots / "t.csv").write_text(TABLE)
    meta = {
        "label_name": "y",
        "match_id_name": "id",
        "source": "crm",
    }
    by_path = site.upload(
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
    assert by_path["code"] == sent["code"] == 0
    assert {
        **by_path["data"],
        "name": "",
        "dataset_id": "",
    } == {
        **sent["data"],
        "name": "",
        "dataset_id": "",
    }
    assert dict(site.datasets.get("testspace#b").meta) == {
        **meta,
        "delimiter": ",",
        "encoding": "utf-8",
    }
    assert site.datasets.get("testspace#b").origin == "file:guest.csv"
    assert site.datasets.get("testspace#a").origin == "path:t.csv"


@pytest.mark.parametrize("word", ["drop", "overwrite"])
def test_replacing_has_to_be_said(site: Site, word: str) -> None:
    assert site.send()["code"] == 0
    again = site.send("id\n1\n")
    assert (again["code"], again["data"]["reason"]) == (409, "DATASET_EXISTS")
    assert site.datasets.get("testspace#test_guest").count == 40
    assert site.send("id\n1\n", **{word: "true"})["data"]["count"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {
            "file": "",
            "head": "perhaps",
            "partitions": 0,
            "namespace": "a#b",
            "name": "../x",
            "extend_sids": True,
        },
        *({"partitions": value} for value in (True, 1.5)),
        *({"meta": value} for value in ("{", "[" * 100_000, {"note": "\ud800"})),
        *({"name": value} for value in ("\ud800", "a/b", ".hidden", "n" * 256)),
        {"description": "\ud800", "namespace": "n" * 129},
    ],
)
def test_every_value_that_cannot_be_is_named(site: Site, wrong: dict[str, Any]) -> None:
    (site.roots / "t.csv").write_text(TABLE)
    answer = site.upload(
        **{
            "file": "t.csv",
            **KEYS,
            **wrong,
        }
    )
    assert answer["code"] == 400 and paths(answer) == set(wrong), answer
    assert "message" in answer and "msg" not in answer
    assert site.left() == []


def test_all_problems_of_an_object_and_of_a_form_are_reported_together(site: Site) -> None:
    answer = site.upload(
        file="t.csv",
        **KEYS,
        meta={
            "delimiter": "ab",
            "label_name": 3,
            "encoding": "utf-16",
        },
    )
    assert paths(answer) == {"meta.delimiter", "meta.label_name", "meta.encoding"}
    form = {
        "file": "/data/on/server.csv",
        "partitions": "1025",
        "meta": "[1]",
        "name": "a/b",
    }
    files = [(name, (None, value)) for name, value in form.items()]
    answer = site.post("/v2/component/upload/file", files=files).json()
    assert answer["code"] == 400 and paths(answer) == {*form, "namespace"}
    assert site.left() == []


@pytest.mark.parametrize("file", ["../secret.csv", "/etc/hostname", "a/../../secret.csv"])
def test_a_path_outside_the_roots_is_refused(site: Site, file: str) -> None:
    (site.roots.parent / "secret.csv").write_text(TABLE)
    answer = site.upload(file=file, **KEYS)
    assert (answer["code"], answer["data"]["reason"]) == (403, "PATH_NOT_ALLOWED")
    assert "/v2/component/upload/file" in answer["message"]


def test_problems_of_a_table_are_reported_with_their_line(site: Site) -> None:
    answer = site.send("id,y\n1,0\n1,1\n3\n", meta='{"match_id_name": "id", "label_name": "label"}')
    assert paths(answer) == {"meta.label_name", "file:3", "file:4"}
    assert any("id, y" in p["rule"] for p in answer["data"]["problems"])
    assert site.left() == []


def test_rows_of_one_customer_are_stored_with_sids_of_their_own(site: Site) -> None:
    clicks = "id,y,x0\n1001,1,0.25\n1002,0,1.5\n1001,0,0.75\n1001,1,2.0\n"
    meta = json.dumps({"match_id_name": "id", "label_name": "y"})
    refused = site.send(clicks, meta=meta)
    assert paths(refused) == {"file:4", "file"}
    assert "set extend_sid: true" in refused["data"]["problems"][0]["rule"]
    stored = site.send(
        clicks,
        meta=meta,
        extend_sid="true",
        partitions="3",
    )
    assert (stored["code"], stored["data"]["count"]) == (0, 4)
    rows = list(site.storage.iter_rows(Address("testspace", "test_guest")))
    assert sorted(row[1] for row in rows) == ["1001", "1001", "1001", "1002"]
    assert len({row[0] for row in rows}) == 4
    blank = site.send(
        "id,y\n1,0\n,1\n",
        meta=meta,
        extend_sid="true",
        overwrite="true",
    )
    assert paths(blank) == {"file:3"}


def test_the_answer_warns_of_what_looks_odd_in_a_table(site: Site) -> None:
    (warning,) = site.send("39, State-gov\n50, Self-emp\n")["data"]["warnings"]
    assert warning.startswith("line 1 has numbers where names of columns belong, such as '39'")


def test_each_key_of_an_older_fate_gets_the_one_that_is_meant(site: Site) -> None:
    upload = {
        "file": "guest.csv",
        "head": 1,
        "partition": 8,
        "work_mode": 0,
        "backend": 0,
        "table_name": "guest",
        "namespace": "experiment",
        "id_delimiter": ",",
        "storage_engine": "standalone",
        "destroy": 1,
    }
    problems = {p["path"]: p for p in site.upload(**upload)["data"]["problems"]}
    meant = {path: problem.get("suggestion") for path, problem in problems.items()}
    assert meant == {
        "partition": "partitions",
        "table_name": "name",
        "name": "name instead of table_name",
        "id_delimiter": "meta.delimiter",
        "destroy": "overwrite",
        "work_mode": None,
        "backend": None,
        "storage_engine": None,
    }
    for left_out in ("work_mode", "backend", "storage_engine"):
        assert problems[left_out]["rule"].endswith("leave it out")
    sent = site.send(partition="8", table_name="guest")
    assert {p["path"]: p["suggestion"] for p in sent["data"]["problems"]} == {
        "partition": "partitions",
        "table_name": "name",
    }


def _read_as_published(
    metadata: dict[str, Any],
) -> tuple[list[tuple[str, str]], datetime, datetime]:
    """Read a table's metadata as FATE's and UnionPay's storages do: both times are seconds since 1970."""
    columns = [(column["name"], column["type"]) for column in metadata["column_info"]]
    created = datetime.fromtimestamp(metadata["create_time"])
    expires = datetime.fromtimestamp(metadata["expire_time"])
    return columns, created, expires


def test_published_readers_of_metadata_read_a_table(site: Site) -> None:
    site.send()
    columns, created, expires = _read_as_published(
        site.storage.metadata(Address("testspace", "test_guest"))
    )
    assert columns == [("id", "string"), ("y", "int"), ("x0", "float")]
    assert created < datetime.now() < expires


def test_a_file_over_the_limit_is_413_and_leaves_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path, max_upload=1000)
    response = site.post(
        "/v2/component/upload/file", data=KEYS, files={"file": ("t.csv", b"a\n" * 600)}
    )
    assert (response.status_code, response.json()["code"]) == (413, 413)
    announced = site.post(
        "/v2/component/upload/file", data=KEYS, files={"file": ("t.csv", b"a\n" * 2_000_000)}
    )
    assert announced.status_code == 413
    assert site.left() == []
    assert site.send("a\n" * 500)["code"] == 0


async def _parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="t.csv"\r\n\r\n'
FIELDS = b"".join(
    f'--b\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode()
    for k, v in KEYS.items()
)


def raw(
    site: Site,
    *parts: bytes,
    boundary: str = "b",
) -> dict[str, Any]:
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    return site.post("/v2/component/upload/file", content=_parts(*parts), headers=headers).json()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing of a form",
        FIELDS + HEAD + b"id\n1\n",
        FIELDS + HEAD + b"id\n1\n\r\n--b\r\n",
        b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\nx\r\n--b--\r\n",
        HEAD + b"id\n1\n\r\n" + HEAD + b"id\n1\n\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="k"\r\n\r\n\r\n' * 101 + b"--b--\r\n",
        FIELDS + b"--b--\r\n",
        FIELDS + HEAD.replace(b'"file"', b'"table"') + b"id\n1\n\r\n--b--\r\n",
        FIELDS + FIELDS + HEAD + b"id\n1\n\r\n--b--\r\n",
    ],
)
def test_an_incomplete_form_is_refused_and_leaves_nothing(site: Site, body: bytes) -> None:
    answer = raw(site, body)
    assert answer["code"] == 400 and answer["data"]["problems"]
    assert site.left() == []


def test_an_upload_that_breaks_off_leaves_nothing(site: Site) -> None:
    """The client goes away in the middle of the file."""
    body = FIELDS + HEAD + b"id\n" + b"1\n" * 400_000
    messages = iter(
        [
            {
                "type": "http.request",
                "body": body,
                "more_body": True,
            },
            {"type": "http.disconnect"},
        ]
    )
    seen: list[list[Path]] = []

    async def receive() -> dict[str, Any]:
        seen.append(site.left())
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        del message

    path, kind = "/v2/component/upload/file", (b"content-type", b"multipart/form-data; boundary=b")
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
    }
    asyncio.run(site.app(scope | {"headers": [kind], "root_path": ""}, receive, send))
    assert any(p.name == "upload" and p.parent.parent.name == FOLDER for p in seen[-1])
    assert site.left() == []
    assert not site.storage.exists(Address(**KEYS))


LONG = b"id,y\r\n" + b"".join(b"u%d,%d\r\n" % (i, i % 2) for i in range(60_000))
"""more than a connection gives at a time, so that its rest is read by the thread that stores it"""


@pytest.mark.parametrize(
    ("content", "after", "expected"),
    [
        (LONG, b"--\r\n", {"count": 60_000, "checksum": hashlib.sha256(LONG).hexdigest()}),
        (
            LONG,
            b'\r\nContent-Disposition: form-data; name="overwrite"\r\n\r\ntrue\r\n--b--\r\n',
            {"overwrite"},
        ),
        (LONG, b'\r\nContent-Disposition: form-data; name="k"\r\n\r\n' + b"k" * 1_100_000, 413),
        (b"id,id\n" + LONG, b"--\r\n", {"file:1"}),
        (LONG + b"1,2,3\r\n", b"--\r\n", {"file:60002"}),
        (LONG * 2, b"--\r\n", 413),
        (LONG + b"\r\n--b1,2\r\n", b"--\r\n", {"body"}),
        (LONG, b"", None),
    ],
)
def test_a_long_file_is_read_past_the_event_loop(
    tmp_path: Path,
    content: bytes,
    after: bytes,
    expected: Any,
) -> None:
    site = Site(tmp_path, max_upload=len(LONG) + 100)
    form = FIELDS + HEAD + content + b"\r\n--b" + after
    head = f"POST /v2/component/upload/file HTTP/1.1\r\nhost: x\r\ncontent-length: {len(form)}\r\n"
    with (
        listening(site.app) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as client,
    ):
        client.sendall(f"{head}content-type: multipart/form-data; boundary=b\r\n\r\n".encode())
        if expected is None:
            client.sendall(form[: len(form) // 2])
        else:
            client.sendall(form)
            with client.makefile("rb") as answered:
                answer = json.loads(answered.read().partition(b"\r\n\r\n")[2])
    if isinstance(expected, dict):
        assert expected.items() <= answer["data"].items()
        return
    assert site.left() == []
    if expected is not None:
        assert expected in (
            answer["code"],
            paths(answer) if "problems" in answer["data"] else None,
        ), answer


class Pieces(RawIOBase):
    """What a connection gives, some bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data = data
        self._step = step

    def readinto(self, buffer: Any) -> int:
        count = min(self._step, len(buffer))
        given, self._data = self._data[:count], self._data[count:]
        buffer[: len(given)] = given
        return len(given)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize(
    "content", [b"", b"\r", b"\r\n", b"\r\n--\r\n-\r\r\n--ma", b"a,b\r\n1,2\r\n" * 20]
)
def test_the_file_of_a_form_ends_at_its_mark(content: bytes, step: int) -> None:
    ends: list[bytes] = []
    with closing(Pieces(content + b"\r\n--mark--\r\n", step)) as rest:
        part = data.FilePart(rest, b"\r\n--mark", lambda: ends.append(part.after))  # type: ignore[arg-type]
        room, found = memoryview(bytearray(4)), b""
        while count := part.readinto(room):
            found += room[:count]
    assert (found, ends) == (content, [b"\r\n--mark--\r\n"])


def test_the_end_of_a_file_may_come_after_the_end_of_the_node() -> None:
    ours, theirs = socket.socketpair()
    parts: list[data.FilePart] = []
    kind = (b"content-type", b"multipart/form-data; boundary=b")
    with theirs, closing(Rest(ours, b"", 100)) as rest:
        scope = {
            "type": "http",
            "headers": [kind],
            "extensions": {READ: lambda: rest},
        }

        async def begun() -> dict[str, Any]:
            return {
                "type": "http.request",
                "body": FIELDS + HEAD + b"id",
                "more_body": True,
            }

        async def main() -> None:
            form = data.receive(Request(scope, begun), len, 10**6, lambda _: True, parts.append)
            ended = asyncio.create_task(form)
            while not parts:
                await asyncio.sleep(0)
            ended.cancel()

        asyncio.run(main())
        theirs.close()
        with pytest.raises(GatewayError, match="broken off"):
            while parts[0].readinto(memoryview(bytearray(9))):
                pass


def test_both_bodies_are_in_the_interface_description(site: Site) -> None:
    described = site.app.openapi()
    by_path = described["paths"]["/v2/component/upload"]["post"]["requestBody"]["content"][
        "application/json"
    ]
    assert by_path["schema"]["examples"] == [USERS]
    form = described["paths"]["/v2/component/upload/file"]["post"]["requestBody"]["content"][
        "multipart/form-data"
    ]
    fields = set(form["schema"]["properties"])
    body = described["components"]["schemas"]["UploadBody"]["properties"]
    assert fields == set(body) and set(USERS) <= fields
    example = dict(form["example"])
    assert site.send(example.pop("file"), **{k: str(v) for k, v in example.items()})["code"] == 0


def test_fields_behind_the_file_count_or_are_refused(site: Site) -> None:
    def part(name: str, value: str) -> bytes:
        return f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()

    file = HEAD + TABLE.encode() + b"\r\n"
    named = part("namespace", "n") + part("name", "t")
    assert (
        raw(site, file + named + part("partitions", "4") + b"--b--\r\n")["data"]["partitions"] == 4
    )
    again = raw(
        site, named + part("overwrite", "true") + file + part("description", "") + b"--b--\r\n"
    )
    assert (again["code"], again["data"]["partitions"]) == (0, 1)
    late = raw(site, named + file + part("overwrite", "true") + b"--b--\r\n")
    assert late["code"] == 400 and paths(late) == {"overwrite"} and "before" in late["message"]
    taken = raw(site, named + file + b"--b--\r\n")
    assert taken["data"]["reason"] == "DATASET_EXISTS"
    assert site.datasets.get("n#t").partitions == 1


def test_an_upload_goes_into_the_storage_that_it_names(site: Site) -> None:
    assert site.send(storage="file")["code"] == 0
    unknown = site.send(storage="lake", overwrite="true")
    assert unknown["code"] == 400 and paths(unknown) == {"storage"}
    assert "one of this node's storages: file" in str(unknown)
