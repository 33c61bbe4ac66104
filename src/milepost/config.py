"""The engine's settings, checked once at start: vLLM's names and defaults. What can be derived is not here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from milepost.errors import ConfigError

DTYPES = ("auto", "bfloat16", "float16", "half", "float32", "float")
MAX_NUM_THREADS = 512
POLICIES = ("fcfs", "priority")
MIN_MODEL_LEN = 2
"""A token to read and one to answer."""

LEAST = {
    "max_model_len": MIN_MODEL_LEN,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "kv_cache_memory_bytes": 1,
    "num_threads": 1,
}
OPTIONAL = ("max_model_len", "kv_cache_memory_bytes", "num_threads")


@dataclass(frozen=True)
class EngineConfig:
    """`model`: a folder, a GGUF file, a hub name, or None for the small default model.

    max_model_len           prompt and answer together, tokens; None: what the model was trained for and memory holds
    max_num_seqs            samples that run at once
    max_num_batched_tokens  rows of one step: more reads long prompts faster, fewer keeps decodes smooth
    kv_cache_memory_bytes   memory for keys, values and recurrent states, of running samples and of the prefix cache;
                            None: derived from what the machine or its cgroup has free
    prefix_cache_retention_interval  tokens between the recurrent states that are kept, a multiple of 64; 0: only those
                            at prompts' and answers' ends, where prompts part, at the ends of a chat's messages and at
                            clients' breakpoints; None: every 64 tokens
    prefix_cache_policy     what goes first when memory is short: "thinning", or "returns", which learns from who comes
                            back (`cache/policies/`)
    seed                    of the random numbers of requests that bring no seed; None: another one at each start
    chat_template           replaces the model's own: a jinja file or, as vLLM also takes it, the template itself
    generation_config       "auto": the model's generation_config.json gives sampling defaults; "vllm": it does not
    num_threads             None: the cores that the machine or its cgroup gives
    disable_log_stats       no line in the log every ten seconds
    """

    model: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    kv_cache_memory_bytes: int | None = None
    prefix_cache_retention_interval: int | None = None
    prefix_cache_policy: str = "thinning"
    seed: int | None = 0
    scheduling_policy: str = "fcfs"
    served_model_name: str | None = None
    chat_template: str | Path | None = None
    generation_config: str = "auto"
    num_threads: int | None = None
    disable_log_stats: bool = False

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("scheduling_policy", self.scheduling_policy, POLICIES)
        _one_of("generation_config", self.generation_config, ("auto", "vllm"))
        for name, least in LEAST.items():
            _whole(name, getattr(self, name), least, name in OPTIONAL)
        if self.num_threads is not None and self.num_threads > MAX_NUM_THREADS:
            raise ConfigError(
                f"--num-threads must be at most {MAX_NUM_THREADS}, got {self.num_threads}", "leave it out"
            )
        _whole("seed", self.seed, 0, optional=True)
        if self.seed is not None and self.seed >= 2**63:
            raise ConfigError(f"--seed must be between 0 and 2^63 - 1, got {self.seed}", "leave --seed out")
        if self.chat_template is not None:
            chat_template_text(self.chat_template)


def chat_template_text(template: str | Path) -> str:
    """A template's jinja text, given as such or as a file. ConfigError where it is neither."""
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: bytes that are no UTF-8, or a null character in a path
        if isinstance(template, str) and any(mark in template for mark in "{}\n"):
            return template
        if isinstance(error, FileNotFoundError):
            raise ConfigError(f"no chat template at {template}", "give a jinja file, or the template itself") from None
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no UTF-8 text"
        raise ConfigError(f"the chat template {template} cannot be read: {reason}", "give a jinja file") from None
    except TypeError:
        raise ConfigError(
            f"--chat-template cannot be {template!r}", "give the path of a jinja file, or the template itself"
        ) from None


def flag(name: str) -> str:
    """The command line's spelling of a field."""
    return "--" + name.replace("_", "-")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{flag(name)} cannot be {value!r}", f"one of: {', '.join(allowed)}")


def _whole(name: str, value: object, least: int, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{flag(name)} must be a whole number, got {value!r}", f"leave {flag(name)} out")
    if value < least:
        about = ": a token to read and one to answer" if name == "max_model_len" else ""
        raise ConfigError(f"{flag(name)} must be at least {least}{about}, got {value}", f"leave {flag(name)} out")
