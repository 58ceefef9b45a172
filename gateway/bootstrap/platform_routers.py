"""The routers of the operators' listener that a node builds at its start.

These are the standard's paths for platforms, and the paths by which programs watch a node. All
others are built at their first request, see `gateway.bootstrap.operator_routers`.
"""

from adapter.bfia import data, platform, requests
from adapter.bfia import wire as bfia
from gateway.admin import health
from gateway.bootstrap.peer_routers import SMALL_BODY, bounded
from gateway.bootstrap.services import Services
from gateway.http.app import Mounted

# The beginnings of the paths of these routers.
EARLY_PATHS = ("/v1/", "/v2/", "/health", "/metrics")


def platform_mounts(services: Services) -> list[Mounted]:
    """Return the standard's paths for the platform of this node, and the paths of health.

    Paths are tried in order, so the most frequently used routers come first.
    """
    settings = services.foundation.settings
    limiters = services.foundation.limiters
    body_bytes = settings.limits.body_bytes
    operators = platform.operator_router(
        services.scheduling.job_requests,
        services.scheduling.job_statuses,
        own_node=settings.node.id,
        coordinator_node=settings.node.scheduler,
        limiters=limiters,
        expand_sites=services.partners.offers.expanded,
        ids_bytes=min(requests.IDS_BYTES, body_bytes),
    )
    logs = platform.log_router(services.runs.run_logs, limiters)
    registration = platform.provider_router(services.engines.providers, limiters)
    uploads = data.Uploads(services.registries.datasets, settings.data.max_upload_bytes)
    return [
        *bounded(settings, operators),
        *bounded(settings, logs, size=SMALL_BODY),
        Mounted(registration, body_bytes, bfia.UsersRefusal),
        Mounted(data.router(uploads), None, bfia.UsersRefusal),  # limited by `uploads` itself
        Mounted(health.router, SMALL_BODY),
    ]


def health_services(services: Services) -> health.HealthServices:
    """Return the services of the paths of health and metrics."""
    foundation = services.foundation
    return health.HealthServices(
        owner=foundation.owner,
        store=foundation.store,
        engine=services.engines.engine,
        admission=services.participation.admission,
        routes=services.registries.routes,
        broker=services.peers.broker,
        metrics=services.peers.metrics,
    )
