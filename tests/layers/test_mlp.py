"""Feed-forward layers."""

import pytest
import torch

from milepost.errors import ModelError
from milepost.layers.mlp import GatedMLP
from milepost.ops import Target, bind


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_gated_mlp(activation: str) -> None:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    layer = GatedMLP(3, 5, ops, activation=activation)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight)
    x = torch.randn(4, 3)
    gate, up = x @ layer.gate_proj.weight.T, x @ layer.up_proj.weight.T
    bent = {
        "silu": gate * torch.sigmoid(gate),
        "gelu_pytorch_tanh": torch.nn.functional.gelu(gate, approximate="tanh"),
    }[activation]
    torch.testing.assert_close(layer(x), (bent * up) @ layer.down_proj.weight.T)


def test_an_activation_that_is_not_known() -> None:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    with pytest.raises(
        ModelError, match=r"activation 'relu2' is not supported \(hint: supported: gelu_pytorch_tanh, silu"
    ):
        GatedMLP(3, 5, ops, activation="relu2")
