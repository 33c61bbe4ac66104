"""From messages and fields to states that are kept, in an engine of a recurrent model that keeps no others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chat_templates
import pytest
import torch
import transformers
from tiny_engine import drain
from toy_tokenizers import byte_level

from milepost.config import EngineConfig
from milepost.engine.build import assemble
from milepost.engine.chat import ChatTemplate
from milepost.engine.engine import Engine
from milepost.engine.inputs import Prompt, chat_prompt, read_prompt
from milepost.errors import RequestError
from milepost.models.loader.load import LoadedModel, load_model
from milepost.models.loader.random_weights import random_source
from milepost.outputs import RequestOutput
from milepost.sampling_params import SamplingParams

SHORT = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
SYSTEM = {"role": "system", "content": "You are brief. " * 20}

Ask = Callable[[Prompt], RequestOutput]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    config = transformers.Mamba2Config(
        hidden_size=32, num_hidden_layers=1, vocab_size=300, num_heads=4, head_dim=16, state_size=8, n_groups=1
    )
    return load_model(random_source(config.to_dict()), torch.float32)


@pytest.fixture
def engine(loaded: LoadedModel) -> Engine:
    config = EngineConfig(kv_cache_memory_bytes=2**26, max_model_len=8192, prefix_cache_retention_interval=0)
    engine = assemble(loaded, config)
    template = ChatTemplate(chat_templates.CHATML)
    engine.model = dataclasses.replace(engine.model, tokenizer=byte_level(), chat_template=template)
    return engine


@pytest.fixture
def ask(engine: Engine) -> Ask:
    def ask(prompt: Prompt) -> RequestOutput:
        engine.add("request", read_prompt(prompt, engine.model), SHORT)
        return drain(engine)["request"]

    return ask


def chat(*messages: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    return chat_prompt(ChatTemplate(chat_templates.CHATML), byte_level(), messages, **options)


def said(role: str, text: Any) -> dict[str, Any]:
    return {"role": role, "content": text}


def num_shared(one: Mapping[str, Sequence[int]], other: Mapping[str, Sequence[int]]) -> int:
    pairs = zip(one["prompt_token_ids"], other["prompt_token_ids"], strict=False)
    return next(i for i, (left, right) in enumerate(pairs) if left != right)


def test_an_edited_last_message_resumes_where_it_began(ask: Ask) -> None:
    before = [SYSTEM, said("user", "What is it? " * 20), said("assistant", "That. " * 30)]
    first, second = (chat(*before, said("user", text * 50)) for text in ("Why? ", "How so? "))
    assert ask(first).num_cached_tokens == 0
    shared = num_shared(first, second)
    assert ask(second).num_cached_tokens == shared // 64 * 64 > 500


def test_another_conversation_with_the_same_system_message_resumes_behind_it(ask: Ask) -> None:
    first, second = (chat(SYSTEM, said("user", text * 50)) for text in ("Why? ", "How so? "))
    ask(first)
    assert ask(second).num_cached_tokens == num_shared(first, second) // 64 * 64 > 250


def test_a_part_that_a_client_marked_is_resumed(ask: Ask, engine: Engine) -> None:
    document = {"type": "text", "text": "A long document. " * 30, "cache_control": {"type": "ephemeral"}}
    first, second = (chat(said("user", [document, text * 50])) for text in ("Why? ", "How so? "))
    ask(first)
    assert ask(second).num_cached_tokens == num_shared(first, second) // 64 * 64 > 400
    assert engine.scheduler.cache.stats.resumed_from == {"breakpoint": 1}


def test_of_token_ids_the_caller_says_it(ask: Ask) -> None:
    ids = list(range(256))
    for named, resumed in ([], 0), ([200], 192):
        shift = len(named)  # so that neither text begins like the other
        ask({"prompt_token_ids": ids[shift:] * 3, "cache_breakpoints": named})
        assert ask({"prompt_token_ids": [*ids[shift : 200 + shift], 7, 7, 7]}).num_cached_tokens == resumed


def test_text_may_have_named_places_too(engine: Engine) -> None:
    tokens = read_prompt({"prompt": "the end", "cache_breakpoints": [2]}, engine.model)
    assert tokens.places.breakpoints == (2,)
    assert tokens.ids == byte_level().encode("the end")


def test_named_places_beside_those_of_a_chat(engine: Engine) -> None:
    prompt = chat(SYSTEM, said("user", [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]))
    (marked,) = prompt["places"].breakpoints
    places = read_prompt({**prompt, "cache_breakpoints": [64]}, engine.model).places
    assert places.breakpoints == (64, marked)
    assert places.boundaries == prompt["places"].boundaries


def test_a_place_outside_the_prompt_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match="outside the prompt") as caught:
        read_prompt({"prompt_token_ids": [1, 2, 3], "cache_breakpoints": [4]}, engine.model)
    assert caught.value.hint == "this prompt has places 1 to 3"
