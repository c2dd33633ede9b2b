"""`cabs collect` and `cabs judge`: paid answers, and how well a judge scores them."""

import json
from pathlib import Path

import click

from cabs_core.base.command import HelpGroup
from cabs_core.pipeline.commands.options import chain_of, takes_pool


@click.command()
@takes_pool("Name of a model pool whose source is `collect`; `cabs collect NAME` is the same.")
@click.option("--dry-run", is_flag=True, help="Only say how many calls, tokens and USD are left to pay for.")
@click.option("--force", is_flag=True, help="Make the tables again; what was answered is not asked again.")
@click.option(
    "--answers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Table with answers that are there already, columns prompt, model and answer: not asked again.",
)
def collect(pool: str, dry_run: bool, force: bool, answers: Path | None) -> None:
    """Ask the models of a pool its prompts, and score the answers. This costs money: `--dry-run` says how
    much.

    Every answer is kept by content and paid for once. Answers of `--answers` are kept with `--dry-run`, too.
    Interrupt the command at any time: the next run goes on from there.
    """
    from cabs_core.base.atomic import remove_leftovers
    from cabs_core.base.errors import PoolError
    from cabs_core.data.collect.brought import keep_answers
    from cabs_core.data.collect.plan import collection_of, plan_in_words
    from cabs_core.data.collect.store import AnswerStore
    from cabs_core.data.pools.registry import active_pool
    from cabs_core.pipeline.artifacts import POOL_STAGES, ArtifactStore, Chain, Options, make_artifact

    pool_file = active_pool(pool)
    if not pool_file.pool.collected:
        kind = pool_file.pool.source.kind
        raise PoolError(
            f"pool {pool_file.pool.name} has source.kind {kind!r}: only a pool of kind collect collects"
        )
    if answers is not None:
        with AnswerStore() as answer_store:
            click.echo(keep_answers(collection_of(pool_file), answers, answer_store).in_words)
    click.echo("\n".join(plan_in_words(pool_file)))
    if dry_run:
        return
    store = ArtifactStore()
    remove_leftovers(store.root)
    options = Options(force=force, notify=lambda text: click.echo(f"  {text}", err=True))
    for stage in (stage for stage in POOL_STAGES.values() if stage.pays):
        chain = Chain(store, pool_file)
        made = make_artifact(chain, chain.stage(stage.name), options)
        for line in stage.summary(made.record).lines():
            click.secho(line, fg="yellow" if line.startswith("note: ") else None)
    click.echo(f"next: cabs run --pool {pool_file.pool.name}")


@click.group(cls=HelpGroup)
def judge() -> None:
    """A judge among a pool's scores: answers for people to label, and how well it agrees with them."""


@judge.command("sample")
@takes_pool(
    "Name of the model pool; its answers must have been collected. `cabs judge sample NAME` is the same."
)
@click.option(
    "--number",
    type=click.IntRange(2, 100_000),
    default=100,
    show_default=True,
    help="Answers to label, about.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default="labels.csv", show_default=True
)
def sample(pool: str, number: int, seed: int, out: Path) -> None:
    """Write a CSV sheet of answers for people to score: column `score`, from 0 (wrong) to 1 (right).

    The answers are drawn at random, and every prompt gives one answer before any prompt gives a second one.
    They stand in random order and without the models' names. Where a judge compares with one model, that
    model's answer to the same prompt is added. A file that exists is not overwritten. Put the filled-in sheet
    beside the pool file and name it as the judge's `labels`.
    """
    from cabs_core.base.atomic import write_text
    from cabs_core.base.csv_cells import csv_text
    from cabs_core.base.errors import DataError
    from cabs_core.pipeline.stages.scores import sheet

    if out.exists():
        raise DataError(f"{out} is there already: labels may be in it; name another file with --out")
    chain = chain_of(pool)
    if chain.pool.collected:
        judges = chain.pool.collect.judges
    else:
        judges = ()
    beside = [judge.against for judge in judges if judge.against]
    rows = sheet(chain.verified(chain.stage("answers")), number, seed, beside)
    write_text(out, csv_text(rows.columns, rows.itertuples(index=False, name=None)))
    click.echo(
        f"{out}: {len(rows)} answers to {rows['prompt'].nunique()} prompts; fill in the column score (0 to 1)"
    )
    click.echo(
        f"next: name it in the pool file (collect.scores: {{kind: judge, ..., labels: {out.name}}}), then "
        "cabs collect"
    )


@judge.command("show")
@takes_pool("Name of the model pool; its scores must have been made. `cabs judge show NAME` is the same.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was measured as JSON.")
def show(pool: str, as_json: bool) -> None:
    """Print how well the pool's judges agree with people, and what they favour, with 95 % intervals."""
    from cabs_core.data.collect.instrument import in_words
    from cabs_core.pipeline.stages.scores import INSTRUMENT

    chain = chain_of(pool)
    text = (chain.verified(chain.stage("scores")) / INSTRUMENT).read_text(encoding="utf-8")
    if as_json:
        click.echo(text)
        return
    measured = json.loads(text)
    for name, data in measured["judges"].items():
        click.echo(f"judge {name} ({data['model']})")
        for line in in_words(data):
            click.echo(f"  {line}")
    if not measured["judges"]:
        click.echo(
            f"no judge: scores are made by {', '.join(s['kind'] for s in measured['scores'].values())}"
        )
    for line in measured["refusals"]:
        click.echo(f"note: {line}")
