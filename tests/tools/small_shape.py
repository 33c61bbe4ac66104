"""A shape of a few thousand weights, for tests of what surrounds the model."""

from tools.tiny.model import Shape

SHAPE = Shape(
    vocab_size=400,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    attention=(1,),
    head_dim=16,
    key_dim=8,
    value_dim=8,
)
