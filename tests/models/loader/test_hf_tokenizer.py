"""Tokenizers of Hugging Face folders against transformers', chat templates in all their places, damage."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from milepost.errors import ModelError
from milepost.models.loader.hf_tokenizer import read_tokenizer
from milepost.models.loader.source import TokenizerSource

TEXTS = ["hello world", "  two  spaces \n", "naïve 日本 🙂", "<|begin|>hello<|turn|>", ""]


def byte_level(special: bool = True) -> Tokenizer:
    merges = [tuple(merge.split()) for merge in tiny.MERGES]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tiny.TOKENS)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if special:
        backend.add_special_tokens(list(tiny.SPECIAL))
    return backend


def save(folder: Path, backend: Tokenizer | None = None, **config: Any) -> Path:
    (backend or byte_level()).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | config))
    return folder


def read(folder: Path) -> TokenizerSource:
    source, problem = read_tokenizer(folder)
    assert source is not None, problem
    assert problem == ""
    return source


@pytest.mark.parametrize("bos", [True, False])
def test_ids_are_those_of_transformers(tmp_path: Path, bos: bool) -> None:
    backend = byte_level()
    if bos:
        backend.post_processor = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", tiny.BOS)])
    ours, theirs = read(save(tmp_path, backend)).backend, transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        for add in (True, False):
            ids = ours.encode(text, add_special_tokens=add).ids
            assert ids == theirs.encode(text, add_special_tokens=add)
            for skip in (True, False):
                decoded = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert ours.decode(ids, skip_special_tokens=skip) == decoded


@pytest.mark.parametrize("form", [str, dict])
def test_special_tokens_as_text_or_object(tmp_path: Path, form: type) -> None:
    token = "<|turn|>" if form is str else {"content": "<|turn|>", "lstrip": False}
    source = read(save(tmp_path, pad_token=token, unk_token=None, model_max_length=10))
    assert source.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|turn|>"}


def test_the_older_file_of_special_tokens(tmp_path: Path) -> None:
    save(tmp_path, bos_token=None)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"sep_token": "<|turn|>", "eos_token": "other"}))
    assert read(tmp_path).special_tokens == {"sep_token": "<|turn|>", "eos_token": "<|end|>"}


def test_add_bos_token_where_tokenizer_json_forgot_it(tmp_path: Path) -> None:
    backend = byte_level()
    plain = backend.encode("hello").ids
    assert read(save(tmp_path, backend)).backend.encode("hello").ids == plain
    ours = read(save(tmp_path, backend, add_bos_token=True)).backend
    assert ours.encode("hello").ids == [tiny.BOS, *plain]
    assert ours.encode("hello", add_special_tokens=False).ids == plain
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    assert read(save(tmp_path, backend, add_bos_token=True)).backend.encode("hello").ids == [tiny.BOS, *plain]
    backend.post_processor = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", tiny.BOS)])
    assert read(save(tmp_path, backend, add_bos_token=True)).backend.encode("hello").ids == [tiny.BOS, *plain]
    assert read(save(tmp_path, byte_level(), add_bos_token=True, bos_token=None)).backend.encode("hello").ids == plain


def test_added_tokens_that_only_the_config_knows(tmp_path: Path) -> None:
    listed = {
        str(tiny.TURN): {"content": "<|turn|>", "special": True},
        str(tiny.VOCAB_SIZE): {"content": "<tool>", "special": False, "normalized": False},
        str(tiny.VOCAB_SIZE + 1): {"content": "<call>", "special": True},
    }
    source = read(save(tmp_path, byte_level(special=False), added_tokens_decoder=listed))
    ids = source.backend.encode("<tool><call><|turn|><|end|>").ids
    assert ids == [tiny.VOCAB_SIZE, tiny.VOCAB_SIZE + 1, tiny.TURN, tiny.END]
    assert source.backend.decode(ids) == "<tool>"
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).encode("<tool><call><|turn|><|end|>") == ids


def test_an_added_token_that_cannot_have_its_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listed = {"5000": {"content": "<far>"}, "²": {"content": "<no id>"}, "7": "<no object>"}
    source = read(save(tmp_path, added_tokens_decoder=listed))
    assert f"token '<far>' should have the id 5000 and has {tiny.VOCAB_SIZE}" in caplog.text
    assert source.backend.get_vocab_size() == tiny.VOCAB_SIZE + 1


def test_truncation_and_padding_of_training_are_off(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=8, pad_id=3)
    assert len(read(save(tmp_path, backend)).backend.encode("abcdefgh").ids) == 8
    assert len(read(save(tmp_path, backend)).backend.encode("a").ids) == 1


def test_chat_templates_in_the_config(tmp_path: Path) -> None:
    assert read(save(tmp_path)).chat_template is None
    assert read(save(tmp_path, chat_template="one")).chat_template == "one"
    several = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    assert read(save(tmp_path, chat_template=several)).chat_template == {"default": "one", "tool_use": "two"}
    assert read(save(tmp_path, chat_template=several[:1])).chat_template == "one"


def test_chat_templates_in_files(tmp_path: Path) -> None:
    save(tmp_path, chat_template="old")
    (tmp_path / "chat_template.jinja").write_text("néw")
    assert read(tmp_path).chat_template == "néw"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("rag")
    assert read(tmp_path).chat_template == {"default": "néw", "rag": "rag"}
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).chat_template == read(tmp_path).chat_template


def test_a_chat_template_in_a_json_file(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert read(tmp_path).chat_template == "from json"


@pytest.mark.parametrize("content", [b"", b"{}", b"{", b"null", b"\xff", b'{"model": {"type": "Nonsense"}}'])
def test_a_damaged_tokenizer(tmp_path: Path, content: bytes) -> None:
    save(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json is damaged") as caught:
        read_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_truncated_tokenizer(tmp_path: Path) -> None:
    path = save(tmp_path) / "tokenizer.json"
    data = path.read_bytes()
    for keep in range(1, len(data), len(data) // 20):
        path.write_bytes(data[:keep])
        with pytest.raises(ModelError, match=r"tokenizer\.json is damaged"):
            read_tokenizer(tmp_path)


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    source, problem = read_tokenizer(tmp_path)
    assert source is None
    assert problem.endswith("holds no tokenizer")


def gpt2_files(folder: Path) -> Path:
    """The older form of a byte-level tokenizer: vocab.json and merges.txt."""
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tiny.TOKENS)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(tiny.MERGES))
    settings = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|end|>", "bos_token": "<|begin|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "unk_token": "<|end|>"}))
    return folder


def test_older_files_are_converted_by_transformers(tmp_path: Path) -> None:
    source = read(gpt2_files(tmp_path))
    assert source.backend.encode("hello world<|end|>").ids == [*byte_level().encode("hello world").ids, tiny.END]
    assert source.special_tokens["bos_token"] == "<|begin|>"


def test_older_files_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    source, problem = read_tokenizer(gpt2_files(tmp_path))
    assert source is None
    assert problem.endswith("has no tokenizer.json; to convert vocab.json, install transformers")


def test_older_files_that_cannot_be_converted(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"nonsense")
    source, problem = read_tokenizer(tmp_path)
    assert source is None
    assert "tokenizer.model cannot be converted" in problem
    assert "\n" not in problem
