"""What stands before every route: no request without an answer, the key, and the wait for the model."""

from __future__ import annotations

import asyncio
import base64
import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from milepost.server.errors import ApiResponse, describe, error_object, error_response, log_failure, route_path
from milepost.server.hosts import OPEN_PATHS
from milepost.server.page import is_page
from milepost.server.scope import tenant_of
from milepost.server.state import ServerState

ASK_PERSON = 'Basic realm="Milepost: any name, the API key as password", charset="UTF-8"'
"""A browser then shows its own form, and sends what is typed there with all that the page loads."""


class ErrorBoundary:
    """Turns what nobody foresaw into a 500, and a request cut off by the server's end into a 503."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        answer: ApiResponse
        try:
            return await self.app(scope, receive, watched_send)
        except asyncio.CancelledError:  # only the stopping server cancels a request: this is the task's last act
            error_body = error_object(503, "the server is shutting down")
            answer = error_response(scope, 503, error_body)
        except Exception as error:
            log_failure(error, f"{scope['method']} {route_path(scope)}")
            status, body = describe(error)
            answer = error_response(scope, status, body)
        if not started:
            await answer(scope, receive, send)


class ApiKey:
    """Asks every route but /health for `Authorization: Bearer <key>`, or Anthropic's `x-api-key: <key>`; where both are
    sent and open, the first counts. Whose key it was, `request.state.tenant` says.

    HTTP Basic opens the page's own files and nothing else: browsers send it unasked, for requests of other pages too.
    """

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self.app = app
        self._digests = [tenant_of(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return await self.app(scope, receive, send)
        for_person = is_page(scope["path"])
        tenant = self._tenant(dict(scope["headers"]), for_person)
        if tenant is not None:
            scope["state"] = {**scope.get("state", {}), "tenant": tenant}
            return await self.app(scope, receive, send)
        body = error_object(
            401,
            "this server asks for an API key (hint: send `Authorization: Bearer <key>` or `x-api-key: <key>`)",
            code="invalid_api_key",
        )
        challenge = ASK_PERSON if for_person else "Bearer"
        await error_response(scope, 401, body, {"WWW-Authenticate": challenge})(scope, receive, send)

    def _tenant(self, headers: dict[bytes, bytes], basic: bool) -> bytes | None:
        """The digest of the key that opens, if one does. `basic`: it may be the password of HTTP Basic."""
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        sent = [key] if scheme.lower() == b"bearer" else []
        sent += [_password(key)] if basic and scheme.lower() == b"basic" else []
        sent += [headers[b"x-api-key"]] if b"x-api-key" in headers else []
        digests = [tenant_of(key.strip()) for key in sent]
        return next((digest for digest in digests if self._opens(digest)), None)

    def _opens(self, digest: bytes) -> bool:
        """All keys' digests are compared, so that the time tells neither a key's length nor its beginning."""
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


class LoadingGate:
    """Answers 503 for every route but /health and the page, which shows how far it is, until the engine is there."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loading = self._state.engine_or_none is None
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or is_page(scope["path"]) or not loading:
            return await self.app(scope, receive, send)
        body = error_object(503, "the model is still loading", code="model_loading")
        await error_response(scope, 503, body)(scope, receive, send)


def _password(credentials: bytes) -> bytes:
    """Of HTTP Basic (RFC 7617); nothing for what is none."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""
