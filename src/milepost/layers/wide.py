"""Parameters that keep their precision."""

from __future__ import annotations

import torch
from torch import nn


class WideParameter(nn.Parameter):
    """Stays fp32 in a model of any dtype: decay rates and time steps, whose rounding would compound over the whole
    prefix. The loader looks for this class."""


class DecayRates(nn.Module):
    """A mixer with a parameter `A_log`, of which rows need `rates`, -exp(A_log) in fp32.

    They are made once, when the weights are in (`make_rates`, which the loader calls): torch's exp need not give the
    same bits in another place, and there is no need to ask it again.
    """

    A_log: nn.Parameter
    _rates: torch.Tensor | None = None

    @property
    def rates(self) -> torch.Tensor:
        return -self.A_log.exp() if self._rates is None else self._rates

    def make_rates(self) -> None:
        self._rates = -self.A_log.exp()
