"""One request between its start and its end: samples, their text, and what the caller is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.engine.detokenizer import Detokenizer
from milepost.engine.inputs import PromptTokens
from milepost.engine.pooling import Pooled
from milepost.engine.runner import PieceResult
from milepost.engine.sampler import Sampled
from milepost.engine.tokenizer import Tokenizer
from milepost.outputs import CacheReport, CompletionOutput, RequestMetrics, RequestOutput, TokenLogprobs
from milepost.request import Sequence, Status
from milepost.sampling_params import RequestOutputKind, SamplingParams


@dataclass
class Sample:
    """A sequence and the text made of it; `told_*` is how much of each the caller has been given."""

    seq: Sequence
    detokenizer: Detokenizer | None
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    told_text: int = 0
    told_tokens: int = 0
    told_end: bool = False

    def take(self, sampled: Sampled, finish_reason: str | None, stop_reason: int | None) -> tuple[str | None, object]:
        """Adds a token; returns how the sample ends, if it does: the given reason, or a stop string met."""
        if sampled.logprobs is not None:
            self.logprobs.append(sampled.logprobs)
            self.cumulative_logprob += sampled.logprob or 0.0
        if self.detokenizer is None:
            return finish_reason, stop_reason
        ended_by_token = finish_reason == "stop" and not sampled.complete
        hidden = ended_by_token and not self.seq.params.include_stop_str_in_output
        self.text += self.detokenizer.append([] if hidden else [sampled.token_id])
        if finish_reason is not None and self.detokenizer.stopped_by is None:
            self.text += self.detokenizer.flush()
        if self.detokenizer.stopped_by is not None:
            return "stop", self.detokenizer.stopped_by
        return finish_reason, stop_reason

    def output(self, delta: bool) -> CompletionOutput:
        """All so far, or what is new since the last call."""
        first_text, first_token = (self.told_text, self.told_tokens) if delta else (0, 0)
        tokens = self.seq.output_token_ids
        self.told_text, self.told_tokens = len(self.text), len(tokens)
        self.told_end = self.seq.status is Status.FINISHED
        wants_logprobs = self.seq.params.logprobs is not None
        return CompletionOutput(
            index=self.seq.index,
            text=self.text[first_text:],
            token_ids=tokens[first_token:],
            cumulative_logprob=self.cumulative_logprob if wants_logprobs else None,
            logprobs=self.logprobs[first_token:] if wants_logprobs else None,
            finish_reason=self.seq.finish_reason,
            stop_reason=self.seq.stop_reason,
        )


class RequestState:
    """The samples of one request, and its answer as far as it has come."""

    def __init__(
        self,
        prompt: PromptTokens,
        params: SamplingParams,
        sequences: list[Sequence],
        tokenizer: Tokenizer | None,
        arrival_time: float,
    ) -> None:
        self.prompt, self.params = prompt, params
        self.samples = [
            Sample(seq, Detokenizer(tokenizer, params, prompt.ids) if tokenizer and params.detokenize else None)
            for seq in sequences
        ]
        self.metrics = RequestMetrics(arrival_time)
        self.prompt_logprobs: list[TokenLogprobs | None] = [None] * len(prompt.ids) if params.needs_every_row else []
        self._pooled = Pooled(len(prompt.ids))
        self._embedding: list[float] | None = None
        self.error: Exception | None = None

    @property
    def request_id(self) -> str:
        return self.samples[0].seq.request_id

    @property
    def finished(self) -> bool:
        return all(sample.seq.status is Status.FINISHED for sample in self.samples)

    @property
    def completed(self) -> bool:
        """Whether it ended as it was meant to."""
        return self.error is None and all(sample.seq.finish_reason in ("stop", "length") for sample in self.samples)

    def take_pooled(self, result: PieceResult) -> None:
        """Once the last row of the prompt is there, so is the vector. Raises what failed, if it did."""
        if isinstance(result.pooled, Exception):
            raise result.pooled
        self._pooled.take(result.piece, result.pooled)
        if self.params.pooling is not None and result.piece.samples:
            self._embedding = self._pooled.vector(self.params.pooling)

    def take_prompt_logprobs(self, result: PieceResult) -> None:
        """Raises what failed, if it did."""
        if isinstance(result.prompt_logprobs, Exception):
            raise result.prompt_logprobs
        for position, logprobs in result.prompt_logprobs.items():
            self.prompt_logprobs[position] = logprobs

    def output(self) -> RequestOutput | None:
        """What the caller is owed now in the kind it asked for; None while that is nothing."""
        kind, finished = self.params.output_kind, self.finished
        if kind is RequestOutputKind.FINAL_ONLY and not finished:
            return None
        delta = kind is RequestOutputKind.DELTA
        outputs = [sample.output(delta) for sample in self.samples if not (delta and self._nothing_new(sample))]
        if not outputs and not finished:
            return None
        seqs = [sample.seq for sample in self.samples]
        self.metrics.num_preemptions = sum(seq.num_preemptions for seq in seqs)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=self.prompt.ids,
            outputs=outputs,
            finished=finished,
            prompt_logprobs=self.prompt_logprobs if self.params.needs_every_row else None,
            num_cached_tokens=seqs[0].num_cached_tokens,
            cache=_cache_report(seqs[0]),
            embedding=self._embedding if finished and self.error is None else None,
            metrics=self.metrics,
            error=self.error,
        )

    @staticmethod
    def _nothing_new(sample: Sample) -> bool:
        ended = sample.seq.status is Status.FINISHED and not sample.told_end
        return not ended and sample.told_tokens == sample.seq.num_output_tokens


def _cache_report(seq: Sequence) -> CacheReport | None:
    if seq.first_scheduled_time is None:
        return None
    return CacheReport(
        num_prompt_tokens=seq.num_prompt_tokens,
        num_matched_tokens=seq.num_matched_tokens,
        num_resumed_tokens=seq.num_cached_tokens,
        reason=seq.miss.reason if seq.miss else None,
        position=seq.miss.position if seq.miss else None,
    )
