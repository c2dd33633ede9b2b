"""`cabs export | route | feedback | serve | doctor | rollback`: from a pool to a router, and how it is doing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cabs_core.command import HelpGroup
from cabs_core.errors import one_line
from cabs_core.paths import is_remote
from cabs_core.pools.completion import complete_pool
from cabs_core.secret import FROM_FILE, refuse_password, secret

#: variable that names the event log
CABS_LOG = "CABS_LOG"


def _without_password(instead: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Refuse a password that stands on the command line; one from the environment passes."""

    def check(context: click.Context, option: click.Parameter, value: Any) -> Any:
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            refuse_password(value, option.opts[0], instead)
        return value

    return check


def log_place(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """The log that was named on the command line, without a password, or by the environment, or by a file that it names."""
    named = _without_password(f"set {CABS_LOG}, or {CABS_LOG}{FROM_FILE} to a file that holds it")(
        context, option, value
    )
    return secret(CABS_LOG) if named is None else str(named)


if TYPE_CHECKING:
    from cabs_core.router.bundle import Manifest


class _Place(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in new versions of click only
    """A folder as a Path, a URL as it is."""

    name = "folder or URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        if is_remote(value):
            return str(value)
        path = Path(value)
        if path.is_file():
            self.fail(f"{path} is a file: expected the folder of a router", param, ctx)
        return path


ROUTER = click.option(
    "--router", "folder", type=_Place(), default="router", show_default=True,
    callback=_without_password("give credentials in the environment"),
    help="Where the router is, as `cabs export` wrote it: a folder, or a URL such as s3://bucket/routers/my_pool.",
)  # fmt: skip
LOG = click.option(
    "--log", callback=log_place,
    help=f"Event log: an SQLite file or a PostgreSQL URL; one with a password is named by {CABS_LOG}, or by a file that "
    f"{CABS_LOG}{FROM_FILE} names. Default: beside the router, ROUTER.events.sqlite.",
)  # fmt: skip
STAGES = ("outcomes", "splits", "prompt_embeddings", "oracles", "replay_problem", "tuning")


@click.command()
@click.argument("name", required=False, shell_complete=complete_pool)
@click.option(
    "--pool", shell_complete=complete_pool,
    help="Name of the model pool, whose chain must have been run; `cabs export NAME` is the same. With --cold: the bundle's name.",
)  # fmt: skip
@click.option(
    "--goal",
    help="Export what fulfils a goal, such as 'quality: 0.95, of: gpt-4o' (see `cabs report --help`). Default: the pool's.",
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
    type=_Place(),
    default="router",
    show_default=True,
    callback=_without_password("give credentials in the environment"),
    help="A folder, or a URL: s3://bucket/prefix.",
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
    "--mode", type=click.Choice(["route", "shadow", "guarded"]), default="route", show_default=True,
    help="shadow: always answers with the best single model. guarded: leaves it only with evidence.",
)  # fmt: skip
@click.option("--free", multiple=True, help="A model that costs nothing; a cost of 0 is an error otherwise.")
@click.option(
    "--prompts/--no-prompts",
    default=True,
    show_default=True,
    help="Keep train prompts, to explain decisions.",
)
@click.option(
    "--anyway",
    is_flag=True,
    help="Export although the artifacts are of older data, or the data failed a check since.",
)
def export(
    name: str | None, pool: str | None, goal: str | None, cold: bool, models: Path | None, encoder: str, out: Path | str,
    policy: str | None, rho: float | None, epsilon: float | None, mode: str, free: tuple[str, ...], prompts: bool,
    anyway: bool,
) -> None:  # fmt: skip
    """Make a router from a pool: a folder with everything from a prompt's text to a decision.

    With the pool's own settings it is the router that `cabs run` made and checked, if that is up to date. A router that
    is already at OUT is kept beside it; `cabs rollback` brings it back.
    """
    import tempfile

    from cabs_core.atomic import check_replaceable, write_text
    from cabs_core.catalog import policy_record
    from cabs_core.pool_files.rhos import dollars
    from cabs_core.router import promote, read_manifest
    from cabs_core.router.bundle import HELD_OUT, contents_of
    from cabs_core.router.remote import publish

    if name and pool and name != pool:
        raise click.UsageError("name one pool: cabs export NAME (`cabs pool list` shows them)")
    pool = name or pool
    write, ready = (
        _cold(models, pool, encoder) if cold else _measured(pool, free=free, prompts=prompts, anyway=anyway)
    )
    if not cold and policy is None and rho is None:
        policy, rho = _wanted(pool, goal, anyway)
    choices = {"policy": policy, "rho": rho, "epsilon": epsilon, "mode": mode}
    beside: Path | None = None
    if isinstance(out, Path):
        check_replaceable(out, contents_of(out))
        out = out.absolute()
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = out.parent
    with tempfile.TemporaryDirectory(dir=beside, prefix=".export-") as temporary:
        candidate = Path(temporary) / "router"
        ready_made = ready(choices)
        if ready_made is not None:
            candidate = ready_made
        else:
            write(candidate, **choices)
        manifest = read_manifest(candidate)
        if isinstance(out, Path):
            promote(candidate, out)
        else:
            publish(candidate, out)
    verdict = _held_out(pool, manifest)
    if verdict and isinstance(out, Path):
        write_text(out / HELD_OUT, verdict + "\n")
    evidence = manifest.evidence
    click.echo(
        f"router {manifest.id}: {manifest.policy}, {len(manifest.arms)} models, a right answer worth {dollars(manifest.rho)} "
        f"(rho {manifest.rho:g})"
    )
    learns = policy_record(manifest.policy).learns
    click.echo(
        "it goes on learning from the scores of its calls"
        if learns
        else "it does not learn while it serves: scores are recorded, for doctor and the next training"
    )
    if evidence:
        click.echo(
            f"on the {evidence['n']} validation prompts, which chose it and so flatter it: {evidence['mean']:+.4f} ± {evidence['se']:.4f} "
            f"right answers a request, its cost deducted, against always {manifest.fallback}"
        )
        click.echo(verdict)
    elif cold:
        click.echo("nothing was measured yet; by their prices:")
        for arm in manifest.arms:
            click.echo(f"  {arm['name']}: score {arm['mean_score']:.2f}, {arm['mean_cost']:.6f} USD a call")
    else:
        click.echo(
            f"what it gains cannot be counted where answers are missing: `cabs report --pool {pool}` says what it is estimated to earn"
        )
    if cold:
        text = f"serve --router {out} --upstreams {models} --keep-prompts; cabs doctor says when the log can decide"
    else:
        text = f"route 'your prompt' --router {out}"
    click.echo(f"{out}\nnext: cabs {text}")


def _held_out(pool: str | None, manifest: Manifest) -> str:
    """What the pool's report says of the router on held-out prompts, or that it says nothing; '' of a cold router."""
    from cabs_core.artifacts import ArtifactStore, Chain
    from cabs_core.pools import find_pool
    from cabs_core.pools.standing import held_out

    if manifest.provenance.get("cold"):
        return ""
    return held_out(Chain(ArtifactStore(), find_pool(pool or "")), manifest.rho, manifest.policy).text


def _wanted(pool: str | None, goal: str | None, anyway: bool) -> tuple[str | None, float | None]:
    """(policy, rho) of the choice that fulfils the goal of the command or of the pool; None without a goal.

    Raises:
        RouterError: no router fulfils it.
    """
    from cabs_core.artifacts import ArtifactStore, Chain
    from cabs_core.errors import RouterError
    from cabs_core.pool_files.goals import parse_goal
    from cabs_core.pools import find_pool
    from cabs_core.router.goals import answer_for

    chain = Chain(ArtifactStore(), find_pool(pool or ""))
    wanted = parse_goal(goal) if goal else chain.pool.goal
    if wanted is None:
        return None, None
    answer = answer_for(chain, wanted, anyway=anyway)
    click.echo(answer.sentence)
    if answer.policy is None or not answer.confirmed:
        raise RouterError(
            f"no router fulfils the goal {wanted.text!r}, so none is written; name one with --policy to have it all the same"
        )
    return answer.policy, answer.rho


def _measured(
    pool: str | None, *, free: tuple[str, ...], prompts: bool, anyway: bool
) -> tuple[Callable[..., None], Callable[[dict[str, Any]], Path | None]]:
    """Of a pool whose chain has run: what writes a bundle, and what finds the one that the chain made."""
    from cabs_core.artifacts import ArtifactStore, Chain
    from cabs_core.errors import ProvenanceError
    from cabs_core.pools import find_pool
    from cabs_core.router import build_bundle
    from cabs_core.router.build import BUNDLE

    if pool is None:
        raise click.UsageError(
            "name a pool: cabs export NAME; or --cold --models upstreams.yaml, where nothing was measured yet"
        )
    chain = Chain(ArtifactStore(), find_pool(pool))
    targets = {name: chain.stage(name) for name in STAGES}
    try:
        chain.require_current(targets.values())
    except ProvenanceError as error:
        if not anyway:
            raise ProvenanceError(f"{error}, or --anyway to export it all the same") from None
        click.secho(f"warning: {error}", fg="yellow", err=True)
    inputs = {name: chain.verified(target) for name, target in targets.items()}
    status = chain.status(chain.stage("router"))
    defaults = {**chain.pool.router.model_dump(), "mode": "route"}

    def ready(choices: dict[str, Any]) -> Path | None:
        folder = chain.store.folder(status.target.parts) / BUNDLE
        default = all(v is None or v == defaults[k] for k, v in choices.items()) and not free and prompts
        return folder if default and status.state == "fresh" and folder.is_dir() else None

    return partial(build_bundle, pool=chain.pool, inputs=inputs, free=free, prompts=prompts), ready


def _cold(
    models: Path | None, name: str | None, encoder: str
) -> tuple[Callable[..., None], Callable[[dict[str, Any]], Path | None]]:
    """The same of models and prices alone; there is none that was made before."""
    from cabs_core.endpoints.upstreams import load_upstreams
    from cabs_core.router.cold import build_cold

    if models is None:
        raise click.UsageError("--cold needs --models, the upstreams file that names models and prices")
    upstreams = load_upstreams(models).models
    return partial(build_cold, upstreams=upstreams, name=name or "cold", encoder=encoder), lambda _: None


@click.command()
@click.argument("text")
@ROUTER
@LOG
@click.option("--rho", type=float, help="Cost sensitivity for this prompt, score per USD.")
@click.option("--budget", type=float, help="USD that this prompt may cost.")
@click.option("--available", help="Models that can be called now, separated by commas.")
@click.option("--explain", is_flag=True, help="Say why: per model score, cost, probability; nearest prompts.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: {id, model, propensity, rho, scores, costs, probabilities}.",
)
def route(
    text: str, folder: Path | str, log: str | None, rho: float | None, budget: float | None, available: str | None, explain: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Decide which model answers TEXT ('-': standard input), and log it."""
    from cabs_core.router.router import Router

    if text == "-":
        text = sys.stdin.read()
    folder = _local(folder)
    router = Router.load(folder, log=_log(folder, log))
    names = None if available is None else [n.strip() for n in available.split(",") if n.strip()]
    decision = router.route(text, rho=rho, budget=budget, available=names)
    routed: dict[str, Any] = {
        "id": decision.id, "model": decision.model, "propensity": decision.propensity, "rho": decision.rho,
        "scores": decision.scores, "costs": decision.costs, "probabilities": decision.probabilities,
    }  # fmt: skip
    if explain:
        routed["explanation"] = router.explain(decision)
    router.close()
    if as_json:
        click.echo(json.dumps(routed, indent=1))
        return
    click.echo(f"{decision.model}\n")
    click.echo(f"{'model':36s} {'score':>6s} {'cost, USD':>11s} {'probability':>12s}")
    for name in decision.scores:
        click.echo(
            f"{name:36s} {routed['scores'][name]:6.3f} {routed['costs'][name]:11.6f} {routed['probabilities'][name]:12.3f}"
        )
    for near in routed.get("explanation", {}).get("neighbours", []):
        best = ", ".join(f"{k} {v:.2f}" for k, v in near["scores"].items())
        click.echo(f"\nnear ({near['distance']:.2f}): {near['text'][:100]!r}\n  {best}")
    click.echo(f"\nwhen you know how good the answer was: cabs feedback {decision.id} --score 1")


@click.command()
@click.argument("decision")
@click.option("--score", type=float, help="How good the answer was, from 0 to 1.")
@click.option("--cost", type=float, help="What the call cost, USD. Default: as recorded or expected.")
@click.option("--source", help="Who says so. Default: user; with --retract: all who scored it.")
@click.option(
    "--by", type=click.Choice(["id", "response_id", "call_id"]), default="id", show_default=True,
    help="What DECISION is.",
)  # fmt: skip
@click.option(
    "--retract", is_flag=True, help="Take its scores back: what was learnt is learnt again without them."
)
@click.option("--row", is_flag=True, help="With --retract: the decision as well.")
@ROUTER
@LOG
def feedback(
    decision: str, score: float | None, cost: float | None, source: str | None, by: str, retract: bool, row: bool,
    folder: Path | str, log: str | None,
) -> None:  # fmt: skip
    """Tell the router how good the answer of a DECISION was, or take that back."""
    from cabs_core.router import Router

    if retract == (score is not None) or (row and not retract):
        raise click.UsageError("give either --score, or --retract (with or without --row)")
    folder = _local(folder)
    router = Router.load(folder, log=_log(folder, log))
    try:
        if retract:
            decided = router.named(**{by: decision})
            count = router.retract(decided.id, source=source, row=row)
            click.echo(f"scores taken back: {count}{', and the decision' if row else ''}")
            return
        result = router.feedback_by(**{by: decision}, score=score, cost=cost, source=source or "user")
        answer = router.about_feedback(result)
        click.echo(answer.get("note", result))
        if result == "conflict":
            raise SystemExit(1)
    finally:
        router.close()


@click.group(cls=HelpGroup)
def log() -> None:
    """Look after a router's event log."""


@log.command()
@click.option(
    "--older-than", type=click.FloatRange(min=0.0), required=True, metavar="DAYS",
    help="Age in days from which decisions without a score are removed.",
)  # fmt: skip
@ROUTER
@LOG
def compact(older_than: float, folder: Path | str, log: str | None) -> None:
    """Remove old decisions that were never scored, kept turns, and what was taken back.

    What is learnt and estimated does not change: scored decisions stay whole, counts and costs stay. A removed decision
    can no longer be scored. Servers may run meanwhile.
    """
    import time

    from cabs_core.errors import RouterError
    from cabs_core.router.database import is_postgres
    from cabs_core.router.events import EventLog
    from cabs_core.router.retention import compact as run

    place = _log(_local(folder), log)
    if not is_postgres(place) and not Path(place).is_file():
        raise RouterError(f"there is no log at {place}: name it with --log")
    events = EventLog(place)
    try:
        counts = run(events, time.time() - older_than * 86_400.0)
    finally:
        events.close()
    click.echo(f"{counts['removed']} rows removed, {counts['left']} left")


@click.command()
@ROUTER
@LOG
@click.option(
    "--invoice", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Bill of your providers, a CSV file with columns day, model, usd and, if it has them, tokens: say by day and model where "
    "the log differs.",
)  # fmt: skip
@click.option(
    "--upstreams", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --invoice: the upstreams file, where models have other names at their providers.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print everything that was found as JSON.")
def doctor(
    folder: Path | str, log: str | None, invoice: Path | None, upstreams: Path | None, as_json: bool
) -> None:
    """Report on a router: plays and learning curves per model, decisions without a score, costs, problems.

    Exit code 1 when something is wrong.
    """
    from cabs_core.router.doctor import examine

    names: dict[str, str] = {}
    if upstreams is not None:
        from cabs_core.endpoints.upstreams import load_upstreams

        read = load_upstreams(upstreams)
        names = {name: one.model or name for name, one in {**read.embeddings, **read.models}.items()}
    facts = examine(_local(folder), log, invoice=invoice, names=names)
    if as_json:
        click.echo(json.dumps(facts, indent=1))
    else:
        click.echo(f"router {facts['bundle']}: {facts['policy']} of pool {facts['pool']}, log {facts['log']}")
        click.echo(
            f"{facts['decisions']} decisions, {facts['rewards']} scored, {facts['unscored']} waiting "
            f"({facts['unscored_old']} for more than a week), {facts['failed']} calls failed"
        )
        click.echo(
            f"\n{'model':36s} {'plays':>7s} {'scored':>7s} {'score':>6s} {'cost, USD':>10s}  over time"
        )
        for arm in facts["arms"]:
            score = "" if arm["mean_score"] is None else f"{arm['mean_score']:.3f}"
            cost = "" if arm["mean_cost"] is None else f"{arm['mean_cost']:.6f}"
            curve = " ".join(f"{v:.2f}" for v in arm["curve"])
            click.echo(
                f"{arm['model']:36s} {arm['decisions']:7d} {arm['scored']:7d} {score:>6s} {cost:>10s}  {curve}"
            )
        curve = " ".join(f"{v:.3f}" for v in facts["curve"]["utility"])
        click.echo(f"\nutility over time: {curve or 'nothing scored yet'}")
        _show_costs(facts)
        if (saved := facts["saved"]) is not None:
            click.echo(
                f"{saved['calls']} answered calls cost {saved['usd']:.4f} USD; {saved['model']} alone was expected to cost "
                f"{saved['fixed_usd']:.4f} ({saved['usd'] / saved['fixed_usd'] - 1:+.0%})"
            )
        for one in facts["failures"]:
            click.echo(
                f"failed: {one['calls']} calls of {one['model']}: {one_line(one['reason'] or 'no reason was logged')}"
            )
        if facts["lease"]:
            click.echo(f"lease: {facts['lease']['holder']}, {facts['lease']['seconds_left']:.0f} s left")
        click.echo(f"what the log can decide: {facts['decides']}")
        for problem in facts["problems"]:
            click.secho(f"problem: {one_line(problem)}", fg="yellow")
    if facts["problems"]:
        raise SystemExit(1)


def _show_costs(facts: dict[str, Any]) -> None:
    """What was answered by whom and what it cost, in words."""
    calls = facts["answered"]
    parts = [
        f"{calls[name]['calls']} {words} ({calls[name]['usd']:.4f})"
        for name, words in (("kept", "turns that kept their model"), ("named", "calls that named theirs"))
        if calls[name]["calls"]
    ]
    notes = [
        f"{calls[name]} {words}"
        for name, words in (("estimated", "were estimated"), ("unknown", "have no cost"))
        if calls[name]
    ]
    click.echo(
        f"{calls['calls']} calls answered, {calls['usd']:.4f} USD in all{', of it ' if parts else ''}{' and '.join(parts)}"
        f"{'; ' if notes else ''}{', '.join(notes)}"
    )
    others = [one for one in facts["bundles"] if one["bundle"] != facts["bundle"]]
    if others and not facts["decisions"] and not facts["kept_turns"]:
        click.echo("this bundle has decided nothing yet; what the log holds is of others:")
    for one in others:
        last = (
            "all compacted"
            if one["last"] is None
            else time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(one["last"]))
        )
        click.echo(f"bundle {one['bundle']}: {one['calls']} calls, the last {last}")
    if not facts["learns"]:
        click.echo(f"{facts['policy']} does not learn: scores are recorded, and change nothing")
    if (bill := facts["invoice"]) is not None:
        click.echo(
            f"invoice {bill['file']}: {bill['usd_invoice']:.4f} USD, the log {bill['usd_log']:.4f}; {bill['matched']} days and "
            f"models agree, {len(bill['rows'])} do not"
        )
        for row in bill["rows"]:
            tokens = (
                ""
                if row["tokens_invoice"] is None
                else f", tokens {row['tokens_log']:.0f} / {row['tokens_invoice']:.0f}"
            )
            click.echo(
                f"  {row['day']} {one_line(row['model'])}: log {row['usd_log']:.6f}, invoice {row['usd_invoice']:.6f} USD{tokens}"
                f"{': ' if row['why'] else ''}{one_line(row['why'])}"
            )


@click.command()
@ROUTER
def rollback(folder: Path | str) -> None:
    """Bring back the router that the last export replaced; a second call undoes the first."""
    from cabs_core.errors import RouterError
    from cabs_core.router import roll_back

    if isinstance(folder, str):
        raise RouterError(f"{folder} keeps no earlier router: export the one that you want to {folder} again")
    click.echo(f"router {roll_back(folder.absolute())} is back at {folder}")


def _local(place: Path | str) -> Path:
    """The folder of a router; one on a store is copied first."""
    from cabs_core.router.remote import fetch_or_keep

    return place if isinstance(place, Path) else fetch_or_keep(place)


def _log(folder: Path, log: str | None) -> str | Path:
    from cabs_core.paths import default_log

    return default_log(folder) if log is None else log


@click.command()
@ROUTER
@LOG
@click.option(
    "--upstreams", type=click.Path(dir_okay=False, path_type=Path),
    help="YAML file that says where each model is called. Without it: decisions and feedback only.",
)  # fmt: skip
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. One beyond this machine needs CABS_SERVER_KEYS.",
)
@click.option("--port", type=int, default=8080, show_default=True)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--mode", type=click.Choice(["route", "shadow", "guarded"]), help="Default: the router's own.")
@click.option("--epsilon", type=float, help="Share of uniform exploration. Default: the router's own.")
@click.option("--budget-per-request", type=float, help="Target in USD a request, instead of rho.")
@click.option("--budget-per-day", type=float, help="Target in USD a day, instead of rho.")
@click.option(
    "--sticky", type=click.Choice(["session", "tools", "off"]), default="session", show_default=True,
    help="When a conversation keeps its model: always unless a switch pays for the lost cache, in tool loops, never.",
)  # fmt: skip
@click.option(
    "--route-by", type=click.Choice(["last_user", "first_user", "conversation"]), default="last_user", show_default=True,
    help="Text by which a request is routed: its last or first user message, or all of them.",
)  # fmt: skip
@click.option(
    "--budget-cap-per-day", type=float, help="Limit in USD a day (UTC): beyond it only free models answer."
)
@click.option(
    "--fail-closed", is_flag=True, help="Where the router itself fails: 503, not the fallback model."
)
@click.option("--client-costs", is_flag=True, help="Feedback may bring the cost of a call, within bounds.")
@click.option("--otel", is_flag=True, help="Send spans by OpenTelemetry's gen_ai conventions (extra otel).")
@click.option(
    "--metrics", metavar="HOST:PORT",
    help="Answer /metrics, /readyz and /healthz at a further address without a key. Default: /metrics asks for an admin's key.",
)  # fmt: skip
@click.option(
    "--grace", type=click.IntRange(1, 3600), default=20, show_default=True,
    help="Seconds that open streams have to end after SIGTERM.",
)  # fmt: skip
@click.option("--log-format", type=click.Choice(["json", "text"]), default="json", show_default=True)
@click.option("--keep-prompts", is_flag=True, help="Log the prompts themselves, not just their hashes.")
@click.option(
    "--check", is_flag=True, help="Check router, upstreams, keys and log, say what is found, and stop."
)
def serve(
    folder: Path | str, log: str | None, upstreams: Path | None, host: str, port: int, workers: int, grace: int,
    log_format: str, check: bool, **options: Any,
) -> None:  # fmt: skip
    """Serve a router as an OpenAI-compatible API.

    API keys of the upstreams come from the environment, and are never stored or logged. A router that is exported to the
    same folder, and a changed upstreams file, are picked up without a restart.
    """
    from cabs_core.router.server.app import serve as run
    from cabs_core.router.server.upstreams import check_serving

    local = _local(folder)
    if check:
        budgets = {
            name: options[name] for name in ("budget_per_request", "budget_per_day", "mode", "epsilon")
        }
        lines, problems = check_serving(local, _log(local, log), upstreams, **budgets)
        for line in lines:
            click.echo(line)
        for problem in problems:
            click.secho(f"problem: {problem}", fg="yellow")
        if problems:
            raise SystemExit(1)
        click.echo("all is well")
        return
    settings = {
        "folder": str(local.absolute()), "source": folder if isinstance(folder, str) else None,
        "log": None if log is None else str(log),
        "upstreams": None if upstreams is None else str(upstreams.absolute()), **options,
    }  # fmt: skip
    run(settings, host=host, port=port, workers=workers, grace=grace, log_format=log_format)
