"""Trains milepost-tiny: `python -m tools.tiny.train FOLDER --minutes 75`. Stopped and started again, it goes on.

FOLDER/state.pt and FOLDER/tokenizer.json hold all that is needed to go on, FOLDER/log.jsonl what was reached,
FOLDER/model the checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tools.tiny.batches import Batch, batch_of
from tools.tiny.checkpoint import save_checkpoint
from tools.tiny.gradients import Gradients
from tools.tiny.model import Shape, TinyModel
from tools.tiny.optimiser import Optimiser
from tools.tiny.tasks import KINDS
from tools.tiny.tokenizer import PAD, ChatEncoder, token_id, train_tokenizer

SAVE_SECONDS, LOG_SECONDS = 120.0, 20.0
ROWS = 4


@dataclass(frozen=True)
class Plan:
    """How a run goes. `lengths`: (part of the run at which it begins, longest conversation in tokens), in order.

    A batch has at least `batch_tokens` tokens, and as many as `ROWS` of the longest conversations: few while these are
    short, for many updates. `blind`: (part of the run, share of conversations read without attention), in order:
    so states learn to remember what attention would find.
    """

    minutes: float
    batch_tokens: int
    lengths: tuple[tuple[float, int], ...]
    rate: float
    narrow: bool
    seed: int
    blind: tuple[tuple[float, float], ...] = ((0.0, 0.0),)

    def max_length(self, progress: float) -> int:
        return [length for start, length in self.lengths if start <= progress][-1]

    def share_blind(self, progress: float) -> float:
        return [share for start, share in self.blind if start <= progress][-1]


class Tally:
    """Losses, and how many answers were right, by task, since the last report. An answer is right if all of its tokens
    are the most likely ones."""

    def __init__(self) -> None:
        self.loss, self.steps = 0.0, 0
        self.right = torch.zeros(len(KINDS))
        self.asked = torch.zeros(len(KINDS))

    def add(self, batch: Batch, loss: float, logits: torch.Tensor) -> None:
        self.loss, self.steps = self.loss + loss, self.steps + 1
        is_first = torch.ones_like(batch.places, dtype=torch.bool)
        is_first[1:] = batch.places[1:] != batch.places[:-1] + 1
        answer = is_first.cumsum(0) - 1
        wrong_tokens = torch.zeros(int(is_first.sum())).index_add_(
            0, answer, (logits.argmax(-1) != batch.targets).float()
        )
        kinds = batch.kinds[is_first]
        self.right.index_add_(0, kinds, (wrong_tokens == 0).float())
        self.asked.index_add_(0, kinds, torch.ones(len(kinds)))

    def report(self) -> dict[str, Any]:
        by_task = {
            kind: round(float(self.right[i] / self.asked[i]), 3) for i, kind in enumerate(KINDS) if self.asked[i]
        }
        return {"loss": round(self.loss / max(1, self.steps), 4), "right": by_task}


class Run:
    """A run in a folder. Time counts only while it trains, so a stop and a new start do not change the plan."""

    def __init__(self, folder: Path, shape: Shape, plan: Plan, tokenizer: Tokenizer, threads: int = 1) -> None:
        self.folder, self.plan = folder, plan
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer, self.encoder, self.pad = tokenizer, ChatEncoder(tokenizer), token_id(tokenizer, PAD)
        self.model = TinyModel(shape, plan.seed)
        self.optimiser = Optimiser(self.model, plan.rate, threads)
        self.gradients = Gradients(self.model, threads, plan.narrow)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self._resume()

    @property
    def progress(self) -> float:
        return self.seconds / (60 * self.plan.minutes)

    def train(self) -> None:
        tally, logged, saved = Tally(), self.seconds, self.seconds
        tokens, since = self.tokens, time.monotonic()
        while self.progress < 1:
            start = time.monotonic()
            tally.add(*self.update())
            self.seconds += time.monotonic() - start
            if self.seconds - logged > LOG_SECONDS or self.progress >= 1:
                self._log(
                    {**tally.report(), "tokens_per_s": round((self.tokens - tokens) / (time.monotonic() - since))}
                )
                tally, logged, tokens, since = Tally(), self.seconds, self.tokens, time.monotonic()
            if self.seconds - saved > SAVE_SECONDS:
                self.save()
                saved = self.seconds
        self.save()

    def update(self) -> tuple[Batch, float, torch.Tensor]:
        """One step of training; returns its batch, the loss, and the logits fp32 [answer tokens, vocab] before it."""
        plan = self.plan
        length = plan.max_length(self.progress)
        num_tokens = max(plan.batch_tokens, ROWS * length)
        batch = batch_of(self.encoder, self.step, num_tokens, length, plan.seed, self.pad)
        loss, logits = self.gradients.find(batch, self._attends(len(batch.inputs)))
        self.optimiser.step(self.progress)
        self.step, self.tokens = self.step + 1, self.tokens + batch.inputs.numel()
        return batch, loss, logits

    def _attends(self, rows: int) -> torch.Tensor | None:
        """Which conversations of this step are read with attention."""
        share = self.plan.share_blind(self.progress)
        if share == 0:
            return None
        generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + self.step)
        return (torch.rand(rows, generator=generator) >= share).float()

    def save(self) -> None:
        """A whole file or the former one: written beside it and renamed."""
        state = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "counts": (self.step, self.tokens, self.seconds),
        }
        beside = self.folder / "state.pt.part"
        torch.save(state, beside)
        os.replace(beside, self.folder / "state.pt")
        save_checkpoint(self.model, self.tokenizer, self.folder / "model")

    def _resume(self) -> None:
        path = self.folder / "state.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.tokens, self.seconds = state["counts"]

    def _log(self, report: dict[str, Any]) -> None:
        line = {"step": self.step, "tokens": self.tokens, "minutes": round(self.seconds / 60, 2)}
        text = json.dumps({**line, "max_length": self.plan.max_length(self.progress), **report})
        print(text, flush=True)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(text + "\n")


def tokenizer_in(folder: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer that the run began with, as the tasks, and so their text, may have changed since; or a new one."""
    path = folder / "tokenizer.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / "tokenizer.json.part"
        train_tokenizer(vocab_size=vocab_size).save(str(beside))
        os.replace(beside, path)
    return Tokenizer.from_file(str(path))


def _stages(text: str) -> tuple[tuple[float, float], ...]:
    """Of "0:64,0.5:128": ((0, 64), (0.5, 128))."""
    pairs = (pair.split(":") for pair in text.split(","))
    return tuple((float(start), float(value)) for start, value in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=75)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument(
        "--lengths", default="0:64,0.05:128,0.12:256,0.25:512,0.4:1024,0.55:2048", help="PROGRESS:LONGEST, ..."
    )
    parser.add_argument("--rate", type=float, default=1.0, help="factor of all learning rates")
    parser.add_argument("--fp32", action="store_true", help="no bf16 in the forward and backward passes")
    parser.add_argument(
        "--blind", default="0:1,0.6:0.6", help="PROGRESS:SHARE of conversations read without attention, ..."
    )
    parser.add_argument("--seed", type=int, default=0)
    for name in ("hidden_size", "intermediate_size", "num_layers", "delta_heads", "key_dim", "value_dim"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Shape, name))
    parser.add_argument("--attention", default="2", help="numbers of the layers that are attention: 2,5")
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = Shape(
        hidden_size=args.hidden_size,
        intermediate_size=args.intermediate_size,
        num_layers=args.num_layers,
        attention=tuple(int(number) for number in args.attention.split(",")),
        delta_heads=args.delta_heads,
        key_dim=args.key_dim,
        value_dim=args.value_dim,
    )
    lengths = tuple((start, int(length)) for start, length in _stages(args.lengths))
    plan = Plan(args.minutes, args.batch_tokens, lengths, args.rate, not args.fp32, args.seed, _stages(args.blind))
    Run(args.folder, shape, plan, tokenizer_in(args.folder, shape.vocab_size), args.threads).train()


if __name__ == "__main__":
    main()
