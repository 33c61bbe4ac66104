"""A request's body: read within a limit, parsed, checked against a schema."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from pydantic_core import from_json

from milepost.errors import RequestError
from milepost.server.ignored import note_fields
from milepost.server.state import server_state

PIECE_SECONDS = 30.0
"""A body may be long in coming; each piece of it may not."""

Schema = TypeVar("Schema", bound=BaseModel)


async def read_json(request: Request, schema: type[Schema]) -> Schema:
    """The body as `schema`, whatever its content type says.

    Raises `RequestError` (413 over the limit, 408 when no more of it comes, 400 for what is not JSON) or pydantic's
    `ValidationError`. The parser refuses text that is not Unicode, numbers beyond 4,300 digits and nesting deeper than
    200. Fields that the schema does not know are named in a header of the answer.
    """
    body = await _read(request, server_state(request).settings.max_body_bytes)
    try:
        value = from_json(body)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}", "send one JSON object, in UTF-8") from None
    note_fields(request, value, schema)
    return schema.model_validate(value)


async def _read(request: Request, max_bytes: int) -> bytes:
    """The announced length is checked before anything is read, the true one while reading."""
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for piece in _pieces(request.stream()):
        body += piece
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


async def _pieces(stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        while True:
            async with asyncio.timeout(PIECE_SECONDS):
                piece = await anext(stream)
            yield piece
    except StopAsyncIteration:
        return
    except TimeoutError:
        raise RequestError(
            f"nothing more of the body came for {PIECE_SECONDS:g} s",
            "send it again",
            status=408,
            code="request_timeout",
        ) from None


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"the body is larger than {max_bytes} bytes", "send a shorter one", status=413, code="request_too_large"
    )
