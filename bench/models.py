"""Folders of random weights for the engines to be compared: equal shapes, equal bytes.

    python -m bench.models ROOT [SHAPE ...]

makes ROOT/models/SHAPE/hf (bf16 safetensors, no tokenizer) and ROOT/models/SHAPE/with-tokenizer: the same files beside
a made-up tokenizer, for the converters that will not do without one. Needs transformers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from milepost.bench import shapes

SHAPES = ("lfm2-350m", "granite-4.0-h-350m", "qwen3.5-0.8b")

VLLM_WANTS = {
    "lfm2": {
        "conv_dim": "hidden_size",
        "conv_dim_out": "hidden_size",
        "block_dim": "hidden_size",
        "block_ff_dim": "intermediate_size",
        "block_norm_eps": "norm_eps",
    }
}
"""Fields of older configs that vLLM still reads, by the field they repeat."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", default=SHAPES)
    arguments = parser.parse_args()
    for shape in arguments.shapes:
        make(arguments.root / "models" / shape, shapes.config_of(shape))


def make(folder: Path, config: dict[str, Any]) -> None:
    """Writes both folders; what is there already is kept."""
    plain, dressed = folder / "hf", folder / "with-tokenizer"
    if not (plain / "config.json").exists():
        save_weights(plain, config)
    complete_config(plain / "config.json", config)
    if not (dressed / "tokenizer.json").exists():
        dressed.mkdir(exist_ok=True)
        for path in plain.iterdir():
            (dressed / path.name).unlink(missing_ok=True)
            (dressed / path.name).symlink_to(path.resolve())
        save_tokenizer(dressed, int(config["vocab_size"]))


def save_weights(folder: Path, config: dict[str, Any]) -> None:
    """Random weights in bf16."""
    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def complete_config(path: Path, config: dict[str, Any]) -> None:
    """The fields that every engine wants, spelled as published checkpoints spell them: transformers writes some of them
    in its own newer way."""
    saved = json.loads(path.read_text())
    repeated = VLLM_WANTS.get(config["model_type"], {})
    saved |= config | {name: config[source] for name, source in repeated.items()}
    saved.pop("time_step_limit", None)  # its default, with an infinity that older readers do not know
    path.write_text(json.dumps(saved, indent=2))


def save_tokenizer(folder: Path, vocab_size: int) -> None:
    """Bytes, one merge, and names without a meaning up to `vocab_size`: no prompt is ever text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, letters[0] * 2]
    tokens += [f"<unused{i}>" for i in range(vocab_size - len(tokens) - 1)] + ["<|endoftext|>"]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [(letters[0], letters[0])]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>").save_pretrained(folder)


if __name__ == "__main__":
    main()
