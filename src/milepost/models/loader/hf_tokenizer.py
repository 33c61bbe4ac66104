"""Tokenizers of Hugging Face folders: tokenizer.json, the special tokens' names, chat templates."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from milepost.errors import ModelError
from milepost.models.loader.source import TokenizerSource
from milepost.models.loader.wording import one_line

logger = logging.getLogger(__name__)

HINT = "the file is damaged or incomplete: fetch it again"
CONVERTIBLE = ("tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model", "tekken.json")
"""Files of older tokenizers, from which transformers can make the newer form."""


def read_tokenizer(folder: Path) -> tuple[TokenizerSource | None, str]:
    """The folder's tokenizer, or None and the reason why there is none. ModelError for a damaged file."""
    config = {**_object(folder / "special_tokens_map.json"), **_object(folder / "tokenizer_config.json")}
    templates = _chat_template(folder, config)
    special = {name: text for name, value in config.items() if name.endswith("_token") and (text := _text(value))}
    if not (folder / "tokenizer.json").is_file():
        backend, problem = _converted(folder)
        return (TokenizerSource(backend, special, templates), "") if backend is not None else (None, problem)
    try:
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except BaseException as error:  # the tokenizers package panics (a BaseException) on some contradictions
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise ModelError(f"{folder / 'tokenizer.json'} is damaged: {one_line(error)}", HINT) from error
    backend.no_truncation()  # a file saved during training may ask for either
    backend.no_padding()
    _add_tokens(backend, config, special)
    _add_bos(backend, config, special)
    return TokenizerSource(backend, special, templates), ""


def _object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {one_line(error)}", HINT) from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} does not hold a JSON object", HINT)
    return found


def _text(value: Any) -> str | None:
    """A special token's text: given as such, or as {"content": ...}."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _add_tokens(backend: Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Added tokens that tokenizer_config.json knows and tokenizer.json does not, in the order of their ids."""
    listed = config.get("added_tokens_decoder")
    entries = {i: entry for i, entry in listed.items() if isinstance(entry, dict)} if isinstance(listed, dict) else {}
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for i in sorted((i for i in entries if i.isdecimal()), key=int):
        text = _text(entries[i])
        if text and text not in known and backend.token_to_id(text) in (None, int(i)):
            flags = {key: bool(entries[i][key]) for key in _FLAGS if key in entries[i]}
            backend.add_tokens([AddedToken(text, **flags)])
            known.add(text)
            if backend.token_to_id(text) != int(i):
                logger.warning("token %r should have the id %s and has %s", text, i, backend.token_to_id(text))
    named = (text for text in special.values() if text not in known and backend.token_to_id(text) is not None)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in named])


_FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")


def _add_bos(backend: Tokenizer, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """`add_bos_token` holds also where tokenizer.json, made by an older converter, forgot it."""
    text = special.get("bos_token")
    bos = backend.token_to_id(text) if text else None
    if config.get("add_bos_token") is not True or text is None or bos is None:
        return
    if backend.encode("a", add_special_tokens=True).ids[:1] == [bos]:
        return
    named = [{"id": "<bos>", "ids": [bos], "tokens": [text]}]
    template = processors.TemplateProcessing(["<bos>", "$A"], ["<bos>", "$A", "<bos>", "$B:1"], named)
    before = backend.post_processor
    backend.post_processor = template if before is None else processors.Sequence([before, template])


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """Templates of their own files go before those in tokenizer_config.json; one alone is given as text."""
    found: dict[str, str] = {}
    stored = config.get("chat_template") or _object(folder / "chat_template.json").get("chat_template")
    if isinstance(stored, str):
        found["default"] = stored
    elif isinstance(stored, dict):
        found |= {str(name): text for name, text in stored.items() if isinstance(text, str)}
    elif isinstance(stored, list):
        entries = [entry for entry in stored if isinstance(entry, dict)]
        found |= {str(e.get("name", "default")): e["template"] for e in entries if isinstance(e.get("template"), str)}
    files = [("default", folder / "chat_template.jinja")]
    files += [(path.stem, path) for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    for name, path in files:
        if path.is_file():
            found[name] = _template_text(path)
    return found["default"] if list(found) == ["default"] else found or None


def _template_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {one_line(error)}", HINT) from error


def _converted(folder: Path) -> tuple[Tokenizer | None, str]:
    """The tokenizer that transformers, where it is installed, makes of older files; or None and the reason."""
    files = [name for name in CONVERTIBLE if (folder / name).is_file()]
    if not files:
        return None, f"{folder} holds no tokenizer"
    try:
        import transformers
    except ImportError:
        return None, f"{folder} has no tokenizer.json; to convert {files[0]}, install transformers"
    try:
        converted = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        return converted.backend_tokenizer, ""
    except Exception as error:  # transformers raises whatever its converters raise
        return None, f"{folder} has no tokenizer.json, and {files[0]} cannot be converted: {one_line(error)}"
