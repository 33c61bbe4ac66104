"""GGUF files: the weights and settings that they hold, whole and split, quantised and not."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_models as tiny
import torch
from gguf import GGMLQuantizationType as Kind

from milepost.engine.plain import logits_of
from milepost.errors import ModelError
from milepost.models.loader.gguf_file import open_gguf
from milepost.models.loader.load import load_model, open_model

PROMPT = [5, 70, 200, 3, 111, 42, 8, 8, 250, 100]


def quantisable() -> list[Kind]:
    """The types that the gguf package can both make and undo."""
    found = []
    for kind in Kind:
        try:
            data = gguf.quantize(np.ones((1, 256), np.float32), kind)
            gguf.dequantize(data, kind)
            found.append(kind)
        except (NotImplementedError, ValueError, KeyError):
            continue
    return found


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file_gives_the_logits_of_its_safetensors_twin(tmp_path: Path, tied: bool) -> None:
    model = tiny.tiny_llama(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "folder")
    tiny.write_gguf(tmp_path / "model.gguf", model)
    loaded = [load_model(open_model(str(tmp_path / name)), torch.float32) for name in ("folder", "model.gguf")]
    twin, ours = (logits_of(one.model, PROMPT) for one in loaded)
    assert torch.equal(twin, ours)
    assert loaded[1].source.config["tie_word_embeddings"] is tied
    assert loaded[0].weight_bytes == loaded[1].weight_bytes == 4 * sum(p.numel() for p in model.parameters())
    with torch.inference_mode():
        assert relative(ours, model(torch.tensor([PROMPT])).logits[0]) < 1e-5


@pytest.mark.parametrize("kind", quantisable(), ids=lambda kind: kind.name)
def test_every_quantisation(tmp_path: Path, kind: Kind) -> None:
    # blocks of up to 256: rows must be that long
    model = tiny.tiny_llama(hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    path = tiny.write_gguf(tmp_path / "model.gguf", model, lambda name: kind)
    expected = {
        name: gguf.dequantize(gguf.quantize(values, kind), kind) if values.ndim == 2 else values
        for name, values in tiny.gguf_tensors(model).items()
    }
    source = open_model(str(path))
    assert source.tensors.stored_as("model.layers.0.mlp.up_proj.weight") == kind.name
    state = load_model(source, torch.float32, pack=False).model.state_dict()
    assert np.array_equal(state["model.embed_tokens.weight"].numpy(), expected["token_embd.weight"])
    assert np.array_equal(state["model.layers.0.mlp.down_proj.weight"].numpy(), expected["blk.0.ffn_down.weight"])
    q = tiny.to_pairs(state["model.layers.0.self_attn.q_proj.weight"].numpy(), 4)
    assert np.array_equal(q, expected["blk.0.attn_q.weight"])
    half = load_model(source, torch.bfloat16, pack=False).model.state_dict()
    assert all(torch.equal(half[name], state[name].bfloat16()) for name in state)


def test_there_are_quantisations_to_test() -> None:
    assert {Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.BF16, Kind.F16} <= set(quantisable())


def test_types_that_can_be_undone_only_load(tmp_path: Path) -> None:
    """The k-quants cannot be made by the gguf package: random blocks stand in for them."""
    model = tiny.tiny_llama(hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    blocks = np.random.default_rng(0).integers(0, 255, (256, gguf.GGML_QUANT_SIZES[Kind.Q4_K][1]), np.uint8)
    tensors = tiny.gguf_tensors(model)
    writer_input = {name: values for name, values in tensors.items() if name != "blk.0.ffn_up.weight"}
    path = tmp_path / "model.gguf"
    tiny.write_gguf(path, model, tensors=writer_input)
    reopened = append_tensor(path, "blk.0.ffn_up.weight", blocks, Kind.Q4_K)
    state = load_model(open_model(str(reopened)), torch.float32, pack=False).model.state_dict()
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(blocks, Kind.Q4_K)
    assert np.array_equal(state["model.layers.0.mlp.up_proj.weight"].numpy(), expected, equal_nan=True)


def append_tensor(path: Path, name: str, blocks: np.ndarray, kind: Kind) -> Path:
    """A copy of a GGUF file with one more tensor, of raw blocks."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(path.with_name("more.gguf"), "llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            tiny.add_value(writer, field.name, field.contents())
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.with_name("more.gguf")


def test_a_type_that_cannot_be_undone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.write_gguf(tmp_path / "model.gguf", tiny.tiny_llama(), lambda name: Kind.Q8_0)

    def cannot(data: np.ndarray, kind: Kind) -> np.ndarray:
        raise NotImplementedError

    monkeypatch.setattr(gguf, "dequantize", cannot)
    with pytest.raises(ModelError, match=r"stored as Q8_0, which is not supported .*hint: use another quantisation"):
        open_gguf(path)


def test_end_tokens_and_sampling_defaults(tmp_path: Path) -> None:
    metadata = {"general.sampling.temp": 0.5, "general.sampling.top_k": 40}
    source = open_gguf(tiny.write_gguf(tmp_path / "model.gguf", tiny.tiny_llama(), metadata=metadata))
    assert source.eos_token_ids == (tiny.END, tiny.TURN)
    assert source.generation_config["temperature"] == 0.5
    assert source.generation_config["top_k"] == 40
    assert (source.config["bos_token_id"], source.config["pad_token_id"]) == (tiny.BOS, None)


def test_llama3_rope_factors(tmp_path: Path) -> None:
    """GGUF stores what llama3's rule divides each frequency by; transformers has the rule."""
    rule = {
        "rope_type": "llama3",
        "rope_theta": 1000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = tiny.tiny_llama(rope_parameters=rule)
    plain = 1000.0 ** -(np.arange(0, 16, 2) / 16)
    factors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    assert factors.max() > 7
    path = tiny.write_gguf(tmp_path / "model.gguf", model, extra={"rope_freqs.weight": factors})
    loaded = load_model(open_model(str(path)), torch.float32)
    prompt = torch.randint(0, tiny.VOCAB_SIZE, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
    assert relative(logits_of(loaded.model, prompt), expected) < 1e-5
    without = load_model(open_model(str(tiny.write_gguf(tmp_path / "plain.gguf", model))), torch.float32)
    assert relative(logits_of(without.model, prompt), expected) > 1e-2


def test_rope_factors_of_the_wrong_number_or_beside_other_scaling(tmp_path: Path) -> None:
    model, path = tiny.tiny_llama(), tmp_path / "model.gguf"
    tiny.write_gguf(path, model, extra={"rope_freqs.weight": np.ones(5, np.float32)})
    with pytest.raises(ModelError, match="factors have shape"):
        open_gguf(path)
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    tiny.write_gguf(path, model, extra={"rope_freqs.weight": np.ones(8, np.float32)}, metadata=scaling)
    with pytest.raises(ModelError, match="beside rope scaling 'linear'"):
        open_gguf(path)


def split(path: Path, model: torch.nn.Module, count: int) -> list[Path]:
    """The model in `count` files, as the format's splitting tool names and marks them."""
    tensors = list(tiny.gguf_tensors(model).items())
    paths = []
    for i in range(count):
        part = path.with_name(f"{path.stem}-{i + 1:05}-of-{count:05}.gguf")
        marks = {"split.no": i, "split.count": count, "split.tensors.count": len(tensors)}
        paths.append(tiny.write_gguf(part, model, metadata=marks, tensors=dict(tensors[i::count])))
    return paths


def test_split_files(tmp_path: Path) -> None:
    model = tiny.tiny_llama()
    whole = load_model(open_model(str(tiny.write_gguf(tmp_path / "whole.gguf", model))), torch.float32)
    (tmp_path / "parts").mkdir()
    parts = split(tmp_path / "parts" / "model.gguf", model, 3)
    for name in (tmp_path / "parts", parts[0], parts[2]):
        loaded = load_model(open_model(str(name)), torch.float32)
        assert torch.equal(logits_of(loaded.model, PROMPT), logits_of(whole.model, PROMPT))


def test_split_files_that_do_not_fit_together(tmp_path: Path) -> None:
    parts = split(tmp_path / "model.gguf", tiny.tiny_llama(), 3)
    others = split(tmp_path / "other.gguf", tiny.tiny_llama(num_hidden_layers=3), 3)
    content = parts[1].read_bytes()
    parts[1].write_bytes(others[1].read_bytes())
    with pytest.raises(ModelError, match="do not belong together"):
        open_gguf(parts[0])
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(ModelError, match=r"00002-of-00003.gguf is not part 2 of 3"):
        open_gguf(parts[0])
    parts[1].unlink()
    with pytest.raises(ModelError, match=r"missing: model-00002-of-00003.gguf .*fetch all parts"):
        open_gguf(parts[0])
    (tmp_path / "renamed.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="one of 3 parts, and its name does not say which"):
        open_gguf(tmp_path / "renamed.gguf")


def test_tensors_that_the_model_does_not_use_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    extra = {"blk.0.something.weight": np.ones(3, np.float32)}
    path = tiny.write_gguf(tmp_path / "model.gguf", tiny.tiny_llama(), extra=extra)
    with caplog.at_level("INFO", logger="milepost"):
        load_model(open_model(str(path)), torch.float32)
    assert "1 tensors that the model does not use are left out: blk.0.something.weight" in caplog.text


def test_unknown_architecture(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "model.gguf", tiny.tiny_llama(), architecture="starcoder9")
    with pytest.raises(ModelError, match=r"unknown GGUF architecture 'starcoder9' \(hint: supported: .*llama"):
        open_model(str(path))


def test_not_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUL" + bytes(100))
    with pytest.raises(ModelError, match="is not a GGUF file"):
        open_model(str(tmp_path / "model.gguf"))
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        open_model(str(tmp_path / "model.gguf"))


def test_more_layers_than_tensors_and_heads_of_no_size(tmp_path: Path) -> None:
    model, path = tiny.tiny_llama(), tmp_path / "model.gguf"
    tiny.write_gguf(path, model, metadata={"llama.attention.key_length": 4_000_000_000})
    with pytest.raises(ModelError, match="gives each head 4000000000 values"):
        open_gguf(path)
    model.config.num_hidden_layers = 4_000_000_000
    tiny.write_gguf(path, model, tensors=tiny.gguf_tensors(tiny.tiny_llama()))
    with pytest.raises(ModelError, match="4000000000 layers, and the checkpoint only"):
        open_gguf(path)
