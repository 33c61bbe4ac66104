"""A model's grammars: compiled once, in a thread of their own, kept while they are used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from milepost.engine.constraint import Constraint
from milepost.engine.grammar import grammar_text
from milepost.engine.tokenizer import Tokenizer
from milepost.errors import RequestError
from milepost.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

COMPILE_SECONDS = 30.0
"""A request waits this long for its grammar, those in line before it included. One alone is bounded by its limits."""

MAX_WAITING = 64
"""Grammars in line to be compiled; a request that would be one more is told to come back."""

MAX_KEPT = 64
MAX_KEPT_CHARS = 512 * 1024
"""Of compiled grammars, by their text: one takes up to about 500 bytes a character."""

STACK_BYTES = 256 * 2**20
"""llguidance compiles by recursion: a chain of thousands of definitions ends a process that has the usual 8 MB. Of
these only what is used takes memory; `MAX_GRAMMAR_CHARS` bounds the depth (the deepest found needs less than 64 MB)."""


class CompiledGrammar:
    """May be used by many samples at once; each `start`s a constraint of its own."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def start(self) -> Constraint:
        return Constraint(self._matcher)


class Grammars:
    """Compiles for one model. `vocab_size`: as wide as its logits. Safe to use from several threads.

    llguidance is imported, and its view of the tokenizer made (about 1 s for 50,000 tokens), when the first request
    asks.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = max(vocab_size, tokenizer.vocab_size)
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Future[CompiledGrammar]] = OrderedDict()
        self._compiler: ThreadPoolExecutor | None = None
        self._num_waiting = 0
        self._tokens: LLTokenizer | None = None

    def compile(self, params: StructuredOutputsParams) -> Future[CompiledGrammar]:
        """The grammar of `params`, now or when it is made. RequestError, here or in the future, for one that cannot be.

        Others may wait for the same future: it is not to be cancelled.
        """
        _check_installed(params)
        text = grammar_text(params, self._tokenizer.added_tokens)
        with self._lock:
            known = self._kept.get(text)
            if known is not None and not (known.done() and known.exception()):
                self._kept.move_to_end(text)
                return known
            if self._num_waiting >= MAX_WAITING:
                raise busy(params, f"{self._num_waiting} other grammars wait to be compiled")
            made = self._kept[text] = self._submit(lambda: self._compile(text, params))
            self._kept.move_to_end(text)
            self._drop()
            return made

    def _submit(self, work: Callable[[], CompiledGrammar]) -> Future[CompiledGrammar]:
        """To the one thread, which starts when it is first needed, with a deep stack."""
        self._num_waiting += 1

        def counted() -> CompiledGrammar:
            with self._lock:
                self._num_waiting -= 1
            return work()

        if self._compiler is None:
            self._compiler = ThreadPoolExecutor(1, thread_name_prefix="milepost-grammar")
            usual = threading.stack_size(STACK_BYTES)
            try:
                return self._compiler.submit(counted)
            finally:
                threading.stack_size(usual)
        return self._compiler.submit(counted)

    def _drop(self) -> None:
        while len(self._kept) > 1 and (len(self._kept) > MAX_KEPT or sum(map(len, self._kept)) > MAX_KEPT_CHARS):
            self._kept.popitem(last=False)

    def _compile(self, text: str, params: StructuredOutputsParams) -> CompiledGrammar:
        """Here, in the deep thread; the first mask is made here too: the slowest, and the first that can fail."""
        import llguidance

        if self._tokens is None:
            self._tokens = llguidance_tokenizer(self._tokenizer, self._vocab_size, params)
        matcher = llguidance.LLMatcher(self._tokens, text, log_level=0, limits=_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()
        problem = matcher.get_error() if matcher.is_error() else "; ".join(matcher.get_grammar_warnings())
        if problem:
            raise _refused(problem, params)
        return CompiledGrammar(matcher)


def busy(params: StructuredOutputsParams, why: str) -> RequestError:
    """429: the grammar may be a good one."""
    return RequestError(why, "send it again later", status=429, param=params.param)


def _check_installed(params: StructuredOutputsParams) -> None:
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        raise params.error(
            f"structured outputs need the package llguidance, which cannot be imported: {error}",
            f"pip install llguidance on the server, or leave {params.param} out",
        ) from error


def llguidance_tokenizer(tokenizer: Tokenizer, vocab_size: int, params: StructuredOutputsParams) -> LLTokenizer:
    """llguidance's view of a tokenizer; RequestError for a kind that it does not read (byte-level and SentencePiece's
    are what it does)."""
    import llguidance

    eos = sorted(token for token in tokenizer.eos_token_ids if token < vocab_size)
    try:
        return llguidance.LLTokenizer(tokenizer.to_json(), n_vocab=vocab_size, eos_token=eos or None)
    except ValueError as error:
        raise params.error(
            f"structured outputs cannot be kept with this model's tokenizer: {_in_one_line(str(error))}",
            f"leave {params.param} out, or serve another model",
        ) from error


def _limits() -> LLParserLimits:
    """llguidance's own, but for fewer states of the lexer, at 1 to 2 kB each and kept by each sample."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=20_000, verbose_errors=False)


def _refused(problem: str, params: StructuredOutputsParams) -> RequestError:
    what = {"json": "JSON schema", "tool_calls": "tools' JSON schema", "json_object": "JSON schema"}
    name = what.get(params.kind, params.kind)
    hint = f"change {params.param}"
    if "Unimplemented keys" in problem:
        hint = "leave these keywords out: what they ask could not be kept"
        problem = problem[problem.index("Unimplemented keys") :].replace("Unimplemented keys", "unsupported keywords")
    return params.error(f"the {name} cannot be kept: {_in_one_line(problem)}", hint)


def _in_one_line(text: str) -> str:
    """The first line says where, and of a regex a later one what; between them is the text that was sent."""
    lines = [line.strip() for line in text.strip().splitlines()] or ["unknown"]
    what = [line.removeprefix("error: ") for line in lines[1:] if line.startswith("error: ")]
    return " ".join([lines[0][:400], *what[:1]])[:500]
