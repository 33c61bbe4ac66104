"""What a model's memory of a text takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of keys and values for each token, of one recurrent state (0: the model has none), and whose they are."""

    kv_bytes_per_token: int
    checkpoint_bytes: int
    model: str = ""
