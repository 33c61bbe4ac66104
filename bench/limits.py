"""What no engine can beat on a machine: operations over the dot instructions' rate, bytes over the memory's.

Operations are counted as 2 x rows x weights of the matrices that the rows go through (the head: one row of a prompt),
plus attention (2 x 2 for each query head's value and visible token), convolutions and scans. A step of decode reads
every weight once, and of each sequence the keys and values before it and its states, which it also writes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.machine import Speed
from bench.measures import Measure
from milepost.models.loader.meta import build_on_meta
from milepost.specs import PagedKV, Recurrent

ELEMENT_BYTES = 2
SCAN_OPERATIONS = {"granitemoehybrid": 5, "qwen3_5_text": 7}
"""For each number of the state and token: decay, the update's product and sum, the reading's product and sum; a delta
rule also reads what the state holds for the key."""


@dataclass(frozen=True)
class Costs:
    """What a shape costs, counted from its parameters and its layers' declared states.

    row_ops: operations of one row in all layers, without attention; head_ops: of one row in the head
    attention_ops: of a query with one token that it sees
    weight_bytes: all that a step reads; token_bytes: keys and values of a token; state_bytes: of one sequence
    """

    row_ops: float
    head_ops: float
    attention_ops: float
    weight_bytes: float
    token_bytes: float
    state_bytes: float

    def prefill_ops(self, tokens: int) -> float:
        return tokens * self.row_ops + self.head_ops + self.attention_ops * tokens * (tokens + 1) / 2

    def step_ops(self, batch: int, context: float) -> float:
        return batch * (self.row_ops + self.head_ops + self.attention_ops * context)

    def step_bytes(self, batch: int, context: float) -> float:
        return self.weight_bytes + batch * (self.token_bytes * context + 2 * self.state_bytes)


def costs_of(config: Mapping[str, Any]) -> Costs:
    model = build_on_meta(config, sys.maxsize)
    sizes = {name: p.shape for name, p in model.named_parameters() if not name.startswith("model.embed_tokens")}
    head = sizes.pop("lm_head.weight").numel()
    declared = [spec for layer in model.layer_specs() for spec in layer]
    paged = [spec for spec in declared if isinstance(spec, PagedKV)]
    recurrent = [spec for spec in declared if isinstance(spec, Recurrent)]
    states = [b.num_bytes(1) // 4 for spec in recurrent for b in spec.checkpoint if b.name == "state"]
    scan = SCAN_OPERATIONS.get(str(config["model_type"]), 0) * sum(states)
    query_size = sum(config["num_attention_heads"] * spec.head_dim for spec in paged)
    return Costs(
        row_ops=scan + 2 * sum(shape.numel() for shape in sizes.values() if len(shape) > 1),
        head_ops=2 * head,
        attention_ops=4 * query_size,
        weight_bytes=ELEMENT_BYTES * (head + sum(shape.numel() for shape in sizes.values())),
        token_bytes=sum(spec.token_bytes(ELEMENT_BYTES) for spec in paged),
        state_bytes=sum(spec.checkpoint_bytes(ELEMENT_BYTES) for spec in recurrent),
    )


def limit(measure: Measure, costs: Costs, speed: Speed) -> float | None:
    """The best value that the machine allows, tokens a second; None where nothing simple bounds it."""
    if not speed.read_bytes or not speed.dot_ops:
        return None
    sizes = measure.arguments

    def step_seconds(batch: int, context: float) -> float:
        return max(costs.step_bytes(batch, context) / speed.read_bytes, costs.step_ops(batch, context) / speed.dot_ops)

    if measure.op == "prefill":
        return sizes["tokens"] * speed.dot_ops / costs.prefill_ops(sizes["tokens"])
    if measure.op == "decode":
        return sizes["batch"] / step_seconds(sizes["batch"], sizes["prompt"] + sizes["tokens"] / 2)
    if measure.op == "burst":
        num, prompt, answer = sizes["requests"], sizes["prompt"], sizes["answer"]
        reading = num * costs.prefill_ops(prompt) / speed.dot_ops
        return num * answer / (reading + (answer - 1) * step_seconds(num, prompt + answer / 2))
    return None


def matrices(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The model's matrices, (in, out), each size once, the largest first; the head is left out: one row uses it."""
    model = build_on_meta(config, sys.maxsize)
    found = {
        (p.shape[1], p.shape[0])
        for name, p in model.named_parameters()
        if p.dim() == 2 and "embed_tokens" not in name and "lm_head" not in name and p.shape[0] >= 64
    }
    return sorted(found, key=lambda size: size[0] * size[1], reverse=True)
