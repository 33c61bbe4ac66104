"""Anthropic's error object, made of OpenAI's: {"type": "error", "error": {"type", "message"}, "request_id"}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PATH = "/v1/messages"

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""`type` where it is not simply "invalid_request_error" (4xx) or "api_error" (5xx)."""

TOO_LONG = "prompt is too long: "
"""How clients know that they must shorten the conversation."""

NO_THREADS = "thread_unsupported_request"
"""The code by which clients know that they must send the whole conversation."""


def speaks_anthropic(path: str) -> bool:
    """Whether requests to `path` are answered in Anthropic's shapes."""
    return path == PATH or path.startswith(f"{PATH}/")


def anthropic_error(request_id: str, status: int, body: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The same error for a client of Anthropic's API, whose request has `request_id` in its header."""
    error = body["error"]
    message = str(error["message"])
    if error.get("code") == "context_length_exceeded" and not message.startswith(TOO_LONG):
        message = TOO_LONG + message
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    told: dict[str, Any] = {"type": kind, "message": message}
    if error.get("code") == NO_THREADS:
        told["details"] = {"error_code": NO_THREADS, "unsupported": ["thread"]}
    return {"type": "error", "error": told, "request_id": request_id}
