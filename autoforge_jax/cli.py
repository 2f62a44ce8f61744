"""`autoforge`: train a language-model agent in synthesised environments. No JAX and no envgen until a command
needs them.

    autoforge run CONFIG      every phase: synthesis, tokenizer, references, warm start, ERPO, evaluations,
                              export, report
    autoforge sft CONFIG      up to and including the warm start
    autoforge train CONFIG    ERPO from the run's warm-start checkpoint
    autoforge eval CONFIG     evaluate the run's newest checkpoint
    autoforge plan CONFIG     memory by part, work and least step time on named chips, without them
    autoforge preflight CONFIG  join the other processes of the mesh once: is everyone there
    autoforge report RUN_DIR  write RUN_DIR/report.html again
    autoforge meu-eval BUNDLE…  precision and recall of the judge of users on injected faults
    autoforge import-gguf SOURCE FOLDER  a Hugging Face folder for model.init_from from a GGUF file
    autoforge doctor          what this machine offers

Exit codes: 0 done; 1 `plan` finds that it does not fit; 2 a wrong config, file or run directory (``error: …``
lines on stderr, no traceback). SIGINT and SIGTERM end a run once its step is finished and saved, with 130 and
0 and a line ``resume with: …``: the same command goes on from there.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from autoforge_jax.config import Config

app = typer.Typer(
    name="autoforge",
    help="Tool documents in, an ERPO-trained language-model agent out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A TOML file, e.g. configs/quickstart.toml.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY.PATH=VALUE", help="Override one key, e.g. --set erpo.steps=10. Repeatable."
    ),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the resolved config as TOML and stop.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete what this run directory holds and start over.")]


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn the errors that both packages raise on purpose into ``error: …`` lines on stderr and exit code 2.

    Anything else is a defect and keeps its traceback. Of several processes all but the first say which they
    are.
    """
    from autoforge_jax.errors import AutoforgeError
    from envgen.interface import EnvgenError

    try:
        yield
    except (AutoforgeError, EnvgenError) as error:
        process = os.environ.get("AUTOFORGE_PROCESS_ID", "0")
        who = "" if process == "0" else f"process {process}: "
        for line in str(error).splitlines() or [type(error).__name__]:
            print(f"{who}error: {line}", file=sys.stderr)
        raise typer.Exit(2) from error


def _load(config: Path, overrides: list[str] | None, print_config: bool) -> Config:
    """The resolved config; with ``print_config`` it is printed and the command ends."""
    from autoforge_jax.config import dump_config, load_config
    from autoforge_jax.train.rundir import toml_text

    loaded = load_config(config, overrides or [])
    if print_config:
        print(toml_text(dump_config(loaded)), end="")
        raise typer.Exit(0)
    return loaded


def _go(command: str, config: Path, overrides: list[str] | None, print_config: bool, fresh: bool) -> None:
    with user_errors():
        loaded = _load(config, overrides, print_config)
        from autoforge_jax.train.distributed import joined
        from autoforge_jax.train.interrupt import Interrupted
        from autoforge_jax.train.loop import execute

        words = ["autoforge", command, str(config)]
        for text in overrides or []:
            words += ["--set", text]
        first = True
        try:
            with joined(loaded.mesh) as crew:
                first = crew.first
                execute(loaded, command=command, fresh=fresh, config_name=str(config), crew=crew)
        except Interrupted as stop:
            if first:
                print(f"stopped: {stop}", file=sys.stderr)
                print(f"resume with: {shlex.join(words)}", file=sys.stderr)
            raise typer.Exit(stop.exit_code) from stop


@app.command()
def run(
    config: ConfigPath, overrides: Overrides = None, print_config: PrintConfig = False, fresh: Fresh = False
) -> None:
    """Run every phase; what is finished is skipped, what was interrupted goes on."""
    _go("run", config, overrides, print_config, fresh)


@app.command()
def sft(
    config: ConfigPath, overrides: Overrides = None, print_config: PrintConfig = False, fresh: Fresh = False
) -> None:
    """Run up to and including the supervised warm start."""
    _go("sft", config, overrides, print_config, fresh)


@app.command()
def train(config: ConfigPath, overrides: Overrides = None, print_config: PrintConfig = False) -> None:
    """Run ERPO from the warm-start checkpoint of this run."""
    _go("train", config, overrides, print_config, fresh=False)


@app.command(name="eval")
def evaluate(config: ConfigPath, overrides: Overrides = None, print_config: PrintConfig = False) -> None:
    """Evaluate the newest checkpoint of this run; evaluation settings may differ from the run's."""
    _go("eval", config, overrides, print_config, fresh=False)


@app.command()
def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    chip: Annotated[
        str, typer.Option("--chip", help="Plan for this chip instead of the config's mesh.chip, e.g. h200.")
    ] = "",
    compiling: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Also compile the run's programs for its chips, without having any (docs/scale.md).",
        ),
    ] = False,
    topology: Annotated[
        str, typer.Option("--topology", help="With --compile: of one TPU slice, e.g. v5p:2x4x8.")
    ] = "",
    slices: Annotated[
        int, typer.Option("--slices", help="With --compile: slices of TPUs, hosts of GPUs.")
    ] = 1,
) -> None:
    """Print memory by part and least step time, without the hardware; exit code 1 when it does not fit."""
    with user_errors():
        loaded = _load(config, overrides, False)
        if compiling:
            os.environ["JAX_PLATFORMS"] = "cpu"  # the compiler is for compiling only, whatever is here
        from autoforge_jax.plan.report import make_plan, plan_text

        made = make_plan(loaded, chip)
        print(plan_text(made), flush=True)
        fits = made.fits
        if compiling:
            from autoforge_jax.plan.compiled import compile_plan, compiled_text

            compiled = compile_plan(made, topology, slices)
            print(compiled_text(compiled, made))
            fits = compiled.largest.total <= made.room
    if not fits:
        raise typer.Exit(1)


@app.command()
def preflight(config: ConfigPath, overrides: Overrides = None) -> None:
    """Join the other processes of the mesh section, meet them once and print who is there."""
    with user_errors():
        loaded = _load(config, overrides, False)
        from autoforge_jax.train.distributed import preflight as meet

        print(meet(loaded.mesh))


@app.command()
def report(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run, e.g. runs/quickstart.")
    ],
) -> None:
    """Write RUN_DIR/report.html from what the run directory holds."""
    with user_errors():
        from autoforge_jax.report.build import write_report

        print(write_report(run_dir))


@app.command()
def study(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Runs of one config, one seed each.")
    ],
) -> None:
    """Print one Markdown table for several seeds: success at every stage, ERPO's paired gain, minutes."""
    with user_errors():
        from autoforge_jax.train.study import study_table

        print(study_table(run_dirs))


@app.command(name="meu-eval")
def meu_eval(
    bundles: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE...", help="Folders written by envgen synth.")
    ],
    config: Annotated[
        Path | None, typer.Option(help="A config whose user and judge sections are measured.")
    ] = None,
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option(min=0, help="First tasks of each bundle; 0 = all.")] = 0,
    kind: Annotated[list[str] | None, typer.Option(help="A fault kind; repeatable. All without.")] = None,
    seed: Annotated[int, typer.Option(help="Same bundles and seed: same episodes.")] = 0,
    sentences: Annotated[
        Path | None, typer.Option(help="JSON file with other words for the mistakes.")
    ] = None,
    episodes: Annotated[Path | None, typer.Option(help="Write every judged episode to this file.")] = None,
) -> None:
    """Measure the judge of users (MEU): precision and recall against injected faults, by fault kind.

    Without --config: the scripted user in varied wording, judged by the rules.
    """
    with user_errors():
        from autoforge_jax.train.meu_eval import measure, meu_config, meu_table, write_episodes

        chosen = meu_config(config, overrides or [])
        judged = measure(bundles, chosen, tasks=tasks, kinds=kind or [], seed=seed, sentences=sentences)
        if episodes is not None:
            write_episodes(judged, episodes)
        print(meu_table(judged, chosen))


@app.command(name="import-gguf")
def import_gguf(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A .gguf file, or an installed package that holds one.")
    ],
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Written whole; an older folder of this name is replaced."),
    ],
) -> None:
    """Write a Hugging Face folder (weights, config, tokenizer, chat template) from a GGUF file."""
    with user_errors():
        from autoforge_jax.model.gguf_file import import_gguf as convert

        shape = convert(source, folder)
        print(f"{folder}: {shape.architecture}, {shape.num_parameters:,} parameters, float32")


@app.command()
def doctor() -> None:
    """Print what this machine offers: Python, packages, JAX devices, cores, memory, isolation of tools."""
    with user_errors():
        from autoforge_jax.doctor import findings

        for name, value in findings():
            print(f"{name:<22} {value}")


def main() -> None:
    """Entry point of the `autoforge` script."""
    from autoforge_jax.xla_flags import prepare_process

    prepare_process()
    app()


if __name__ == "__main__":
    main()
