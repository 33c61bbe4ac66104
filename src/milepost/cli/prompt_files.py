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

OF_THE_TEMPLATE = ("add_generation_prompt", "continue_final_message")


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


def read_prompt(name: str, content: str, tokenizer: Tokenizer, template: ChatTemplate | None) -> FilePrompt:
    """The prompt that a server would make of `content`. Messages, in a list or in the body of a request, go through the
    template; the `prompt` of a body, and all other content, is text (or token ids) as it is."""
    body = _body(name, content)
    if body is None or "messages" not in body:
        found = _plain(name, content if body is None else body["prompt"], tokenizer)
        breakpoints = read_breakpoints((body or {}).get("cache_breakpoints"), len(found.ids))
        return replace(found, places=Places((), breakpoints))
    if template is None:
        raise RequestError("this model has no chat template", "give one with --chat-template FILE")
    continues = bool(body.get("continue_final_message"))
    settings: dict[str, Any] = {"add_generation_prompt": not continues}
    settings |= {key: body[key] for key in OF_THE_TEMPLATE if body.get(key) is not None}
    settings |= body.get("chat_template_kwargs") or {}
    tools = body.get("tools") or None
    text = template.render(body["messages"], tools=tools, **settings)
    places = template.places(text, body["messages"], tools=tools, **settings)
    ids, places = tokenizer.encode_with(places, text, add_special_tokens=bool(body.get("add_special_tokens")))
    return FilePrompt(name, text, ids, body["messages"], tools, settings, places)


def _plain(name: str, prompt: Any, tokenizer: Tokenizer) -> FilePrompt:
    if isinstance(prompt, str):
        return FilePrompt(name, prompt, tokenizer.encode(prompt))
    if isinstance(prompt, list) and all(isinstance(token, int) and 0 <= token < 2**31 for token in prompt):
        return FilePrompt(name, tokenizer.decode(prompt, skip_special_tokens=False), prompt)
    raise ConfigError(f"{name}: prompt must be text or a list of token ids", "give one prompt in a file")


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
