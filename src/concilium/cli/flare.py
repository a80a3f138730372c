"""`concilium flare`: the same studies across machines, on NVIDIA FLARE."""

from __future__ import annotations

import functools
import importlib.util
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from concilium.cli.output import Json, Tell, refuse_file, say, say_json, say_table, show_progress, warn
from concilium.cli.results import tell_all
from concilium.cli.run import MetricsJson, StudyFile, Wait, say_pending, tell_plan
from concilium.errors import (
    CannotResume,
    HouseError,
    KitError,
    MissingExtra,
    RunStopped,
    StudyError,
    StudyPending,
)

if TYPE_CHECKING:
    from concilium.consultations.passes import RequesterPass
    from concilium.study import Study
    from concilium.transports.flare.kit import Kit

R = TypeVar("R")
app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

# Seconds between two jobs that ask whether stewards have decided.
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 300.0

Folder = Annotated[Path, typer.Argument(metavar="KIT", help="The folder of the kit.", file_okay=False)]
PersonKit = Annotated[
    Path,
    typer.Option(
        "--kit", metavar="DIR", envvar="CONCILIUM_KIT", help="Your own kit, as `flare provision` made it."
    ),
]


@app.callback()
def flare() -> None:
    """Run studies across machines: hospitals dial out to a house, over mutual TLS, and send no record.

    \b
    Example:
      concilium flare provision network.toml --out kits
      concilium flare house kits/house
      concilium flare site kits/north
      concilium flare submit study.toml --kit kits/ana@example.org --out results
    """


@app.command(short_help="Make the kits of a network.")
def provision(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project file (TOML).")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the kits go.")],
    renew: Annotated[
        list[str] | None, typer.Option(metavar="KIT", help="Give this kit a new certificate and key.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a kit for the house, for each hospital and for each person who submits studies.

    Kits that are there already stay as they are: add a hospital to the file and run it again. A certificate holds for
    360 days; --renew makes another, which replaces the folder `startup` of a kit and nothing else. Keep DIR/authority
    safe: who has it can let anybody connect, though nobody can answer for a hospital.

    \b
    Example:
      concilium flare provision network.toml --out kits
      concilium flare provision network.toml --out kits --renew north
    """
    require_flare()
    from concilium.transports.flare.provisioning import FlareProject
    from concilium.transports.flare.provisioning import provision as make

    made = make(FlareProject.read(project), out, renew or ())
    if as_json:
        say_json({name: str(folder) for name, folder in made.items()})
        return
    for name, folder in made.items():
        say(f"{name}: {folder}")
    if renew:
        say("send each its new folder startup, to put in place of the old one; then they start again")
    else:
        say("send each its own kit and no other; each has a file local/concilium.toml to fill in")


@app.command(short_help="Run a hospital's site, in the foreground.")
def site(
    kit: Folder,
    check: Annotated[bool, typer.Option("--check", help="Check everything, and end.")] = False,
) -> None:
    """Run a hospital's site: it dials the house and answers its questions through the gate, until it is ended (Ctrl-C).

    Records, policy and ledger are named in KIT/local/concilium.toml; its log is KIT/concilium.log.

    \b
    Example:
      concilium flare site kits/north
    """
    require_flare()
    from concilium.transports.flare.kit import Kit
    from concilium.transports.flare.starting import become_site, hold_kit, prepare_site

    own = Kit.open(kit, "site")
    if not check:
        hold_kit(own)
    prepare_site(own, say, wait=not check)
    if not check:
        become_site(own)


@app.command(short_help="Run the house, in the foreground.")
def house(
    kit: Folder,
    check: Annotated[bool, typer.Option("--check", help="Check everything, and end.")] = False,
) -> None:
    """Run the house, at which hospitals and those who submit studies arrive, until it is ended (Ctrl-C).

    \b
    Example:
      concilium flare house kits/house
    """
    require_flare()
    from concilium.transports.flare.kit import Kit
    from concilium.transports.flare.starting import become_house, hold_kit, prepare_house

    own = Kit.open(kit, "house")
    if not check:
        hold_kit(own)
    prepare_house(own, say)
    if not check:
        become_house(own)


@app.command(short_help="Have the house run a study; fetch its results.")
def submit(
    study: StudyFile,
    kit: PersonKit,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder for the results.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a study that was submitted to the same folder.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what it would ask and cost; submit nothing.")
    ] = False,
    wait: Wait = None,
    as_json: MetricsJson = False,
) -> None:
    """Submit a study to the house, show its rounds, and fetch model, metrics, card and report.

    Where a hospital's steward has to agree first, it says so and ends, or waits; --resume goes on in the same terms.

    \b
    Example:
      concilium flare submit study.toml --kit kits/ana@example.org --plan
      concilium flare submit study.toml --kit kits/ana@example.org --out results
    """
    require_flare()
    from concilium.study import Study
    from concilium.transports.flare.kit import Kit

    definition = Study.read(study, elsewhere=True)
    if plan:
        tell_plan(definition, definition.plan(), as_json)
        return
    if out is None:
        raise StudyError("say where the results go: --out DIR (or --plan, to see what it would cost)")
    own = open_own(Kit.open(kit, "person"))
    refuse_file(out.absolute())
    patience = definition.house.patience if wait is None else wait
    from concilium.transports.flare.submitting import submit_study

    again = ["concilium", "flare", "submit", str(study), "--kit", str(own.folder), "--out", str(out)]
    with show_progress(quiet=as_json) as tell:
        submit = functools.partial(submit_study, definition, own, out, tell=tell, warn=warn)
        results = submit_until(definition, submit, again, resume, patience, tell)
    if as_json:
        say_json(results.metrics)
        return
    tell_all(results, out)


@app.command(short_help="Who is connected, and which studies run.")
def status(kit: PersonKit, as_json: Json = False) -> None:
    """Show which hospitals are connected to the house, and its latest jobs.

    \b
    Example:
      concilium flare status --kit kits/ana@example.org
    """
    require_flare()
    from concilium.transports.flare.kit import Kit
    from concilium.transports.flare.session import look_at_network

    network = look_at_network(open_own(Kit.open(kit, "person")))
    jobs = [
        {
            "job": job.get("job_id"),
            "study": job.get("job_name"),
            "status": job.get("status"),
            "submitted": job.get("submit_time_iso") or job.get("submit_time"),
        }
        for job in network.jobs
    ]
    if as_json:
        say_json({"sites": network.sites, "jobs": jobs})
        return
    if not network.sites:
        say("no hospital is connected")
    else:
        say_table(
            ["site", "last heard of"],
            [[name, f"{ago:.0f} s ago"] for name, ago in sorted(network.sites.items())],
        )
    if jobs:
        say_table(
            ["study", "status", "submitted", "job"],
            [[str(one[key] or "–") for key in ("study", "status", "submitted", "job")] for one in jobs],
        )


@app.command(short_help="End a job of your own.")
def end(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="The job's id, or how it begins: `flare status` shows it.")
    ],
    kit: PersonKit,
) -> None:
    """End a job that you submitted, at the house and at all hospitals. What was answered stays charged, and
    `flare submit --resume` to the same folder goes on from there. A job of somebody else stays as it is.

    \b
    Example:
      concilium flare end d756befe --kit kits/ana@example.org
    """
    require_flare()
    from concilium.transports.flare.kit import Kit
    from concilium.transports.flare.session import end_job

    say(f"ended: {end_job(open_own(Kit.open(kit, 'person')), job)}")


@app.command(short_help="Print the systemd unit of a site or of the house.")
def unit(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="Either site or house.")],
) -> None:
    """Print the unit by which systemd runs a hospital's site, or the house, with nothing writable but its own folders.

    \b
    Example:
      concilium flare unit site > /etc/systemd/system/concilium-site@.service
    """
    from importlib.resources import files

    units = {"site": "concilium-site@.service", "house": "concilium-house.service"}
    if role not in units:
        raise KitError(f"there is no unit {role!r}; there is one for a site and one for the house")
    say(
        files("concilium.transports.flare")
        .joinpath("units", units[role])
        .read_text(encoding="utf-8")
        .rstrip()
    )


def open_fetch(
    kit: Path, study: Path, requester: str | RequesterPass, tell: Tell
) -> tuple[Callable[[Study, Path, bool], object], str]:
    """What gets a month's release of a consultation from the house, by one job; and whose kit it is."""
    require_flare()
    from concilium.consultations.passes import RequesterPass
    from concilium.transports.flare.kit import Kit
    from concilium.transports.flare.submitting import submit_study

    own = Kit.open(kit, "person")
    shown = requester.encoded.decode() if isinstance(requester, RequesterPass) else ""

    def fetch(dated: Study, folder: Path, resume: bool) -> None:
        submit = functools.partial(
            submit_study, dated, open_own(own), folder, shown=shown, tell=tell, warn=warn
        )
        again = ["concilium", "ask", str(study), "PATIENT", "--kit", str(kit)]
        submit_until(dated, submit, again, resume, dated.house.patience, tell, resumed_by="")

    return fetch, own.name


def open_own(kit: Kit) -> Kit:
    """A person's kit, with a warning where its certificate ends soon."""
    if warning := kit.check_dates():
        warn(f"warning: {warning}")
    return kit


def submit_until(
    study: Study,
    submit: Callable[..., R],
    again: list[str],
    resume: bool,
    patience: float,
    tell: Tell,
    resumed_by: str = "--resume",
) -> R:
    """Submit a study, again where stewards have to decide first, as long as patience lasts. `again` is the command that
    was given."""
    until, pause, said = time.monotonic() + patience, FIRST_PAUSE, False
    hint = shlex.join([*again, *filter(None, [resumed_by])])
    while True:
        try:
            return submit(resume=resume)
        except StudyPending as pending:
            text = say_pending(study, pending)
            left = until - time.monotonic()
            if left <= 0:
                raise HouseError(f"{text}\nto go on then: {hint}") from None
            if not said:
                warn(f"{text}\nwaiting {patience:g} s for that")
                said = True
            sites = {site: None for one in (pending, *pending.others) for site in one.sites}
            tell(f"waiting for {', '.join(sites)} to agree")
            time.sleep(min(pause, left))
            pause, resume = min(2 * pause, LONGEST_PAUSE), True
        except RunStopped as error:
            raise HouseError(f"{error.reason}\nto go on from the last finished round: {hint}") from None
        except CannotResume as error:
            raise StudyError(f"{error.reason}; submit it again without --resume") from None
        except KeyboardInterrupt:
            warn(f"not finished; to go on from the last finished round: {hint}")
            raise


def require_flare() -> None:
    """FLARE is an optional part."""
    if importlib.util.find_spec("nvflare") is None:
        raise MissingExtra("flare", "running across machines")
