"""Shapes of attention and of short convolutions that cannot be computed are refused when a model is built."""

import pytest
import torch

from milepost.errors import ModelError
from milepost.layers.attention import MAX_HEAD_DIM, AttentionShape
from milepost.layers.short_conv import ShortConv
from milepost.ops import Target, bind


@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(3, 16), (0, 16), (8, 16), (2, MAX_HEAD_DIM + 2), (2, 0)])
def test_heads_that_do_not_fit(num_kv_heads: int, head_dim: int) -> None:
    with pytest.raises(ModelError, match=r"heads? of"):
        AttentionShape(hidden_size=64, num_heads=4, num_kv_heads=num_kv_heads, head_dim=head_dim)


def test_heads_that_fit() -> None:
    for num_kv_heads in (1, 2, 4):
        AttentionShape(hidden_size=64, num_heads=4, num_kv_heads=num_kv_heads, head_dim=MAX_HEAD_DIM)


def test_a_convolution_over_one_row_is_none() -> None:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    with pytest.raises(ModelError, match="over 1 rows"):
        ShortConv(8, 1, 0, ops)
