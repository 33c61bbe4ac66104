"""Fields that several routes share. Unknown fields are ignored, as vLLM does; null means "not given"."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Whole = Annotated[int, Field(ge=-(2**63), lt=2**64)]
"""Any number that fits into 64 bits, signed or not."""


Item = TypeVar("Item")
Listed = Annotated[list[Item], Field(fail_fast=True)]
"""A list that is left at its first bad item: nobody reads of a million."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Schema(BaseModel):
    model_config = ConfigDict(extra="ignore")


class StreamOptions(Schema):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Ask(Schema):
    """What all requests that make the model compute have in common: OpenAI's field, then vLLM's and ours. `model` "":
    the one that is served."""

    model: str
    priority: Whole | None = None
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool | None = None
    explain_cache: bool | None = None


class Generation(Ask):
    """What /v1/chat/completions and /v1/completions have in common: OpenAI's fields, then vLLM's, llama.cpp's and ours.

    The ranges of sampling fields are those of `SamplingParams`, which checks them.
    """

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Whole | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Whole | None = None
    stop: Annotated[Listed[str] | None, BeforeValidator(_as_list)] = None
    logit_bias: dict[str, float] | None = None

    top_k: Whole | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: Listed[Whole] | None = None
    ignore_eos: bool | None = None
    min_tokens: Whole | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: Whole | None = None
    echo: bool | None = None
    sse_ping_interval: Whole | None = None

    response_format: dict[str, Any] | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_whitespace_pattern: Any = None
    json_schema: Any = None
    grammar: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    use_beam_search: Any = None


class Message(Schema):
    """One message. Fields beyond these two go to the chat template as they are."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Any = None


class OfTemplates(Schema):
    """What requests with messages say about how the chat template is to be used."""

    tools: Listed[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class PromptCacheOptions(Schema):
    """OpenAI's. `mode` and `ttl` change nothing: all that is read is kept, as long as there is memory. `prewarm`: the
    prompt is read into the cache, and nothing generated."""

    mode: Any = None
    ttl: Any = None
    prewarm: bool | None = None


class ChatRequest(Generation, OfTemplates):
    """POST /v1/chat/completions. `max_completion_tokens` is the newer name of `max_tokens`, and wins.
    `prompt_cache_key`, which brings requests to the machine that has their prefix, has one machine to choose from.
    `cache_breakpoints`: numbers of tokens of the prompt, see `engine/places.py`."""

    messages: Listed[Message]
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = None
    tool_choice: str | dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    prompt_cache_key: Any = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Any = None
    cache_breakpoints: Any = None


class CompletionRequest(Generation):
    """POST /v1/completions. `prompt`: text, token ids, or a list of either. `best_of` is ignored. `cache_breakpoints`:
    numbers of tokens of each prompt, see `engine/places.py`."""

    prompt: Any = None
    max_tokens: Whole | None = 16
    logprobs: Whole | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    cache_breakpoints: Any = None


class EmbeddingRequest(Ask):
    """POST /v1/embeddings. `input`: text, token ids, or a list of either. `pooling_type`: "last" or "mean"; `normalize`
    false: vectors of any length."""

    input: Any = None
    encoding_format: str | None = None
    dimensions: Whole | None = None
    add_special_tokens: bool | None = None
    normalize: bool | None = None
    pooling_type: str | None = None


class PrefixRequest(OfTemplates):
    """POST /cache/prefixes, with `prompt` (text or token ids) or with `messages`, by default without what makes the
    model answer them: the beginning of chats. `pin`: the prefix stays until it is deleted."""

    model: str | None = None
    prompt: Any = None
    messages: Listed[Message] | None = None
    cache_salt: str | None = None
    cache_breakpoints: Any = None
    priority: Whole | None = None
    pin: bool | None = None


class TokenizeRequest(OfTemplates):
    """POST /tokenize, with `prompt` or with `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Listed[Message] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Schema):
    """POST /detokenize."""

    model: str | None = None
    tokens: Listed[Whole]
