"""Parity with transformers: one tiny random model, built by both, must give the same logits and the same tokens."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import transformers
from piecewise import Reader

from milepost.engine.plain import logits_of
from milepost.models.base import Model
from milepost.models.loader.load import load_model
from milepost.models.loader.source import ModelSource

PROMPT_TOKENS, NEW_TOKENS = 200, 64
TOLERANCE = 1e-4


def tiny_model(config: transformers.PretrainedConfig, seed: int = 0) -> transformers.PreTrainedModel:
    """A random fp32 model. What starts as ones or zeros (norms, biases) is moved, so that it matters, and what a state
    forgets in one row is set to between 0.2 % and 20 % (moved by the row's own time step)."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".A_log"):
                parameter.uniform_(-0.7, 0.7)
            elif name.endswith((".dt_bias", ".dt_proj.bias")):
                parameter.uniform_(-6.0, -2.2)
            elif parameter.ndim == 1:
                parameter += torch.randn_like(parameter) * 0.3
    return model.eval()


def twin(
    theirs: transformers.PreTrainedModel, config: Mapping[str, Any] | None = None, dtype: torch.dtype = torch.float32
) -> Model:
    """Our model with the same weights in `dtype`, built from `config` (a config.json; default: as transformers writes
    it)."""
    config = theirs.config.to_dict() if config is None else config
    source = ModelSource(Path("twin"), "memory", dict(config), {}, Weights(theirs.state_dict()))
    return load_model(source, dtype).model


@dataclass(frozen=True)
class Weights:
    """Tensors in memory: a `TensorFile`."""

    tensors: Mapping[str, torch.Tensor]

    def names(self) -> list[str]:
        return list(self.tensors)

    def stored_as(self, name: str) -> str:
        return "F32"

    def num_bytes(self, dtype: torch.dtype) -> int:
        return sum(tensor.numel() for tensor in self.tensors.values()) * dtype.itemsize

    def read(self, names: Collection[str], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, tensor) for name, tensor in self.tensors.items() if name in names)


def prompt_of(vocab_size: int, num_tokens: int = PROMPT_TOKENS, seed: int = 1) -> list[int]:
    return torch.randint(0, vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def difference(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """How far apart, relative to `expected`."""
    return float((logits - expected).norm() / expected.norm())


def logits_by_transformers(theirs: transformers.PreTrainedModel, prompt: list[int]) -> torch.Tensor:
    """Logits [tokens, vocab] of the prompt read in one piece."""
    with torch.inference_mode():
        return theirs(torch.tensor([prompt])).logits[0]


def tokens_by_transformers(theirs: transformers.PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """The most likely tokens after the prompt; none ends the answer."""
    answer = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
    )
    return answer[0, len(prompt) :].tolist()


def check_parity(config: transformers.PretrainedConfig, spelled: Mapping[str, Any] | None = None) -> None:
    """The logits of a prompt within 1e-4, and equal greedy tokens. `spelled`: the config.json that we read instead."""
    theirs = tiny_model(config)
    ours, prompt = twin(theirs, spelled), prompt_of(config.get_text_config().vocab_size)
    assert difference(logits_of(ours, prompt), logits_by_transformers(theirs, prompt)) < TOLERANCE
    assert Reader(ours).greedy("a", prompt, NEW_TOKENS) == tokens_by_transformers(theirs, prompt, NEW_TOKENS)


def check_pieces(config: transformers.PretrainedConfig) -> None:
    """Three prompts, packed, each read in other pieces; then one is given up, resumed elsewhere and read to its end."""
    theirs = tiny_model(config)
    ours, vocab_size = twin(theirs), config.get_text_config().vocab_size
    prompts = {name: prompt_of(vocab_size, n, seed=n) for name, n in (("a", 215), ("b", 150), ("c", 66))}
    expected = {name: logits_by_transformers(theirs, prompt) for name, prompt in prompts.items()}
    reader, found = Reader(ours), {name: [] for name in prompts}
    for pieces in _pieces(prompts, {"a": (1, 17, 63, 64, 65, 5), "b": (65, 1, 64, 17, 3), "c": (63, 2, 1)}):
        for name, logits in reader.read(pieces).items():
            found[name].append(logits)
    for name, logits in found.items():
        assert difference(torch.cat(logits), expected[name]) < TOLERANCE

    kept = reader.resume("again", of="a")
    assert kept == 192
    rest = reader.read({"b": prompts["a"][:1], "again": prompts["a"][kept:]})["again"]
    assert difference(rest, expected["a"][kept:]) < TOLERANCE


def _pieces(prompts: Mapping[str, list[int]], sizes: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, list[int]]]:
    """One batch after another: of each prompt its next piece, until all are read."""
    starts = {name: (0, *accumulate(of)) for name, of in sizes.items()}
    assert all(starts[name][-1] == len(prompt) for name, prompt in prompts.items())
    for i in range(max(map(len, sizes.values()))):
        yield {
            name: prompt[starts[name][i] : starts[name][i + 1]]
            for name, prompt in prompts.items()
            if i < len(sizes[name])
        }
