"""`cabs deploy`: what job `deploy_pool` does, from a shell."""

import json
from typing import TYPE_CHECKING, Any

import click

from cabs_core.pipeline.commands.options import takes_pool
from cabs_dagster.cli.interrupt import end, on_signal

if TYPE_CHECKING:
    from cabs_core.pipeline.artifacts import Chain


@click.command()
@takes_pool("Name of the model pool; `cabs deploy NAME` is the same.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: {pool, report, passed, reason, challenger, ...}."
)
@click.option("--anyway", is_flag=True, help="Deploy whatever the report and the pool's goal say.")
@on_signal(end)
def deploy(pool: str, as_json: bool, anyway: bool) -> None:
    """Train a pool's router on the present data, and deploy it if it is shown to be no worse.

    The router is compared with the deployed one and may be worse by at most `router.margin` of the pool file.
    The first router of a pool is deployed without a comparison.

    The command makes those stages of the pool that are out of date, without replays, then asset
    `deployed_router`: the router lies at $CABS_HOME/routers/POOL/router, and a running `cabs serve` of that
    folder takes it up. Exit code 1 if the newly trained router was not deployed. If the pool's report
    recommends another option than a router, or the pool's goal takes another router than the pool file names
    or none, the command stops with an error unless --anyway is given. The words of the report and of the goal
    are printed, or that there are none yet.
    """
    from cabs_core.base.errors import RouterError
    from cabs_core.base.paths import deployed_folder
    from cabs_core.data.pools.registry import active_pool
    from cabs_core.pipeline.artifacts import ArtifactStore, Chain
    from cabs_core.pipeline.standing import standing
    from cabs_dagster.cli.runner import run_until_interrupted

    pool_file = active_pool(pool)
    deployment: dict[str, Any] = {}
    chain = Chain(ArtifactStore(), pool_file)
    answer = standing(chain)
    if answer.recommended not in (None, "router") and not anyway:
        raise RouterError(f"{answer.text} --anyway deploys a router all the same")
    if not anyway:
        _check_goal(chain)
    run_until_interrupted(lambda runner: deployment.update(runner.deploy_pool(pool_file)))
    if as_json:
        content = {"pool": pool_file.pool.name, "report": answer.text, **deployment}
        click.echo(json.dumps(content, indent=1))
    else:
        click.echo(f"{'deployed' if deployment['passed'] else 'not deployed'}: {deployment['reason']}")
        click.echo(answer.text)
        if deployment.get("log"):
            click.echo(f"log: {deployment['log']}")
        click.echo(str(deployed_folder(pool_file.pool.name)))
    if not deployment["passed"]:
        raise SystemExit(1)


def _check_goal(chain: "Chain") -> None:
    """Print the pool's goal and its answer, and check that the pool file names the router that fulfils it.

    A pool without a goal, or whose goal has no answer yet, passes.

    Raises:
        RouterError: the goal takes another router than the pool file, or no router fulfils it.
    """
    from cabs_core.base.errors import ProvenanceError, ResultError, RouterError
    from cabs_core.pipeline.goal import answer_for, check_fulfilled

    pool = chain.pool
    if pool.goal is None:
        return
    try:
        answer = answer_for(chain, pool.goal)
    except (ProvenanceError, ResultError) as error:
        click.echo(f"the goal has no answer yet: {error}", err=True)
        return
    click.echo(answer.text, err=True)
    check_fulfilled(answer, "--anyway deploys one all the same")
    if (pool.router.policy, pool.router_rho) != (answer.policy, answer.rho):
        raise RouterError(
            f"the goal {answer.goal!r} takes {answer.policy} at rho {answer.rho:g}, the pool file another "
            f"or none: write router: {{policy: {answer.policy}, rho: {answer.rho!r}}} into it, or --anyway"
        )
