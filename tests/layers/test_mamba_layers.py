"""The Mamba mixers alone: what they hand to the recurrence, the norm with its gate, sizes that cannot be."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from families import FAMILIES

from milepost.engine.pools import allocate_pools
from milepost.errors import ModelError
from milepost.layers.causal_conv import CausalConv
from milepost.layers.mamba import Mamba, MambaShape
from milepost.layers.mamba2 import GatedNorm, Mamba2, Mamba2Shape
from milepost.layers.wide import WideParameter
from milepost.models.loader.load import load_model
from milepost.models.loader.random_weights import random_source
from milepost.ops import ForwardBatch, Ops, Rows, Target, bind

CPU = torch.device("cpu")


def ops_for(dtype: torch.dtype = torch.float32) -> Ops:
    return bind(Target(CPU, dtype))[0]


def bfloat16(layer: torch.nn.Module) -> torch.nn.Module:
    """As the loader does it: wide parameters stay fp32."""
    layer = layer.bfloat16()
    for parameter in layer.parameters():
        if isinstance(parameter, WideParameter):
            parameter.data = parameter.data.float()
    return layer


def filled(layer: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return layer


def run(layer: Mamba | Mamba2, x: torch.Tensor) -> torch.Tensor:
    """One sequence from its first row on."""
    pools = allocate_pools([layer.state_spec()], 1, 1, 1, x.dtype, CPU)
    grid_slots = [-1] * (len(x) // 64)
    return layer(x, ForwardBatch.pack([Rows(0, len(x), range(10), grid_slots=grid_slots)], pools.kv, pools.recurrent))


def rows(count: int, size: int) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(count))


class Spy:
    """Stands for an op, and keeps what it was last given."""

    def __init__(self, op: Any) -> None:
        self.op, self.given = op, ()

    def __call__(self, *given: Any) -> Any:
        self.given = given
        return self.op(*given)


def test_mamba2_hands_fp32_to_the_recurrence_in_bfloat16_too() -> None:
    spy = Spy(ops_for(torch.bfloat16).mamba2)
    ops = replace(ops_for(torch.bfloat16), mamba2=spy)
    layer = bfloat16(filled(Mamba2(Mamba2Shape(24, 4, 8, 6, 2), 0, ops, None)))
    x = rows(70, 24).bfloat16()
    out = run(layer, x)
    assert (out.shape, out.dtype) == ((70, 24), torch.bfloat16)
    assert all(given.dtype == torch.float32 for given in spy.given[:-1])
    dt = layer.in_proj(x)[:, -4:].double() + layer.dt_bias.double()
    expected = dt.exp().log1p() * -layer.A_log.double().exp()
    torch.testing.assert_close(spy.given[3].double(), expected, rtol=1e-5, atol=0)


def test_mamba_hands_fp32_to_the_recurrence_in_bfloat16_too() -> None:
    spy = Spy(ops_for(torch.bfloat16).selective_scan)
    ops = replace(ops_for(torch.bfloat16), selective_scan=spy)
    layer = bfloat16(filled(Mamba(MambaShape(24, 32, 6, 3), 0, ops)))
    out = run(layer, rows(70, 24).bfloat16())
    assert (out.shape, out.dtype) == ((70, 24), torch.bfloat16)
    assert all(given.dtype == torch.float32 for given in spy.given[:-1])
    assert torch.equal(spy.given[2], -layer.A_log.float().exp())
    assert (spy.given[1] > 0).all()


def test_a_batch_without_rows() -> None:
    mixers = (Mamba(MambaShape(24, 32, 6, 3, inner_eps=1e-6), 0, ops_for()), mamba2_with_norm())
    for layer in mixers:
        assert run(filled(layer), rows(0, 24)).shape == (0, 24)


def mamba2_with_norm() -> Mamba2:
    return Mamba2(
        Mamba2Shape(24, 4, 8, 6, 2), 0, ops_for(), GatedNorm(32, 2, 1e-5, ops_for()), (1.0, 2.0, 3.0, 4.0, 5.0)
    )


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("num_groups", [1, 3])
def test_gated_norm(num_groups: int, gate_first: bool) -> None:
    norm = filled(GatedNorm(24, num_groups, 1e-3, ops_for(), gate_first))
    out, x, skip, gate = rows(9, 24)[4:], rows(5, 24), rows(1, 24)[0], rows(6, 24)[1:]
    opened = gate.double() / (1 + (-gate.double()).exp())
    made = out.double() + x.double() * skip.double()
    parts = (made * opened if gate_first else made).reshape(5, num_groups, -1)
    normed = (parts / (parts.square().mean(-1, keepdim=True) + 1e-3).sqrt()).reshape(5, 24) * norm.weight.double()
    expected = normed if gate_first else normed * opened
    torch.testing.assert_close(norm(out, x, skip, gate).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("taps", [0, 66])
def test_convolutions_that_cannot_be(taps: int) -> None:
    with pytest.raises(ModelError, match=f"a convolution over {taps} rows is not possible, at most 65"):
        CausalConv(8, taps, ops_for())


def test_the_longest_convolution() -> None:
    layer = filled(Mamba(MambaShape(24, 32, 6, 3, conv_taps=65), 0, ops_for()))
    x = rows(150, 24)
    changed = x.clone()
    changed[10] += 1
    first, second = run(layer, x), run(layer, changed)
    assert torch.equal(first[:10], second[:10])
    assert not torch.equal(first[10], second[10])


@pytest.mark.parametrize("family", ["mamba", "mamba2", "granitemoehybrid", "falcon_h1", "qwen3_5_text", "qwen3_next"])
def test_decay_rates_stay_fp32_in_a_bf16_model(family: str) -> None:
    wide = {"A_log", "D", "dt_bias"}
    model = load_model(random_source(FAMILIES[family].to_dict()), torch.bfloat16).model
    named = list(model.named_parameters())
    assert {p.dtype for name, p in named if name.rpartition(".")[2] in wide} == {torch.float32}
    assert {p.dtype for name, p in named if name.rpartition(".")[2] not in wide} == {torch.bfloat16}
    decay = next(p for name, p in named if name.endswith("A_log"))
    assert not torch.equal(decay, decay.bfloat16().float())
