"""Charts as inline SVG: axes with round ticks, raw values faint, smoothed values bold. No JAX, no script, no
fonts.

Colours are CSS classes (``s0`` … ``s5``), so that the page decides them for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 620, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 34


@dataclass(frozen=True)
class Series:
    """One line: points in order of x. With `smooth` > 1 the raw line is faint and a running mean of so many
    points bold; with `dots` every point is a mark with its value as a tooltip."""

    name: str
    points: tuple[tuple[float, float], ...]
    smooth: int = 1
    dots: bool = False


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Centred mean over up to `window` neighbours; the window shrinks at the ends, so the length stays."""
    half = max(0, window // 2)
    out: list[float] = []
    for index in range(len(values)):
        part = values[max(0, index - half) : index + half + 1]
        out.append(sum(part) / len(part))
    return out


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Round values (1, 2, 2.5 or 5 times a power of ten) that cover [low, high] with about `count` steps.

    `whole` keeps them whole numbers, for steps.
    """
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    if whole:
        step = float(math.ceil(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def label(value: float, percent: bool = False) -> str:
    """A tick or tooltip value, short."""
    if percent:
        return f"{value * 100:.3g} %"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    percent: bool = False,
    from_zero: bool = True,
    title: str = "",
) -> Markup:
    """A line chart; an empty Markup when no series has a point. `percent` shows fractions as percent."""
    drawn = [s for s in series if s.points]
    if not drawn:
        return Markup("")
    xs = [x for s in drawn for x, _ in s.points]
    ys = [y for s in drawn for _, y in s.points]
    x_ticks = ticks(min(xs), max(xs), 6, whole=True)
    y_ticks = ticks(min([*ys, 0.0]) if from_zero else min(ys), max(ys), 4)
    x0, x1, y0, y1 = min(xs), max(max(xs), min(xs) + 1e-9), y_ticks[0], y_ticks[-1]
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def px(x: float) -> float:
        return LEFT + (x - x0) / (x1 - x0) * plot_width if len(set(xs)) > 1 else LEFT + plot_width / 2

    def py(y: float) -> float:
        return TOP + plot_height - (y - y0) / (y1 - y0) * plot_height

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
    ]
    for value in y_ticks:
        y = py(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">')
        parts.append(f"{escape(label(value, percent))}</text>")
    for value in x_ticks:
        if x0 <= value <= x1:
            parts.append(f'<text class="tick" x="{px(value):.1f}" y="{HEIGHT - BOTTOM + 16}" ')
            parts.append(f'text-anchor="middle">{escape(label(value))}</text>')
    axis = TOP + plot_height
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{axis}" y2="{axis}"/>')
    parts.append(
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>'
    )
    for index, one in enumerate(drawn):
        raw = [(px(x), py(y)) for x, y in one.points]
        window = min(one.smooth, len(one.points) // 3)  # a short curve must not become a flat line
        if window > 1:
            means = running_mean([y for _, y in one.points], window)
            bold = [(px(x), py(y)) for (x, _), y in zip(one.points, means, strict=True)]
            parts.append(_path(raw, f"raw s{index}"))
            parts.append(_path(bold, f"line s{index}"))
        else:
            parts.append(_path(raw, f"line s{index}"))
        if one.dots or len(one.points) == 1:
            for (x, y), (step, value) in zip(raw, one.points, strict=True):
                parts.append(f'<circle class="dot s{index}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">')
                parts.append(
                    f"<title>{escape(one.name)}: {label(value, percent)} at {label(step)}</title></circle>"
                )
    parts.append("</svg>")
    if len(drawn) > 1:
        keys = "".join(f'<span><i class="s{i}"></i>{escape(s.name)}</span>' for i, s in enumerate(drawn))
        parts.append(f'<div class="keys">{keys}</div>')
    return Markup("".join(parts))


def _path(points: Sequence[tuple[float, float]], css: str) -> str:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path class="{css}" d="{path}"/>'


def split_bar(parts: Sequence[tuple[str, float]]) -> Markup:
    """One bar cut into named shares, with a legend of seconds and percent; empty without a positive value."""
    shown = [(name, value) for name, value in parts if value > 0]
    total = sum(value for _, value in shown)
    if total <= 0:
        return Markup("")
    cells: list[str] = []
    keys: list[str] = []
    for index, (name, value) in enumerate(shown):
        share = value / total
        text = f"{name}: {value:,.1f} s, {share:.1%}"
        cells.append(f'<i class="s{index % 8}" style="flex:{share:.5f}" title="{escape(text)}"></i>')
        keys.append(
            f'<span><i class="s{index % 8}"></i>{escape(name)} <b>{value:,.1f} s</b> {share:.0%}</span>'
        )
    return Markup(f'<div class="split">{"".join(cells)}</div><div class="keys">{"".join(keys)}</div>')


def interval_plot(rows: Sequence[tuple[str, float, float, float] | None]) -> Markup:
    """Values with their intervals on one 0–100 % line: (name, value, low, high) as fractions, first on top.

    None leaves its line empty and its colour unused.
    """
    if not rows:
        return Markup("")
    width, line = 260, 13
    height = line * len(rows) + 4
    parts = [f'<svg class="intervals" viewBox="0 0 {width} {height}" role="img" aria-label="success">']
    parts.append(f'<line class="axis" x1="0" x2="{width}" y1="{height - 1}" y2="{height - 1}"/>')
    for index, row in enumerate(rows):
        if row is None:
            continue
        name, value, low, high = row
        y = line * index + 8
        title = f"{name}: {value:.1%} (95 %: {low:.1%} to {high:.1%})"
        parts.append(f'<g class="s{index}"><title>{escape(title)}</title>')
        parts.append(
            f'<line class="whisker" x1="{low * width:.1f}" x2="{high * width:.1f}" y1="{y}" y2="{y}"/>'
        )
        parts.append(f'<circle cx="{min(max(value * width, 4), width - 4):.1f}" cy="{y}" r="4"/></g>')
    parts.append("</svg>")
    return Markup("".join(parts))
