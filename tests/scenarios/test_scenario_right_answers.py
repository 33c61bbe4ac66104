"""C: right answers. The client checks that each is the plain loop's, to the bit; here is what leads up to it."""

from __future__ import annotations

import random

import pytest
import torch
from client import Failed
from engines import Budget, poison
from kinds import POISON, model_of
from stage import Serve

from milepost.cache import keys, misses
from milepost.engine.engine import Engine
from milepost.engine.runner import PieceResult
from milepost.engine.scheduler import Piece
from milepost.request import Sequence

GRID = 64


def on_grid(num_tokens: int) -> int:
    return num_tokens // GRID * GRID


def test_c1_a_hit_that_ends_anywhere_between_grid_points(serve: Serve) -> None:
    client = serve()
    for rest in (0, 1, 31, 63) if serve.small else range(64):
        first = client.ask(client.text(128 + rest))
        assert client.ask(first.text + client.text(30), 4).resumed >= 128


@pytest.mark.parametrize("memory", ["plenty", "short"])
def test_c2_there_and_back(serve: Serve, memory: str) -> None:
    """B has 8,192 tokens (2,048 in the small version); in short memory there is room for B alone."""
    length = serve.scaled(2048, 8192)
    client = serve(budget=Budget(length + 64, 8) if memory == "short" else None, max_num_seqs=1)
    first = client.text(500)
    client.ask(first, 10)
    client.ask(client.text(length), 10)
    again = client.ask(first, 10)
    assert memory == "short" or again.resumed >= on_grid(499)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_c3_a_state_that_is_not_finite(serve: Serve, value: float) -> None:
    """Rows before it may be shared, none from it on."""
    client = serve(budget=Budget(2048, 12), max_num_seqs=2)
    prefix = client.text(150)
    undo = poison(client.wire.engine, value)
    for rest in ([POISON, *client.text(100)], [POISON]):
        with pytest.raises(Failed, match="not finite"):
            client.ask(prefix + rest)
    undo()  # or a model that says the token itself fails rightly
    for number in range(serve.scaled(12, 100)):
        shared = prefix if number % 3 == 0 else []
        assert client.ask(shared + client.text(100)).resumed <= 150


@pytest.mark.parametrize("step_tokens", [1, 7, 63, 64, 65, 100, 1000])
def test_c4_prompts_cut_anywhere_beside_one_that_decodes(serve: Serve, step_tokens: int) -> None:
    client = serve(step_tokens=step_tokens)
    decoding = client.begin(client.text(30), serve.scaled(40, 150)).wait(2)
    prefix = client.text(130)
    for length in (1, 70, 150):
        client.ask(prefix + client.text(length), 5)
    decoding.answer()


@pytest.mark.parametrize("batch", [1, 2, 7, 32])
def test_c5_batches_in_any_order_with_forced_preemptions(serve: Serve, batch: int) -> None:
    client = serve(step_tokens=200, max_num_seqs=batch)
    rng = random.Random(batch)
    preempted: list[Sequence] = []

    def preempt(engine: Engine) -> None:
        running = engine.scheduler.running
        if running and rng.random() < 0.2 and len(preempted) < 40:
            preempted.append(engine.scheduler._preempt(rng.choice(running)))

    serve.watch.before.append(preempt)
    stem = client.text(150)
    prompts = [stem[: rng.randrange(151)] + client.text(rng.randrange(1, 120)) for _ in range(max(batch, 6))]
    for _ in range(serve.scaled(1, 4)):
        rng.shuffle(prompts)
        client.ask_at_once(prompts, 12)
    assert preempted


def test_c6_aborts_at_any_moment(serve: Serve) -> None:
    """While it waits, in prefill, at a step that publishes, in decode: 1,000 of them (30 in the small version). That no
    memory is lost and the books balance is checked when a scenario ends."""
    client = serve(step_tokens=64, budget=Budget(3000, 20), max_num_seqs=4)
    rng = client.rng
    stem, left = client.text(330), []
    for _ in range(serve.scaled(30, 1000)):
        prompt = stem[: rng.choice([0, 64, 128, 200, 330])] + client.text(rng.choice([1, 50, 64, 128]))
        talk = client.begin(prompt, 80)
        client.wire.let_run(rng.choice([0, 1, 2, 5, 9, 40]))
        talk.leave()
        left.append(prompt)
        if len(left) % 10 == 0:
            client.ask(rng.choice(left), 3)
    assert client.ask(stem + client.text(10)).report.matched > 0, "what was computed before an abort is of use"


def test_c6_a_step_that_fails(serve: Serve) -> None:
    """Its rows may have been computed in part: nothing of them is published."""
    client = serve(step_tokens=100)
    runner, stem = client.wire.engine.runner, client.text(330)
    run, steps = runner.run, iter(range(1_000_000))

    def fails_at_the_third(pieces: tuple[Piece, ...]) -> list[PieceResult]:
        if next(steps) == 2:
            raise RuntimeError("planted")
        return run(pieces)

    runner.run = fails_at_the_third  # type: ignore[method-assign]
    with pytest.raises(Failed, match="failed inside"):
        client.ask(stem)
    assert client.resumes(client.ask(stem).resumed, 200)
    assert client.resumes(client.ask(stem).resumed, 329)


def test_c7_answers_read_as_prompts(serve: Serve) -> None:
    """States that decoding has made are those that a prefill makes."""
    warm, cold = serve(), serve()
    told = warm.ask(warm.text(100), 150)
    prompt = told.text + warm.text(20)
    first, second = warm.ask(prompt, 8), cold.ask(prompt, 8)
    assert first.resumed >= on_grid(100 + 150 - 1)
    assert second.resumed == 0
    assert (first.tokens, first.logprobs) == (second.tokens, second.logprobs)
    if first.logits is not None and second.logits is not None:
        assert torch.equal(first.logits, second.logits)


def test_c8_eight_samples_each_continued(serve: Serve) -> None:
    """The prompt is computed once: seven samples resume all of it, or all but its last few rows."""
    client = serve()
    prompt = client.text(220)
    samples = client.ask_samples(prompt, 70, num_samples=8, temperature=1.0, seed=5)
    assert len({tuple(sample.tokens) for sample in samples}) == 8
    told = client.wire.cache()
    assert told.queries == 8 * 220
    assert 7 * client.floor(219) <= told.hits <= 7 * 219
    for sample in samples:
        assert client.ask(sample.text + client.text(10)).resumed >= on_grid(220 + 70 - 1)


def test_c9_scopes_never_share(serve: Serve) -> None:
    client = serve()
    prompt = client.text(200)
    for _ in range(2):
        for who, salt in (("one", ""), ("one", "a"), ("two", ""), ("two", "a"), ("one", "b")):
            again = client.ask(prompt, who=who, salt=salt)
    assert again.resumed >= on_grid(199)
    assert 5 * client.floor(199) <= client.wire.cache().hits <= 5 * 199, "each of the five once"


def test_c9_dtypes_never_share(serve: Serve) -> None:
    """Each engine has a cache of its own; nothing outside of them is shared yet."""
    for dtype in (torch.float32, torch.bfloat16):
        client = serve(dtype=dtype)
        prompt = client.text(200)
        assert client.ask(prompt, 6).resumed == 0
        assert client.ask(prompt, 6).resumed >= on_grid(199)
        assert model_of(serve.kind, dtype).dtype == dtype


def test_c10_hashes_that_collide(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """All hashes are equal. In memory tokens are compared, so this changes nothing but what a miss may be called."""
    monkeypatch.setattr(keys, "digest", lambda data: bytes(keys.KEY_BYTES))
    monkeypatch.setattr(misses, "hash", lambda data: 7, raising=False)
    client = serve()
    first, second = client.text(200), client.text(200)
    for prompt in (first, second):
        assert client.ask(prompt).resumed == 0
        assert client.ask(prompt).resumed >= on_grid(199)
    assert client.ask(first[:64] + second[64:]).resumed == 64


@pytest.mark.parametrize("past", [-1, 0, 1])
def test_c11_lengths_round_the_grid(serve: Serve, past: int) -> None:
    client = serve()
    for length in (64, 128, 192):
        prompt = client.text(length + past)
        client.ask(prompt, 3)
        again = client.ask(prompt, 3)
        assert on_grid(length + past - 1) <= again.resumed < len(prompt), "one token at least is computed"
