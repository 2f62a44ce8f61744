"""The report of a hand-made run directory: every number is in it, nothing is loaded from elsewhere, nothing
escapes its quotes."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autoforge_jax.config import Config, dump_config
from autoforge_jax.errors import ConfigError, TrainingError
from autoforge_jax.report.build import embedded_json, write_report
from autoforge_jax.report.charts import Series, interval_plot, line_chart, running_mean, split_bar, ticks
from autoforge_jax.report.data import breakdown, pick, results, seconds_by_activity
from autoforge_jax.train.rundir import toml_text
from autoforge_jax.train.state_files import write_json

NASTY = "</script><script>alert('x')</script><!-- & \u2028"


def _eval(stage: str, name: str, mode: str, success: float, interval: tuple[float, float], step: int) -> dict:
    # Attempts chosen so that the paired difference (after − before) is 3/16 for both tasks: its interval has
    # no width.
    successes = {"before": 5, "after": 8}.get(stage, 0)
    outcome = {"environment": "museum", "pattern": "argmin+update", "difficulty": 2}
    outcome |= {"successes": successes, "attempts": 16}
    report = {
        "name": name,
        "policy_version": step,
        "success": success,
        "interval": list(interval),
        "pass_at_k": {"1": success},
        "pass_hat_k": {"1": success},
        "tasks": 2,
        "attempts": 32,
        "mean_turns": 3.25,
        "mean_tool_calls": 2.5,
        "tool_error_rate": 0.125,
        "malformed_rate": 0.0,
        "stop_reasons": {"user_done": 2},
        "by_environment": {"museum": success},
        "by_pattern": {"argmin+update": success},
        "outcomes": [{**outcome, "task_id": "museum-1"}, {**outcome, "task_id": "museum-2"}],
        "sampling": {},
        "seconds": 1.0,
    }
    return {"stage": stage, "set": name, "mode": mode, "step": step, "report": report}


def _trajectory(number: int) -> dict:
    return {
        "stage": "erpo", "step": number, "mode": "", "set": "", "task_id": f"museum-{number}",
        "environment": "museum",
        "pattern": "argmin+update", "difficulty": 2, "sample_index": 0, "reward": 0.0, "success": False,
        "stop_reason": "user_done", "user_error": False, "excluded": "", "tokens": 120, "tool_calls": 1,
        "tool_errors": 0, "malformed_calls": 0, "policy_version": number,
        "differences": [{"collection": "events", "key": "E1", "field": "price", "expected": 30, "got": 25}],
        "messages": [
            {"role": "user", "content": NASTY, "thinking": "", "tool_calls": [], "name": ""},
            {"role": "assistant", "content": "", "thinking": "look first",
             "tool_calls": [{"name": "listEvents", "arguments": "{}", "parse_error": ""}], "name": ""},
        ],
    }  # fmt: skip


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory as the phases leave it, small enough to check every number by eye."""
    root = tmp_path / "demo"
    tree = dump_config(Config())
    write_json(root / "config.json", tree)
    (root / "config.toml").write_text(toml_text(tree))
    phases = [
        {"name": "synthesis", "key": "a", "done": True, "seconds": 12.0, "result": "1 environment"},
        {"name": "erpo", "key": "b", "done": True, "seconds": 10.0, "result": "2 steps"},
    ]
    write_json(root / "phases.json", phases)
    account = {
        "name": "museum", "role": "train", "document": "museum.yaml", "format": "openapi-3.1",
        "title": "Museum",
        "environment_id": "abcdef0123456789", "content_hash": "0", "prompt": "Never guess <ids>.",
        "tasks": {"train": 4, "heldout": 2},
        "report": {"tools_total": 8, "tools_implemented": 7, "refused": {"getTicketCode": "an image <png>"},
                   "tasks_sampled": 41, "tasks_certified": 37, "dropped": {"noop": 3, "leak": 1},
                   "seconds": 1.5},
    }  # fmt: skip
    write_json(root / "bundles.json", [account])
    rows = [
        {"phase": "erpo", "step": s, "reward": 0.25 * s, "entropy": 0.5, "mixed_share": 0.75,
         "seconds": {"rollout": 3.0, "train": 1.5}}
        for s in (1, 2)
    ]  # fmt: skip
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "trajectories.jsonl").write_text("".join(json.dumps(_trajectory(n)) + "\n" for n in range(3)))
    before = _eval("before", "heldout_tasks", "greedy", 0.3125, (0.2, 0.45), 0)
    after = _eval("after", "heldout_tasks", "greedy", 0.5, (0.375, 0.625), 2)
    write_json(root / "eval" / "before-heldout_tasks-greedy.json", before)
    write_json(root / "eval" / "after-heldout_tasks-greedy.json", after)
    return root


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._script = tag == "script"
        if self._script:
            self.scripts.append("")
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data")]

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[-1] += data
        else:
            self.text.append(data)


def test_the_report_holds_the_numbers_of_the_run(run_dir: Path) -> None:
    page = _Page()
    page.feed(write_report(run_dir).read_text())
    text = re.sub(r"\s+", " ", "".join(page.text))
    for expected in (
        "31.2 %", "50.0 %", "+18.8", "+18.8 to +18.8", "20.0 % – 45.0 %", "37.5 % – 62.5 %",  # table
        "41", "37", "noop 3, leak 1", "getTicketCode", "an image <png>", "Never guess <ids>.",
         # synthesis account
        "synthesis 12.0 s", "erpo: rollout 6.0 s", "erpo: train 3.0 s", "erpo: other 1.0 s",  # time
        "user done 2", "12.5 %", "3.25",  # stop reasons, tool errors, turns
        "argmin+update", "3 of the 3 trajectories",
    ):  # fmt: skip
        assert expected in text, expected


def test_the_report_loads_nothing_from_elsewhere(run_dir: Path) -> None:
    html = write_report(run_dir).read_text()
    page = _Page()
    page.feed(html)
    assert page.links and all(link.startswith("#") for link in page.links)
    # Addresses may stand in it as text (the config's servers, values of tasks); nothing may load them.
    assert "@import" not in html and "url(" not in html
    data, code = page.scripts
    assert json.loads(data) and "http" not in code and "fetch(" not in code
    assert "default-src 'none'" in html


def test_text_of_a_run_cannot_leave_its_script_element(run_dir: Path) -> None:
    page = _Page()
    page.feed(write_report(run_dir).read_text())
    assert len(page.scripts) == 2
    embedded = json.loads(page.scripts[0])
    assert embedded[0]["messages"][0]["content"] == NASTY
    assert "alert" not in page.scripts[1]


def test_embedded_json_has_no_markup_and_reads_back() -> None:
    text = embedded_json({"a": NASTY})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": NASTY}


def test_a_run_that_only_started_has_a_report(tmp_path: Path) -> None:
    tree = dump_config(Config())
    write_json(tmp_path / "config.json", tree)
    (tmp_path / "config.toml").write_text(toml_text(tree))
    html = write_report(tmp_path).read_text()
    assert "no evaluation yet" in html and "No step was taken" in html


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run directory"):
        write_report(tmp_path)


def test_ticks_are_round_and_cover_the_range() -> None:
    assert ticks(0.0, 1.0, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(0.0, 0.37, 4) == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert ticks(-3.0, 42.0, 4) == [-20.0, 0.0, 20.0, 40.0, 60.0]
    assert ticks(5.0, 5.0)[0] <= 5.0 <= ticks(5.0, 5.0)[-1]


def test_running_mean_shrinks_at_the_ends() -> None:
    assert running_mean([1.0, 2.0, 6.0, 4.0], 3) == [1.5, 3.0, 4.0, 5.0]
    assert running_mean([1.0, 5.0], 1) == [1.0, 5.0]


def test_line_chart_places_points_on_the_axes() -> None:
    # x runs from 52 to 606, y from 206 (0) to 12 (top tick 1.0)
    svg = str(line_chart([Series("s", ((0.0, 0.0), (10.0, 1.0)))], x_label="step"))
    assert 'd="M52.0 206.0L606.0 12.0"' in svg
    assert line_chart([Series("empty", ())], x_label="step") == ""
    assert "nan" not in str(line_chart([Series("flat", ((1.0, 0.0),))], x_label="step"))


def test_split_bar_names_seconds_and_shares() -> None:
    bar = str(split_bar([("rollout", 3.0), ("train", 1.0), ("sync", 0.0)]))
    assert "rollout: 3.0 s, 75.0%" in bar and "train: 1.0 s, 25.0%" in bar and "sync" not in bar
    assert split_bar([("x", 0.0)]) == "" and interval_plot([]) == ""


def test_results_are_ordered_and_paired() -> None:
    evals = [
        _eval("after", "heldout_bundle", "greedy", 0.1, (0.0, 0.2), 2),
        _eval("before", "heldout_tasks", "sampled", 0.2, (0.1, 0.3), 0),
        _eval("before", "heldout_tasks", "greedy", 0.3, (0.2, 0.4), 0),
        _eval("step", "heldout_tasks", "greedy", 0.9, (0.8, 1.0), 1),
    ]
    difference = {"set": "heldout_tasks", "mode": "greedy", "value": 0.1, "interval": [0.0, 0.2], "tasks": 2}
    rows = results(evals, [difference])
    assert [(row.set_name, row.mode) for row in rows] == [
        ("heldout_tasks", "greedy"), ("heldout_tasks", "sampled"), ("heldout_bundle", "greedy"),
    ]  # fmt: skip
    assert rows[0].difference == difference and rows[1].difference is None
    assert list(rows[0].reports) == ["before"]
    lines = breakdown(rows[:1], "environment")
    assert lines == [
        {"set": "heldout_tasks", "mode": "greedy", "group": "museum", "tasks": 2, "values": {"before": 0.3}}
    ]


def test_pick_keeps_the_whole_range() -> None:
    rows = [{"n": n} for n in range(10)]
    assert [row["n"] for row in pick(rows, 5)] == [0, 2, 4, 6, 8]
    assert pick(rows, 20) == rows


def test_seconds_of_phases_without_steps_are_whole(run_dir: Path) -> None:
    from autoforge_jax.report.data import read_run

    assert seconds_by_activity(read_run(run_dir)) == [
        ("synthesis", 12.0), ("erpo: rollout", 6.0), ("erpo: train", 3.0), ("erpo: other", 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("phases.json", "[{", r"phases\.json is not JSON .*delete it and start"),
        ("phases.json", "[{}]", r"phases\.json: entry 1 is \{\}, expected name"),
        ("bundles.json", "{}", r"bundles\.json holds a dict.*the run's own command writes it again"),
        (
            "eval/before-heldout_tasks-greedy.json",
            '{"stage": "before"}',
            "no evaluation report .*or delete it",
        ),
        ("eval/before-heldout_tasks-greedy.json", '{"report": 3}', "no evaluation report .*or delete it"),
        ("metrics.jsonl", "{}\n{}\n", "line 1 is '{}', expected an object with phase and step"),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(
    file: str, content: str, message: str, run_dir: Path
) -> None:
    (run_dir / file).write_text(content)
    with pytest.raises(TrainingError, match=message):
        write_report(run_dir)


def test_the_config_is_read_from_either_copy(run_dir: Path) -> None:
    before = write_report(run_dir).read_text()
    (run_dir / "config.json").write_text("")
    assert write_report(run_dir).read_text() == before
