"""Writes docs/benchmarks.md and its plot from the JSON lines that the benches printed: `python bench/page.py LINES.jsonl`.

Of each bench the last line counts. What was not run is left out of the page; a number that misses its target is shown as it is.
"""

from __future__ import annotations

import html
import json
import os
import platform
import sys
from pathlib import Path

from targets import Lines, rows

DOCS = Path(__file__).resolve().parent.parent / "docs"
BAR, GAP, LEFT, WIDE = 22, 8, 150, 420


def bars(title: str, values: dict[str, float], unit: str) -> list[str]:
    """One chart, as lines of SVG: the first bar is stoker's."""
    most = max(values.values())
    parts = [f'<text x="0" y="16" class="t">{html.escape(title)}</text>']
    for at, (name, value) in enumerate(values.items()):
        top = 28 + at * (BAR + GAP)
        parts.append(f'<text x="{LEFT - 8}" y="{top + 16}" text-anchor="end">{html.escape(name)}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{WIDE * value / most:.1f}" height="{BAR}" class="{"a" if at == 0 else "b"}"/>'
        )
        parts.append(f'<text x="{LEFT + WIDE * value / most + 6:.1f}" y="{top + 16}">{value:,.3g} {unit}</text>')
    return parts


def plot(found: Lines) -> str:
    """Charts of stoker beside the rivals, one below the other."""
    charts: list[tuple[str, dict[str, float], str]] = []
    for bench, key, title, unit, scale in (
        ("rivals", "images_per_s", "Warm image epoch: more is better", "images/s", 1.0),
        ("tokens", "gb_per_s", "Warm token epoch: more is better", "GB/s", 1.0),
        ("stall", "wait", "Waiting at supply = 1.2 × demand: less is better", "%", 100.0),
    ):
        if bench in found:
            results = {
                name: scale * float(one[key]) for name, one in found[bench]["results"].items() if name != "floor"
            }
            rest = sorted(
                (name for name in results if name != "stoker"),
                key=lambda name, of=results: of[name],
                reverse=key != "wait",
            )
            charts.append((title, {name: results[name] for name in ("stoker", *rest) if name in results}, unit))
    drawn, top = [], 10
    for title, values, unit in charts:
        drawn += [f'<g transform="translate(10,{top})">', *bars(title, values, unit), "</g>"]
        top += 50 + len(values) * (BAR + GAP)
    style = "text{font:13px sans-serif;fill:#222}.t{font-weight:bold}.a{fill:#d9541e}.b{fill:#8fa3b5}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDE + 130}" height="{top}">',
        f'<rect width="100%" height="100%" fill="#fff"/><style>{style}</style>', *drawn, "</svg>", "",
    ])  # fmt: skip


def contenders(found: Lines) -> list[str]:
    """The tables of the benches that compare contenders, as Markdown."""
    text = []
    for bench, columns in (
        ("rivals", ("cpu_ms", "images_per_s", "first_batch_s", "start_s", "peak_pss_mb", "others")),
        ("stall", ("wait", "seam", "supply", "others")),
        ("tokens", ("gb_per_s", "cpu_s_a_gb", "others")),
    ):
        if bench in found:
            text += [
                f"## `bench/{bench}.py`",
                "",
                "| | " + " | ".join(columns) + " |",
                "|---" * (1 + len(columns)) + "|",
            ]
            for name, one in found[bench]["results"].items():
                text.append(f"| {name} | " + " | ".join(f"{float(one[column]):,.4g}" for column in columns) + " |")
            text.append("")
    return text


def large(found: Lines) -> list[str]:
    """The table of the large photos."""
    if "large" not in found:
        return []
    kinds = found["large"]["kinds"]
    names = dict.fromkeys(name for one in kinds.values() for name in one["results"])
    columns = [f"{what}, {kind.replace('_', ' ')}" for kind in kinds for what in ("images/s", "CPU ms")]
    text = ["## `bench/large.py`", "", "| | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for name in names:
        cells = [f"{float(one['results'][name][key]):,.4g}" if name in one["results"] else "–"
                 for one in kinds.values() for key in ("images_per_s", "cpu_ms")]  # fmt: skip
        text.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*text, ""]


def cold(found: Lines) -> list[str]:
    """The table of the cold epochs: every way of reading at every distance, and who is missing."""
    if "cold" not in found:
        return []
    results = {f"{float(latency) * 1000:.0f} ms": one for latency, one in found["cold"]["results"].items()}
    columns = [f"{what}, {far}" for far in results for what in ("bytes/s against bare", "first batch s")]
    text = ["## `bench/cold.py`", "", "| | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for name in dict.fromkeys(
        key.removesuffix("_share") for one in results.values() for key in one if key.endswith("_share")
    ):
        label = {"stream": "stoker, streamed", "cache": "stoker, through an empty cache"}.get(name, name)
        cells = [f"{one[key]:.2f}" if (key := f"{name}_{what}") in one else "–"
                 for one in results.values() for what in ("share", "first_batch")]  # fmt: skip
        text.append(f"| {label} | " + " | ".join(cells) + " |")
    out = [f"{name}: {reason}" for name, reason in found["cold"].get("left_out", {}).items()]
    text += [
        "",
        "stoker's loader is made 2 s before `iter()`, as before a model, and its bytes/s count from there; a rival begins at `iter()`.",
    ]
    return [*text, *([f"\nLeft out: {'; '.join(out)}."] if out else []), ""]


def versions(found: Lines) -> str:
    """Every package that took part, with its version."""
    told = [one for line in found.values() for one in (line, *line.get("results", {}).values())]
    seen = {name: version for one in told if isinstance(one, dict) for name, version in one.get("versions", {}).items()}
    return ", ".join(f"{name} {version}" for name, version in sorted(seen.items()))


def page(found: Lines) -> str:
    """The whole page."""
    cores = len(os.sched_getaffinity(0))
    text = [
        "# Benchmarks", "",
        f"Written by `bench/page.py` from what the programs in `bench/` printed: {cores} virtual cores, Linux "
        f"{platform.release().split('-')[0]}, Python {platform.python_version()}; {versions(found)}. Rounds are interleaved and values are "
        "medians; photos are the 1,000 of the public EliSchwartz/imagenet-sample-images, large ones those of NVIDIA/DALI_extra (CC0). `others` is the share of the cores that other "
        "processes took meanwhile. For your machine: `make bench-env`, `make bench`.", "",
        "| what | measured | target | bench |", "|---|---|---|---|",
        *(f"| {row.what} | {row.measured} | {row.wanted}{'' if row.met else ', missed'} | `{row.bench}` |" for row in rows(found)),
        "", "![stoker and its rivals](benchmarks.svg)", "", *contenders(found), *large(found), *cold(found),
    ]  # fmt: skip
    return "\n".join(text).rstrip() + "\n"


def write(found: Lines) -> None:
    """Both files."""
    (DOCS / "benchmarks.md").write_text(page(found))
    (DOCS / "benchmarks.svg").write_text(plot(found))


def main() -> None:
    """From the lines of a file."""
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines() if line.startswith("{")]
    write({line["bench"]: line for line in lines})


if __name__ == "__main__":
    main()
