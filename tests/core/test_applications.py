"""Applications of partners: what comes late, twice or not at all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.applications import APPLIED, APPROVED, TERMINATED, Application, Kind, Side
from gateway.domain.spec import NodeId
from gateway.errors import Busy, Conflict, GatewayError, Invalid, NotAllowed, NotFound
from gateway.jobs.applications import Applications, PartnerAnswer
from gateway.jobs.contract_routes import ContractRoutes
from gateway.store.applications import SqlApplications
from route_table.live import LiveRoutes
from tests.contracts.databases import a_store
from tests.domain.test_applications import NOW, an_application

MINE = an_application(Side.MINE)
CONTRACT = replace(an_application(), kind=Kind.CONTRACT)


@dataclass
class Partner:
    """What a partner answers, and the lane to it; and the effects of what is decided."""

    answer: PartnerAnswer | GatewayError = field(
        default_factory=lambda: PartnerAnswer(APPLIED, {}, {})
    )
    begun: list[Application] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)

    def query(self, known: Application) -> PartnerAnswer:
        if isinstance(self.answer, GatewayError):
            raise self.answer
        return self.answer

    def deliver(self, known: Application) -> None:
        self.query(known)

    def submit(
        self,
        lane: str,
        work: Callable[[], None],
        job: str = "",
    ) -> None:
        work()

    def check(self, new: Application) -> None:
        return

    def begin(self, known: Application, by: str) -> None:
        self.begun.append(known)

    def end(
        self,
        known: Application,
        by: str,
        *,
        last: bool,
    ) -> None:
        self.ended.append(last)


class Site:
    """This node and its partner."""

    def __init__(self, kept: SqlApplications) -> None:
        self.kept, self.partner, self.now = kept, Partner(), NOW
        self.noted: list[Any] = []
        partner: Any = self.partner
        self.applications = Applications(
            kept,
            {Kind.CONTRACT: partner, Kind.DATASET: partner},
            partner,
            partner,
            lambda *said: self.noted.append(said),
            lambda: self.now,
            keys_of=self._keys_of_partner,
        )

    def _keys_of_partner(self, _: NodeId) -> Sequence[str]:
        return ()

    def has(self, new: Application) -> Application:
        made = self.kept.add(new)
        assert made is not None
        return made

    def after(self, known: Application, **later: float) -> Application:
        """Return an application once what is due by then was done."""
        self.now = NOW + timedelta(**later)
        for number in self.kept.due(self.now):
            self.applications.loop._advance(number)
        return self.kept.get(known.number)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with a_store(f"sqlite:///{tmp_path / 'applications.db'}") as store:
        yield Site(SqlApplications(store))


def test_a_repeated_application_is_the_same_and_a_changed_one_refused(
    site: Site,
):
    known = site.applications.receive(an_application())
    assert site.applications.receive(an_application()) == known
    with pytest.raises(Conflict, match=f"application {known.number} is APPLIED"):
        site.applications.receive(replace(an_application(), request={"dataset_id": "ns#other"}))


def test_a_decision_is_taken_once_and_has_no_effect_a_second_time(site: Site):
    known = site.has(an_application(status=APPROVED))
    with pytest.raises(
        Conflict, match=f"application {known.number} is APPROVED: APPROVED -> REJECTED"
    ):
        site.applications.decide(known.number, False, "ann", "")
    assert site.partner.begun == []


def test_a_withdrawn_undecided_contract_leaves_nothing(
    site: Site,
):
    known = site.has(CONTRACT)
    site.applications.end(Kind.CONTRACT, known.id, known.partner)
    assert site.kept.list() == [] and site.partner.ended == []
    site.applications.loop._advance(str(known.number))  # the loop had it on its list
    with pytest.raises(NotFound):
        site.kept.change(known.number, lambda one: one)


def test_a_partner_that_this_node_applied_with_moves_and_keeps_its_key(site: Site):
    known = site.has(
        replace(
            CONTRACT,
            side=Side.MINE,
            status=APPROVED,
            answer={"auth_credential": "key"},
        )
    )
    site.applications.update(known.partner, known.id, {"address": "https://b:2"}, key="key")
    after = site.kept.get(known.number)
    assert after.keys == ("key",)
    assert (after.url, after.answer) == (
        "https://b:2",
        {"auth_credential": "key", "address": "https://b:2"},
    )
    assert [one.url for one in site.partner.begun] == ["https://b:2"]


def test_a_contracts_route_may_use_a_relay_and_is_refused_otherwise(
    tmp_path: Path,
):
    file = tmp_path / "routes.yml"
    file.write_text("A: {url: 'http://a'}\nB: {via: A}\n")
    routes = LiveRoutes(file)
    contracts = ContractRoutes(routes, str, lambda *_: None)
    contracts.begin(replace(CONTRACT, url="http://b:9"), "ann")
    assert (routes.table.routes["B"].via, routes.table.routes["B"].url) == ("A", "")
    with pytest.raises(Invalid) as caught:
        contracts.begin(replace(CONTRACT, partner="C", url="nowhere"), "ann")
    assert caught.value.reason == "ROUTE_INVALID"


def test_an_answer_that_ends_an_application_ends_what_followed(site: Site):
    known = site.has(replace(MINE, status=APPROVED))
    site.applications.confirm(
        known.kind, known.id, known.partner, PartnerAnswer(TERMINATED, {}, {})
    )
    assert site.kept.get(known.number).status is TERMINATED and site.partner.ended == [True]
    [(who, _, detail)] = site.noted
    assert (who, detail["before"]["status"], detail["after"]["status"]) == (
        known.partner,
        APPROVED,
        TERMINATED,
    )


@pytest.mark.parametrize(
    ("known", "error", "again"),
    [
        (MINE, Busy("not now", reason="BUSY"), True),
        (MINE, NotAllowed("no", reason="NOT_AUTHORISED"), True),
        (
            an_application(
                status=APPROVED,
                notice="confirm",
                due_at=NOW,
            ),
            Busy("not now", reason="BUSY"),
            True,
        ),
        (
            an_application(
                status=APPROVED,
                notice="confirm",
                due_at=NOW,
            ),
            NotAllowed("no", reason="SO"),
            False,
        ),
    ],
)
def test_a_refused_notice_is_not_repeated_and_a_lost_one_is(
    site: Site,
    known: Application,
    error: GatewayError,
    again: bool,
):
    site.partner.answer = error
    after = site.after(site.has(known), seconds=20)
    assert after.trouble == f"{error.reason}: {error.message}" and after.status is known.status
    assert (after.due_at is not None) is again


def test_trouble_with_a_call_is_not_noted_where_a_person_decided_meanwhile(site: Site):
    known = site.has(MINE)

    def query(asked: Application) -> PartnerAnswer:
        site.applications.terminate(known.number, "ann", "")
        raise Busy("not now", reason="BUSY")

    site.partner.query = query  # type: ignore[method-assign]
    after = site.after(known, seconds=20)
    assert (after.status, after.trouble) == (TERMINATED, "")
