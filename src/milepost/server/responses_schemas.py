"""Fields of OpenAI's Responses API. Input items stay as they were sent: `responses_items.py` reads them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from milepost.server.schemas import Listed, PromptCacheOptions, Schema, StreamOptions, Whole

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
"""The API's own limits."""


class TextConfig(Schema):
    """`format` is what a chat calls `response_format`, one level higher. `verbosity` is told back and does nothing."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningConfig(Schema):
    """`summary` is told back and does nothing: the reasoning itself is in the answer."""

    effort: str | None = None
    summary: str | None = None


class CacheOptions(PromptCacheOptions):
    """`comparison_response_id`: see `responses_diagnostics.py`."""

    comparison_response_id: str | None = None


class InputTokensRequest(Schema):
    """POST /v1/responses/input_tokens: what makes the prompt. Then vLLM's `chat_template_kwargs`."""

    model: str | None = None
    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Listed[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: str | None = None
    conversation: Any = None
    prompt: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class ResponsesRequest(InputTokensRequest):
    """POST /v1/responses: OpenAI's fields; then those of vLLM, llama.cpp and ours that mean the same in every API."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    include: Listed[str] | None = None
    max_output_tokens: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Whole | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Any = None

    top_k: Whole | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: Whole | None = None
    stop: str | Listed[str] | None = None
    logit_bias: dict[str, float] | None = None
    structured_outputs: Any = None
    priority: Whole | None = None
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool | None = None
    sse_ping_interval: Whole | None = None
    explain_cache: bool | None = None
