"""Every error leaves the server as OpenAI's error object, {"error": {"message", "type", "param", "code"}}, or, where a
route is of Anthropic's API, as Anthropic's."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from milepost.errors import MilepostError, RequestError
from milepost.server.anthropic_errors import anthropic_error, speaks_anthropic
from milepost.server.request_ids import told_id

logger = logging.getLogger("milepost.server")

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
"""OpenAI's `type` where it is not simply "invalid_request_error" (4xx) or "server_error" (5xx)."""

METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")

MAX_MESSAGE_CHARS = 2000

RETRY_SECONDS = 5
"""When to ask again (`Retry-After`) a server that has too much to do, or is not ready. Official clients heed it."""


class ApiResponse(Response):
    """JSON; a number that JSON cannot write becomes null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content, inf_nan_mode="null")


def error_object(
    status: int, message: str, *, code: str | int | None = None, param: str | None = None
) -> dict[str, dict[str, Any]]:
    """The body of an error answer."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    one_line = " ".join(message.split())[:MAX_MESSAGE_CHARS]
    return {"error": {"message": one_line, "type": kind, "param": param, "code": code}}


def describe(error: Exception) -> tuple[int, dict[str, dict[str, Any]]]:
    """HTTP status and body for an exception. Of one that nobody foresaw, nothing is told but that it happened."""
    if isinstance(error, RequestError):
        return error.status, error_object(error.status, str(error), code=error.code, param=error.param)
    if isinstance(error, ValidationError):
        return 400, _invalid_field(error)
    if isinstance(error, HTTPException):
        return error.status_code, error_object(error.status_code, _about_http(error))
    if isinstance(error, MilepostError):
        return 500, error_object(500, str(error))
    return 500, error_object(500, "the server failed on this request; its log has the place")


def error_response(
    scope: Mapping[str, Any],
    status: int,
    body: Mapping[str, Mapping[str, Any]],
    headers: Mapping[str, str] | None = None,
) -> ApiResponse:
    """OpenAI's error object `body` as an answer to the request of `scope`, in the shape of the API that it asked."""
    shaped = anthropic_error(told_id(scope), status, body) if speaks_anthropic(str(scope["path"])) else body
    later = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else {}
    return ApiResponse(shaped, status, {**later, **(headers or {})})


def log_failure(error: Exception, what: str) -> None:
    """One line for the operator: what kind of error and where. Its text may quote a user's, and stays out."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    logger.error("%s failed: %s%s", what, type(error).__name__, place)


def install(app: FastAPI) -> None:
    """Answers for exceptions that leave a route. Others, of no known kind, go on to `ErrorBoundary`."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code == 405:
            error = HTTPException(405, headers={"Allow": ", ".join(_methods(request))})
        status, body = describe(error)
        if status >= 500:
            log_failure(error, f"{request.method} {route_path(request.scope)}")
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        return error_response(request.scope, status, body, headers)

    async def nobody_listens(request: Request, error: Exception) -> Response:
        return Response(status_code=400)

    for kind in (MilepostError, ValidationError, HTTPException):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ClientDisconnect, nobody_listens)


def route_path(scope: Mapping[str, Any]) -> str:
    """The route's pattern, never the path as sent: that is a user's text."""
    return str(getattr(scope.get("route"), "path", "an unknown route"))


def _invalid_field(error: ValidationError) -> dict[str, dict[str, Any]]:
    first, *others = error.errors(include_url=False, include_input=False, include_context=False)
    field = ".".join(str(part) for part in first["loc"])[:200]
    more = f" (and {len(others)} more)" if others else ""
    message = f"{field}: {first['msg']}{more}" if field else "the body must be a JSON object"
    return error_object(400, message, param=str(first["loc"][0])[:200] if field else None)


def _methods(request: Request) -> list[str]:
    """That this path takes, by any route of it: the framework names those of the first."""
    scope = {name: value for name, value in request.scope.items() if name not in ("route", "endpoint", "path_params")}
    routes = request.app.routes
    return [method for method in METHODS if any(_takes(route, {**scope, "method": method}) for route in routes)]


def _takes(route: BaseRoute, scope: Scope) -> bool:
    return route.matches(scope)[0] is Match.FULL


def _about_http(error: HTTPException) -> str:
    if error.status_code == 404:
        return "there is no such route"
    if error.status_code == 405:
        return f"this route does not take that method; it takes {(error.headers or {}).get('Allow', 'another')}"
    return str(error.detail)
