"""Log probabilities against torch's log_softmax."""

import math

import pytest
import torch

from milepost.engine.logprobs import prompt_logprobs
from milepost.errors import RequestFailed


def test_against_log_softmax() -> None:
    logits = torch.randn(6, 400, generator=torch.Generator().manual_seed(0)) * 4
    chosen = [0, 399, 17, 18, int(logits[4].argmax()), int(logits[5].argmin())]
    expected = logits.double().log_softmax(-1)
    found = prompt_logprobs(logits, chosen, 5, str)
    for row, token in enumerate(chosen):
        order = expected[row].argsort(descending=True).tolist()
        assert list(found[row]) == list(dict.fromkeys([token, *order[:5]]))
        for other, entry in found[row].items():
            assert entry.logprob == pytest.approx(float(expected[row, other]), abs=1e-9)
            assert entry.rank == order.index(other) + 1
            assert entry.decoded_token == str(other)


@pytest.mark.parametrize(("k", "size"), [(0, 1), (1, 2), (-1, 30), (30, 30), (1000, 30)])
def test_how_many(k: int, size: int) -> None:
    logits = torch.arange(30.0).flip(0)[None]
    (found,) = prompt_logprobs(logits, [20], k)
    assert len(found) == size
    assert next(iter(found)) == 20
    assert found[20].rank == 21
    assert found[20].decoded_token is None


def test_equal_tokens_rank_by_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]])
    (found,) = prompt_logprobs(logits, [3], 2)
    assert {token: entry.rank for token, entry in found.items()} == {3: 3, 1: 1, 2: 2}


def test_huge_and_masked_logits() -> None:
    (found,) = prompt_logprobs(torch.tensor([[3e38, -math.inf, -3e38]]), [1], -1)
    assert [found[token].logprob for token in (0, 1)] == [0.0, -math.inf]
    assert found[1].rank == 3


def test_memory_layout_does_not_matter() -> None:
    logits = torch.randn(4, 1001, generator=torch.Generator().manual_seed(0))
    assert prompt_logprobs(logits, [1, 2, 3, 4], 3) == prompt_logprobs(logits.T.contiguous().T, [1, 2, 3, 4], 3)


def test_a_row_has_the_same_values_alone_among_others_and_on_any_threads() -> None:
    logits = torch.randn(6, 250_001, generator=torch.Generator().manual_seed(1)) * 3
    chosen = [0, 250_000, 17, 18, 19, 20]
    expected = prompt_logprobs(logits, chosen, 4)
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 5):
            torch.set_num_threads(num_threads)
            assert prompt_logprobs(logits, chosen, 4) == expected
            for i, token in enumerate(chosen):
                assert prompt_logprobs(logits[i : i + 1].clone(), [token], 4) == [expected[i]]
    finally:
        torch.set_num_threads(before)


def test_not_finite() -> None:
    with pytest.raises(RequestFailed, match="not finite"):
        prompt_logprobs(torch.tensor([[0.0, math.nan]]), [0], 1)


def test_rows_and_tokens_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="zip"):
        prompt_logprobs(torch.zeros(2, 4), [0], 1)
