"""Fields of what a request is made of, blocks and items, and errors that say where in it they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.errors import RequestError

OpenAIMessage = dict[str, Any]
"""A message as chat templates read it."""


def bad(where: str, problem: str, hint: str = "change it") -> RequestError:
    return RequestError(f"{where}: {problem}", hint, param=where.partition(".")[0])


def string_field(part: Mapping[str, Any], field: str, where: str) -> str:
    """Raises `RequestError` for what is no text, or is not there."""
    value = part.get(field)
    if not isinstance(value, str):
        raise bad(f"{where}.{field}", "must be text")
    return value
