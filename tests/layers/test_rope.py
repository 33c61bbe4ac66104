"""Rotary angles: the kinds that no test of a whole model against transformers covers."""

import math
from typing import Any

import pytest
import torch

from milepost.errors import ModelError
from milepost.layers.rope import Rope, rope_from_config
from milepost.ops import Target, bind

OPS = bind(Target(torch.device("cpu"), torch.float32), [])[0]

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def rope(scaling: dict[str, Any] | None = None, head_dim: int = 128, **config: Any) -> torch.Tensor:
    return made(scaling, head_dim, **config).inv_freq


def made(scaling: dict[str, Any] | None = None, head_dim: int = 128, **config: Any) -> Rope:
    return rope_from_config({"rope_theta": 500_000.0, "rope_scaling": scaling, **config}, head_dim, OPS)


def test_factors_divide_each_frequency() -> None:
    factors = [1.0 + i for i in range(64)]
    divided = rope({"rope_type": "freq_factors", "factors": factors})
    assert torch.equal(divided, rope() / torch.tensor(factors))


def test_llama3_as_factors_is_llama3() -> None:
    """The factors by the Llama 3.1 report's rule, in float64, as a converter to GGUF stores them."""
    factors = []
    for i in range(0, 128, 2):
        wavelength = 2 * math.pi * 500_000.0 ** (i / 128)
        turns = 8192 / wavelength
        blend = min(max((turns - 1) / (4 - 1), 0), 1)
        factors.append(1 / ((1 - blend) / 8 + blend))
    assert factors[0] == 1
    assert factors[-1] == 8
    torch.testing.assert_close(rope({"rope_type": "freq_factors", "factors": factors}), rope(LLAMA3), rtol=1e-6, atol=0)


def test_the_number_of_factors_must_fit() -> None:
    with pytest.raises(ModelError, match=r"factors have shape \(3,\), expected \(64,\)"):
        rope({"rope_type": "freq_factors", "factors": [1.0, 2.0, 3.0]})


@pytest.mark.parametrize(("head_dim", "fraction"), [(128, 2.0), (128, 0.001), (128, -1.0), (7, 1.0), (0, 1.0)])
def test_heads_that_cannot_be_rotated(head_dim: int, fraction: float) -> None:
    with pytest.raises(ModelError, match="rotary angles over"):
        rope(head_dim=head_dim, partial_rotary_factor=fraction)


def test_part_of_a_head() -> None:
    assert torch.equal(rope(partial_rotary_factor=0.5), rope(head_dim=64))


def test_kinds_that_depend_on_the_length_are_refused() -> None:
    with pytest.raises(ModelError, match="rope type 'dynamic' is not supported"):
        rope({"rope_type": "dynamic", "factor": 2.0})


def test_constants_stay_on_the_cpu_when_a_model_is_built_without_memory() -> None:
    with torch.device("meta"):
        assert torch.equal(rope(), rope())
        assert not rope({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}).is_meta


def test_angles_are_positions_times_frequencies_scaled_by_yarns_factor() -> None:
    positions = torch.tensor([0, 1, 5000, 131_071])
    for rotary, factor in (
        (made(), 1.0),
        (made({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}), 0.1 * math.log(4) + 1),
    ):
        angles = (positions.float()[:, None] * rotary.inv_freq).double()
        cos, sin = rotary(positions)
        torch.testing.assert_close(cos, (angles.cos() * factor).float(), rtol=0, atol=2e-7)
        torch.testing.assert_close(sin, (angles.sin() * factor).float(), rtol=0, atol=2e-7)
