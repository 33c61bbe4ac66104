"""GET /openapi.json: every route, the fields it takes, and what each answer has, for tools that read OpenAPI 3.1."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from milepost import __version__
from milepost.server.anthropic_errors import speaks_anthropic
from milepost.server.anthropic_schemas import CountRequest, MessagesRequest
from milepost.server.errors import ApiResponse
from milepost.server.hosts import OPEN_PATHS
from milepost.server.responses_schemas import InputTokensRequest, ResponsesRequest
from milepost.server.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    PrefixRequest,
    TokenizeRequest,
)
from milepost.server.state import server_state

router = APIRouter()

SCHEMAS = "#/components/schemas/"
TEXT: dict[str, Any] = {"type": "string"}
JSON, EVENTS, PLAIN = "application/json", "text/event-stream", "text/plain"


@dataclass(frozen=True)
class Route:
    """`tells`: fields that every success has. `body`: what it takes. `streams`: it can answer in events. `query`:
    parameters of its address."""

    tells: tuple[str, ...] = ()
    body: type[BaseModel] | None = None
    streams: bool = False
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


ANSWER = ("id", "object", "created", "model", "system_fingerprint", "choices", "usage")
RESPONSE = ("id", "object", "created_at", "model", "status", "output", "usage", "error", "incomplete_details")
MESSAGE = ("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage")
RENDERED = ("request_id", "model", "prompt", "token_ids", "boundaries", "breakpoints", "sampling_params", "stream")
MODEL = ("id", "object", "created", "owned_by", "max_model_len", "type", "display_name", "created_at")
LIST = ("object", "data", "first_id", "last_id", "has_more")
PAGE: dict[str, Mapping[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    "order": {"enum": ["asc", "desc"]},
    "after": TEXT,
}

ROUTES: dict[tuple[str, str], Route] = {
    ("get", "/health"): Route(("status",)),
    ("get", "/ping"): Route(("status",)),
    ("get", "/version"): Route(("version",)),
    ("get", "/metrics"): Route(),
    ("get", "/openapi.json"): Route(("openapi", "info", "paths")),
    ("get", "/v1/models"): Route(LIST),
    ("get", "/v1/models/{name}"): Route(MODEL),
    ("post", "/v1/chat/completions"): Route(ANSWER, ChatRequest, streams=True),
    ("post", "/v1/chat/completions/render"): Route(RENDERED, ChatRequest),
    ("post", "/v1/completions"): Route(ANSWER, CompletionRequest, streams=True),
    ("post", "/v1/embeddings"): Route(("object", "data", "model", "usage"), EmbeddingRequest),
    ("post", "/v1/responses"): Route(RESPONSE, ResponsesRequest, streams=True),
    ("post", "/v1/responses/input_tokens"): Route(("object", "input_tokens"), InputTokensRequest),
    ("post", "/v1/responses/compact"): Route(),
    ("get", "/v1/responses/{response_id}"): Route(RESPONSE, query={"stream": {"type": "boolean"}}),
    ("delete", "/v1/responses/{response_id}"): Route(("id", "object", "deleted")),
    ("post", "/v1/responses/{response_id}/cancel"): Route(RESPONSE),
    ("get", "/v1/responses/{response_id}/input_items"): Route(LIST, query=PAGE),
    ("post", "/v1/messages"): Route(MESSAGE, MessagesRequest, streams=True),
    ("post", "/v1/messages/count_tokens"): Route(("input_tokens",), CountRequest),
    ("post", "/tokenize"): Route(("count", "max_model_len", "tokens", "token_strs"), TokenizeRequest),
    ("get", "/tokenizer_info"): Route(("tokenizer_class", "bos_token", "eos_token", "chat_template")),
    ("post", "/detokenize"): Route(("prompt",), DetokenizeRequest),
    ("get", "/cache"): Route(("policy", "bytes", "checkpoints", "counters"), query={"tree": {"type": "boolean"}}),
    ("get", "/cache/requests"): Route(("requests",), query={"last": {"type": "integer", "minimum": 1, "maximum": 256}}),
    ("post", "/cache/prefixes"): Route(("object", "id", "num_tokens", "pinned"), PrefixRequest),
    ("get", "/cache/prefixes"): Route(("object", "data", "pinned_bytes", "max_pinned_bytes")),
    ("delete", "/cache/prefixes/{prefix_id}"): Route(("id", "object", "deleted")),
    ("post", "/reset_prefix_cache"): Route(("success",)),
}
"""All but the page, which is for people."""


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return ApiResponse(document(asks_for_key=bool(server_state(request).settings.keys)))


def document(asks_for_key: bool) -> dict[str, Any]:
    """The whole of it."""
    bodies = {route.body for route in ROUTES.values() if route.body is not None}
    inputs = [(body, "validation") for body in sorted(bodies, key=lambda body: body.__name__)]
    _, found = models_json_schema(inputs, ref_template=SCHEMAS + "{model}")  # type: ignore[arg-type]
    paths: dict[str, Any] = {}
    for (method, path), route in ROUTES.items():
        paths.setdefault(path, {})[method] = _operation(method, path, route)
    components = {"schemas": {**found["$defs"], **_errors()}}
    told = {"openapi": "3.1.0", "info": {"title": "Milepost", "version": __version__}, "paths": paths}
    if not asks_for_key:
        return {**told, "components": components}
    keys = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {**told, "components": {**components, "securitySchemes": keys}, "security": [{name: []} for name in keys]}


def _operation(method: str, path: str, route: Route) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in route.query.items()]
    error = "AnthropicError" if speaks_anthropic(path) else "Error"
    success = {PLAIN: TEXT} if path == "/metrics" else {JSON: _object(route.tells)}
    success |= {EVENTS: {}} if route.streams else {}  # a schema there would be of each event
    failure = {JSON: _object(("status",)) if path in ("/health", "/ping") else {"$ref": SCHEMAS + error}}
    responses = {
        "200": _answer("success", success),
        "4XX": _answer("an error of the request's", {JSON: {"$ref": SCHEMAS + error}}),
        "5XX": _answer("an error of the server's, or it is not ready", failure),
    }
    told: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", method + path).strip("_"),
        "parameters": parameters,
        "responses": responses,
    }
    if route.body is not None:
        content = {JSON: {"schema": {"$ref": SCHEMAS + route.body.__name__}}}
        told["requestBody"] = {"required": True, "content": content}
    return told | ({"security": []} if path in OPEN_PATHS else {})


def _answer(description: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema} for kind, schema in schemas.items()}}


def _object(required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "required": list(required)}


def _errors() -> dict[str, Any]:
    told = {"message": TEXT, "type": TEXT}
    openai = told | {"param": {"type": ["string", "null"]}, "code": {"type": ["string", "integer", "null"]}}
    error = _exactly(told | {"details": {"type": "object"}}) | {"required": [*told]}
    anthropic = _object(("type", "error")) | {"properties": {"type": {"const": "error"}, "error": error}}
    return {
        "Error": _object(("error",)) | {"properties": {"error": _exactly(openai)}},
        "AnthropicError": anthropic,
    }


def _exactly(properties: Mapping[str, Any]) -> dict[str, Any]:
    return _object([*properties]) | {"properties": dict(properties), "additionalProperties": False}
