"""Programs that try from inside a container which addresses it reaches, and that listen there.

An address, ``host:port``, is called a door here.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator

# Prints as JSON which of the doors in its arguments are open: behind an open door, a byte arrives.
# All doors are tried at the same time, as a closed one does not respond until the timeout.
LOOK = """
import array, errno, fcntl, json, socket, sys, termios, threading, time
is_open = {}
def look(target):
    host, _, port = target.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 1) as connection:
            is_open[target] = arrives(connection)
    except OSError:
        is_open[target] = False
def arrives(connection):
    unacknowledged, end = array.array("i", [1]), time.monotonic() + 1
    reset = False
    try:
        connection.send(b"x")
        while unacknowledged[0] and not reset and time.monotonic() < end:
            time.sleep(0.02)
            fcntl.ioctl(connection, termios.TIOCOUTQ, unacknowledged)
            error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            reset = error in (errno.ECONNRESET, errno.EPIPE)
    except ConnectionError:
        return True  # the other side has answered
    return reset or not unacknowledged[0]
threads = [threading.Thread(target=look, args=[target]) for target in sys.argv[1:]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({target: is_open[target] for target in sys.argv[1:]}))
"""

# Listens at port 9000.
SERVES = """
import socket
server = socket.create_server(("", 9000))
print("ready", flush=True)
while True:
    server.accept()
"""


@contextlib.contextmanager
def listening(host: str = "0.0.0.0") -> Iterator[int]:
    """Accept connections at a port of this host; yield the port."""
    with socket.create_server((host, 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):  # the server is shut down at the end
                while True:
                    connection, _ = server.accept()
                    connection.close()

        thread = threading.Thread(
            target=accept,
            daemon=True,
        )
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
