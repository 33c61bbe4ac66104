#!/usr/bin/env python3
"""Answers as llama-server does: a token each 10 ms, streamed or not. It writes down what it was asked."""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ASKED = Path(sys.argv[sys.argv.index("-m") + 1])


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answers = {
            "/health": {"status": "ok"},
            "/props": {"build_info": "b1"},
            "/v1/models": {"data": [{"meta": {"n_vocab": 1000}}]},
        }
        self.tell(json.dumps(answers[self.path]).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with ASKED.open("a") as file:
            file.write(json.dumps(asked) + "\n")
        num = asked["n_predict"]
        timings = {"prompt_ms": 500.0, "predicted_ms": 250.0, "predicted_n": num - 1, "cache_n": 7}
        final = {"stop": True, "timings": timings, "tokens_predicted": num, "tokens": []}
        if not asked["stream"]:
            self.tell(json.dumps(final).encode())
            return
        self.send_response(200)
        self.end_headers()
        self.event({"stop": False, "tokens": []})
        for token in range(num - 1):  # the last one's text is not a whole character
            time.sleep(0.01)
            self.event({"stop": False, "tokens": [token]})
        self.event(final)

    def event(self, told: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(told).encode() + b"\n\n")

    def tell(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    with ASKED.with_suffix(".argv").open("w") as told:
        json.dump(sys.argv[1:], told)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
