"""Prompts computed for the cache alone, and pinned; with attention alone and with recurrent layers."""

from __future__ import annotations

import asyncio
import itertools
import threading
from dataclasses import fields, replace

import pytest
import torch
from families import FAMILIES, model_of
from tiny_engine import add, drain, tokens
from toy_tokenizers import byte_level

from milepost.config import EngineConfig
from milepost.engine.async_llm import AsyncLLM
from milepost.engine.build import assemble
from milepost.engine.chat import ChatTemplate
from milepost.engine.engine import Engine
from milepost.engine.inputs import read_prompt
from milepost.engine.llm import LLM
from milepost.engine.prefixes import PINNED_SHARE, PinFor
from milepost.errors import RequestError, RequestFailed
from milepost.models.loader.load import LoadedModel
from milepost.models.loader.random_weights import random_source
from milepost.outputs import PrewarmOutput
from milepost.sampling_params import RequestOutputKind, SamplingParams
from milepost.specs import checkpoint_bytes, kv_block_bytes, window_bytes

PREFIX = [i % 90 + 1 for i in range(150)]
LONG = PREFIX + [7] * 20
KINDS = {"llama": 144, "granitemoehybrid": 128, "mamba2": 128}
"""Families of attention, of both, of recurrent layers; and how much of the prefix a longer prompt resumes."""

every_kind = pytest.mark.parametrize("family", KINDS)


def engine_of(
    family: str, num_tokens: int = 2048, num_states: int = 30, *, num_seqs: int = 4, **settings: object
) -> Engine:
    """With room for KV of so many tokens and so many states."""
    model = model_of(family)
    specs = model.layer_specs()
    block, state, window = kv_block_bytes(specs, 4), checkpoint_bytes(specs, 4), window_bytes(specs, 4)
    memory = num_tokens // 16 * block + (num_states + 1) * state + num_seqs * window
    loaded = LoadedModel(model, random_source(FAMILIES[family].to_dict(), "tiny"), [], torch.float32, 0)
    config = EngineConfig(kv_cache_memory_bytes=memory, max_num_seqs=num_seqs, **settings)  # type: ignore[arg-type]
    return assemble(loaded, config)


def prewarm(engine: Engine, prompt: list[int], *, pin: bool = False, owner: str = "", salt: str = "") -> PrewarmOutput:
    engine.prewarm("warm", read_prompt(prompt, engine.model), pin=PinFor(owner) if pin else None, cache_salt=salt)
    output = drain(engine)["warm"]
    assert (output.error, output.outputs[0].finish_reason, tokens(output)) == (None, "length", [])
    engine.scheduler.cache.check([])
    return engine.prewarmed(output, salt)


def cached(engine: Engine, prompt: list[int], **options: object) -> int:
    add(engine, "ask", prompt, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True), **options)
    return drain(engine)["ask"].num_cached_tokens


def fill(engine: Engine, token: int) -> None:
    """Other texts, each with that `token`, push out what may go."""
    for i in range(20):
        add(engine, f"other {i}", [i, token] * 75, SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True))
    drain(engine)


# A request for no tokens


@every_kind
@pytest.mark.parametrize("kind", RequestOutputKind)
def test_a_request_for_no_tokens_computes_its_prompt_and_ends(family: str, kind: RequestOutputKind) -> None:
    engine = engine_of(family, max_num_batched_tokens=64)
    add(engine, "none", PREFIX, SamplingParams(max_tokens=0, prompt_logprobs=0, output_kind=kind))
    output = drain(engine)["none"]
    assert output.finished
    assert [(list(s.token_ids), s.text, s.finish_reason) for s in output.outputs] == [([], "", "length")]
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(PREFIX)
    assert cached(engine, LONG) == KINDS[family]


# Prewarming


@every_kind
def test_the_next_request_resumes_and_says_what_it_would_have_said(family: str) -> None:
    engine, cold = engine_of(family), engine_of(family, enable_prefix_caching=False)
    first = prewarm(engine, PREFIX)
    assert (first.num_tokens, first.num_cached_tokens, first.num_resident_tokens) == (150, 0, KINDS[family])
    assert not first.pinned
    again = prewarm(engine, PREFIX)
    assert (again.id, again.num_cached_tokens > 0) == (first.id, True)
    answers = []
    for one in (engine, cold):
        add(one, "ask", LONG, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
        answers.append(drain(one)["ask"])
    assert tokens(answers[0]) == tokens(answers[1])
    assert [answer.num_cached_tokens for answer in answers] == [KINDS[family], 0]


def test_scopes_are_apart() -> None:
    engine = engine_of("granitemoehybrid")
    one, other = prewarm(engine, PREFIX, salt="one"), prewarm(engine, PREFIX, salt="other")
    assert one.id != other.id
    assert other.num_cached_tokens == 0
    assert (cached(engine, LONG), cached(engine, LONG, cache_salt="one")) == (0, 128)


def test_nothing_is_kept_where_caching_is_off() -> None:
    engine = engine_of("llama", enable_prefix_caching=False)
    with pytest.raises(RequestError, match="prefix caching is off"):
        prewarm(engine, PREFIX)
    assert not engine.has_work


# Pins


@every_kind
def test_a_pinned_prefix_stays_and_an_unpinned_one_goes(family: str) -> None:
    engine = engine_of(family, num_tokens=640, num_states=10)
    pinned = prewarm(engine, PREFIX, pin=True)
    assert pinned.pinned
    fill(engine, 100)
    assert engine.scheduler.cache.resident(PREFIX) == KINDS[family]
    assert cached(engine, LONG) == KINDS[family]
    snapshot = engine.metrics.cache_snapshot
    assert snapshot is not None
    assert snapshot.pinned_bytes == engine.scheduler.cache.memory.prefix_bytes(144) > 0
    assert engine.unpin(pinned.id)
    assert not engine.unpin(pinned.id)
    snapshot = engine.metrics.cache_snapshot
    assert snapshot is not None
    assert snapshot.pinned_bytes == 0
    later = iter(range(101, 115))
    while engine.scheduler.cache.resident(PREFIX):
        fill(engine, next(later))


def test_a_pin_is_listed_for_its_owner_until_he_unpins_it() -> None:
    engine = engine_of("llama")
    mine, others = prewarm(engine, PREFIX, pin=True, owner="me"), prewarm(engine, LONG, pin=True, owner="you")
    assert [prefix.id for prefix in engine.prefixes.pinned("me")] == [mine.id]
    assert [prefix.id for prefix in engine.prefixes.pinned()] == [mine.id, others.id]
    assert [prefix.num_tokens for prefix in engine.prefixes.pinned()] == [150, 170]
    assert not engine.unpin(others.id, "me")
    assert engine.unpin(mine.id, "me")
    assert engine.unpin(others.id)
    assert engine.prefixes.pinned() == []


def test_an_aborted_or_failed_request_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("llama", max_num_batched_tokens=32)
    engine.prewarm("warm", read_prompt(PREFIX, engine.model), pin=PinFor())
    engine.step()
    engine.abort("warm")
    assert engine.prefixes.pinned() == []
    engine.prewarm("warm", read_prompt(PREFIX, engine.model), pin=PinFor())
    engine.step()
    monkeypatch.setattr(engine.runner, "_forward", lambda pieces: 1 / 0)
    assert drain(engine)["warm"].error is not None
    assert (engine.prefixes.pinned(), engine.scheduler.cache.pins.num_bytes) == ([], 0)


def test_pins_hold_at_most_half_of_the_cache() -> None:
    engine = engine_of("llama", num_tokens=640)
    half = engine.prefixes.max_bytes()
    assert half == engine.scheduler.cache.memory.limit_bytes * PINNED_SHARE
    for start in (1, 2):
        prewarm(engine, [start, *PREFIX], pin=True)
    with pytest.raises(
        RequestError, match=r"pinning 151 tokens takes .*you may pin are pinned.*/cache/prefixes"
    ) as told:
        prewarm(engine, [3, *PREFIX], pin=True)
    assert (told.value.status, told.value.code) == (409, "pin_limit_exceeded")
    assert not engine.has_work
    assert prewarm(engine, [1, *PREFIX], pin=True).pinned, "what is pinned already takes no more"
    assert engine.unpin(engine.prefixes.pinned()[0].id)
    assert prewarm(engine, [3, *PREFIX], pin=True).pinned


def test_what_is_asked_for_at_once_counts_too() -> None:
    engine = engine_of("llama", num_tokens=640)
    for start in (1, 2):
        engine.prewarm(str(start), read_prompt([start, *PREFIX], engine.model), pin=PinFor())
    with pytest.raises(RequestError, match="pinned already"):
        engine.prewarm("3", read_prompt([3, *PREFIX], engine.model), pin=PinFor())
    engine.abort("1")
    engine.prewarm("3", read_prompt([3, *PREFIX], engine.model), pin=PinFor())
    drain(engine)
    assert len(engine.prefixes.pinned()) == 2


def test_owners_have_equal_parts() -> None:
    engine = engine_of("llama", num_tokens=640)
    one, two = PinFor("one", 2), PinFor("two", 2)
    for number, pin in enumerate((one, two)):
        engine.prewarm(str(number), read_prompt([number, *PREFIX], engine.model), pin=pin)
    with pytest.raises(RequestError, match="pinned already"):
        engine.prewarm("3", read_prompt([3, *PREFIX], engine.model), pin=one)
    drain(engine)
    assert len(engine.prefixes.pinned("two")) == 1


def test_what_cannot_be_resumed_cannot_be_pinned() -> None:
    for family, unit in (("llama", 16), ("granitemoehybrid", 64)):
        with pytest.raises(RequestError, match=f"nothing is resumed below {unit}"):
            prewarm(engine_of(family), PREFIX[: unit - 1], pin=True)
        assert prewarm(engine_of(family), PREFIX[:unit], pin=True).num_resident_tokens == unit


@pytest.mark.parametrize(("family", "num_tokens", "num_states"), [("llama", 512, 0), ("granitemoehybrid", 320, 3)])
def test_a_request_that_needs_the_pins_memory_gets_it(family: str, num_tokens: int, num_states: int) -> None:
    engine = engine_of(family, num_tokens, num_states, num_seqs=1)
    prewarm(engine, PREFIX, pin=True)
    long = [5] * (engine.model.max_model_len - 10)
    for name, prompt in (("large", long), ("small", [6] * 30), ("other", [7] * 30)):
        add(engine, name, prompt, SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))
    outputs = drain(engine)
    assert [len(tokens(output)) for output in outputs.values()] == [5] * 3
    assert engine.prefixes.pinned() == []
    assert engine.scheduler.cache.stats.pins_given_up == 1


def test_reset_forgets_pins() -> None:
    engine = engine_of("llama")
    prewarm(engine, PREFIX, pin=True)
    assert engine.reset_prefix_cache()
    assert engine.prefixes.pinned() == []


# The faces


SYSTEM = [{"role": "system", "content": "x" * 100}]


def chatting() -> Engine:
    """An engine with a chat template."""
    engine = engine_of("llama")
    template = ChatTemplate(
        "{% for m in messages %}<{{m.role}}>{{m.content}}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    engine.model = replace(engine.model, tokenizer=byte_level(), chat_template=template)
    return engine


def test_in_a_program() -> None:
    llm, system = LLM.__new__(LLM), SYSTEM
    llm.engine, llm._ids = chatting(), itertools.count()
    warm = llm.prewarm(system, pin=True)
    assert (warm.num_tokens, warm.num_resident_tokens, warm.pinned) == (108, 96, True)
    (answer,) = llm.chat([*system, {"role": "user", "content": "hi"}], SamplingParams(max_tokens=1), use_tqdm=False)
    assert answer.num_cached_tokens == 96
    assert [prefix.id for prefix in llm.pinned_prefixes()] == [warm.id]
    assert llm.unpin(warm)
    assert not llm.unpin(warm.id)
    assert llm.prewarm("y" * 40).num_resident_tokens == 32
    assert llm.prewarm([1] * 40).num_resident_tokens == 32
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.prewarm([])


def test_from_an_event_loop() -> None:
    llm = AsyncLLM(engine_of("granitemoehybrid"))

    async def run() -> None:
        warm = await llm.prewarm(PREFIX, "warm", pin=PinFor("me"), cache_salt="salt")
        assert (warm.num_tokens, warm.num_cached_tokens, warm.num_resident_tokens, warm.pinned) == (150, 0, 128, True)
        assert [prefix.id for prefix in await llm.pinned_prefixes("me")] == [warm.id]
        tree = await llm.cache_tree()
        assert [(node.start, node.end, node.pinned) for node in tree.nodes] == [(0, 144, 1)]
        with pytest.raises(RequestError, match="nothing is resumed below"):
            await llm.prewarm([1, 2], "short", pin=PinFor())
        assert await llm.unpin(warm.id, "me")
        assert not await llm.unpin(warm.id)

    try:
        asyncio.run(run())
    finally:
        llm.shutdown()


def test_an_event_loops_chats_as_in_a_program() -> None:
    llm = AsyncLLM(chatting())

    async def run() -> None:
        warm = await llm.prewarm(SYSTEM, pin=True)
        assert (warm.num_tokens, warm.num_resident_tokens, warm.pinned) == (108, 96, True)
        assert (await llm.prewarm(SYSTEM, add_generation_prompt=True)).num_tokens == 109
        assert await llm.unpin(warm)
        assert await llm.pinned_prefixes() == []
        with pytest.raises(RequestError, match="not in the vocabulary") as told:
            await llm.prewarm([5, {"role": "user", "content": "secret" * 20}])  # type: ignore[list-item]
        assert len(told.value.message) < 100

    try:
        asyncio.run(run())
    finally:
        llm.shutdown()


def test_who_hangs_up_leaves_no_pin() -> None:
    llm = AsyncLLM(engine_of("llama", max_num_batched_tokens=16))

    async def run() -> None:
        for ready in range(0, 12, 3):
            asked = asyncio.ensure_future(llm.prewarm([ready, *PREFIX], f"warm {ready}", pin=PinFor()))
            while not llm._engine.has_work and not asked.done():
                await asyncio.sleep(0)
            for _ in range(ready):
                await asyncio.sleep(0)
            if not asked.cancel():
                assert (await asked).pinned
                assert await llm.unpin((await asked).id)
                continue
            with pytest.raises(asyncio.CancelledError):
                await asked
            while llm._engine.has_work:
                await asyncio.sleep(0)
        assert await llm.pinned_prefixes() == []

    try:
        asyncio.run(run())
    finally:
        llm.shutdown()


def test_who_hangs_up_once_it_is_pinned_leaves_no_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = AsyncLLM(engine_of("llama"))

    async def never(question: object) -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(llm, "_ask", never)
            asked = asyncio.ensure_future(llm.prewarm(PREFIX, "warm", pin=PinFor()))
            while not llm._engine.scheduler.cache.pins.num_bytes:
                await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        assert await llm.pinned_prefixes() == []
        assert llm._engine.scheduler.cache.pins.num_bytes == 0

    try:
        asyncio.run(run())
    finally:
        llm.shutdown()


def test_one_who_hangs_up_takes_no_pin_of_another() -> None:
    for gone in itertools.permutations(("warm", "again")):
        engine = engine_of("llama")
        prewarm(engine, PREFIX, pin=True)
        engine.prewarm("again", read_prompt(PREFIX, engine.model), pin=PinFor())
        drain(engine)
        engine.prefixes.withdraw(gone[0])
        assert len(engine.prefixes.pinned()) == 1, "the other is told that it is pinned"
        engine.prefixes.withdraw(gone[1])
        assert engine.prefixes.pinned() == []


def test_what_one_was_told_stays_when_others_hang_up() -> None:
    engine = engine_of("llama")
    prewarm(engine, PREFIX, pin=True)
    engine.prefixes.heard("warm")
    engine.prewarm("again", read_prompt(PREFIX, engine.model), pin=PinFor())
    drain(engine)
    for name in ("again", "warm"):
        engine.prefixes.withdraw(name)
    assert len(engine.prefixes.pinned()) == 1


def test_an_event_loops_caller_who_was_told_keeps_its_pin() -> None:
    llm = AsyncLLM(engine_of("llama"))

    async def run() -> None:
        await llm.prewarm(PREFIX, "warm", pin=True)
        await llm.prewarm(PREFIX, "again", pin=True)
        await llm._ask(lambda: [llm._engine.prefixes.withdraw(name) for name in ("again", "warm")])
        assert len(await llm.pinned_prefixes()) == 1

    try:
        asyncio.run(run())
    finally:
        llm.shutdown()


def test_what_two_have_pinned_stays_until_both_unpin_it() -> None:
    engine = engine_of("llama")
    name = prewarm(engine, PREFIX, pin=True, owner="me").id
    prewarm(engine, PREFIX, pin=True, owner="you")
    assert [len(engine.prefixes.pinned(owner)) for owner in ("me", "you", None)] == [1, 1, 1]
    assert engine.unpin(name, "me")
    assert not engine.unpin(name, "me")
    assert engine.prefixes.is_pinned(name)
    assert engine.unpin(name, "you")
    assert not engine.prefixes.is_pinned(name)
    for owner in ("me", "you"):
        prewarm(engine, PREFIX, pin=True, owner=owner)
    assert engine.unpin(name), "an operator ends all"
    assert engine.prefixes.pinned() == []


def test_what_two_have_pinned_counts_for_each() -> None:
    engine = engine_of("llama", num_tokens=640)
    pins = [PinFor("one", 2), PinFor("two", 2)]
    for number, pin in enumerate(pins):
        engine.prewarm(str(number), read_prompt(PREFIX, engine.model), pin=pin)
    drain(engine)
    for pin in pins:
        with pytest.raises(RequestError, match="pinned already"):
            engine.prewarm("more", read_prompt([3, *PREFIX], engine.model), pin=pin)
    assert prewarm(engine, [3, *PREFIX], pin=True, owner="three").pinned, "in all it counts once"


def test_a_prefix_that_is_too_large_alone_is_told_so() -> None:
    engine = engine_of("llama", num_tokens=256)
    with pytest.raises(RequestError, match=r"more than the .* that you may pin in all") as told:
        prewarm(engine, PREFIX, pin=True)
    assert "unpin" not in told.value.hint
    assert (told.value.status, told.value.code) == (409, "pin_limit_exceeded")


def test_what_is_public_of_prefixes() -> None:
    import milepost

    assert milepost.PrewarmOutput is PrewarmOutput
    assert milepost.CacheReport.__module__ == "milepost.outputs"
    assert [field.name for field in fields(milepost.PinnedPrefix)] == ["id", "num_tokens", "num_bytes"]


def test_questions_to_an_engine_that_has_stopped_are_answered() -> None:
    llm = AsyncLLM(engine_of("llama"))

    async def run() -> None:
        llm.shutdown()
        for question in (llm.cache_tree(), llm.pinned_prefixes(), llm.unpin("prefix-1"), llm.reset_prefix_cache()):
            with pytest.raises(Exception, match="shutting down"):
                await question

    asyncio.run(run())


def test_a_question_that_waits_while_the_engine_breaks_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, gate = AsyncLLM(engine_of("llama")), threading.Event()

    def broken() -> None:
        gate.wait()
        raise ZeroDivisionError("planted")

    async def run() -> None:
        monkeypatch.setattr(llm._engine, "step", broken)
        warm = asyncio.ensure_future(llm.prewarm(PREFIX, "warm"))
        while not llm._engine.has_work:
            await asyncio.sleep(0)
        question = asyncio.ensure_future(llm.cache_tree())
        while not llm._asked:
            await asyncio.sleep(0)
        gate.set()
        for waiting in (warm, question):
            with pytest.raises(RequestFailed, match="the engine stopped"):
                await waiting

    asyncio.run(run())
    llm.shutdown()
