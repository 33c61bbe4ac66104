"""Which stored tensors a parameter is made of."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers

from milepost.errors import ModelError
from milepost.models.loader.load import load_model, open_model
from milepost.models.loader.parts import Part, find_parts

WANTED = {"a": torch.empty(4, 6, 5), "b": torch.empty(3)}


def spellings(name: str) -> Iterable[Sequence[str]]:
    return [("whole",), ("part0", "part1", "part2")] if name == "a" else []


def test_the_own_name_comes_first() -> None:
    parts, missing = find_parts(WANTED, {"a", "b", "whole", "part0", "part1", "part2"}, spellings)
    assert parts == {"a": Part("a"), "b": Part("b")}
    assert missing == []


def test_the_first_spelling_that_is_whole() -> None:
    parts, missing = find_parts(WANTED, {"b", "part0", "part1", "part2"}, spellings)
    assert parts == {"part0": Part("a", 0, 3), "part1": Part("a", 1, 3), "part2": Part("a", 2, 3), "b": Part("b")}
    assert missing == []
    assert find_parts(WANTED, {"b", "whole", "part0"}, spellings)[0] == {"whole": Part("a"), "b": Part("b")}


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        (set(), ["a", "b"]),
        ({"part1", "b"}, ["part0", "part2"]),
        ({"part0", "part2"}, ["part1", "b"]),
    ],
)
def test_what_is_missing_is_told_of_the_spelling_that_is_there(present: set[str], missing: list[str]) -> None:
    assert find_parts(WANTED, present, spellings)[1] == missing


def test_the_shape_of_a_part() -> None:
    assert Part("a").shape(WANTED["a"]) == (4, 6, 5)
    assert Part("a", 1, 3).shape(WANTED["a"]) == (8, 5)
    assert Part("a", 1, 8).shape(WANTED["a"]) == (3, 5)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose experts are stored one by one."""
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        layer_types=["full_attention"],
        num_experts=3,
        num_experts_per_tok=2,
        moe_intermediate_size=4,
        shared_expert_intermediate_size=4,
        vocab_size=11,
    )
    folder = tmp_path_factory.mktemp("sparse")
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def rewritten(folder: Path, to: Path, changes: dict[str, torch.Tensor | None]) -> Path:
    """A copy of the model with tensors replaced, or left out."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors") | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    safetensors.torch.save_file(kept, to / "model.safetensors")
    (to / "config.json").write_bytes((folder / "config.json").read_bytes())
    return to


EXPERTS = "model.layers.0.mlp.experts"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_go_where_they_belong(sparse: Path, dtype: torch.dtype) -> None:
    stored = safetensors.torch.load_file(sparse / "model.safetensors")
    progress: list[tuple[int, int]] = []
    loaded = load_model(open_model(str(sparse)), dtype, progress=lambda *done: progress.append(done), pack=False)
    experts = loaded.model.get_submodule(EXPERTS)
    for i in range(3):
        gate, up, down = (stored[f"{EXPERTS}.{i}.{part}_proj.weight"].to(dtype) for part in ("gate", "up", "down"))
        assert torch.equal(experts.gate_up_proj[i], torch.cat([gate, up]))
        assert torch.equal(experts.down_proj[i], down)
    assert progress[0][0] == 0
    assert progress[-1] == (loaded.weight_bytes, loaded.weight_bytes)


def test_a_part_that_is_missing(sparse: Path, tmp_path: Path) -> None:
    rewritten(sparse, tmp_path, {f"{EXPERTS}.1.up_proj.weight": None})
    with pytest.raises(
        ModelError, match=r"lacks 1 of the model's tensors: model.layers.0.mlp.experts.1.up_proj.weight"
    ):
        load_model(open_model(str(tmp_path)), torch.float32)


@pytest.mark.parametrize("shape", [(8, 16), (4, 15), (64,), (16, 4)])
def test_a_part_of_the_wrong_shape(sparse: Path, tmp_path: Path, shape: tuple[int, ...]) -> None:
    rewritten(sparse, tmp_path, {f"{EXPERTS}.2.gate_proj.weight": torch.zeros(shape)})
    with pytest.raises(ModelError, match=r"experts.2.gate_proj.weight' has shape .*, and the config says \(4, 16\)"):
        load_model(open_model(str(tmp_path)), torch.float32)


def test_a_part_in_a_format_that_is_not_supported(sparse: Path, tmp_path: Path) -> None:
    rewritten(sparse, tmp_path, {f"{EXPERTS}.0.down_proj.weight": torch.zeros(16, 4, dtype=torch.int8)})
    with pytest.raises(ModelError, match=r"experts.0.down_proj.weight' is stored as I8"):
        load_model(open_model(str(tmp_path)), torch.float32)


def test_more_experts_than_there_are(sparse: Path, tmp_path: Path) -> None:
    rewritten(sparse, tmp_path, {})
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"num_experts": 3', '"num_experts": 5'))
    with pytest.raises(ModelError, match=r"lacks 6 of .* model.layers.0.mlp.experts.3.gate_proj.weight"):
        load_model(open_model(str(tmp_path)), torch.float32)
