"""The page of a report: complete in itself, and safe with whatever names are in it."""

import json
import re
import shutil
import subprocess
from base64 import b64encode
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reports import THREE, report, run

from milepost.sim.report import page as page_module
from milepost.sim.report.page import ASSETS, page


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags:
            tag, attributes = self.tags[-1]
            self.texts.setdefault(attributes.get("id") or tag, data)


def words(text: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", text)).replace("\u00a0", " ")


def shown(text: str, tag: str) -> str:
    found = re.search(rf"<{tag}[^>]*>(.*?)</{tag}>", text, re.S)
    assert found
    return words(found[1])


def test_the_first_sentence_says_what_to_use_and_what_it_gains():
    made = page(THREE)
    assert (
        shown(made, "h1") == "Use the default policy, ours, with 8 GB: 47 % of all prompt tokens need not be computed"
    )
    assert "With the same memory lru resumes 30 %, so it computes 32 % more." in words(made)
    assert "oracle, which no server has, resumes 50 %. No policy can pass 55 % there." in words(made)
    assert shown(made, "pre") == "milepost serve MODEL --kv-cache-memory-bytes 8GB"


def test_flags_are_in_the_command():
    made = page(report(run("interval 512", 4, 0.3, "--prefix-cache-retention-interval 512"), run("lru", 4, 0.3)))
    assert shown(made, "pre").endswith("--kv-cache-memory-bytes 4GB --prefix-cache-retention-interval 512")
    assert "With the same memory lru does as well." in words(made)


def test_a_policy_that_no_server_has_needs_no_command():
    assert "<pre" not in page(report(run("lru", 4, 0.3)))


def test_all_hit_rates_are_in_the_table():
    table = page(THREE)
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr.*?</tr>", table)]
    assert ["oracle", "50.0", "50.0", "50.0"] in rows
    assert ["upper", "bound", "of", "any", "policy", "55.0", "55.0", "55.0"] in rows
    assert re.findall(r'class="best">([\d.]+)', table) == ["50.0"] * 3


def test_nothing_is_loaded_from_anywhere():
    made = page(THREE)
    elements = Elements(made)
    assert not [tag for tag, attributes in elements.tags if "src" in attributes or "href" in attributes]
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", made)


def test_only_its_own_script_may_run():
    made = page(THREE)
    script = re.search(r'<script type="module">(.*?)</script>', made, re.S)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', made)
    assert script
    assert policy
    named = f"sha256-{b64encode(sha256(script[1].encode()).digest()).decode()}"
    assert f"script-src '{named}'" in unescape(policy[1])
    assert "default-src 'none'" in unescape(policy[1])


@pytest.mark.parametrize("flags", ["", "--x <img>", None])
def test_names_are_text_and_never_markup(flags: str | None):
    evil = "</script><img src=x onerror=alert(1)>$gain"
    told = report(
        run(evil, 4, 0.3, flags), trace=THREE["trace"] | {"name": evil}, model=THREE["model"] | {"name": evil}
    )
    elements = Elements(page(told))
    assert [tag for tag, _ in elements.tags].count("img") == 0
    assert json.loads(elements.texts["report"])["trace"]["name"] == evil


def test_it_copes_with_what_is_not_known():
    bare = report({"policy": "a", "budget_bytes": 10**9, "hit_rate": 0.0, "hit_tokens": 0, "recomputed_tokens": 0})
    bare |= {"ceiling": None, "model": None, "budgets": [{"bytes": 10**9}]}
    assert shown(page(bare), "h1").startswith("Use a, with 1 GB: 0 %")
    assert shown(page(report()), "h1") == "Nothing was replayed"


def test_every_module_is_in_the_page_once_and_after_what_it_imports():
    assert set(page_module.SCRIPTS) == {path.name for path in ASSETS.glob("*.js")}
    for place, name in enumerate(page_module.SCRIPTS):
        imported = re.findall(r'from "\./(.*?)"', (ASSETS / name).read_text())
        assert set(imported) <= set(page_module.SCRIPTS[:place])


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_scales(tmp_path: Path):
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(ASSETS / "scales.js", tmp_path)
    shutil.copy(Path(__file__).parent / "scales.test.mjs", tmp_path)
    ran = subprocess.run(
        ["node", "--test", "scales.test.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
