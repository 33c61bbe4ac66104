"""What a model's files say of how it calls tools and thinks."""

from __future__ import annotations

from collections.abc import Container, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast

from milepost.server.parsers.family import Family, Traits
from milepost.server.parsers.plain import PLAIN
from milepost.server.parsers.reasoning import Thinking, thinking_of
from milepost.server.parsers.registry import family_of
from milepost.server.state import ChatTemplate, Model, Tokenizer
from milepost.structured_outputs import CallForm


@dataclass(frozen=True)
class Dialect:
    """What a model's files say of its answers.

    `form`: how it is made to write calls; `tag_ids`: special tokens among the tags that a parser looks for;
    `think_ids`: the tokens that open and close reasoning, where each tag is one token; `calls_apart`: whether calls
    begin with a tag, so that no JSON begins like them.
    """

    family: Family
    thinking: Thinking | None
    form: CallForm = field(default_factory=CallForm)
    tag_ids: frozenset[int] = frozenset()
    think_ids: tuple[int, int] | None = None
    calls_apart: bool = False


def dialect_of(engine: Model) -> Dialect:
    """A model without template or tokenizer has none that matters."""
    return _dialect(cast(Hashable, engine.chat_template), cast(Hashable, engine.tokenizer))


@lru_cache(maxsize=4)
def _dialect(its_template: Hashable, its_tokenizer: Hashable) -> Dialect:
    template, tokenizer = cast(ChatTemplate | None, its_template), cast(Tokenizer | None, its_tokenizer)
    if template is None or tokenizer is None:
        return Dialect(PLAIN, None)
    special = {tokenizer.token_text(token): token for token in tokenizer.special_token_ids}
    traits = Traits(template.text, frozenset(special))
    family, thinking = family_of(traits), thinking_of(traits)
    form = family.form(traits)
    tags = family.tags | (thinking.tags if thinking else frozenset())
    tag_ids = frozenset(token for text, token in special.items() if text in tags)
    think_ids = _think_ids(thinking, tokenizer) if thinking else None
    return Dialect(family, thinking, form, tag_ids, think_ids, _apart(family, form, special))


def _apart(family: Family, form: CallForm, special: Container[str]) -> bool:
    first = form.opening + form.before
    tag = next((tag for tag in family.opens if first.startswith(tag)), None)
    return tag is not None and (tag in special or not tag.startswith(("[", "{")))


def _think_ids(thinking: Thinking, tokenizer: Tokenizer) -> tuple[int, int] | None:
    opens, closes = (tokenizer.encode(tag, add_special_tokens=False) for tag in (thinking.open, thinking.close))
    return (opens[0], closes[0]) if len(opens) == len(closes) == 1 else None
