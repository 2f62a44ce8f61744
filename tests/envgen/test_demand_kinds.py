"""Demands and look-ups of the less common kinds: amounts, lists of plain values, calls that go by a name or
by words, records that get the one just made."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from envgen.store import Bundle
from envgen.synthesis.blueprint import infer
from envgen.synthesis.catalog import Catalog
from envgen.synthesis.catalog_build import build_catalog
from envgen.synthesis.certify import validate
from envgen.synthesis.coverage import edges_used, full_sequence
from envgen.synthesis.pipeline import read_and_propose, synthesize
from envgen.synthesis.sequences import ShapeSampler
from envgen.types import BlueprintNode, Task


@cache
def bundle(path: Path, tasks: int = 40) -> Bundle:
    return synthesize(path, tasks=tasks, heldout=tasks // 4, seed=0)


def trading(shared_tooldocs: Path) -> Bundle:
    return bundle(shared_tooldocs / "bfcl_trading_bot.jsonl.json")


def auth0(shared_tooldocs: Path) -> Bundle:
    return bundle(shared_tooldocs / "toolalpaca_auth0_plaintext.json")


@cache
def github(path: Path) -> Catalog:
    return build_catalog(read_and_propose(path, None)[1])


def balance(task: Task, *, after: bool) -> float:
    state = task.accepted_states[0] if after else task.initial_state
    return next(iter(state["accounts"].values()))["balance"]


def test_amounts_are_said_and_change_the_balance_by_what_is_said(shared_tooldocs: Path) -> None:
    signs = {"fund_account": 1, "withdraw_funds": -1}
    tasks = [t for t in trading(shared_tooldocs).tasks if signs.keys() & set(full_sequence(t))]
    for tool in signs:
        assert sum(tool in full_sequence(t) for t in tasks) >= 3
    for task in tasks:
        amounts = [(signs[s.tool], s.arguments["amount"]) for s in task.reference if s.tool in signs]
        change = sum(sign * amount for sign, amount in amounts)
        assert balance(task, after=True) == balance(task, after=False) + change
        assert balance(task, after=False) >= sum(amount for sign, amount in amounts if sign < 0)
        assert all(f"{amount}" in task.instruction and amount > 0 for _, amount in amounts)
        assert "my balance" not in task.instruction and "account" in task.instruction


def test_lists_of_codes_and_calls_by_name_lead_somewhere(shared_tooldocs: Path) -> None:
    made = trading(shared_tooldocs)
    coverage = made.report.coverage
    assert coverage is not None and coverage.edges_used >= 0.8 * coverage.edges_executable
    used = {(a, b) for task in made.tasks for a, b, _ in edges_used(task)}
    assert {
        ("get_order_history", "cancel_order"),
        ("get_watchlist", "remove_stock_from_watchlist"),
        ("get_available_stocks", "place_order"),
        ("get_symbol_by_name", "place_order"),
    } <= used
    assert "get_watchlist -> add_to_watchlist.stock" not in coverage.edges_unused  # it is there already
    assert all(certificate.certified for certificate in validate(made))


def test_all_means_every_one_that_the_list_shows(shared_tooldocs: Path) -> None:
    tasks = [t for t in trading(shared_tooldocs).tasks if "get_order_history" in full_sequence(t)]
    assert tasks
    for task in tasks:
        assert "all orders" in task.instruction
        cancelled = {s.arguments["order_id"] for s in task.reference if s.tool == "cancel_order"}
        assert {str(k) for k in cancelled} == set(task.initial_state["orders"])


def test_a_conclusion_without_a_condition_takes_every_value() -> None:
    node = BlueprintNode(id="r0", kind="reasoning", reasoning="filter", elements=("0:codes[]",))
    assert infer(node, [{"codes": ["A", "B"]}]) == ["A", "B"]


def test_what_nobody_can_say_is_never_drawn(shared_tooldocs: Path) -> None:
    made = auth0(shared_tooldocs)
    sampler_tools = {t for task in made.tasks for t in full_sequence(task)}
    assert "updateUserProfile" not in sampler_tools
    assert len({full_sequence(t) for t in made.tasks}) >= 0.95 * len(made.tasks)
    assert {t.difficulty for t in made.tasks} >= {1, 3, 4, 5}


def test_another_record_gets_the_one_just_made(shared_tooldocs: Path) -> None:
    edge = ("createRole", "assignUserRole", "roleId")
    tasks = [t for t in auth0(shared_tooldocs).tasks if edge in edges_used(t)]
    assert tasks
    assert all("the new role" in t.instruction or "that new role" in t.instruction for t in tasks)


def test_a_new_record_s_place_is_said_once(shared_tooldocs: Path) -> None:
    made = bundle(shared_tooldocs / "github_mcp_toolslist.json", 60)
    found = 0
    for task in made.tasks:
        for source, tool, param in edges_used(task):
            if source != "create_issue" or param != "issue_number":
                continue
            maker = [s.arguments for s in task.reference if s.tool == source]
            places = {(a["owner"], a["repo"]) for a in maker}
            user = [s.arguments for s in task.reference if s.tool == tool]
            assert any((a["owner"], a["repo"]) in places for a in user)
            found += 1
    assert found
    coverage = made.report.coverage
    assert coverage is not None and coverage.edges_used >= 0.8 * coverage.edges_executable
    assert min(coverage.tasks_per_writer.values()) >= 3


def test_a_search_for_words_finds_one_record(shared_tooldocs: Path) -> None:
    catalog = github(shared_tooldocs / "github_mcp_toolslist.json")
    access = next(a for a in catalog.accesses["repositories"] if a.tool == "search_repositories")
    assert access.by_text and access.given == (("query", "description"),)
    edges = draft_edges(catalog)
    assert ("search_repositories", "star_repository", "repo") in edges


def draft_edges(catalog: Catalog) -> set[tuple[str, str, str]]:
    """Edges of many shapes of the repository tools."""
    sampler = ShapeSampler(catalog, random.Random(1))
    writers = [w for w in catalog.writers if w.collection == "repositories"]
    shapes = [sampler.shape(w, hidden=False) for w in writers for _ in range(60)]
    return {edge for shape in shapes if shape is not None for edge in shape.edges()}
