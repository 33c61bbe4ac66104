"""From what an answer must look like to what llguidance reads: JSON with one grammar, or with several where one lets
text pass before the next begins, or where calls will do as well.

For tools that must be called: `StructuredOutputsParams(tool_calls=ToolCalls({name: schema}, form))`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from milepost.structured_outputs import CallForm, StructuredOutputsParams, ToolCalls

MAX_GRAMMAR_CHARS = 128 * 1024
"""Of all that is compiled, as text: one of this size takes up to 2 s, and its depth is bounded with it."""

MAX_RULES_CHARS = 32 * 1024
"""Of a client's own rules: where thousands begin at one place, one step takes time by their square, 0.2 s with this."""

WHITESPACE = r"( |\n[ \t]{0,20})?"
"""llama.cpp's, between the parts of JSON."""

Grammar = dict[str, Any]
"""One entry of llguidance's list of grammars."""


def grammar_text(params: StructuredOutputsParams, special: Mapping[str, int]) -> str:
    """What llguidance's matcher takes; `special`: ids of the model's added tokens by their text.

    RequestError for text that is no JSON or no grammar, and for too much of it; what llguidance itself finds wrong is
    found when it compiles.
    """
    body = _BODIES[params.kind](params, special)
    grammars = [body]
    if params.or_calls is not None:
        calls = tool_call_lark(params.or_calls, params, special, "calls")
        grammars = [{"lark_grammar": f"start: calls | @answer\n{calls}"}, {"name": "answer", **body}]
    if params.after:
        first, *others = grammars
        grammars = [{"lark_grammar": _free_until(params.after, special)}, {"name": "body", **first}, *others]
    text = json.dumps({"grammars": grammars})
    if len(text) > MAX_GRAMMAR_CHARS:
        raise params.error(f"{params.kind} is too long: {len(text)} characters, at most {MAX_GRAMMAR_CHARS}")
    return text


def _json(params: StructuredOutputsParams, special: Mapping[str, int]) -> Grammar:
    schema: Any = params.json
    if isinstance(schema, str):
        if len(schema) > MAX_GRAMMAR_CHARS:
            raise params.error(f"json is too long: {len(schema)} characters, at most {MAX_GRAMMAR_CHARS}")
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise params.error(f"the JSON schema is no JSON: {error}") from None
    return {"json_schema": _schema(schema, params)}


def _json_object(params: StructuredOutputsParams, special: Mapping[str, int]) -> Grammar:
    return {"json_schema": _schema({"type": "object"}, params)}


def _regex(params: StructuredOutputsParams, special: Mapping[str, int]) -> Grammar:
    return {"lark_grammar": f"start: /{_inside_slashes(params.regex or '')}/"}


def _choice(params: StructuredOutputsParams, special: Mapping[str, int]) -> Grammar:
    """As a terminal, by its upper case: thousands of rules side by side are too many for the parser."""
    return {"lark_grammar": "start: CHOICE\nCHOICE: " + " | ".join(map(json.dumps, params.choice or ()))}


def _grammar(params: StructuredOutputsParams, special: Mapping[str, int]) -> Grammar:
    from llguidance.gbnf_to_lark import any_to_lark

    text = params.grammar or ""
    if len(text) > MAX_RULES_CHARS:
        raise params.error(f"grammar is too long: {len(text)} characters, at most {MAX_RULES_CHARS}")
    try:
        return {"lark_grammar": any_to_lark(text)}
    except Exception as error:  # its parser raises what it meets
        raise params.error(f"the grammar is neither Lark's nor GBNF: {error}") from None


def _tool_calls(params: StructuredOutputsParams, special: Mapping[str, int]) -> Grammar:
    calls = params.tool_calls
    assert calls is not None
    return {"lark_grammar": tool_call_lark(calls, params, special)}


_BODIES: dict[str, Callable[[StructuredOutputsParams, Mapping[str, int]], Grammar]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
    "tool_calls": _tool_calls,
}


def tool_call_lark(
    calls: ToolCalls, params: StructuredOutputsParams, special: Mapping[str, int], name: str = "start"
) -> str:
    """Calls in their form, as Lark rules, of which the first has this name: one rule for each tool."""
    form = calls.form
    rules = [_tool_rule(i, tool, schema, form, params, special) for i, (tool, schema) in enumerate(calls.tools.items())]
    more = f"({literal(form.separator, special)} call)"
    times = "*" if calls.max_calls is None else f"{{0,{calls.max_calls - 1}}}"
    parts = [literal(form.opening, special), "call", *([more + times] * (calls.max_calls != 1))]
    start = f"{name}: {' '.join(part for part in [*parts, literal(form.closing, special)] if part)}"
    return "\n".join([start, f"call: {' | '.join(f'call_{i}' for i in range(len(rules)))}", *rules])


def _tool_rule(
    i: int,
    name: str,
    schema: Mapping[str, Any] | None,
    form: CallForm,
    params: StructuredOutputsParams,
    special: Mapping[str, int],
) -> str:
    arguments = _schema({"type": "object", **(schema or {})}, params)
    head = literal(form.before + json.dumps(name)[1:-1] + form.between, special)
    return f"call_{i}: {head} %json {json.dumps(arguments)} {literal(form.after, special)}"


def literal(text: str, special: Mapping[str, int]) -> str:
    """Lark for `text`, whose special tokens stand for themselves: no other tokens may spell them."""
    if not text:
        return ""
    names = sorted((name for name in special if name in text), key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, names)) + ")", text) if names else [text]
    return " ".join(f"<[{special[piece]}]>" if piece in special else json.dumps(piece) for piece in pieces if piece)


def _free_until(end: str, special: Mapping[str, int]) -> str:
    """Lark that takes any text up to `end`, once, and then the grammar named body, after whitespace if any."""
    if end in special:
        return f"start: FREE <[{special[end]}]> SPACE @body\nFREE: /(.|\\n)*/\nSPACE: /[ \\n]{{0,4}}/"
    pattern = _inside_slashes(re.escape(end))
    return f"start: free SPACE @body\nfree[lazy]: /(.|\\n)*{pattern}/\nSPACE: /[ \\n]{{0,4}}/"


def _inside_slashes(regex: str) -> str:
    """A regex as it stands between Lark's slashes. Its \\d is 0 to 9: few who write it mean all of Unicode's digits."""
    import llguidance

    return llguidance.regex_to_lark(regex, use_ascii="d")


def _schema(schema: Any, params: StructuredOutputsParams) -> Any:
    """The schema with its compiler's options: a keyword that cannot be kept is an error, whatever the schema asks."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if not isinstance(schema, Mapping):
        raise params.error(f"a JSON schema is an object, not a {type(schema).__name__}")
    if params.disable_additional_properties:
        schema = _closed(schema)
    options: dict[str, Any] = {"lenient": False, "coerce_one_of": False}
    if params.disable_any_whitespace:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = WHITESPACE if params.whitespace_pattern is None else params.whitespace_pattern
    return {**schema, "x-guidance": options}


def _closed(schema: Any) -> Any:
    """vLLM's reading of `disable_additional_properties`: objects with properties have no others."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if "properties" in closed or "patternProperties" in closed or "additionalProperties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
