"""Every family, read in pieces: how a prompt is cut and what it is packed with must not change what is answered."""

from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch
from families import ATTENTION_ALONE, FAMILIES, model_of
from parity import difference, prompt_of
from piecewise import Reader

from milepost.engine.plain import logits_of
from milepost.models.registry import MODEL_TYPES
from milepost.specs import CHUNK, Recurrent

TOLERANCE, CLEARLY = 1e-4, 1e-2
PROMPT_TOKENS = 215
PIECES = (1, 17, 63, 64, 65)


def test_every_family_is_here() -> None:
    assert {MODEL_TYPES[family] for family in FAMILIES} == set(MODEL_TYPES.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_packed_and_resumed(family: str) -> None:
    """Six prompts in one batch after another, cut in pieces of another size each; then one of the sequences ends, and
    another goes on from its last checkpoint."""
    ours, reader = model_of(family), Reader(model_of(family), max_tokens=2048)
    sizes = {f"by {size}": cut(size) for size in PIECES} | {"whole": [PROMPT_TOKENS]}
    prompts = {name: prompt_of(199, PROMPT_TOKENS, seed) for seed, name in enumerate(sizes)}
    expected = {name: logits_of(ours, prompt) for name, prompt in prompts.items()}
    found: dict[str, list[torch.Tensor]] = {name: [] for name in sizes}
    for batch in batches(prompts, sizes):
        for name, logits in reader.read(batch).items():
            found[name].append(logits)
    for name, pieces in found.items():
        check_same(torch.cat(pieces), expected[name])

    kept = reader.resume("again", of="by 17")
    assert kept == PROMPT_TOKENS // CHUNK * CHUNK
    rest = {"other": prompts["whole"][:70], "again": prompts["by 17"][kept:], "by 64": [3]}
    check_same(reader.read(rest)["again"], expected["by 17"][kept:])


def check_same(logits: torch.Tensor, expected: torch.Tensor) -> None:
    assert difference(logits, expected) < TOLERANCE
    assert int(logits[-1].argmax()) == int(expected[-1].argmax())


def cut(size: int) -> list[int]:
    """Pieces of `size` tokens and a last one of the rest. Single tokens only lead past the first grid point."""
    num = min(PROMPT_TOKENS // size, CHUNK + 6)
    return [size] * num + [PROMPT_TOKENS - size * num]


def batches(
    prompts: Mapping[str, Sequence[int]], sizes: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, Sequence[int]]]:
    """One batch after another: of each prompt its next piece, until all are read."""
    read = dict.fromkeys(prompts, 0)
    for i in range(max(map(len, sizes.values()))):
        batch = {name: prompts[name][read[name] :][: of[i]] for name, of in sizes.items() if i < len(of)}
        read |= {name: read[name] + len(piece) for name, piece in batch.items()}
        yield batch
    assert all(read[name] == len(prompt) for name, prompt in prompts.items())


@pytest.mark.parametrize("num_tokens", [2 * CHUNK, 2 * CHUNK + 30], ids=["at a grid point", "between grid points"])
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - ATTENTION_ALONE))
def test_the_states_of_another_sequence_change_the_answer(family: str, num_tokens: int) -> None:
    """Two sequences take each other's checkpoint and window, and keep their own KV."""
    ours, reader = model_of(family), Reader(model_of(family))
    prompts = {name: prompt_of(199, num_tokens + 1, seed) for name, seed in (("a", 1), ("b", 2))}
    reader.read({name: prompt[:-1] for name, prompt in prompts.items()})
    a, b = reader.running["a"], reader.running["b"]
    if num_tokens % CHUNK:
        a.window, b.window = b.window, a.window
    a.states, b.states = b.states, a.states
    for name, logits in reader.read({name: prompt[-1:] for name, prompt in prompts.items()}).items():
        assert logits.isfinite().all()
        assert difference(logits, logits_of(ours, prompts[name])[-1:]) > CLEARLY


@pytest.mark.parametrize("family", sorted(ATTENTION_ALONE))
def test_families_without_such_states(family: str) -> None:
    specs = [spec for layer in model_of(family).layer_specs() for spec in layer]
    assert specs
    assert not any(isinstance(spec, Recurrent) for spec in specs)
