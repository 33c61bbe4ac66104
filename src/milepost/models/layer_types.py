"""Which layer is of which kind, as configs say it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from milepost.errors import ModelError
from milepost.models.base import Config, require

HINT = "the model's config.json is damaged, or of a model that this version does not know"
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
OLDER = {"attention": FULL, "mamba": LINEAR}
"""What configs from before transformers 5 call them."""


def layer_types(config: Config, known: Collection[str], usual: Callable[[int], str]) -> list[str]:
    """The kind of each layer: what the config's `layer_types` says, or the family's `usual(layer)` without it.

    ModelError where the list has not one entry for each layer, or one that is not among `known`.
    """
    num_layers = int(require(config, "num_hidden_layers"))
    stated = config.get("layer_types")
    types = [usual(i) for i in range(num_layers)] if stated is None else [OLDER.get(str(kind), kind) for kind in stated]
    if len(types) != num_layers:
        raise ModelError(f"the config has {num_layers} layers and {len(types)} layer_types", HINT)
    unknown = sorted({str(kind) for kind in types} - set(known))
    if unknown:
        raise ModelError(f"layer types not supported: {', '.join(unknown)}", f"supported here: {', '.join(known)}")
    return types


def layer_windows(config: Config, types: Sequence[str]) -> list[int | None]:
    """The tokens that a row of each layer can see: `sliding_window` in a sliding layer, None (all) in another."""
    if SLIDING not in types:
        return [None] * len(types)
    window = int(require(config, "sliding_window"))
    if window < 1:
        raise ModelError(f"a sliding window of {window} tokens is not possible", HINT)
    return [window if kind == SLIDING else None for kind in types]
