"""The commands `longtake sweep` and `longtake sweeps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from flows.cli.options import (
    DEFAULT_WORKSPACE,
    INTERRUPTED,
    QUARANTINED,
    DataOption,
    DryOption,
    JsonOption,
    KindOption,
    SetOption,
    VerboseOption,
    WorkspaceOption,
)
from flows.cli.printing import err, out, print_next, print_table
from storage.workspace import Workspace

if TYPE_CHECKING:  # importing it would load torch before the first line of help
    from flows.sweep.definition import Sweep
    from flows.sweep.table import SweepResult

GridOption = Annotated[
    list[str] | None,
    typer.Option(help="Values to try, as in seeding.loss=xe,dxe; each is YAML. Repeatable: all combinations.", metavar="K=A,B,C"),
]


def sweep(
    name: Annotated[
        str, typer.Argument(help="A recipe, a sweep file, or a shipped sweep ('longtake sweeps').", metavar="RECIPE|SWEEP")
    ],
    data: DataOption = None,
    grid: GridOption = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of each variant: 0, 1, 2 ...; else 3.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Vary this recipe instead of the sweep file's own.", metavar="RECIPE")
    ] = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, each in a process of its own.")] = 1,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Train variants of a recipe with several seeds each; one table with mean and standard deviation.

    What variants share is computed once. A variant that fails is listed, and the others go on. The same command goes on where
    it was stopped. A seed is that of the captioner's training: features, tagger and embedding are shared by all seeds."""
    from flows.orchestration.embedded_server import configure
    from flows.sweep.definition import find_sweep, plan_sweep
    from flows.sweep.table import sweep_folder, sweep_json

    space = Workspace.open(workspace)
    asked = find_sweep(name, grid or [], seeds, settings or [], recipe, data, kind)
    if dry_run:
        _print_cells(asked, space, as_json)
        return
    configure(verbose=verbose)
    from flows.sweep.run import run_sweep

    try:
        results = run_sweep(asked, plan_sweep(asked, space), space, jobs)
    except KeyboardInterrupt:
        err.print("interrupted; what is finished is kept, and the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        out.print_json(data=sweep_json(asked, results))
    else:
        _print_sweep(asked, results)
        folder = sweep_folder(asked, space)
        out.print_line(f"Written: {escape(str(folder))}/sweep.json, sweep.csv, sweep.md")
    if any(result.state == "failed" for result in results):
        raise typer.Exit(1)
    if any(result.quarantined for result in results):
        raise typer.Exit(QUARANTINED)


def sweeps(as_json: JsonOption = False) -> None:
    """List the shipped sweeps: the papers' ablation tables."""
    from flows.sweep.definition import read_sweep, shipped_sweeps

    found = {name: read_sweep(path) for name, path in shipped_sweeps().items()}
    if as_json:
        out.print_json(data=[{"name": name, **read.model_dump(mode="json")} for name, read in found.items()])
        return
    table = Table("sweep", "recipe", "variants", "what it compares", box=None, padding=(0, 2, 0, 0))
    for name, read in found.items():
        about = escape(" ".join(read.description.split()))
        table.add_row(f"[bold]{escape(name)}[/]", escape(read.recipe), str(len(read.variants)), about)
    print_table(table, "what it compares")
    print_next(("longtake sweep NAME --dry-run", "says which run would compute what"))


def _print_sweep(sweep: Sweep, results: Sequence[SweepResult]) -> None:
    """The scores, and below them what else there is: side by side they would be too wide for a terminal."""
    from flows.sweep.table import AFTER, failures, headings, table_cells, variant_rows

    rows = variant_rows(sweep, results)
    main = ("CIDEr", "BLEU-4", "METEOR", "ROUGE-L", AFTER[0])
    names = [*headings(rows), *AFTER]
    out.print_line(f"[bold]{escape(sweep.name)}[/] ({escape(sweep.recipe)})")
    for wanted in ([n for n in names if n in main], [n for n in names if n not in main]):
        table = Table("variant", *wanted, box=None, padding=(0, 2, 0, 0))
        for row in rows:
            cells = dict(zip(names, table_cells(row, headings(rows)), strict=True))
            name = f"[bold green]{escape(row.variant)} *[/]" if row.best else escape(row.variant)
            table.add_row(name, *(cells[heading] for heading in wanted))
        print_table(table, "variant")
    out.print("[dim]mean ± standard deviation over seeds; * highest CIDEr; Δ to the first variant, seed by seed[/]")
    for failure in failures(results):
        out.print_line(f"[red]failed:[/] {escape(failure)}")


def _print_cells(asked: Sweep, space: Workspace, as_json: bool) -> None:
    """What a sweep would do: of every run the stages that are not there and that no run before it computes."""
    from flows.sweep.definition import count_stages, plan_sweep

    cells = plan_sweep(asked, space, dry_run=True)
    counts, seen = count_stages(cells), set[str]()
    rows: list[dict[str, Any]] = []
    for cell in cells:
        new = [step for step in (cell.plan.to_do if cell.plan else ()) if step.ref.uri not in seen]
        seen |= {step.ref.uri for step in new}
        row: dict[str, Any] = {"variant": cell.variant.name, "seed": cell.seed}
        row["settings"] = list(cell.variant.settings)
        rows.append({**row, "to_do": [step.label for step in new], "why_not": cell.why_not})
    if as_json:
        out.print_json(data={"sharing": vars(counts) | {"to_make": counts.to_make}, "runs": rows})
        return
    table = Table("variant", "seed", "stages to do", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        to_do = escape(", ".join(row["to_do"])) or "[green]nothing[/]"
        table.add_row(escape(row["variant"]), str(row["seed"]), "[red]impossible[/]" if row["why_not"] else to_do)
    print_table(table, "variant", "stages to do")
    for variant, why in {row["variant"]: row["why_not"] for row in rows if row["why_not"]}.items():
        out.print_line(f"[red]{escape(variant)}:[/] {escape(why)}")
    out.print_line(escape(str(counts)))
