"""vLLM on the processor: its offline engine, compiled, stepped by hand. Options: eager=1."""

from __future__ import annotations

import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "3")

import torch
import vllm  # type: ignore[import-not-found]
from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

from bench.peers.child import Prompts, Runs, Settings, main


class Vllm:
    def __init__(self, settings: Settings) -> None:
        llm = vllm.LLM(
            model=str(settings.model),
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=settings.context,
            enable_prefix_caching=settings.prefix_caching,
            enforce_eager=settings.options.get("eager") == "1",
            disable_log_stats=True,
        )
        self.engine = llm.llm_engine
        self.cached: int | None = None
        self.vocab_size = llm.model_config.get_vocab_size()
        self.about = {"version": vllm.__version__, "threads": torch.get_num_threads(), "torch": torch.__version__}

    def add(self, number: int, ids: list[int], max_tokens: int) -> None:
        params = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self.engine.add_request(str(number), {"prompt_token_ids": ids}, params)

    def step(self) -> list[int]:
        outputs = self.engine.step()
        for output in outputs:
            self.cached = output.num_cached_tokens
        return [int(output.request_id) for output in outputs for _ in output.outputs[0].token_ids]

    def busy(self) -> bool:
        return self.engine.has_unfinished_requests()


def make(settings: Settings) -> Runs:
    engine = Vllm(settings)
    return Runs(engine, Prompts(engine.vocab_size))


if __name__ == "__main__":
    main(make)
