"""`cabs export`: from a pool, or from prices alone, to a router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cabs_core.data.pools.completion import complete_pool
from cabs_core.pipeline.commands.options import chain_of
from cabs_core.router.places_cli import RouterPlace, without_password

if TYPE_CHECKING:
    from cabs_core.report.pool_answer import Judged
    from cabs_core.router.bundle import Manifest
    from cabs_core.router.ingredients import Ingredients


@click.command()
@click.argument("name", required=False, shell_complete=complete_pool)
@click.option(
    "--pool",
    shell_complete=complete_pool,
    help=(
        "Name of the pool, which must have been run; also as `cabs export NAME`. With --cold: the bundle's."
    ),
)
@click.option(
    "--goal",
    help=(
        "Export what fulfils a goal, such as 'quality: 0.95, of: gpt-4o' (see `cabs report --help`). "
        "Default: the pool's."
    ),
)
@click.option(
    "--cold", is_flag=True, help="Nothing was measured yet: start from the prices in the file of --models."
)
@click.option(
    "--models", type=click.Path(dir_okay=False, path_type=Path), help="With --cold: an upstreams file."
)
@click.option(
    "--encoder", default="all-MiniLM-L6-v2", show_default=True, help="With --cold: as in a pool file."
)
@click.option(
    "--out",
    type=RouterPlace(),
    default="router",
    show_default=True,
    callback=without_password("give credentials in the environment"),
    help="A folder, or a URL: s3://bucket/prefix.",
)
@click.option(
    "--rung",
    type=click.Choice(["keep", "switch", "rules", "router"]),
    help="Which option of the report's answer to write. Default: the recommended one.",
)
@click.option("--policy", help="Policy to deploy. Default: what the pool names, else the best on validation.")
@click.option(
    "--rho", type=float, help="Cost sensitivity, score per USD. Default: the pool's, else its middle rho."
)
@click.option(
    "--epsilon",
    type=float,
    help="Share of uniform exploration, which keeps the log evaluable. Default: the pool's.",
)
@click.option(
    "--mode",
    type=click.Choice(["route", "shadow", "guarded"]),
    default="route",
    show_default=True,
    help="shadow: always answers with the best single model. guarded: until scores show that the policy is "
    "better.",
)
@click.option("--free", multiple=True, help="A model that costs nothing; a cost of 0 is an error otherwise.")
@click.option(
    "--prompts/--no-prompts",
    default=True,
    show_default=True,
    help="Keep train prompts, to explain decisions.",
)
@click.option(
    "--table",
    type=click.Choice(["litellm", "openrouter", "vllm_sr", "json"]),
    help="No router, but a routing table for another gateway, printed or written to --out.",
)
@click.option(
    "--call",
    "calls",
    multiple=True,
    metavar="MODEL=NAME",
    help="With --table: what the gateway calls a model, where it is not the pool's name.",
)
@click.option(
    "--anyway",
    is_flag=True,
    help="Export although the artifacts are of older data, or the data failed a check since.",
)
def export(
    name: str | None,
    pool: str | None,
    goal: str | None,
    cold: bool,
    models: Path | None,
    encoder: str,
    out: Path | str,
    rung: str | None,
    policy: str | None,
    rho: float | None,
    epsilon: float | None,
    mode: str,
    free: tuple[str, ...],
    prompts: bool,
    table: str | None,
    calls: tuple[str, ...],
    anyway: bool,
) -> None:
    """Write what a pool's answer recommends: a router or a table of rules; print advice to keep or switch.

    A router is a folder with everything from a prompt's text to a decision. If the table has folds, the
    router is fitted on all rows, but with --rho alone on those of the first fold. If nothing may be
    recommended, the command ends with exit code 1 unless --rung or --anyway is given. --policy, --rho and
    --cold write a router without a recommendation.

    With --policy or --rho the router that `cabs run` made is taken if it is up to date, has the wanted
    settings and was fitted on the wanted rows. Otherwise a router is built. A router that is already in the
    folder OUT is kept beside it, and `cabs rollback` brings it back.
    """
    import tempfile

    from cabs_core.base.atomic import check_replaceable, write_text
    from cabs_core.base.catalog.policies import policy_record
    from cabs_core.data.pool_files.rhos import dollars
    from cabs_core.router.bundle import HELD_OUT, contents_of, read_manifest
    from cabs_core.router.promotion import promote
    from cabs_core.router.remote import publish

    if name and pool and name != pool:
        raise click.UsageError("name one pool: cabs export NAME (`cabs pool list` shows them)")
    pool = name or pool
    if table is not None:
        _check_no_router_options()
        _write_table(table, pool, calls, out, prompts=prompts, anyway=anyway)
        return
    if calls:
        raise click.UsageError("--call belongs to --table")
    if cold:
        make = _cold(models, pool, encoder)
    else:
        make = _measured(pool, free=free, prompts=prompts, anyway=anyway)
    if rung and (cold or policy or goal or rho is not None):
        raise click.UsageError("--rung takes its policy and rho from the pool's answer: leave the others out")
    judged: Judged | None = None
    if not cold and policy is None and rho is None:
        if rung:
            chosen = None
        else:
            chosen = _chosen_by_goal(pool or "", goal, anyway)
        if chosen is None:
            chosen = _recommended(pool or "", rung, anyway)
        if chosen.rung in ("keep", "switch"):
            return
        if chosen.rung == "rules":
            _write_table("json", pool, calls, out, prompts=prompts, anyway=True)
            return
        policy = chosen.policy
        rho = chosen.rho
        judged = chosen.judged
    choices = {"policy": policy, "rho": rho, "epsilon": epsilon, "mode": mode}
    beside: Path | None = None
    if isinstance(out, Path):
        check_replaceable(out, contents_of(out))
        out = out.absolute()
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = out.parent
    with tempfile.TemporaryDirectory(dir=beside, prefix=".export-") as temporary:
        candidate = make(Path(temporary) / "router", choices, judged)
        manifest = read_manifest(candidate)
        if isinstance(out, Path):
            promote(candidate, out)
        else:
            publish(candidate, out)
    if judged is None:
        answer = _standing(pool, manifest)
    else:
        answer = judged.said
    if answer and isinstance(out, Path):
        write_text(out / HELD_OUT, answer + "\n")
    evidence = manifest.evidence
    click.echo(
        f"router {manifest.id}: {manifest.policy}, {len(manifest.arms)} models, a right answer worth "
        f"{dollars(manifest.rho)} (rho {manifest.rho:g})"
    )
    learns = policy_record(manifest.policy).learns
    click.echo(
        "it goes on learning from the scores of its calls"
        if learns
        else "it does not learn while it serves: scores are recorded, for doctor and the next training"
    )
    if evidence:
        click.echo(
            f"on the {evidence['n']} validation prompts, which chose it and so flatter it: "
            f"{evidence['mean']:+.4f} ± {evidence['se']:.4f} right answers a request, its cost deducted, "
            f"against always {manifest.fallback}"
        )
        if judged is None:
            click.echo(answer)
    elif cold:
        click.echo("nothing was measured yet; by their prices:")
        for arm in manifest.arms:
            click.echo(f"  {arm['name']}: score {arm['mean_score']:.2f}, {arm['mean_cost']:.6f} USD a call")
    else:
        click.echo(
            f"what it gains cannot be counted where answers are missing: `cabs report --pool {pool}` says "
            "what it is estimated to earn"
        )
    if cold:
        text = (
            f"serve --router {out} --upstreams {models} --keep-prompts until cabs doctor says it can decide"
        )
    else:
        text = f"route 'your prompt' --router {out}"
    click.echo(f"{out}\nnext: cabs {text}")


def _check_no_router_options() -> None:
    """Check that no option of a router stands beside --table on the command line.

    --encoder is not checked. --prompts and --anyway are options of a table, too.

    Raises:
        click.UsageError: an option of a router is given.
    """
    context = click.get_current_context()
    others = ("goal", "cold", "models", "rung", "policy", "rho", "epsilon", "mode", "free")
    given = [name for name in others if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise click.UsageError(f"--{given[0]} is of a router, not of a --table")


def _write_table(
    form: str,
    pool: str | None,
    calls: tuple[str, ...],
    out: Path | str,
    *,
    prompts: bool,
    anyway: bool,
) -> None:
    """Print a pool's routing table in the form of a gateway, or write the table to a file if --out is given.

    Args:
        form: name of the gateway, or `json`. calls: texts MODEL=NAME, names of models at the gateway.
        prompts: keep prompts as examples of the tasks.
        anyway: write the table although it is of older data or its rules may not be recommended.

    Raises:
        click.UsageError: no pool is named, a text of `calls` is not valid, or `out` is a folder or a URL.
    """
    from cabs_core.base.atomic import write_text
    from cabs_core.pipeline.routing import table_of
    from cabs_core.report.gateways import FORMATS, about

    context = click.get_current_context()
    if pool is None:
        raise click.UsageError("name a pool: cabs export NAME --table litellm")
    found = table_of(chain_of(pool), examples=prompts, anyway=anyway)
    if found.rows:
        arms = [found.default, *found.rows[0].others, found.rows[0].model]
    else:
        arms = [found.default]
    names = {arm: arm for arm in arms}
    for call in calls:
        arm, is_pair, told = call.partition("=")
        if not is_pair or not told or arm not in names:
            raise click.UsageError(f"--call {call}: expected MODEL=NAME, a model of {', '.join(names)}")
        names[arm] = told
    text = FORMATS[form](found, names)
    if context.get_parameter_source("out") is not ParameterSource.COMMANDLINE:
        click.echo(text, nl=False)
        return
    if not isinstance(out, Path):
        raise click.UsageError(f"--out {out}: a table is written to a file")
    if out.is_dir():
        raise click.UsageError(f"--out {out} is a folder: name a file for the table")
    write_text(out, text)
    click.echo("\n".join([*about(found), str(out)]))


def _standing(pool: str | None, manifest: Manifest) -> str:
    """Return the report's advice in words, such as its headline, or why the report has none.

    The text also says so if the report judged another policy than that of the manifest. It is empty if the
    manifest is that of a router of prices alone.
    """
    from cabs_core.pipeline.standing import standing

    if manifest.provenance.get("cold"):
        return ""
    return standing(chain_of(pool or ""), manifest.policy).text


@dataclass(frozen=True)
class _Chosen:
    """The option that the command writes.

    Attributes:
        rung: keep, switch, rules or router.
        policy, rho: the router's policy and rho. None: the pool's own choice is taken.
        judged: judgement of the answer or the goal on the option, for the router's card, or None.
    """

    rung: str
    policy: str | None = None
    rho: float | None = None
    judged: Judged | None = None


def _chosen_by_goal(pool: str, goal: str | None, anyway: bool) -> _Chosen | None:
    """Return the option that fulfils the goal of the command or of the pool; None if neither has a goal.

    Exit with 1 if no option fulfils it for sure, unless `anyway` is set: then the closest one is returned.
    """
    from cabs_core.data.pool_files.goals import parse_goal
    from cabs_core.pipeline.goal import answer_for

    chain = chain_of(pool)
    aim = parse_goal(goal) if goal else chain.pool.goal
    if aim is None:
        return None
    answer = answer_for(chain, aim, anyway=anyway)
    click.echo(answer.text)
    if not answer.confirmed and not anyway:
        click.echo(
            "nothing is written: --rung names an option, --anyway takes the closest one all the same",
            err=True,
        )
        raise SystemExit(1)
    return _Chosen(answer.rung, answer.policy, answer.rho, answer.judged)


def _recommended(pool: str, rung: str | None, anyway: bool) -> _Chosen:
    """Print what the pool's answer recommends, and return the option to write.

    The option is `rung` if it is given, or else the recommended one. If nothing is recommended, it is the
    router with `anyway`; otherwise the command ends with exit code 1.
    """
    from cabs_core.pipeline.answer import answer_for_chain, evidence_for_chain
    from cabs_core.report.answer_page import judged_rung, recommendation, use_text

    chain = chain_of(pool)
    found = answer_for_chain(chain, evidence_for_chain(chain), anyway=anyway)
    click.echo(f"{recommendation(found)}.")
    name = rung or found.answer.recommended or ("router" if anyway else None)
    if name is None:
        click.echo(
            "nothing is written: --rung names an option, --anyway takes the router all the same", err=True
        )
        raise SystemExit(1)
    option = found.answer.rung(name)
    if rung is not None and option is not None:
        click.echo(f"{name}: {use_text(found, option)}, {option.word}")
    if name != "router":
        return _Chosen(name)
    return _Chosen(name, found.policy, found.rho, judged_rung(found, name))


#: function (folder, options of the router, its judgement) -> path of the bundle, which is the folder or a
#: bundle that was made before
_Make = Callable[[Path, dict[str, Any], "Judged | None"], Path]


def _measured(pool: str | None, *, free: tuple[str, ...], prompts: bool, anyway: bool) -> _Make:
    """Return a `_Make` that gives the bundle of a pool whose chain has run.

    The bundle that the chain made is taken if it is fresh and has the wanted options, and no judgement is to
    be written into it. Otherwise a bundle is built in the folder that `_Make` is given. A policy that is
    named for a table with folds is always fitted anew, on all rows.

    Args:
        free: models that cost nothing. prompts: keep the prompts in the bundle.
        anyway: take artifacts of older data all the same, with a warning.

    Raises:
        click.UsageError: no pool is named.
        ProvenanceError: artifacts are missing or altered, or of older data without `anyway`.
    """
    from cabs_core.base.errors import ProvenanceError
    from cabs_core.data.inputs import folds_of
    from cabs_core.pipeline.final_fit import fit_on_all_rows
    from cabs_core.router.build import BUNDLE, build_bundle

    if pool is None:
        raise click.UsageError(
            "name a pool: cabs export NAME; or --cold --models upstreams.yaml, where nothing was measured yet"
        )
    chain = chain_of(pool)
    targets = {target.stage: target for target in chain.stage("router").inputs}
    try:
        chain.require_current(targets.values())
    except ProvenanceError as error:
        if not anyway:
            raise ProvenanceError(f"{error}, or --anyway to export it all the same") from None
        click.secho(f"warning: {error}", fg="yellow", err=True)
    inputs = {name: chain.verified(target) for name, target in targets.items()}
    status = chain.status(chain.stage("router"))
    defaults = {**chain.pool.router.model_dump(), "mode": "route"}

    def make(candidate: Path, choices: dict[str, Any], judged: Judged | None) -> Path:
        folder = chain.store.folder(status.target.parts) / BUNDLE
        default = all(v is None or v == defaults[k] for k, v in choices.items()) and not free and prompts
        policy = choices["policy"]
        all_rows = policy is not None and folds_of(inputs["replay_problem"]) > 1
        if default and judged is None and not all_rows and status.state == "fresh" and folder.is_dir():
            return folder
        ingredients: dict[str, Path] | Ingredients = inputs
        if policy is not None and all_rows:
            ingredients = fit_on_all_rows(chain.pool, inputs, policy)
        facts: dict[str, Any] = {"all_rows": all_rows}
        if judged is not None:
            facts["judged"] = judged.to_dict()
        build_bundle(
            candidate, chain.pool, ingredients, free=free, prompts=prompts, provenance=facts, **choices
        )
        return candidate

    return make


def _cold(models: Path | None, name: str | None, encoder: str) -> _Make:
    """Return a `_Make` that builds a bundle from the models and prices of an upstreams file alone.

    Raises:
        click.UsageError: no upstreams file is given.
    """
    from cabs_core.data.endpoints.upstreams import load_upstreams
    from cabs_core.router.cold import build_cold

    if models is None:
        raise click.UsageError("--cold needs --models, the upstreams file that names models and prices")
    upstreams = load_upstreams(models).models

    def make(candidate: Path, choices: dict[str, Any], judged: Judged | None) -> Path:
        build_cold(candidate, upstreams, name=name or "cold", encoder=encoder, **choices)
        return candidate

    return make
