"""How far the judge of users can be trusted: precision and recall against injected faults. No JAX.

`autoforge meu-eval BUNDLE…` plays every task with a user that makes one mistake of each kind on purpose, and
with the same user without it, and lets the configured judge read both (`envgen.users.measure`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from autoforge_jax.config import Config, apply_overrides, load_tree, parse_config
from autoforge_jax.errors import ConfigError
from autoforge_jax.train.records import message_row
from autoforge_jax.train.statistics import wilson_interval
from envgen.interface import (
    FAULT_KINDS,
    JudgedEpisode,
    KindRow,
    false_alarm_rate,
    judge_rows,
    load_bundle,
    make_judge,
    measure_judge,
    read_sentences,
    user_maker,
)


def meu_config(path: Path | None, overrides: Sequence[str]) -> Config:
    """The config whose `user` and `judge` are measured: a file's, or the varied scripted user and the rules.

    Overrides come last. Raises ConfigError, also when the judge is `none` or faults are injected already.
    """
    tree = load_tree(path) if path is not None else {"user": {"kind": "varied"}, "judge": {"kind": "rules"}}
    apply_overrides(tree, overrides)
    config = parse_config(tree, path.name if path is not None else "meu-eval")
    if config.judge.kind == "none":
        raise ConfigError("judge.kind is 'none', which judges nothing; add --set judge.kind=rules")
    if config.user.fault_rate:
        raise ConfigError("user.fault_rate is above 0; meu-eval injects the faults itself: set it to 0")
    return config


def measure(
    bundles: Sequence[Path],
    config: Config,
    *,
    tasks: int = 0,
    kinds: Sequence[str] = (),
    seed: int = 0,
    sentences: Path | None = None,
) -> list[JudgedEpisode]:
    """Judged episodes of the bundles' tasks (the first ``tasks`` of each; 0 = all).

    ``sentences``: a JSON file that words the mistakes in the place of the shipped sentences.
    Raises ConfigError for an unknown kind, envgen's errors for a bundle or server that cannot be used.
    """
    unknown = sorted(set(kinds) - set(FAULT_KINDS))
    if unknown:
        raise ConfigError(f"unknown fault kind {unknown[0]!r}; known: {', '.join(FAULT_KINDS)}")
    judge = make_judge(config.judge)
    assert judge is not None, "meu_config refuses a run without a judge"
    return measure_judge(
        [load_bundle(path) for path in bundles],
        judge,
        user_maker(config.user),
        kinds=[kind for kind in FAULT_KINDS if not kinds or kind in kinds],
        tasks=tasks,
        seed=seed,
        sentences=None if sentences is None else read_sentences(sentences),
    )


def meu_table(episodes: Sequence[JudgedEpisode], config: Config) -> str:
    """A Markdown table by fault kind, and the false alarms over all clean runs."""
    titles = (
        "fault", "injected", "caught", "recall (95 %)", "clean twins", "alarms", "precision", "right kind",
        "right message",
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += [f"| {' | '.join(_cells(row))} |" for row in judge_rows(episodes)]
    alarms, clean = false_alarm_rate(episodes)
    low, high = wilson_interval(alarms, clean)
    unjudged = sum(e.verdict.kind == "unjudged" for e in episodes)
    return "\n".join(
        [
            *lines,
            "",
            f"user {config.user.kind}, judge {config.judge.kind}; false alarms {alarms} of {clean} clean "
            f"runs ({_percent(alarms, clean)}, 95 % {low:.1%} to {high:.1%}); unjudged {unjudged}",
        ]
    )


def _cells(row: KindRow) -> tuple[str, ...]:
    low, high = wilson_interval(row.caught, row.injected)
    recall = f"{row.recall:.3f} ({low:.3f}–{high:.3f})" if row.injected else "–"
    precision = f"{row.precision:.3f}" if row.caught + row.alarms else "–"
    return (
        row.kind,
        str(row.injected),
        str(row.caught),
        recall,
        str(row.clean),
        str(row.alarms),
        precision,
        _percent(row.named, row.caught),
        _percent(row.placed, row.caught),
    )


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def write_episodes(episodes: Sequence[JudgedEpisode], path: Path) -> None:
    """Every judged episode as one JSON line: what was injected, what the judge said, the transcript."""
    rows = [
        {
            "environment": e.environment,
            "task_id": e.task_id,
            "wanted": e.wanted,
            "injected": None if e.injected is None else asdict(e.injected),
            "truth_turn": e.truth_turn,
            "verdict": asdict(e.verdict),
            "right": e.verdict.error == (e.injected is not None),
            "messages": [message_row(m) for m in e.transcript],
        }
        for e in episodes
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
