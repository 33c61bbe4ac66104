"""Examines a checkpoint: `python -m tools.tiny.evaluate FOLDER`. Greedy answers of Milepost's engine, on unseen cases.

Prints, for recall and for state tracking, the share of right answers by quartile of context length and by task; then
the same with zeroed recurrent states, and how often transformers gives the same answer (`--transformers`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from milepost import LLM, SamplingParams
from milepost.models.base import Model
from milepost.models.loader.load import load_model, open_model
from milepost.specs import CHUNK
from tools.tiny.forgetting import answer_after_loss, forgetful_copy
from tools.tiny.tasks import OTHER, RECALL, STATE, examination, size_of
from tools.tiny.tokenizer import END, ChatEncoder, token_id

MAX_LENGTH, SHORTEST, QUARTILES = 2048, 48, 4
MAX_ANSWER = 48
"""Tokens; the longest right answer, ten things to say again, has fewer."""

Answers = Callable[[Sequence[Sequence[int]]], list[list[int]]]


@dataclass(frozen=True)
class Case:
    """`expected`: the answer's tokens and the end token. `kept`: prompt tokens before the last question."""

    kind: str
    prompt: list[int]
    expected: list[int]
    kept: int

    @property
    def quartile(self) -> int:
        return min(QUARTILES - 1, len(self.prompt) * QUARTILES // MAX_LENGTH)


def cases(encoder: ChatEncoder, kinds: Sequence[str], count: int, max_length: int = MAX_LENGTH) -> list[Case]:
    """`count` unseen questions, in turn of each kind, contexts uniform up to `max_length` tokens."""
    rng, found = Random(f"cases {kinds} {max_length}"), list[Case]()
    while len(found) < count:
        kind, seed = kinds[len(found) % len(kinds)], rng.getrandbits(32)
        conversation = examination(kind, seed, rng.randint(SHORTEST, max_length))
        ids, prompt = encoder.training_ids(conversation)[0], encoder.prompt_ids(conversation)
        if len(ids) <= max_length:
            kept = len(prompt) - size_of(conversation.turns[-1].question.text) - 2
            found.append(Case(kind, prompt, ids[len(prompt) :], max(0, kept)))
    return found


def engine_answers(folder: Path, dtype: str, eos: int) -> Answers:
    """By Milepost's engine, many at a time, greedily."""
    llm = LLM(folder, dtype=dtype, max_model_len=MAX_LENGTH + MAX_ANSWER)
    params = SamplingParams(temperature=0, max_tokens=MAX_ANSWER, stop_token_ids=[eos])

    def answer(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        results = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], params)
        return [_ended(result.outputs[0].token_ids, eos) for result in results]

    return answer


def transformers_answers(folder: Path, eos: int) -> Answers:
    """By transformers, one at a time, greedily, in fp32."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def one(prompt: Sequence[int]) -> list[int]:
        ids = torch.tensor([list(prompt)])
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=MAX_ANSWER, do_sample=False, eos_token_id=eos)
        return _ended(out[0, len(prompt) :].tolist(), eos)

    return lambda prompts: [one(prompt) for prompt in prompts]


def answers_after_loss(model: Model, all_cases: Sequence[Case], eos: int, once: bool) -> list[list[int]]:
    """States zeroed at every grid point, or `once`, at the last one before the question."""

    def lost(case: Case) -> range:
        return range(case.kept // CHUNK if once else 0, case.kept // CHUNK + 1 if once else MAX_LENGTH)

    return [answer_after_loss(model, case.prompt, lost(case), eos, MAX_ANSWER) for case in all_cases]


def table(title: str, all_cases: Sequence[Case], answers: Sequence[Sequence[int]]) -> str:
    """Lines of shares: all, each quartile, each kind."""
    right = [list(case.expected) == list(answer) for case, answer in zip(all_cases, answers, strict=True)]
    lines = [f"{title}: {_share(right)}"]
    for quartile in range(QUARTILES):
        chosen = [ok for case, ok in zip(all_cases, right, strict=True) if case.quartile == quartile]
        first, last = (MAX_LENGTH * (quartile + i) // QUARTILES for i in (0, 1))
        lines.append(f"  {first:>4} to {last:>4} tokens: {_share(chosen)}")
    for kind in dict.fromkeys(case.kind for case in all_cases):
        chosen = [ok for case, ok in zip(all_cases, right, strict=True) if case.kind == kind]
        lines.append(f"  {kind:>17}: {_share(chosen)}")
    return "\n".join(lines)


def _share(right: Sequence[bool]) -> str:
    return f"{sum(right)} of {len(right)} ({100 * sum(right) / len(right):.1f} %)" if right else "none"


def _ended(tokens: Sequence[int], eos: int) -> list[int]:
    """With one end token if the answer ended, whether or not the engine gives it."""
    kept = [token for token in tokens if token != eos]
    return [*kept, eos] if len(kept) < MAX_ANSWER else kept


def print_losses(folder: Path, by_group: dict[str, list[Case]], dtype: str, eos: int) -> None:
    """The examination with zeroed states, in three ways."""
    whole = load_model(open_model(str(folder)), torch.float32).model
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "copy"
        forgetful_copy(folder, copy)
        forgetful = engine_answers(copy, dtype, eos)
        for name, asked in by_group.items():
            print(table(f"{name}, no state outlives its token", asked, forgetful([case.prompt for case in asked])))
            every, once = (answers_after_loss(whole, asked, eos, once) for once in (False, True))
            print(table(f"{name}, states lost at every grid point", asked, every))
            print(table(f"{name}, states lost at the last grid point before the question", asked, once), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=500, help="questions of recall, and of state tracking")
    parser.add_argument("--fewer", type=int, default=200, help="of each: with zeroed states, and by transformers")
    parser.add_argument("--max-length", type=int, default=MAX_LENGTH)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--without-loss", action="store_true", help="leave out the runs with zeroed states")
    parser.add_argument("--transformers", action="store_true", help="compare with transformers' answers too")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    eos, encoder = token_id(tokenizer, END), ChatEncoder(tokenizer)
    groups = {"recall": RECALL, "state tracking": STATE, "other": OTHER}
    by_group = {name: cases(encoder, kinds, args.count, args.max_length) for name, kinds in groups.items()}
    answer, given = engine_answers(args.folder, args.dtype, eos), dict[str, list[list[int]]]()
    for name, asked in by_group.items():
        given[name] = answer([case.prompt for case in asked])
        print(table(name, asked, given[name]), flush=True)
    if not args.without_loss:
        print_losses(
            args.folder, {name: by_group[name][: args.fewer] for name in ("recall", "state tracking")}, args.dtype, eos
        )
    if args.transformers:
        theirs = transformers_answers(args.folder, eos)
        for name, asked in by_group.items():
            prompts = [case.prompt for case in asked[: args.fewer]]
            same = [a == b for a, b in zip(theirs(prompts), given[name], strict=False)]
            print(f"{name}: the same answer by transformers: {_share(same)}", flush=True)


if __name__ == "__main__":
    main()
