"""Each request's id: made here, never a client's; in the header that both official clients read, errors too."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from milepost.server.anthropic_errors import speaks_anthropic

NAMES = ("x-request-id", "request-id")
"""OpenAI's and Anthropic's."""

_KEY = "milepost.request_id"


class RequestIds:
    """Adds the one of `NAMES` that clients of the route's API read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        scope[_KEY] = uuid.uuid4().hex
        name = NAMES[speaks_anthropic(scope["path"])]

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[name] = told_id(scope)
            await send(message)

        await self.app(scope, receive, telling)


def told_id(scope: Mapping[str, Any]) -> str:
    """As the header has it."""
    return f"req_{scope[_KEY]}"


def id_of(request: Request) -> str:
    """32 hexadecimal digits; the ids of the request's answer are made of them, too."""
    digits: str = request.scope[_KEY]
    return digits
