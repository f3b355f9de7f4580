"""The commands `longtake recipes` and `longtake recipe ...`."""

import typer
from rich.markup import escape
from rich.table import Table

from flows.cli.options import JsonOption, RecipeArgument, SetOption
from flows.cli.printing import out, print_next, print_table

recipe_app = typer.Typer(help="One recipe: all of its values, each explained.", no_args_is_help=True)


def recipes(as_json: JsonOption = False) -> None:
    """List the shipped recipes: their data, their captioner, what they do, and what their paper reports."""
    from flows.cli.recipe_page import describe_recipes, first_sentence, published_line

    rows = describe_recipes()
    if as_json:
        out.print_json(data=rows)
        return
    table = Table("recipe", "data", "captioner", "what it does", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        about = escape(first_sentence(row["about"]))
        if row["published"]:
            about += f"\n[dim]{escape(published_line(row['published'][-1]))}[/]"
        table.add_row(f"[bold]{escape(row['name'])}[/]", row["dataset"], row["captioner"], about)
    print_table(table, "what it does")
    print_next(
        ("longtake recipe show NAME", "prints all of its values, each explained"),
        ("longtake run NAME --data FOLDER --dry-run", "says what it would do; 'longtake demo NAME' for the demo's"),
    )


@recipe_app.command("show")
def show(name: RecipeArgument, settings: SetOption = None, as_json: JsonOption = False) -> None:
    """Print a recipe as YAML with every default filled in and every value explained; it can be saved and run."""
    from flows.cli.recipe_page import as_page
    from flows.recipe import load_recipe

    recipe = load_recipe(name, settings or [])
    if as_json:
        out.print_json(data=recipe.model_dump(mode="json"))
    else:
        typer.echo(as_page(recipe), nl=False)  # as it is: a file of it must load again
