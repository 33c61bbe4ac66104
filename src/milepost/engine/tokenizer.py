"""Text to token ids and back, over the `tokenizers` package."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tokenizers

from milepost.engine.places import Places, in_tokens
from milepost.errors import RequestError, RequestFailed
from milepost.models.loader.source import TokenizerSource

LONGEST_GAP = 16
"""Characters of no token that a place in a text may have behind it."""

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads: nothing changes after it is made, but a memo of texts.

    `vocab_size` is the highest id + 1, added tokens included (a model's logits may be wider: padded). `bos_token_id`
    is None where the model names none. `byte_token_ids` are those like <0x0A> that stand for one byte, if the decoder
    reads them so (SentencePiece's byte fallback). `added_tokens`: ids of those found in a text as a whole, special or
    not. `special_tokens`: texts by name, as a model's files call them ("bos_token").
    """

    def __init__(self, source: TokenizerSource, eos_token_ids: Collection[int] = ()) -> None:
        self._backend = source.backend
        self._backend.no_truncation()  # some tokenizer files carry the limits of their training runs
        self._backend.no_padding()
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        added = self._backend.get_added_tokens_decoder()
        self.added_tokens = {kept.content: token for token, kept in added.items()}
        self.special_token_ids = frozenset(token for token, kept in added.items() if kept.special)
        self.special_tokens = dict(source.special_tokens)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.bos_token_id = vocabulary.get(source.special_tokens.get("bos_token", ""))
        self.byte_token_ids = _byte_tokens(self._backend.decoder, vocabulary)
        self._unknown_ids = frozenset(range(self.vocab_size)).difference(vocabulary.values())
        self._texts: dict[int, str] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with BOS and the like if the model wants them and `add_special_tokens` is true.

        Special tokens spelled out in `text` become those tokens, which is what chat templates count on. Raises
        `RequestError` for text with lone surrogates, which no UTF-8 can hold.
        """
        ids: list[int] = self._encode(text, add_special_tokens).ids
        return ids

    def encode_with(self, places: Places, text: str, add_special_tokens: bool = True) -> tuple[list[int], Places]:
        """As `encode`, and `places`, in characters of `text`, in tokens: those that lie wholly before each."""
        encoding = self._encode(text, add_special_tokens)

        def tokens_before(place: int) -> int | None:
            """The token of a character, or of the next that has one: a space may belong to none."""
            for char in range(place, min(place + LONGEST_GAP, len(text))):
                token: int | None = encoding.char_to_token(char)
                if token is not None:
                    return token
            return None if place + LONGEST_GAP < len(text) else len(encoding.ids)

        return encoding.ids, in_tokens(places, tokens_before)

    def _encode(self, text: str, add_special_tokens: bool) -> tokenizers.Encoding:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text is not valid Unicode: lone surrogate at character {error.start}",
                "send text that UTF-8 can encode",
            ) from error
        with _panics_as_errors():
            return self._backend.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; unknown ids add nothing, bytes that are no UTF-8 become U+FFFD."""
        with _panics_as_errors():
            text: str = self._backend.decode(self.visible(ids, skip_special_tokens), skip_special_tokens=False)
        return text

    def visible(self, ids: Iterable[int], skip_special_tokens: bool, shown: frozenset[int] = frozenset()) -> list[int]:
        """Those of `ids` that have text: without unknown ones and, if asked, without special ones but for `shown`."""
        known = (token for token in ids if 0 <= token < self.vocab_size and token not in self._unknown_ids)
        if not skip_special_tokens:
            return list(known)
        return [token for token in known if token not in self.special_token_ids or token in shown]

    def to_json(self) -> str:
        """All of it, as in a file tokenizer.json."""
        text: str = self._backend.to_str()
        return text

    def token_text(self, token_id: int) -> str:
        """What one token adds to a text, special or not; a part of a character shows as U+FFFD.

        Taken from its second place in a row of two, since some tokenizers drop a space at the start of a text.
        """
        if token_id not in self._texts:
            once = self.decode([token_id], skip_special_tokens=False)
            twice = self.decode([token_id, token_id], skip_special_tokens=False)
            self._texts[token_id] = twice[len(once) :] if "\ufffd" not in twice and twice.startswith(once) else once
        return self._texts[token_id]


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """A panic in the `tokenizers` package is a BaseException, and would end more than its own request."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RequestFailed(f"the tokenizer failed: {error}", "change the text, or send token ids") from error


def _byte_tokens(decoder: tokenizers.decoders.Decoder | None, vocabulary: Mapping[str, int]) -> frozenset[int]:
    if decoder is None or not _has_byte_fallback(json.loads(decoder.__getstate__())):
        return frozenset()
    return frozenset(token for text, token in vocabulary.items() if _BYTE_TOKEN.fullmatch(text))


def _has_byte_fallback(decoder: Mapping[str, Any]) -> bool:
    return decoder.get("type") == "ByteFallback" or any(map(_has_byte_fallback, decoder.get("decoders", ())))
