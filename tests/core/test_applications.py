"""Applications between partners: late, repeated, refused and lost messages."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.domain import applications
from gateway.domain.applications import APPLIED, APPROVED, TERMINATED, Kind, Side
from gateway.errors import Busy, Conflict, GatewayError, Invalid, NotAllowed, NotFound
from gateway.jobs.applications import Applications, PartnerAnswer
from gateway.jobs.contract_routes import ContractRoutes
from gateway.store.applications import SqlApplications
from route_table.live import LiveRoutes
from tests.contracts.databases import a_store
from tests.domain.test_applications import NOW, an_application

MINE = an_application(Side.MINE)
CONTRACT = replace(
    an_application(),
    kind=Kind.CONTRACT,
)
# A decision of this node, with the notice to the partner due now.
UNANNOUNCED = an_application(
    status=APPROVED,
    notice="confirm",
    due_at=NOW,
)
BUSY = Busy("not now", reason="BUSY")


class ScriptedPartner:
    """A partner with its lane, which also notes the effects of decisions at this node."""

    def __init__(self):
        self.response = PartnerAnswer(APPLIED, {}, {})  # or an error
        self.begun = []  # the applications put into effect
        self.ended = []  # of each application that ended: whether it was its subject's last one

    def query(self, application):
        if isinstance(self.response, GatewayError):
            raise self.response
        return self.response

    def deliver(self, application):
        self.query(application)

    def submit(self, lane, work, job=""):
        work()

    def check(self, application):
        """Accept every application."""

    def begin(self, application, by):
        self.begun.append(application)

    def end(self, application, by, *, last):
        self.ended.append(last)


class Site:
    """This node and its partner."""

    def __init__(self, store):
        self.store = SqlApplications(store)
        self.partner = ScriptedPartner()
        self.now = NOW
        self.audit = []
        self.applications = Applications(
            self.store,
            {
                Kind.CONTRACT: self.partner,
                Kind.DATASET: self.partner,
            },
            self.partner,
            self.partner,
            self._note,
            self._clock,
            keys_of=self._no_keys,
            verifier_problems=self._no_problems,
        )

    def _note(self, *entry):
        self.audit.append(entry)

    def _clock(self):
        return self.now

    def _no_keys(self, node):
        return ()

    def _no_problems(self, policy):
        return ()

    def add(self, application):
        """Store an application; return it with its number."""
        stored = self.store.add(application)
        assert stored is not None
        return stored

    def advance(self, application, seconds):
        """Do everything due some seconds after `NOW`; return the application as it is then."""
        self.now = NOW + timedelta(seconds=seconds)
        for number in self.store.due(self.now):
            self.applications.advance(number)
        return self.store.get(application.number)


@pytest.fixture
def site(tmp_path):
    with a_store(f"sqlite:///{tmp_path / 'applications.db'}") as store:
        yield Site(store)


def test_a_repeated_application_is_the_same_and_a_changed_one_refused(site):
    first = site.applications.receive(an_application())
    changed = an_application(request={"dataset_id": "ns#other"})

    assert site.applications.receive(an_application()) == first
    with pytest.raises(Conflict, match=f"application {first.number} is APPLIED"):
        site.applications.receive(changed)


def test_a_second_decision_is_refused_and_has_no_effect(site):
    approved = site.add(an_application(status=APPROVED))

    message = f"application {approved.number} is APPROVED: APPROVED -> REJECTED"
    with pytest.raises(Conflict, match=message):
        site.applications.decide(
            approved.number,
            False,
            "ann",
            "",
        )
    assert site.partner.begun == []


def test_a_withdrawn_undecided_contract_leaves_nothing(site):
    contract = site.add(CONTRACT)

    site.applications.end(
        Kind.CONTRACT,
        contract.id,
        contract.partner,
    )

    assert site.store.list() == []
    assert site.partner.ended == []
    site.applications.advance(str(contract.number))  # as if it was due before its end
    with pytest.raises(NotFound):
        site.store.change(contract.number, replace)


def test_a_partner_that_moves_keeps_its_key(site):
    contract = replace(
        CONTRACT,
        side=Side.MINE,
        status=APPROVED,
        answer={"auth_credential": "key"},
    )
    stored = site.add(contract)

    site.applications.update(
        stored.partner,
        stored.id,
        {"address": "https://b:2"},
        key="key",
    )

    moved = site.store.get(stored.number)
    assert moved.keys == ("key",)
    assert moved.url == "https://b:2"
    assert moved.answer == {
        "auth_credential": "key",
        "address": "https://b:2",
    }
    assert [application.url for application in site.partner.begun] == ["https://b:2"]


def test_a_contracts_route_may_use_a_relay(tmp_path):
    file = tmp_path / "routes.yml"
    file.write_text("A: {url: 'http://a'}\nB: {via: A}\n")
    routes = LiveRoutes(file)

    contract_routes(routes).begin(replace(CONTRACT, url="http://b:9"), "ann")

    route = routes.table.routes["B"]
    assert route.via == "A"
    assert route.url == ""


def test_a_contract_with_an_invalid_address_is_refused(tmp_path):
    file = tmp_path / "routes.yml"
    file.write_text("{}")

    with pytest.raises(Invalid) as refusal:
        contract_routes(LiveRoutes(file)).begin(
            replace(CONTRACT, partner="C", url="nowhere"), "ann"
        )
    assert refusal.value.reason == "ROUTE_INVALID"


def contract_routes(routes):
    return ContractRoutes(routes, str, lambda *change: None)


def test_a_response_that_ends_an_application_ends_its_effect(site):
    approved = site.add(replace(MINE, status=APPROVED))

    site.applications.confirm(
        approved.kind,
        approved.id,
        approved.partner,
        PartnerAnswer(TERMINATED, {}, {}),
    )

    assert site.store.get(approved.number).status is TERMINATED
    assert site.partner.ended == [True]
    [(author, _, detail)] = site.audit
    assert author == approved.partner
    assert detail["before"]["status"] == APPROVED
    assert detail["after"]["status"] == TERMINATED


@pytest.mark.parametrize(
    ("application", "error", "is_repeated"),
    [
        (MINE, BUSY, True),
        (MINE, NotAllowed("no", reason="NOT_AUTHORISED"), True),
        (UNANNOUNCED, BUSY, True),
        (UNANNOUNCED, NotAllowed("no", reason="SO"), False),
    ],
    ids=["query lost", "query refused", "notice lost", "notice refused"],
)
def test_a_refused_notice_is_not_repeated_and_a_lost_one_is(site, application, error, is_repeated):
    site.partner.response = error

    later = site.advance(
        site.add(application),
        seconds=20,
    )

    assert later.trouble == f"{error.reason}: {error.message}"
    assert later.status is application.status
    assert (later.due_at is not None) is is_repeated


def test_a_failed_call_is_not_noted_if_a_person_decided_during_it(site):
    application = site.add(MINE)

    def decide_then_fail(_):
        site.applications.terminate(application.number, "ann", "")
        raise BUSY

    site.partner.query = decide_then_fail
    later = site.advance(
        application,
        seconds=20,
    )

    assert later.status is TERMINATED
    assert later.trouble == ""


def test_a_call_that_another_gateway_claims_first_is_not_made_twice(site, monkeypatch):
    application = site.add(UNANNOUNCED)
    deliveries = []
    monkeypatch.setattr(site.partner, "deliver", deliveries.append)
    read_application = site.store.get

    def read_before_another_gateway_claims(number):
        as_read = read_application(number)
        site.store.change(number, claim_elsewhere)
        return as_read

    def claim_elsewhere(current):
        return applications.postpone(current, NOW)

    monkeypatch.setattr(site.store, "get", read_before_another_gateway_claims)
    site.now = NOW
    site.applications.advance(str(application.number))

    assert deliveries == []
