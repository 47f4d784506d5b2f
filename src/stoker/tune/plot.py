"""The trials as a picture: batches a second over workers, one line a prefetch factor, the step's need as a line across.

SVG by hand: a handful of lines needs no plotting library, and opens in every browser. Pure: text in, text out.
"""

from __future__ import annotations

from html import escape

from stoker.errors import UsageError
from stoker.tune.report import TuneReport
from stoker.tune.verdict import best_trials

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 24, 48, 56
COLOURS = ("#1f6f8b", "#d1495b", "#5b8c5a", "#8e6c8a")
ENDINGS = (".svg", ".html")


def check_name(name: str) -> None:
    """UsageError for a file name whose kind is not written."""
    if not name.endswith(ENDINGS):
        raise UsageError(f"a plot is written as {' or '.join(ENDINGS)}, found {name!r}")


def draw(report: TuneReport, name: str) -> str:
    """The plot as the text of file *name*: an SVG, or a page with it."""
    picture = _svg(report)
    if name.endswith(".html"):
        title = escape(f"stoker tune {report.target.factory}")
        head = f"<head><meta charset='utf-8'><title>{title}</title></head>"
        return f"<!doctype html>\n<html>{head}<body>{picture}</body></html>\n"
    return picture


def _svg(report: TuneReport) -> str:
    points: dict[int, dict[int, float]] = {}
    for setting, trial in best_trials(report.trials).items():
        line = points.setdefault(setting.prefetch_factor if setting.num_workers else 0, {})
        line[setting.num_workers] = max(trial.rate, line.get(setting.num_workers, 0.0))
    workers = sorted({number for line in points.values() for number in line})
    need = report.ground.enough if report.step_s is not None else 0.0
    extra = [report.beside.rate] if report.beside is not None else []
    top = max([need, *extra, *(rate for line in points.values() for rate in line.values()), 1e-9]) * 1.1
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def across(number: int) -> float:
        at = workers.index(number)
        return LEFT + inner_width * (at + 0.5) / max(1, len(workers))

    def up(rate: float) -> float:
        return TOP + inner_height * (1 - rate / top)

    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' font-family='sans-serif' "
        "font-size='12'>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
        f"<text x='{LEFT}' y='22' font-size='15'>{escape(report.target.factory)}: batches/s by num_workers</text>",
    ]
    for tick in range(6):
        rate = top * tick / 5
        parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{up(rate):.1f}' y2='{up(rate):.1f}' stroke='#ddd'/>")
        parts.append(f"<text x='{LEFT - 8}' y='{up(rate) + 4:.1f}' text-anchor='end'>{rate:.3g}</text>")
    for number in workers:
        parts.append(f"<text x='{across(number):.1f}' y='{HEIGHT - BOTTOM + 18}' text-anchor='middle'>{number}</text>")
    parts.append(f"<text x='{LEFT + inner_width / 2:.0f}' y='{HEIGHT - 12}' text-anchor='middle'>num_workers</text>")
    for at, (prefetch, line) in enumerate(sorted(points.items())):
        colour = COLOURS[at % len(COLOURS)]
        label = f"prefetch_factor {prefetch}" if prefetch else "no workers"
        path = " ".join(f"{across(n):.1f},{up(rate):.1f}" for n, rate in sorted(line.items()))
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        parts += [f"<circle cx='{across(n):.1f}' cy='{up(r):.1f}' r='4' fill='{colour}'/>" for n, r in line.items()]
        parts.append(f"<text x='{LEFT + 8 + 130 * at}' y='{TOP - 8}' fill='{colour}'>● {label}</text>")
    lines = [(need, "the step's need × 1.2", "#333")] if need else []
    lines += [(extra[0], "stoker.Loader", "#c77d0a")] if extra else []
    for rate, label, colour in lines:
        y = f"{up(rate):.1f}"
        parts.append(
            f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y}' y2='{y}' stroke='{colour}' stroke-dasharray='6 4'/>"
        )
        parts.append(
            f"<text x='{WIDTH - RIGHT}' y='{up(rate) - 5:.1f}' text-anchor='end' fill='{colour}'>{label}</text>"
        )
    chosen = report.chosen
    if chosen is not None and chosen.num_workers in workers:
        best = max(line[chosen.num_workers] for line in points.values() if chosen.num_workers in line)
        parts.append(
            f"<circle cx='{across(chosen.num_workers):.1f}' cy='{up(best):.1f}' r='9' fill='none' stroke='black' "
            "stroke-width='2'/>"
        )
    failed = sorted({t.setting.num_workers for t in report.trials if t.status != "ok" and t.setting is not None})
    if failed:
        told = ", ".join(map(str, failed))
        parts.append(f"<text x='{LEFT}' y='{HEIGHT - 12}' fill='#b00'>failed or not tried: {told} workers</text>")
    return "\n".join([*parts, "</svg>\n"])
