"""An engine around a tiny model, with the memory that a scenario asks for, all of it NaN at first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from kinds import KINDS, POISON, VOCAB_SIZE, model_of

from milepost.config import EngineConfig
from milepost.engine.build import assemble
from milepost.engine.engine import Engine
from milepost.engine.memory import plan_memory
from milepost.layers.linear import Embedding
from milepost.models.loader.load import LoadedModel
from milepost.models.loader.random_weights import random_source
from milepost.outputs import RequestOutput
from milepost.specs import BLOCK_SIZE, checkpoint_bytes, kv_block_bytes, window_bytes


@dataclass(frozen=True)
class Budget:
    """KV of so many tokens and so many checkpoints, in the bytes of the model."""

    tokens: int
    states: int


@dataclass(frozen=True)
class Setup:
    """How an engine is set up. `max_num_seqs`: fewer where the memory does not hold the windows of as many."""

    kind: str
    budget: Budget
    dtype: torch.dtype = torch.float32
    step_tokens: int = 512
    max_num_seqs: int = 8
    max_model_len: int | None = None
    interval: int | None = None
    caching: bool = True


def build(setup: Setup) -> Engine:
    model, dtype = model_of(setup.kind, setup.dtype), setup.dtype
    memory, asked = _bytes(setup)
    config = EngineConfig(
        dtype=str(dtype).removeprefix("torch."),
        kv_cache_memory_bytes=asked,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.step_tokens,
        max_model_len=setup.max_model_len,
        prefix_cache_retention_interval=setup.interval,
        enable_prefix_caching=setup.caching,
    )
    engine = assemble(LoadedModel(model, random_source(KINDS[setup.kind].to_dict(), "tiny"), [], dtype, 0), config)
    assert engine.scheduler.cache.memory.limit_bytes == memory
    assert engine.model.vocab_size == VOCAB_SIZE
    _spoil(engine)
    return engine


def _bytes(setup: Setup) -> tuple[int, int]:
    """Of the cache, and what to ask for: the windows of running sequences and of ends, and the empty state, lie beside
    it. How many windows there are depends on what is asked for."""
    specs, size = model_of(setup.kind, setup.dtype).layer_specs(), setup.dtype.itemsize
    block, state, window = kv_block_bytes(specs, size), checkpoint_bytes(specs, size), window_bytes(specs, size)
    memory = -(-setup.budget.tokens // BLOCK_SIZE) * block + setup.budget.states * state
    config = EngineConfig(max_num_seqs=setup.max_num_seqs, enable_prefix_caching=setup.caching)
    num_windows = 1
    while window:
        asked = memory + num_windows * window
        plan = plan_memory(specs, size, 64, 0, asked + state, replace(config, kv_cache_memory_bytes=asked + state))
        if plan.cache_bytes == memory:
            break
        num_windows += 1
    return memory, memory + state + num_windows * window if window else memory


def _spoil(engine: Engine) -> None:
    """What nobody has written must not matter: all is NaN but the state of the empty prefix."""
    pools = engine.runner.pools
    for layer in pools.kv:
        for tensor in () if layer is None else (layer.k, layer.v):
            tensor.fill_(float("nan"))
    for state in pools.recurrent:
        for tensor in () if state is None else state.checkpoint.values():
            tensor[1:] = float("nan")
        for tensor in () if state is None else state.window.values():
            tensor.fill_(float("nan"))


class Watch:
    """Stands beside an engine's steps: counts them, and does before each what a scenario wants done."""

    def __init__(self, engine: Engine) -> None:
        self.num_steps = 0
        self.before: list[Callable[[Engine], None]] = []
        self.after: list[Callable[[Engine], None]] = []
        self.changed = threading.Condition()
        self._engine, self._step = engine, engine.step
        engine.step = self._run  # type: ignore[method-assign]

    def _run(self) -> list[RequestOutput]:
        for action in self.before:
            action(self._engine)
        outputs = self._step()
        for action in self.after:
            action(self._engine)
        with self.changed:
            self.num_steps += 1
            self.changed.notify_all()
        return outputs


class CountedMemory:
    """Counts for itself, beside a cache's memory, what was touched and not given back."""

    def __init__(self, engine: Engine) -> None:
        self._memory = memory = engine.scheduler.cache.memory
        self._touched: tuple[set[int], set[int]] = set(), set()
        self.most_bytes = 0
        take, give_back = memory.take, memory.give_back
        assert give_back is not None

        def counted_take(num_blocks: int, num_slots: int) -> tuple[list[int], list[int]] | None:
            taken = take(num_blocks, num_slots)
            for touched, numbers in zip(self._touched, taken or ((), ()), strict=True):
                touched.update(numbers)
            self.most_bytes = max(self.most_bytes, self.num_bytes)
            return taken

        def counted_give_back(blocks: Sequence[int], slots: Sequence[int]) -> None:
            give_back(blocks, slots)
            for touched, numbers in zip(self._touched, (blocks, slots), strict=True):
                assert touched.issuperset(numbers)
                touched.difference_update(numbers)

        memory.take = counted_take  # type: ignore[method-assign]
        memory.give_back = counted_give_back

    @property
    def num_bytes(self) -> int:
        blocks, slots = self._touched
        return len(blocks) * self._memory.block_bytes + len(slots) * self._memory.checkpoint_bytes


def poison(engine: Engine, value: float) -> Callable[[], None]:
    """From now on the row of `POISON` is `value`, NaN or Inf; returns what undoes it."""
    (embedding,) = [module for module in engine.runner.model.modules() if isinstance(module, Embedding)]

    def hook(module: object, arguments: tuple[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        return rows.masked_fill((arguments[0] == POISON)[:, None], value)

    return embedding.register_forward_hook(hook).remove
