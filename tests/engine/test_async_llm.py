"""Many callers of one engine: streams, aborts, and what each sees when something fails."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading

import pytest
from tiny_engine import TINY, MakeEngine, random_prompts, tokens

from milepost.engine.async_llm import AsyncLLM
from milepost.errors import RequestError, RequestFailed
from milepost.outputs import RequestOutput
from milepost.sampling_params import RequestOutputKind, SamplingParams

PLAIN_LOOP = """
import json, sys, torch
from milepost.engine.plain import generate
from milepost.models.loader.load import load_model
from milepost.models.loader.random_weights import random_source
job = json.load(sys.stdin)
model = load_model(random_source(job["config"]), torch.float32).model
json.dump([list(generate(model, prompt, n)) for prompt, n in job["prompts"]], sys.stdout)
"""


def plain_loop_in_a_fresh_process(prompts: list[tuple[list[int], int]]) -> list[list[int]]:
    job = json.dumps({"config": TINY, "prompts": prompts})
    run = subprocess.run([sys.executable, "-c", PLAIN_LOOP], input=job, capture_output=True, text=True, check=True)
    answers: list[list[int]] = json.loads(run.stdout)
    return answers


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, output_kind=RequestOutputKind.DELTA)


async def stream(
    llm: AsyncLLM, prompt: list[int], params: SamplingParams, name: str, leave_after: int = 10**6
) -> list[int]:
    """The streamed tokens; walks away once it has `leave_after`."""
    told: list[int] = []
    outputs = llm.generate(prompt, params, name)
    async for output in outputs:
        told += tokens(output)
        if len(told) >= leave_after:
            await outputs.aclose()  # type: ignore[attr-defined]
            break
    return told


async def idle(llm: AsyncLLM) -> None:
    """Waits until the engine has taken note of everything."""
    while llm._engine.has_work:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("caching", [True, False])
def test_32_streams_with_aborts_in_a_third_of_the_memory(caching: bool, make_engine: MakeEngine) -> None:
    rng = random.Random(1)
    prompts = random_prompts(32, 120, seed=2)
    lengths = [rng.randint(1, 60) for _ in prompts]
    leave = [rng.randint(0, n) if i % 5 == 0 else 10**6 for i, n in enumerate(lengths)]
    demand = sum(-(-(len(p) + n) // 16) for p, n in zip(prompts, lengths, strict=True))
    engine = make_engine(
        num_blocks=demand // 3, max_num_batched_tokens=100, max_model_len=192, enable_prefix_caching=caching
    )
    llm = AsyncLLM(engine)

    async def run() -> list[list[int]]:
        jobs = [
            stream(llm, prompt, greedy(n), f"request {i}", leave[i])
            for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True))
        ]
        told = await asyncio.gather(*jobs)
        await idle(llm)
        return told

    told = asyncio.run(run())
    llm.shutdown()
    expected = plain_loop_in_a_fresh_process(list(zip(prompts, lengths, strict=True)))
    for i, answer in enumerate(expected):
        assert told[i] == answer[: len(told[i])]
        assert len(told[i]) == len(answer) or len(told[i]) >= leave[i]
    assert engine.scheduler.cache.usage == 0


def test_what_callers_see_of_bad_requests(make_engine: MakeEngine) -> None:
    llm = AsyncLLM(make_engine(max_model_len=50))

    async def run() -> None:
        with pytest.raises(RequestError, match="maximum context length is 50"):
            await stream(llm, [1] * 60, greedy(1), "too long")
        with pytest.raises(RequestError, match="no tokenizer"):
            await stream(llm, "text", greedy(1), "text")  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="stop_token_ids"):
            await stream(llm, [1], SamplingParams(stop_token_ids=[5000]), "stop")
        first = asyncio.create_task(stream(llm, [1, 2], greedy(40), "twin"))
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        if not first.done():
            with pytest.raises(RequestError, match="running already"):
                await stream(llm, [1, 2], greedy(40), "twin")
        assert len(await first) == 40

    asyncio.run(run())
    llm.shutdown()


def test_an_abort_from_outside_ends_the_stream_with_its_reason(make_engine: MakeEngine) -> None:
    llm = AsyncLLM(make_engine())

    async def run() -> RequestOutput:
        last = None
        async for output in llm.generate([1, 2, 3], greedy(200), "a"):
            last = output
            await llm.abort("a")
        assert last is not None
        return last

    last = asyncio.run(run())
    llm.shutdown()
    assert last.outputs[0].finish_reason in ("abort", "length")
    assert last.finished


def test_an_engine_that_dies_ends_every_stream_and_refuses_more(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    llm = AsyncLLM(engine)

    def die() -> list[RequestOutput]:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(engine, "step", die)

    async def run() -> None:
        for name in "ab":
            with pytest.raises(RequestFailed, match="the engine stopped: ZeroDivisionError"):
                await stream(llm, [1, 2, 3], greedy(5), name)

    asyncio.run(run())
    assert isinstance(llm.errored, RequestFailed)
    llm.shutdown()


def test_shutdown_ends_running_streams(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=16)
    llm = AsyncLLM(engine)
    held = threading.Event()
    step = engine.step

    def slow_step() -> list[RequestOutput]:
        held.wait(0.01)
        return step()

    engine.step = slow_step  # type: ignore[method-assign]

    async def run() -> None:
        async for _ in llm.generate([1, 2, 3], greedy(250), "a"):
            await asyncio.to_thread(llm.shutdown)

    with pytest.raises(RequestFailed, match="shutting down"):
        asyncio.run(run())
    with pytest.raises(RequestFailed, match="shutting down"):
        asyncio.run(stream(llm, [1], greedy(1), "late"))


def test_a_cache_reset_waits_its_turn(make_engine: MakeEngine) -> None:
    llm = AsyncLLM(make_engine())

    async def run() -> tuple[bool, int]:
        prompt = list(range(50))
        await stream(llm, prompt, greedy(2), "fill")
        done = await llm.reset_prefix_cache()
        async for output in llm.generate(prompt, greedy(1), "again"):
            cached = output.num_cached_tokens
        return done, cached

    assert asyncio.run(run()) == (True, 0)
    llm.shutdown()


def test_metrics_are_vllms(make_engine: MakeEngine) -> None:
    llm = AsyncLLM(make_engine(served_model_name="tiny"))

    async def run() -> None:
        prompt = list(range(50))
        await stream(llm, prompt, greedy(3), "a")
        await stream(llm, prompt, greedy(3), "b")

    asyncio.run(run())
    llm.shutdown()
    text = llm.metrics_text().decode()
    for line in (
        'vllm:prompt_tokens_total{model_name="tiny"} 100.0',
        'vllm:generation_tokens_total{model_name="tiny"} 6.0',
        'vllm:prefix_cache_queries_total{model_name="tiny"} 100.0',
        'vllm:prefix_cache_hits_total{model_name="tiny"} 48.0',
        'vllm:num_requests_running{model_name="tiny"} 0.0',
        'vllm:request_success_total{finished_reason="length",model_name="tiny"} 2.0',
        'vllm:time_to_first_token_seconds_count{model_name="tiny"} 2.0',
        'vllm:inter_token_latency_seconds_count{model_name="tiny"} 4.0',
        'milepost:prefix_cache_matched_tokens_total{model_name="tiny"} 48.0',
        'milepost:prefix_cache_misses_total{model_name="tiny",reason="no prefix"} 1.0',
    ):
        assert line in text


@pytest.mark.parametrize("params", [greedy(5), SamplingParams(stop_token_ids=[5000])])
def test_an_abort_of_an_id_that_does_not_run_cannot_reach_a_later_request(
    params: SamplingParams, make_engine: MakeEngine
) -> None:
    engine = make_engine()
    llm = AsyncLLM(engine)
    step = engine.step

    def slow_step() -> list[RequestOutput]:
        threading.Event().wait(0.02)
        return step()

    engine.step = slow_step  # type: ignore[method-assign]

    async def run() -> list[int]:
        other = asyncio.create_task(stream(llm, [9], greedy(30), "other"))
        await asyncio.sleep(0.05)
        await llm.abort("a")
        try:
            told = await asyncio.wait_for(stream(llm, [1, 2, 3], params, "a"), 20)
        except RequestError:
            told = []
        assert len(await other) == 30
        return told

    assert len(asyncio.run(run())) == (5 if params.stop_token_ids is None else 0)
    assert llm.errored is None
    llm.shutdown()


def test_idle_time_is_no_stall(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    llm = AsyncLLM(engine)
    now = [0.0]
    monkeypatch.setattr(engine, "clock", lambda: now[0])
    step, seen = engine.step, []

    def watched_step() -> list[RequestOutput]:
        seen.append(llm.stalled)
        return step()

    engine.step = watched_step  # type: ignore[method-assign]

    async def run() -> None:
        await stream(llm, [1], greedy(1), "a")
        await idle(llm)
        await asyncio.sleep(0.1)  # the engine's thread goes to sleep
        now[0] += 10_000.0
        await stream(llm, [1], greedy(1), "b")

    asyncio.run(run())
    llm.shutdown()
    assert seen
    assert not any(seen)


def test_a_cache_reset_after_the_end_says_so(make_engine: MakeEngine) -> None:
    llm = AsyncLLM(make_engine())
    llm.shutdown()
    with pytest.raises(RequestFailed, match="shutting down"):
        asyncio.run(llm.reset_prefix_cache())
