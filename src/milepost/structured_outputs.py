"""What an answer must look like, under vLLM's names. Nothing here knows how it is kept; `engine/grammar.py` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.errors import RequestError

KINDS = ("json", "regex", "choice", "grammar", "json_object", "tool_calls")
"""The fields of `StructuredOutputsParams` of which each use has exactly one."""


@dataclass(frozen=True)
class CallForm:
    """How tool calls are written: `opening`, then for each call `before` NAME `between` ARGUMENTS `after`, with
    `separator` between two, then `closing`. ARGUMENTS is a JSON object; NAME is written as in a JSON string.

    Where one of these texts spells a special token of the model, that token is meant. The default is bare JSON, a call
    a line; Hermes's and Qwen's have `before` '<tool_call>\\n{"name": "' and `after` '}\\n</tool_call>'.
    """

    before: str = '{"name": "'
    between: str = '", "arguments": '
    after: str = "}"
    separator: str = "\n"
    opening: str = ""
    closing: str = ""


@dataclass(frozen=True)
class ToolCalls:
    """The answer is calls of these tools, one at least, and nothing else.

    `tools`: JSON schema of the arguments by a tool's name (None: any object); a named tool is the only one here.
    `max_calls` None: as many as the model likes.
    """

    tools: Mapping[str, Mapping[str, Any] | None]
    form: CallForm = CallForm()
    max_calls: int | None = None

    def __post_init__(self) -> None:
        if not self.tools:
            raise RequestError("a tool must be called, and there is none", "give tools", param="tools")
        if self.max_calls is not None and self.max_calls < 1:
            raise ValueError(f"max_calls must be at least 1, got {self.max_calls}")


@dataclass(frozen=True)
class StructuredOutputsParams:
    """Exactly one of `json` (a JSON schema, also as text), `regex`, `choice`, `grammar` (Lark's syntax as llguidance
    reads it, or llama.cpp's GBNF), `json_object` (True: any object) and `tool_calls`; else `RequestError`.

    Between the parts of JSON one space may stand, or a line break and up to 20 spaces or tabs, as in llama.cpp: a model
    that likes whitespace fills its context with it otherwise. `whitespace_pattern`, a regex, says what else may;
    `disable_any_whitespace` allows none. `disable_additional_properties`: objects that do not speak of others have only
    the properties they list. `or_calls`: an answer of these calls will do as well; they must not begin as the other
    answers may. `after`: all is free up to this text, such as the end of thinking. `param`: what errors blame.
    """

    json: str | bool | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    tool_calls: ToolCalls | None = None
    or_calls: ToolCalls | None = None
    after: str | None = None
    param: str = "structured_outputs"

    def __post_init__(self) -> None:
        given = self._given()
        if len(given) != 1:
            raise self.error(
                f"structured outputs need exactly one of {', '.join(KINDS[:-1])}; got {' and '.join(given) or 'none'}"
            )
        self._check(given[0])

    @property
    def kind(self) -> str:
        """The one of `KINDS` that is given."""
        return self._given()[0]

    def error(self, message: str, hint: str = "") -> RequestError:
        return RequestError(message, hint or f"change {self.param}", param=self.param)

    def _given(self) -> list[str]:
        found = [name for name in KINDS if getattr(self, name) is not None]
        return [name for name in found if not (name == "json_object" and self.json_object is False)]

    def _check(self, kind: str) -> None:
        value = getattr(self, kind)
        if kind == "json" and not isinstance(value, str | bool | Mapping):
            raise self.error(f"json must be a JSON schema: an object, or its text; got a {type(value).__name__}")
        if kind == "json_object" and value is not True:
            raise self.error("json_object must be true or false")
        if kind in ("regex", "grammar") and not isinstance(value, str):
            raise self.error(f"{kind} must be text, got a {type(value).__name__}")
        if kind == "choice":
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            if not is_list or not value or not all(isinstance(text, str) for text in value):
                raise self.error("choice must be a list of texts, one at least")
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise self.error(f"{name} must be true or false")
        for name in ("whitespace_pattern", "after"):
            if not isinstance(getattr(self, name), str | None):
                raise self.error(f"{name} must be text")
