"""The weights that ship: what they answer depends on their recurrent states."""

import torch
from tokenizers import Tokenizer
from tools.tiny.evaluate import cases
from tools.tiny.forgetting import answer_after_loss
from tools.tiny.tasks import RECALL, STATE
from tools.tiny.tokenizer import END, ChatEncoder, token_id

from milepost.models.loader.load import load_model, open_model
from milepost.models.loader.resolve import resolve
from milepost.specs import CHUNK


def test_without_their_states_they_do_not_know() -> None:
    """Zeroed once, at the last grid point before the question."""
    tokenizer = Tokenizer.from_file(str(resolve("milepost-tiny") / "tokenizer.json"))
    model = load_model(open_model("milepost-tiny"), torch.float32).model
    eos, right, right_after_loss = token_id(tokenizer, END), 0, 0
    asked = [case for case in cases(ChatEncoder(tokenizer), RECALL + STATE, 24, 512) if case.kept >= 2 * CHUNK]
    for case in asked:
        right += answer_after_loss(model, case.prompt, [], eos, 12) == case.expected
        right_after_loss += answer_after_loss(model, case.prompt, [case.kept // CHUNK], eos, 12) == case.expected
    assert right >= 0.8 * len(asked)
    assert right_after_loss <= 0.5 * right
