"""Fields of Anthropic's Messages API. Blocks stay as they were sent: `anthropic_prompt.py` reads them."""

from __future__ import annotations

from typing import Any

from milepost.server.schemas import Listed, Schema, Whole


class InputMessage(Schema):
    """`content`: text, or a list of blocks."""

    role: str
    content: Any = None


class CountRequest(Schema):
    """POST /v1/messages/count_tokens: what makes the prompt. Then vLLM's `chat_template_kwargs`."""

    model: str
    messages: Listed[InputMessage]
    system: Any = None
    tools: Listed[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    thread: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    """POST /v1/messages: Anthropic's fields; then those of vLLM, llama.cpp and ours that mean the same in every API."""

    max_tokens: Whole
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    stop_sequences: Listed[str] | None = None
    output_config: dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None

    min_p: float | None = None
    seed: Whole | None = None
    priority: Whole | None = None
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool | None = None
    sse_ping_interval: Whole | None = None
    explain_cache: bool | None = None
