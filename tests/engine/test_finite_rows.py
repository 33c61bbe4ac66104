"""Rows with NaN or Inf are told apart from all others, however large these are."""

from __future__ import annotations

import pytest
import torch

from milepost.engine.runner import _finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [torch.nan, -torch.nan, torch.inf, -torch.inf])
def test_a_row_with_one_bad_value(dtype: torch.dtype, bad: float) -> None:
    rows = torch.randn(6, 64).to(dtype)
    rows[0], rows[1], rows[2] = torch.finfo(dtype).max, torch.finfo(dtype).min, -0.0
    rows[4, 63] = bad
    assert _finite(rows).tolist() == [True, True, True, True, False, True]
