"""Makes nodes in one process cheap: shares what FastAPI would build for each.

FastAPI builds some 660 pydantic validators and 200 routes for a node; a test uses few of them.
uvicorn sleeps 0.2 s when it stops.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args

import fastapi._compat.v2 as fields
import fastapi.routing
import uvicorn.server
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.routing import compile_path, get_name

_LONGEST_SLEEP = 0.02  # seconds, of uvicorn's main loop

# The type and its validator, by the text of the annotation.
_validators: dict[str, tuple[Any, TypeAdapter[Any]]] = {}


class LateField(fields.ModelField):
    """A parameter or a body of an endpoint, which builds its validator at the first use."""

    def __post_init__(self) -> None:
        """Build nothing yet."""

    @functools.cached_property
    def _type_adapter(self) -> Any:  # type: ignore[override]
        super().__post_init__()  # replaces this property of the object by the validator
        return vars(self)["_type_adapter"]


_REST = "build_rest"  # the attribute of a route that builds what it still lacks
# Guards the completion of routes: several requests may be the first for a path.
_completing = threading.RLock()
_build_route = APIRoute.__init__
_build_context = fastapi.routing._EffectiveRouteContext.from_api_route


def _late_route(
    route: APIRoute,
    path: str,
    endpoint: Callable[..., Any],
    *,
    methods: Any = None,
    name: str | None = None,
    **options: Any,
) -> None:
    """Replaces the constructor of a route: keep what matching a request needs, and a way to build
    the rest.
    """
    route.path = path
    route.endpoint = endpoint
    route.path_regex, route.path_format, route.param_convertors = compile_path(path)
    route.methods = {method.upper() for method in methods or ["GET"]}
    route.name = get_name(endpoint) if name is None else name
    vars(route)[_REST] = functools.partial(
        _build_route,
        route,
        path,
        endpoint,
        methods=methods,
        name=name,
        **options,
    )


def _complete_route(route: APIRoute, attribute: str) -> Any:
    """Build a route at the first use of an attribute that it lacks, and return the attribute.

    Raises `AttributeError` if a complete route has no such attribute.
    """
    with _completing:
        build = vars(route).pop(_REST, None)
        if build is not None:
            build()
    if attribute in vars(route):
        return vars(route)[attribute]
    raise AttributeError(attribute)


class LateContext(fastapi.routing._EffectiveRouteContext):
    """A route of an included router, which is built when a request is for its path."""

    # the attributes by which requests find their route
    _EARLY = frozenset(
        {
            "endpoint",
            "matches",
            "methods",
            "original_route",
            "param_convertors",
            "path",
            "path_regex",
            "starlette_route",
            "__class__",
            "__dict__",
        }
    )

    @classmethod
    def from_api_route(cls, *, original_route: APIRoute, include_context: Any) -> "LateContext":
        """Return the route with what matching a request needs."""
        context = cls(original_route)
        context.path = include_context.path_for(original_route)
        context.path_regex, _, context.param_convertors = compile_path(context.path)
        context.endpoint = original_route.endpoint
        context.methods = original_route.methods
        vars(context)[_REST] = functools.partial(
            _build_context,
            original_route=original_route,
            include_context=include_context,
        )
        return context

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute; build the route first if matching does not need it."""
        if name not in LateContext._EARLY:
            with _completing:
                build = vars(self).pop(_REST, None)
                if build is not None:
                    vars(self).update(vars(build()))
        return super().__getattribute__(name)


def install() -> None:
    """Share validators between nodes; shorten uvicorn's sleeps."""
    fields.TypeAdapter = _shared_validator  # type: ignore[misc,assignment]
    hurried = vars(asyncio) | {"sleep": _short_sleep}
    uvicorn.server.asyncio = SimpleNamespace(**hurried)  # type: ignore[assignment]


def when_used() -> None:
    """Let nodes build validators and routes when they first use them.

    FastAPI silences warnings while it builds validators, by a context that is not thread-safe. It
    is replaced by one that does nothing.
    """
    fields.warnings = SimpleNamespace(  # type: ignore[assignment]
        catch_warnings=contextlib.nullcontext,
        simplefilter=_do_nothing,
    )
    fields.ModelField = LateField  # type: ignore[misc]
    APIRoute.__init__ = _late_route  # type: ignore[assignment,method-assign]
    APIRoute.__getattr__ = _complete_route  # type: ignore[attr-defined]
    context_type = fastapi.routing._EffectiveRouteContext
    context_type.from_api_route = LateContext.from_api_route  # type: ignore[method-assign]


async def _short_sleep(seconds: float) -> None:
    await asyncio.sleep(min(seconds, _LONGEST_SLEEP))


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


def _shared_validator(annotated: Any, config: Any = None) -> TypeAdapter[Any]:
    key = repr((annotated, config))
    kind = get_args(annotated)[0]
    # Two nodes may each define a type of the same name: the types decide, not only their text.
    if key not in _validators or _validators[key][0] != kind:
        _validators[key] = (
            kind,
            TypeAdapter(annotated, config=config),
        )
    return _validators[key][1]
