"""`python -m benchmarks.arena`: a router on RouterArena. Options, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import click

from benchmarks.arena import submission
from cabs_core.base.command import HelpGroup

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=HelpGroup)
def arena() -> None:
    """Files for RouterArena's leaderboard, and its score.

    Nothing is uploaded, and nothing is learnt from its data.
    """


@arena.command()
@click.argument("name")
@click.option(
    "--dataset",
    required=True,
    type=_FILE,
    help="RouterArena's dataset/router_data.json or router_data_10.json.",
)
@click.option(
    "--robustness", type=_FILE, help="Its dataset/router_robustness.json; writes the robustness file, too."
)
@click.option(
    "--router",
    "folder",
    default="router",
    show_default=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the router, as `cabs export` wrote it.",
)
@click.option(
    "--out",
    default="router_inference",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="RouterArena's folder router_inference; config/ and predictions/ in it are written.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="OURS=THEIRS",
    help="RouterArena's name of a model, where it differs. Repeat it.",
)
def predict(
    name: str, dataset: Path, robustness: Path | None, folder: Path, out: Path, models: tuple[str, ...]
) -> None:
    """Write config/NAME.json, predictions/NAME.json and predictions/NAME-robustness.json.

    Never replaces a file.
    """
    pairs = [text.partition("=") for text in models]
    if bad := next((text for text, (a, _, b) in zip(models, pairs, strict=True) if not (a and b)), None):
        raise click.UsageError(f"--model {bad!r}: expected OURS=THEIRS, such as gpt4omini=gpt-4o-mini")
    chooser = submission.Chooser(folder, {ours: theirs for ours, _, theirs in pairs})
    for path in submission.write_submission(
        chooser,
        name,
        dataset,
        out,
        folder=folder,
        robustness=robustness,
        notify=lambda text: click.echo(text, err=True),
    ):
        click.echo(path)


@arena.command()
@click.argument("predictions", type=_FILE)
@click.option("--robustness", type=_FILE, help="Predictions for altered prompts.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def score(predictions: Path, robustness: Path | None, as_json: bool) -> None:
    """RouterArena's figures of PREDICTIONS that its llm_evaluation/run.py has evaluated."""
    figures = submission.score(predictions, robustness)
    if as_json:
        click.echo(json.dumps(figures))
        return
    click.echo(f"RouterArena score {figures['arena_score']:.4f}")
    click.echo(
        f"accuracy {figures['accuracy']:.4f} at {figures['cost_per_1000']:.4f} USD per 1,000 of "
        f"{figures['queries']:,} queries"
    )
    if "opt_sel" in figures:
        click.echo(
            f"optimality over {figures['optimality_queries']:,} queries: selection {figures['opt_sel']:.4f}, "
            f"cost {figures['opt_cost']:.4f}, accuracy {figures['opt_acc']:.4f}"
        )
    if figures.get("robustness") is not None:
        click.echo(f"robustness {figures['robustness']:.4f}")


if __name__ == "__main__":
    arena(prog_name="python -m benchmarks.arena")
