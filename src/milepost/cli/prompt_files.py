"""Prompts in files: text, or what a client would send as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from milepost.engine.places import NOWHERE, Places, read_breakpoints
from milepost.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from milepost.engine.chat import ChatTemplate
    from milepost.engine.tokenizer import Tokenizer
    from milepost.server.schemas import PrefixRequest


@dataclass(frozen=True)
class FileModel:
    """What of a model's files makes prompts."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    vocab_size: int


@dataclass(frozen=True)
class FilePrompt:
    """`name` of the file; `messages` and `tools` where it was a chat, and `settings`, how its template was asked.
    `places`: of the tokens, where the cache expects others to part."""

    name: str
    text: str
    ids: list[int]
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    places: Places = NOWHERE


def read_file(name: str) -> str:
    """`-`: stdin. ConfigError for what is no text."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no file at {name}", "give a file of text or of JSON messages, or - for stdin") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is no UTF-8 text", "save it as UTF-8") from None


def read_body(name: str, content: str) -> dict[str, Any]:
    """What a client would send of `content`: its JSON, if it is messages or the body of a request, else it is text."""
    return _body(name, content) or {"prompt": content}


def read_request(name: str, body: dict[str, Any]) -> PrefixRequest:
    """As a server would check it. ConfigError that names the file and the field."""
    from pydantic import ValidationError

    from milepost.server.schemas import PrefixRequest

    try:
        return PrefixRequest.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in found["loc"])
        raise ConfigError(f"{name}: {field}: {found['msg']}", "mend the file") from None


def read_prompt(name: str, content: str, model: FileModel) -> FilePrompt:
    """The prompt that a server would make of `content`. Messages, in a list or in the body of a request, go through the
    template; the `prompt` of a body, and all other content, is text (or token ids) as it is."""
    request = read_request(name, read_body(name, content))
    if request.messages is None:
        found = _plain(name, request.prompt, model)
        return replace(found, places=Places((), read_breakpoints(request.cache_breakpoints, len(found.ids))))
    from milepost.engine.inputs import chat_prompt
    from milepost.server.prompts import for_template

    template = model.chat_template
    if template is None:
        raise RequestError("this model has no chat template", "give one with --chat-template FILE")
    messages, options = for_template(model, template, request.messages, request)
    special = bool(request.add_special_tokens)
    chat = chat_prompt(template, model.tokenizer, messages, add_special_tokens=special, **options)
    tools = options.pop("tools")
    return FilePrompt(name, chat["prompt"], chat["prompt_token_ids"], messages, tools, options, chat["places"])


def _plain(name: str, prompt: Any, model: FileModel) -> FilePrompt:
    if isinstance(prompt, str):
        return FilePrompt(name, prompt, model.tokenizer.encode(prompt))
    if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
        raise ConfigError(f"{name}: prompt must be text or a list of token ids", "give one prompt in a file")
    strange = next((token for token in prompt if not 0 <= token < model.vocab_size), None)
    if strange is not None:
        last = model.vocab_size - 1
        raise ConfigError(f"{name}: token id {strange} is not in the vocabulary (0 to {last})", "mend the file")
    return FilePrompt(name, model.tokenizer.decode(prompt, skip_special_tokens=False), prompt)


def _body(name: str, content: str) -> dict[str, Any] | None:
    """Of JSON that is a request or a list of messages; None: it is plain text."""
    if content.lstrip()[:1] not in ("{", "["):
        return None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        if name.endswith(".json"):
            raise ConfigError(f"{name} is not valid JSON: {error}", "mend it, or rename it if it is text") from None
        return None
    if isinstance(found, list) and found and all(isinstance(one, dict) and "role" in one for one in found):
        return {"messages": found}
    return found if isinstance(found, dict) and ("messages" in found or "prompt" in found) else None
