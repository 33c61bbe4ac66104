"""GET and DELETE /v1/responses/{id}, its /input_items and /cancel: what is kept, and what is being made."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.convertors import Convertor, register_url_convertor

from milepost.errors import RequestError
from milepost.server.errors import ApiResponse
from milepost.server.responses_items import ResponseItem
from milepost.server.responses_running import responses_of
from milepost.server.responses_store import history, not_found
from milepost.server.stream import until_hangup

router = APIRouter()


class ResponseId(Convertor[str]):
    """Not a name that is a route of its own, which takes POST and none of a response's methods."""

    regex = "(?!(?:compact|input_tokens)$)[^/]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("response", ResponseId())

MAX_ITEMS, DEFAULT_ITEMS = 100, 20
"""Of a list of input items."""

ORDERS = ("asc", "desc")


@router.post("/v1/responses/compact")
async def compact(request: Request) -> Response:
    """There so that clients are told why."""
    raise RequestError("conversations cannot be compacted by this server", "send fewer items", status=404)


@router.get("/v1/responses/{response_id:response}")
async def retrieve(request: Request, response_id: str) -> Response:
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise RequestError("a stored response cannot be streamed", "leave stream out", param="stream")
    own = responses_of(request)
    running, turn = own.running.get(response_id), own.store.get(response_id)
    if running is not None and running.is_kept:
        return ApiResponse(running.events.response)
    if turn is None:
        raise not_found(response_id, "response_id")
    return Response(turn.response_json, media_type="application/json")


@router.delete("/v1/responses/{response_id:response}")
async def delete(request: Request, response_id: str) -> Response:
    """One that is being made goes on, and is not stored."""
    own = responses_of(request)
    running = own.running.get(response_id)
    was_to_be_kept = running is not None and running.is_kept
    if running is not None:
        running.is_kept = False
    if not own.store.remove(response_id) and not was_to_be_kept:
        raise not_found(response_id, "response_id")
    return ApiResponse({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel(request: Request, response_id: str) -> Response:
    """Ends one that is being made, stored or not, within a step; one that has ended stays as it is."""
    own = responses_of(request)
    running = own.running.get(response_id)
    if running is not None:
        running.cancelled.set()
        await until_hangup(request, running.ended.wait())
        if running.events.response["status"] != "in_progress":  # else its client was faster, and went away
            return ApiResponse(running.events.response)
    turn = own.store.get(response_id)
    if turn is None:
        raise not_found(response_id, "response_id")
    return Response(turn.response_json, media_type="application/json")


@router.get("/v1/responses/{response_id}/input_items")
async def input_items(request: Request, response_id: str) -> Response:
    """Of its whole conversation, so also what the responses before it had said."""
    turn = responses_of(request).store.get(response_id)
    if turn is None:
        raise not_found(response_id, "response_id")
    items = [*history(turn.parent), *turn.items]
    return ApiResponse(_page(items, request))


def _page(items: list[ResponseItem], request: Request) -> dict[str, Any]:
    asked = request.query_params
    order, after, limit = asked.get("order", "desc"), asked.get("after"), asked.get("limit", str(DEFAULT_ITEMS))
    if order not in ORDERS:
        raise RequestError('order must be "asc" or "desc"', "change order, or leave it out", param="order")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 10 and 1 <= int(limit) <= MAX_ITEMS):
        raise RequestError(f"limit must be between 1 and {MAX_ITEMS}", "change limit, or leave it out", param="limit")
    found = items if order == "asc" else items[::-1]
    if after is not None:
        start = next((i + 1 for i, item in enumerate(found) if item["id"] == after), len(found))
        found = found[start:]
    page = found[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(found) > len(page),
    }
