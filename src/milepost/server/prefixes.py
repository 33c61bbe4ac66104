"""/cache/prefixes: prompts computed for the cache alone, and pinned; what is pinned; and the end of a pin."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from milepost.engine.prefixes import PinFor, max_pinned_bytes
from milepost.errors import ConfigError, MilepostError, RequestError
from milepost.outputs import PinnedPrefix, PrewarmOutput
from milepost.server.body import read_json
from milepost.server.errors import ApiResponse
from milepost.server.images import note_images
from milepost.server.prompts import Prompt, read_conversation, read_prompts, with_breakpoints
from milepost.server.queue_limit import admit
from milepost.server.sampling import check_fits
from milepost.server.schemas import PrefixRequest
from milepost.server.state import Engine, ServerState, server_state
from milepost.server.stream import until_hangup

logger = logging.getLogger(__name__)

router = APIRouter()

KIND = "cache.prefix"


@router.post("/cache/prefixes")
async def prewarm(request: Request) -> Response:
    state = server_state(request)
    body = await read_json(request, PrefixRequest)
    state.served_name(body.model)
    note_images(request, body.messages or ())
    pin = PinFor(state.owner_of(request), state.num_owners) if body.pin else False
    scope = state.scope_of(request, body.cache_salt or "")
    admit(request)
    warm = await until_hangup(request, _computed(state.engine, body, scope, pin))
    return ApiResponse(_told(warm))


@router.get("/cache/prefixes")
async def pinned(request: Request) -> Response:
    """Those that the asking key has pinned; an operator sees all."""
    state = server_state(request)
    owner = state.sees_pins_of(request)
    prefixes = await until_hangup(request, state.engine.pinned_prefixes(owner))
    limit = max_pinned_bytes(state.engine.cache_snapshot().limit_bytes, 1 if owner is None else state.num_owners)
    return ApiResponse(
        {
            "object": "list",
            "data": [_listed(prefix) for prefix in prefixes],
            "pinned_bytes": sum(prefix.num_bytes for prefix in prefixes),
            "max_pinned_bytes": limit,
        }
    )


@router.delete("/cache/prefixes/{prefix_id}")
async def unpin(request: Request, prefix_id: str) -> Response:
    state = server_state(request)
    owner = state.sees_pins_of(request)
    if not await until_hangup(request, state.engine.unpin(prefix_id, owner)):
        raise RequestError(
            "no prefix of this id is pinned",
            "GET /cache/prefixes lists them, and so does milepost cache show",
            status=404,
            code="prefix_not_found",
        )
    return ApiResponse({"id": prefix_id, "object": KIND, "deleted": True})


async def prewarm_at_start(engine: Engine, state: ServerState, prefixes: Sequence[tuple[str, PrefixRequest]]) -> None:
    """Computes and pins what the operator named, in the scope of every tenant, from the part of each; where all share
    one scope, what all may pin is there for it, and no key can unpin it. A line in the log for each. Raises
    `ConfigError` that names what cannot be."""
    for name, body in prefixes:
        start = time.monotonic()
        scopes = state.tenant_scopes(body.cache_salt or "")
        try:
            state.served_name(body.model, engine)
            for owner, scope in scopes:
                warm = await _computed(engine, body, scope, PinFor(owner, len(scopes)))
        except MilepostError as error:
            raise _at_start(name, error) from error
        each = f", for each of {len(scopes)} keys" if len(scopes) > 1 else ""
        logger.info(
            "prewarm: %s: %d tokens computed and pinned%s in %.1f s; prompts that begin with them resume at %d",
            name,
            warm.num_tokens,
            each,
            time.monotonic() - start,
            warm.num_resident_tokens,
        )


def _at_start(name: str, error: MilepostError) -> ConfigError:
    """There is no server yet to ask what is pinned."""
    limited = isinstance(error, RequestError) and error.code == "pin_limit_exceeded"
    hint = "shorten it, or leave out a --prewarm, or give more --kv-cache-memory-bytes" if limited else error.hint
    return ConfigError(f"--prewarm {name}: {error.message}", hint)


async def _computed(engine: Engine, body: PrefixRequest, scope: str, pin: bool | PinFor) -> PrewarmOutput:
    prompt = await _read(engine, body)
    check_fits(engine, len(prompt.ids), None, "prompt" if body.messages is None else "messages")
    request_id = f"prewarm-{uuid.uuid4().hex}"
    return await engine.prewarm(prompt.for_engine(), request_id, pin=pin, priority=body.priority or 0, cache_salt=scope)


async def _read(engine: Engine, body: PrefixRequest) -> Prompt:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if body.messages is not None:
        asked = body.model_copy(update={"add_generation_prompt": bool(body.add_generation_prompt)})
        prompts = [await read_conversation(engine, body.messages, asked)]
    else:
        prompts = await read_prompts(engine, body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if len(prompts) > 1:
        raise RequestError("one prefix in a request", "send one request for each", param="prompt")
    (prompt,) = with_breakpoints(prompts, body.cache_breakpoints)
    return prompt


def _told(warm: PrewarmOutput) -> dict[str, Any]:
    return {"object": KIND, **asdict(warm)}


def _listed(prefix: PinnedPrefix) -> dict[str, Any]:
    return {
        "object": KIND,
        "id": prefix.id,
        "num_tokens": prefix.num_tokens,
        "num_bytes": prefix.num_bytes,
        "pinned": True,
    }
