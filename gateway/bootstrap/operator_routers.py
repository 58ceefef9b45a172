"""The routers of the operators' listener for people: ``/api/v1``, the console and the documents.

They are imported and built at the first request for one of them: an idle node saves their memory.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Event
from typing import Any
from uuid import uuid4

from fastapi import FastAPI
from fastapi.routing import APIRoute

from adapter.bfia.examples import A_JOB
from adapter.bfia.management import client
from adapter.bfia.management.flows import read_flow
from gateway.admin import (
    about,
    applications,
    datasets,
    dry_run,
    job_removal,
    jobs,
    models,
    outputs,
    overview,
    partner_reports,
    providers,
    route_tests,
    routes,
    streams,
    templates,
    tokens,
)
from gateway.admin import node as admin_node
from gateway.admin.deps import provide, refuse_unknown_parameters
from gateway.admin.job_view import JobServices
from gateway.bootstrap.partner_reports import partner_report_services
from gateway.bootstrap.peer_proof import listener_proof
from gateway.bootstrap.peer_routers import SMALL_BODY
from gateway.bootstrap.services import Services
from gateway.config.schema import Settings
from gateway.config.schema.tee import policy_of
from gateway.config.secrets import oidc_client
from gateway.console import session
from gateway.domain.applications import Application, Kind
from gateway.domain.dry_run import JobPlan
from gateway.domain.problems import Problem
from gateway.domain.spec import NodeId
from gateway.http import documents
from gateway.http.app import Mounted
from gateway.runtime.answers import PartnerAnswers
from gateway.runtime.context import current_trace, new_trace_id
from gateway.runtime.trials import Step
from gateway.store.repositories import SqlTemplates


def operator_mounts(services: Services) -> list[Mounted]:
    """Return the routers for operators.

    Paths are tried in order, so the most frequently used routers come first.
    """
    with_small_bodies = [
        streams.logs_router,
        streams.events_router,
        admin_node.router,
        models.router,
        datasets.router,
        outputs.router,
        jobs.router,
        job_removal.router,
        about.router,
        overview.router,
        tokens.router,
        session.router,
        routes.router,
        applications.router,
    ]
    return [
        *_large_mounts(services),
        *(
            Mounted(router, SMALL_BODY, checks=[refuse_unknown_parameters])
            for router in with_small_bodies
        ),
        *_login_mounts(services),
    ]


def provide_services(
    app: FastAPI,
    services: Services,
    endpoints: Sequence[APIRoute],
    leaving: Event,
    doctor: Callable[[], Sequence[Step]],
) -> None:
    """Give the handlers of the operators' application their services.

    - ``endpoints``: those of every listener
    - ``leaving`` is set when the process stops serving
    - ``doctor`` checks everything that the node needs
    """
    foundation = services.foundation
    registries = services.registries
    engine = services.engines.engine
    about_services = about.AboutServices(
        settings=foundation.settings,
        storage=registries.storage,
        routes=registries.routes,
        clock=foundation.clock,
    )
    node_services = admin_node.NodeServices(
        settings=foundation.settings,
        owner=foundation.owner,
        store=foundation.store,
        audit=registries.audit,
        engine=engine,
        resources=services.engines.resources,
        cleaner=services.participation.cleaner,
        drain=services.scheduling.drain,
        doctor=doctor,
        endpoints=endpoints,
    )
    route_services = routes.RouteServices(
        node=foundation.settings.node.id,
        routes=registries.routes,
        tests=route_tests.RouteTests(
            services.peers.protocol.try_route,
            foundation.limiters.peers,
        ),
        signs_as_fate=services.peers.fate.has_to_sign,
        listener=listener_proof(foundation.settings),
        links=services.peers.links,
        volumes=services.peers.volumes.recent,
        sending=services.peers.outgoing.state,
        receiving=services.peers.incoming.state,
    )
    application_services = applications.ApplicationServices(
        read_flow=read_flow,
        applications=services.partners.applications,
        announcements=services.partners.announcements,
        compose=partial(_compose_application, services),
        key_ids=partial(_key_ids, services),
        fetch_offers=services.partners.management.fetch_offers,
        limiter=foundation.limiters.peers,
    )
    provide(
        app,
        about_services,
        node_services,
        services.engines.providers,
        route_services,
        application_services,
        partner_report_services(services),
        _overview_services(services),
        tokens.TokenServices(registries.tokens, foundation.clock),
        services.runs.run_logs,
        registries.feed,
        registries.webhooks,
        streams.Streams(leaving),
        *_data_services(services),
        *_job_handler_services(services),
        *_session_services(services),
    )


def mount_pages(app: FastAPI) -> None:
    """Add the console and the documents to the operators' application."""
    session.mount(app)
    documents.mount(app)


def _overview_services(services: Services) -> overview.OverviewServices:
    """Return the services of the paths that the console's first page reads."""
    foundation = services.foundation
    registries = services.registries
    return overview.OverviewServices(
        approvals=services.participation.approvals,
        applications=services.partners.applications.store,
        grants=registries.sharing.grants,
        routes=registries.routes,
        answers=PartnerAnswers(services.peers.protocol.reaches, foundation.clock),
        clock=foundation.clock,
        limiter=foundation.limiters.peers,
    )


def _large_mounts(services: Services) -> list[Mounted]:
    """Return our paths that take a job, a description or a file."""
    settings = services.foundation.settings
    body_bytes = settings.limits.body_bytes
    query_checks = [refuse_unknown_parameters]
    return [
        Mounted(providers.router, body_bytes, checks=query_checks),
        Mounted(dry_run.router(A_JOB), body_bytes, checks=query_checks),
        Mounted(templates.router, body_bytes, checks=query_checks),
        Mounted(partner_reports.router, body_bytes, checks=query_checks),
        # An import is limited by `ModelServices.max_archive`.
        Mounted(models.import_router, None, checks=query_checks),
    ]


def _data_services(services: Services) -> list[object]:
    """Return the services of the paths of datasets, models and outputs."""
    foundation = services.foundation
    registries = services.registries
    dataset_services = datasets.DatasetServices(
        datasets=registries.datasets,
        sharing=registries.sharing,
        storage=registries.storage,
        routes=registries.routes,
        applications=services.partners.applications,
        clock=foundation.clock,
    )
    model_services = models.ModelServices(
        node=foundation.settings.node.id,
        models=registries.models,
        storage=registries.storage,
        store=foundation.store,
        job_requests=services.scheduling.job_requests,
        max_archive=foundation.settings.data.max_upload_bytes,
        limiter=foundation.limiters.peers,
    )
    output_services = outputs.OutputServices(
        store=foundation.store,
        storage=registries.storage,
        catalog=services.partners.outputs,
        limiter=foundation.limiters.peers,
    )
    return [dataset_services, model_services, output_services]


def _login_mounts(services: Services) -> list[Mounted]:
    """Return the paths of a login with OpenID Connect, if it is set up."""
    if services.foundation.settings.auth.oidc is None:
        return []
    return [Mounted(session.oidc_router, SMALL_BODY)]


def _session_services(services: Services) -> list[object]:
    """Return the services of the console's sessions and of logins with OpenID Connect.

    The latter are left out unless OpenID Connect is set up.
    """
    settings = services.foundation.settings
    clock = services.foundation.clock
    tokens = services.registries.tokens
    sessions = session.Sessions(settings, tokens, services.registries.audit.add, clock)
    if settings.auth.oidc is None:
        return [sessions]
    # Imported only here: a node without such logins does not load the library.
    from gateway.console.oidc import Provider

    provider = Provider(
        oidc_client(settings.auth.oidc),
        clock,
        settings.outbound.default,
    )
    return [sessions, session.Logins(sessions, provider)]


def _job_handler_services(services: Services) -> list[object]:
    """Return the services of the handlers for jobs, dry runs and templates."""
    foundation = services.foundation
    removal_services = job_removal.RemovalServices(
        node=foundation.settings.node.id,
        job_requests=services.scheduling.job_requests,
        deleting=services.participation.deleting,
        limiter=foundation.limiters.peers,
    )
    dry_run_services = dry_run.DryRunServices(
        plan=partial(_plan_job, services),
        limiter=foundation.limiters.peers,
    )
    template_services = templates.TemplateServices(
        templates=SqlTemplates(foundation.store),
        clock=foundation.clock,
    )
    return [
        _job_services(services),
        removal_services,
        dry_run_services,
        template_services,
    ]


def _job_services(services: Services) -> JobServices:
    """Return the services of the handlers for jobs, except those that remove jobs."""
    foundation = services.foundation
    return JobServices(
        node=foundation.settings.node.id,
        clock=foundation.clock,
        store=foundation.store,
        run_tokens=foundation.run_tokens,
        runs_folder=foundation.runs_folder,
        registry=services.registries.registry,
        storage=services.registries.storage,
        engine=services.engines.engine,
        resources=services.engines.resources,
        broker=services.peers.broker,
        peers=services.peers.peers,
        launching=services.runs.launching,
        executor=services.runs.executor,
        run_logs=services.runs.run_logs,
        job_requests=services.scheduling.job_requests,
        job_statuses=services.scheduling.job_statuses,
        approvals=services.participation.approvals,
        operator_address=_operator_address(foundation.settings),
    )


def _operator_address(settings: Settings) -> str:
    """Return the address at which people reach the operators' listener; empty if it is unknown."""
    if settings.listen.operator.advertise is not None:
        return settings.listen.operator.advertise
    if settings.auth.oidc is not None:
        return settings.auth.oidc.console
    return ""


def _plan_job(services: Services, body: Mapping[str, Any]) -> JobPlan:
    """Return the plan for a job, from the body that would submit it."""
    scheduler = services.foundation.settings.node.scheduler
    # The plan needs a job id, but no job is created with it.
    request = {**body, "job_id": f"job-{uuid4().hex}"}
    trace = current_trace() or new_trace_id()
    spec = services.peers.protocol.read_request(request, scheduler, trace)
    return services.scheduling.dry_run.plan(services.partners.offers.expanded(spec))


def _compose_application(services: Services, body: applications.Applying) -> Application:
    """Return the application to a partner that a person here has asked for.

    An application that is not itself for a contract refers to the contract with the partner. Raises
    `NotAllowed` if there is none.
    """
    contract_id = ""
    if body.kind is not Kind.CONTRACT:
        contract_id = services.partners.applications.contract_with(body.partner).id
    draft = client.Draft(
        kind=body.kind,
        partner=body.partner,
        subject=body.subject,
        fields=body.fields,
        expires_at=body.expires_at,
        jobs=body.jobs,
        scope=body.scope,
        url=body.url,
        address=body.address,
        contract_id=contract_id,
        signing=body.signing or _signing(services, body.partner),
        tee=policy_of(body.tee),
    )
    tee_problems: Sequence[Problem] = ()
    if draft.tee is not None:
        tee_problems = services.registries.verifiers.problems(draft.tee)
    return client.compose_application(
        services.partners.card,
        draft,
        services.foundation.clock(),
        tee_problems,
    )


def _signing(services: Services, partner: NodeId) -> str:
    """Return how a partner has to sign its response to a contract application.

    It is ``signing`` of the partner's route, one of `route_table.model.SIGNING`; ``required``
    without a route or without that setting.
    """
    route = services.registries.routes.table.routes.get(partner)
    if route is None:
        return "required"
    return route.signing or "required"


def _key_ids(services: Services, application: Application) -> str:
    """Return the ids of the partner's keys for a contract, see `client.key_ids`."""
    keys = services.peers.peer_table.keys_of(application.partner)
    return client.key_ids(application, keys)
