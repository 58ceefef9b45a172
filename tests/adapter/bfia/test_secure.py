"""TLS towards other nodes."""

from adapter.bfia.connections import context
from adapter.bfia.peer import Connections
from route_table.model import NO_IDENTITY, Identity


def test_the_certificate_authorities_are_read_once_for_all_peers_without_files_of_their_own():
    assert context(NO_IDENTITY) is context(NO_IDENTITY)
    named = context(Identity(server_name="peer.example"))
    assert named is not context(NO_IDENTITY)


def test_files_of_an_identity_are_nothing_to_plain_http():
    connections = Connections()
    assert connections.to("http://127.0.0.1:1", Identity(ca="/no/such/file"))
    connections.close()
