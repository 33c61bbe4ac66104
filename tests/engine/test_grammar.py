"""Grammars: whatever a model says, the answer keeps them, and nobody else notices."""

import dataclasses
import json
import random
import re
import sys
import threading
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers
import torch
from tiny_engine import TINY, add, drain, tokens
from toy_tokenizers import TOYS, byte_level, sentencepiece, smollm2

from milepost.config import EngineConfig
from milepost.engine import grammar, grammars
from milepost.engine.build import assemble
from milepost.engine.engine import Engine
from milepost.engine.grammars import CompiledGrammar, Grammars
from milepost.engine.sampler import Sampled, Sampler
from milepost.engine.tokenizer import Tokenizer
from milepost.errors import RequestError
from milepost.models.loader.load import LoadedModel, load_model
from milepost.models.loader.random_weights import random_source
from milepost.models.loader.source import TokenizerSource
from milepost.outputs import RequestOutput
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams
from milepost.specs import kv_block_bytes
from milepost.structured_outputs import CallForm, StructuredOutputsParams, ToolCalls

VOCAB = 300  # wider than the tokenizer's

TEXT = {"type": "string", "maxLength": 4}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "label": TEXT},
    "required": ["x", "label"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "object": POINT,
    "optional": {"type": "object", "properties": {"a": TEXT, "b": {"type": "null"}}, "additionalProperties": False},
    "array": {"type": "array", "items": POINT, "minItems": 1, "maxItems": 2},
    "tuple": {"type": "array", "prefixItems": [{"type": "boolean"}, TEXT], "items": False, "minItems": 2},
    "any of": {"anyOf": [{"type": "integer", "minimum": 3, "maximum": 300}, {"type": "boolean"}, {"type": "null"}]},
    "enum": {"enum": ["red", "green", 7, None, ["x"], {"deep": [1]}, "é\"\\\n"]},
    "range": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    "pattern": {"type": "string", "pattern": "^[a-f]{2}-[0-9]{1,3}$"},
    "format": {"type": "string", "format": "date"},
    "ref": {
        "$defs": {"node": {"type": "object", "properties": {"v": {"$ref": "#/$defs/leaf"}}, "required": ["v"],
                           "additionalProperties": False}, "leaf": {"enum": [1, 2]}},
        "$ref": "#/$defs/node",
    },
    "all of": {"allOf": [{"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
                         {"properties": {"b": {"type": "boolean"}}, "required": ["b"], "unknown word": 1}],
               "additionalProperties": False, "properties": {"a": {}, "b": {}}},
    "one of": {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "boolean"}]},
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """A random llama with a byte-level tokenizer."""
    toy = byte_level()
    source = random_source({**TINY, "vocab_size": VOCAB, "max_position_embeddings": 512})
    backend = tokenizers.Tokenizer.from_str(toy.to_json())
    source = dataclasses.replace(
        source, tokenizer=TokenizerSource(backend), generation_config={"eos_token_id": toy.added_tokens["</s>"]}
    )
    return load_model(source, torch.float32)


def engine_of(model: LoadedModel, num_blocks: int = 200, **settings: Any) -> Engine:
    kv_bytes = num_blocks * kv_block_bytes(model.model.layer_specs(), 4)
    ticks = iter(range(10**9))
    config = EngineConfig(kv_cache_memory_bytes=kv_bytes, **settings)
    return assemble(model, config, clock=lambda: float(next(ticks)))


@pytest.fixture(scope="module")
def engine(model: LoadedModel) -> Engine:
    return engine_of(model)


def keeping(seed: int = 0, *, max_tokens: int = 200, **asked: Any) -> SamplingParams:
    kept = {name: asked.pop(name) for name in list(asked) if name in StructuredOutputsParams.__dataclass_fields__}
    return SamplingParams(max_tokens=max_tokens, seed=seed, structured_outputs=StructuredOutputsParams(**kept), **asked)


def answers(engine: Engine, *params: SamplingParams) -> list[RequestOutput]:
    for i, wanted in enumerate(params):
        add(engine, str(i), [1 + i, 2, 3], wanted)
    done = drain(engine)
    return [done[str(i)] for i in range(len(params))]


def text_of(output: RequestOutput) -> str:
    assert output.error is None, output.error
    return output.outputs[0].text


# What a random model says


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_random_models_answers_validate(engine: Engine, name: str) -> None:
    schema = SCHEMAS[name]
    for output in answers(
        engine, *(keeping(seed, json=schema) for seed in range(6)), keeping(json=schema, temperature=0)
    ):
        assert output.outputs[0].finish_reason == "stop", text_of(output)
        jsonschema.validate(json.loads(text_of(output)), schema)


def test_json_objects_and_schemas_as_text(engine: Engine) -> None:
    bias = {byte_level().encode('"')[0]: 4.0, byte_level().encode("}")[0]: 4.0}  # ends before the context does
    for output in answers(
        engine, *(keeping(seed, json_object=True, logit_bias=bias, max_tokens=400) for seed in range(4))
    ):
        assert output.outputs[0].finish_reason == "stop"
        assert isinstance(json.loads(text_of(output)), dict)
    (output,) = answers(engine, keeping(json=json.dumps(SCHEMAS["object"])))
    jsonschema.validate(json.loads(text_of(output)), SCHEMAS["object"])


def test_regexes_choices_and_grammars(engine: Engine) -> None:
    choices = ["yes", "no", 'a "quoted"\n line\\', "日本 😀", "yes and no"]
    for output in answers(engine, *(keeping(seed, choice=choices) for seed in range(8))):
        assert text_of(output) in choices
    for output in answers(engine, *(keeping(seed, regex=r"[a-c]{3}/\d+\.(x|yy)") for seed in range(4))):
        assert re.fullmatch(r"[a-c]{3}/[0-9]+\.(x|yy)", text_of(output))
    lark = 'start: "(" inner ")"\ninner: /[0-9]{1,2}/ | start'
    gbnf = 'root ::= "<" [a-z]{2,4} ">"'
    first, second = answers(engine, keeping(grammar=lark), keeping(grammar=gbnf))
    assert re.fullmatch(r"\(+[0-9]{1,2}\)+", text_of(first))
    assert text_of(first).count("(") == text_of(first).count(")")
    assert re.fullmatch("<[a-z]{2,4}>", text_of(second))


def test_whitespace_is_bounded_unless_asked(engine: Engine) -> None:
    space = {byte_level().encode(text)[0]: 100.0 for text in (" ", "\n", "\t")}
    asked = {"json": SCHEMAS["object"], "logit_bias": space}
    bounded, none, other = answers(
        engine,
        keeping(**asked),
        keeping(**asked, disable_any_whitespace=True),
        keeping(**asked, whitespace_pattern="[ ]{0,3}"),
    )
    for output in (bounded, none, other):
        jsonschema.validate(json.loads(text_of(output)), SCHEMAS["object"])
    outside = [re.sub(r'"[^"]*"', '""', text_of(output)) for output in (bounded, none, other)]
    assert re.search(r"\s", outside[0])
    assert not re.search(r"\s", outside[1])
    assert "   " in outside[2]
    assert "    " not in outside[2]
    assert "\n" not in outside[2]


def test_a_complete_answer_ends_at_once_with_its_last_token(engine: Engine) -> None:
    for extra in ({}, {"min_tokens": 50}, {"ignore_eos": True}, {"skip_special_tokens": False}):
        (output,) = answers(engine, keeping(choice=["ab"], **extra))
        sample = output.outputs[0]
        assert (sample.text, sample.finish_reason, sample.stop_reason) == ("ab", "stop", None)
        assert len(sample.token_ids) == 2, "no end token is needed"


def test_an_answer_that_could_go_on_ends_with_an_end_token(engine: Engine) -> None:
    eos = byte_level().added_tokens["</s>"]
    for extra in ({}, {"ignore_eos": True}):
        (output,) = answers(engine, keeping(regex="a+", logit_bias={eos: 100.0}, **extra))
        sample = output.outputs[0]
        assert (sample.text, sample.finish_reason) == ("a", "stop")
        assert sample.token_ids[-1] == eos


def test_length_and_stop_strings_still_end_answers(engine: Engine) -> None:
    cut, stopped = answers(engine, keeping(regex="[ab]{50}", max_tokens=7), keeping(regex="a{3}b{9}", stop="abb"))
    assert (len(text_of(cut)), cut.outputs[0].finish_reason) == (7, "length")
    assert text_of(stopped) == "aa"
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", "abb")


def test_each_sample_has_a_matcher_of_its_own(engine: Engine) -> None:
    (output,) = answers(engine, keeping(json=SCHEMAS["object"], n=6))
    texts = [sample.text for sample in output.outputs]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMAS["object"])
    assert len(set(texts)) > 1


def test_log_probabilities_are_of_what_the_grammar_leaves(engine: Engine) -> None:
    (output,) = answers(engine, keeping(choice=["a", "b"], logprobs=3))
    (first,) = output.outputs[0].logprobs or []
    told = {byte_level().token_text(token): entry.logprob for token, entry in first.items()}
    assert np.exp(told["a"]) + np.exp(told["b"]) == pytest.approx(1.0)
    assert [value for text, value in told.items() if text not in ("a", "b")] == [-np.inf]


# Thinking, and calls of tools

TOOLS = {"weather": POINT, "now": None}
TOOL_BIAS = {byte_level().encode(text)[0]: 5.0 for text in '"}'}
HERMES = CallForm(before='<s>\n{"name": "', after="}\n<tool call>")


def calls_in(text: str, begin: str, end: str) -> list[dict[str, Any]]:
    assert text.startswith(begin)
    assert text.endswith(end)
    return [json.loads(call.strip().removesuffix(end)) for call in text.split(begin)[1:]]


def test_tools_that_must_be_called(engine: Engine) -> None:
    asked: dict[str, Any] = {"skip_special_tokens": False, "max_tokens": 400, "logit_bias": TOOL_BIAS}
    for output in answers(
        engine, *(keeping(seed, tool_calls=ToolCalls(TOOLS, HERMES, 2), **asked) for seed in range(5))
    ):
        assert output.outputs[0].finish_reason == "stop"
        calls = calls_in(text_of(output), "<s>", "<tool call>")
        assert len(calls) <= 2
        for call in calls:
            assert set(call) == {"name", "arguments"}
            jsonschema.validate(call["arguments"], TOOLS[call["name"]] or {"type": "object"})
        added = byte_level().added_tokens
        assert output.outputs[0].token_ids[0] == added["<s>"], "special tokens stand for themselves"
        assert list(output.outputs[0].token_ids).count(added["<tool call>"]) == len(calls)


def test_one_named_tool_in_bare_json(engine: Engine) -> None:
    for output in answers(
        engine, *(keeping(s, tool_calls=ToolCalls({"weather": POINT}, max_calls=1)) for s in range(4))
    ):
        call = json.loads(text_of(output))
        assert call["name"] == "weather"
        jsonschema.validate(call["arguments"], POINT)


@pytest.mark.parametrize("end", ["</think>", "<s>"])
def test_all_is_free_up_to_the_end_of_thinking(engine: Engine, end: str) -> None:
    """Both as a text that tokens spell and as a token of its own."""
    compiled = made(byte_level(), regex="[0-9]{2}", after=end)
    for thought in ("", "hm {} 12", "so\n<b>"):
        assert accepts(compiled, byte_level(), f"{thought}{end}42")
        assert accepts(compiled, byte_level(), f"{thought}{end}\n\n42")
        assert not accepts(compiled, byte_level(), f"{thought}{end}4")
        assert not accepts(compiled, byte_level(), f"{thought}{end}x")


# Any tokenizer


def made(tokenizer: Tokenizer, vocab_size: int = 0, **asked: Any) -> CompiledGrammar:
    return Grammars(tokenizer, vocab_size).compile(StructuredOutputsParams(**asked)).result(60)


def bits(mask: bytes) -> list[int]:
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist()


def accepts(compiled: CompiledGrammar, tokenizer: Tokenizer, text: str) -> bool:
    """Whether `text` may be said, and nothing after it."""
    constraint, complete = compiled.start(), False
    said: list[int] = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        if complete or token not in bits(constraint.allowed(said)):
            return False
        complete = constraint.take(token)
        said.append(token)
    return complete


def walk(compiled: CompiledGrammar, eos: frozenset[int], seed: int) -> list[int]:
    """A random model without a model: any allowed token, mostly not the end token."""
    rng, constraint = random.Random(seed), compiled.start()
    said: list[int] = []
    while True:
        token = rng.choice(bits(constraint.allowed(said)))
        complete = constraint.take(token)
        if token in eos:
            return said
        said.append(token)
        if complete:
            return said


@pytest.mark.parametrize("make", [byte_level, sentencepiece, smollm2], ids=lambda make: make.__name__)
def test_answers_in_any_tokens(make: Any) -> None:
    tokenizer: Tokenizer = make()
    compiler = Grammars(tokenizer, tokenizer.vocab_size + 50)
    for name, schema in SCHEMAS.items():
        compiled = compiler.compile(StructuredOutputsParams(json=schema)).result(60)
        for seed in range(3):
            said = walk(compiled, tokenizer.eos_token_ids, seed)
            jsonschema.validate(json.loads(tokenizer.decode(said)), schema), name


@pytest.mark.parametrize("name", set(TOYS) - {"byte level", "sentencepiece"})
def test_tokenizers_of_unknown_kinds_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="cannot be kept with this model's tokenizer"):
        made(TOYS[name](), regex="a")


def test_a_model_without_an_end_token() -> None:
    toy = byte_level()
    backend = tokenizers.Tokenizer.from_str(toy.to_json())
    without = Tokenizer(TokenizerSource(backend))
    assert accepts(made(without, regex="ab"), without, "ab")


# What cannot be kept

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"json": {"type": "array", "uniqueItems": True}}, r'unsupported keywords: \["uniqueItems"\]'),
    ({"json": {"properties": {"a": {"not": {}}}, "required": ["a"], "x-guidance": {"lenient": True}}}, r'\["not"\]'),
    ({"json": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}}, "oneOf"),
    ({"json": {"type": "string", "format": "colour"}}, "Unknown format: colour"),
    ({"json": {"$ref": "https://example.com/schema"}}, "https://example.com/schema"),
    ({"json": {"type": "strnig"}}, "Invalid type: strnig"),
    ({"json": False}, "Unsatisfiable"),
    ({"json": "{"}, "no JSON"),
    ({"json": "[1]"}, "a JSON schema is an object"),
    ({"json": "[" * 100_000}, "no JSON"),
    ({"json": {"enum": ["x" * 200_000]}}, "too long"),
    ({"grammar": 'start: "a"' + "\n" * 40_000}, "at most 32768"),
    ({"tool_calls": ToolCalls({"f": {"enum": ["x" * 200_000]}})}, "at most 131072"),
    ({"regex": "(a"}, "unclosed group"),
    ({"json": {"type": "string", "pattern": "(a"}}, "unclosed group"),
    ({"regex": r"(?=a)b"}, "look-around"),
    ({"grammar": "start: nothing"}, "unknown name"),
    ({"grammar": "?"}, "neither Lark's nor GBNF"),
    ({"tool_calls": ToolCalls({"f": {"properties": {"a": {"uniqueItems": True, "type": "array"}}}})}, "uniqueItems"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "told"), REFUSED, ids=[f"{told[:20]}-{i}" for i, (_, told) in enumerate(REFUSED)])
def test_what_cannot_be_kept_is_refused(engine: Engine, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestError, match=told) as caught:
        add(engine, "x", [1], keeping(param="response_format", **asked))
    assert (caught.value.status, caught.value.param) == (400, "response_format")
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert not engine.has_work


CONTRADICTIONS: list[dict[str, Any]] = [
    {},
    {"json": {}, "regex": "a"},
    {"json": 3},
    {"json_object": False},
    {"json_object": 1},
    {"regex": 3},
    {"grammar": ["a"]},
    {"choice": []},
    {"choice": "ab"},
    {"choice": [1]},
    {"regex": "a", "whitespace_pattern": 3},
    {"regex": "a", "after": 1},
    {"json": {}, "disable_any_whitespace": "no"},
]


@pytest.mark.parametrize("asked", CONTRADICTIONS, ids=str)
def test_fields_that_contradict(asked: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        StructuredOutputsParams(**asked)
    assert caught.value.param == "structured_outputs"


def test_sampling_params_take_nothing_else() -> None:
    with pytest.raises(RequestError, match="StructuredOutputsParams"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_definitions_that_nest_deeply_do_not_end_the_process(engine: Engine) -> None:
    """Each is a step of llguidance's recursion; the usual stack holds some hundreds."""
    chain = {f"{i:x}": {"items": {"$ref": f"#/$defs/{i + 1:x}"}} for i in range(3000)} | {f"{3000:x}": {}}
    assert engine.model.grammars is not None
    compiled = engine.model.grammars.compile(StructuredOutputsParams(json={"$defs": chain, "$ref": "#/$defs/0"}))
    assert bits(compiled.result(60).start().allowed([]))


def test_a_missing_package_is_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match="llguidance, which cannot be imported") as caught:
        add(engine, "x", [1], keeping(regex="a"))
    assert "pip install llguidance" in caught.value.hint


# Neighbours, preemption, failures


def free(seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=40, seed=seed, logprobs=2, ignore_eos=True)


def test_neighbours_draw_the_same_tokens(model: LoadedModel) -> None:
    alone, beside = engine_of(model), engine_of(model)
    for engine in (alone, beside):
        for i in range(3):
            add(engine, f"free {i}", [5, 6 + i], free(i))
    for i, schema in enumerate(SCHEMAS.values()):
        add(beside, f"kept {i}", [5, 6, i], keeping(i, json=schema))
    expected, got = drain(alone), drain(beside)
    for i in range(3):
        assert tokens(got[f"free {i}"]) == tokens(expected[f"free {i}"])
        assert got[f"free {i}"].outputs[0].logprobs == expected[f"free {i}"].outputs[0].logprobs


def test_a_matcher_that_fails_ends_its_request_alone(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(model)
    add(engine, "free", [5, 6], free(0))
    expected = drain(engine)["free"]
    add(engine, "free", [5, 6], free(0))
    add(engine, "bad", [5, 6], keeping(regex="[a-z]{100}"))
    add(engine, "good", [5, 7], keeping(regex="[a-z]{20}"))
    for _ in range(5):
        engine.step()
    constraint = engine.requests["bad"].samples[0].seq.constraint
    assert constraint is not None
    with pytest.raises(RequestError, match="the grammar cannot go on"):
        constraint.take(byte_level().encode("9")[0])
    done = drain(engine)
    assert done["bad"].outputs[0].finish_reason == "error"
    assert isinstance(done["bad"].error, RequestError)
    assert tokens(done["free"]) == tokens(expected)
    assert re.fullmatch("[a-z]{20}", text_of(done["good"]))


def test_preemption_and_resumption(model: LoadedModel) -> None:
    """Long answers in too little memory: some are put off and computed again, and say what they would have said."""
    asked = [keeping(seed, regex="[a-z]{120}", max_tokens=200) for seed in range(4)]
    roomy, tight = engine_of(model), engine_of(model, num_blocks=20, enable_prefix_caching=False)
    expected, got = answers(roomy, *asked), answers(tight, *asked)
    assert sum(output.metrics.num_preemptions for output in got if output.metrics) > 0
    for one, other in zip(expected, got, strict=True):
        assert re.fullmatch("[a-z]{120}", text_of(other))
        assert tokens(one) == tokens(other)


def test_a_constraint_follows_the_tokens_it_is_given() -> None:
    compiled = made(byte_level(), regex="abc[de]")
    ids = byte_level().encode("abcd")
    stepwise, at_once = compiled.start(), compiled.start()
    for i, token in enumerate(ids[:-1]):
        assert token in bits(stepwise.allowed(ids[:i]))
        assert not stepwise.take(token)
    assert stepwise.allowed(ids[:3]) == at_once.allowed(ids[:3])
    assert stepwise.allowed(ids[:1]) == compiled.start().allowed(ids[:1]), "tokens that were taken back"
    assert stepwise.allowed(ids[:3]) == at_once.allowed(ids[:3])
    assert at_once.take(ids[-1])


def test_the_sampler_leaves_logits_as_they_are() -> None:
    seq = Sequence("r", [1], 1, SamplingParams(temperature=0), constraint=made(byte_level(), VOCAB, regex="a").start())
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    (drawn,) = Sampler([263]).sample(logits, [seq])
    assert isinstance(drawn, Sampled)
    assert (drawn.token_id, drawn.complete) == (byte_level().encode("a")[0], True)
    assert torch.equal(logits, before)


# Compiled once, and kept within bounds


@pytest.fixture
def compiler() -> Grammars:
    return Grammars(byte_level(), VOCAB)


def test_compiled_once(compiler: Grammars) -> None:
    first = compiler.compile(StructuredOutputsParams(json=POINT))
    assert compiler.compile(StructuredOutputsParams(json=json.dumps(POINT), param="guided_json")) is first
    assert compiler.compile(StructuredOutputsParams(json=POINT, disable_any_whitespace=True)) is not first


def test_what_failed_is_tried_again(compiler: Grammars) -> None:
    first = compiler.compile(StructuredOutputsParams(regex="("))
    assert first.exception(60)
    assert compiler.compile(StructuredOutputsParams(regex="(")) is not first


def test_the_least_used_go_first(compiler: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_KEPT", 3)
    asked = [StructuredOutputsParams(regex=f"a{i}") for i in range(4)]
    made = [compiler.compile(one) for one in asked[:3]]
    assert compiler.compile(asked[0]) is made[0]
    compiler.compile(asked[3])
    assert compiler.compile(asked[0]) is made[0]
    assert compiler.compile(asked[1]) is not made[1]


def test_large_ones_are_few(compiler: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_KEPT_CHARS", 3000)
    first = compiler.compile(StructuredOutputsParams(regex="a" * 1000))
    second = compiler.compile(StructuredOutputsParams(regex="b" * 1000))
    compiler.compile(StructuredOutputsParams(regex="c" * 1000))
    assert compiler.compile(StructuredOutputsParams(regex="b" * 1000)) is second
    assert compiler.compile(StructuredOutputsParams(regex="a" * 1000)) is not first


def test_the_line_is_bounded(compiler: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_WAITING", 2)
    gate = threading.Event()
    with compiler._lock:
        held = compiler._submit(lambda: gate.wait() and None)  # type: ignore[arg-type,return-value]
    while compiler._num_waiting:
        pass
    made = [compiler.compile(StructuredOutputsParams(regex=f"a{i}")) for i in range(2)]
    with pytest.raises(RequestError, match="wait to be compiled") as caught:
        compiler.compile(StructuredOutputsParams(regex="a2"))
    assert caught.value.status == 429
    assert compiler.compile(StructuredOutputsParams(regex="a0")) is made[0], "what is in line already is no more"
    gate.set()
    held.result(60)
    assert all(future.result(60) for future in made)
    assert compiler.compile(StructuredOutputsParams(regex="a2")).result(60)


def test_literals_keep_special_tokens_apart() -> None:
    special = {"<t>": 7, "<t>x": 8}
    assert grammar.literal('<t>\n{"a"', special) == '<[7]> "\\n{\\"a\\""'
    assert grammar.literal("<t>x<t>", special) == "<[8]> <[7]>"
    assert grammar.literal("", special) == ""
