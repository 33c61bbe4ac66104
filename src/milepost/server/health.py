"""Is it up, what is it, how is it doing: /health, /ping, /version, /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from milepost import __version__
from milepost.server.errors import ApiResponse
from milepost.server.state import ServerState, server_state

router = APIRouter()


@router.api_route("/health", methods=["GET", "HEAD"])
@router.api_route("/ping", methods=["GET", "HEAD"])
async def health(request: Request) -> Response:
    """200 when requests are served; 503 while the model loads, and after the engine stopped or hangs."""
    return _health(server_state(request))


def _health(state: ServerState) -> Response:
    engine = state.engine_or_none
    if engine is None:
        done, total = state.loaded_bytes
        progress = {"status": "loading", "loaded_bytes": done, "total_bytes": total}
        return ApiResponse(progress, 503, {"Retry-After": "1"})
    if engine.errored is not None:
        return ApiResponse({"status": "failed", "message": "the engine stopped: restart the server"}, 503)
    if engine.stalled:
        return ApiResponse({"status": "stalled", "message": "a step of the engine does not end"}, 503)
    return ApiResponse({"status": "ok"})


@router.get("/version")
async def version() -> Response:
    return ApiResponse({"version": __version__})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    return Response(server_state(request).engine.metrics_text(), media_type=CONTENT_TYPE_LATEST)
