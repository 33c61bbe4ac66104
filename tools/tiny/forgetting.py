"""Greedy answers of a model whose recurrent states are zeroed, to see how much they are used.

`forgetful_copy`: a checkpoint whose decays are so strong that a state never outlives its token. `answer_after_loss`:
the weights are whole, and the states that lie in the pools at some grid points are zeroed.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from milepost.engine.pools import allocate_pools
from milepost.models.base import Model
from milepost.ops import ForwardBatch, Rows
from milepost.specs import BLOCK_SIZE, CHUNK

STRONG = 30.0
"""exp of it, times any time step that a model has, is a decay to 0."""


def forgetful_copy(folder: Path, target: Path) -> None:
    """The checkpoint in `folder`, copied to `target` with every A_log made large."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(".A_log"):
            tensor.fill_(STRONG)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


@torch.inference_mode()
def answer_after_loss(
    model: Model, prompt: Sequence[int], lost: Collection[int], eos: int, max_tokens: int
) -> list[int]:
    """The most likely tokens after `prompt`, read 64 tokens at a time; every layer's state at the grid points in `lost`
    (1 for that after 64 tokens, and so on) is zeroed before the next tokens are read.

    The convolutions' inputs and all KV stay, as they were computed. The end token, if it comes, is the last.
    """
    weight = next(model.parameters())
    longest = len(prompt) + max_tokens
    num_blocks = -(-longest // BLOCK_SIZE)
    pools = allocate_pools(model.layer_specs(), num_blocks, longest // CHUNK + 1, 1, weight.dtype, weight.device)

    def read(tokens: Sequence[int], start: int) -> int:
        end = start + len(tokens)
        grid_slots = range(start // CHUNK + 1, end // CHUNK + 1)
        rows = Rows(start, end, range(num_blocks), start // CHUNK, 0, grid_slots)
        batch = ForwardBatch.pack([rows], pools.kv, pools.recurrent, weight.device)
        best = int(model.logits(model(torch.tensor(tokens, device=weight.device), batch)[-1:]).argmax())
        for layer in pools.recurrent:
            if layer is not None and end % CHUNK == 0 and end // CHUNK in lost:
                layer.checkpoint["state"][end // CHUNK] = 0
        return best

    answer = [read(prompt[start : start + CHUNK], start) for start in range(0, len(prompt), CHUNK)][-1:]
    while answer[-1] != eos and len(answer) < max_tokens:
        answer.append(read(answer[-1:], len(prompt) + len(answer) - 1))
    return answer
