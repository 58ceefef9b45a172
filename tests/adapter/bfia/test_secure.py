"""TLS towards other nodes."""

from adapter.bfia import peer
from adapter.bfia.peer import Connections
from route_table.model import NO_IDENTITY, Identity


def test_the_certificate_authorities_are_read_once_for_all_peers_without_files_of_their_own():
    assert peer.context(NO_IDENTITY) is peer.context(NO_IDENTITY)
    named = peer.context(Identity(server_name="peer.example"))
    assert named is not peer.context(NO_IDENTITY)


def test_files_of_an_identity_are_nothing_to_plain_http():
    connections = Connections()
    assert connections.to("http://127.0.0.1:1", Identity(ca="/no/such/file"))
    connections.close()
