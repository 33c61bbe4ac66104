"""A trace of two conversations in turns, each of which grows."""

from __future__ import annotations

import json
from pathlib import Path

HEADER = {
    "format": "milepost-trace",
    "version": 1,
    "block_size": 64,
    "model": "recorded",
    "kv_bytes_per_token": 100,
    "checkpoint_bytes": 6400,
}


def written(path: Path) -> Path:
    lines: list[dict[str, object]] = [HEADER]
    for turn in range(1, 20):
        for chat in (1, 2):
            blocks = [chat * 1000 + block for block in range(turn * 3)]
            lines.append(
                {"t_ms": len(lines) * 1000, "scope": 0, "in": len(blocks) * 64 + 5, "out": 9, "blocks": blocks}
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
