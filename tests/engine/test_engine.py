"""The engine, step by step, against the plain loop."""

from __future__ import annotations

import itertools

import psutil
import pytest
import torch
from tiny_engine import TINY, MakeEngine, add, drain, random_prompts, tokens

from milepost.engine.plain import generate, logits_of
from milepost.errors import RequestError
from milepost.models.loader.load import LoadedModel
from milepost.outputs import CacheReport
from milepost.sampling_params import RequestOutputKind, SamplingParams

PROMPT = list(range(5, 75))


def greedy(max_tokens: int = 12, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [1, 7, 16, 63, 64, 100, 2048])
@pytest.mark.parametrize("caching", [True, False])
def test_every_budget_gives_the_plain_loops_tokens(
    budget: int, caching: bool, make_engine: MakeEngine, tiny: LoadedModel
) -> None:
    engine = make_engine(max_num_batched_tokens=budget, enable_prefix_caching=caching)
    prompts = random_prompts(6, 90)
    prompts.append(prompts[0] + [7])
    for i, prompt in enumerate(prompts):
        add(engine, str(i), prompt, greedy())
    outputs = drain(engine)
    for i, prompt in enumerate(prompts):
        assert tokens(outputs[str(i)]) == list(generate(tiny.model, prompt, 12))
        assert outputs[str(i)].outputs[0].finish_reason == "length"


def test_a_long_prompt_progresses_in_every_step_behind_a_steady_load_of_decodes(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=8, max_num_seqs=16)
    for i in range(8):
        add(engine, f"decode {i}", [i + 1], greedy(60))
    for _ in range(4):
        engine.step()
    add(engine, "long", PROMPT, greedy(2))
    engine.step()
    sequence = engine.requests["long"].samples[0].seq
    computed = [sequence.num_computed]
    while sequence.num_output_tokens == 0:
        engine.step()
        computed.append(sequence.num_computed)
    assert all(later > earlier for earlier, later in itertools.pairwise(computed))
    drain(engine)


def test_preemption_recomputes_and_changes_no_token(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    engine = make_engine(num_blocks=17, max_num_batched_tokens=64)
    prompts = random_prompts(6, 40, seed=3)
    for i, prompt in enumerate(prompts):
        add(engine, str(i), prompt, greedy(100))
    outputs = drain(engine)
    assert sum(outputs[str(i)].metrics.num_preemptions for i in range(6)) > 0
    for i, prompt in enumerate(prompts):
        assert tokens(outputs[str(i)]) == list(generate(tiny.model, prompt, 100))


def test_a_shared_prefix_is_read_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    add(engine, "a", PROMPT, greedy(40))
    first = drain(engine)["a"]
    assert first.num_cached_tokens == 0
    follow_up = PROMPT + tokens(first)  # the answer's KV, made while decoding, is as good as a prompt's
    add(engine, "b", [*follow_up, 3], greedy(4))
    add(engine, "c", PROMPT, greedy(4))
    add(engine, "salted", PROMPT, greedy(4), cache_salt="other")
    outputs = drain(engine)
    assert outputs["b"].num_cached_tokens == (len(follow_up) - 1) // 16 * 16
    assert outputs["c"].num_cached_tokens == (len(PROMPT) - 1) // 16 * 16
    assert outputs["salted"].num_cached_tokens == 0
    assert tokens(outputs["c"]) == tokens(outputs["salted"]) == tokens(first)[:4]
    assert engine.reset_prefix_cache()
    add(engine, "d", PROMPT, greedy(4))
    assert drain(engine)["d"].num_cached_tokens == 0


def test_how_samples_end(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    engine = make_engine(max_model_len=96)
    expected = list(generate(tiny.model, PROMPT, 26))
    stop = expected[5]
    first = expected.index(stop)
    cases = {
        "stop token": (greedy(stop_token_ids=[stop]), expected[: first + 1], "stop", stop),
        "too early to stop": (greedy(3, stop_token_ids=[expected[1]], min_tokens=1), None, None, None),
        "max_tokens": (greedy(3), expected[:3], "length", None),
        "context": (greedy(1000), expected, "length", None),
        "context, unlimited": (SamplingParams(temperature=0.0, max_tokens=None), expected, "length", None),
    }
    for name, (params, _, _, _) in cases.items():
        add(engine, name, PROMPT, params)
    outputs = drain(engine)
    for name, (_, told, reason, stop_reason) in cases.items():
        if told is not None:
            sample = outputs[name].outputs[0]
            assert (list(sample.token_ids), sample.finish_reason, sample.stop_reason) == (told, reason, stop_reason)


def test_end_tokens_min_tokens_and_ignore_eos(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    expected = list(generate(tiny.model, PROMPT, 12))
    eos = expected[4]
    place = expected.index(eos)
    engine = make_engine()
    engine.model = type(engine.model)(**{**vars(engine.model), "eos_token_ids": frozenset({eos})})
    engine.runner.sampler = type(engine.runner.sampler)({eos})
    add(engine, "ends", PROMPT, greedy())
    add(engine, "ignores", PROMPT, greedy(ignore_eos=True))
    add(engine, "waits", PROMPT, greedy(min_tokens=12))
    outputs = drain(engine)
    assert tokens(outputs["ends"]) == expected[: place + 1]
    assert outputs["ends"].outputs[0].finish_reason == "stop"
    assert tokens(outputs["ignores"]) == expected
    assert eos not in tokens(outputs["waits"])
    assert len(tokens(outputs["waits"])) == 12


def test_seeds_decide_and_the_batch_does_not(make_engine: MakeEngine) -> None:
    def run(names: list[str], **settings: object) -> dict[str, list[list[int]]]:
        engine = make_engine(**settings)
        for name in names:
            params = SamplingParams(temperature=1.5, seed=int(name), n=3, max_tokens=10, top_p=0.9)
            add(engine, name, PROMPT, params)
        return {name: [list(s.token_ids) for s in output.outputs] for name, output in drain(engine).items()}

    together = run(["1", "2", "3"])
    assert run(["2"]) == {"2": together["2"]}
    assert run(["3", "2", "1"], max_num_batched_tokens=9) == together
    assert len({tuple(sample) for samples in together.values() for sample in samples}) == 9


def test_requests_without_a_seed_differ_and_are_repeatable(make_engine: MakeEngine) -> None:
    def run(seed: int) -> list[list[int]]:
        engine = make_engine(seed=seed)
        for name in "ab":
            add(engine, name, PROMPT, SamplingParams(temperature=2.0, max_tokens=10))
        return [tokens(output) for output in drain(engine).values()]

    assert run(0) == run(0)
    assert run(0) != run(1)
    first, second = run(0)
    assert first != second


@pytest.mark.parametrize("budget", [13, 2048])
def test_logprobs_are_those_of_the_plain_logits(budget: int, make_engine: MakeEngine, tiny: LoadedModel) -> None:
    engine = make_engine(max_num_batched_tokens=budget)
    add(engine, "fills the cache", PROMPT, greedy(1))
    drain(engine)
    add(engine, "a", PROMPT, greedy(4, logprobs=2, prompt_logprobs=1))
    output = drain(engine)["a"]
    assert output.num_cached_tokens == 0  # every row is wanted, so none is skipped
    everything = PROMPT + tokens(output)
    truth = logits_of(tiny.model, everything).log_softmax(-1)
    assert output.prompt_logprobs[0] is None
    for i, token in enumerate(PROMPT[1:]):
        told = output.prompt_logprobs[i + 1]
        assert told[token].logprob == pytest.approx(float(truth[i, token]), abs=1e-4)
        assert told[int(truth[i].argmax())].rank == 1
    sample = output.outputs[0]
    total = 0.0
    for i, token in enumerate(sample.token_ids):
        row = truth[len(PROMPT) - 1 + i]
        assert set(sample.logprobs[i]) == {token, *row.topk(2).indices.tolist()}
        assert sample.logprobs[i][token].logprob == pytest.approx(float(row[token]), abs=1e-4)
        total += float(row[token])
    assert sample.cumulative_logprob == pytest.approx(total, abs=1e-3)


def test_output_kinds(make_engine: MakeEngine) -> None:
    engine = make_engine()
    seen: dict[str, list[list[int]]] = {kind.name: [] for kind in RequestOutputKind}
    for kind in RequestOutputKind:
        add(engine, kind.name, PROMPT, greedy(3, output_kind=kind))
    while engine.has_work:
        for output in engine.step():
            seen[output.request_id].append(tokens(output))
    a, b, c = seen["FINAL_ONLY"][0]
    assert seen == {"FINAL_ONLY": [[a, b, c]], "CUMULATIVE": [[a], [a, b], [a, b, c]], "DELTA": [[a], [b], [c]]}


def test_an_abort_frees_all_and_leaves_the_others(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    engine = make_engine(max_num_batched_tokens=16)
    for name in "abc":
        add(engine, name, [*PROMPT, ord(name)], greedy(8, n=2))
    for _ in range(9):
        engine.step()
    output = engine.abort("b")
    assert output is not None
    assert {sample.finish_reason for sample in output.outputs} == {"abort"}
    assert engine.abort("b") is None
    outputs = drain(engine)
    assert sorted(outputs) == ["a", "c"]
    for name in "ac":
        assert tokens(outputs[name]) == list(generate(tiny.model, [*PROMPT, ord(name)], 8))
    assert engine.scheduler.cache.usage == 0


def test_requests_that_can_never_run_change_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(max_model_len=100)
    add(engine, "a", PROMPT, greedy())
    bad = {
        "maximum context length is 100 tokens": ([1] * 100, greedy()),
        "the prompt is empty": ([], greedy()),
        "token id 199 is not in the vocabulary": ([1, 199], greedy()),
        "token id -1 is not in the vocabulary": ([-1], greedy()),
        "stop_token_ids has token id 199": ([1], greedy(stop_token_ids=[199])),
        "stop strings need a tokenizer": ([1], greedy(stop="x")),
    }
    for message, (prompt, params) in bad.items():
        with pytest.raises(RequestError, match=message):
            add(engine, "bad", prompt, params)
    with pytest.raises(RequestError, match="running already"):
        add(engine, "a", PROMPT, greedy())
    assert list(engine.requests) == ["a"]
    assert list(drain(engine)) == ["a"]


def test_priority(make_engine: MakeEngine) -> None:
    engine = make_engine(scheduling_policy="priority", max_num_seqs=1)
    for name, priority in (("first", 5), ("later", 5), ("urgent", -1)):
        add(engine, name, PROMPT, greedy(3), priority=priority)
    assert list(drain(engine)) == ["urgent", "first", "later"]


def test_a_raising_sampler_fails_its_request_alone(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    engine = make_engine()
    for name in "abc":
        add(engine, name, [*PROMPT, ord(name)], greedy(5))
    engine.step()

    class Faulty(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            raise ZeroDivisionError("planted")

    params = engine.requests["b"].samples[0].seq.params
    object.__setattr__(params, "logit_bias", Faulty([1]))
    outputs = drain(engine)
    assert outputs["b"].outputs[0].finish_reason == "error"
    assert isinstance(outputs["b"].error.__cause__, ZeroDivisionError)
    for name in "ac":
        assert tokens(outputs[name]) == list(generate(tiny.model, [*PROMPT, ord(name)], 5))
    assert engine.scheduler.cache.usage == 0


def test_a_pass_that_raises_fails_its_requests_and_the_engine_goes_on(
    make_engine: MakeEngine, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    add(engine, "a", PROMPT, greedy(5))
    monkeypatch.setattr(engine.runner, "model", lambda *_: torch.zeros(1) / "planted")
    (output,) = engine.step()
    assert output.finished
    assert output.outputs[0].finish_reason == "error"
    monkeypatch.undo()
    add(engine, "b", PROMPT, greedy(5))
    assert tokens(drain(engine)["b"]) == list(generate(tiny.model, PROMPT, 5))
    assert engine.scheduler.cache.usage == 0


def test_rows_that_are_not_finite_fail_their_request(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    poisoned = TINY["vocab_size"] - 1
    weight = tiny.model.get_parameter("model.embed_tokens.weight")
    kept = weight[poisoned].clone()
    engine = make_engine()
    try:
        weight[poisoned] = float("nan")
        add(engine, "poisoned", [*PROMPT, poisoned], greedy(5))
        add(engine, "sound", PROMPT, greedy(5))
        outputs = drain(engine)
    finally:
        weight[poisoned] = kept
    assert "not finite" in str(outputs["poisoned"].error)
    assert tokens(outputs["sound"]) == list(generate(tiny.model, PROMPT, 5))


def test_the_next_request_is_told_where_rows_were_not_finite(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    poisoned = TINY["vocab_size"] - 1
    prompt = [*range(1, 41), poisoned, *range(50, 70)]
    weight = tiny.model.get_parameter("model.embed_tokens.weight")
    kept = weight[poisoned].clone()
    engine = make_engine()
    try:
        weight[poisoned] = float("nan")
        reports = []
        for name in ("first", "second"):
            add(engine, name, prompt, greedy(5))
            output = drain(engine)[name]
            assert output.outputs[0].finish_reason == "error"
            assert "not finite from token 40 on" in str(output.error)
            reports.append(output.cache)
    finally:
        weight[poisoned] = kept
    assert [(report.reason, report.num_resumed_tokens) for report in reports] == [("no prefix", 0), ("not finite", 32)]
    assert reports[1].position == 40
    assert b'misses_total{model_name="",reason="not finite"} 1.0'.split(b",")[1] in engine.metrics.text()


@pytest.mark.parametrize("num", [300, pytest.param(10_000, marks=pytest.mark.full)])
def test_many_requests_leave_no_trace(num: int, make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=40, max_num_batched_tokens=128, max_num_seqs=16)
    prompts = random_prompts(num, 60, seed=9)
    waiting = list(enumerate(prompts))
    ended = 0
    sizes = []
    while waiting or engine.has_work:
        while waiting and len(engine.requests) < 24:
            i, prompt = waiting.pop()
            add(engine, str(i), prompt, SamplingParams(max_tokens=1 + i % 7, n=1 + i % 3, seed=i))
        ended += sum(output.finished for output in engine.step())
        if engine.requests and ended % 5 == 0:
            ended += engine.abort(next(iter(engine.requests))) is not None
        if ended * 10 // num > len(sizes):
            sizes.append(psutil.Process().memory_info().rss)
    assert ended == num
    assert not engine.requests
    assert engine.scheduler.cache.usage == 0
    assert engine.scheduler.num_running == engine.scheduler.num_waiting == 0
    assert max(sizes[5:]) < sizes[4] + 32 * 2**20


@pytest.mark.parametrize("fault", ["the text of a token", "rows that are not finite"])
def test_failing_prompt_logprobs_fail_their_request_alone(
    fault: str, make_engine: MakeEngine, tiny: LoadedModel
) -> None:
    engine = make_engine()
    weight = tiny.model.get_parameter("model.embed_tokens.weight")
    poisoned = TINY["vocab_size"] - 1
    kept = weight[poisoned].clone()
    add(engine, "decodes", PROMPT, greedy(6))
    engine.step()
    try:
        if fault == "the text of a token":
            engine.runner.decode = lambda token: 1 // 0  # type: ignore[func-returns-value]
        else:
            weight[poisoned] = float("nan")
        add(engine, "fails", [*PROMPT, poisoned, 1], greedy(6, prompt_logprobs=1))
        add(engine, "reads", [*PROMPT, 3], greedy(6))
        outputs = drain(engine)
    finally:
        weight[poisoned] = kept
    assert outputs["fails"].outputs[0].finish_reason == "error"
    assert tokens(outputs["decodes"]) == list(generate(tiny.model, PROMPT, 6))
    assert tokens(outputs["reads"]) == list(generate(tiny.model, [*PROMPT, 3], 6))
    assert engine.scheduler.cache.usage == 0


def test_a_failing_sample_ends_its_siblings_as_errors(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(enable_prefix_caching=False)  # both samples then read the prompt in the same step
    sample = engine.runner.sampler.sample

    def faulty(logits: torch.Tensor, seqs: list[object]) -> list[object]:
        results: list[object] = list(sample(logits, seqs))  # type: ignore[arg-type]
        assert len(results) == 2
        return [ZeroDivisionError("planted"), results[1]]

    monkeypatch.setattr(engine.runner.sampler, "sample", faulty)
    every_token = list(range(TINY["vocab_size"]))  # the sibling would stop in the very step in which the first fails
    add(engine, "a", PROMPT, greedy(6, n=2, stop_token_ids=every_token))
    outputs = drain(engine)
    assert [s.finish_reason for s in outputs["a"].outputs] == ["error", "error"]
    assert [s.stop_reason for s in outputs["a"].outputs] == [None, None]
    assert tokens(outputs["a"], 1) == []


def test_a_request_reports_what_it_found_in_the_cache(make_engine: MakeEngine) -> None:
    engine = make_engine()
    add(engine, "first", PROMPT, greedy(2, n=2))
    assert drain(engine)["first"].cache == CacheReport(70, 0, 0, "no prefix", 0)
    edited = [*PROMPT[:37], 4, *PROMPT[38:]]
    add(engine, "edited", edited, greedy(8, output_kind=RequestOutputKind.DELTA))
    reports = []
    while engine.has_work:
        reports += [output.cache for output in engine.step()]
    assert reports == [CacheReport(70, 32, 32, "diverged", 37)] * 8, "the same in every output of a stream"
    add(engine, "again", PROMPT, greedy(2))
    assert drain(engine)["again"].cache == CacheReport(70, 64, 64)


def test_a_request_that_never_ran_reports_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    add(engine, "a", PROMPT, greedy(2))
    output = engine.abort("a")
    assert output is not None
    assert output.cache is None


def test_the_gap_is_computed_again() -> None:
    assert CacheReport(200, 144, 128, "diverged", 150).num_recomputed_tokens == 16
