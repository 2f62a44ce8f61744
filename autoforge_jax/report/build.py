"""`write_report(run_dir)`: one self-contained HTML file from what a run directory holds. No JAX, no external
request.

Every text of the run reaches the page escaped: through Jinja's autoescape, or as JSON inside a script element
with ``<``, ``>`` and ``&`` written as escapes, which the viewer shows with textContent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from autoforge_jax.report.charts import Series, interval_plot, line_chart, split_bar
from autoforge_jax.report.data import (
    ResultRow,
    RunData,
    breakdown,
    points,
    read_run,
    seconds_by_activity,
)
from autoforge_jax.train.state_files import write_atomic
from autoforge_jax.train.summary import SET_NAMES, STAGE_NAMES, STAGES

SMOOTH = 7
"""Steps in the running mean of the bold lines."""


def embedded_json(value: Any) -> Markup:
    """JSON that is safe inside a script element: no ``<``, ``>``, ``&`` or line separators are left in it."""
    text = json.dumps(value, ensure_ascii=False)
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def percent(value: float | None) -> str:
    """0.3125 -> ``31.2 %``; None -> an en dash."""
    return "–" if value is None else f"{value * 100:.1f} %"


def points_text(value: float) -> str:
    """A difference of fractions in percentage points with its sign: 0.128 -> ``+12.8``."""
    return f"{value * 100:+.1f}"


def _verdict(row: ResultRow) -> dict[str, str] | None:
    """What the paired difference says in words; None without one."""
    if row.difference is None:
        return None
    low, high = row.difference["interval"]
    if low > 0:
        return {"word": "up", "css": "good"}
    if high < 0:
        return {"word": "down", "css": "bad"}
    return {"word": "no clear change", "css": "soft"}


def _chart(
    title: str, note: str, series: list[Series], x_label: str, *, percent: bool = False
) -> dict[str, Any]:
    return {
        "title": title,
        "note": note,
        "svg": line_chart(series, x_label=x_label, percent=percent, title=title),
    }


def _curves(data: RunData) -> list[dict[str, Any]]:
    """All charts that have data, in reading order."""
    erpo, sft = data.metrics.get("erpo", []), data.metrics.get("warm start", [])
    evaluated: dict[str, list[tuple[float, float]]] = {}
    for item in data.evals:
        if item["mode"] == "greedy" and item["stage"] not in ("init", "newest"):
            evaluated.setdefault(item["set"], []).append((float(item["step"]), item["report"]["success"]))
    success = [Series(SET_NAMES.get(n, n), tuple(sorted(v)), dots=True) for n, v in evaluated.items()]
    charts = [
        _chart(
            "Reward in training",
            f"mean over the rollouts of a step, before dynamic sampling; bold: mean of up to {SMOOTH} steps",
            [Series("reward", points(erpo, "reward"), smooth=SMOOTH)],
            "ERPO step",
            percent=True,
        ),
        _chart(
            "Success in evaluation",
            "greedy, on tasks that are never trained on",
            success,
            "ERPO step",
            percent=True,
        ),
        _chart(
            "Entropy of the policy",
            "nats per sampled token: where it is gone, nothing new is tried",
            [Series("entropy", points(erpo, "entropy"), smooth=SMOOTH)],
            "ERPO step",
        ),
        _chart(
            "Groups with a signal",
            "share of task groups whose rollouts did not all end alike",
            [Series("mixed groups", points(erpo, "mixed_share"), smooth=SMOOTH)],
            "ERPO step",
            percent=True,
        ),
        _chart(
            "Warm start: loss",
            "nats per action token on reference trajectories",
            [Series("loss", points(sft, "loss"), smooth=SMOOTH)],
            "SFT step",
        ),
        _chart(
            "Warm start: sampled success on training tasks",
            "the probe that stops the warm start while there is room for ERPO",
            [Series("success", points(sft, "probe_success"), dots=True)],
            "SFT step",
            percent=True,
        ),
        _chart(
            "Gradient norm",
            "before clipping",
            [Series("gradient norm", points(erpo, "grad_norm"), smooth=SMOOTH)],
            "ERPO step",
        ),
        _chart(
            "Agreement of engine and learner",
            "mean |Δ log-prob| of sampled tokens, nats; 0 is perfect",
            [Series("mean |Δ log-prob|", points(erpo, "logprob_gap_mean"), smooth=SMOOTH)],
            "ERPO step",
        ),
    ]
    return [chart for chart in charts if chart["svg"]]


def _interval_rows(row: ResultRow, stages: list[str]) -> list[tuple[str, float, float, float] | None]:
    """One entry per stage of the table, so that a stage has one colour in all rows; None where it was not
    evaluated."""
    return [
        (STAGE_NAMES[stage], row.reports[stage]["success"], *row.reports[stage]["interval"])
        if stage in row.reports
        else None
        for stage in stages
    ]


def render(data: RunData) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("autoforge_jax.report", "."),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "points": points_text}
    stages = [stage for stage in STAGES if any(stage in row.reports for row in data.results)]
    rows = [
        {"row": row, "plot": interval_plot(_interval_rows(row, stages)), "verdict": _verdict(row)}
        for row in data.results
    ]
    return environment.get_template("report.html.j2").render(
        data=data,
        rows=rows,
        stages=stages,
        stage_names=STAGE_NAMES,
        set_names=SET_NAMES,
        curves=_curves(data),
        time_bar=split_bar(seconds_by_activity(data)),
        seconds=sum(phase["seconds"] for phase in data.phases),
        environments=breakdown(data.results, "environment"),
        patterns=breakdown(data.results, "pattern"),
        trajectories=embedded_json(data.trajectories),
    )


def write_report(run_dir: Path) -> Path:
    """Write ``run_dir/report.html`` and return its path; ConfigError when `run_dir` holds no run."""
    path = run_dir / "report.html"
    write_atomic(path, render(read_run(run_dir)))
    return path
