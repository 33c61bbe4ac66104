"""Why a request computed what it did, for clients that ask: the `cache` object of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request

from milepost.errors import RequestError
from milepost.outputs import CacheReport, RequestOutput
from milepost.server.schemas import Ask
from milepost.server.state import Tokenizer

HEADER = "X-Milepost-Cache"
TOKENS_AROUND = 4
"""Of the request's own prompt, told on each side of the place where it parts from what is known."""


def wants_explanation(request: Request, body: Ask) -> bool:
    """By header or by field; `RequestError` for a header that says something else."""
    asked = request.headers.get(HEADER)
    if asked is not None and asked.strip().lower() != "explain":
        raise RequestError(f"{HEADER} can only be `explain`", "say that, or leave the header out")
    return asked is not None or bool(body.explain_cache)


class Explained:
    """Gathers what the outputs of a request report, streamed or not."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._reports: dict[int, tuple[CacheReport | None, list[int]]] = {}

    def add(self, number: int, output: RequestOutput) -> None:
        self._reports[number] = output.cache, output.prompt_token_ids

    def as_json(self) -> dict[str, Any] | list[dict[str, Any] | None] | None:
        """An object, or for several prompts a list of them in their order. None: the prompt never ran."""
        told = [self._object(*self._reports[number]) for number in sorted(self._reports)]
        return told[0] if len(told) == 1 else told

    def _object(self, report: CacheReport | None, prompt: list[int]) -> dict[str, Any] | None:
        return None if report is None else as_object(report, decoded(tokens_around(report, prompt), self._tokenizer))


def as_object(report: CacheReport, text: str | None) -> dict[str, Any]:
    """`text`: what `tokens_around` decodes to."""
    return {
        "matched_tokens": report.num_matched_tokens,
        "resumed_tokens": report.num_resumed_tokens,
        "recomputed_tokens": report.num_recomputed_tokens,
        "reason": report.reason,
        "position": report.position,
        "text": text,
    }


def tokens_around(report: CacheReport, prompt: Sequence[int]) -> tuple[int, ...]:
    """Where `prompt` parts from what is known, a few of its own tokens on each side; none for other reasons. Of what it
    parts from, nothing is told."""
    if report.reason != "diverged" or report.position is None:
        return ()
    return tuple(prompt[max(0, report.position - TOKENS_AROUND) : report.position + TOKENS_AROUND])


def decoded(tokens: Sequence[int], tokenizer: Tokenizer | None) -> str | None:
    """None where there is nothing to decode, or nobody who can."""
    return tokenizer.decode(tokens, skip_special_tokens=False) if tokens and tokenizer is not None else None
