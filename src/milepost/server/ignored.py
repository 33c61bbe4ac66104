"""Response headers that name what of a request was left out: fields, and types of tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FIELDS, TOOLS = "X-Milepost-Ignored-Fields", "X-Milepost-Skipped-Tools"
MAX_NAMES, MAX_CHARS = 32, 64

_KEY = "milepost.ignored"
_UNFIT = re.compile(r"[^\w.$-]", re.ASCII)


def note_fields(request: Request, value: Any, schema: type[BaseModel]) -> None:
    """Fields of a body that its schema does not know."""
    if isinstance(value, Mapping) and schema.model_config.get("extra") != "allow":
        note(request, FIELDS, (name for name in value if name not in schema.model_fields))


def note(request: Request, header: str, names: Iterable[str]) -> None:
    """They are a client's text: only what fits a header is told, and not without end."""
    fit = dict.fromkeys(_UNFIT.sub("", str(name))[:MAX_CHARS] or "unknown" for name in names)
    if fit:
        request.scope.setdefault(_KEY, {})[header] = ", ".join([*fit][:MAX_NAMES])


class TellIgnored:
    """Adds the headers to whatever answer a request gets."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in scope.get(_KEY, {}).items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, telling if scope["type"] == "http" else send)
