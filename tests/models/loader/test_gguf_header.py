"""Damaged GGUF files: whatever was done to the bytes, the model loads or one ModelError says why not."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_models as tiny
import torch

from milepost.errors import ModelError
from milepost.models.loader.gguf_header import read_header
from milepost.models.loader.load import load_model, open_model


def flip_bytes(data: bytearray, header: int, draw: random.Random) -> bytearray:
    for _ in range(draw.choice([1, 1, 2, 8])):
        data[draw.randrange(header)] = draw.randrange(256)
    return data


def flip_bits(data: bytearray, header: int, draw: random.Random) -> bytearray:
    for _ in range(draw.choice([1, 1, 4])):
        data[draw.randrange(header)] ^= 1 << draw.randrange(8)
    return data


def cut(data: bytearray, header: int, draw: random.Random) -> bytearray:
    return data[: draw.randrange(draw.choice([header, len(data)]))]


def blow_up(data: bytearray, header: int, draw: random.Random) -> bytearray:
    """A number of eight or four bytes, anywhere, becomes a large one."""
    form, bits = draw.choice([("<Q", 64), ("<Q", 40), ("<I", 32)])
    struct.pack_into(form, data, draw.randrange(header - 8), (1 << bits) - 1 - draw.randrange(1 << 20))
    return data


def blow_up_counts(data: bytearray, header: int, draw: random.Random) -> bytearray:
    struct.pack_into("<Q", data, draw.choice([8, 16]), draw.choice([0, 1, 1000, 1 << 31, 1 << 62, (1 << 64) - 1]))
    return data


def insert(data: bytearray, header: int, draw: random.Random) -> bytearray:
    at = draw.randrange(header)
    return data[:at] + draw.randbytes(draw.choice([1, 4, 8, 100])) + data[at:]


def remove(data: bytearray, header: int, draw: random.Random) -> bytearray:
    at = draw.randrange(header)
    return data[:at] + data[at + draw.choice([1, 4, 8, 100]) :]


def swap_texts(data: bytearray, header: int, draw: random.Random) -> bytearray:
    """One known text of the metadata becomes another of the same length: keys vanish, and values change."""
    texts = [b"llama.", b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges", b"general.architecture", b"gpt2", b"hell"]
    text = draw.choice(texts)
    return bytearray(bytes(data).replace(text, bytes([text[0] ^ 1, *text[1:]]), draw.choice([1, -1])))


MUTATIONS: list[Callable[[bytearray, int, random.Random], bytearray]] = [
    *(flip_bytes, flip_bits, cut, blow_up, blow_up_counts, insert, remove, swap_texts)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, int]]:
    """The bytes of two tiny GGUF files, one of each kind of tokenizer, and where their headers end."""
    folder, model = tmp_path_factory.mktemp("gguf"), tiny.tiny_llama(hidden_size=16, intermediate_size=16)
    scored = tiny.tokenizer_metadata(ggml__model="llama", ggml__merges=None, ggml__scores=[0.5] * tiny.VOCAB_SIZE)
    found = []
    for name, tokenizer in (("bytes", None), ("pieces", scored)):
        path = tiny.write_gguf(folder / f"{name}.gguf", model, tokenizer=tokenizer)
        found.append((path.read_bytes(), min(tensor.start for tensor in read_header(path).tensors)))
    return found


def outcome(path: Path) -> str:
    """What became of it: "loaded", or the error's message. Any other exception is the test's failure."""
    try:
        source = open_model(str(path))
        load_model(source, torch.float32, available_bytes=1 << 30)
        if source.tokenizer is not None:
            source.tokenizer.backend.encode("hello world <|end|>")
        return "loaded"
    except ModelError as error:
        return error.message if error.hint and "\n" not in error.message else f"badly said: {error}"


def mutate_and_load(files: list[tuple[bytes, int]], folder: Path, seeds: range) -> list[str]:
    outcomes = []
    for seed in seeds:
        draw = random.Random(seed)
        data, header = files[seed % 2]
        path = folder / "mutated.gguf"
        path.write_bytes(MUTATIONS[seed // 2 % len(MUTATIONS)](bytearray(data), header, draw))
        outcomes.append(outcome(path))
    assert not [outcome for outcome in outcomes if outcome.startswith("badly said")]
    return outcomes


def test_the_undamaged_files_load(files: list[tuple[bytes, int]], tmp_path: Path) -> None:
    for data, _ in files:
        (tmp_path / "model.gguf").write_bytes(data)
        assert outcome(tmp_path / "model.gguf") == "loaded"


def test_damaged_files(files: list[tuple[bytes, int]], tmp_path: Path) -> None:
    outcomes = mutate_and_load(files, tmp_path, range(64))
    assert len(outcomes) == 64
    assert len(set(outcomes)) > 15  # they do not all fail at the first check


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_thousand_damaged_files(files: list[tuple[bytes, int]], tmp_path: Path) -> None:
    outcomes = mutate_and_load(files, tmp_path, range(1000, 2000))
    assert len(outcomes) == 1000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((4, "<I", 1), "GGUF version 1"),
        ((4, ">I", 3), "big-endian"),
        ((8, "<Q", 1 << 63), "tensors cannot be in a file"),
        ((16, "<Q", 1 << 63), "metadata values cannot be in a file"),
        ((24, "<Q", 1 << 40), "bytes of text cannot be in a file"),
    ],
)
def test_what_is_wrong_is_said(
    files: list[tuple[bytes, int]], tmp_path: Path, change: tuple[int, str, int], message: str
) -> None:
    at, form, value = change
    data = bytearray(files[0][0])
    struct.pack_into(form, data, at, value)
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=message):
        read_header(tmp_path / "model.gguf")


def test_a_file_cut_short_names_the_tensor(files: list[tuple[bytes, int]], tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(files[0][0][:-100])
    with pytest.raises(ModelError, match=r"it has \d+ bytes, and tensor '.*' ends at \d+ \(hint: .*fetch it again"):
        read_header(tmp_path / "model.gguf")
