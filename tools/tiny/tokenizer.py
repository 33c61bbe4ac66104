"""The tokenizer: byte-level BPE, trained on the tasks' own text, so that its common words are one token each.

Any text can be encoded, because every byte is a token. Digits go in pairs: a number below 100 is one token. A user's
text begins with a space, so that its first word is the token that it is elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.tiny.tasks import Conversation, Turn, training_conversation

VOCAB_SIZE = 1280
USER, ASSISTANT, SYSTEM, END, PAD = "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|pad|>"
SPECIAL = (PAD, END, USER, ASSISTANT, SYSTEM)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + (' ' if message['role'] == 'user' else '')"
    " + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_WORDS = r"'s| ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+"


def train_tokenizer(num_conversations: int = 3000, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """The same tokenizer in every run."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(num_conversations), trainer)
    return tokenizer


def _texts(num_conversations: int) -> Iterator[str]:
    for seed in range(num_conversations):
        for turn in training_conversation(seed, 256).turns:
            yield from (" " + turn.user, turn.question.answer)


def token_id(tokenizer: Tokenizer, name: str) -> int:
    """The id of a special token."""
    found = tokenizer.token_to_id(name)
    assert found is not None, f"the tokenizer has no {name}"
    return found


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """As a Hugging Face folder has it: `tokenizer.json`, `tokenizer_config.json` with the chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _pieces(turn: Turn) -> list[tuple[str, str | None]]:
    """The user's text, then the answer's, in pieces between which no token reaches, and the task of each that is
    learnt."""
    asked = turn.question
    pieces: list[tuple[str, str | None]] = [(" " + turn.user, None)]
    if not asked.values:
        return [*pieces, (asked.answer, asked.kind)]
    for i, known in enumerate(asked.values):
        pieces += [((" " if i else "") + known.before, None), (" " + known.value, asked.kind), (known.after, None)]
    return pieces


class ChatEncoder:
    """Conversations to token ids. Text is encoded message by message; a message's end token belongs to it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._user, self._assistant, self._end = (token_id(tokenizer, name) for name in (USER, ASSISTANT, END))

    def training_ids(self, conversation: Conversation) -> tuple[list[int], list[bool]]:
        """Token ids of the whole conversation, and for each whether it is learnt (see `learnt_tasks`)."""
        ids, tasks = self.learnt_tasks(conversation)
        return ids, [task is not None for task in tasks]

    def learnt_tasks(self, conversation: Conversation) -> tuple[list[int], list[str | None]]:
        """Token ids of the whole conversation, and for each that is learnt its task: an answer's tokens and its end; of
        a recap the values alone."""
        ids: list[int] = []
        tasks: list[str | None] = []
        turns = [_pieces(turn) for turn in conversation.turns]
        texts = [text for turn in turns for text, _ in turn]
        encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        for turn in turns:
            for i, (_, task) in enumerate(turn):
                opens, closes = i < 2, i in (0, len(turn) - 1)
                found = next(encoded).ids
                ids += [self._user if i == 0 else self._assistant] * opens + found + [self._end] * closes
                tasks += [None] * opens + [task] * (len(found) + closes)
        return ids, tasks

    def prompt_ids(self, conversation: Conversation) -> list[int]:
        """All but the last answer, and the token that asks for it."""
        ids, is_learnt = self.training_ids(conversation)
        length = len(ids)
        while is_learnt[length - 1]:
            length -= 1
        return ids[:length]
