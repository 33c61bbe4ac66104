"""From what a caller gives as a prompt to checked token ids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeGuard

from milepost.engine.chat import ChatTemplate
from milepost.engine.grammars import CompiledGrammar
from milepost.engine.places import NOWHERE, Places, kept, read_breakpoints
from milepost.engine.served_model import ServedModel
from milepost.engine.tokenizer import Tokenizer
from milepost.errors import MilepostError, RequestError, RequestFailed
from milepost.sampling_params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids (a list, or any iterable of them: an array, a generator), {"prompt": text} or
{"prompt_token_ids": ids}. A dict may say where prompts are expected to part from this one:
"cache_breakpoints", numbers of tokens that lie before each such place, ascending."""


MAX_QUOTED = 40
"""Characters that an error shows of what is no token id."""


@dataclass(frozen=True)
class PromptTokens:
    """A prompt as read: its text if it came as text, its token ids, and where others may part from it, in tokens."""

    text: str | None
    ids: list[int]
    places: Places = NOWHERE


def read_prompt(prompt: Prompt, model: ServedModel) -> PromptTokens:
    """Tokenises and checks; raises `RequestError` for what the model cannot read."""
    text, ids = _split(prompt)
    if ids is None:
        ids = _tokenise(text or "", model)
    _check(ids, model)
    return PromptTokens(text, ids, _places(prompt, len(ids)) if isinstance(prompt, Mapping) else NOWHERE)


def chat_prompt(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    /,
    *,
    add_special_tokens: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Messages as a prompt for `read_prompt`; `options` are those of `ChatTemplate.render`, whose errors it raises."""
    text = template.render(messages, **options)
    ids, places = tokenizer.encode_with(template.places(text, messages, **options), text, add_special_tokens)
    return {"prompt": text, "prompt_token_ids": ids, "places": places}


def read_chat(messages: Sequence[Mapping[str, Any]], model: ServedModel, asked: Mapping[str, Any]) -> dict[str, Any]:
    """`chat_prompt` by the model's own template, which is told what is `asked`. RequestError where it has none."""
    if model.chat_template is None or model.tokenizer is None:
        raise RequestError("this model has no chat template", "use generate, or give chat_template=")
    return chat_prompt(model.chat_template, model.tokenizer, messages, **asked)


def is_chat(prompt: Prompt | Sequence[Mapping[str, Any]]) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Whether it is the messages of one."""
    first: Any = prompt[0] if isinstance(prompt, Sequence) and len(prompt) else None
    return isinstance(first, Mapping)


def check_params(params: SamplingParams, model: ServedModel) -> None:
    """What `SamplingParams` alone cannot know: ids beyond the vocabulary, and text where there is no tokenizer."""
    for name, tokens in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias)):
        for token in tokens or ():
            if token >= model.vocab_size:
                raise RequestError(
                    f"{name} has token id {token}, but the vocabulary ends at {model.vocab_size - 1}", param=name
                )
    if params.stops and model.tokenizer is None:
        raise RequestError("stop strings need a tokenizer, and this model has none", "use stop_token_ids", param="stop")


def read_grammar(params: SamplingParams, model: ServedModel) -> Future[CompiledGrammar] | None:
    """The grammar that answers must keep, made in a thread of its own; None where none is asked for. RequestError, here
    or in the future, for one that cannot be kept."""
    asked = params.structured_outputs
    if asked is None:
        return None
    if model.grammars is None:
        raise asked.error("structured outputs need a tokenizer, and this model has none", f"leave {asked.param} out")
    return model.grammars.compile(asked)


def max_output_tokens(params: SamplingParams, num_prompt_tokens: int, max_model_len: int) -> int:
    """Tokens that a sample may have before it ends with "length"."""
    room = max_model_len - num_prompt_tokens
    return room if params.max_tokens is None else min(params.max_tokens, room)


def _split(prompt: Prompt) -> tuple[str | None, list[int] | None]:
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, Mapping):
        if prompt.get("prompt_token_ids") is not None:
            return prompt.get("prompt"), id_list(prompt["prompt_token_ids"])
        if isinstance(prompt.get("prompt"), str):
            return prompt["prompt"], None
        raise RequestError("a prompt dict needs 'prompt' or 'prompt_token_ids'", param="prompt")
    return None, id_list(prompt)


def id_list(ids: Any) -> list[int]:
    """Of any iterable of whole numbers, arrays and tensors too, a list of Python's; what else is in it stays as it is.
    RequestError for what is no iterable."""
    try:
        listed = list(ids.tolist() if hasattr(ids, "tolist") else ids)
    except TypeError:
        raise RequestError(
            f"a prompt is text or token ids, not a {type(ids).__name__}", "send a list of ids", param="prompt"
        ) from None
    if all(type(token) is int for token in listed):
        return listed
    return [int(token) if is_id(token) else token for token in listed]


def is_id(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _places(prompt: Mapping[str, Any], num_tokens: int) -> Places:
    """Those that `chat_prompt` found, and the caller's own."""
    found: Places = prompt.get("places") or NOWHERE
    named = read_breakpoints(prompt.get("cache_breakpoints"), num_tokens)
    return Places(found.boundaries, kept((*found.breakpoints, *named)))


def _tokenise(text: str, model: ServedModel) -> list[int]:
    if model.tokenizer is None:
        raise RequestError(
            "this model has no tokenizer", 'send token ids: {"prompt_token_ids": [1, 2, 3]}', param="prompt"
        )
    try:
        return model.tokenizer.encode(text)
    except MilepostError:
        raise
    except Exception as error:
        raise RequestFailed("the tokenizer failed on this text", "send token ids instead") from error


def _check(ids: list[int], model: ServedModel) -> None:
    if not ids:
        raise RequestError("the prompt is empty", "send at least one token", param="prompt")
    if len(ids) >= model.max_model_len:
        raise context_overflow(len(ids), None, model.max_model_len)
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < model.vocab_size:
            raise RequestError(
                f"token id {repr(token)[:MAX_QUOTED]} is not in the vocabulary (0 to {model.vocab_size - 1})",
                param="prompt",
            )


def context_overflow(num_prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> RequestError:
    """The error of OpenAI's API for a prompt (and a demanded answer) that the context cannot hold."""
    total = num_prompt_tokens + (max_tokens or 0)
    parts = f"{num_prompt_tokens} in the messages"
    if max_tokens is not None and math.isfinite(max_tokens):
        parts += f", {max_tokens} in the completion"
    return RequestError(
        f"This model's maximum context length is {max_model_len} tokens. However, you requested {total} tokens "
        f"({parts}). Please reduce the length of the messages or completion.",
        code="context_length_exceeded",
        param="messages",
    )
