"""Building a model without memory for its weights: its parameters' names and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from milepost.errors import MilepostError, ModelError
from milepost.models.base import Model
from milepost.models.loader.wording import one_line
from milepost.models.registry import model_file
from milepost.ops import Ops, Target, bind

MAX_HEAD_DIM = 1 << 14
HINT = "the model's config is damaged or of a kind that this version does not know"


def build_on_meta(config: Mapping[str, Any], num_tensors: int, ops: Ops | None = None) -> Model:
    """The model that `config` describes, its parameters on the meta device. `ops`: the torch reference if not given.

    `num_tensors` is how many tensors the checkpoint holds: a model of more layers than that is not built. ModelError
    where no model can be made of the config.
    """
    module = model_file(str(config.get("model_type")))
    _check_sizes(config, num_tensors)
    if ops is None:
        ops, _ = bind(Target(torch.device("cpu"), torch.float32), backends=[])
    try:
        with torch.device("meta"):
            return module.build(config, ops).eval()
    except MilepostError:
        raise
    except Exception as error:  # whatever a wrong type, sign or size in a config leads to
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"no model can be built of the config: {what}", HINT) from error


def _check_sizes(config: Mapping[str, Any], num_tensors: int) -> None:
    """Sizes that would take hours or all memory to build before any tensor could show that they are wrong."""
    layers, head_dim = config.get("num_hidden_layers"), config.get("head_dim")
    if isinstance(layers, int) and layers > num_tensors:
        raise ModelError(f"the config has {layers} layers, and the checkpoint only {num_tensors} tensors", HINT)
    for key in ("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_hidden_layers"):
        if isinstance(config.get(key), int) and config[key] <= 0:
            raise ModelError(f"the config has {key} = {config[key]}", HINT)
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int):
        head_dim = hidden // heads
    if isinstance(head_dim, int | float) and not 0 < head_dim <= MAX_HEAD_DIM:
        raise ModelError(f"the config gives each head {head_dim} values", HINT)
