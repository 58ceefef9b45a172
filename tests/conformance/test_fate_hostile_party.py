"""A hostile partner of a FATE task: its messages are refused, and no code in them is run.

The test is the node of the wrapper, which runs FATE as published, and thereby the other party.
"""

import json
import os
import pickle
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from adapter.bfia.channel import ptp_pb2
from tests.e2e.nodes import ROOT

pytestmark = [
    pytest.mark.fate,
    pytest.mark.slow,
]

PYTHON = str(ROOT / ".venv-fate" / "bin" / "python")
VENDOR = ROOT / "examples" / "fate_vendor"
READ_VALUES = Path(__file__).with_name("fate_values_read.py")
FATE = {
    "PYTHONPATH": str(VENDOR),
    "OMP_NUM_THREADS": "1",
}
SUCCESS = "E0000000000"
TOPIC = "session_1-host-10000-guest-9999"
MESSAGE = "host_first_sign"  # of a host's PSI: a table
TABLE = f"{MESSAGE}__table_persistent_0__"
PIECE = "-0"  # of the topic of a table's first partition


# ---------------------------------------------------------------- what the host sends


def instance(module: str, name: str, **attributes: bytes) -> bytes:
    """Return the pickled operations that make an instance; its attributes are given so, too."""
    items = [part(key) + value for key, value in attributes.items()]
    state = pickle.EMPTY_DICT + pickle.MARK + b"".join(items) + pickle.SETITEMS
    kind = f"c{module}\n{name}\n".encode()
    return kind + pickle.EMPTY_TUPLE + pickle.NEWOBJ + state + pickle.BUILD


def part(value: Any) -> bytes:
    """Return the pickled operations that make a value, for a part of another."""
    return pickle.dumps(value, protocol=2)[2:-1]


PROTOCOL = pickle.PROTO + b"\x04"
API = "fate.arch.federation.api"
TABLE_META = instance(
    f"{API}._table_meta",
    "TableMeta",
    num_partitions=part(1),
    key_serdes_type=part(0),
    value_serdes_type=part(0),
    partitioner_type=part(0),
)
A_TABLE = instance(
    f"{API}._serdes",
    "_TablePersistentId",
    key=part(TABLE),
    table_meta=TABLE_META,
)
A_REFERENCE = A_TABLE + pickle.BINPERSID + pickle.STOP

CALL = part(("touch marker",)) + pickle.REDUCE + pickle.STOP
# As published, FATE allows all names in its modules, also of the modules imported there.
BY_FATES_MODULE = part(f"{API}._serdes") + part("logging.os.system") + pickle.STACK_GLOBAL
BY_NAME = b"cposix\nsystem\n"
ATTACKS = {
    "a message": {MESSAGE: PROTOCOL + BY_FATES_MODULE + CALL},
    # A worker reads this.
    "a value of a table": {MESSAGE: PROTOCOL + A_REFERENCE, TABLE: BY_NAME + CALL},
}
REFUSALS = {
    "a message": (
        f"a message of host 10000 is refused: '{API}._serdes.logging.os.system' is not allowed"
    ),
    "a value of a table": "a value of a table is refused: 'posix.system' is not allowed",
}


# ---------------------------------------------------------------- the node

# The header of the only piece of a table's partition.
ONLY_PIECE = {
    "partition_size": 1,
    "partitions": 1,
    "message_key": "0^1",
}


def fate_message() -> Any:
    """Return the class of FATE's messages in the payloads of the transport layer."""
    field = descriptor_pb2.FieldDescriptorProto
    fields = [
        field(name=name, number=number, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
        for name, number in (("head", 2), ("body", 3))
    ]
    message = descriptor_pb2.DescriptorProto(name="Message", field=fields)
    file = descriptor_pb2.FileDescriptorProto(name="fate.proto", message_type=[message])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Message"))


FateMessage = fate_message()


class Node:
    """The node of the guest, whose partner sends pickled values by the names of FATE's messages."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.values = values
        self.callbacks: list[Any] = []
        self.tag = ""  # FATE's mark of the messages of this task

    def push(self, content: bytes) -> bytes:
        """Take a message of the guest, and see its tag."""
        pushed = ptp_pb2.PushInbound.FromString(content)
        self.tag = json.loads(FateMessage.FromString(pushed.payload).head)["correlation_id"]
        return ptp_pb2.TransportOutbound(code=SUCCESS).SerializeToString()

    def pop(self, content: bytes) -> bytes:
        """Return the host's message in a topic."""
        topic = ptp_pb2.PopInbound.FromString(content).topic
        name = topic.rpartition(f"{TOPIC}-")[2]
        value = self.values[name.removesuffix(PIECE)]
        head = {"message_id": name.removesuffix(PIECE), "correlation_id": self.tag}
        if name.endswith(PIECE):
            head |= {"content_type": "application/json", "headers": json.dumps(ONLY_PIECE)}
            body = json.dumps([{"k": pickle.dumps(0).hex(), "v": value.hex()}]).encode()
        else:
            head["content_type"] = "text/plain"
            body = b"\0" + value  # in one message
        message = FateMessage(head=json.dumps(head).encode(), body=body)
        outbound = ptp_pb2.TransportOutbound(code=SUCCESS, payload=message.SerializeToString())
        return outbound.SerializeToString()

    def callback(self, content: bytes) -> bytes:
        """Take a callback of the task."""
        self.callbacks.append(json.loads(content))
        return b"{}"


@contextmanager
def serving(node: Node) -> Iterator[int]:
    """Serve a node on loopback; yield its port."""
    calls = {
        "/v1/interconn/chan/push": node.push,
        "/v1/interconn/chan/pop": node.pop,
        "/callback": node.callback,
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            response = calls[self.path](content)
            self.send_response(200)
            self.send_header("content-length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def run_guest(home: Path, port: int) -> int:
    """Run a PSI in FATE, as a container of the guest; return the exit code."""
    table = home / "n" / "in"
    table.mkdir(parents=True)
    (table / "data_0").write_text("id,x\n1,2\n3,4\n", encoding="utf-8")
    (table / "metadata").write_text("{}", encoding="utf-8")
    variables = {
        "config.self_role": "guest.0",
        "config.task_id": "task_1",
        "config.session_id": "session_1",
        "config.token": "secret",
        "config.node_id.guest.0": "9999",
        "config.node_id.host.0": "10000",
        "system.storage": f"file://{home}",
        "system.transport": f"127.0.0.1:{port}",
        "system.callback": f"http://127.0.0.1:{port}/callback",
        "runtime.component.name": "PSI",
        "runtime.component.input.train_data": '{"namespace": "n", "name": "in"}',
    }
    with (home / "log").open("wb") as log:  # not a pipe: FATE's workers end after the program
        return subprocess.run(
            [PYTHON, "-m", "fatevendor"],
            env=os.environ | FATE | variables,
            cwd=home,
            check=False,
            stdout=log,
            stderr=log,
        ).returncode


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_value_ends_the_task_and_runs_nothing(attack, tmp_path):
    node = Node(ATTACKS[attack])
    with serving(node) as port:
        exit_code = run_guest(tmp_path, port)
    assert exit_code == 1, (tmp_path / "log").read_text(errors="replace")[-3000:]
    assert [callback["status"] for callback in node.callbacks] == ["RUNNING", "FAILED"]
    assert node.callbacks[1]["result_message"] == REFUSALS[attack]
    assert not (tmp_path / "marker").exists()


# ---------------------------------------------------------------- values by themselves


@pytest.fixture(scope="module")
def values_read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of reading ordinary and hostile values in a process of FATE."""
    home = tmp_path_factory.mktemp("values")
    result = subprocess.run(
        [PYTHON, str(READ_VALUES)],
        env=os.environ | FATE,
        cwd=home,
        check=True,
        stdout=subprocess.PIPE,
    )
    outcomes: dict[str, Any] = json.loads(result.stdout)
    outcomes["marker"] = (home / "marker").exists()
    return outcomes


def test_ordinary_values_are_what_python_would_make_of_them(values_read):
    assert values_read["different"] == []


def test_no_state_and_no_nested_bytes_evade_the_list(values_read):
    read = [
        name
        for name, outcome in values_read["attacks"].items()
        if "a value of a table is refused: " not in outcome
    ]
    assert read == []
    assert not values_read["marker"]
