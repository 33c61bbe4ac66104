"""Quantised checkpoints are refused by the name of their format."""

import json
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import ModelError
from milepost.models.loader.formats import refuse_quantized
from milepost.models.loader.safetensors_folder import open_folder

CONFIGS = {
    "fp8": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
    "awq": {"quantization_config": {"quant_method": "awq", "bits": 4}},
    "gptq": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    "bitsandbytes": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    "compressed-tensors": {"compression_config": {"format": "int-quantized", "quant_method": "compressed-tensors"}},
    "mxfp4": {"text_config": {"quantization_config": {"quant_method": "mxfp4"}}},
    "NVFP4": {"quantization_config": {"quant_algo": "NVFP4"}},
    "mlx": {"quantization": {"group_size": 64, "bits": 4}},
}


@pytest.mark.parametrize("method", CONFIGS)
def test_configs_that_say_so(tmp_path: Path, method: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **CONFIGS[method]}))
    with pytest.raises(ModelError, match=rf"quantisation format '{method}' is not supported yet \(hint: use the same"):
        open_folder(tmp_path)


def test_a_config_that_does_not_name_the_format(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"""'unknown: {"bits": 3}' is not supported"""):
        refuse_quantized({"quantization_config": {"bits": 3}}, tmp_path)
    with pytest.raises(ModelError, match="'int5' is not supported"):
        refuse_quantized({"quantization_config": "int5"}, tmp_path)


@pytest.mark.parametrize(
    ("name", "method"),
    [("quantize_config.json", "gptq"), ("quant_config.json", "awq"), ("hf_quant_config.json", "modelopt")],
)
def test_settings_in_a_file_of_their_own(tmp_path: Path, name: str, method: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ModelError, match=f"'{method}' is not supported"):
        refuse_quantized({}, tmp_path)


@pytest.mark.parametrize("config", [{}, {"quantization_config": None}, {"quantization_config": {}}, {"text_config": 3}])
def test_plain_configs_pass(tmp_path: Path, config: dict[str, Any]) -> None:
    refuse_quantized(config, tmp_path)
