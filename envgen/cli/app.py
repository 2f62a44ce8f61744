"""The commands. What they end with is in `envgen.cli.entry`.

Everything heavy is imported inside the commands, so that ``envgen --help`` starts at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envgen.cli.options import (
    AnswerOption,
    BundleArgument,
    DemandsOption,
    DifficultyOption,
    DocsArgument,
    ExecutorOption,
    ForbiddenOption,
    McpOption,
    RayOption,
    WorkersOption,
    check_heldout,
    check_output,
    check_shares,
    documents_of,
    find_task,
    levels_of,
)

if TYPE_CHECKING:  # only for types: these imports are slow
    from envgen.store import Bundle
    from envgen.synthesis.pipeline import Wanted
    from envgen.types import EnvironmentDraft

app = typer.Typer(
    name="envgen",
    help="Tool documents in, executable environments with self-proving tasks out.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command("lint")
def lint_command(docs: DocsArgument = None, mcp: McpOption = None) -> None:
    """Read DOC (several: together) and list what is missing or wrong in it, and which tools the rules refuse.

    Exit code 1 when no environment can come of it.
    """
    from envgen.cli.views import show_lint
    from envgen.synthesis.audit import audit

    document = documents_of(docs, mcp)
    findings = audit(document)
    show_lint(document, findings)
    if any(finding.level == "refusal" for finding in findings):
        raise typer.Exit(1)


@app.command("synth")
def synth_command(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="BUNDLE", help="Folder to write.")],
    docs: DocsArgument = None,
    mcp: McpOption = None,
    tasks: Annotated[int, typer.Option(min=1, help="Certified tasks to make, in all.")] = 80,
    heldout: Annotated[int, typer.Option(min=0, help="How many of them are held out.")] = 20,
    seed: Annotated[int, typer.Option(help="Same document, numbers and seed: same bytes.")] = 0,
    max_difficulty: Annotated[int, typer.Option(min=1, max=5, help="Hardest level of task.")] = 5,
    difficulty: DifficultyOption = "",
    max_demands: DemandsOption = 0,
    name: Annotated[str | None, typer.Option(help="Name of the bundle; from DOC when left out.")] = None,
    confirm_writes: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL|VERB", help="Tool that needs the user's go-ahead; may be repeated."),
    ] = None,
    user_tool: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL|VERB", help="Tool that only the user holds; may be repeated."),
    ] = None,
    proposer: Annotated[
        str, typer.Option(help="rules (no model), model, or hybrid (a model for what the rules refuse).")
    ] = "rules",
    base_url: Annotated[
        str, typer.Option(metavar="URL", help="OpenAI-compatible server, up to /v1 (model, hybrid).")
    ] = "",
    model: Annotated[str, typer.Option(help="Name of the model there.")] = "",
    api_key_env: Annotated[
        str, typer.Option(metavar="VARIABLE", help="Environment variable with the server's key.")
    ] = "",
    cache: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the model's answers here; a rerun resumes.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append every call and answer here (JSON lines).")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take the answers from a record; no model is asked.")
    ] = None,
    token_budget: Annotated[int, typer.Option(min=0, help="Tokens the model may use; 0: no limit.")] = 0,
    cost_budget: Annotated[float, typer.Option(min=0, help="Money it may cost; 0: no limit.")] = 0.0,
    prices: Annotated[
        tuple[float, float], typer.Option(help="Price of a million prompt tokens and answer tokens.")
    ] = (0.0, 0.0),
    tries: Annotated[int, typer.Option(min=1, help="Answers to one question, repairs included.")] = 3,
    answer_tokens: Annotated[int, typer.Option(min=64, help="Tokens of one answer, with thinking.")] = 8192,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions to the model at once.")] = 4,
    community: Annotated[
        str, typer.Option(metavar="NAME", help="Only this part of a large document (rules).")
    ] = "",
    whole: Annotated[
        bool, typer.Option("--whole", help="One bundle also of a document of 100 tools or more.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the bundle that stands at BUNDLE.")] = False,
    answer_share: AnswerOption = 0.0,
    forbidden_share: ForbiddenOption = 0.0,
    workers: WorkersOption = 1,
    executor: ExecutorOption = "local",
    ray_address: RayOption = "",
) -> None:
    """Make an environment and tasks out of DOC, certify every task, and write them to BUNDLE.

    Several documents and servers make one environment, in which they share the records they both speak of.
    A run that was cut short goes on where it was when the same command is given again.
    """
    from envgen.cli.making import Execution, make
    from envgen.cli.views import show_account
    from envgen.synthesis.communities import LARGE
    from envgen.synthesis.pipeline import make_order, read_and_propose
    from envgen.synthesis.workspace import workspace_for

    check_heldout(tasks, heldout)
    check_output(output, force=force)
    execution = Execution(executor, workers, ray_address)
    wanted: Wanted = {
        "tasks": tasks,
        "heldout": heldout,
        "seed": seed,
        "max_difficulty": max_difficulty,
        "levels": levels_of(difficulty),
        "max_demands": max_demands,
        "confirm_writes": confirm_writes or (),
        "user_tools": user_tool or (),
        "answer_share": answer_share,
        "forbidden_share": forbidden_share,
    }
    check_shares(answer_share, forbidden_share)

    def named(draft: EnvironmentDraft) -> EnvironmentDraft:
        return draft if name is None else draft.model_copy(update={"name": name})

    asked = {"base_url": base_url, "model": model, "api_key_env": api_key_env}
    if proposer == "rules":
        for option, value in {**asked, "cache": cache, "record": record, "replay": replay}.items():
            if value:
                raise typer.BadParameter(f"--{option.replace('_', '-')} needs --proposer model or hybrid")
        one = docs[0] if docs and len(docs) == 1 and not mcp else None
        document = one if one is not None else documents_of(docs, mcp)
        doc, draft = read_and_propose(document, workspace_for(output))
        if community or (len(doc.tools) >= LARGE and not whole):
            from envgen.cli.communities import synth_communities

            def make_part(part: EnvironmentDraft, target: Path) -> Bundle:
                return make(make_order(doc, named(part), **wanted), target, execution)

            synth_communities(doc, draft, output, community, make_part, force=force)
            return
        show_account(make(make_order(doc, named(draft), **wanted), output, execution), output)
        return
    from envgen.cli.model import ModelOptions, propose_for, show_model
    from envgen.llm.budget import Budget
    from envgen.proposers.model.asking import AskSettings

    if cost_budget and not any(prices):
        raise typer.BadParameter(
            "--cost-budget without prices; give --prices PROMPT ANSWER per million tokens"
        )
    options = ModelOptions(
        **asked,
        proposer=proposer,
        # Without a folder of their own the answers lie with the other stages, until the bundle stands.
        cache=cache if cache is not None or replay is not None else workspace_for(output).folder / "answers",
        record=record,
        replay=replay,
        budget=Budget(token_budget, cost_budget, *prices),
        asking=AskSettings(tries=tries, max_tokens=answer_tokens, concurrency=concurrency),
    )
    made = propose_for(docs or [], mcp or [], options)
    order = make_order(made.doc, named(made.draft), provenance=made.provenance, **wanted)
    show_account(make(order, output, execution), output)
    show_model(made, options.budget)


@app.command("batch")
def batch_command(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Folder of the bundles.")],
    docs: Annotated[list[Path], typer.Argument(metavar="DOC...", help="Documents, each for itself.")],
    seeds: Annotated[
        list[int] | None, typer.Option("--seed", help="May be repeated: a bundle for each. 0 when left out.")
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Certified tasks of each bundle.")] = 80,
    heldout: Annotated[int, typer.Option(min=0, help="How many of them are held out.")] = 20,
    difficulty: DifficultyOption = "",
    max_demands: DemandsOption = 0,
    answer_share: AnswerOption = 0.0,
    forbidden_share: ForbiddenOption = 0.0,
    workers: WorkersOption = 1,
    executor: ExecutorOption = "local",
    ray_address: RayOption = "",
) -> None:
    """Make a bundle of every DOC and seed with the rules, several side by side, and print one table.

    What stands already is not made again. Exit code 1 when some document gives no bundle.
    """
    import time

    from envgen.cli.making import Execution, make_many, show_batch
    from envgen.synthesis.batch import jobs_for

    check_heldout(tasks, heldout)
    check_shares(answer_share, forbidden_share)
    wanted: Wanted = {
        "tasks": tasks,
        "heldout": heldout,
        "seed": 0,
        "levels": levels_of(difficulty),
        "max_demands": max_demands,
        "answer_share": answer_share,
        "forbidden_share": forbidden_share,
    }
    started = time.perf_counter()
    rows = make_many(jobs_for(docs, output, seeds or [0], wanted), Execution(executor, workers, ray_address))
    show_batch(rows, time.perf_counter() - started)
    if not all(row.bundle for row in rows):
        raise typer.Exit(1)


@app.command("validate")
def validate_command(bundle: BundleArgument) -> None:
    """Prove every certificate of BUNDLE again. Exit code 1 when a task does not pass."""
    from envgen.cli.views import show_validation
    from envgen.store import load_bundle
    from envgen.synthesis.certify import validate

    loaded = load_bundle(bundle)
    if not show_validation(loaded, validate(loaded)):
        raise typer.Exit(1)


@app.command("show")
def show_command(
    bundle: BundleArgument,
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Id of one task.")] = None,
    provenance: Annotated[
        bool, typer.Option("--provenance", help="Where every tool, parameter, rule and field comes from.")
    ] = False,
) -> None:
    """Show BUNDLE (tools, state, refused tools, tasks), or one TASK with its reference and certificate."""
    from envgen.cli.show import show_bundle, show_task
    from envgen.store import load_bundle

    loaded = load_bundle(bundle)
    if provenance:
        from envgen.cli.origins import show_provenance

        show_provenance(loaded)
    elif task is None:
        show_bundle(loaded)
    else:
        show_task(loaded, find_task(loaded, task))


@app.command("play")
def play_command(
    bundle: BundleArgument,
    task: Annotated[str, typer.Argument(metavar="TASK", help="Id of one task.")],
    seed: Annotated[int, typer.Option(help="Seed of the episode.")] = 0,
) -> None:
    """Be the agent of TASK: call tools and talk to the user; the verdict comes at the end."""
    from envgen.cli.play import play
    from envgen.store import load_bundle

    loaded = load_bundle(bundle)
    play(loaded, find_task(loaded, task), seed=seed)


@app.command("doctor")
def doctor_command() -> None:
    """Print how this machine can contain functions that are not vetted. Exit code 1 when it cannot."""
    from envgen.runtime.isolation.capabilities import capabilities, isolation_report

    for name, value in isolation_report():
        print(f"{name:<14} {value}")
    if not capabilities().contained:
        raise typer.Exit(1)


@app.command("regrade")
def regrade_command(
    bundle: BundleArgument,
    trajectories: Annotated[
        Path, typer.Argument(metavar="TRAJECTORIES", help="JSON lines with task_id and messages.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write every verdict here (JSON lines)."),
    ] = None,
) -> None:
    """Judge stored TRAJECTORIES again by BUNDLE as it is now. Exit code 1 when a verdict moved."""
    from envgen.cli.regrade import regrade_file
    from envgen.store import load_bundle

    if not regrade_file(load_bundle(bundle), trajectories, output):
        raise typer.Exit(1)
