"""The `concilium` command: its parts, its exit codes.

0 done; 1 a fault of ours, with a traceback; 2 something the user can fix, in one sentence; 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from concilium.cli import (
    adapt,
    ask,
    audit,
    cds,
    check,
    columns,
    console,
    consult,
    demo,
    donors,
    evaluate,
    flare,
    gateway,
    identity,
    ledger,
    policy,
    run,
    share,
    studies,
)
from concilium.cli.output import say, warn
from concilium.errors import MORE_MEMORY, ConciliumError, lacks_memory


class _Commands(TyperGroup):
    """All commands, with the one place where an error becomes a sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConciliumError as error:
            warn(str(error))
            raise typer.Exit(2) from None
        except Exception as error:
            if not lacks_memory(error):
                raise
            warn(f"there is not enough memory for this ({error}); {MORE_MEMORY}")
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("demo", short_help="Everything, on real patients.")(demo.demo)
app.command("run", short_help="Run a study: model, metrics, card, report.")(run.run)
app.command("dictionary", short_help="Draft a dictionary from the tables of a study.")(check.dictionary)
app.command("check", short_help="Does a hospital's table fit a study?")(check.check)
app.command("ask", short_help="Patients like mine: ask as often as needed.")(ask.ask)
app.command("consult", short_help="Predict for a patient, with reasons.")(consult.consult)
app.command("evaluate", short_help="Measure a model at hospitals that did not make it.")(evaluate.evaluate)
app.command("donors", short_help="Who lends a model to hospitals with few patients?")(donors.donors)
app.command("adapt", short_help="Adapt a model to a hospital's own patients, locally.")(adapt.adapt)
app.command("audit", short_help="Attack a model: whom does it give away?")(audit.audit)
app.command("share", short_help="Share coded histories, sensitive codes randomised.")(share.share)
app.add_typer(identity.app, name="identity", short_help="A hospital's fingerprint, for its peers.")
app.add_typer(studies.app, name="studies", short_help="What is proposed to a hospital; agree or refuse.")
app.add_typer(ledger.app, name="ledger", short_help="What a hospital has released; what is left.")
app.add_typer(columns.app, name="columns", short_help="Large tables on disk: list, check, remove.")
app.add_typer(policy.app, name="policy", short_help="What a policy says, and what it would do.")
app.add_typer(flare.app, name="flare", short_help="The same studies across machines.")
app.add_typer(console.app, name="console", short_help="Pages for clinician, steward and scientist.")
app.command("cds", short_help="Serve models to an EHR (CDS Hooks).")(cds.cds)
app.command("gateway", short_help="Filter messages by a policy, over HTTP.")(gateway.gateway)


def _show_version(value: bool) -> None:
    if value:
        import concilium

        say(f"concilium {concilium.__version__}")
        raise typer.Exit


@app.callback()
def _concilium_command(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end."),
    ] = False,
) -> None:
    """Hospitals that decide together, and keep their patients to themselves.

    \b
    Start here:
      concilium demo                            everything, on real patients
      concilium run study.toml --out results    a study of your own
    """


def main(arguments: list[str] | None = None) -> None:
    """The entry point of the installed command."""
    app(arguments, prog_name="concilium")


if __name__ == "__main__":
    main()
