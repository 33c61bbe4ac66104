"""Replayed decode steps: the bits of the same steps run as they come, in logits, keys, values and states."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch
import transformers
from families import FAMILIES, SHAPE, model_of
from parity import tiny_model, twin
from replayed_steps import Twice
from torch.utils._pytree import tree_leaves

from milepost.engine import replay
from milepost.engine.replay import MAX_ROWS, SEEN_BEFORE
from milepost.engine.scheduler import Piece
from milepost.models.base import Model
from milepost.ops import Ops, cpu
from milepost.ops.cpu import library
from milepost.ops.cpu.kernels import Kernels

DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="without kernels nothing is recorded"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of a number of rows is recorded."""
    monkeypatch.setattr(replay, "SEEN_BEFORE", 0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, dtype: torch.dtype) -> None:
    """One to five sequences in each step, in any order, which come, cross grid points and go."""
    twice = Twice(model_of(family, dtype))
    seqs = [twice.start(length) for length in (62, 1, 14, 127, 186)]
    for step in range(24):
        chosen = twice.rng.sample(seqs, 1 + (3 * step + step // 5) % 5)
        assert twice.step(chosen)
        if step % 8 == 5:  # another takes its place and its memory
            gone = twice.rng.randrange(len(seqs))
            twice.end(seqs[gone])
            seqs[gone] = twice.start(twice.rng.choice((3, 60, 63, 64, 125)))
            assert not twice.replays.replayed[-1]
    assert twice.replays.num_recordings() == 5
    twice.check_memory()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["falcon_mamba", "granitemoehybrid", "lfm2", "llama", "qwen3_5_text"])
def test_a_state_that_nobody_keeps_is_not_replayed(family: str, dtype: torch.dtype) -> None:
    """A row that ends its chunk and has no slot to write to: the last of its sequence."""
    twice = Twice(model_of(family, dtype))
    ending, other, third = (twice.start(length) for length in (62, 62, 20))
    assert twice.step([ending, other, third])
    assert twice.step([third, other, ending], unwanted=[ending]) == (not twice.has_states)
    twice.end(ending)
    assert twice.step([other, third])
    assert twice.step([third, other])
    twice.check_memory()


def long_model(dtype: torch.dtype, **more: object) -> Model:
    shape = {**SHAPE, "max_position_embeddings": 2048, "num_hidden_layers": 2, **more}
    return twin(tiny_model(transformers.LlamaConfig(**shape)), dtype=dtype)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("dtype", DTYPES)
def test_contexts_that_grow_over_several_splits_of_attention(dtype: torch.dtype) -> None:
    twice = Twice(long_model(dtype), max_model_len=2048, max_seqs=4)
    seqs = [twice.start(length) for length in (505, 1020, 3, 1530)]
    for _ in range(20):
        assert twice.step(seqs)
    twice.end(seqs.pop())
    seqs.insert(0, twice.start(30))  # a short table in the row of a long one
    for count in (4, 1, 4, 2):
        assert twice.step(seqs[:count])
    twice.check_memory()


@pytest.mark.usefixtures("at_once")
def test_there_is_room_for_the_longest_context_that_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel needs beside its results may grow with the context, and is allotted when the step is recorded."""
    sizes: list[tuple[int, ...]] = []
    plain = Kernels.empty

    def watched(lib: Kernels, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        sizes.append(tuple(shape))
        return plain(lib, shape, dtype)

    monkeypatch.setattr(Kernels, "empty", watched)
    model = long_model(torch.float32, num_hidden_layers=1)
    asked = []
    for length in (3, 2000):
        twice = Twice(model, max_model_len=2048, max_seqs=2)
        seq = twice.start(length)
        sizes.clear()
        assert twice.step([seq])
        asked.append(sizes[len(sizes) // 2 :])  # those of the recorded one, which comes second
    assert asked[0] == asked[1]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("family", ["granitemoehybrid", "qwen3_next", "falcon_h1"])
def test_bits_are_those_of_one_thread_on_two(family: str) -> None:
    twice = Twice(model_of(family, torch.bfloat16))
    seqs = [twice.start(length) for length in (60, 100, 7)]
    assert twice.step(seqs)
    torch.set_num_threads(2)
    for _ in range(6):
        assert twice.step(seqs)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("instruction_set", library.available()[1:])
@pytest.mark.parametrize("family", ["lfm2", "qwen3_next"])
def test_other_instruction_sets(family: str, instruction_set: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.CHOICE, instruction_set)
    twice = Twice(twin(tiny_model(FAMILIES[family]), dtype=torch.bfloat16))
    seqs = [twice.start(length) for length in (60, 9)]
    for _ in range(6):
        assert twice.step(seqs)
    twice.check_memory()


def test_a_number_of_rows_is_recorded_once_it_has_been_seen_often_enough() -> None:
    twice = Twice(model_of("lfm2"))
    seqs = [twice.start(length) for length in (5, 70)]
    assert [twice.step(seqs) for _ in range(SEEN_BEFORE)] == [False] * SEEN_BEFORE
    assert twice.replays.num_recordings() == 0
    assert twice.step(seqs)
    assert [twice.step(seqs[:1]) for _ in range(SEEN_BEFORE + 1)] == [False] * SEEN_BEFORE + [True]
    assert twice.step(seqs)
    assert twice.replays.num_recordings() == 2


@pytest.mark.usefixtures("at_once")
def test_a_step_in_which_one_brings_several_rows_is_not_replayed() -> None:
    twice = Twice(model_of("mamba2"))
    decoding, reading = twice.start(40), twice.start(10)
    assert twice.step([decoding, reading])
    reading.tokens.append(7)
    assert not twice.step([decoding, reading])
    assert twice.step([decoding, reading])


@pytest.mark.usefixtures("at_once")
def test_a_step_in_which_one_wants_no_token_is_not_replayed() -> None:
    """One row of a prompt whose rest comes later."""
    twice = Twice(model_of("llama"))
    seqs = [twice.start(40), twice.start(10)]
    pieces = tuple(twice._piece(seq, True) for seq in seqs)
    seqs[0].tokens.append(7)
    pieces = Piece(seqs[0], pieces[0].start, pieces[0].end), pieces[1]
    assert not pieces[0].samples
    assert twice.replays.run(pieces) is None
    assert twice.replays.run(pieces[1:]) is not None


@pytest.mark.usefixtures("at_once")
def test_more_rows_than_a_recording_may_have() -> None:
    twice = Twice(model_of("llama"), max_model_len=32, max_seqs=MAX_ROWS + 1)
    seqs = [twice.start(1 + i % 9) for i in range(MAX_ROWS + 1)]
    assert not twice.step(seqs)
    assert twice.step(seqs[1:])
    assert twice.step(seqs[:-1])


@pytest.mark.usefixtures("at_once")
def test_models_whose_ops_are_not_all_kernels_are_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    half = Twice(twin(tiny_model(FAMILIES["lfm2"]), dtype=torch.float16))
    with monkeypatch.context() as patch:
        patch.delitem(cpu.KERNELS, "softplus")
        one_in_torch = Twice(twin(tiny_model(FAMILIES["lfm2"])))
    mixed = twin(tiny_model(FAMILIES["lfm2"]))
    last = [module for module in mixed.modules() if isinstance(getattr(module, "ops", None), Ops)][-1]
    assert isinstance(last.ops, Ops)
    last.__dict__["ops"] = replace(last.ops, kernels=None)
    for twice in (half, one_in_torch, Twice(mixed)):
        seqs = [twice.start(3), twice.start(8)]
        assert twice.replays.kernels is None
        assert not any(twice.step(seqs) for _ in range(3))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("family", ["granitemoehybrid", "qwen3_5_text"])
def test_recordings_of_many_numbers_of_rows_share_their_memory(family: str) -> None:
    twice = Twice(model_of(family), max_seqs=16)
    seqs = [twice.start(3 + i) for i in range(16)]
    assert twice.step(seqs)
    whole = twice.replays.arena_bytes()
    for count in range(1, 16):
        assert twice.step(seqs[:count])
    assert twice.replays.num_recordings() == 16
    assert twice.replays.arena_bytes() == whole
    # results of weights alone, a few for each recording; those of its rows would be a hundred times more
    assert twice.replays.held_bytes() <= 16 * 2_000


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("family", ["granitemoehybrid", "falcon_h1", "mamba"])
def test_what_weights_alone_give_is_not_made_again(family: str) -> None:
    twice = Twice(model_of(family))
    assert twice.step([twice.start(3)])
    weights = {weight.untyped_storage().data_ptr() for weight in twice.model.parameters()}
    for run, args in twice.replays._recordings[1].calls:
        given = {x.untyped_storage().data_ptr() for x in tree_leaves(args) if isinstance(x, torch.Tensor)}
        assert not given or not given <= weights, run


@pytest.mark.usefixtures("at_once")
def test_a_step_that_fails_while_it_is_recorded_leaves_nothing_behind() -> None:
    twice = Twice(model_of("granitemoehybrid"))
    seqs = [twice.start(30), twice.start(63)]
    pieces = tuple(twice._piece(seq, True) for seq in seqs)
    with mock.patch.object(twice.model, "logits", side_effect=MemoryError), pytest.raises(MemoryError):
        twice.runners[1].run(pieces)
    assert twice.replays.num_recordings() == 0
    for piece in pieces:
        twice.free_slots += [slot for slot in piece.seq.grid_slots if slot > 0]
    assert twice.step(seqs)
    assert twice.step(seqs)
    assert twice.step(seqs[::-1])
