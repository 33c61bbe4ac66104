"""GET /: a page for people, to chat and to look at the cache. Static files of the package, which hold no secret."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response

router = APIRouter()

FOLDER = Path(__file__).parent / "page"
PREFIX = "/page/"
"""Where what the page loads lies; the page itself is at /."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy: nothing that is written into the page runs, and it speaks to nobody but this server."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

TYPES = {".js": "text/javascript"}
"""Where a machine's own list may say otherwise."""


@dataclass(frozen=True)
class File:
    content: bytes
    media_type: str
    etag: str


def is_page(path: str) -> bool:
    """Whether a browser asks for `path` by itself, without a script that could send a bearer token."""
    return path == "/" or path.startswith(PREFIX)


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    return _answer(request, "index.html")


@router.api_route(PREFIX + "{name}", methods=["GET", "HEAD"])
async def part(request: Request, name: str) -> Response:
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    file = _files().get(name)
    if file is None:
        raise HTTPException(404)
    headers = {**HEADERS, "ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


@cache
def _files() -> dict[str, File]:
    """By name, read once: no name that a client sends is ever looked up on the disk."""
    return {path.name: _read(path) for path in FOLDER.iterdir() if path.is_file()}


def _read(path: Path) -> File:
    content = path.read_bytes()
    media_type = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
