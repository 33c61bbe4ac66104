"""What the faces of the engine need to know of the model behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from milepost.engine.chat import ChatTemplate
from milepost.engine.grammars import Grammars
from milepost.engine.tokenizer import Tokenizer


@dataclass(frozen=True)
class ServedModel:
    """`max_model_len` counts prompt and answer together; `hidden_size`: numbers of a hidden row, and of a vector.
    Without a tokenizer, prompts are token ids, and there are no grammars.

    `default_sampling` holds the sampling fields that the model's generation_config sets.
    """

    name: str
    max_model_len: int
    vocab_size: int
    hidden_size: int
    eos_token_ids: frozenset[int] = frozenset()
    tokenizer: Tokenizer | None = None
    chat_template: ChatTemplate | None = None
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    grammars: Grammars | None = None
