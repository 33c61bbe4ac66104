"""Asking a server that runs elsewhere."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from milepost.errors import ConfigError, RequestError

TIMEOUT_S = 30.0


def get_json(url: str, route: str, api_key: str | None = None, **query: Any) -> Any:
    """What GET `route` of the server at `url` answers. Raises as `ask_json`."""
    return ask_json(url, f"{route}?{urlencode(query)}", api_key)


def ask_json(
    url: str,
    route: str,
    api_key: str | None = None,
    *,
    method: str | None = None,
    body: Any = None,
    timeout_s: float | None = TIMEOUT_S,
) -> Any:
    """What `route` of the server at `url` answers. `method` None: GET, or POST where there is a `body`. ConfigError
    where no server of ours answers there, RequestError for what it refuses."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"--url cannot be {url!r}", "such as http://127.0.0.1:8000")
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{base}{route}", data=data, headers=headers, method=method)
    try:
        with urlopen(request, timeout=timeout_s) as answer:
            return json.load(answer)
    except HTTPError as error:
        raise _refusal(error, base) from None
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(f"no Milepost server answers at {base}: {reason}", "start one with milepost serve") from None


def _refusal(error: HTTPError, base: str) -> RequestError:
    try:
        message = str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{base} answers {error.code} {error.reason}"
    text, _, hint = message.partition(" (hint: ")
    if error.code == 401:
        hint = "give --api-key"
    return RequestError(text, hint.removesuffix(")"), status=error.code)
