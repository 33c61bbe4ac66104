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

PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
"""What is fetched of a repository: everything but pickles and other formats."""

TIMEOUT_SECONDS = 10
"""For the first answer; it is asked for once. Later the hub's own client retries for some seconds."""


def fetch(repo: str, wanted: str | None) -> Path:
    """A folder with the repository's safetensors, or the GGUF file that `wanted` picks (by name or quantisation).

    What the local cache holds whole is not asked for. Downloads show the hub client's progress bar, and go on where
    they broke off. ModelError without network, for unknown and for gated repositories.
    """
    cached = _cached(repo)
    if cached is not None:
        found = _whole_folder(repo) if wanted is None else _whole_gguf(cached, wanted)
        if found is not None:
            return found
    try:
        return _download(repo, wanted)
    except ModelError:
        raise
    except Exception as error:  # the client's own, its transport's, the file system's
        raise _explained(repo, error) from error


def pick_gguf(names: Collection[str], wanted: str) -> list[str]:
    """The GGUF file among `names` that is called `wanted` or holds that quantisation: its parts, if it is split.

    Empty if there is none; ModelError if several fit.
    """
    files = [name for name in names if name.endswith(".gguf")]
    tag = re.compile(rf"(^|[-._/]){re.escape(wanted)}([-./]|$)", re.IGNORECASE)
    chosen = [name for name in files if wanted in (name, name.rpartition("/")[2])]
    chosen = chosen or [name for name in files if tag.search(name.removesuffix(".gguf")) and "mmproj" not in name]
    groups: dict[str, list[str]] = {}
    for name in chosen:
        part = PART.fullmatch(name)
        groups.setdefault(part["stem"] if part else name, []).append(name)
    if len(groups) > 1:
        raise ModelError(f"{wanted!r} fits {len(groups)} files: {', '.join(sorted(groups)[:5])}", "name one of them")
    for name in chosen[:1]:
        part = PART.fullmatch(name)
        return sorted(n for n in files if part and n.startswith(part["stem"] + "-") and PART.fullmatch(n)) or [name]
    return []


def _cached(repo: str) -> Path | None:
    """The folder of the newest snapshot in the local cache, whatever it holds."""
    try:
        return Path(snapshot_download(repo, allow_patterns=[], local_files_only=True))
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, OSError):
        return None


def _whole_folder(repo: str) -> Path | None:
    """The cached snapshot, if it holds all that would be fetched."""
    try:
        folder = Path(snapshot_download(repo, allow_patterns=PATTERNS, local_files_only=True))
    except (errors.LocalEntryNotFoundError, OSError):
        return None
    if (folder / INDEX).is_file():
        places = read_json(folder / INDEX).get("weight_map")
        weights = {str(name) for name in places.values()} if isinstance(places, dict) else {SINGLE}
    else:
        weights = {SINGLE}
    # tokenizer_config.json is the last in the order in which files are fetched
    complete = all((folder / name).is_file() for name in ("config.json", "tokenizer_config.json", *weights))
    return folder if complete else None


def _whole_gguf(folder: Path, wanted: str) -> Path | None:
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf") if path.is_file()]
    parts = pick_gguf(names, wanted)
    split = PART.fullmatch(parts[0]) if parts else None
    if not parts or (split and len(parts) != int(split["count"])):
        return None
    return folder / parts[0]


def _download(repo: str, wanted: str | None) -> Path:
    info = HfApi().model_info(repo, timeout=TIMEOUT_SECONDS)
    names = [sibling.rfilename for sibling in info.siblings or ()]
    parts = _wanted_parts(repo, names, wanted)
    patterns = [glob.escape(name) for name in parts] if parts else PATTERNS
    folder = Path(snapshot_download(repo, allow_patterns=patterns, etag_timeout=TIMEOUT_SECONDS))
    return folder / parts[0] if parts else folder


def _wanted_parts(repo: str, names: Sequence[str], wanted: str | None) -> list[str]:
    """The GGUF files to fetch; none for a repository of safetensors."""
    ggufs = [name for name in names if name.endswith(".gguf")]
    if wanted is not None:
        parts = pick_gguf(names, wanted)
        if not parts:
            has = f"it has {', '.join(ggufs[:5])}{', ...' if len(ggufs) > 5 else ''}" if ggufs else "it has none"
            raise ModelError(f"no GGUF file of {repo!r} fits {wanted!r}: {has}", "name one that it has")
        return parts
    if any(name.endswith(".safetensors") for name in names):
        return []
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        hint = f"name one of its GGUF files, such as {repo}:{ggufs[0]}"
    else:
        hint = "a model must be stored as safetensors or GGUF; pickled weights are not read"
    raise ModelError(f"{repo!r} on the hub has no safetensors", hint)


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
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if isinstance(error, errors.HfHubHTTPError):
        return ModelError(f"the hub refused {repo!r}: {reason}", "try again later, or give a local path")
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return ModelError(f"cannot store {repo!r}: {error.strerror}: {error.filename}", "set HF_HOME to another folder")
    return ModelError(
        f"{nowhere}the hub cannot be reached: {reason}",
        "check the network and run it again (what is fetched is kept), or give a local path",
    )
