"""The paths that FATE 2.2's own tools, its ``flow`` command and its pipeline, request of a FATE-Flow server.

Providers and uploads are the first users' interface, `adapter.bfia` has them; the rest is here.
"""

from collections.abc import Mapping

from fastapi import APIRouter

from adapter.fate.tools import jobs, outputs
from adapter.fate.tools.deps import ClientParts

NOT_FOR_TOOLS: Mapping[str, str] = {
    "/v2/app": "the setting fate.clients (or bfia-gateway token create) names who may ask, routes which sites may",
    "/v2/permission": "tokens decide who may ask: bfia-gateway token create --role platform",
    "/v2/model": "models are deployed, exported and imported by bfia-gateway model",
    "/v2/table/bind": "upload the file instead: flow data upload-file, or bfia-gateway data upload",
    "/v2/data/component/download": "nothing is written to a path of this server: flow data download",
    "/v2/data/component/dataframe": "a table is in the storage's form as soon as it is uploaded",
    "/v2/server/query": "services of other programs are not registered here",
    "/v2/server/registry": "services of other programs are not registered here",
    "/v2/server/delete": "services of other programs are not registered here",
    "/v2/server/service": "services of other programs are not registered here",
}
"""Paths of FATE's client API that are not served -> what to use instead."""


def routers(parts: ClientParts) -> list[APIRouter]:
    """Return the paths of FATE's client API that are served."""
    return [found.paths.router(parts) for found in (jobs, outputs)]
