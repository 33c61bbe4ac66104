"""From chat messages to a prompt, by the template that comes with the model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

import jinja2

from milepost.engine import chat_marks
from milepost.engine.chat_messages import Message, flat, parted, read_messages, uncontrolled
from milepost.engine.chat_sandbox import MAX_SECONDS, Budget, ChatEnvironment, TemplateBound, TemplateRefusal, render
from milepost.engine.places import NOWHERE, Places
from milepost.errors import RequestError

logger = logging.getLogger(__name__)

_CONTINUE = "\ue000\ue001\ue002\ue001\ue000"
"""Marks where the final message goes on: characters for private use, which no filter of a template changes."""

_PROBE = "a text to look for"


class ChatTemplate:
    """A model's chat template, compiled once; safe to use from several threads.

    `template` is jinja text, or several by name: "tool_use" is taken when there are tools, otherwise "default".
    `special_tokens` are variables of the template ("bos_token": "<s>"). `now` is the clock of `strftime_now`, `timer`
    (in seconds) that of the bound on one rendering, `max_seconds`. The attribute `text` is all of the jinja text.
    """

    def __init__(
        self,
        template: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
        timer: Callable[[], float] = time.thread_time,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        sources = {"default": template} if isinstance(template, str) else dict(template or {})
        environment = ChatEnvironment(now)
        budget = partial(Budget, max_seconds, timer)
        variables = dict(special_tokens or {})
        self.text = "\n".join(sources.values())
        self._templates = {name: _Template(environment, text, variables, budget) for name, text in sources.items()}

    @property
    def problem(self) -> str | None:
        """Why a template cannot be used, or None; rendering then raises it as `RequestError`."""
        return next((found.problem for found in self._templates.values() if found.problem), None)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **chat_template_kwargs: Any,
    ) -> str:
        """The prompt. Keyword arguments beyond the named ones are variables of the template.

        `add_generation_prompt` opens the answer; `continue_final_message` leaves the last message open instead, so that
        the model goes on with it (both: an error). Raises `RequestError` for messages that cannot be put into text.
        """
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "add_generation_prompt and continue_final_message cannot both be true",
                "set add_generation_prompt to false",
                param="continue_final_message",
            )
        template = self._choose("tool_use" if tools else "default")
        read = read_messages(messages)
        variables = {
            **chat_template_kwargs,
            "tools": _uncontrolled(_objects("tools", tools)),
            "documents": _objects("documents", documents),
            "add_generation_prompt": add_generation_prompt,
        }
        with _errors_of_the_request():
            formatted = template.formatted(read)
            variables["messages"] = _left_open(formatted) if continue_final_message else formatted
            text = template.render(variables)
        return _cut_open(text) if continue_final_message else text

    def places(
        self,
        text: str,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Places:
        """Where prompts are expected to part from `text`, which `render` made of the same arguments, in characters: the
        begins and ends of messages, and clients' breakpoints. Renders once more, raises nothing; none if they cannot be
        found."""
        try:
            found = chat_marks.found(self.render(chat_marks.marked(messages, tools), tools=tools, **options), text)
        except Exception as error:  # a template may fail in any way on a text that has marks
            logger.debug("no message boundaries: %s", type(error).__name__)
            return NOWHERE
        if not found:
            logger.debug("no message boundaries: the template changes the texts, or reads them")
        return found

    def shows_calls(self, with_tools: bool) -> bool:
        """Whether an assistant's `tool_calls` come out in the prompt of a request with or without tools, which is found
        out by trying. Where they do not, what the model once wrote is lost to it, unless it is put into the content."""
        return self._choose("tool_use" if with_tools else "default").shows_calls()

    def _choose(self, name: str) -> _Template:
        if not self._templates:
            raise RequestError(
                "this model has no chat template", "pass --chat-template FILE to the server, or use /v1/completions"
            )
        found = self._templates.get(name) or self._templates.get("default")
        if found is None:
            names = ", ".join(sorted(self._templates))
            raise RequestError(
                f"this model has no default chat template, only: {names}", "pass --chat-template FILE to the server"
            )
        if found.problem:
            raise RequestError(found.problem, "pass --chat-template FILE to the server, or use /v1/completions")
        return found


class _Template:
    """One compiled template, and what kinds of content it reads, which is found out by trying."""

    def __init__(
        self, environment: ChatEnvironment, source: str, special_tokens: dict[str, str], budget: Callable[[], Budget]
    ) -> None:
        self.problem = ""
        self._special_tokens, self._budget = special_tokens, budget
        self._reads: dict[tuple[str, bool], bool] = {}
        self._shows_calls: bool | None = None
        try:
            self._compiled = environment.compile_template(source)
        except jinja2.TemplateSyntaxError as error:
            self.problem = f"the chat template is not valid: line {error.lineno}: {error.message}"
        except (jinja2.TemplateError, RecursionError) as error:
            self.problem = f"the chat template is not valid: {error}"

    def render(self, variables: dict[str, Any]) -> str:
        """Raises whatever the template runs into."""
        return render(self._compiled, self._special_tokens | variables, self._budget())

    def formatted(self, messages: list[Message]) -> list[Message]:
        """`messages` with content in the form that this template reads: text, or a list of parts."""
        return [
            message | {"content": self._content(message["role"], message["content"])}
            if "content" in message
            else message
            for message in messages
        ]

    def shows_calls(self) -> bool:
        """A template that breaks on the trial is taken to show them."""
        if self._shows_calls is None:
            name = _PROBE.replace(" ", "_")
            call = {"id": "call00000", "type": "function", "function": {"name": name, "arguments": {}}}
            called = {"role": "assistant", "content": "", "tool_calls": [call]}
            variables = {"messages": [_ASKED, called], "tools": None, "documents": None, "add_generation_prompt": False}
            try:
                self._shows_calls = name in self.render(variables)
            except Exception:  # a template may fail in any way on what it does not read
                self._shows_calls = True
        return self._shows_calls

    def _content(self, role: str, content: str | list[Message]) -> Any:
        if isinstance(content, list):
            return content if self._shows(role, parts=True) else flat(content)
        only_parts = not self._shows(role, parts=False) and self._shows(role, parts=True)
        return parted(content) if only_parts else content

    def _shows(self, role: str, *, parts: bool) -> bool:
        """Whether the content of such a message, as parts or as text, comes out as its bare text."""
        if role not in _PROBES:
            return False
        if (role, parts) not in self._reads:
            messages = [*_PROBES[role], {"role": role, "content": parted(_PROBE) if parts else _PROBE}]
            if role in ("system", "developer"):
                messages.append({"role": "user", "content": "x"})
            try:
                text = self.render(
                    {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
                )
            except TemplateBound:
                raise
            except Exception:  # a template may fail in any way on what it does not read
                text = ""
            spelled_out = f"'{_PROBE}'" in text or f'"{_PROBE}"' in text  # the list itself, as Python or as JSON
            self._reads[role, parts] = _PROBE in text and not spelled_out
        return self._reads[role, parts]


_ASKED: Message = {"role": "user", "content": "x"}
_CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}],
}
_PROBES: Mapping[str, Sequence[Message]] = {
    "system": (),
    "developer": (),
    "user": (),
    "assistant": (_ASKED,),
    "tool": (_ASKED, _CALLED),
}
"""Messages that come before one of each role in a conversation that templates accept."""


@contextmanager
def _errors_of_the_request() -> Iterator[None]:
    """A template is a program: messages that its author did not think of can break it in any way."""
    try:
        yield
    except RequestError:
        raise
    except TemplateRefusal as error:
        raise RequestError(
            _one_line(error), "change the messages: the model's chat template refuses them", param="messages"
        ) from error
    except TemplateBound as error:
        raise RequestError(
            f"the chat template was stopped: {error.message}", "check the template, or send less", param="messages"
        ) from error
    except Exception as error:
        raise RequestError(
            f"the chat template cannot put these messages into text: {type(error).__name__}: {_one_line(error)}",
            "check the roles, their order, and the content",
            param="messages",
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def _objects(name: str, values: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    if values is None:
        return None
    if not isinstance(values, list | tuple) or not all(isinstance(value, Mapping) for value in values):
        raise RequestError(f"{name} must be a list of objects", f"change {name}", param=name)
    return [dict(value) for value in values]


def _uncontrolled(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Without `cache_control`; None for no tools."""
    found = []
    for tool in tools or ():
        kept = uncontrolled(tool)
        if isinstance(kept.get("function"), Mapping):
            kept["function"] = uncontrolled(kept["function"])
        found.append(kept)
    return found or None


def _left_open(messages: list[Message]) -> list[Message]:
    """With a mark after the last text. The space at its end shows whether the template trims texts."""
    *before, last = messages
    content = last.get("content")
    mark = _CONTINUE + " "
    if isinstance(content, str):
        return [*before, last | {"content": content + mark}]
    if content:
        *parts, part = content
        return [*before, last | {"content": [*parts, part | {"text": part["text"] + mark}]}]
    raise RequestError(
        "continue_final_message needs a final message with content", "add content to it", param="continue_final_message"
    )


def _cut_open(text: str) -> str:
    before, mark, after = text.rpartition(_CONTINUE)
    if not mark:
        raise RequestError(
            "the chat template does not show the final message, so it cannot be continued",
            "set continue_final_message to false",
            param="continue_final_message",
        )
    return before if after.startswith(" ") else before.rstrip()
