"""The engine: requests in, a step at a time, answers out. One thread; the faces around it bring their own."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from milepost.cache.keys import prefix_id
from milepost.cache.snapshot import snapshot
from milepost.engine.grammars import CompiledGrammar
from milepost.engine.inputs import PromptTokens, check_params, max_output_tokens, read_grammar
from milepost.engine.metrics import Metrics
from milepost.engine.prefixes import PinFor, Prefixes
from milepost.engine.record import Recorder, header_of
from milepost.engine.record_file import RecordFile
from milepost.engine.request_state import RequestState, Sample
from milepost.engine.runner import PieceResult, Runner
from milepost.engine.sampler import Sampled
from milepost.engine.scheduler import Scheduler, Step
from milepost.engine.served_model import ServedModel
from milepost.errors import RequestError, RequestFailed, frames_of
from milepost.outputs import PrewarmOutput, RequestOutput
from milepost.request import Sequence, Status
from milepost.sampling_params import RequestOutputKind, SamplingParams

logger = logging.getLogger(__name__)

Clock = Callable[[], float]

PREWARM = SamplingParams(max_tokens=0, seed=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)


class Engine:
    """Continuous batching: each step runs the rows that the scheduler chose among all requests.

    `clock` gives seconds and `rng` the seeds of requests that bring none; both are passed in, so that a run can be
    replayed.
    """

    def __init__(
        self,
        model: ServedModel,
        scheduler: Scheduler,
        runner: Runner,
        metrics: Metrics,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.model, self.scheduler, self.runner, self.metrics = model, scheduler, runner, metrics
        self.clock, self.rng = clock, rng
        self.prefixes = Prefixes(scheduler)
        self.requests: dict[str, RequestState] = {}
        self.recorder: Recorder | None = None
        metrics.load(scheduler)

    def step(self) -> list[RequestOutput]:
        """Schedule, run, update: one forward pass; what each request's caller is to be told after it."""
        step = self.scheduler.schedule(self.clock())
        try:
            results = self.runner.run(step.pieces) if step.pieces else []
        except Exception as error:  # the pass itself failed: its requests end, the others go on
            logger.error("a step of %d rows failed", sum(p.end - p.start for p in step.pieces))
            return self._fail_all(step, error)
        return self.update(step, results)

    def update(self, step: Step, results: list[PieceResult]) -> list[RequestOutput]:
        self.scheduler.advance(step)
        touched = self._states(step.finished)
        for result in results:
            if result.piece.seq.status is Status.FINISHED:  # a sibling sample's failure ended it in this very step
                continue
            state = self.requests[result.piece.seq.request_id]
            touched[state.request_id] = state
            try:
                self._take(state, result)
            except Exception as error:
                self._fail(state, error)
        self.metrics.step(step)
        return self._outputs(touched)

    def add(
        self,
        request_id: str,
        prompt: PromptTokens,
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        grammar: CompiledGrammar | None = None,
    ) -> None:
        """Queues a request; raises `RequestError` for one that can never run, with nothing changed.

        `grammar` is that of `params`; left out, it is waited for here.
        """
        if request_id in self.requests:
            raise RequestError(f"request id {request_id!r} is running already", "choose another", param="request_id")
        check_params(params, self.model)
        if grammar is None and (compiling := read_grammar(params, self.model)) is not None:
            grammar = compiling.result()
        now = self.clock()
        seed = self.rng.getrandbits(64) if params.seed is None else params.seed % 2**64
        sequences = [
            Sequence(
                request_id,
                list(prompt.ids),
                len(prompt.ids),
                params,
                index=i,
                seed=seed,
                priority=priority,
                arrival_time=now,
                cache_salt=cache_salt,
                constraint=grammar.start() if grammar else None,
                boundaries=prompt.places.boundaries,
                breakpoints=prompt.places.breakpoints,
            )
            for i in range(params.n)
        ]
        state = RequestState(prompt, params, sequences, self.model.tokenizer, now)
        for seq in sequences:
            self.scheduler.add(seq)
        self.requests[request_id] = state

    def prewarm(
        self,
        request_id: str,
        prompt: PromptTokens,
        *,
        pin: PinFor | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> None:
        """Queues a request that computes its prompt for the cache and generates nothing; with `pin` it is pinned in the
        step that ends it. Raises `RequestError` as `add` does, and where nothing would be kept or may be pinned."""
        if not self.scheduler.cache.enabled:
            raise RequestError(
                "prefix caching is off, so that nothing computed would be kept",
                "start with --enable-prefix-caching",
            )
        asked = None if pin is None else self.prefixes.ask(prompt.ids, cache_salt, pin)
        self.add(request_id, prompt, PREWARM, priority=priority, cache_salt=cache_salt)
        if asked is not None:
            self.prefixes.expect(request_id, asked)

    def prewarmed(self, output: RequestOutput, cache_salt: str = "") -> PrewarmOutput:
        """What is there now of the prompt of `output`, which has ended."""
        tokens = output.prompt_token_ids
        name = prefix_id(cache_salt, tokens)
        return PrewarmOutput(
            id=name,
            num_tokens=len(tokens),
            num_cached_tokens=output.num_cached_tokens,
            num_resident_tokens=self.scheduler.cache.resident(tokens, cache_salt),
            pinned=self.prefixes.is_pinned(name),
        )

    def unpin(self, name: str, owner: str | None = None) -> bool:
        """The prefix may be evicted again; False if none of that id is pinned by `owner` (None: by anybody)."""
        done = self.prefixes.unpin(name, owner)
        self.metrics.load(self.scheduler)
        return done

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request now and frees what it holds; its last output, or None if there is no such request."""
        state = self.requests.get(request_id)
        if state is None:
            return None
        self._end(state, "abort")
        return self._outputs({request_id: state})[0]

    def record(self, file: RecordFile) -> None:
        """From now on each request that ends is written to `file`, by a thread of its own; before the first one."""
        header = header_of(self.model.name, snapshot(self.scheduler.cache), datetime.now(UTC))
        self.recorder = Recorder(file, header, self.metrics.registry, self.model.name, self.clock)

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes; False, and nothing changed, while requests run."""
        done = self.scheduler.cache.reset()
        self.metrics.load(self.scheduler)
        return done

    def _take(self, state: RequestState, result: PieceResult) -> None:
        state.take_prompt_logprobs(result)
        state.take_pooled(result)
        if state.metrics.first_scheduled_time is None:
            state.metrics.first_scheduled_time = result.piece.seq.first_scheduled_time
        if isinstance(result.sampled, Exception):
            raise result.sampled
        if result.sampled is None:
            if result.piece.samples:  # the prompt is computed, and that was all
                self.scheduler.finish(result.piece.seq, "length")
            return
        sample = state.samples[result.piece.seq.index]
        sample.seq.tokens.append(result.sampled.token_id)
        self.metrics.token(state, self.clock())
        reason, stop = sample.take(result.sampled, *self._finish(sample, result.sampled))
        if reason is not None:
            self.scheduler.finish(sample.seq, reason)
            sample.seq.stop_reason = stop  # type: ignore[assignment]

    def _finish(self, sample: Sample, sampled: Sampled) -> tuple[str | None, int | None]:
        """Whether a token, just added, ends its sample: the reason, and the stop token if the caller named it."""
        seq, params, token = sample.seq, sample.seq.params, sampled.token_id
        if seq.num_output_tokens >= params.min_tokens:
            if token in (params.stop_token_ids or ()):
                return "stop", token
            if token in self.model.eos_token_ids and not params.ignore_eos:
                return "stop", None
        if sampled.complete:
            return "stop", None
        if seq.num_output_tokens >= max_output_tokens(params, seq.num_prompt_tokens, self.model.max_model_len):
            return "length", None
        return None, None

    def _fail(self, state: RequestState, error: Exception) -> None:
        if isinstance(error, RequestFailed | RequestError):
            logger.warning("request %s failed: %s", state.request_id, error.message)
        else:
            logger.warning("request %s failed: %s", state.request_id, frames_of(error))
            failure = RequestFailed(f"the request failed inside: {type(error).__name__}", "see the server's log")
            failure.__cause__ = error  # for the log and for callers in this process; clients see the line above
            error = failure
        state.error = error
        self._end(state, "error")

    def _fail_all(self, step: Step, error: Exception) -> list[RequestOutput]:
        failed = self._states(piece.seq for piece in step.pieces)
        for state in failed.values():
            self._fail(state, error)
        return self._outputs(failed | self._states(step.finished))

    def _states(self, seqs: Iterable[Sequence]) -> dict[str, RequestState]:
        return {seq.request_id: self.requests[seq.request_id] for seq in seqs}

    def _end(self, state: RequestState, reason: str) -> None:
        for sample in state.samples:
            if sample.seq.status is not Status.FINISHED:
                self.scheduler.finish(sample.seq, reason)

    def _outputs(self, states: dict[str, RequestState]) -> list[RequestOutput]:
        outputs = []
        for state in states.values():
            if state.finished:
                state.metrics.finished_time = self.clock()
                del self.requests[state.request_id]
                self.prefixes.settle(state.request_id, computed=state.completed)
                self.metrics.finished(state)
                if self.recorder is not None:
                    self.recorder.ended(state)
            output = state.output()
            if output is not None:
                outputs.append(output)
        self.metrics.load(self.scheduler)
        return outputs
