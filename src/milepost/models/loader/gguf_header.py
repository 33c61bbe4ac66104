"""The header of a GGUF file: metadata and where each tensor lies, every length checked against the file's size.

Layout: the GGUF specification, versions 2 and 3, little-endian. The `gguf` package's own reader trusts the lengths it
finds and builds an array for each string: on a damaged file it may allocate or loop without end, on a good one it takes
twenty times as long.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from milepost.errors import ModelError

HINT = "the file is damaged or incomplete: fetch it again"
MAX_DIMS = 4
MAX_ITEMS = 1 << 24
"""Items of one metadata array: sixty times the largest vocabulary known."""
MAX_STRING_BYTES = 1 << 26

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type -> `struct` letter."""
_STRING, _ARRAY = 8, 9
_TENSOR_TYPES = {kind.value: kind for kind in GGMLQuantizationType if kind in GGML_QUANT_SIZES}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file. `shape` has the slowest dimension first, as torch has; `start` is an offset in the file."""

    name: str
    path: Path
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """`metadata` holds numbers, booleans, strings, lists of strings, and lists of numbers."""

    metadata: dict[str, Any]
    tensors: list[StoredTensor]


def read_header(path: Path) -> Header:
    """The header of one file. ModelError where the file is no GGUF, is cut short, or contradicts itself."""
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path} is not a GGUF file", "give a GGUF file or a Hugging Face model folder")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Walk(path, data).header()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}", "check the file and its permissions") from error


class _Walk:
    """Reads forward through the bytes, and never beyond their end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 4

    def damaged(self, what: str) -> ModelError:
        return ModelError(f"damaged GGUF file {self.path}: {what}", HINT)

    def header(self) -> Header:
        version = self.scalar("I")
        if version & 0xFFFF == 0:
            raise ModelError(f"{self.path} is a big-endian GGUF file", "convert it to little-endian")
        if version not in (2, 3):
            raise ModelError(f"{self.path} has GGUF version {version}; versions 2 and 3 are supported", HINT)
        num_tensors, num_values = self.count(24, "tensors"), self.count(13, "metadata values")
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self.string()
            if key in metadata:
                raise self.damaged(f"metadata {key!r} comes twice")
            metadata[key] = self.value(self.scalar("I"))
        infos = [self.tensor_info() for _ in range(num_tensors)]
        return Header(metadata, self.placed(infos, metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)))

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > self.size - self.at:
            raise self.damaged("it ends within its header")
        self.at += num_bytes
        return self.data[self.at - num_bytes : self.at]

    def scalar(self, letter: str) -> Any:
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]

    def count(self, least_bytes: int, what: str) -> int:
        """A number of things that take at least `least_bytes` each."""
        number: int = self.scalar("Q")
        if number * least_bytes > self.size - self.at:
            raise self.damaged(f"{number} {what} cannot be in a file of {self.size} bytes")
        return number

    def string(self) -> str:
        length = self.count(1, "bytes of text")
        if length > MAX_STRING_BYTES:
            raise self.damaged(f"a text of {length} bytes in its header")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.damaged("text in its header is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        raise self.damaged(f"a metadata value of the unknown type {kind}")

    def array(self) -> list[Any]:
        kind = self.scalar("I")
        letter = _SCALARS.get(kind)
        if letter is None and kind != _STRING:
            raise self.damaged(f"a metadata array of the unknown type {kind}")
        length = self.count(struct.calcsize(letter) if letter else 8, "array items")
        if length > MAX_ITEMS:
            raise self.damaged(f"a metadata array of {length} items")
        if letter is None:
            return [self.string() for _ in range(length)]
        item = np.dtype("<" + letter)
        return np.frombuffer(self.take(length * item.itemsize), item).tolist()

    def tensor_info(self) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
        name, num_dims = self.string(), self.scalar("I")
        if not 1 <= num_dims <= MAX_DIMS:
            raise self.damaged(f"tensor {name!r} has {num_dims} dimensions")
        shape = tuple(self.scalar("Q") for _ in range(num_dims))[::-1]
        kind, offset = self.scalar("I"), self.scalar("Q")
        if kind not in _TENSOR_TYPES:
            raise self.damaged(f"tensor {name!r} has the unknown type {kind}")
        return name, _TENSOR_TYPES[kind], shape, offset

    def placed(
        self, infos: list[tuple[str, GGMLQuantizationType, tuple[int, ...], int]], alignment: Any
    ) -> list[StoredTensor]:
        """The tensors with their bytes' place: one after another behind the header, each padded to the alignment."""
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self.damaged(f"an alignment of {alignment!r}")

        def padded(size: int) -> int:
            return -(-size // alignment) * alignment

        start, expected, tensors, seen = padded(self.at), 0, [], set()
        for name, kind, shape, offset in infos:
            block_size, block_bytes = GGML_QUANT_SIZES[kind]
            if 0 in shape or shape[-1] % block_size:
                raise self.damaged(f"tensor {name!r} cannot have the shape {shape} as {kind.name}")
            num_bytes = math.prod(shape) // block_size * block_bytes
            if name in seen or offset != expected:
                raise self.damaged(f"tensor {name!r} comes twice or lies at the wrong place")
            if start + offset + num_bytes > self.size:
                raise self.damaged(
                    f"it has {self.size} bytes, and tensor {name!r} ends at {start + offset + num_bytes}"
                )
            seen.add(name)
            expected += padded(num_bytes)
            tensors.append(StoredTensor(name, self.path, kind, shape, start + offset, num_bytes))
        return tensors
