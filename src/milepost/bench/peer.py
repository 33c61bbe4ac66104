"""transformers on the same shape, for `milepost bench --against transformers`."""

from __future__ import annotations

import random
import time
from typing import Any

import torch

from milepost.errors import ConfigError


class TransformersPeer:
    """A random model of a shape's config. Its weights are its own: times depend on shapes alone."""

    def __init__(self, config: dict[str, Any], dtype: torch.dtype, seed: int = 0) -> None:
        """ConfigError if transformers is not installed."""
        try:
            import transformers
        except ImportError as error:
            raise ConfigError("transformers is not installed", "pip install transformers") from error
        made = transformers.AutoConfig.for_model(**config)
        self.model = transformers.AutoModelForCausalLM.from_config(made, dtype=dtype).eval()
        self._rng = random.Random(seed)

    @torch.inference_mode()
    def prefill_rate(self, num_tokens: int) -> float:
        """Tokens a second of one pass over a fresh prompt, which computes the last row's logits."""
        ids = self._ids(1, num_tokens)
        start = time.perf_counter()
        self.model(ids, use_cache=True, logits_to_keep=1)
        return num_tokens / (time.perf_counter() - start)

    @torch.inference_mode()
    def decode_rate(self, batch: int, num_prompt_tokens: int, num_tokens: int) -> float:
        """Tokens a second over `num_tokens` steps after a prompt, one row of each of `batch` sequences a step."""
        ids = self._ids(batch, num_prompt_tokens)
        out = self.model(ids, use_cache=True, logits_to_keep=1)
        start = time.perf_counter()
        for _ in range(num_tokens):
            next_ids = out.logits[:, -1].argmax(-1, keepdim=True)
            out = self.model(next_ids, past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)
        return batch * num_tokens / (time.perf_counter() - start)

    def _ids(self, batch: int, num_tokens: int) -> torch.Tensor:
        size = self.model.config.vocab_size
        return torch.tensor([[self._rng.randrange(size) for _ in range(num_tokens)] for _ in range(batch)])
