"""The page's logic, in node where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from milepost.cache.retention import Kind
from milepost.request import MissReason
from milepost.server.page import FOLDER

TESTS = Path(__file__).parent / "page" / "modules.test.mjs"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_modules(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for module in FOLDER.glob("*.js"):
        shutil.copy(module, tmp_path)
    shutil.copy(TESTS, tmp_path)
    ran = subprocess.run(["node", "--test", TESTS.name], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "# fail 0" in ran.stdout


def test_it_knows_every_reason_and_every_kind_of_state() -> None:
    words, shapes = (FOLDER / "format.js").read_text(), (FOLDER / "tree.js").read_text()
    assert [reason for reason in get_args(MissReason) if f'case "{reason}":' not in words] == []
    assert [kind for kind in get_args(Kind) if f"  {kind}: " not in shapes] == []
