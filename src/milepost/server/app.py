"""The HTTP application: its routes, and what stands before them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from milepost.server import (
    anthropic,
    cache,
    errors,
    health,
    ignored,
    images,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_models,
    openai_render,
    openapi,
    page,
    prefixes,
    recent,
    responses,
    responses_stored,
    tokenize,
)
from milepost.server.anthropic_diagnostics import Fingerprints
from milepost.server.hosts import HostCheck
from milepost.server.ignored import TellIgnored
from milepost.server.middleware import ApiKey, ErrorBoundary, LoadingGate
from milepost.server.queue_limit import QueueLimit
from milepost.server.request_ids import NAMES, RequestIds
from milepost.server.state import ServerState

TOLD = (ignored.FIELDS, ignored.TOOLS, images.PARTS, anthropic.REMOVED, *NAMES, "Retry-After")
"""Headers of answers that allowed pages may read; a browser keeps all but a few from them."""


def create_app(state: ServerState) -> FastAPI:
    """Serves `state.engine` once `state.ready(engine)` was called; until then all but /health answers 503."""
    app = FastAPI(title="Milepost", openapi_url=None, middleware=_middleware(state))
    app.state.server, app.state.recent = state, recent.Recent()
    app.state.fingerprints, app.state.responses = Fingerprints(), {}
    for module in (
        health,
        openai_models,
        openai_chat,
        openai_render,
        openai_completions,
        openai_embeddings,
        responses,
        responses_stored,
        anthropic,
        tokenize,
        cache,
        prefixes,
        recent,
        openapi,
        page,
    ):
        app.include_router(module.router)
    errors.install(app)
    return app


def _middleware(state: ServerState) -> list[Middleware]:
    """The outermost first. CORS comes before the key: a browser asks for permission without one."""
    layers = []
    if state.settings.allowed_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=state.settings.allowed_origins,
                allow_methods=state.settings.allowed_methods,
                allow_headers=state.settings.allowed_headers,
                expose_headers=TOLD,
            )
        )
    layers += [Middleware(RequestIds), Middleware(TellIgnored), Middleware(ErrorBoundary)]
    layers.append(
        Middleware(HostCheck, hosts=state.settings.allowed_hosts, origins=state.settings.allowed_origins),
    )
    if state.settings.keys:
        layers.append(Middleware(ApiKey, keys=state.settings.keys))
    layers.append(Middleware(LoadingGate, state=state))
    layers.append(Middleware(QueueLimit, max_num_queued_reqs=state.settings.max_num_queued_reqs))
    return layers
