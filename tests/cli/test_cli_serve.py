"""`milepost serve` as a process, with an engine that needs no model."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fake_engine import REPLY

from milepost.cli.main import main
from milepost.server.run import listen

COMMAND = """
import sys, types
sys.path.insert(0, sys.argv[1])
from fake_engine import FakeEngine
from milepost.errors import ModelError

def from_config(config, progress):
    progress(1, 2)
    if config.model == "missing":
        raise ModelError("no model at missing", "give a folder")
    if config.model == "defect":
        raise ZeroDivisionError("a defect")
    return FakeEngine()

module = types.ModuleType("milepost.engine.async_llm")
module.AsyncLLM = types.SimpleNamespace(from_config=from_config)
sys.modules[module.__name__] = module

from milepost.cli.main import main
sys.exit(main(["serve", *sys.argv[2:]]))
"""


@contextmanager
def process(*args: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    fakes = str(Path(__file__).parents[1] / "server")
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, fakes, *args],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | env,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def test_serves_until_a_signal():
    with process("--port", "0", "--served-model-name", "mine", MILEPOST_API_KEY="secret-key") as child:
        said = child.stdout.readline().split()
        assert said[:3] == ["Milepost", "serves", "mine"]
        url = said[-1]
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        assert httpx.get(f"{url}/v1/models").status_code == 401
        headers = {"Authorization": "Bearer secret-key"}
        body = {"model": "mine", "messages": [{"role": "user", "content": "private words"}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers).json()
        assert answer["choices"][0]["message"]["content"] == REPLY
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=30)
        assert (out, err, child.returncode) == ("", "", 0), "one line in all, and no user's text"


@pytest.mark.parametrize(
    ("model", "code", "told"),
    [
        ("missing", 2, "error: no model at missing\nhint: give a folder\n"),
        ("defect", 1, "ZeroDivisionError: a defect\n"),
    ],
)
def test_a_model_that_cannot_be_loaded(model: str, code: int, told: str):
    with process(model, "--port", "0") as child:
        out, err = child.communicate(timeout=30)
    assert (out, child.returncode) == ("", code)
    assert err.endswith(told)
    assert ("Traceback" in err) == (code == 1)


def test_port_in_use(loaded, capsys: pytest.CaptureFixture[str]):
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    told = capsys.readouterr()
    assert told.err == (
        f"error: cannot listen on 127.0.0.1 port {port}: Address already in use\n"
        "hint: choose another --port or --host\n"
    )
    assert loaded.configs == [], "nothing was loaded for it"


def test_settings_arrive(loaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    states = []

    def serve(state, sock, load, on_ready, tls) -> None:
        sock.close()
        assert tls is None
        states.append(state)
        load(state.loading)

    monkeypatch.setattr("milepost.server.run.serve", serve)
    template = tmp_path / "template.jinja"
    template.write_text("x")
    args = (
        "some/model --port 0 --dtype bfloat16 --max-model-len 32k --max-num-seqs 3 --max-num-batched-tokens 512 "
        "--kv-cache-memory-bytes 2GiB --seed 5 --served-model-name a --served-model-name b --no-enable-prefix-caching "
        f"--scheduling-policy priority --generation-config vllm --num-threads 2 --chat-template {template} "
        "--api-key k --api-key l --allowed-origins * --cache-scope global --operator-api-key boss "
        '--host 127.0.0.1 --allowed-hosts a.lan --allowed-headers ["x","y"] --max-num-queued-reqs 9 --disable-log-stats'
        f" --record {tmp_path}/trace"
    )
    assert main(["serve", *args.split()]) == 0
    (config,), (state,) = loaded.configs, states
    assert (config.model, config.dtype, config.max_model_len) == ("some/model", "bfloat16", 32_000)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.kv_cache_memory_bytes) == (3, 512, 2 * 2**30)
    assert (config.seed, config.served_model_name, config.enable_prefix_caching) == (5, "a", False)
    assert (config.scheduling_policy, config.generation_config, config.num_threads) == ("priority", "vllm", 2)
    assert (config.chat_template, config.disable_log_stats) == (str(template), True)
    assert state.settings.served_model_names == ("a", "b")
    assert (state.settings.api_keys, state.settings.allowed_origins) == (("k", "l"), ("*",))
    assert (state.settings.operator_api_key, state.settings.keys) == ("boss", ("k", "l", "boss"))
    assert (state.settings.cache_scope, state.settings.shares_within_tenant) == ("global", False)
    assert (state.settings.allowed_methods, state.settings.allowed_headers) == (("*",), ("x", "y"))
    assert (state.settings.allowed_hosts, state.settings.max_num_queued_reqs) == (("127.0.0.1", "a.lan"), 9)
    assert state.loaded_bytes == (1, 2)
    assert loaded.engine.recorded == f"{tmp_path}/trace"


@pytest.mark.parametrize(
    ("args", "model", "names"),
    [
        ("m --served-model-name a b", "m", ("a", "b")),
        ("--served-model-name a b --seed 1", None, ("a", "b")),
        ("m --served-model-name a b --seed 1 --served-model-name c", "m", ("a", "b", "c")),
        ("--served-model-name=a m", "m", ("a",)),
        ("m --served-model-name a", "m", ("a",)),
        ("--seed 1 m", "m", ()),
    ],
)
def test_names_of_the_model(loaded, monkeypatch: pytest.MonkeyPatch, args: str, model: str | None, names: tuple):
    """As vLLM takes them, all that follow one flag; or the flag once for each."""
    states = []

    def serve(state, sock, load, on_ready, tls) -> None:
        sock.close()
        states.append(state)
        load(state.loading)

    monkeypatch.setattr("milepost.server.run.serve", serve)
    assert main(["serve", "--port", "0", *args.split()]) == 0
    assert (loaded.configs[0].model, states[0].settings.served_model_names) == (model, names)


def test_a_flag_that_takes_several_names_needs_one(loaded, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--served-model-name"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert loaded.configs == []


def test_a_certificate_that_cannot_be_read_is_told_before_loading(loaded, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--port", "0", "--ssl-certfile", "/no/such/file"]) == 2
    assert "error: --ssl-certfile /no/such/file cannot be read: No such file" in capsys.readouterr().err
    assert loaded.configs == []


def test_a_recording_that_cannot_be_written_is_told_before_loading(loaded, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--port", "0", "--record", "/no/such/folder/trace"]) == 2
    told = capsys.readouterr().err
    assert "error: --record cannot write to /no/such/folder/trace: No such file or directory\nhint: give a file" in told
    assert loaded.configs == []


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--cache-scope", "mine"], "error: --cache-scope cannot be 'mine'\nhint: one of: tenant, global\n"),
        (["--cache-scope", "tenant"], "hint: give each an --api-key, or leave --cache-scope out\n"),
    ],
)
def test_a_cache_scope_that_cannot_be(loaded, args: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--port", "0", *args]) == 2
    assert told in capsys.readouterr().err
    assert loaded.configs == []


def test_the_secret_is_kept_between_servers(tmp_path: Path):
    secrets = []
    for _ in range(2):
        with process("--port", "0", XDG_CONFIG_HOME=str(tmp_path)) as child:
            assert child.stdout.readline()
            secrets.append((tmp_path / "milepost" / "secret").read_bytes())
    assert secrets[0] == secrets[1]


def test_a_secret_that_cannot_be_kept_costs_one_line(tmp_path: Path):
    (tmp_path / "milepost").write_text("in the way")
    with process("--port", "0", XDG_CONFIG_HOME=str(tmp_path)) as child:
        assert child.stdout.readline().startswith("Milepost serves")
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=30)
    assert len(err.splitlines()) == 1
    assert "WARNING the secret that names cache scopes cannot be used" in err
    assert "hint: " in err


def test_prompts_are_computed_and_pinned_before_it_serves(tmp_path: Path):
    (tmp_path / "chat.json").write_text('[{"role": "system", "content": "private words"}]')
    (tmp_path / "plain.txt").write_text("more private words")
    files = ("--prewarm", str(tmp_path / "chat.json"), "--prewarm", str(tmp_path / "plain.txt"))
    with process("--port", "0", *files) as child:
        url = child.stdout.readline().split()[-1]
        pinned = httpx.get(f"{url}/cache/prefixes").json()["data"]
        assert [prefix["num_tokens"] for prefix in pinned] == [21, 19]
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=30)
    told = err.splitlines()
    assert len(told) == 2
    for line, name in zip(told, ("chat.json", "plain.txt"), strict=True):
        assert f"prewarm: {tmp_path / name}: " in line
        assert "private" not in line


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "error: no file at {file}\nhint: give a file of text or of JSON messages"),
        ('{"messages": [{"role": 5}]}', "error: --prewarm {file}: messages.0.role: "),
        (
            '{"prompt": "x", "pin": false}',
            "error: --prewarm {file}: pin is false, and --prewarm pins\nhint: leave pin out",
        ),
    ],
)
def test_a_prefix_that_cannot_be_read(
    loaded, tmp_path: Path, content: str | None, told: str, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "prefix.json"
    if content is not None:
        file.write_text(content)
    assert main(["serve", "--port", "0", "--prewarm", str(file)]) == 2
    assert told.format(file=file) in capsys.readouterr().err
    assert loaded.configs == [], "nothing was loaded for it"


def test_a_prefix_that_cannot_be_pinned_ends_the_start(tmp_path: Path):
    file = tmp_path / "prefix.txt"
    file.write_text("x" * 240)
    with process("--port", "0", "--prewarm", str(file)) as child:
        out, err = child.communicate(timeout=30)
    assert (out, child.returncode) == ("", 2)
    told = f"error: --prewarm {file}: pinning is too much\nhint: shorten it, or leave out a --prewarm"
    assert err.startswith(told)


def test_prewarming_needs_a_cache(loaded, capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--port", "0", "--prewarm", "-", "--no-enable-prefix-caching"]) == 2
    assert "--prewarm needs prefix caching" in capsys.readouterr().err
