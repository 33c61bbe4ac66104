"""B: what is kept when not everything can be. Budgets in the bytes of the model: KV of so many tokens, so many states.

B2, B3, B4 and B6 ask how much is kept, not whether it is right: they run over a model that only makes up tokens, in
tests/engine/test_scheduler_pressure.py, at their full lengths.
"""

from __future__ import annotations

import pytest
from client import Client, Refused
from engines import Budget, CountedMemory
from stage import Serve

PROMPT_OF_A_BLOCK = 12


def test_b1_two_chats_in_turn(serve: Serve) -> None:
    """Chats of 4,096 tokens (1,024 in the small version) rather than of 32,768."""
    length = serve.scaled(1024, 4096)
    client = serve(budget=Budget(8 * length, 8), max_num_seqs=2)
    chats = [client.text(length) for _ in range(2)]
    for visit in range(5):
        for number, chat in enumerate(chats):
            answer = client.ask(chat, 10)
            assert visit == 0 or answer.resumed >= 0.93 * len(chat)
            chats[number] = answer.text + client.text(20)


def test_b5_a_long_conversation_compacted(serve: Serve) -> None:
    """8,192 tokens (2,048 in the small version) in eight turns, then a prompt that shares the first tenth. Where that
    ends is named in the first turn, and never again; of chats the template tells it."""
    length = serve.scaled(2048, 8192)
    client, shared = serve(budget=Budget(length, 16), max_num_seqs=1), length // 10
    text = client.ask(client.text(length // 8), 10, breakpoints=(shared,)).text
    for _ in range(6):
        text = client.ask(text + client.text(length // 8 - 10), 10).text
    assert client.ask(text[:shared] + client.text(200)).resumed >= 0.9 * shared


def test_b7_as_large_as_the_memory_and_larger(serve: Serve) -> None:
    client = serve(budget=Budget(1024, 4), max_num_seqs=4, max_model_len=1024)
    assert client.ask(client.text(1023), 1).resumed == 0
    with pytest.raises(Refused, match="maximum context length is 1024 tokens"):
        client.ask(client.text(1100), 1)
    answers = client.ask_at_once([client.text(700) for _ in range(10)], 8)
    assert len(answers) == 10


def test_b8_a_short_prompt_takes_one_block_and_no_checkpoint(serve: Serve) -> None:
    client = serve()
    memory, most = client.wire.engine.scheduler.cache.memory, []
    serve.watch.after.append(lambda _: most.append((memory.blocks.num_used, memory.slots.num_used)))
    client.ask(client.text(PROMPT_OF_A_BLOCK), 3)
    num_blocks = 1 if memory.block_bytes else 0
    assert max(most) == (num_blocks, 0)
    told = client.wire.cache()
    assert (told.used, told.checkpoints) == (0, 0)


def test_b9_with_all_checkpoints_in_use_another_arrives(serve: Serve) -> None:
    """Two requests run, and what they do not hold is withheld but for a few blocks. A short one runs beside them,
    uncached; a longer one may have to wait for one of them. Nothing crashes, nobody waits for ever."""
    client = serve(budget=Budget(1200, 24), max_num_seqs=4)
    first, second = (client.begin(client.text(200), 100) for _ in range(2))
    first.wait(3)
    second.wait(3)
    taken = withhold_all_but(12, client, serve)
    short = client.begin(client.text(20))
    longer = client.begin(first.text[:150] + client.text(100))
    assert short.answer().resumed == 0
    longer.answer()
    first.answer()
    second.answer()
    client.wire.engine.scheduler.cache.memory.free(*taken[0])


def withhold_all_but(num_blocks: int, client: Client, serve: Serve) -> list[tuple[list[int], list[int]]]:
    """From the next step on somebody else has all free memory but that of `num_blocks`; a list of what."""
    memory = client.wire.engine.scheduler.cache.memory
    taken: list[tuple[list[int], list[int]]] = []

    def take(_: object) -> None:
        if not taken:
            left = memory.free_bytes - num_blocks * memory.block_bytes
            blocks = left // memory.block_bytes if memory.block_bytes else 0
            found = memory.take(max(0, blocks), 0 if memory.block_bytes else left // memory.checkpoint_bytes)
            assert found is not None
            taken.append(found)

    serve.watch.before.append(take)
    return taken


@pytest.mark.parametrize("interval", [None, 0])
def test_b10_bytes_stay_below_the_budget_and_are_those_reported(serve: Serve, interval: int | None) -> None:
    """10,000 requests with dense retention over the engine; 1,000 otherwise, 100 in the small version."""
    client = serve(budget=Budget(1500, 12), max_num_seqs=3, max_model_len=600, interval=interval)
    counted, rng, num_sent = CountedMemory(client.wire.engine), client.rng, 0
    stems = [client.text(rng.randrange(350)) for _ in range(6)]
    while num_sent < serve.scaled(100, 10_000 if serve.over == "engine" and interval is None else 1_000):
        prompts = []
        for _ in range(rng.choice([1, 1, 3])):
            stem = rng.choice(stems)[: rng.randrange(1, 350)]
            prompts.append(stem + client.text(rng.choice([1, 10, 100])))
        client.ask_at_once(prompts, rng.choice([1, 3]))
        num_sent += len(prompts)
        told = client.wire.cache()
        assert counted.num_bytes == told.resident
    assert 0.8 * told.budget < counted.most_bytes <= told.budget
