"""A prompt as one vector, against the rows of one plain pass over it."""

from __future__ import annotations

import pytest
import torch
from tiny_engine import MakeEngine, add, drain, random_prompts

from milepost.engine import runner
from milepost.engine.engine import Engine
from milepost.engine.scheduler import Piece
from milepost.errors import RequestError, RequestFailed
from milepost.models.loader.load import LoadedModel
from milepost.outputs import RequestOutput
from milepost.sampling_params import SamplingParams

POOLINGS = ("last", "mean")


def wanted(pooling: str) -> SamplingParams:
    return SamplingParams(max_tokens=0, pooling=pooling)


def vector(output: RequestOutput) -> torch.Tensor:
    assert output.embedding is not None
    return torch.tensor(output.embedding)


@torch.inference_mode()
def rows_of(engine: Engine, prompt: list[int]) -> torch.Tensor:
    """All hidden rows, which the runner's own model gives when it is asked for one prompt alone."""
    seen: list[torch.Tensor] = []
    model = engine.runner.model
    hook = model.register_forward_hook(lambda module, args, hidden: seen.append(hidden.clone()))
    add(engine, "plain", prompt, SamplingParams(max_tokens=0, skip_reading_prefix_cache=True))
    drain(engine)
    hook.remove()
    return torch.cat(seen)


def test_a_vector_that_cannot_be_made_fails_its_request_alone(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it, in the same step, another reads its prompt."""
    prompts = random_prompts(2, 90, seed=4)
    engine, alone = make_engine(num_blocks=400), make_engine(num_blocks=400)

    def planted(piece: Piece, hidden: torch.Tensor) -> torch.Tensor | None:
        if piece.seq.params.pooling:
            raise RuntimeError("planted")
        return None

    monkeypatch.setattr(runner, "pooled_rows", planted)
    answer = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    add(engine, "vector", prompts[0], wanted("mean"))
    add(engine, "text", prompts[1], answer)
    add(alone, "text", prompts[1], answer)
    done, expected = drain(engine), drain(alone)
    assert isinstance(done["vector"].error, RequestFailed)
    assert done["text"].outputs[0].token_ids == expected["text"].outputs[0].token_ids


@pytest.mark.parametrize("pooling", POOLINGS)
def test_beside_others_and_in_pieces(make_engine: MakeEngine, pooling: str) -> None:
    prompts = random_prompts(6, 90, seed=3)
    plain = make_engine(num_blocks=400, enable_prefix_caching=False)
    engine = make_engine(num_blocks=400, max_num_batched_tokens=37)
    for i, prompt in enumerate(prompts):
        add(engine, str(i), prompt, wanted(pooling))
        add(engine, f"beside {i}", prompt, SamplingParams(temperature=0, max_tokens=9))
    done = drain(engine)
    for i, prompt in enumerate(prompts):
        rows = rows_of(plain, prompt)
        expected = rows[-1] if pooling == "last" else rows.double().mean(dim=0).float()
        torch.testing.assert_close(vector(done[str(i)]), expected)
        assert done[f"beside {i}"].embedding is None


def test_the_last_row_needs_no_prefix_again_and_the_mean_needs_all(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = random_prompts(1, 100, seed=1)[0] + [7] * 60
    found: dict[str, list[RequestOutput]] = {}
    for pooling in POOLINGS:
        for i in range(2):
            add(engine, f"{pooling} {i}", prompt, wanted(pooling))
            found.setdefault(pooling, []).append(drain(engine)[f"{pooling} {i}"])
    whole = (len(prompt) - 1) // 16 * 16
    assert [output.num_cached_tokens for output in found["last"]] == [0, whole]
    assert [output.num_cached_tokens for output in found["mean"]] == [0, 0]
    cache = found["mean"][1].cache
    assert cache is not None
    assert cache.reason == "reading disabled"
    for first, second in found.values():
        torch.testing.assert_close(vector(first), vector(second))
    engine.reset_prefix_cache()
    add(engine, "a", prompt, wanted("mean"))
    drain(engine)
    add(engine, "b", prompt, wanted("last"))
    assert drain(engine)["b"].num_cached_tokens == whole, "and it leaves what it read for others"


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_preempted_prompt_is_counted_once(make_engine: MakeEngine, pooling: str) -> None:
    """Pieces that were computed before it had to go are not in the sum twice."""
    engine = make_engine(num_blocks=14, max_num_batched_tokens=2, scheduling_policy="priority")
    prompt = [i % 190 for i in range(150)]
    add(engine, "b", [5] * 20, SamplingParams(temperature=0, max_tokens=170), priority=0)
    add(engine, "a", prompt, wanted(pooling), priority=1)
    output = drain(engine)["a"]
    rows = rows_of(make_engine(num_blocks=400, enable_prefix_caching=False), prompt)
    expected = rows[-1] if pooling == "last" else rows.double().mean(dim=0).float()
    torch.testing.assert_close(vector(output), expected)
    assert output.metrics is not None
    assert output.metrics.num_preemptions > 0


@pytest.mark.parametrize("fields", [{"pooling": "cls"}, {"max_tokens": 1}, {"n": 2}])
def test_what_cannot_be_pooled(fields: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="pooling"):
        SamplingParams(**({"max_tokens": 0, "pooling": "last"} | fields))  # type: ignore[arg-type]


def test_rows_that_are_not_finite_are_an_error(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    engine = make_engine()
    hook = tiny.model.register_forward_hook(lambda module, args, hidden: hidden * float("nan"))
    try:
        add(engine, "a", [1, 2, 3], wanted("last"))
        output = drain(engine)["a"]
    finally:
        hook.remove()
    assert output.error is not None
    assert output.embedding is None
