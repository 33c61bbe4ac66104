"""From settings to an engine that can step: load the model, share out the memory, put the parts together."""

from __future__ import annotations

import gc
import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch

from milepost.cache.memory import Memory
from milepost.cache.policies.registry import DEFAULT, policy_named
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import Retention
from milepost.config import EngineConfig, chat_template_text
from milepost.engine.chat import ChatTemplate
from milepost.engine.engine import Engine
from milepost.engine.grammars import Grammars
from milepost.engine.memory import MemoryPlan, plan_memory, size
from milepost.engine.metrics import Metrics
from milepost.engine.pools import allocate_pools
from milepost.engine.replay import Replays
from milepost.engine.runner import Runner
from milepost.engine.sampler import Sampler
from milepost.engine.sampling_defaults import sampling_defaults
from milepost.engine.scheduler import Scheduler
from milepost.engine.served_model import ServedModel
from milepost.engine.tokenizer import Tokenizer
from milepost.errors import ConfigError
from milepost.machine import available_memory_bytes, usable_cpus
from milepost.models.base import Config, require
from milepost.models.loader.load import LoadedModel, load_model, open_model, resolve_dtype
from milepost.models.loader.source import ModelSource
from milepost.ops import exactness
from milepost.specs import BLOCK_SIZE, CHUNK, cuttable

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Told bytes done and bytes in all while weights load."""


def build_engine(config: EngineConfig, progress: Progress | None = None) -> Engine:
    """Loads `config.model` and fits it to the machine; raises `ModelError` or `ConfigError` with a hint."""
    Retention(config.prefix_cache_retention_interval)  # what cannot work is told before anything is read
    policy_named(config.prefix_cache_policy)
    set_threads(config.num_threads)
    source = open_model(config.model, config.dtype)
    sampling_defaults(source, config.generation_config)  # a bad file is told before the weights are read, too
    loaded = load_model(source, resolve_dtype(config.dtype, source), torch.device("cpu"), progress=progress)
    return assemble(loaded, config)


def assemble(loaded: LoadedModel, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> Engine:
    """An engine around a loaded model. `clock` in seconds."""
    model, dtype = loaded.model, loaded.dtype
    plan = plan_memory(
        model.layer_specs(),
        dtype.itemsize,
        model.max_model_len,
        loaded.weight_bytes,
        available_memory_bytes(),
        config,
    )
    served = served_model(loaded.source, plan, model.vocab_size, config)
    log_start(loaded, plan)
    memory = Memory(plan.cache_bytes, plan.block_bytes, plan.checkpoint_bytes)
    specs = model.layer_specs()
    cache = PrefixCache(
        memory,
        num_seqs=plan.num_seqs,
        retention=Retention(config.prefix_cache_retention_interval),
        enabled=config.enable_prefix_caching,
        policy=policy_named(config.prefix_cache_policy),
        num_ends=plan.num_ends,
        cuttable=cuttable(specs),
    )
    device = torch.device("cpu")
    pools = allocate_pools(specs, cache.num_blocks, cache.num_slots, cache.num_windows, dtype, device)
    memory.give_back = pools.give_back
    logger.info(caching_line(cache))
    if config.prefix_cache_policy != DEFAULT:
        logger.info("what goes first under pressure: policy %s, as asked", config.prefix_cache_policy)
    if config.prefix_cache_retention_interval is not None and not (cache.enabled and cache.has_states):
        why = "this model has no recurrent layers" if cache.enabled else "prefix caching is off"
        logger.warning("--prefix-cache-retention-interval changes nothing: %s", why)
    scheduler = Scheduler(
        cache,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=plan.num_seqs,
        policy=config.scheduling_policy,
    )
    decode = served.tokenizer.token_text if served.tokenizer else None
    replays = Replays(model, pools, plan.max_model_len)
    runner = Runner(model, pools, Sampler(served.eos_token_ids, decode), decode, replays)
    return Engine(served, scheduler, runner, Metrics(served.name), clock, random.Random(config.seed))


def served_model(source: ModelSource, plan: MemoryPlan, vocab_size: int, config: EngineConfig) -> ServedModel:
    eos = frozenset(source.eos_token_ids)
    tokenizer = Tokenizer(source.tokenizer, eos) if source.tokenizer else None
    if tokenizer is None:
        logger.warning("no tokenizer (%s): prompts must be token ids", source.tokenizer_problem)
    return ServedModel(
        name=config.served_model_name or config.model or source.path.stem,
        max_model_len=plan.max_model_len,
        vocab_size=vocab_size,
        hidden_size=_hidden_size(source.config),
        eos_token_ids=eos,
        tokenizer=tokenizer,
        chat_template=chat_template_of(source, config.chat_template),
        default_sampling=sampling_defaults(source, config.generation_config),
        grammars=Grammars(tokenizer, vocab_size) if tokenizer else None,
    )


def _hidden_size(config: Config) -> int:
    """Models that also see or hear have the language model's config in one of its own."""
    return int(require(config.get("text_config") or config, "hidden_size"))


def settle() -> None:
    """For a process that only serves: what is there once a model is loaded stays, and is never searched for garbage.
    That would take a tenth of a second, in the middle of some step."""
    gc.collect()
    gc.freeze()


def set_threads(num_threads: int | None) -> None:
    """Torch's and the kernels' one pool: as asked, as OMP_NUM_THREADS says, or one for each core we are given."""
    if num_threads is None and "OMP_NUM_THREADS" in os.environ:
        return
    torch.set_num_threads(num_threads or usable_cpus())


def log_start(loaded: LoadedModel, plan: MemoryPlan) -> None:
    logger.info(
        "model: %s, %s, %s of weights, %d threads",
        loaded.source.path,
        str(loaded.dtype).removeprefix("torch."),
        size(loaded.weight_bytes),
        torch.get_num_threads(),
    )
    for choice in loaded.ops:
        refused = "".join(f" ({backend}: {reason})" for backend, reason in choice.refused)
        logger.debug("op %s: %s%s", choice.op, choice.backend, refused)
    logger.info("exact: %s", exactness(loaded.ops))
    logger.info(plan.line())


def caching_line(cache: PrefixCache) -> str:
    """The start-up line: what is reused, from which places on, what is kept for it, and what that takes of how much."""
    if not cache.enabled:
        return "prefix caching: off, as asked"
    memory = cache.memory
    each = [f"{size(memory.block_bytes // BLOCK_SIZE)} a token"] if memory.block_bytes else []
    each += [f"{size(memory.checkpoint_bytes)} a state"] if memory.checkpoint_bytes else []
    room = f"{size(memory.limit_bytes)} at {' and '.join(each)}"
    if not cache.has_states:
        return f"prefix caching: on, prompts are resumed at each {BLOCK_SIZE} tokens; {room}"
    interval = cache.retention.interval
    kept = {None: f"every {CHUNK} tokens (dense)", 0: "only there"}.get(interval, f"every {interval} tokens")
    return (
        f"prefix caching: on, prompts are resumed at recurrent states, on a grid of {CHUNK} tokens; kept where "
        f"prompts, answers and messages end, where prompts part, at clients' breakpoints, and {kept}; under "
        f"pressure those go first that save least for their size; {room}"
    )


def chat_template_of(source: ModelSource, replacement: str | Path | None) -> ChatTemplate | None:
    """The model's, or what replaces it. ConfigError if that cannot be used; the model's own says so when it is."""
    stored = source.tokenizer
    own = stored.chat_template if stored else None
    template = own if replacement is None else chat_template_text(replacement)
    if template is None:
        return None
    made = ChatTemplate(template, stored.special_tokens if stored else {})
    if made.problem is None:
        return made
    if replacement is not None:
        name = "that was given" if "{" in str(replacement) else replacement
        raise ConfigError(f"the chat template {name} cannot be used: {made.problem}", "mend it, or leave it out")
    logger.warning("the model's %s (hint: give one with --chat-template FILE)", made.problem.removeprefix("the "))
    return made
