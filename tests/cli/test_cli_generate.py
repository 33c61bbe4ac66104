import pytest
from fake_engine import BOS, REPLY, failed_inside

from milepost.cli.answer import Answer, for_terminal
from milepost.cli.main import main
from milepost.sampling_params import RequestOutputKind


def run(args: list[str]) -> int:
    return main(["generate", *args])


def test_answer_and_statistics(loaded, capsys: pytest.CaptureFixture[str]):
    assert run(["--prompt", "Where?"]) == 0
    told = capsys.readouterr()
    assert told.out == REPLY + "\n"
    assert told.err.startswith(f"{len(REPLY.encode())} tokens, ")
    assert told.err.endswith(f"0 of {1 + len('Where?')} prompt tokens reused\n")
    assert loaded.engine.asked[-1][0]["prompt"] == "Where?"
    assert loaded.engine.shut_down
    (config,) = loaded.configs
    assert (config.model, config.dtype, config.chat_template) == (None, "auto", None)


def test_settings_arrive(loaded):
    settings = "--dtype float32 --max-model-len 1K --kv-cache-memory-bytes 1GiB --seed 7 --num-threads 1"
    sampling = "--max-tokens 5 --temperature 0 --top-p 0.5 --top-k 3 --min-p 0.1 --stop a --stop b --ignore-eos"
    assert run(["some/model", "--prompt", "x", *settings.split(), *sampling.split()]) == 0
    (config,) = loaded.configs
    assert (config.model, config.dtype, config.max_model_len) == ("some/model", "float32", 1024)
    assert (config.kv_cache_memory_bytes, config.seed, config.num_threads) == (2**30, 7, 1)
    params = loaded.engine.asked[-1][1]
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.min_p) == (5, 0.0, 0.5, 3, 0.1)
    assert (params.stops, params.ignore_eos, params.output_kind) == (("a", "b"), True, RequestOutputKind.DELTA)


def test_sampling_defaults_are_the_models(loaded):
    assert run(["--prompt", "x"]) == 0
    params = loaded.engine.asked[-1][1]
    assert (params.temperature, params.top_k, params.max_tokens) == (0.25, 7, 128)


def test_chat_template(loaded):
    assert run(["--prompt", "Where?", "--chat"]) == 0
    prompt = loaded.engine.asked[-1][0]
    assert prompt["prompt"] == "<user>Where?<assistant>"
    assert BOS not in prompt["prompt_token_ids"]


def test_no_chat_template(loaded, capsys: pytest.CaptureFixture[str]):
    loaded.engine.chat_template = None
    assert run(["--prompt", "Where?", "--chat"]) == 2
    assert "--chat-template" in capsys.readouterr().err
    assert loaded.engine.shut_down


def test_failure_inside(loaded, capsys: pytest.CaptureFixture[str]):
    loaded.engine.fail, loaded.engine.fail_after = failed_inside(), 3
    assert run(["--prompt", "x"]) == 2
    told = capsys.readouterr()
    assert told.out == "Caf"
    assert told.err == "error: the sampler failed\nhint: send it again\n"
    assert loaded.engine.shut_down


def test_statistics():
    answer = Answer("text", 100, 64, 11, 0.25, 1.25)
    assert answer.tokens_per_second == 10.0
    assert str(answer) == "11 tokens, 10.0 tok/s, first after 250 ms; 64 of 100 prompt tokens reused"
    assert Answer().tokens_per_second == 0.0


def test_a_models_text_does_not_steer_the_terminal():
    assert for_terminal("a\x1b[2Jb\x07\r\x9b1mc\n\té") == "a[2Jb1mc\n\té"
