"""The stage of a node for what partners agree on: contracts, offers, applications and outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from adapter.bfia import interconn
from adapter.bfia.client import BfiaProtocol
from adapter.bfia.management.client import Card, ManagementClient
from adapter.bfia.management.wire import key_of
from gateway.auth import origin
from gateway.bootstrap.foundation import Foundation, Registries
from gateway.bootstrap.late import LateServices
from gateway.bootstrap.peer_services import PeerServices
from gateway.data.outputs import OutputCatalog, OutputMetadata, OutputQuery
from gateway.domain.announcements import Identity
from gateway.domain.applications import Kind
from gateway.domain.spec import NodeId
from gateway.identity.keys import KeyPair, Keyring
from gateway.jobs.announcements import Announcements
from gateway.jobs.applications import Applications, Effect
from gateway.jobs.contract_routes import ContractRoutes
from gateway.jobs.grants import DatasetGrants, ModelGrants
from gateway.jobs.offers import Offers


@dataclass(frozen=True)
class PartnerServices:
    """Contracts, applications and offers, and the outputs at other nodes."""

    card: Card  # this node in the view of partners
    outputs: OutputCatalog
    management: ManagementClient  # requests to partners about contracts and applications
    offers: Offers
    applications: Applications
    announcements: Announcements  # of this node's address and key


def build_partner_services(
    foundation: Foundation,
    registries: Registries,
    peers: PeerServices,
    late: LateServices,
) -> PartnerServices:
    """Return the services for what partners agree on."""
    node = foundation.settings.node.id
    card = Card(
        node,
        foundation.institution,
        partial(_advertised_address, foundation, late),
        peers.protocol.key,
        institution_of=peers.peer_table.institution,
        sealing_key=peers.seals.sealing_key,
    )
    outputs = OutputCatalog(
        node,
        foundation.store,
        registries.storage,
        registries.sharing,
        ask=partial(_ask_output_metadata, peers.protocol),
        note=registries.audit.add,
        id_columns=registries.datasets.id_columns,
        clock=foundation.clock,
    )
    management = ManagementClient(
        card,
        peer_of=peers.protocol.peer,
        route_of=peers.peer_table.direct,
        previous_key=partial(_previous_key, peers.keyring),
    )
    offers = Offers(
        node,
        registries.stored_applications,
        registries.datasets,
        registries.sharing,
        registries.registry,
        why_barred=peers.peer_table.why_barred,
        clock=foundation.clock,
    )
    audit = partial(_audit_partner, foundation, registries)
    effects: dict[Kind, Effect] = {
        Kind.CONTRACT: ContractRoutes(registries.routes, key_of, audit, peers.seals.sealing_key),
        Kind.DATASET: DatasetGrants(
            registries.sharing,
            offers,
            registries.stored_applications,
            foundation.clock,
        ),
        Kind.MODEL: ModelGrants(registries.models),
    }
    applications = Applications(
        registries.stored_applications,
        effects,
        management,
        foundation.lanes,
        write_audit=audit,
        clock=foundation.clock,
        keys_of=peers.peer_table.keys_of,
        verifier_problems=registries.verifiers.problems,
    )
    announcements = Announcements(
        applications,
        partial(_identity, foundation, card),
        peers.keyring.forget_previous,
        foundation.clock,
    )
    return PartnerServices(card, outputs, management, offers, applications, announcements)


def _previous_key(keyring: Keyring) -> KeyPair | None:
    """Return the key pair from before a rotation; None if all partners know the present one."""
    return keyring.previous


def _identity(foundation: Foundation, card: Card) -> Identity | None:
    """Return this node's present address and keys; None without a key that signs."""
    pair = card.key()
    if pair is None:
        return None
    return Identity(
        advertised=foundation.settings.listen.peer.advertise or "",
        default_address=card.address(),
        key=pair.public,
        sealing_key=card.sealing_key or "",
    )


def _ask_output_metadata(
    protocol: BfiaProtocol,
    node: NodeId,
    query: OutputQuery,
) -> Sequence[OutputMetadata]:
    """Request the metadata of outputs from another node."""
    return interconn.ask_output_metadata(protocol.peer(node), query)


def _advertised_address(foundation: Foundation, late: LateServices) -> str:
    """Return the URL that this node gives to partners.

    Without a setting, it is the URL of the peers' listener on this machine.
    """
    advertised = foundation.settings.listen.peer.advertise
    return advertised or late.sockets().addresses()["peer"]


def _audit_partner(
    foundation: Foundation,
    registries: Registries,
    partner: NodeId,
    action: str,
    detail: Mapping[str, Any],
) -> None:
    """Add a change by a partner to the audit log, as HTTP 200 and with the origin of the request.

    ``partner``: "" for a change by this gateway itself.
    """
    who = f"node {partner}" if partner else "gateway"
    registries.audit.add(
        foundation.clock(), who, action, 200, None, {**detail, **origin().detail()}
    )
