"""Cases are unseen and spread over all lengths; what is counted as right is; lost states are lost, and nothing else."""

from pathlib import Path

import pytest
import torch
from small_shape import SHAPE
from tools.tiny.checkpoint import save_checkpoint
from tools.tiny.evaluate import QUARTILES, Case, cases, engine_answers, table, transformers_answers
from tools.tiny.forgetting import answer_after_loss, forgetful_copy
from tools.tiny.model import Shape, TinyModel
from tools.tiny.tasks import RECALL, STATE, examination
from tools.tiny.tokenizer import END, ChatEncoder, token_id, train_tokenizer

from milepost import LLM, SamplingParams
from milepost.engine.plain import generate, logits_of
from milepost.models.base import Model
from milepost.models.loader.load import load_model, open_model
from milepost.specs import CHUNK

WORDS = train_tokenizer(600)
TOKENIZER = train_tokenizer(100, SHAPE.vocab_size)
EOS = token_id(TOKENIZER, END)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, so large that what the layers add weighs more than the token that they read."""
    model, folder = TinyModel(SHAPE), tmp_path_factory.mktemp("tiny")
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    save_checkpoint(model, TOKENIZER, folder, torch.float32)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(open_model(str(folder)), torch.float32).model


@pytest.mark.parametrize("kinds", [RECALL, STATE])
def test_cases(kinds: tuple[str, ...]) -> None:
    found = cases(ChatEncoder(WORDS), kinds, 30)
    assert [case.kind for case in found] == [kinds[i % len(kinds)] for i in range(30)]
    assert found == cases(ChatEncoder(WORDS), kinds, 30)
    assert {case.quartile for case in found} == set(range(QUARTILES))
    for case in found:
        assert case.expected[-1] == token_id(WORDS, END)
        question = WORDS.decode(case.prompt[case.kept :], skip_special_tokens=False)
        assert question.count("?") == 1
        assert len(case.prompt) + len(case.expected) <= 2048


def test_the_table_counts_whole_answers() -> None:
    asked = [Case("code", [0] * length, [5, 6], 0) for length in (10, 600, 2000, 2040)]
    lines = table("title", asked, [[5, 6], [5], [5, 6], [6, 5]]).splitlines()
    assert lines[0] == "title: 2 of 4 (50.0 %)"
    assert [line.split(": ")[1] for line in lines[1:5]] == [
        "1 of 1 (100.0 %)",
        "0 of 1 (0.0 %)",
        "none",
        "1 of 2 (50.0 %)",
    ]


def test_transformers_and_the_engine_give_the_plain_loops_answers(folder: Path, model: Model) -> None:
    prompts = [case.prompt for case in cases(ChatEncoder(TOKENIZER), STATE, 3, 200)]
    plain = [list(generate(model, prompt, 48, [EOS])) for prompt in prompts]
    assert len({tuple(answer) for answer in plain}) == 3
    assert engine_answers(folder, "float32", EOS)(prompts) == plain
    assert transformers_answers(folder, EOS)(prompts) == plain


def test_nothing_lost_nothing_changed(model: Model) -> None:
    for prompt in (case.prompt for case in cases(ChatEncoder(TOKENIZER), STATE, 3, 300)):
        assert answer_after_loss(model, prompt, [], EOS, 12) == list(generate(model, prompt, 12, [EOS]))


def test_lost_states_change_answers(model: Model) -> None:
    prompts = [case.prompt for case in cases(ChatEncoder(TOKENIZER), STATE, 6, 300) if len(case.prompt) > 128]
    plain = [list(generate(model, prompt, 12, [EOS])) for prompt in prompts]
    last = [[len(prompt) // CHUNK] for prompt in prompts]
    for lost in (last, [range(100)] * len(prompts)):
        answers = [answer_after_loss(model, prompt, at, EOS, 12) for prompt, at in zip(prompts, lost, strict=True)]
        assert answers != plain


def test_only_states_are_lost(model: Model) -> None:
    """Grid points that the prompt does not reach hold nothing that the answer needs."""
    prompt = cases(ChatEncoder(TOKENIZER), STATE, 1, 100)[0].prompt[:60]
    assert answer_after_loss(model, prompt, range(2, 9), EOS, 12) == list(generate(model, prompt, 12, [EOS]))


def test_a_forgetful_copy_knows_the_last_tokens_alone(tmp_path: Path) -> None:
    """Without attention, the layers' convolutions are the only memory: tokens further back change nothing."""
    recurrent = Shape(
        vocab_size=400, hidden_size=32, intermediate_size=48, num_layers=2, attention=(), key_dim=8, value_dim=8
    )
    save_checkpoint(TinyModel(recurrent), TOKENIZER, tmp_path / "whole", torch.float32)
    forgetful_copy(tmp_path / "whole", tmp_path / "copy")
    prompt = list(range(100))
    for name, remembers in (("whole", True), ("copy", False)):
        model = load_model(open_model(str(tmp_path / name)), torch.float32).model
        one, other = (_last_logits(model, start + prompt) for start in ([7] * 20, [8] * 20))
        assert torch.equal(one, other) != remembers


def _last_logits(model: Model, prompt: list[int]) -> torch.Tensor:
    return logits_of(model, prompt)[-1]


def test_a_chat_reads_what_was_trained(folder: Path) -> None:
    conversation = examination("place", 1, 200)
    messages = conversation.messages()[:-1]
    result = LLM(folder, dtype="float32").chat(messages, SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
    assert result[0].prompt_token_ids == ChatEncoder(TOKENIZER).prompt_ids(conversation)
