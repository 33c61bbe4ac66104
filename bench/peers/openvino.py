"""OpenVINO GenAI. Options: backend=SDPA for its pipeline of one request at a time, else continuous batching."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

from bench.peers.child import Prompts, Runs, Settings, main


def properties(settings: Settings) -> dict[str, Any]:
    return {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": settings.threads}


def vocab_size(settings: Settings) -> int:
    return int(json.loads((settings.model / "config.json").read_text())["vocab_size"])


def about(settings: Settings) -> dict[str, Any]:
    return {"version": openvino_genai.__version__, "threads": settings.threads}


def answer_of(num_tokens: int) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


class Continuous:
    """The pipeline behind its server: requests join and leave between steps."""

    def __init__(self, settings: Settings) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = settings.prefix_caching
        scheduler.max_num_batched_tokens = int(settings.options.get("max_num_batched_tokens", 2048))
        scheduler.cache_size = int(settings.options.get("cache_gb", 4))
        scheduler.max_num_seqs = int(settings.options.get("max_num_seqs", 16))  # each has a recurrent state reserved
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(settings.model), scheduler_config=scheduler, device="CPU", properties=properties(settings)
        )
        self.about = about(settings)
        self.cached: int | None = None
        self._handles: dict[int, Any] = {}

    def add(self, number: int, ids: list[int], max_tokens: int) -> None:
        prompt = openvino.Tensor(np.array([ids], dtype=np.int64))
        self._handles[number] = self.pipeline.add_request(number, prompt, answer_of(max_tokens))

    def step(self) -> list[int]:
        self.pipeline.step()
        drawn: list[int] = []
        for number, handle in list(self._handles.items()):
            while handle.can_read():
                for output in handle.read().values():
                    drawn += [number] * len(output.generated_ids)
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING and not handle.can_read():
                del self._handles[number]
        return drawn

    def busy(self) -> bool:
        return self.pipeline.has_non_finished_requests()


class OneByOne:
    """The pipeline of one request at a time, over the stateful model."""

    def __init__(self, settings: Settings) -> None:
        self.pipeline = openvino_genai.LLMPipeline(
            str(settings.model), "CPU", ATTENTION_BACKEND="SDPA", **properties(settings)
        )
        self.prompts, self.about = Prompts(vocab_size(settings)), about(settings)

    def prefill(self, tokens: int) -> dict[str, Any]:
        ids = self.prompts.fresh(tokens)
        start = time.perf_counter()
        self._generate(ids, 1, lambda _: None)
        return {"seconds": time.perf_counter() - start, "work": tokens}

    def decode(self, batch: int, prompt: int, tokens: int) -> dict[str, Any]:
        if batch > 1:
            return {"error": "it has no such thing"}
        times: list[float] = []
        self._generate(self.prompts.fresh(prompt), tokens + 1, lambda _: times.append(time.perf_counter()))
        return {"seconds": times[-1] - times[0], "work": len(times) - 1}

    def _generate(self, ids: list[int], num_tokens: int, tell: Any) -> None:
        prompt = openvino.Tensor(np.array([ids], dtype=np.int64))
        self.pipeline.generate(prompt, answer_of(num_tokens), Streamer(tell))


class Streamer(openvino_genai.StreamerBase):  # type: ignore[misc]
    """Told of each token as it is drawn."""

    def __init__(self, tell: Any) -> None:
        super().__init__()
        self.tell = tell

    def write(self, token: int | list[int]) -> openvino_genai.StreamingStatus:
        for one in token if isinstance(token, list) else [token]:
            self.tell(one)
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def make(settings: Settings) -> Runs | OneByOne:
    if settings.options.get("backend") == "SDPA":
        return OneByOne(settings)
    return Runs(Continuous(settings), Prompts(vocab_size(settings)))


if __name__ == "__main__":
    main(make)
