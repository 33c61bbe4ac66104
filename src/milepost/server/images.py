"""Images in messages, which no model here can see.

Agents send what their tools see, and a conversation with one screenshot in it would be refused from then on. So a line
that says what is missing stands in an image's place, for the model to read, and a header of the answer names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Request

from milepost.engine.chat_messages import CACHE_BREAKPOINT, CACHE_CONTROL
from milepost.server.ignored import note
from milepost.server.schemas import Message

IMAGES = ("image_url", "image", "input_image")
"""Kinds of content parts: OpenAI's, Anthropic's, the Responses API's."""

UNSEEN = "[image omitted: this model reads text only]"

PARTS = "X-Milepost-Unseen-Parts"


def is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("type"), str) and part["type"] in IMAGES


def as_text(content: Any) -> Any:
    """Content with lines of text in place of its images, which keep their marks for the cache."""
    if not isinstance(content, list):
        return content
    return [_unseen(part) if is_image(part) else part for part in content]


def note_images(request: Request, messages: Iterable[Message]) -> None:
    parts = (part for message in messages if isinstance(message.content, list) for part in message.content)
    note(request, PARTS, (part["type"] for part in parts if is_image(part)))


def _unseen(image: Mapping[str, Any]) -> dict[str, Any]:
    marks = {name: image[name] for name in (CACHE_CONTROL, CACHE_BREAKPOINT) if image.get(name)}
    return {"type": "text", "text": UNSEEN, **marks}
