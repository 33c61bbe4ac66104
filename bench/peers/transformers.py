"""transformers: one pass over the prompt, then a loop over its cache. It keeps nothing from one request to the next."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers

from bench.peers.child import Prompts, Settings, main


class Transformers:
    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(settings.threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.bfloat16).eval()
        self.prompts = Prompts(self.model.config.vocab_size)
        self.about = {"version": transformers.__version__, "threads": torch.get_num_threads()}

    @torch.inference_mode()
    def prefill(self, tokens: int) -> dict[str, Any]:
        ids = self._batch(1, tokens)
        start = time.perf_counter()
        self._read(ids)
        return {"seconds": time.perf_counter() - start, "work": tokens}

    @torch.inference_mode()
    def decode(self, batch: int, prompt: int, tokens: int) -> dict[str, Any]:
        out = self._read(self._batch(batch, prompt))
        start = time.perf_counter()
        self._draw(out, tokens)
        return {"seconds": time.perf_counter() - start, "work": batch * tokens}

    @torch.inference_mode()
    def burst(self, requests: int, prompt: int, answer: int) -> dict[str, Any]:
        """All requests are equally long, so they are one batch without padding."""
        ids = self._batch(requests, prompt)
        start = time.perf_counter()
        self._draw(self._read(ids), answer - 1)
        return {"seconds": time.perf_counter() - start, "work": requests * answer}

    def _batch(self, batch: int, num_tokens: int) -> torch.Tensor:
        return torch.tensor([self.prompts.fresh(num_tokens) for _ in range(batch)])

    def _read(self, ids: torch.Tensor) -> Any:
        return self.model(ids, use_cache=True, logits_to_keep=1)

    def _draw(self, out: Any, num_tokens: int) -> None:
        for _ in range(num_tokens):
            ids = out.logits[:, -1].argmax(-1, keepdim=True)
            out = self.model(ids, past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)


if __name__ == "__main__":
    main(Transformers)
