"""The engine's settings, checked once at start: vLLM's names and defaults. What can be derived is not here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from milepost.errors import ConfigError

DTYPES = ("auto", "bfloat16", "float16", "half", "float32", "float")
MAX_NUM_THREADS = 512
POLICIES = ("fcfs", "priority")


@dataclass(frozen=True)
class EngineConfig:
    """`model`: a folder, a GGUF file, a hub name, or None for the small default model.

    max_model_len           prompt and answer together, tokens; None: what the model was trained for and memory holds
    max_num_seqs            samples that run at once
    max_num_batched_tokens  rows of one step: more reads long prompts faster, fewer keeps decodes smooth
    kv_cache_memory_bytes   memory for keys, values and recurrent states, of running samples and of the prefix cache;
                            None: derived from what the machine or its cgroup has free
    prefix_cache_retention_interval  tokens between the recurrent states that are kept, a multiple of 64; 0: only those
                            at prompts' and answers' ends and where prompts part; None: every 64 tokens
    chat_template           jinja file that replaces the model's own
    generation_config       "auto": the model's generation_config.json gives sampling defaults; "vllm": it does not
    num_threads             None: the cores that the machine or its cgroup gives
    """

    model: str | None = None
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    kv_cache_memory_bytes: int | None = None
    prefix_cache_retention_interval: int | None = None
    seed: int = 0
    scheduling_policy: str = "fcfs"
    served_model_name: str | None = None
    chat_template: Path | None = None
    generation_config: str = "auto"
    num_threads: int | None = None

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("scheduling_policy", self.scheduling_policy, POLICIES)
        _one_of("generation_config", self.generation_config, ("auto", "vllm"))
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{flag(name)} must be at least 1, got {value}", f"leave {flag(name)} out")
        if self.num_threads is not None and self.num_threads > MAX_NUM_THREADS:
            raise ConfigError(
                f"--num-threads must be at most {MAX_NUM_THREADS}, got {self.num_threads}", "leave it out"
            )
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"--seed must be between 0 and 2^63 - 1, got {self.seed}", "leave --seed out")
        if self.chat_template is not None and not self.chat_template.is_file():
            raise ConfigError(f"no chat template at {self.chat_template}", "give the path of a jinja file")


def flag(name: str) -> str:
    """The command line's spelling of a field."""
    return "--" + name.replace("_", "-")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{flag(name)} cannot be {value!r}", f"one of: {', '.join(allowed)}")
