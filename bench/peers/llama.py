"""llama.cpp: its server over HTTP on this machine. Options: server=PATH of llama-server."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.peers.child import Prompts, Settings, main

START_TIMEOUT_S = 300
SLOTS = 16


class Llama:
    """Requests are streamed, and timed by whoever sent them; where the server's own clock reads less, as for a lone
    prompt or a lone answer, that counts, which leaves HTTP out."""

    def __init__(self, settings: Settings) -> None:
        self.port = free_port()
        command = [settings.options["server"], "-m", str(settings.model), "--port", str(self.port)]
        command += ["-c", str(SLOTS * settings.context), "-np", str(SLOTS), "-t", str(settings.threads)]
        command += ["-tb", str(settings.threads), "-ngl", "0"]
        if not settings.prefix_caching:
            command += ["--cache-ram", "0", "--ctx-checkpoints", "0"]  # else it keeps copies of what it has read
        self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.prefix_caching = settings.prefix_caching
        self._wait()
        props = self._get("/props")
        vocab = self._get("/v1/models")["data"][0]["meta"]["n_vocab"]
        self.prompts = Prompts(int(vocab))
        self.about = {"version": props.get("build_info"), "threads": settings.threads}

    def prefill(self, tokens: int) -> dict[str, Any]:
        return {"seconds": self._one(self.prompts.fresh(tokens))["prompt_ms"] / 1e3, "work": tokens}

    def decode(self, batch: int, prompt: int, tokens: int) -> dict[str, Any]:
        streams = self._at_once([self.prompts.fresh(prompt) for _ in range(batch)], tokens + 1)
        if batch == 1:
            timings = streams[0].timings
            return {"seconds": timings["predicted_ms"] / 1e3, "work": timings["predicted_n"]}
        start = max(stream.times[0] for stream in streams)
        early = sum(moment <= start for stream in streams for moment in stream.times)
        end = max(stream.times[-1] for stream in streams)
        return {"seconds": end - start, "work": sum(stream.num_drawn for stream in streams) - early}

    def burst(self, requests: int, prompt: int, answer: int) -> dict[str, Any]:
        prompts = [self.prompts.fresh(prompt) for _ in range(requests)]
        start = time.perf_counter()
        streams = self._at_once(prompts, answer)
        end = max(stream.times[-1] for stream in streams)
        return {"seconds": end - start, "work": sum(stream.num_drawn for stream in streams)}

    def reuse(self, tokens: int, shared: int) -> dict[str, Any]:
        first = self.prompts.fresh(tokens)
        second = first[:shared] + self.prompts.fresh(tokens - shared)
        self._one(first)
        start = time.perf_counter()
        timings = self._one(second)
        return {"seconds": time.perf_counter() - start, "work": 1, "cached": timings.get("cache_n")}

    def _one(self, ids: list[int]) -> dict[str, Any]:
        """The server's timings of a request for one token, always in the same slot."""
        body = {**self._body(ids, 1), "id_slot": 0, "stream": False}
        return self._post(body)["timings"]

    def _body(self, ids: list[int], num_tokens: int) -> dict[str, Any]:
        body = {"prompt": ids, "n_predict": num_tokens, "temperature": 0.0, "ignore_eos": True}
        return {**body, "cache_prompt": self.prefix_caching}

    def _at_once(self, prompts: list[list[int]], num_tokens: int) -> list[Stream]:
        streams = [Stream(self.port, self._body(ids, num_tokens)) for ids in prompts]
        for stream in streams:
            stream.start()
        for stream in streams:
            stream.join()
            if stream.problem or not stream.times:
                raise RuntimeError(stream.problem or "the server sent no token")
        return streams

    def _wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.server.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self.server.returncode}")
            try:
                if self._get("/health").get("status") == "ok":
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError("llama-server did not come up")

    def _get(self, path: str) -> dict[str, Any]:
        return self._ask(lambda connection: connection.request("GET", path))

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(body)
        headers = {"Content-Type": "application/json"}
        return self._ask(lambda connection: connection.request("POST", "/completion", text, headers))

    def _ask(self, send: Callable[[http.client.HTTPConnection], None]) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            send(connection)
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if "error" in answer and "timings" not in answer and answer.get("error", {}).get("code") != 503:
            raise RuntimeError(str(answer["error"]))
        return answer


class Stream(threading.Thread):
    """One streamed request: when tokens came. Some come without an event of their own, where their text is not yet
    whole characters: `num_drawn` counts them all."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.port, self.text = port, json.dumps({**body, "stream": True})
        self.times: list[float] = []
        self.timings: dict[str, Any] = {}
        self.num_drawn = 0
        self.problem = ""

    def run(self) -> None:
        try:
            self._read()
        except Exception as error:  # told by whoever waits for it
            self.problem = f"{type(error).__name__}: {error}"

    def _read(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("POST", "/completion", self.text, {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if not line.startswith(b"data: "):
                continue
            told = json.loads(line[6:])
            if told.get("stop"):
                self.timings, self.num_drawn = told["timings"], told["tokens_predicted"]
                break
            if told.get("tokens"):  # an event may also only say that reading has begun
                self.times.append(time.perf_counter())
        connection.close()


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


if __name__ == "__main__":
    main(Llama)
