"""Log probabilities in the shapes of OpenAI's two APIs, and in vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.outputs import Logprob, TokenLogprobs
from milepost.server.state import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot write (vLLM's and OpenAI's value)."""


def token_text(token_id: int, logprob: Logprob | None, tokenizer: Tokenizer | None) -> str:
    """A token's text; without a tokenizer its id, as vLLM writes it."""
    if logprob is not None and logprob.decoded_token is not None:
        return logprob.decoded_token
    return tokenizer.token_text(token_id) if tokenizer is not None else f"token_id:{token_id}"


def chat_logprobs(places: Sequence[TokenLogprobs], num_top: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """`logprobs` of a chat choice: of each token itself, and of the `num_top` most likely ones."""
    content = []
    for place in places:
        token_id, chosen = next(iter(place.items()))
        top = sorted(place.items(), key=lambda item: -_finite(item[1]))[:num_top]
        entry = _chat_entry(token_id, chosen, tokenizer)
        entry["top_logprobs"] = [_chat_entry(other, logprob, tokenizer) for other, logprob in top]
        content.append(entry)
    return {"content": content, "refusal": None}


@dataclass
class LegacyLogprobs:
    """`logprobs` of /v1/completions, growing token by token.

    Offsets add up the tokens' texts, as vLLM does: exact where these are what `text` is made of, which a special token
    that `text` leaves out or a part of a character is not.
    """

    tokenizer: Tokenizer | None
    offset: int = 0
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(self, token_ids: Sequence[int], places: Sequence[TokenLogprobs | None]) -> None:
        """A place is None where nothing stands before the token: the first of a prompt."""
        for token_id, place in zip(token_ids, places, strict=False):
            chosen = place[token_id] if place is not None else None
            text = token_text(token_id, chosen, self.tokenizer)
            self.tokens.append(text)
            self.token_logprobs.append(None if chosen is None else _finite(chosen))
            self.top_logprobs.append(None if place is None else self._top(place))
            self.text_offset.append(self.offset)
            self.offset += len(text)

    def take(self) -> dict[str, Any]:
        """What was added since the last call."""
        taken = {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }
        self.tokens, self.token_logprobs, self.top_logprobs, self.text_offset = [], [], [], []
        return taken

    def _top(self, place: TokenLogprobs) -> dict[str, float]:
        return {token_text(other, logprob, self.tokenizer): _finite(logprob) for other, logprob in place.items()}


def prompt_logprobs(places: Sequence[TokenLogprobs | None] | None) -> list[dict[str, Any] | None] | None:
    """vLLM's extension: for each prompt token, id to log probability, rank and text."""
    if places is None:
        return None
    return [
        None if place is None else {str(token): _full(logprob) for token, logprob in place.items()} for place in places
    ]


def _full(logprob: Logprob) -> dict[str, Any]:
    return {"logprob": _finite(logprob), "rank": logprob.rank, "decoded_token": logprob.decoded_token}


def _chat_entry(token_id: int, logprob: Logprob, tokenizer: Tokenizer | None) -> dict[str, Any]:
    text = token_text(token_id, logprob, tokenizer)
    return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode())}


def _finite(logprob: Logprob) -> float:
    value = logprob.logprob
    return value if value > LOWEST else LOWEST
