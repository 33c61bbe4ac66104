"""From what a client sends as a prompt to token ids: chat templates, text, ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from milepost.engine.places import NOWHERE, Places, kept, read_breakpoints
from milepost.errors import MilepostError, RequestError
from milepost.server.dialect import dialect_of
from milepost.server.images import as_text
from milepost.server.message_text import with_calls_spelled
from milepost.server.schemas import Message
from milepost.server.state import ChatTemplate, Engine, Model, Tokenizer

T = TypeVar("T")

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

MAX_PROMPTS = 2048

INLINE_CHARS = 2048
"""Shorter text is tokenised on the spot, longer in a thread."""

MAX_TOKEN_CHARS = 128
"""No text of a full context has more characters a token. Longer text is refused unread: tokenising it would hold up the
whole server, at about a second for each million characters."""

RESERVED_KWARGS = frozenset({"self", "messages", "conversation", "chat_template", "tokenize"})


@dataclass(frozen=True)
class Prompt:
    """Text (None when only ids were sent), its token ids, and where others may part from it, in tokens."""

    text: str | None
    ids: list[int]
    places: Places = NOWHERE

    def for_engine(self) -> dict[str, Any]:
        """As `Engine.generate` takes it."""
        return {"prompt": self.text, "prompt_token_ids": self.ids, "places": self.places}


class TemplateFields(Protocol):
    """What requests with messages can say about how the template is to be used."""

    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    add_special_tokens: bool | None
    chat_template_kwargs: dict[str, Any] | None
    reasoning_effort: str | None


async def read_conversation(engine: Engine, conversation: Sequence[Message], asked: TemplateFields) -> Prompt:
    """Messages through the model's chat template. Raises `RequestError`.

    A message, a part of its content or a tool with `"cache_control": {"type": "ephemeral"}` is a breakpoint of the
    prefix cache.
    """
    template, tokenizer = engine.chat_template, engine.tokenizer
    if template is None or tokenizer is None:
        raise RequestError("this model has no chat template", "use /v1/completions, or start with --chat-template FILE")
    messages, options = for_template(engine, template, conversation, asked)
    size = sum(len(str(message)) for message in messages)

    def read() -> Prompt:
        text = _render(template, messages, options)
        _check_length(text, engine, "messages")
        places = template.places(text, messages, **options)
        ids, places = tokenizer.encode_with(places, text, add_special_tokens=bool(asked.add_special_tokens))
        return Prompt(text, ids, places)

    return await _aside(size, read)


def for_template(
    model: Model, template: ChatTemplate, conversation: Sequence[Message], asked: TemplateFields
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Checked messages in the form that `template`, the model's, is to read, and the options of its `render`."""
    messages = [_message(i, message) for i, message in enumerate(conversation)]
    if not messages:
        raise RequestError("messages is empty", "send at least one message", param="messages")
    tools = known_tools(asked.tools) or None
    if not template.shows_calls(bool(tools)):
        messages = [with_calls_spelled(message, dialect_of(model)) for message in messages]
    return messages, {"tools": tools} | _template_kwargs(asked)


async def read_prompts(engine: Engine, prompt: Any, *, add_special_tokens: bool, param: str = "prompt") -> list[Prompt]:
    """Text, token ids, a list of texts, or a list of lists of ids, in a request's field `param`. Raises
    `RequestError`."""
    if isinstance(prompt, str):
        return await read_texts(engine, [prompt], add_special_tokens=add_special_tokens, param=param)
    if not isinstance(prompt, list) or not prompt:
        raise _bad_prompt(param)
    if _is_id(prompt[0]):
        return [_ids(prompt, param)]
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(f"at most {MAX_PROMPTS} prompts in one request, got {len(prompt)}", param=param)
    if all(isinstance(part, list) for part in prompt):
        return [_ids(part, param) for part in prompt]
    if not all(isinstance(part, str) for part in prompt):
        raise _bad_prompt(param)
    return await read_texts(engine, prompt, add_special_tokens=add_special_tokens, param=param)


def num_prompts(prompt: Any) -> int:
    """As `read_prompts` would find, before anything of them is read."""
    return len(prompt) if isinstance(prompt, list) and prompt and not _is_id(prompt[0]) else 1


async def read_texts(
    engine: Engine, texts: list[str], *, add_special_tokens: bool, param: str = "prompt"
) -> list[Prompt]:
    """Raises `RequestError` when the model has no tokenizer."""
    tokenizer = needs_tokenizer(engine, param)
    for text in texts:
        _check_length(text, engine, param)

    def read() -> list[Prompt]:
        return [Prompt(text, tokenizer.encode(text, add_special_tokens=add_special_tokens)) for text in texts]

    return await _aside(sum(map(len, texts)), read)


def known_tools(tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The functions among them. Tools of other types (a provider's own search, say) cannot be called here and are left
    out."""
    return [tool for tool in tools or () if is_function(tool)]


def is_function(tool: Mapping[str, Any]) -> bool:
    function = tool.get("function")
    return tool.get("type", "function") == "function" and isinstance(function, Mapping) and _named(function)


def _named(function: Mapping[str, Any]) -> bool:
    return isinstance(function.get("name"), str) and bool(function["name"])


def with_breakpoints(prompts: Sequence[Prompt], breakpoints: Any) -> list[Prompt]:
    """Prompts with a client's `cache_breakpoints`, which count for each, beside their own. Raises `RequestError`."""
    named = [read_breakpoints(breakpoints, len(one.ids)) for one in prompts]
    return [
        replace(one, places=Places(one.places.boundaries, kept((*one.places.breakpoints, *more))))
        for one, more in zip(prompts, named, strict=True)
    ]


def needs_tokenizer(engine: Engine, param: str | None) -> Tokenizer:
    if engine.tokenizer is None:
        raise RequestError("this model has no tokenizer", "send token ids to /v1/completions", param=param)
    return engine.tokenizer


def _check_length(text: str, engine: Engine, param: str) -> None:
    if len(text) > engine.max_model_len * MAX_TOKEN_CHARS:
        raise RequestError(
            f"This model's maximum context length is {engine.max_model_len} tokens. However, you sent {len(text)} "
            "characters, which are more tokens than that. Please reduce the length of the messages or completion.",
            code="context_length_exceeded",
            param=param,
        )


async def _aside(size: int, work: Callable[[], T]) -> T:
    return work() if size < INLINE_CHARS else await asyncio.to_thread(work)


def _message(place: int, message: Message) -> dict[str, Any]:
    """Content's form is the chat template's to check."""
    if message.role not in ROLES:
        raise _bad_message(place, f"role must be one of {', '.join(ROLES)}")
    if message.content is None and message.role != "assistant":
        raise _bad_message(place, "content must be text or a list of text parts")
    return {"role": message.role, "content": as_text(message.content), **(message.model_extra or {})}


def _template_kwargs(asked: TemplateFields) -> dict[str, Any]:
    if asked.add_generation_prompt and asked.continue_final_message:
        raise RequestError(
            "add_generation_prompt and continue_final_message cannot both be true",
            "leave one out",
            param="continue_final_message",
        )
    given = asked.chat_template_kwargs or {}
    reserved = RESERVED_KWARGS.intersection(given)
    if reserved:
        raise RequestError(f"chat_template_kwargs cannot hold {min(reserved)}", param="chat_template_kwargs")
    continues = bool(asked.continue_final_message)
    generates = not continues if asked.add_generation_prompt is None else asked.add_generation_prompt
    options = {"add_generation_prompt": generates, "continue_final_message": continues}
    return options | _effort(asked.reasoning_effort) | given


def _effort(effort: str | None) -> dict[str, Any]:
    """Variables that templates know: the effort itself, and of many the one that turns thinking off."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})


def _render(template: ChatTemplate, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
    """A template is a program, and a message may be what its author did not think of: that is the request's error."""
    try:
        return template.render(messages, **options)
    except MilepostError:
        raise
    except Exception as error:
        raise RequestError(
            f"the model's chat template cannot put these messages into text ({type(error).__name__})",
            "check roles, their order, and content",
            param="messages",
        ) from error


def _ids(ids: list[Any], param: str) -> Prompt:
    if not all(_is_id(token) for token in ids):
        raise _bad_prompt(param)
    return Prompt(None, ids)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad_prompt(param: str) -> RequestError:
    return RequestError(
        f"{param} must be text, a list of texts, a list of token ids, or a list of lists of token ids", param=param
    )


def _bad_message(place: int, message: str) -> RequestError:
    return RequestError(f"messages.{place}.{message}", param="messages")
