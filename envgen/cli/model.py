"""``envgen synth --proposer model|hybrid``: the client that the options describe, and what was asked."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import typer

from envgen.cli.views import cell, console, table
from envgen.llm.budget import Budget, BudgetedClient
from envgen.llm.cached import CachedClient
from envgen.llm.doubles import RecordingClient, ReplayClient
from envgen.llm.port import ChatClient, ServerSettings
from envgen.proposers.model import ModelDraft, propose_with_model
from envgen.proposers.model.asking import AskSettings
from envgen.tooldocs import combine, read_tool_doc
from envgen.types import ToolDoc

ANSWER_TIMEOUT_S = 600.0
"""A thinking model takes minutes for one answer."""


@dataclass(frozen=True)
class ModelOptions:
    """The options of synth that are about the model."""

    proposer: str
    base_url: str
    model: str
    api_key_env: str
    cache: Path | None
    record: Path | None
    replay: Path | None
    budget: Budget
    asking: AskSettings


def propose_for(paths: list[Path], servers: list[str], options: ModelOptions) -> ModelDraft:
    """The draft a model makes of documents. Raises BadParameter for options that do not go together."""
    if options.proposer not in ("model", "hybrid"):
        raise typer.BadParameter(f"--proposer: got {options.proposer!r}, expected rules, model or hybrid")
    if not paths and not servers:
        raise typer.BadParameter("got no document; expected DOC..., or --mcp 'COMMAND' or --mcp https://…")
    with ExitStack() as stack:
        client = _client(options, stack)
        document = _document(paths, servers)
        hybrid = options.proposer == "hybrid"
        return propose_with_model(document, client, options.asking, hybrid=hybrid)


def _document(paths: list[Path], servers: list[str]) -> Path | ToolDoc:
    """One file as its path, since it may be prose, which the model reads; else what the readers made."""
    if len(paths) == 1 and not servers:
        return paths[0]
    read = [read_tool_doc(path) for path in paths]
    if servers:
        from envgen.tooldocs.mcp_live import read_mcp_server

        read += [read_mcp_server(server) for server in servers]
    return combine(read)


def _client(options: ModelOptions, stack: ExitStack) -> ChatClient:
    """From the outside in: record, cache, budget, server. A replay stands in for all but the record."""
    if options.replay is not None:
        if options.base_url or options.cache:
            raise typer.BadParameter("--replay asks no server: leave --base-url and --cache out")
        client: ChatClient = ReplayClient(options.replay)
    else:
        if not options.base_url or not options.model:
            raise typer.BadParameter(
                f"--proposer {options.proposer} needs --base-url and --model (or --replay FILE)"
            )
        from envgen.llm.openai_compatible import OpenAICompatibleClient

        server = ServerSettings(
            base_url=options.base_url,
            model=options.model,
            api_key_env=options.api_key_env,
            timeout_s=ANSWER_TIMEOUT_S,
        )
        http = stack.enter_context(OpenAICompatibleClient(server))
        client = BudgetedClient(http, options.budget)
        if options.cache is not None:
            client = CachedClient(client, options.cache, options.model)
        else:
            http.check()
    return client if options.record is None else RecordingClient(client, options.record)


def show_model(made: ModelDraft, budget: Budget) -> None:
    """What the model was asked, and what its answers were refused for."""
    out = console()
    rows = table("question", "tries", "refused for")
    tries = Counter(f"{a.stage} {a.subject}" for a in made.attempts)
    for question, number in tries.items():
        problems = [a.problem for a in made.attempts if a.problem and f"{a.stage} {a.subject}" == question]
        for line, problem in enumerate(problems or [""]):
            first = (question, str(number)) if line == 0 else ("", "")
            rows.add_row(*(cell(text) for text in first), cell(problem[:300]))
    out.print(rows)
    prompt = sum(a.prompt_tokens for a in made.attempts)
    completion = sum(a.completion_tokens for a in made.attempts)
    priced = budget.prompt_price or budget.completion_price
    cost = f", cost {budget.cost(prompt, completion):.4f}" if priced else ""
    out.print(f"{len(made.attempts)} answers, {prompt} prompt and {completion} answer tokens{cost}")
