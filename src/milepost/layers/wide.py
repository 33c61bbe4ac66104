"""Parameters that keep their precision."""

from torch import nn


class WideParameter(nn.Parameter):
    """Stays fp32 in a model of any dtype: decay rates and time steps, whose rounding would compound over the whole
    prefix. The loader looks for this class."""
