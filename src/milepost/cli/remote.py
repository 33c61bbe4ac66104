"""Asking a server that runs elsewhere, which may be no server of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from http.client import HTTPException
from typing import IO, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from milepost.cli.answer import for_terminal
from milepost.errors import ConfigError, RequestError

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 30.0
MAX_CHARS = 500
"""Of what a server says about an error."""


def get_json(url: str, route: str, api_key: str | None = None, *, fields: Collection[str], **query: Any) -> Any:
    """What GET `route` of the server at `url` answers. Raises as `ask_json`."""
    return ask_json(url, f"{route}?{urlencode(query)}", api_key, fields=fields)


def ask_json(
    url: str,
    route: str,
    api_key: str | None = None,
    *,
    fields: Collection[str],
    method: str | None = None,
    body: Any = None,
    timeout_s: float | None = TIMEOUT_S,
) -> Any:
    """What `route` of the server at `url` answers: an object that has these `fields`. `method` None: GET, or POST where
    there is a `body`. ConfigError where no server of ours answers there, RequestError for what it refuses."""
    base = base_url(url)
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{base}{route}", data=data, headers=_headers(api_key), method=method)
    found = _answer(request, base, timeout_s, json.load)
    if not isinstance(found, dict) or not set(fields) <= set(found):
        raise unknown_server(base, f"{route.partition('?')[0]} has not the fields of ours")
    return found


def get_text(url: str, route: str, api_key: str | None = None) -> str:
    """What GET `route` answers, as text. Raises as `ask_json`."""
    base = base_url(url)
    request = Request(f"{base}{route}", headers=_headers(api_key))
    return _answer(request, base, TIMEOUT_S, lambda answer: answer.read().decode())


def first_key(api_key: str | None) -> str | None:
    """Of a variable that may hold all keys of a server."""
    return next(iter((api_key or "").split()), None)


def base_url(url: str) -> str:
    """The server's address without a path of the API; ConfigError for what is none."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets of no address, a port that is none
        fits = False
    if not fits or not (url.isascii() and url.isprintable()) or " " in url or parts.query or parts.fragment:
        raise ConfigError(f"--url cannot be {url!r}", "such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _headers(api_key: str | None) -> dict[str, str]:
    if not api_key:
        return {}
    if not api_key.isprintable():
        raise ConfigError("--api-key has characters that no header can hold", "look for a line break in it")
    return {"Authorization": f"Bearer {api_key}".encode().decode("latin-1")}  # as which http.client sends it: UTF-8


def _answer(request: Request, base: str, timeout_s: float | None, read: Callable[[IO[bytes]], T]) -> T:
    try:
        with urlopen(request, timeout=timeout_s) as answer:
            return read(answer)
    except HTTPError as error:
        raise _refusal(error, base) from None
    except (URLError, OSError, HTTPException, ValueError, RecursionError) as error:
        reason = _one_line(getattr(error, "reason", None) or error) or type(error).__name__
        raise unknown_server(base, reason) from None


def unknown_server(base: str, reason: str) -> ConfigError:
    return ConfigError(f"no Milepost server answers at {base}: {reason}", "start one with milepost serve")


def _refusal(error: HTTPError, base: str) -> RequestError:
    try:
        message = str(json.load(error)["error"]["message"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        message = f"{base} answers {error.code} {error.reason}"
    text, _, hint = _one_line(message).partition(" (hint: ")
    if error.code == 401:
        hint = "give --api-key"
    return RequestError(text, hint.removesuffix(")"), status=error.code)


def _one_line(message: object) -> str:
    return for_terminal(" ".join(str(message).split()))[:MAX_CHARS]
