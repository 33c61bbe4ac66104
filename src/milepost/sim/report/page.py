"""A report as one HTML page, which needs nothing else: no network, no server, no library.

`assets/` has its parts. The modules there import each other, as a browser would have it; in the page they follow one
another in one script, so that a file on a disk can run them.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import asdict
from hashlib import sha256
from html import escape
from pathlib import Path
from string import Template

from milepost.sim.report.choice import EQUAL, Advice, Report, choose
from milepost.sim.report.words import as_flag, in_bytes, in_time, percent

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("scales.js", "svg.js", "memory.js", "rates.js", "main.js")
"""Those that others import come first."""


def page(report: Report) -> str:
    """The whole page of what `milepost replay --json` gives."""
    advice = choose(report)
    style, script = (ASSETS / "page.css").read_text(encoding="utf-8"), _script()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{_hash(script)}'; base-uri 'none'"
    data = {**report, "advice": asdict(advice) if advice else None}
    return Template((ASSETS / "page.html").read_text(encoding="utf-8")).substitute(
        policy=escape(policy),
        title=escape(f"Milepost: {report['trace']['name']}"),
        about=escape(_about(report)),
        headline=_headline(advice),
        gain=_gain(advice) if advice else "",
        command=_command(advice) if advice else "",
        table=_table(report, advice),
        notes=_notes(report),
        style=style,
        report=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        script=script,
    )


def _script() -> str:
    return "\n".join(_module((ASSETS / name).read_text(encoding="utf-8")) for name in SCRIPTS)


def _module(text: str) -> str:
    """A module as a function that is called once: its names are its own, but for those that it exports."""
    exported = ", ".join(re.findall(r"^export \w+ (\w+)", text, flags=re.M))
    body = re.sub(r"^export ", "", re.sub(r"^import .*\n", "", text, flags=re.M), flags=re.M)
    return f"const {{ {exported} }} = (() => {{\n{body}return {{ {exported} }};\n}})();"


def _hash(script: str) -> str:
    """As a Content-Security-Policy names a script that may run."""
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"


def _about(report: Report) -> str:
    trace, model = report["trace"], report.get("model") or {}
    told = [trace["name"], f"{trace['requests']:,} requests", f"{trace['input_tokens']:,} prompt tokens"]
    if trace.get("duration_ms"):
        told.append(in_time(trace["duration_ms"] / 1000))
    if model:
        sizes = f"{in_bytes(model['kv_bytes_per_token'])} a token, {in_bytes(model['checkpoint_bytes'])} a state"
        told.append(f"{model['name']}: {sizes}" if model.get("name") else sizes)
    return " · ".join(told)


def _headline(advice: Advice | None) -> str:
    if advice is None:
        return "Nothing was replayed"
    name = f"{'the default policy, ' if advice.is_default else ''}{_em(advice.policy)}"
    use = f"Use {name}, with {_em(in_bytes(advice.budget_bytes))}"
    return f"{use}: {_em(percent(advice.hit_rate))} of all prompt tokens need not be computed"


def _gain(advice: Advice) -> str:
    told = []
    if advice.other is not None:
        told.append(f"With the same memory {escape(advice.other)} {_against(advice)}.")
    is_less = 1 - advice.hit_rate > (1 + EQUAL) * (1 - advice.best_rate)
    if is_less and advice.best not in (None, advice.other):
        told.append(f"{escape(str(advice.best))}, which no server has, resumes {percent(advice.best_rate)}.")
    if advice.bound is not None:
        told.append(f"No policy can pass {percent(advice.bound)} there.")
    more = {size: rate for size, rate in advice.by_budget.items() if size > advice.budget_bytes}
    if more:
        told.append(f"With {in_bytes(max(more))} it would be {percent(more[max(more)])}.")
    if advice.ceiling is not None and percent(advice.ceiling) != percent(advice.bound or 0):
        told.append(f"Endless memory gives {percent(advice.ceiling)}.")
    return " ".join(told)


def _against(advice: Advice) -> str:
    if abs(advice.excess) < 0.01:
        return "does as well"
    change = f"{percent(abs(advice.excess))} {'more' if advice.excess > 0 else 'less'}"
    return f"resumes {percent(advice.other_rate)}, so it computes {change}"


def _command(advice: Advice) -> str:
    if advice.flags is None:
        return ""
    words = ["milepost serve MODEL", f"--kv-cache-memory-bytes {as_flag(advice.budget_bytes)}"]
    words += re.findall(r"--\S+(?: [^-]\S*)?", advice.flags)
    return f'<pre aria-label="Command">{" ".join(f"<span>{escape(word)}</span>" for word in words)}</pre>'


def _table(report: Report, advice: Advice | None) -> str:
    budgets = report["budgets"]
    rates: dict[str, dict[int, float]] = {}
    for run in report["runs"]:
        rates.setdefault(run["policy"], {})[run["budget_bytes"]] = run["hit_rate"]
    sizes = [budget["bytes"] for budget in budgets]
    best = {size: max((found[size] for found in rates.values() if size in found), default=0.0) for size in sizes}
    head = "".join(f'<th scope="col">{in_bytes(size)}</th>' for size in sizes)
    rows = []
    for policy, found in sorted(rates.items(), key=lambda item: -sum(item[1].values())):
        cells = "".join(_cell(found.get(size), best[size]) for size in sizes)
        mark = ' class="chosen"' if advice and policy == advice.policy else ""
        rows.append(f'<tr{mark}><th scope="row">{escape(policy)}</th>{cells}</tr>')
    ceiling = (report.get("ceiling") or {}).get("hit_rate")
    limits = {
        "a feasible schedule with foresight": [budget.get("feasible") for budget in budgets],
        "upper bound of any policy": [budget.get("upper_bound") for budget in budgets],
        "endless memory": [ceiling for _ in budgets],
    }
    for name, values in limits.items():
        if any(value is not None for value in values):
            cells = "".join(_cell(value) for value in values)
            rows.append(f'<tr class="bound"><th scope="row">{name}</th>{cells}</tr>')
    table = f'<table><thead><tr><th scope="col">policy</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-labelledby="h-table">{table}</div>'


def _cell(rate: float | None, best: float | None = None) -> str:
    """Those that look as good as the best are."""
    text = "" if rate is None else f"{rate * 100:.1f}"
    mark = ' class="best"' if best is not None and text == f"{best * 100:.1f}" else ""
    return f"<td{mark}>{text}</td>"


def _notes(report: Report) -> str:
    block_size = report["trace"].get("block_size")
    blocks = f" in blocks of {block_size} tokens" if block_size else ""
    notes = {
        "Policies": f"Each was replayed request by request through the engine's own cache{blocks}. The requests came "
        "in the trace's order, one at a time: what they would have held beside each other is not counted.",
        "Upper bound": "What no policy can pass with that memory, even one that knew the future. It need not be "
        "reachable: the truth lies between it and the feasible schedule.",
        "With foresight": "A schedule that exists and keeps to the memory, made with knowledge of the whole trace. "
        "Neither it nor the bound counts what a request takes while it runs; the replays do.",
        "Endless memory": "All that was ever computed stays, with a recurrent state after each block.",
        "Recommended": "The policy with the best average over the budgets, of those that a server has; the least "
        "memory with which it computes at most a tenth more tokens than with the most. Other traffic may want "
        "something else: replay your own.",
    }
    cost = report.get("cost")
    if cost:
        notes["Times"] = (
            f"Computed, with {cost['token_ms']:.3g} ms a token and {cost['pair_ms']:.3g} ms a pair of tokens in "
            f"attention ({cost['source']}). Time to first token: of one server that takes one prompt after another and "
            "writes no answers; it is left out where such a server would be busy all the time."
        )
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in notes.items())
    return f"<dl>{items}</dl>"


def _em(text: str) -> str:
    return f"<em>{escape(text)}</em>"
