"""The commands `longtake weights ...`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from flows.cli.options import JsonOption
from flows.cli.printing import out, print_next
from storage.weights import WeightsFolder

weights_app = typer.Typer(help="Pretrained weights: what is wanted, from where, what is here.", no_args_is_help=True)

_MARKS = {"here": "[green]here[/]", "missing": "[red]missing[/]", "random": "[yellow]random[/]"}


@weights_app.command("list")
def list_(
    recipe: Annotated[str | None, typer.Argument(help="Only what this recipe wants.", metavar="RECIPE")] = None,
    as_json: JsonOption = False,
) -> None:
    """List nets with the file that each wants, where it is to be had, its hash, and whether it is here."""
    from flows.weights import list_weights

    folder = WeightsFolder()
    rows = list_weights(folder, recipe)
    if as_json:
        out.print_json(data=[row.to_json() for row in rows])
        return
    for row in rows:  # lines and no table: names, addresses and hashes can then be copied in a terminal of any width
        wanted_by = f" [dim]({escape(', '.join(row.wanted_by))})[/]" if row.wanted_by else ""
        out.print_line(f"[bold]{escape(row.net)}[/]  {_MARKS[row.state]}{wanted_by}")
        out.print_line(f"  file  {escape(row.file)}  [dim]sha256 {row.sha256[:16] or 'not known'}[/]")
        out.print_line(f"  from  {escape(row.source)}")
    if not rows:
        out.print_line("this recipe wants no pretrained weights")
    if any(row.state == "missing" for row in rows):
        out.print_line(
            "A run fetches what is missing; without a network, bring the file and run 'longtake weights import FILE --net NET'."
        )
    out.print_line(f"Imported files are kept in {escape(str(folder.path))}.")
    if recipe and all(row.state != "missing" for row in rows):
        print_next((f"longtake run {recipe} --data FOLDER --dry-run", "all it wants is here; says what it would do"))


@weights_app.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            help="A .safetensors or .pth file with a net's state dict, i3d-kinetics-400.ckpt, or the folder of an hf: net."
        ),
    ],
    net: Annotated[
        str | None, typer.Option(help="Whose weights these are; not needed if the file has its published name.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take in a file of weights that was downloaded elsewhere or trained by you, after trying it on its net."""
    from flows.weights import import_weights

    done = import_weights(WeightsFolder(), file, net)
    known = done.known
    if as_json:
        values = {"net": known.net, "path": str(known.path), "sha256": known.sha256, "published": done.published}
        out.print_json(data={**values, "replaced": done.replaced.sha256 if done.replaced else None})
        return
    out.print_line(f"{escape(known.net)} now has these weights: sha256 {known.sha256}")
    out.print_line(f"kept as {escape(str(known.path))}")
    if done.replaced:
        out.print_line(
            f"they replace {escape(str(done.replaced.path))}, which stays where it is; features extracted with it are stale now"
        )


@weights_app.command("check")
def check(as_json: JsonOption = False) -> None:
    """Hash every file of weights anew and load it into its net; exit with 1 if one is not well."""
    from flows.weights import check_weights

    well, problems = check_weights(WeightsFolder())
    if as_json:
        rows = [{"net": p.item, "kind": p.kind, "reason": p.reason, "path": p.where} for p in problems]
        out.print_json(data={"well": [known.net for known in well], "problems": rows})
    else:
        for known in well:
            out.print_line(f"[green]✓[/] {escape(known.net)}  {known.sha256[:16]}")
        for problem in problems:
            out.print_line(f"[red]✗[/] {escape(problem.item)}  {escape(problem.reason)}")
        if not well and not problems:
            out.print_line("no weights are registered yet; 'longtake weights list' shows what nets want")
    if problems:
        raise typer.Exit(1)
