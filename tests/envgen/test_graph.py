"""The tool graph: which output can be which input, checked by hand on the examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.proposers.rules import propose
from envgen.synthesis.graph import build_graph
from envgen.tooldocs import read_tool_doc
from envgen.types import ToolGraph


def graph_of(examples_dir: Path, file: str) -> ToolGraph:
    return build_graph(propose(read_tool_doc(examples_dir / file)))


@pytest.fixture
def checklist(examples_dir: Path) -> ToolGraph:
    return graph_of(examples_dir, "docker_simplechecklist_tools.json")


def pairs(graph: ToolGraph, source: str) -> set[tuple[str, str, str]]:
    return {(e.target, e.output_path, e.param) for e in graph.edges if e.source == source}


def test_a_list_feeds_everything_keyed_by_its_records(checklist: ToolGraph) -> None:
    assert pairs(checklist, "list_projects") == {
        (tool, "[].project_id", "project_id")
        for tool in (
            "get_project",
            "update_project",
            "delete_project",
            "list_groups",
            "create_group",
            "get_project_stats",
        )
    }


def test_a_record_feeds_its_own_key_and_its_parents(checklist: ToolGraph) -> None:
    found = pairs(checklist, "list_subtasks")
    assert ("toggle_subtask_completion", "[].subtask_id", "subtask_id") in found  # its key
    assert ("delete_task", "[].task_id", "task_id") in found  # the foreign key
    assert not {target for target, _, _ in found} & {"get_project", "list_groups"}  # no project in a subtask


def test_deleted_keys_feed_nothing(checklist: ToolGraph) -> None:
    assert pairs(checklist, "delete_task") == set()
    assert {e.target for e in checklist.edges} & {"delete_task"}


def test_wrapped_results_and_named_keys(examples_dir: Path) -> None:
    graph = graph_of(examples_dir, "conduit_openapi31.yml")
    found = pairs(graph, "GetArticles")
    assert ("DeleteArticle", "articles[].slug", "slug") in found
    assert ("FollowUserByUsername", "articles[].author.username", "username") in found
    assert ("DeleteArticleComment", "comments[].id", "id") in pairs(graph, "GetArticleComments")


def test_equal_types_are_no_data_flow(examples_dir: Path) -> None:
    graph = graph_of(examples_dir, "museum_openapi31.yaml")
    assert pairs(graph, "getMuseumHours") == set()  # its key is a date; nothing is looked up by it
    assert ("buyMuseumTickets", "[].eventId", "eventId") in pairs(graph, "listSpecialEvents")
    assert pairs(graph, "buyMuseumTickets") >= {("getSpecialEvent", "eventId", "eventId")}


def test_nodes_and_edges_are_in_document_order_and_real(checklist: ToolGraph) -> None:
    assert checklist.nodes[0] == "list_projects" and len(set(checklist.nodes)) == 20
    assert len({(e.source, e.target, e.param) for e in checklist.edges}) == len(checklist.edges)
    assert all(e.source in checklist.nodes and e.target in checklist.nodes for e in checklist.edges)
