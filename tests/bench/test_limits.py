"""Operations and bytes, counted by hand for one shape of each kind."""

import pytest
from bench.limits import costs_of, limit, matrices
from bench.machine import Speed
from bench.measures import REUSE, THROUGHPUT, Measure

from milepost.bench.shapes import config_of

SPEED = Speed(read_bytes=4e10, dot_ops=1e12)


def test_a_shape_with_attention_and_short_convolutions() -> None:
    costs = costs_of(config_of("lfm2-350m"))
    mlp, conv, attention = 3 * 4608 * 1024, 4 * 1024 * 1024 + 3 * 1024, (1024 + 512 + 512 + 1024) * 1024
    weights = 16 * mlp + 10 * conv + 6 * attention
    norms = 33 * 1024 + 6 * 2 * 64
    assert costs.row_ops == 2 * weights
    assert costs.head_ops == 2 * 65536 * 1024
    assert costs.attention_ops == 6 * 4 * 16 * 64
    assert costs.weight_bytes == 2 * (weights + norms + 65536 * 1024)
    assert costs.token_bytes == 6 * 2 * 2 * 8 * 64
    assert costs.state_bytes == 10 * 2 * 2 * 1024


@pytest.mark.parametrize(
    ("shape", "layers", "state", "operations", "matrix_weights"),
    [
        ("granite-4.0-h-350m", 28, 48 * 128 * 32, 5, 768 * 3376 + 1536 * 768 + 4 * 1792),
        ("qwen3.5-0.8b", 18, 16 * 128 * 128, 7, 1024 * (6144 + 2048 + 32) + 2048 * 1024 + 4 * 6144),
    ],
)
def test_scans_are_counted_by_their_state(
    shape: str, layers: int, state: int, operations: int, matrix_weights: int
) -> None:
    costs, config = costs_of(config_of(shape)), config_of(shape)
    size, heads = config["hidden_size"], config["num_attention_heads"]
    inner = config.get("shared_intermediate_size", config["intermediate_size"])
    head_dim = config.get("head_dim", size // heads)
    kv = config["num_key_value_heads"] * head_dim
    gated = 2 if "head_dim" in config else 1  # Qwen3.5's queries come with a gate
    attention = size * (heads * head_dim * (gated + 1) + 2 * kv)
    num_layers = config["num_hidden_layers"]
    weights = num_layers * 3 * size * inner + layers * matrix_weights + (num_layers - layers) * attention
    assert costs.row_ops == 2 * weights + layers * state * operations
    assert costs.state_bytes > layers * state * 4


def test_a_limit_is_the_scarcer_of_operations_and_bytes() -> None:
    costs = costs_of(config_of("lfm2-350m"))
    prefill = limit(Measure("p", "prefill", {"tokens": 100}), costs, SPEED)
    assert prefill == pytest.approx(100e12 / (100 * costs.row_ops + costs.head_ops + costs.attention_ops * 5050))
    decode = Measure("d", "decode", {"batch": 1, "prompt": 32, "tokens": 64})
    assert limit(decode, costs, SPEED) == pytest.approx(4e10 / costs.step_bytes(1, 64))
    slow = Speed(read_bytes=4e10, dot_ops=1e9)
    assert limit(decode, costs, slow) == pytest.approx(1e9 / costs.step_ops(1, 64))


def test_every_rate_has_a_limit_and_no_time_has_one() -> None:
    costs = costs_of(config_of("lfm2-350m"))
    assert all((limit(measure, costs, SPEED) or 0) > 0 for measure in THROUGHPUT)
    assert all(limit(measure, costs, SPEED) is None for measure in REUSE)
    assert limit(THROUGHPUT[0], costs, Speed(4e10, 0.0)) is None


def test_matrices_are_listed_once_and_without_the_head() -> None:
    found = matrices(config_of("lfm2-350m"))
    assert found == [(1024, 4608), (4608, 1024), (1024, 3072), (1024, 1024), (1024, 512)]
