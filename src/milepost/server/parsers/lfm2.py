"""LFM2: <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>, calls in Python's form, or JSON if asked for that."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from milepost.server.parsers.calls import Bounded, Calls, NotACall, as_json
from milepost.server.parsers.family import Call, Family, Traits
from milepost.server.parsers.json_calls import read_calls
from milepost.server.parsers.source import Reading, Source
from milepost.structured_outputs import CallForm

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
MAX_CHARS = 256 * 1024
"""Of a block in Python's form, which is read as a whole."""

_JSON_NAMES = {"true": True, "false": False, "null": None}


def _matches(traits: Traits) -> bool:
    """Its templates do not name the tag; one that names another's is another's."""
    return OPEN in traits.template or (OPEN in traits.special_tokens and "<tool_call>" not in traits.template)


def read(source: Source, calls: Calls, tag: str) -> Reading[None]:
    yield from source.skip_space()
    is_json = yield from source.take("[{", "{")
    if is_json:
        source.skip(-len(is_json))
        yield from read_calls(source, calls)
        yield from source.skip_space()
        yield from source.take(CLOSE)
        return
    text = yield from _block(source)
    for name, arguments in python_calls(text):
        calls.start(name)
        calls.arguments(arguments)
        calls.end()


def _block(source: Source) -> Reading[str]:
    """Up to the closing tag, or to the end of the answer."""
    text = Bounded(MAX_CHARS)
    if (yield from source.until((OPEN, CLOSE), text.write)) == OPEN:
        raise NotACall
    return text.whole


def python_calls(text: str) -> list[tuple[str, str]]:
    """Name and JSON arguments of each call of `[f(a=1), ...]`. Nothing is run. Raises `NotACall`."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
        found = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
        calls = [(_name(call.func), dict(_arguments(call))) for call in found if isinstance(call, ast.Call)]
        if not calls or len(calls) != len(found):
            raise NotACall
        return [(name, as_json(arguments)) for name, arguments in calls]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise NotACall from None


def _name(function: ast.expr) -> str:
    """Names may have dots."""
    return ast.unparse(function) if isinstance(function, ast.Name | ast.Attribute) else ""


def _arguments(call: ast.Call) -> Iterator[tuple[str, object]]:
    if call.args:
        raise NotACall
    for keyword in call.keywords:
        if keyword.arg is None:
            raise NotACall
        yield keyword.arg, ast.literal_eval(_AsPython().visit(keyword.value))


class _AsPython(ast.NodeTransformer):
    """JSON's words for what Python has others for."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node


def _form(traits: Traits) -> CallForm:
    """In JSON: there is a grammar for that."""
    return CallForm(separator=", ", opening=f"{OPEN}[", closing=f"]{CLOSE}")


def _spell(form: CallForm, calls: Sequence[Call]) -> str:
    """In Python, as it was taught."""
    each = (f"{name}({', '.join(f'{key}={_literal(value)}' for key, value in some.items())})" for name, some in calls)
    return f"{OPEN}[{', '.join(each)}]{CLOSE}"


def _literal(value: object) -> str:
    return as_json(value) if isinstance(value, str) else repr(value)


LFM2 = Family("lfm2", _matches, (OPEN,), read, inner=(CLOSE,), form=_form, spell=_spell, calls_first=True)
