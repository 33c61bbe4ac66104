"""Batches teach answers only; a run that was stopped goes on as if it had not been; the loss falls."""

import json
from pathlib import Path

import pytest
import torch
from small_shape import SHAPE
from tools.tiny.batches import batch_of
from tools.tiny.gradients import Gradients
from tools.tiny.model import TinyModel
from tools.tiny.optimiser import Optimiser, rate_at
from tools.tiny.tasks import KINDS
from tools.tiny.tokenizer import END, PAD, ChatEncoder, token_id, train_tokenizer
from tools.tiny.train import Plan, Run, tokenizer_in

TOKENIZER = train_tokenizer(100, SHAPE.vocab_size)
PLAN = Plan(minutes=1.0, batch_tokens=600, lengths=((0.0, 128),), rate=1.0, narrow=False, seed=3, blind=((0.0, 0.5),))


def test_batches() -> None:
    encoder, pad = ChatEncoder(TOKENIZER), token_id(TOKENIZER, PAD)
    for step in range(10):
        batch = batch_of(encoder, step, 2048, 512, 0, pad)
        again = batch_of(encoder, step, 2048, 512, 0, pad)
        assert torch.equal(batch.inputs, again.inputs)
        assert torch.equal(batch.places, again.places)
        rows, length = batch.inputs.shape
        assert 128 <= length <= 512
        assert 0.8 * 2048 < rows * length < 1.3 * 2048
        assert (batch.inputs == pad).float().mean() < 0.15
        follows = batch.places % length < length - 1
        assert torch.equal(batch.targets[follows], batch.inputs.flatten()[batch.places[follows] + 1])
        assert (batch.targets == token_id(TOKENIZER, END)).sum() > rows
        assert 0 <= int(batch.kinds.min()) <= int(batch.kinds.max()) < len(KINDS)
    assert not torch.equal(batch.inputs, batch_of(encoder, 9, 2048, 512, 1, pad).inputs)


def test_short_rows_have_answers_too() -> None:
    encoder, pad = ChatEncoder(TOKENIZER), token_id(TOKENIZER, PAD)
    for step in range(60):
        batch = batch_of(encoder, step, 64, 64, 0, pad)
        assert batch.inputs.shape == (1, 64)
        assert len(batch.places) == len(batch.targets) == len(batch.kinds) > 0


def steps(run: Run, count: int) -> None:
    for _ in range(count):
        run.update()


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole, first = Run(tmp_path / "whole", SHAPE, PLAN, TOKENIZER), Run(tmp_path / "parts", SHAPE, PLAN, TOKENIZER)
    steps(whole, 4)
    steps(first, 2)
    first.save()
    second = Run(tmp_path / "parts", SHAPE, PLAN, TOKENIZER)
    assert (second.step, second.tokens) == (first.step, first.tokens)
    steps(second, 2)
    for (name, one), (_, other) in zip(whole.model.named_parameters(), second.model.named_parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.full  # a run goes by the clock: on a busy machine it learns less
def test_a_short_run_learns_and_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path, SHAPE, Plan(0.04, 256, ((0.0, 128),), 1.0, False, 0), TOKENIZER)
    run.train()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == run.step
    assert lines[-1]["loss"] < 5.9
    assert set(lines[-1]["right"]) <= set(KINDS)
    assert (tmp_path / "model" / "model.safetensors").exists()
    assert not list(tmp_path.glob("*.part"))


def test_a_run_keeps_its_tokenizer(tmp_path: Path) -> None:
    first = tokenizer_in(tmp_path / "run", 400)
    assert first.get_vocab_size() == 400
    assert tokenizer_in(tmp_path / "run", 500).to_str() == first.to_str()


def test_the_schedule() -> None:
    assert rate_at(0.0) < 0.1
    assert rate_at(0.02) == rate_at(0.5) == 1.0
    assert rate_at(0.7) > rate_at(0.9) > rate_at(1.0) > 0.0


def test_gradients_that_are_not_finite_change_nothing() -> None:
    model = TinyModel(SHAPE)
    optimiser = Optimiser(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    optimiser.step(0.5)
    for one, other in zip(before, model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_threads_find_the_same_gradients() -> None:
    encoder = ChatEncoder(TOKENIZER)
    batch = batch_of(encoder, 0, 4096, 128, 0, token_id(TOKENIZER, PAD))
    attends = (torch.arange(len(batch.inputs)) % 2).float()
    found = []
    for num_threads in (1, 2, 3):
        model = TinyModel(SHAPE)
        loss, logits = Gradients(model, num_threads, narrow=False).find(batch, attends)
        found.append([torch.tensor(loss), logits, *(weight.grad for weight in model.parameters())])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert one is not None
            assert other is not None
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
    whole = TinyModel(SHAPE)
    rows = whole.hidden(batch.inputs, attends).flatten(0, 1)[batch.places]
    loss = torch.nn.functional.cross_entropy(whole.logits(rows), batch.targets)
    torch.autograd.backward(loss)
    assert abs(loss.item() - float(found[0][0] or 0)) < 1e-4
    for weight, gradient in zip(whole.parameters(), found[0][2:], strict=True):
        assert weight.grad is not None
        assert torch.allclose(weight.grad, gradient, rtol=1e-3, atol=1e-6)
