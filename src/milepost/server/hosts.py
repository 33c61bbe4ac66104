"""Whether a browser may send this: a page that somebody else made must not use a server of this machine.

A page of another origin names itself in `Origin`. One whose own name was made to point here (DNS rebinding) has none to
name, but its name stands in `Host`: so only names are answered that this server is known by. An address that is written
in numbers is one of them: no name points anywhere then.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from milepost.server.errors import error_object, error_response

OPEN_PATHS = frozenset({"/health"})
"""Answered whoever asks: without a key, under any name, and while the model loads."""


class HostCheck:
    """Answers 403 where `Host` is not a name of this server's or `Origin` is another's.

    `hosts`: names beyond localhost and this machine's own, `*.example.com` for all below one, `*` for all. `origins`:
    of pages that may call, `*` for all; the server's own may.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self.app = app
        machine = socket.gethostname().lower()
        self._hosts = {"localhost", "*.localhost", machine, f"{machine}.local", *(host.lower() for host in hosts)}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return await self.app(scope, receive, send)
        headers = {name: value.decode("latin-1").strip().lower() for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if not self._is_ours(_name(host)):
            problem = "this server is not known by the name that the request has as Host"
            hint = "use localhost or an address in numbers, or start the server with --allowed-hosts NAME"
        elif origin is not None and not self._may_call(origin, host):
            problem = "a page of another origin may not use this server"
            hint = "start it with --allowed-origins ORIGIN, the beginning of that page's address"
        else:
            return await self.app(scope, receive, send)
        body = error_object(403, f"{problem} (hint: {hint})", code="origin_not_allowed")
        await error_response(scope, 403, body)(scope, receive, send)

    def _is_ours(self, name: str) -> bool:
        if not name:
            return False
        if _is_address(name) or not self._hosts.isdisjoint((name, "*")):
            return True
        return any(host.startswith("*.") and name.endswith(host[1:]) for host in self._hosts)

    def _may_call(self, origin: str, host: str) -> bool:
        if not self._origins.isdisjoint((origin, "*")):
            return True
        scheme, _, own = origin.partition("://")
        return scheme in ("http", "https") and own == host


def _name(host: str) -> str:
    """Of a Host header, without its port; empty where it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:  # brackets of no address
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
