"""Models without memory for their weights: what is built, and configs of which nothing can be built."""

from typing import Any

import pytest
import tiny_models as tiny

from milepost.errors import ModelError
from milepost.models.loader.meta import build_on_meta

CONFIG = tiny.tiny_llama().config.to_dict()


def test_parameters_take_no_memory_and_angles_are_real() -> None:
    model = build_on_meta({**CONFIG, "vocab_size": 1 << 40}, 1000)
    assert all(p.is_meta for p in model.parameters())
    assert model.rope.inv_freq.device.type == "cpu"
    assert model.rope.inv_freq[0] == 1


@pytest.mark.parametrize("kind", ["llama3", "yarn", "linear", "freq_factors"])
def test_angles_of_every_kind_are_real(kind: str) -> None:
    scaling = {
        "rope_type": kind,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "factors": [1.0] * 8,
    }
    model = build_on_meta({**CONFIG, "rope_parameters": None, "rope_scaling": scaling}, 1000)
    assert model.rope.inv_freq.device.type == "cpu"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt9"}, "unknown model_type 'gpt9'"),
        ({"model_type": None}, "unknown model_type 'None'"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers, and the checkpoint only 1000 tensors"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_hidden_layers": "two"}, "no model can be built of the config"),
        ({"hidden_size": None}, "the model's config has no 'hidden_size'"),
        ({"hidden_size": -64}, "hidden_size = -64"),
        ({"hidden_size": [64]}, "no model can be built of the config"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0"),
        ({"num_attention_heads": 128, "head_dim": None}, "gives each head 0 values"),
        ({"head_dim": 10**12}, "gives each head 1000000000000 values"),
        ({"head_dim": 15}, "rotary angles over 15 of a head's 15 values"),
        ({"vocab_size": 1 << 62, "hidden_size": 1 << 40}, "no model can be built of the config"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "x"}}, "no model can be built of the config"),
        ({"rope_parameters": [1]}, "no model can be built of the config"),
    ],
)
def test_configs_of_which_nothing_can_be_built(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        build_on_meta({**CONFIG, **changes}, 1000)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
