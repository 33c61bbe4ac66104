"""Parity with transformers: one tiny random model, built by both, must give the same logits and the same tokens."""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import torch
import transformers
from piecewise import Reader

from milepost.engine.plain import logits_of
from milepost.models.base import Model
from milepost.models.registry import model_file
from milepost.ops import Target, bind

PROMPT_TOKENS, NEW_TOKENS = 200, 64
TOLERANCE = 1e-4


def tiny_model(config: transformers.PretrainedConfig, seed: int = 0) -> transformers.PreTrainedModel:
    """A random fp32 model. What starts as ones or zeros (norms, biases, decays) is moved, so that it matters."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += torch.randn_like(parameter) * 0.3
    return model.eval()


def twin(theirs: transformers.PreTrainedModel, config: Mapping[str, Any] | None = None) -> Model:
    """Our model with the same weights, built from `config` (a config.json; default: as transformers writes it)."""
    config = theirs.config.to_dict() if config is None else config
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    ours = model_file(config["model_type"]).build(config, ops)
    ours.load_state_dict(theirs.state_dict())
    return ours


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
