"""GET /cache/requests: what the last requests found in the prefix cache, each key's own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fastapi import APIRouter, Request, Response

from milepost.errors import RequestError
from milepost.outputs import CacheReport, RequestOutput
from milepost.server.errors import ApiResponse
from milepost.server.explaining import as_object, decoded, tokens_around
from milepost.server.state import server_state

router = APIRouter()

MAX_KEPT = 256
"""Of each key, or of a server without keys."""

DEFAULT_LAST = 20


@dataclass(frozen=True, slots=True)
class Found:
    """What one prompt found. `created` in seconds of the epoch; `around`: see `tokens_around`."""

    request_id: str
    created: int
    report: CacheReport
    around: tuple[int, ...]


class Recent:
    """The last requests of each tenant: numbers, reasons, and a few tokens where a prompt parted, never a prompt."""

    def __init__(self) -> None:
        self._rings: dict[bytes, deque[Found]] = {}

    def add(self, tenant: bytes, found: Found) -> None:
        self._rings.setdefault(tenant, deque(maxlen=MAX_KEPT)).appendleft(found)

    def last(self, tenant: bytes, number: int) -> list[Found]:
        """Newest first."""
        return list(islice(self._rings.get(tenant, ()), number))


Remember = Callable[[str, RequestOutput], None]
"""Told a request's id and an output of it, once it is known what the request found."""


def remembering(request: Request, salt: str, created: int) -> Remember:
    """For a request and its client's `cache_salt`. Who sends one is kept apart from others of the same key, who read
    the same list: then it has no text."""
    recent, tenant = _recent(request), _tenant(request)

    def remember(request_id: str, output: RequestOutput) -> None:
        if output.cache is not None:
            around = () if salt else tokens_around(output.cache, output.prompt_token_ids)
            recent.add(tenant, Found(request_id, created, output.cache, around))

    return remember


@router.get("/cache/requests")
async def requests(request: Request) -> Response:
    tokenizer = server_state(request).engine.tokenizer
    found = _recent(request).last(_tenant(request), _number(request))
    return ApiResponse({"requests": [_told(one, decoded(one.around, tokenizer)) for one in found]})


def _told(found: Found, text: str | None) -> dict[str, Any]:
    about = {"id": found.request_id, "created": found.created, "prompt_tokens": found.report.num_prompt_tokens}
    return {**about, **as_object(found.report, text)}


def _number(request: Request) -> int:
    asked = request.query_params.get("last", str(DEFAULT_LAST))
    if not (asked.isascii() and asked.isdecimal() and len(asked) < 10 and 1 <= int(asked) <= MAX_KEPT):
        raise RequestError(f"last must be between 1 and {MAX_KEPT}", "change last, or leave it out", param="last")
    return int(asked)


def _recent(request: Request) -> Recent:
    found: Recent = request.app.state.recent
    return found


def _tenant(request: Request) -> bytes:
    return server_state(request).tenant(request)
