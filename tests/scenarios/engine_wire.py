"""The engine API: `add`, `step`, `abort`, in this thread."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Many

import torch
from client import Answer, Ask, CacheNumbers, Failed, Refused, Report

from milepost.cache.snapshot import snapshot
from milepost.engine.engine import Engine
from milepost.engine.inputs import read_prompt
from milepost.engine.sampler import Sampled
from milepost.errors import RequestError
from milepost.outputs import CompletionOutput, RequestOutput
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams

NUM_LOGPROBS = 5


class EngineWire:
    """Steps as long as somebody waits."""

    over = "engine"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outputs: dict[str, RequestOutput] = {}
        self.rows: dict[str, dict[int, list[torch.Tensor]]] = {}
        self._ids = itertools.count()
        self._draw = engine.runner.sampler.sample
        engine.runner.sampler.sample = self._sample  # type: ignore[method-assign]

    def begin(self, ask: Ask) -> EnginePending:
        request_id = str(next(self._ids))
        self.rows[request_id] = {index: [] for index in range(ask.num_samples)}
        return EnginePending(self, ask, request_id)

    def step(self) -> None:
        for output in self.engine.step():
            self.outputs[output.request_id] = output

    def let_run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self.engine.has_work:
                self.step()

    def cache(self) -> CacheNumbers:
        told = snapshot(self.engine.scheduler.cache)
        kv, state = told.by_kind["kv"], told.by_kind["state"]
        return CacheNumbers(
            interval=None if not told.has_states else "dense" if told.interval is None else told.interval,
            grid=told.unit if told.has_states else None,
            token_bytes=told.token_bytes,
            checkpoint_bytes=told.checkpoint_bytes,
            budget=told.limit_bytes,
            used=kv.used + state.used,
            resident=kv.resident + state.resident,
            kv_used=kv.used,
            state_used=state.used,
            checkpoints=told.num_checkpoints,
            queries=told.stats.queries,
            matched=told.stats.matched,
            hits=told.stats.hits,
            misses={str(reason): count for reason, count in told.stats.misses.items()},
        )

    def metrics(self) -> str:
        return self.engine.metrics.text().decode()

    def close(self) -> None:
        for request_id in list(self.engine.requests):
            self.engine.abort(request_id)

    def _sample(self, logits: torch.Tensor, seqs: Many[Sequence]) -> list[Sampled | Exception]:
        for row, seq in zip(logits, seqs, strict=True):
            self.rows[seq.request_id][seq.index].append(row.clone())
        return self._draw(logits, seqs)


class EnginePending:
    def __init__(self, wire: EngineWire, ask: Ask, request_id: str) -> None:
        self._wire, self._ask, self._id = wire, ask, request_id
        self._refusal: RequestError | None = None
        params = SamplingParams(
            n=ask.num_samples,
            max_tokens=ask.num_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
            logprobs=NUM_LOGPROBS,
            ignore_eos=True,
        )
        try:
            asked = {"prompt_token_ids": ask.prompt, "cache_breakpoints": ask.breakpoints}
            prompt = read_prompt(asked, wire.engine.model)
            wire.engine.add(request_id, prompt, params, cache_salt=f"{ask.who}/{ask.salt}")
        except RequestError as error:
            self._refusal = error

    @property
    def tokens(self) -> list[int]:
        output = self._wire.outputs.get(self._id)
        return list(output.outputs[0].token_ids) if output is not None else []

    def wait(self, num_tokens: int) -> None:
        while len(self.tokens) < num_tokens and self._id in self._wire.engine.requests:
            self._wire.step()

    def leave(self) -> None:
        self._wire.engine.abort(self._id)

    def finish(self) -> list[Answer]:
        if self._refusal is not None:
            raise Refused(f"{self._refusal.message} (hint: {self._refusal.hint})")
        while self._id in self._wire.engine.requests:
            self._wire.step()
        output, rows = self._wire.outputs[self._id], self._wire.rows.pop(self._id)
        if output.error is not None:
            raise Failed(str(output.error))
        return [self._answer(output, sample, rows[sample.index]) for sample in output.outputs]

    def _answer(self, output: RequestOutput, sample: CompletionOutput, rows: list[torch.Tensor]) -> Answer:
        told = output.cache
        assert told is not None
        return Answer(
            ask=self._ask,
            index=sample.index,
            tokens=list(sample.token_ids),
            logprobs=[{token: one.logprob for token, one in place.items()} for place in sample.logprobs or ()],
            report=Report(
                cached=output.num_cached_tokens,
                matched=told.num_matched_tokens,
                resumed=told.num_resumed_tokens,
                recomputed=told.num_recomputed_tokens,
                reason=told.reason,
                position=told.position,
            ),
            logits=torch.stack(rows),
        )
