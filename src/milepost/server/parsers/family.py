"""What a parser must know of a family of models."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.server.parsers.calls import Calls, as_json
from milepost.server.parsers.source import Reading, Source
from milepost.structured_outputs import CallForm


@dataclass(frozen=True)
class Traits:
    """What a model's files tell: the text of its chat templates, and its special tokens."""

    template: str
    special_tokens: frozenset[str] = frozenset()


def call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


Call = tuple[str, Mapping[str, Any]]
"""A call's name and arguments."""


def in_form(form: CallForm, calls: Sequence[Call]) -> str:
    each = (f"{form.before}{name}{form.between}{as_json(arguments)}{form.after}" for name, arguments in calls)
    return form.opening + form.separator.join(each) + form.closing


@dataclass(frozen=True)
class Family:
    """How one family writes tool calls.

    matches   whether a model is of this family
    opens     tags that open a block of calls, wherever they stand
    starts    the same, where nothing visible came before: JSON without a tag
    read      reads one block, after its opening tag: (source, calls, tag)
    inner     other tags of a block, which its tokenizer may have as special tokens
    untagged  whether only the tools that the request offers can be called: else JSON answers would be taken for calls
    new_id    makes an id for a call
    form      how the family writes calls, for a grammar that makes it call; `read` reads that too
    spell     calls as the model would have written them, for a template that leaves them out; `calls_first`: before
              the content
    """

    name: str
    matches: Callable[[Traits], bool]
    opens: tuple[str, ...]
    read: Callable[[Source, Calls, str], Reading[None]]
    starts: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    untagged: bool = False
    new_id: Callable[[], str] = call_id
    form: Callable[[Traits], CallForm] = lambda traits: CallForm()
    spell: Callable[[CallForm, Sequence[Call]], str] = in_form
    calls_first: bool = False

    @property
    def tags(self) -> frozenset[str]:
        """All that must be visible to the parser and never to clients."""
        return frozenset((*self.opens, *self.inner))
