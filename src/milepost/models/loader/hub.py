"""Models from the Hugging Face hub, by way of its local cache; every failure in one line, and soon."""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from huggingface_hub import HfApi, errors, snapshot_download

from milepost.errors import ModelError
from milepost.models.loader.gguf_file import PART
from milepost.models.loader.safetensors_folder import INDEX, SINGLE, read_json
from milepost.models.loader.wording import few, one_line

PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
IGNORED = ["consolidated*", "original/*", "onnx/*", "metal/*", "*/*.safetensors"]
"""What is fetched of a repository: no pickles, and no second copy of the weights in another layout."""

TIMEOUT_SECONDS = 10
"""For the first answer; it is asked for once. Later the hub's own client retries for some seconds."""


def fetch(repo: str, wanted: str | None) -> Path:
    """A folder with the repository's safetensors, or the GGUF file that `wanted` picks (by name or quantisation).

    What the local cache holds whole is not asked for. Downloads show the hub client's progress bar, and go on where
    they broke off. ModelError without network, for unknown and for gated repositories.
    """
    cached = _cached(repo)
    found = None if cached is None else _whole(repo, cached, wanted)
    if found is not None:
        return found
    try:
        return _download(repo, wanted)
    except ModelError:
        raise
    except Exception as error:  # the client's own, its transport's, the file system's
        left = None if cached is None or wanted is not None else _usable(repo, cached)
        if left is not None:
            return left
        raise _explained(repo, error) from error


def pick_gguf(names: Collection[str], wanted: str) -> list[str]:
    """The GGUF file among `names` that is called `wanted` or holds that quantisation: its parts, if it is split.

    Empty if there is none; ModelError if several fit.
    """
    tag = re.compile(rf"(^|[-._/]){re.escape(wanted)}([-./]|$)", re.IGNORECASE)
    models = _models(names)
    by_name = [stem for stem, files in models.items() if any(wanted in (f, f.rpartition("/")[2]) for f in files)]
    by_tag = [stem for stem in models if tag.search(stem.removesuffix(".gguf")) and "mmproj" not in stem]
    chosen = by_name or by_tag
    if len(chosen) > 1:
        raise ModelError(f"{wanted!r} fits {len(chosen)} files: {few(sorted(chosen))}", "name one of them")
    return models[chosen[0]] if chosen else []


def _models(names: Collection[str]) -> dict[str, list[str]]:
    """The GGUF files among `names`; those that are parts of one model together."""
    models: dict[str, list[str]] = {}
    for name in sorted(name for name in names if name.endswith(".gguf")):
        part = PART.fullmatch(name)
        models.setdefault(part["stem"] if part else name, []).append(name)
    return models


def _cached(repo: str) -> Path | None:
    """The folder of the newest snapshot in the local cache, whatever it holds."""
    try:
        return Path(snapshot_download(repo, allow_patterns=[], local_files_only=True))
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, OSError):
        return None


def _whole(repo: str, cached: Path, wanted: str | None) -> Path | None:
    """What is asked for, if the cache surely has all of it."""
    if wanted is not None:
        return _first(cached, pick_gguf(_gguf_names(cached), wanted))
    folder = _folder(repo)
    # the last in the order in which files are fetched; where a repository has none, the hub must say that this is all
    return folder if folder is not None and (folder / "tokenizer_config.json").is_file() else None


def _usable(repo: str, cached: Path) -> Path | None:
    """What of the cache can be run when the hub does not answer: a folder with all weights, or the only GGUF file."""
    models = list(_models(_gguf_names(cached)).values())
    return _folder(repo) or (_first(cached, models[0]) if len(models) == 1 else None)


def _folder(repo: str) -> Path | None:
    """The cached snapshot, if it has a config and all weights, and the client knows of nothing that it lacks."""
    try:
        path = snapshot_download(repo, allow_patterns=PATTERNS, ignore_patterns=IGNORED, local_files_only=True)
    except (errors.LocalEntryNotFoundError, OSError):
        return None
    folder, weights = Path(path), {SINGLE}
    if (folder / INDEX).is_file():
        places = read_json(folder / INDEX).get("weight_map")
        weights = {str(name) for name in places.values()} if isinstance(places, dict) else weights
    return folder if all((folder / name).is_file() for name in ("config.json", *weights)) else None


def _gguf_names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf") if path.is_file()]


def _first(folder: Path, parts: Sequence[str]) -> Path | None:
    """The first part, if all are there."""
    split = PART.fullmatch(parts[0]) if parts else None
    whole = bool(parts) and (split is None or len(parts) == int(split["count"]))
    return folder / parts[0] if whole else None


def _download(repo: str, wanted: str | None) -> Path:
    info = HfApi().model_info(repo, timeout=TIMEOUT_SECONDS)
    parts = _wanted_parts(repo, [sibling.rfilename for sibling in info.siblings or ()], wanted)
    patterns = [glob.escape(name) for name in parts] if parts else PATTERNS
    ignored = [] if parts else IGNORED
    folder = Path(
        snapshot_download(repo, allow_patterns=patterns, ignore_patterns=ignored, etag_timeout=TIMEOUT_SECONDS)
    )
    return folder / parts[0] if parts else folder


def _wanted_parts(repo: str, names: Collection[str], wanted: str | None) -> list[str]:
    """The GGUF files to fetch; none for a repository of safetensors."""
    models = _models(names)
    if wanted is not None:
        parts = pick_gguf(names, wanted)
        if not parts:
            has = f"it has {few(list(models), 5)}" if models else "it has none"
            raise ModelError(f"no GGUF file of {repo!r} fits {wanted!r}: {has}", "name one that it has")
        return parts
    if any(name.endswith(".safetensors") and not name.startswith("consolidated") for name in names if "/" not in name):
        return []
    if len(models) == 1:
        return next(iter(models.values()))
    if models:
        hint = f"name one of its GGUF files, such as {repo}:{next(iter(models.values()))[0]}"
    else:
        hint = "a model must be stored as safetensors or GGUF; pickled weights are not read"
    raise ModelError(f"{repo!r} on the hub has no safetensors that can be read", hint)


def _explained(repo: str, error: Exception) -> ModelError:
    """One line for the user, by what went wrong."""
    nowhere = f"no local path {repo!r}, and "
    if isinstance(error, errors.OfflineModeIsEnabled):
        return ModelError(f"{nowhere}not all of it is in the hub's cache", "unset HF_HUB_OFFLINE, or give a local path")
    if isinstance(error, errors.HFValidationError):
        return ModelError(f"{nowhere}no hub name either", "give a path that exists, or a hub name: org/name")
    if isinstance(error, errors.GatedRepoError):
        return ModelError(f"{repo!r} is gated", "accept its terms on the hub, and set HF_TOKEN to a token of yours")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelError(f"{nowhere}no such model on the hub", "check the name; for a private one set HF_TOKEN")
    reason = one_line(error)
    if isinstance(error, errors.HfHubHTTPError):
        return ModelError(f"the hub refused {repo!r}: {reason}", "try again later, or give a local path")
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return ModelError(f"cannot store {repo!r}: {error.strerror}: {error.filename}", "set HF_HOME to another folder")
    return ModelError(
        f"{nowhere}the hub cannot be reached: {reason}",
        "check the network and run it again (what is fetched is kept), or give a local path",
    )
