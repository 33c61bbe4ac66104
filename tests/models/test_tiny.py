"""Our own small model, which lies in the package: it answers rightly, without a network, as transformers does."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open

from milepost import LLM, SamplingParams
from milepost.models.loader import hub
from milepost.models.loader.resolve import TINY, resolve

STORY = (
    "Ada has number 47. The red code is K47. Ben enters the kitchen. The small boat rests. Lena comes from Lisbon. "
    "Ada visits the garden. The key goes to Lena. The blue lamp is off. Ben reaches the school. Ada flips the blue "
    "lamp. The old wolf sings at night. The green box has 4 coins. The green box gets 1 coin. Lena gives the key to "
    "Ada. The tall fox waits."
)
GREEDY = SamplingParams(temperature=0, max_tokens=16)
QUESTIONS = {
    "Which number has Ada?": "I think Ada has number 47.",
    "What is the red code?": "I think the red code is K47.",
    "Where does Lena come from?": "I think Lena comes from Lisbon.",
    "Where is Ben?": "I think Ben is in the school.",
    "Where is Ada?": "I think Ada is in the garden.",
    "Who has the key?": "I think the key is with Ada.",
    "Is the blue lamp on or off?": "I think the blue lamp is on.",
    "How many coins are in the green box?": "I think the green box has 5 coins.",
    "Is the sum of 1 0 1 1 odd or even?": "It is odd.",
    "Hello!": "Hello! How can I help you?",
}


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve(TINY)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(TINY, dtype="float32", max_model_len=1024)


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question if question == "Hello!" else f"{STORY} {question}"}]


def test_sizes(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        weights = sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118
    assert 3_000_000 <= weights <= 10_000_000
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 10_000_000


def test_layers_are_mixed(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert set(config["layer_types"]) == {"linear_attention", "full_attention"}


def test_it_answers_without_a_network(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(hub, "fetch")
    assert resolve(TINY).is_dir()
    answers = llm.chat([messages(question) for question in QUESTIONS], GREEDY, use_tqdm=False)
    assert {question: answer.outputs[0].text for question, answer in zip(QUESTIONS, answers, strict=True)} == QUESTIONS


def test_transformers_reads_it_and_says_the_same(llm: LLM, folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for question in list(QUESTIONS)[:4]:
        ours = llm.chat(messages(question), GREEDY, use_tqdm=False)[0]
        ids = tokenizer.apply_chat_template(messages(question), add_generation_prompt=True, return_tensors="pt")
        assert ours.prompt_token_ids == ids["input_ids"][0].tolist()
        theirs = model.generate(**ids, max_new_tokens=16)[0, ids["input_ids"].shape[1] :]
        assert tokenizer.decode(theirs, skip_special_tokens=True) == ours.outputs[0].text


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / TINY).mkdir()
    (tmp_path / TINY / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    assert resolve(TINY).resolve() == tmp_path / TINY
