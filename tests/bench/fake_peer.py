"""An engine that is none: a program that answers as an adaptor does. Its argument says how it misbehaves."""

import subprocess
import sys
import time

from bench.peers.child import main


class FakePeer:
    def __init__(self) -> None:
        self.about: dict[str, object] = {"version": "1"}

    def prefill(self, tokens: int) -> dict[str, float]:
        print("engines print")
        return {"seconds": 0.5, "work": tokens}

    def decode(self, batch: int, prompt: int, tokens: int) -> dict[str, float]:
        raise ValueError("no decode today")

    def burst(self, requests: int, prompt: int, answer: int) -> dict[str, float]:
        sys.exit(3)

    def reuse(self, tokens: int, shared: int) -> dict[str, float]:
        """Never, within a test's patience."""
        time.sleep(600)
        return {}


def make(_: object) -> FakePeer:
    if "broken" in sys.argv[-1]:
        raise RuntimeError("no weights")
    peer = FakePeer()
    if "helper=" in sys.argv[-1]:
        peer.about["helper"] = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
    return peer


if __name__ == "__main__":
    main(make)
