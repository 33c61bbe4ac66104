"""A request of Anthropic's API as one of OpenAI's, which all that follows can read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from milepost.engine.chat_messages import CACHE_CONTROL
from milepost.server.anthropic_blocks import (
    Block,
    assistant_message,
    blocks_of,
    call_names,
    text_parts,
    user_messages,
)
from milepost.server.anthropic_schemas import CountRequest, MessagesRequest
from milepost.server.fields import OpenAIMessage, bad
from milepost.server.schemas import ChatRequest, Message

BILLING = "x-anthropic-billing-header"
"""How a system block begins that a coding agent sends for its maker's accounting. It differs from request to request:
no prompt would begin like another."""

ROLES = ("user", "assistant", "system")

CHOICES = {"auto": "auto", "any": "required", "none": "none"}

SAME_FIELDS = (
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "priority",
    "cache_salt",
    "skip_reading_prefix_cache",
    "explain_cache",
    "sse_ping_interval",
)


@dataclass(frozen=True)
class Read:
    """`chat`: the request in OpenAI's shape. What is not in it: `removed`, of the client's prompt; `skipped_tools`, the
    types of tools that come without a schema, since only models made for them know what they take."""

    chat: ChatRequest
    removed: tuple[str, ...]
    skipped_tools: tuple[str, ...]


def read_request(asked: CountRequest) -> Read:
    """Raises `RequestError` that names the block which cannot be read."""
    system, removed = _system(asked.system)
    messages = [*system, *_conversation(asked)]
    if asked.cache_control and messages:
        messages[-1][CACHE_CONTROL] = asked.cache_control  # the last block that can be cached
    known = [tool for tool in asked.tools or () if isinstance(tool.get("input_schema"), dict)]
    skipped = [tool for tool in asked.tools or () if not isinstance(tool.get("input_schema"), dict)]
    continues = messages[-1]["role"] == "assistant" and bool(messages[-1]["content"]) if messages else False
    chat = ChatRequest(
        model=asked.model,
        messages=[Message(**message) for message in messages],
        tools=[_tool(tool) for tool in known] or None,
        tool_choice=_choice(asked.tool_choice),
        parallel_tool_calls=False if (asked.tool_choice or {}).get("disable_parallel_tool_use") is True else None,
        chat_template_kwargs=_thinking(asked.thinking) | (asked.chat_template_kwargs or {}),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        **(_generation(asked) if isinstance(asked, MessagesRequest) else {}),
    )
    return Read(chat, removed, tuple(str(tool.get("type") or "unknown") for tool in skipped))


def _generation(asked: MessagesRequest) -> dict[str, Any]:
    fields = {name: getattr(asked, name) for name in SAME_FIELDS}
    form = (asked.output_config or {}).get("format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {"name": "output", "schema": form.get("schema"), "strict": True}
        form = {"type": "json_schema", "json_schema": schema}
    return {**fields, "max_tokens": asked.max_tokens, "stop": asked.stop_sequences, "response_format": form}


def without_billing(system: Any) -> list[Block]:
    """The blocks of `system` that are for the model. Raises `RequestError` for what is no text and no blocks."""
    blocks = [] if system is None else blocks_of(system, "system")
    return [block for block in blocks if not str(block.get("text")).lstrip().startswith(f"{BILLING}:")]


def _system(system: Any) -> tuple[list[OpenAIMessage], tuple[str, ...]]:
    kept = without_billing(system)
    parts = [part for part in text_parts(kept, "system") if part["text"]]
    removed = (BILLING,) if isinstance(system, list) and len(kept) < len(system) else ()
    return ([{"role": "system", "content": parts}] if parts else []), removed


def _conversation(asked: CountRequest) -> Iterator[OpenAIMessage]:
    names: dict[str, str] = {}
    for role, blocks, where in _turns(asked):
        if role == "assistant":
            names |= call_names(blocks)
            yield assistant_message(blocks, where)
        elif role == "user":
            yield from user_messages(blocks, where, names)
        else:
            yield {"role": role, "content": text_parts(blocks, where)}


def _turns(asked: CountRequest) -> Iterator[tuple[str, list[Block], str]]:
    """Messages of one role in a row are one turn, as in Anthropic's API."""
    numbered = enumerate(asked.messages)
    for role, group in groupby(numbered, key=lambda one: one[1].role):
        messages = list(group)
        where = f"messages.{messages[0][0]}"
        if role not in ROLES:
            raise bad(f"{where}.role", f"must be one of {', '.join(ROLES)}")
        blocks = [blocks_of(message.content, f"messages.{i}.content") for i, message in messages]
        if not all(blocks):
            raise bad(f"{where}.content", "must have at least one block")
        yield role, list(chain(*blocks)), f"{where}.content"


def _tool(tool: Block) -> dict[str, Any]:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise bad("tools", "each must have a name")
    function: dict[str, Any] = {"name": name}
    if tool.get("description"):
        function["description"] = tool["description"]
    function["parameters"] = tool["input_schema"]
    if tool.get("strict"):
        function["strict"] = True
    return {"type": "function", "function": function} | (
        {CACHE_CONTROL: tool[CACHE_CONTROL]} if tool.get(CACHE_CONTROL) else {}
    )


def _choice(choice: dict[str, Any] | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    kind = choice.get("type")
    if isinstance(kind, str) and kind in CHOICES:
        return CHOICES[kind]
    if kind == "tool" and isinstance(choice.get("name"), str):
        return {"type": "function", "function": {"name": choice["name"]}}
    raise bad("tool_choice", "must be of type auto, any, none, or tool with a name")


def _thinking(thinking: dict[str, Any] | None) -> dict[str, Any]:
    """Under the two names by which templates ask for it. Not asked for: as the template has it."""
    kind = (thinking or {}).get("type")
    return {} if kind is None else dict.fromkeys(("enable_thinking", "thinking"), kind != "disabled")
