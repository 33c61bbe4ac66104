"""A call as <function=name> with one <parameter=name> for each argument; the schema says which are no texts."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

from milepost.server.parsers.calls import MAX_NAME_CHARS, Calls, NotACall, as_json
from milepost.server.parsers.source import Reading, Source

FUNCTION, CLOSE = "<function=", "</function>"
PARAMETER, PARAMETER_CLOSE = "<parameter=", "</parameter>"
CUT = (f"\n{PARAMETER}", f"\n{CLOSE}")
"""What ends a value whose own end is missing."""

OUTER_CLOSE = "</tool_call>"


def read_function(source: Source, calls: Calls) -> Reading[None]:
    """After `<function=`. Raises `NotACall`."""
    name = yield from _name(source)
    calls.start(name)
    calls.arguments("{")
    schemas = calls.tools.get(name, {}).get("properties")
    seen: set[str] = set()
    while True:
        yield from source.skip_space()
        if not (yield from source.take(PARAMETER)):
            break
        key = yield from _name(source)
        if key in seen:
            raise NotACall
        calls.arguments((", " if seen else "") + json.dumps(key, ensure_ascii=False) + ": ")
        seen.add(key)
        yield from _value(source, calls, _types(schemas.get(key) if isinstance(schemas, Mapping) else None))
    closed = yield from source.take(CLOSE, OUTER_CLOSE)
    if not closed:
        raise NotACall
    if closed == OUTER_CLOSE:
        source.skip(-len(closed))
    calls.arguments("}")
    calls.end()


def _name(source: Source) -> Reading[str]:
    name = ""
    while (yield from source.more()) and source.next_char not in "><\n" and len(name) < MAX_NAME_CHARS:
        name += source.next_char
        source.skip(1)
    if not (yield from source.take(">")):
        raise NotACall
    return name.strip().strip("\"'")


def _value(source: Source, calls: Calls, types: frozenset[str]) -> Reading[None]:
    """A text is told as it comes; of other types, and of several, the whole is needed."""
    yield from source.take("\n")
    is_text = types <= {"string"}
    text = _Text(calls) if is_text else None
    whole: list[str] = []
    if text:
        calls.arguments('"')
    found = yield from source.until((PARAMETER_CLOSE, *CUT), text.write if text else whole.append)
    if not found:
        raise NotACall
    if found in CUT:
        source.skip(-len(found))
    calls.arguments('"' if text else typed("".join(whole).removesuffix("\n"), types))


class _Text:
    """A JSON text in pieces. The line break before the closing tag is not part of it."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self._held = calls, ""

    def write(self, piece: str) -> None:
        text = self._held + piece
        self._held = "\n" if text.endswith("\n") else ""
        self._calls.arguments(json.dumps(text.removesuffix("\n"), ensure_ascii=False)[1:-1])


def typed(text: str, types: frozenset[str]) -> str:
    """JSON of a value that was written as bare text: what the schema allows, else a text."""
    if text.strip() in ("null", "None") and ("null" in types or "string" not in types):
        return "null"
    if "string" in types:
        return json.dumps(text, ensure_ascii=False)
    for read in (json.loads, ast.literal_eval):
        try:
            return as_json(read(text.strip()))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    if "boolean" in types and text.strip().lower() in ("true", "false"):
        return text.strip().lower()
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any) -> frozenset[str]:
    """The JSON types that a schema allows; none for one that does not say."""
    return frozenset(_each_type(schema, 0))


def _each_type(schema: Any, depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth > 8:
        return
    types = schema.get("type")
    for kind in types if isinstance(types, list) else [types]:
        if isinstance(kind, str):
            yield kind
    for name in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(name)
        for part in parts if isinstance(parts, list) else ():
            yield from _each_type(part, depth + 1)
    if types is None and isinstance(schema.get("enum"), list):
        names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
        yield from (names.get(type(value), "object") for value in schema["enum"])
    if types is None and ("$ref" in schema or "properties" in schema):
        yield "object"
