"""GET /cache: what the prefix cache may hold, what fills it, and what it has given. Numbers only, nobody's tokens."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter, ValidationError

from milepost.cache.snapshot import CacheSnapshot
from milepost.cache.tree_snapshot import TreeSnapshot
from milepost.errors import RequestError
from milepost.server.errors import ApiResponse
from milepost.server.state import ServerSettings, server_state
from milepost.server.stream import until_hangup
from milepost.specs import BLOCK_SIZE, CHUNK

router = APIRouter()

_FLAG = TypeAdapter(bool)


@router.get("/cache")
async def cache(request: Request) -> Response:
    """The numbers are of the last step; the tree is looked at now, between two steps: all of it for an operator, its
    own scope for a key that shares with no other, none for one that does."""
    state = server_state(request)
    told = _told(state.engine.cache_snapshot(), state.settings)
    sees_all = state.is_operator(request)
    if _wants_tree(request) and (sees_all or state.settings.shares_within_tenant):
        scope = None if sees_all else state.scope_of(request, "")
        told["tree"] = _tree(await until_hangup(request, state.engine.cache_tree(scope)), "all" if sees_all else "own")
    return ApiResponse(told)


@router.post("/reset_prefix_cache")
async def reset(request: Request) -> Response:
    """vLLM's. All prefixes are forgotten, everybody's pins too: for the operator, and where there are no keys."""
    state = server_state(request)
    if state.sees_pins_of(request) is not None:
        raise RequestError(
            "the cache is everybody's, and only the operator's key may empty it",
            "start the server with --operator-api-key, and use that",
            status=403,
            code="operator_only",
        )
    if not await until_hangup(request, state.engine.reset_prefix_cache()):
        raise RequestError(
            "the cache cannot be emptied while requests run", "send it again later", status=409, code="cache_in_use"
        )
    return ApiResponse({"success": True})


def _wants_tree(request: Request) -> bool:
    """`?tree=`, spelled in any of the ways of FastAPI's flags; without it: yes."""
    try:
        return _FLAG.validate_python(request.query_params.get("tree", "true"))
    except ValidationError:
        raise RequestError("tree must be true or false", "change tree, or leave it out", param="tree") from None


def _told(cache: CacheSnapshot, settings: ServerSettings) -> dict[str, Any]:
    by_kind = {kind: asdict(size) for kind, size in cache.by_kind.items()}
    return {
        "policy": {
            "enabled": cache.enabled,
            "scope": "tenant" if settings.shares_within_tenant else "global",
            "retention_interval": _interval(cache),
            "grid_tokens": CHUNK if cache.has_states else None,
            "block_tokens": BLOCK_SIZE,
        },
        "bytes": {
            "budget": cache.limit_bytes,
            "per_token": cache.token_bytes,
            "per_checkpoint": cache.checkpoint_bytes,
            "used": sum(size.used for size in cache.by_kind.values()),
            "resident": sum(size.resident for size in cache.by_kind.values()),
            "available": cache.available_bytes,
            "pinned": cache.pinned_bytes,
            "by_kind": by_kind,
        },
        "known_tokens": cache.num_known_tokens,
        "checkpoints": cache.num_checkpoints,
        # not asdict(): it would make a Counter anew, of pairs
        "counters": {field.name: getattr(cache.stats, field.name) for field in fields(cache.stats)},
    }


def _tree(tree: TreeSnapshot, shows: str) -> dict[str, Any]:
    return {
        "shows": shows,
        "num_scopes": tree.num_scopes,
        "num_nodes": tree.num_nodes,
        "left_out": tree.num_left_out,
        "nodes": [asdict(node) for node in tree.nodes],
    }


def _interval(cache: CacheSnapshot) -> str | int | None:
    """None: there are no states to keep."""
    if not cache.has_states:
        return None
    return "dense" if cache.interval is None else cache.interval
