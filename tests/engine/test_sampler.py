"""The sampler against slow references, one for each parameter; its independence of the batch; its statistics."""

import collections
import math
from typing import Any

import numpy as np
import pytest
import torch

from milepost.engine.sampler import Sampled, Sampler, candidates, choose, nucleus
from milepost.errors import RequestError, RequestFailed
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams

EOS = 3


def sequence(
    prompt: tuple[int, ...] = (1, 2), output: tuple[int, ...] = (), index: int = 0, seed: int = 0, **params: Any
) -> Sequence:
    tokens = [*prompt, *output]
    return Sequence("r", tokens, len(prompt), SamplingParams(max_tokens=None, **params), index, seed)


def logits_of(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def random_logits(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def tokens_of(results: list[Sampled | Exception]) -> list[int]:
    assert all(isinstance(result, Sampled) for result in results), results
    return [result.token_id for result in results if isinstance(result, Sampled)]


def kept(scores: torch.Tensor, **params: Any) -> dict[int, float]:
    """What may be drawn and how likely."""
    ids, weights = candidates(scores.numpy(), SamplingParams(**params))
    return dict(zip(ids.tolist(), (weights / weights.sum()).tolist(), strict=True))


def kept_by_reference(scores: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> dict:
    """The definitions word for word, in Python's floats: order by score and id, cut, renormalise, cut again."""
    best = max(scores.tolist())
    weights = {i: math.exp((x - best) / temperature) for i, x in enumerate(scores.tolist())}
    order = sorted(weights, key=lambda i: (-scores[i].item(), i))
    order = [i for i in order if weights[i] >= min_p]
    if top_k > 0:
        order = order[:top_k]
    total, mass, chosen = math.fsum(weights[i] for i in order), 0.0, []
    for i in order:
        chosen.append(i)
        mass += weights[i]
        if top_p < 1 and mass >= top_p * total:
            break
    total = math.fsum(weights[i] for i in chosen)
    return {i: weights[i] / total for i in sorted(chosen)}


CUTS = [
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 3.0, "top_k": 10, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 1.0, "top_k": 1000, "top_p": 0.5, "min_p": 0.0},
    {"temperature": 1.0, "top_k": -1, "top_p": 0.9, "min_p": 0.0},
    {"temperature": 1.5, "top_k": 0, "top_p": 0.999, "min_p": 0.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1e-9, "min_p": 0.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 0, "top_p": 0.7, "min_p": 1.0},
    {"temperature": 1e6, "top_k": 0, "top_p": 0.5, "min_p": 0.0},
    {"temperature": 1e-5, "top_k": 0, "top_p": 0.5, "min_p": 0.0},
]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("kind", ["spread", "flat", "peaked", "tied"])
def test_cuts_against_the_definitions(cut: dict[str, Any], kind: str) -> None:
    scores = {
        "spread": random_logits(1, 800)[0],
        "flat": random_logits(1, 800, scale=1e-3)[0],
        "peaked": random_logits(1, 800, scale=20.0)[0],
        "tied": random_logits(1, 800).round()[0],
    }[kind]
    ours, reference = kept(scores, **cut), kept_by_reference(scores, **cut)
    assert list(ours) == list(reference)
    assert list(ours.values()) == pytest.approx(list(reference.values()), rel=1e-12)


def test_ties_at_a_cut_go_to_the_lower_ids() -> None:
    scores = logits_of([1.0, 2.0, 1.0, 1.0, 0.0])[0]
    assert list(kept(scores, top_k=3)) == [0, 1, 2]
    assert list(kept(torch.zeros(10), top_p=0.35)) == [0, 1, 2, 3]
    assert list(kept(torch.zeros(10), top_k=4)) == [0, 1, 2, 3]


def test_top_p_is_of_what_top_k_and_min_p_leave() -> None:
    scores = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert list(kept(scores, top_p=0.65)) == [0, 1]
    assert list(kept(scores, top_k=2, top_p=0.55)) == [0]  # 0.4 / 0.7 = 0.57
    assert list(kept(scores, min_p=0.7, top_p=0.55)) == [0]


def test_nucleus_when_rounding_leaves_the_prefiltered_short() -> None:
    """With top_p a hair below 1 the floor is all but 0: whatever rounding does, no weight that matters is lost."""
    weights = np.exp(np.random.default_rng(0).normal(size=5000) * 5)
    for top_p in (1 - 1e-16, 1 - 1e-12, 1 - 1e-9):
        order = np.argsort(-weights, kind="stable")
        target = top_p * weights.sum()
        num_kept = min(int(np.searchsorted(np.cumsum(weights[order]), target)) + 1, len(weights))
        assert nucleus(weights, top_p).tolist() == sorted(order[:num_kept].tolist())


def test_masked_tokens_are_never_drawn() -> None:
    scores = torch.full((50,), -math.inf)
    scores[[7, 30]] = torch.tensor([1.0, 0.0])
    seen = {choose(scores.numpy(), sequence(seed=seed)) for seed in range(200)}
    assert seen == {7, 30}


@pytest.mark.parametrize("top_k", [0, 5])
def test_frequencies_are_those_of_the_softmax(top_k: int) -> None:
    """Chi-square of 20,000 draws at consecutive positions; 99.9 % of true samplers stay below the bound."""
    scores, draws = random_logits(1, 12, scale=1.5)[0], 20_000
    expected = kept(scores, temperature=0.8, top_k=top_k)
    seq = sequence(temperature=0.8, top_k=top_k, seed=11)
    seen: collections.Counter[int] = collections.Counter()
    for _ in range(draws):
        seen[choose(scores.numpy(), seq)] += 1
        seq.tokens.append(0)
    assert set(seen) <= set(expected)
    chi_square = sum((seen[i] - draws * p) ** 2 / (draws * p) for i, p in expected.items())
    assert chi_square < {11: 31.26, 4: 18.47}[len(expected) - 1]


def test_samples_of_one_request_differ_and_repeat() -> None:
    logits = random_logits(1, 1000, scale=1.0).expand(32, 1000)

    def drawn(seed: int) -> list[int]:
        return tokens_of(Sampler().sample(logits, [sequence(index=i, seed=seed) for i in range(32)]))

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len(set(drawn(1))) > 16


def mixed_batch() -> tuple[torch.Tensor, list[Sequence]]:
    """32 rows with every kind of parameter."""
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"top_k": 40, "top_p": 0.9},
        {"top_p": 0.95, "logprobs": 3},
        {"min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"logit_bias": {5: 3.0}, "min_tokens": 4},
        {"temperature": 1.7},
    ]
    seqs = [
        sequence(prompt=tuple(range(i + 1)), output=(i, i, 5), index=i % 3, seed=i, **kinds[i % len(kinds)])
        for i in range(32)
    ]
    return random_logits(32, 5003), seqs


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits, seqs = mixed_batch()
    together = Sampler([EOS]).sample(logits, seqs)
    alone = [Sampler([EOS]).sample(logits[i : i + 1], [seq])[0] for i, seq in enumerate(seqs)]
    turned = Sampler([EOS]).sample(logits.flip(0), seqs[::-1])[::-1]
    assert together == alone == turned


def test_a_row_does_not_depend_on_its_memory() -> None:
    logits, seqs = mixed_batch()
    wide = torch.full((32, 5003 * 2 + 7), math.nan)
    strided, shifted = wide[:, :10006:2], torch.empty(32 * 5003 + 3)[3:].view(32, 5003)
    together = Sampler([EOS]).sample(logits, seqs)
    for place in (strided, shifted, torch.empty(5003, 32).T):
        place.copy_(logits)
        assert Sampler([EOS]).sample(place, seqs) == together


@pytest.mark.parametrize("kind", ["spread", "flat", "tied"])
def test_a_large_vocabulary_alone_together_and_on_any_threads(kind: str) -> None:
    """Sums over 250,000 scores: torch would share them out among its threads."""
    logits = random_logits(18, 250_001, scale=0.01 if kind == "flat" else 3.0)
    logits = logits.round() if kind == "tied" else logits
    wide: list[dict[str, Any]] = [
        {"logprobs": 0},
        {"temperature": 0.0, "logprobs": 5},
        {"temperature": 1.7, "logprobs": 20},
        {"top_p": 0.95, "logprobs": 3},
        {"top_p": 0.999999, "temperature": 2.0, "logprobs": 1},
        {"top_k": 100_000, "top_p": 0.5, "logprobs": 1},
        {"top_k": 40, "top_p": 0.9, "logprobs": 0},
        {"min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logprobs": 2},
        {"logit_bias": {5: 3.0}, "min_tokens": 4, "logprobs": 1},
    ]
    seqs = [sequence(tuple(range(i + 1)), (i, i, 5), i % 3, seed=i, **wide[i % len(wide)]) for i in range(18)]
    expected = Sampler([EOS]).sample(logits, seqs)
    assert len(set(tokens_of(expected))) > 5
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 5):
            torch.set_num_threads(num_threads)
            assert Sampler([EOS]).sample(logits, seqs) == expected
            assert Sampler([EOS]).sample(logits.flip(0), seqs[::-1])[::-1] == expected
            alone = [Sampler([EOS]).sample(logits[i : i + 1].clone(), [seq])[0] for i, seq in enumerate(seqs)]
            assert alone == expected
    finally:
        torch.set_num_threads(before)


def test_logits_are_left_as_they_were() -> None:
    logits, seqs = mixed_batch()
    before = logits.clone()
    Sampler([EOS]).sample(logits, seqs)
    assert torch.equal(logits, before)


def test_greedy_takes_the_first_of_equals() -> None:
    logits = logits_of([0.0, 2.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0])
    assert tokens_of(Sampler().sample(logits, [sequence(temperature=0), sequence(temperature=9e-6)])) == [1, 0]
    assert tokens_of(Sampler().sample(logits, [sequence(top_k=1), sequence(top_k=1)])) == [1, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"logprobs": 2}, {"logit_bias": {1: -100}}], ids=str)
def test_a_row_that_is_not_finite_fails_alone(bad: float, params: dict[str, Any]) -> None:
    logits = random_logits(3, 100)
    expected = tokens_of(Sampler().sample(logits, [sequence(**params) for _ in range(3)]))
    logits[1, 50] = bad
    results = Sampler().sample(logits, [sequence(**params) for _ in range(3)])
    assert isinstance(results[1], RequestFailed)
    assert results[1].message == "the model's output is not finite"
    assert tokens_of([results[0], results[2]]) == [expected[0], expected[2]]


def test_a_row_of_nothing_but_minus_infinity_fails() -> None:
    (result,) = Sampler().sample(torch.full((1, 8), -math.inf), [sequence()])
    assert isinstance(result, RequestFailed)


def test_any_error_of_one_sequence_stays_with_it() -> None:
    logits = random_logits(3, 100)
    broken = sequence(prompt=(1, 100), repetition_penalty=2.0)  # a token that the vocabulary does not have
    foreign = sequence(logit_bias={100: 1.0})
    results = Sampler().sample(logits, [broken, foreign, sequence(temperature=0)])
    assert isinstance(results[0], IndexError)
    assert isinstance(results[1], IndexError)
    assert tokens_of(results[2:]) == [int(logits[2].argmax())]


def test_rows_and_sequences_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="2 rows of logits for 1 sequences"):
        Sampler().sample(random_logits(2, 10), [sequence()])


def test_no_rows() -> None:
    assert Sampler().sample(torch.empty(0, 10), []) == []


def test_logit_bias() -> None:
    logits = logits_of([0.0, 1.0, 2.0, -math.inf])
    assert tokens_of(Sampler().sample(logits, [sequence(temperature=0, logit_bias={0: 2.5})])) == [0]
    assert tokens_of(Sampler().sample(logits, [sequence(temperature=0, logit_bias={2: -100, 1: -100})])) == [0]
    assert tokens_of(Sampler().sample(logits, [sequence(temperature=0, logit_bias={3: 100})])) == [2]


def test_min_tokens_masks_the_ends_until_reached() -> None:
    logits = logits_of([0.0, 1.0, 2.0, 5.0, 4.0, 3.0])  # 3 is the model's end, 4 the caller's
    params: dict[str, Any] = {"temperature": 0, "min_tokens": 2, "stop_token_ids": [4, 999]}
    sampler = Sampler([EOS, 1000])
    chosen = [
        tokens_of(sampler.sample(logits, [sequence(output=output, **params)]))
        for output in ((), (0,), (0, 0), (0, 0, 0))
    ]
    assert chosen == [[5], [5], [3], [3]]
    ignoring = sequence(ignore_eos=True, **params)
    assert tokens_of(sampler.sample(logits, [ignoring])) == [5]


def test_nothing_left_to_draw() -> None:
    (result,) = Sampler([0, 1]).sample(logits_of([1.0, 2.0]), [sequence(min_tokens=1)])
    assert isinstance(result, RequestError)
    assert "no token can be drawn" in result.message


def test_bias_comes_before_penalties() -> None:
    """Token 1 was seen: (-1 + 2) / 2 = 0.5 beats 0.3; the other way round it would be -1 x 2 + 2 = 0."""
    logits = logits_of([-5.0, -1.0, 0.3])
    seq = sequence(prompt=(1,), temperature=0, logit_bias={1: 2.0}, repetition_penalty=2.0)
    assert tokens_of(Sampler().sample(logits, [seq])) == [1]


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = random_logits(1, 50)
    expected = logits[0].double().log_softmax(0)
    params: dict[str, Any] = {"temperature": 0.3, "logit_bias": {9: 50.0}, "frequency_penalty": 1.0, "top_k": 3}
    (result,) = Sampler(decode=lambda token: f"<{token}>").sample(logits, [sequence(logprobs=2, **params)])
    assert isinstance(result, Sampled)
    assert result.token_id == 9
    assert result.logprob == pytest.approx(float(expected[9]), abs=1e-9)
    assert result.logprobs is not None
    assert list(result.logprobs) == [9, *expected.topk(2).indices.tolist()]
    assert result.logprobs[9].logprob == result.logprob
    assert result.logprobs[9].decoded_token == "<9>"


def test_no_logprobs_unless_asked() -> None:
    (result,) = Sampler().sample(random_logits(1, 50), [sequence()])
    assert isinstance(result, Sampled)
    assert result.logprob is None
    assert result.logprobs is None


def test_bfloat16_logits_and_inference_mode() -> None:
    with torch.inference_mode():
        logits = random_logits(2, 300).bfloat16()
        seqs = [sequence(temperature=0), sequence(top_p=0.9, repetition_penalty=1.5)]
        assert tokens_of(Sampler().sample(logits, seqs)) == tokens_of(Sampler().sample(logits.float(), seqs))
