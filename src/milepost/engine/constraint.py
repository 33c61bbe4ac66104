"""One sample under a grammar: which tokens may come next, and whether it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from milepost.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher

_HINT = "simplify the schema or grammar"


class Constraint:
    """A matcher that follows one sample's tokens.

    What it allows depends on the grammar and on the tokens alone: a sample that was preempted goes on with it, and were
    tokens taken back, it would read them anew. `compiled` is shared with others and never changed: it is copied when
    the first token is due.
    """

    def __init__(self, compiled: LLMatcher) -> None:
        self._compiled = compiled
        self._matcher: LLMatcher | None = None
        self._num_read = 0

    def allowed(self, tokens: Sequence[int], first: int = 0) -> bytes:
        """Which may follow `tokens[first:]`, the sample's own so far: bit i (least significant first) is of token i.

        RequestError where none may: the grammar needs what this model's tokens cannot spell, or it is too complex.
        """
        matcher = self._follow(tokens, first)
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            raise _failed(matcher)
        if not mask.strip(b"\0"):
            raise RequestError("the grammar allows no token here", _HINT)
        return mask

    def take(self, token: int) -> bool:
        """The token that was drawn; whether the grammar is complete with it: nothing can follow."""
        matcher = self._own()
        matcher.consume_token(token)
        self._num_read += 1
        if matcher.is_error():
            raise _failed(matcher)
        return matcher.is_stopped()

    def _follow(self, tokens: Sequence[int], first: int) -> LLMatcher:
        """The matcher after these tokens."""
        matcher = self._own()
        if len(tokens) - first < self._num_read:
            matcher.reset()
            self._num_read = 0
        if len(tokens) - first > self._num_read:
            matcher.consume_tokens(list(tokens[first + self._num_read :]))
            self._num_read = len(tokens) - first
        return matcher

    def _own(self) -> LLMatcher:
        if self._matcher is None:
            self._matcher = self._compiled.deep_copy()
        return self._matcher


def _failed(matcher: LLMatcher) -> RequestError:
    """Of llguidance's text the first line: what follows is the state of its parser."""
    first = (matcher.get_error().strip() or "unknown").splitlines()[0]
    return RequestError(f"the grammar cannot go on: {first[:200]}", _HINT)
