"""The engine behind a server: a thread that steps, and asyncio streams that it feeds."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from milepost.cache.snapshot import CacheSnapshot
from milepost.cache.tree_snapshot import TreeSnapshot, tree_snapshot
from milepost.config import EngineConfig
from milepost.engine.build import Progress, build_engine
from milepost.engine.chat import ChatTemplate
from milepost.engine.engine import Engine
from milepost.engine.grammars import COMPILE_SECONDS, CompiledGrammar, busy
from milepost.engine.inputs import Prompt, PromptTokens, is_chat, read_chat, read_grammar, read_prompt
from milepost.engine.prefixes import PinFor
from milepost.engine.record_file import RecordFile
from milepost.engine.stat_log import StatLog
from milepost.engine.tokenizer import Tokenizer
from milepost.errors import RequestError, RequestFailed, frames_of
from milepost.outputs import PinnedPrefix, PrewarmOutput, RequestOutput
from milepost.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

STALL_SECONDS = 120.0
"""A step that takes longer than this is taken for a hang."""

Item = RequestOutput | Exception
T = TypeVar("T")


@dataclass(frozen=True)
class Stream:
    """Where one request's outputs go: a queue of the event loop that asked."""

    loop: asyncio.AbstractEventLoop
    items: asyncio.Queue[Item]


class AsyncLLM:
    """Many callers, one engine. Only the engine's thread touches the engine; callers send it what to do. `log_stats`: a
    line in the log every ten seconds while there is work."""

    def __init__(self, engine: Engine, *, log_stats: bool = False) -> None:
        self._engine = engine
        self._stats = StatLog(engine.metrics, engine.clock)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[str, Stream] = {}
        self._asked: set[Future[Any]] = set()
        self._closed = False
        self._last_step = engine.clock()
        self._num_threads = torch.get_num_threads()
        self.errored: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="milepost-engine", daemon=True)
        self._thread.start()
        if log_stats:
            self._stats.start()

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress | None = None) -> AsyncLLM:
        """Loads the model (minutes for a large one; `progress(bytes_done, bytes_total)` follows it) and starts."""
        return cls(build_engine(config, progress), log_stats=not config.disable_log_stats)

    @property
    def model_name(self) -> str:
        return self._engine.model.name

    @property
    def max_model_len(self) -> int:
        return self._engine.model.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._engine.model.vocab_size

    @property
    def hidden_size(self) -> int:
        return self._engine.model.hidden_size

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._engine.model.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._engine.model.chat_template

    @property
    def default_sampling(self) -> Mapping[str, float]:
        """Sampling fields that the model's generation_config sets."""
        return self._engine.model.default_sampling

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Outputs of one request as they come, in the kind that `sampling_params.output_kind` asks for.

        Raises `RequestError` before the first one for a request that cannot run, `RequestFailed` for one that fails
        inside. Leaving the iterator early ends the request within a step.
        """
        tokens = await asyncio.to_thread(read_prompt, prompt, self._engine.model)

        grammar = await self._grammar(sampling_params)

        def add() -> None:
            self._engine.add(
                request_id, tokens, sampling_params, priority=priority, cache_salt=cache_salt, grammar=grammar
            )

        async with contextlib.aclosing(self._outputs(request_id, add)) as outputs:
            async for output in outputs:
                yield output

    async def prewarm(
        self,
        prompt: Prompt | Sequence[Mapping[str, Any]],
        request_id: str | None = None,
        *,
        pin: bool | PinFor = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> PrewarmOutput:
        """Computes a prompt, or the beginning of a chat, for the cache and generates nothing. With `pin` it stays until
        it is unpinned; only a request that could not run otherwise takes its memory. `request_id` None: one is made.

        Raises as `generate` does, and `RequestError` where prefix caching is off or no more may be pinned. Cancelled,
        the request ends within a step, and nothing is pinned.
        """
        request_id = f"prewarm-{uuid.uuid4().hex}" if request_id is None else request_id
        owner = pin if isinstance(pin, PinFor) else PinFor() if pin else None
        asked = {"add_generation_prompt": add_generation_prompt, "tools": tools, **(chat_template_kwargs or {})}

        def read() -> PromptTokens:
            read = read_chat(prompt, self._engine.model, asked) if is_chat(prompt) else prompt
            return read_prompt(read, self._engine.model)  # type: ignore[arg-type]

        tokens = await asyncio.to_thread(read)

        def add() -> None:
            self._engine.prewarm(request_id, tokens, pin=owner, priority=priority, cache_salt=cache_salt)

        try:
            async with contextlib.aclosing(self._outputs(request_id, add)) as outputs:
                (output,) = [output async for output in outputs]
            warm = await self._ask(lambda: self._engine.prewarmed(output, cache_salt))
            self._inbox.put(lambda: self._engine.prefixes.heard(request_id))
            return warm
        except asyncio.CancelledError:  # nobody hears what was pinned
            self._inbox.put(lambda: self._engine.prefixes.withdraw(request_id))
            raise

    async def unpin(self, prefix: str | PrewarmOutput, owner: str | None = None) -> bool:
        """A prefix, or its id, may be evicted again; False if it is not pinned by `owner` (None: by anybody)."""
        name = prefix if isinstance(prefix, str) else prefix.id
        return await self._ask(lambda: self._engine.unpin(name, owner))

    async def pinned_prefixes(self, owner: str | None = None) -> list[PinnedPrefix]:
        """Those that `owner` (None: anybody) has pinned, in the order in which they were."""
        return await self._ask(lambda: self._engine.prefixes.pinned(owner))

    async def cache_tree(self, scope: str | None = None) -> TreeSnapshot:
        """The tree of known prefixes between two steps, of one scope (a `cache_salt`) or of all. It looks at all of
        it: for somebody who asks."""
        return await self._ask(lambda: tree_snapshot(self._engine.scheduler.cache, scope))

    async def _grammar(self, params: SamplingParams) -> CompiledGrammar | None:
        """The grammar that `params` asks for, once it is compiled: neither by the engine's thread nor by the loop's."""
        if params.structured_outputs is None:
            return None
        compiling = await asyncio.to_thread(read_grammar, params, self._engine.model)
        assert compiling is not None
        try:  # others may wait for the same one: it goes on when this caller leaves
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(compiling)), COMPILE_SECONDS)
        except TimeoutError:
            raise busy(
                params.structured_outputs, f"the grammar was not compiled within {COMPILE_SECONDS:g} s"
            ) from None

    async def _outputs(self, request_id: str, add: Callable[[], None]) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of the request that `add`, called on the engine's thread, puts in line."""
        stream = self._open(request_id)
        self._inbox.put(lambda: self._begin(request_id, add))
        finished = False
        try:
            while not finished:
                item = await stream.items.get()
                finished = isinstance(item, Exception) or item.finished
                if isinstance(item, Exception):
                    raise item
                if item.error is not None:
                    if isinstance(item.error, RequestFailed):
                        item.error.output = item
                    raise item.error
                yield item
        finally:
            if not finished:
                self._inbox.put(lambda: self._abort(request_id, stream))

    async def abort(self, request_id: str) -> None:
        """Ends a request; its stream gets a last output with `finish_reason` "abort"."""
        stream = self._streams.get(request_id)
        if stream is not None:
            self._inbox.put(lambda: self._abort(request_id, stream))

    async def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes; False while requests run. `RequestFailed` once the engine has stopped."""
        return await self._ask(self._engine.reset_prefix_cache)

    def record(self, file: RecordFile) -> None:
        """From now on each request that ends is written to `file`; before the first one. `ConfigError` if it cannot."""
        self._engine.record(file)

    @property
    def stalled(self) -> bool:
        """Whether there is work but no step has ended for `STALL_SECONDS`."""
        return bool(self._streams) and self._engine.clock() - self._last_step > STALL_SECONDS

    def metrics_text(self) -> bytes:
        """Prometheus's text format."""
        return self._engine.metrics.text()

    def cache_snapshot(self) -> CacheSnapshot:
        """What the cache held after the last step, made before anybody was told of it."""
        found = self._engine.metrics.cache_snapshot
        assert found is not None, "the engine makes one at its start"
        return found

    def shutdown(self) -> None:
        """Stops stepping; requests still running end with an error."""
        self._closed = True
        self._stats.stop()
        self._inbox.put(lambda: None)
        self._thread.join(timeout=10)
        if self._engine.recorder is not None:
            self._engine.recorder.close()

    def _open(self, request_id: str) -> Stream:
        """Registered before it is looked whether the engine runs: an engine that stops now fails this stream too."""
        if request_id in self._streams:
            raise RequestError(f"request id {request_id!r} is running already", "choose another", param="request_id")
        stream = self._streams[request_id] = Stream(asyncio.get_running_loop(), asyncio.Queue())
        if self._closed or self.errored is not None:
            del self._streams[request_id]
            raise self.errored or RequestFailed("the server is shutting down", "try again later")
        return stream

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)  # OpenMP keeps the number for each thread that asks for work
        try:
            while not self._closed:
                self._take_inbox()
                outputs = self._engine.step() if self._engine.has_work else []
                self._deliver(outputs)
                self._last_step = self._engine.clock()
        except Exception as error:  # a defect in the engine itself: say so, refuse work, let /health turn red
            logger.error("the engine stopped: %s", frames_of(error))
            self.errored = RequestFailed(f"the engine stopped: {type(error).__name__}", "see the log, and restart")
            self.errored.__cause__ = error
        self._fail_streams(self.errored or RequestFailed("the server is shutting down", "try again later"))

    def _take_inbox(self) -> None:
        """Does what callers sent; waits for something when there is nothing else to do."""
        with contextlib.suppress(queue.Empty):
            if not self._engine.has_work:
                action = self._inbox.get()
                self._last_step = self._engine.clock()  # idle time is no stall
                action()
            while True:
                self._inbox.get_nowait()()

    async def _ask(self, question: Callable[[], T]) -> T:
        """The answer that the engine's thread gives between two steps. `RequestFailed` once the engine has stopped."""
        answer: Future[T] = Future()
        self._asked.add(answer)  # before it is looked whether the engine runs: one that stops now fails it too
        try:
            if self._closed or self.errored is not None:
                raise self.errored or RequestFailed("the server is shutting down", "try again later")
            self._inbox.put(lambda: _answer(answer, question))
            return await asyncio.wrap_future(answer)
        finally:
            self._asked.discard(answer)

    def _begin(self, request_id: str, add: Callable[[], None]) -> None:
        try:
            add()
        except Exception as error:
            stream = self._streams.pop(request_id, None)
            if stream is not None:
                _put(stream, error)

    def _abort(self, request_id: str, stream: Stream) -> None:
        """`stream` is that of the request meant: a later one of the same id goes on."""
        if self._streams.get(request_id) is not stream:
            return
        output = self._engine.abort(request_id)
        if output is not None:
            self._deliver([output])
        self._streams.pop(request_id, None)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if output.finished:  # before the reader wakes: it may use the id again at once
                self._streams.pop(output.request_id, None)
            if stream is not None:
                _put(stream, output)

    def _fail_streams(self, error: Exception) -> None:
        for stream in list(self._streams.values()):
            _put(stream, error)
        self._streams.clear()
        for answer in list(self._asked):
            _answer(answer, functools.partial(_raise, error))


def _answer(answer: Future[T], question: Callable[[], T]) -> None:
    if answer.done() or not answer.set_running_or_notify_cancel():  # nobody waits for it
        return
    try:
        answer.set_result(question())
    except Exception as error:
        answer.set_exception(error)


def _raise(error: Exception) -> Any:
    raise error


def _put(stream: Stream, item: Item) -> None:
    with contextlib.suppress(RuntimeError):  # the caller's event loop has closed: nobody listens
        stream.loop.call_soon_threadsafe(stream.items.put_nowait, item)
