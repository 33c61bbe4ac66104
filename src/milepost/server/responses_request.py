"""A request of the Responses API as one of /v1/chat/completions, which all that follows can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from milepost.errors import RequestError
from milepost.server.fields import OpenAIMessage, bad
from milepost.server.prompts import is_function
from milepost.server.responses_items import ResponseItem, messages_of, read_items
from milepost.server.responses_schemas import InputTokensRequest, ResponsesRequest
from milepost.server.responses_store import ResponseStore, Turn, history, not_found
from milepost.server.schemas import ChatRequest, Message
from milepost.server.structured import read_format

LOGPROBS = "message.output_text.logprobs"

SAME_FIELDS = (
    "stream",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "stop",
    "logit_bias",
    "structured_outputs",
    "priority",
    "cache_salt",
    "skip_reading_prefix_cache",
    "sse_ping_interval",
    "explain_cache",
)

ELSEWHERE = {
    "conversation": "this server keeps no conversations: send previous_response_id, or the items themselves",
    "prompt": "this server keeps no prompt templates: send instructions and input",
}
"""Fields that name something another server has. Without it the input would not be what the client means."""

TRUNCATIONS = (None, "disabled", "auto")


@dataclass(frozen=True)
class ReadResponse:
    """`chat`: the request in the form of chats; `items`: its own input; `parent`: the response it goes on from;
    `skipped_tools`: types of tools that cannot be called here."""

    chat: ChatRequest
    items: list[ResponseItem]
    parent: Turn | None
    skipped_tools: tuple[str, ...]


def read_request(asked: InputTokensRequest, store: ResponseStore) -> ReadResponse:
    """Raises `RequestError` that names the field or item which cannot be read."""
    _check(asked)
    parent = None
    if asked.previous_response_id is not None:
        parent = store.get(asked.previous_response_id)
        if parent is None:
            raise not_found(asked.previous_response_id, "previous_response_id")
    items = read_items(asked.input, store.output_items())
    messages = _with_instructions(asked.instructions, messages_of([*history(parent), *items]))
    if not messages:
        raise bad("input", "is empty", "send text, or at least one item")
    tools = [_tool(tool) for tool in asked.tools or ()]
    chat = ChatRequest(
        model=asked.model or "",
        messages=[Message(**message) for message in messages],
        tools=[tool for tool in tools if is_function(tool)] or None,
        tool_choice=_choice(asked.tool_choice),
        parallel_tool_calls=asked.parallel_tool_calls,
        reasoning_effort=asked.reasoning.effort if asked.reasoning else None,
        chat_template_kwargs=asked.chat_template_kwargs,
        **(_generation(asked) if isinstance(asked, ResponsesRequest) else {}),
    )
    return ReadResponse(chat, items, parent, tuple(_kind(tool) for tool in tools if not is_function(tool)))


def wants_logprobs(asked: ResponsesRequest) -> bool:
    return LOGPROBS in (asked.include or ())


def prewarms(asked: ResponsesRequest) -> bool:
    return bool(asked.prompt_cache_options and asked.prompt_cache_options.prewarm)


def _check(asked: InputTokensRequest) -> None:
    for name, hint in ELSEWHERE.items():
        if getattr(asked, name) is not None:
            raise RequestError(f"{name} is not supported by this server", hint, param=name)
    if asked.truncation not in TRUNCATIONS:
        raise bad("truncation", 'must be "auto" or "disabled"')
    if asked.text is not None and asked.text.format is not None:
        read_format(asked.text.format, "text.format")


def _generation(asked: ResponsesRequest) -> dict[str, Any]:
    fields = {name: getattr(asked, name) for name in SAME_FIELDS}
    form = asked.text.format if asked.text else None
    return {**fields, "max_tokens": 0 if prewarms(asked) else asked.max_output_tokens, "response_format": form}


def _with_instructions(instructions: str | None, messages: Sequence[OpenAIMessage]) -> list[OpenAIMessage]:
    """What comes first for the model is one message: many templates take no second system message."""
    first = list(takewhile(lambda message: message["role"] in ("system", "developer"), messages))
    rest = messages[len(first) :]
    if instructions:
        first.insert(0, {"role": "system", "content": [{"type": "text", "text": instructions}]})
    if len(first) < 2:
        return [*first, *rest]
    return [{"role": "system", "content": [part for message in first for part in message["content"]]}, *rest]


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function in the form of chats; others as they are."""
    if tool.get("type") != "function":
        return {"type": _kind(tool)}
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) not in (None, False, "")}
    return {"type": "function", "function": function}


def _kind(tool: Mapping[str, Any]) -> str:
    return str(tool.get("type") or "unknown")


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Chats name a function one level deeper. What is none of these goes on, to be refused."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function" and "function" not in choice:
        return _named(choice)
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        functions = [_named(tool) for tool in choice["tools"] if _is_named_function(tool)]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": functions}}
    return choice


def _is_named_function(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "function"


def _named(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": choice.get("name")}}
