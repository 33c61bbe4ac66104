"""From token ids to text while they are generated: whole characters only, and no further than a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.engine.stop_strings import StopStrings
from milepost.engine.tokenizer import Tokenizer
from milepost.sampling_params import SamplingParams

_CONTEXT = 8
"""Tokens decoded before new ones. A character has 4 bytes, so at most 3 tokens before the last belong to it."""

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one sequence. The pieces that `append` and `flush` return, joined, are the text of all its tokens.

    The text is what the tokens add to that of the prompt: a leading space is there if the tokenizer puts one between
    the two. Give it no token that is not to be shown (the end token). The cost is linear in the tokens.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, prompt_token_ids: Sequence[int]) -> None:
        self._stream = TextStream(
            tokenizer, params.skip_special_tokens, prompt_token_ids, params.shown_special_token_ids
        )
        self._stops = StopStrings(params.stops, params.include_stop_str_in_output)
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text; further tokens add nothing. Those of `min_tokens` complete none."""
        return self._stops.found

    def append(self, token_ids: Sequence[int]) -> str:
        """Adds tokens; returns the text that can be shown now. Look at `stopped_by` then."""
        shown = []
        for token in token_ids:
            self._num_tokens += 1
            shown.append(self._stops.push(self._stream.push(token), may_stop=self._num_tokens > self._min_tokens))
        return "".join(shown)

    def flush(self) -> str:
        """The sequence has ended: all that was held back. A stop string can still be found in it."""
        shown = self._stops.push(self._stream.flush(), may_stop=self._num_tokens > self._min_tokens)
        return shown + self._stops.flush()


class TextStream:
    """The text of tokens as they come, decoded after the few tokens before them.

    Two kinds of text are not final and are held back. U+FFFD at the end may be the first bytes of a character. And a
    run of byte tokens (SentencePiece's byte fallback) is decoded as one: a wrong byte turns all of it into U+FFFD, so
    it is shown once another token ends it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool,
        prompt_token_ids: Sequence[int],
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens, self._shown_ids = skip_special_tokens, shown
        self._ids = self._tail(prompt_token_ids)
        self._shown = self._decode()

    def push(self, token: int) -> str:
        """Adds a token; returns the text that is now final."""
        if not self._visible(token):
            return ""
        self._ids.append(token)
        return "" if token in self._tokenizer.byte_token_ids else self._show(self._decode().removesuffix(_REPLACEMENT))

    def flush(self) -> str:
        """The text that was held back: no more tokens come."""
        return self._show(self._decode())

    def _show(self, final: str) -> str:
        """What `final`, the text of `_ids`, has beyond what was shown."""
        new = final[_num_common(self._shown, final) :]
        if not new:
            return ""
        self._shown = final
        if len(self._ids) > 2 * _CONTEXT:
            held = self._decode()[len(final) :]
            self._ids = self._ids[-_CONTEXT:]
            self._shown = self._decode().removesuffix(held)
        return new

    def _decode(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=False)

    def _visible(self, token: int) -> list[int]:
        return self._tokenizer.visible([token], self._skip_special_tokens, self._shown_ids)

    def _tail(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """The last visible tokens of the prompt, with the whole run of byte tokens if they start in one."""
        tail: list[int] = []
        for token in reversed(prompt_token_ids):
            if len(tail) >= _CONTEXT and tail[-1] not in self._tokenizer.byte_token_ids:
                break
            tail += self._visible(token)
        return tail[::-1]


def _num_common(one: str, other: str) -> int:
    """How many characters two texts have in common at their start."""
    if other.startswith(one):
        return len(one)
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
