"""What a request says its answer must look like: OpenAI's `response_format`, vLLM's `structured_outputs` and the older
`guided_...`, llama.cpp's `json_schema` and `grammar`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.errors import RequestError
from milepost.server.schemas import Generation
from milepost.structured_outputs import StructuredOutputsParams

FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "grammar": "grammar",
}
"""Fields of a request that are fields of `StructuredOutputsParams` by other names."""

KINDS = ("json", "regex", "choice", "grammar", "json_object")
OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def structured_outputs(body: Generation) -> StructuredOutputsParams | None:
    """None where any answer will do. RequestError for what cannot be kept, and for two constraints at once."""
    given: dict[str, dict[str, Any]] = {}
    if body.response_format is not None:
        given["response_format"] = read_format(body.response_format, "response_format")
    given |= {field: {kind: getattr(body, field)} for field, kind in FIELDS.items() if getattr(body, field) is not None}
    if body.structured_outputs is not None:
        given["structured_outputs"] = _of_vllm(body.structured_outputs)
    settings: dict[str, Any] = {}
    if body.guided_whitespace_pattern is not None:
        settings["whitespace_pattern"] = body.guided_whitespace_pattern
    for asked in given.values():
        settings |= {name: value for name, value in asked.items() if name in OPTIONS}
    constraining = [field for field, asked in given.items() if any(name in KINDS for name in asked)]
    if not constraining:
        return StructuredOutputsParams(**settings) if body.structured_outputs is not None else None
    if len(constraining) > 1:
        raise RequestError(
            f"{' and '.join(constraining)} cannot be kept at once", "send one of them", param=constraining[1]
        )
    (field,) = constraining
    kinds = {name: value for name, value in given[field].items() if name in KINDS}
    return StructuredOutputsParams(**kinds, **settings, param=field)


def read_format(format: Mapping[str, Any], param: str) -> dict[str, Any]:
    """Fields of `StructuredOutputsParams` for a `response_format`, or for a `text.format` of the Responses API, whose
    schema lies one level higher. `strict` makes no difference: a schema is kept in any case."""
    kind = format.get("type", "text")
    if kind == "text":
        return {}
    if kind == "json_object":  # llama.cpp takes a schema here
        schema = format.get("schema")
        return {"json_object": True} if schema is None else {"json": schema}
    if kind == "json_schema":
        inner = format.get("json_schema", format)
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if schema is None:
            raise RequestError(f"{param} of type json_schema has no schema", f"put it into {param}", param=param)
        return {"json": schema}
    raise RequestError(
        f"{param} of type {str(kind)[:40]!r} is not supported by this server",
        "use text, json_object or json_schema",
        param=param,
    )


def _of_vllm(asked: Any) -> dict[str, Any]:
    """The fields that we know; null means "not given", and unknown ones are ignored."""
    if not isinstance(asked, Mapping):
        raise RequestError("structured_outputs must be an object", "see docs/serving.md", param="structured_outputs")
    if asked.get("structural_tag") is not None:
        raise RequestError(
            "structured_outputs.structural_tag is not supported by this server",
            f"use one of {', '.join(KINDS)}",
            param="structured_outputs",
        )
    return {name: asked[name] for name in (*KINDS, *OPTIONS) if asked.get(name) is not None}
