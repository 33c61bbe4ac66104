"""Recorded functions run again give what the function gives, for whatever its inputs hold by then."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache

import pytest
import torch
from kernel_sets import kernel_ops
from torch.utils._pytree import tree_leaves

from milepost.ops import Ops
from milepost.ops.cpu import library
from milepost.ops.cpu.kernels import Kernels
from milepost.ops.recording import CHUNK_BYTES, LINE_BYTES, Arena, Recording, record

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="without kernels nothing is recorded"),
    pytest.mark.usefixtures("one_thread"),
]
EACH_DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
ROWS, SIZE = 5, 24

Function = Callable[[Ops, torch.Tensor, torch.Tensor], object]
"""Of x [ROWS, SIZE], whose contents change, and a weight [SIZE], whose contents do not."""


@cache
def ops_of(dtype: torch.dtype) -> Ops:
    return kernel_ops(library.available()[0], dtype)


def kernels() -> Kernels:
    found = ops_of(torch.float32).kernels
    assert found is not None
    return found


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def in_place(ops: Ops, x: torch.Tensor, weight: torch.Tensor) -> object:
    made = ops.silu(x)
    made.add_(weight, alpha=2)
    made[1:3] = made[2:4].clone() * 2
    made.clamp_(-1, 1)
    return ops.sigmoid(made)


def written_by_torch_with_out(ops: Ops, x: torch.Tensor, weight: torch.Tensor) -> object:
    counts = torch.zeros(4, dtype=torch.int64)
    torch.cumsum((x[0, :3] > 0).long(), 0, out=counts[1:])
    return counts, ops.silu(x * counts[3])


def several_results(ops: Ops, x: torch.Tensor, weight: torch.Tensor) -> object:
    values, places = ops.sigmoid(x).sort(dim=1, stable=True)
    first, second = (values + weight).chunk(2, dim=-1)
    return ops.silu_mul(first, second), places, values.max(dim=0)


def views(ops: Ops, x: torch.Tensor, weight: torch.Tensor) -> object:
    turned = ops.silu(x).view(ROWS, 4, -1).transpose(0, 1)
    return ops.silu(turned), turned.reshape(4, -1) + 1, turned[::2, 1:], x.T * 2


def constants(ops: Ops, x: torch.Tensor, weight: torch.Tensor) -> object:
    """What is made of the weight alone, by torch and by kernels; and of nothing."""
    rates = -weight.float().exp()
    doubled = rates.repeat_interleave(2)
    ones = torch.ones(SIZE, dtype=x.dtype)
    ones[3] = 2
    normed = ops.rms_norm(ops.rms_norm(x, ones, 1e-6), weight.exp(), 1e-6)
    return normed, x.float() * rates, doubled, ops.silu(weight), torch.tensor([3, 1, 2])


def left_unwritten(ops: Ops, x: torch.Tensor, weight: torch.Tensor) -> object:
    like = torch.empty_like(weight)
    like.copy_(x[0])
    more = x.new_empty(3, SIZE)
    more.copy_(x[1:4])
    return ops.silu(like), ops.add(more, more, 0.5)


FUNCTIONS: dict[str, Function] = {
    "kernels alone": lambda ops, x, weight: ops.silu(ops.add(x, ops.rms_norm(x, weight, 1e-6), 0.3)),
    "sums and products": lambda ops, x, weight: ops.silu(x * weight + ops.sigmoid(x) * 0.7) + 1,
    "sums with a factor": lambda ops, x, weight: torch.add(ops.silu(x), x, alpha=2),
    "of two dtypes": lambda ops, x, weight: (ops.silu(x).float() * weight.double(), (x.bfloat16() + 1.0).float()),
    "other operations": lambda ops, x, weight: ops.silu(torch.cat([x.float().exp(), x.float().abs().sqrt()], 1)),
    "in place": in_place,
    "out": written_by_torch_with_out,
    "several results": several_results,
    "views": views,
    "constants": constants,
    "left unwritten": left_unwritten,
    "an index": lambda ops, x, weight: ops.silu(x[ops.sigmoid(x[:, 0]).argsort(stable=True)]),
    "a list and a number": lambda ops, x, weight: [ops.silu(x), {"sum": x.sum(), "none": None}],
    "no rows": lambda ops, x, weight: (ops.silu(x[:0]), x[:0] * weight, torch.cat([x[:0], x])),
    "the input itself": lambda ops, x, weight: (x, x[1:], weight),
}


def same(found: object, expected: object) -> bool:
    pairs = list(zip(tree_leaves(found), tree_leaves(expected), strict=True))
    return all(
        (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()) and torch.equal(a, b)
        if isinstance(a, torch.Tensor)
        else a == b
        for a, b in pairs
    )


def recorded(run: Function, x: torch.Tensor, weight: torch.Tensor, arena: Arena) -> Recording[object]:
    ops = ops_of(x.dtype)
    assert ops.kernels is not None
    return record(lambda: run(ops, x, weight), ops.kernels, arena, [weight])


@EACH_DTYPE
@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_recording_gives_what_the_function_gives(name: str, inference: bool, dtype: torch.dtype) -> None:
    run, ops = FUNCTIONS[name], ops_of(dtype)
    x, weight = drawn(0, ROWS, SIZE, dtype=dtype), drawn(1, SIZE, dtype=dtype)
    with torch.inference_mode(inference):
        expected = run(ops, x, weight)
        recording = recorded(run, x, weight, Arena())
        assert same(recording.result, expected)
        for seed in (2, 3, 0):
            x.copy_(drawn(seed, ROWS, SIZE))
            garbage = [torch.full(x.shape, torch.nan, dtype=dtype) for _ in range(50)]
            garbage += [torch.full(weight.shape, torch.nan, dtype=dtype) for _ in range(50)]
            found = recording.run()
            assert found is recording.result
            assert same(found, run(ops, x, weight)), seed
            del garbage


def test_what_is_made_of_constants_alone_is_made_once() -> None:
    x, weight = drawn(0, ROWS, SIZE), drawn(1, SIZE)
    recording = recorded(lambda ops, x, weight: weight.exp() * 2 + x, x, weight, Arena())
    assert len(recording.calls) == 1
    expected = weight.exp() * 2 + x
    weight.zero_()  # its contents do not count any more
    assert same(recording.run(), expected)


def test_a_change_of_what_is_made_of_constants_is_refused() -> None:
    """It would be changed again, and further, in each run."""
    x, weight = drawn(0, ROWS, SIZE), drawn(1, SIZE)
    changes: list[Function] = [
        lambda ops, x, weight: (weight * 2).add_(x[0]),
        lambda ops, x, weight: torch.mul(x[0], 2, out=weight * 2),
        lambda ops, x, weight: torch.zeros_like(weight)[:2].fill_(1),
        lambda ops, x, weight: weight.copy_(x[0]),
    ]
    for change in changes:
        with pytest.raises(AssertionError, match="constants"):
            recorded(change, x, weight, Arena())


def test_recordings_use_one_arena_in_turn() -> None:
    """Each gives its own results whichever ran before; what they are made of is the other's memory."""
    arena, weight = Arena(), drawn(1, SIZE)
    names = ["several results", "in place", "views", "constants", "out"]
    inputs = {name: drawn(i, ROWS, SIZE) for i, name in enumerate(names)}
    recordings = {name: recorded(FUNCTIONS[name], inputs[name], weight, arena) for name in names}
    for seed in range(12):
        name = names[seed * 3 % 5]
        inputs[name].copy_(drawn(seed, ROWS, SIZE))
        assert same(recordings[name].run(), FUNCTIONS[name](ops_of(torch.float32), inputs[name], weight))
    again = recorded(FUNCTIONS["several results"], inputs["several results"], weight, arena)
    places = [[x.data_ptr() for x in tree_leaves(one.result)] for one in (again, recordings["several results"])]
    assert places[0] == places[1]


def test_results_that_no_arena_holds_are_not_kept() -> None:
    """A recording costs no memory beyond the arena's."""
    x, weight, arena = drawn(0, ROWS, SIZE), drawn(1, SIZE), Arena()
    recording = recorded(FUNCTIONS["other operations"], x, weight, arena)
    held = {tensor.untyped_storage().data_ptr() for tensor in recording.kept}
    assert held <= {x.untyped_storage().data_ptr(), arena.like(x).untyped_storage().data_ptr()}


def test_a_recording_keeps_all_memory_that_it_names() -> None:
    """Of some of it the kernels' calls know the address only; the arena may be gone."""
    x, weight, arena = torch.ones(CHUNK_BYTES // 4, 1), drawn(1, SIZE), Arena()
    recording = recorded(lambda ops, x, weight: ops.softplus(ops.sigmoid(ops.silu(x))), x, weight, arena)
    chunks = {chunk.data_ptr() for chunk in arena._chunks}
    assert [chunk.numel() for chunk in arena._chunks] == [CHUNK_BYTES] * 3  # and none in memory that others get later
    assert chunks <= {tensor.untyped_storage().data_ptr() for tensor in recording.kept}


def test_calls_of_other_threads_are_not_noted() -> None:
    x, weight, ops = drawn(0, ROWS, SIZE), drawn(1, SIZE), ops_of(torch.float32)
    others: list[torch.Tensor] = []

    def run(ops: Ops, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        made = ops.silu(x)
        other = threading.Thread(target=lambda: others.extend((ops.sigmoid(x), x * 3, ops.silu(weight))))
        other.start()
        other.join(60)
        return ops.silu(made) + 1

    arena = Arena()
    recording = recorded(run, x, weight, arena)
    assert len(recording.calls) == 3
    assert same(others, [ops.sigmoid(x), x * 3, ops.silu(weight)])
    held = recording.result.untyped_storage().data_ptr()  # type: ignore[attr-defined]
    assert all(tensor.untyped_storage().data_ptr() != held for tensor in others)


def test_an_exception_leaves_the_kernels_as_they_were() -> None:
    x, weight, ops = drawn(0, ROWS, SIZE), drawn(1, SIZE), ops_of(torch.float32)
    before = dict(vars(kernels()))
    noted: list[object] = []

    def fails(ops: Ops, x: torch.Tensor, weight: torch.Tensor) -> object:
        noted.append(vars(kernels())["silu_f32"])
        ops.silu(x)
        raise MemoryError

    arena = Arena()
    with pytest.raises(MemoryError):
        recorded(fails, x, weight, arena)
    assert noted != [before["silu_f32"]]
    assert vars(kernels()) == before
    expected = ops.silu(x)
    recording = recorded(FUNCTIONS["kernels alone"], x, weight, arena)
    assert vars(kernels()) == before
    assert same(recording.run(), FUNCTIONS["kernels alone"](ops, x, weight))
    assert torch.equal(ops.silu(x), expected)


def test_questions_to_kernels_are_not_repeated() -> None:
    asked: list[object] = []

    def note(kernel: object, args: object) -> None:
        asked.append(args)

    with kernels().noted(note):
        assert kernels().num_threads() == 1
        assert kernels().MAX_HEAD_DIM > 0
    assert asked == []


def test_arena_memory_never_overlaps_and_is_handed_out_again_after_a_restart() -> None:
    arena, large = Arena(), CHUNK_BYTES // 4 - 100
    shapes = [
        (3,),
        (0, 4),
        (large // 2,),
        (7, 9),
        (large,),
        (1,),
        (large,),
        (2 * large,),
        (5,),
        (8 * CHUNK_BYTES // 16,),
    ]
    like = [torch.empty(shape) for shape in shapes] + [torch.empty(6, 10)[:, ::2], torch.empty(4, 3).T]

    def handed_out() -> list[torch.Tensor]:
        made = [arena.like(tensor) for tensor in like]
        for i, tensor in enumerate(made):
            tensor.fill_(i)
        return made

    made = handed_out()
    for i, (tensor, wanted) in enumerate(zip(made, like, strict=True)):
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
        assert bool((tensor == i).all()), shapes
        assert tensor.data_ptr() % LINE_BYTES == 0
    addresses = [tensor.data_ptr() for tensor in made]
    arena.restart()
    assert [tensor.data_ptr() for tensor in handed_out()] == addresses


RECORDS = """
import sys, torch
from milepost.ops.cpu import library
from milepost.ops.cpu.kernels import Kernels
from milepost.ops.recording import Arena, record
x = torch.ones(4)
with torch.inference_mode():
    assert record(lambda: x + x, Kernels(library.module_of("portable")), Arena()).run().tolist() == [2.0] * 4
print("torch._dynamo" in sys.modules)
"""


def test_the_first_recording_does_not_load_a_compiler() -> None:
    """It would take seconds, in the middle of a request."""
    told = subprocess.run([sys.executable, "-c", RECORDS], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
