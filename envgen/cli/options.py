"""Options that several commands share, and what they say once they are read.

Everything heavy is imported inside the functions, so that ``envgen --help`` starts at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # only for types: these imports are slow
    from envgen.store import Bundle
    from envgen.types import Task, ToolDoc

DocsArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="DOC...", help="OpenAPI, MCP, function-calling or Markdown documents."),
]
McpOption = Annotated[
    list[str] | None,
    typer.Option("--mcp", metavar="SERVER", help="A running MCP server: a command line, or http(s)://…"),
]
DifficultyOption = Annotated[
    str, typer.Option(metavar="LEVELS", help="Levels wanted: 3, 2-4 or 1,5. All where left out.")
]
DemandsOption = Annotated[
    int, typer.Option(min=0, help="Wishes of the user in one task at most; 0: as the level says.")
]
AnswerOption = Annotated[
    float,
    typer.Option(min=0, max=1, help="Share of tasks that ask a question (all, where DOC changes nothing)."),
]
ForbiddenOption = Annotated[
    float,
    typer.Option(min=0, max=1, help="Share of tasks that ask for what a rule forbids (adds rules)."),
]
WorkersOption = Annotated[
    int, typer.Option(min=1, help="Processes (or Ray tasks) at once. The bundle does not depend on it.")
]
ExecutorOption = Annotated[str, typer.Option(help="local, or ray (needs the extra [ray]).")]
RayOption = Annotated[
    str, typer.Option(metavar="ADDRESS", help="A running Ray cluster; one is started here when left out.")
]
BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder written by envgen synth.")]


def documents_of(paths: list[Path] | None, servers: list[str] | None) -> ToolDoc:
    """The documents and servers of a command line, read and combined. Raises typer.BadParameter where there
    are none."""
    from envgen.tooldocs import combine, read_tool_doc

    read = [read_tool_doc(path) for path in paths or []]
    if servers:
        from envgen.tooldocs.mcp_live import read_mcp_server

        read += [read_mcp_server(server) for server in servers]
    if not read:
        raise typer.BadParameter("got no document; expected DOC..., or --mcp 'COMMAND' or --mcp https://…")
    return combine(read)


def levels_of(text: str) -> tuple[int, ...]:
    """The levels that ``--difficulty`` names, none where it is left out. Raises typer.BadParameter."""
    from envgen.synthesis.difficulty import parse_levels

    try:
        return parse_levels(text) if text else ()
    except ValueError as error:
        raise typer.BadParameter(f"--difficulty: {error}") from error


def check_heldout(tasks: int, heldout: int) -> None:
    """Refuses to hold out every task. Raises typer.BadParameter."""
    if heldout >= tasks:
        raise typer.BadParameter(f"--heldout {heldout} of --tasks {tasks} leaves none to train on; lower it")


def check_shares(answer_share: float, forbidden_share: float) -> None:
    """Refuses shares of kinds of task that are more than all tasks. Raises typer.BadParameter."""
    if answer_share + forbidden_share > 1:
        raise typer.BadParameter(
            f"--answer-share {answer_share} and --forbidden-share {forbidden_share} are more than all tasks; "
            "together they are at most 1"
        )


def find_task(bundle: Bundle, task_id: str) -> Task:
    """The task of a bundle that the command line names. Raises TaskError where there is none."""
    from envgen.errors import TaskError

    try:
        return bundle.task(task_id)
    except KeyError as error:
        raise TaskError(error.args[0]) from error


def check_output(path: Path, *, force: bool) -> None:
    """Refuses a target that cannot be written, or that holds a bundle already, before the work is done.
    Raises BundleError."""
    from envgen.errors import BundleError
    from envgen.store import check_target

    if (path / "manifest.json").is_file() and not force:
        raise BundleError(
            f"{path}: a bundle stands there already; give --force to replace it, or another path"
        )
    check_target(path)
