"""What a person should know of an upstreams file before serving (`endpoints.upstreams` reads it)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cabs_core.data.endpoints.upstreams import Upstreams, read_upstreams
from cabs_core.data.events.log import EventLog
from cabs_core.router.bundle import held_out_text, read_manifest
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router
from cabs_server.callers import is_local


def remarks(upstreams: Upstreams, arms: Sequence[str]) -> list[str]:
    """What a person should know of a sound file before traffic comes."""
    lines = []
    for name, upstream in upstreams.models.items():
        if name not in arms:
            never = "the router never chooses it; it answers where it is named"
            joins = f"it joins the router by {upstream.joins_by}, unless it was taken out before"
            lines.append(f"models.{name}: {never if upstream.joins_by is None else joins}")
        if upstream.price is None and not upstream.free:
            lines.append(
                f"models.{name}: no price and not free, so its calls cost nothing in budgets and reports"
            )
        elif upstream.price is not None and upstream.price.cached is None and upstream.price.input > 0:
            lines.append(f"models.{name}.price.cached is not given: cached input counts half of input")
        if upstream.price is not None and (doubt := upstream.price.doubt(f"models.{name}.price")):
            lines.append(doubt)
        scheme, _, host, *_ = upstream.url.split("/")
        if scheme == "http:" and upstream.key_env and not is_local(host):
            lines.append(f"models.{name}.url is http://: its key travels unencrypted")
    return lines


def prices_of(upstreams: Upstreams, arms: Sequence[str]) -> Mapping[str, float]:
    """{model: USD per one million tokens in}, of those whose price is known (`Router`)."""
    prices: dict[str, float] = {}
    for arm in arms:
        upstream = upstreams.models[arm]
        if upstream.free:
            prices[arm] = 0.0
        elif upstream.price is not None:
            prices[arm] = upstream.price.input
    return prices


def check_serving(
    folder: str | Path, log: str | Path, upstreams: str | Path | None, **budgets: Any
) -> tuple[list[str], list[str]]:
    """What `cabs serve --check` says: lines for people, and problems that do not keep the server from
    starting. The router decides once, so that what it decides with is compiled when it serves.

    Args:
        budgets: budget_per_request, budget_per_day, mode, epsilon, of `Router`.

    Raises:
        CabsError: the bundle is damaged, the file is invalid, a key is absent, or the log cannot be opened.
    """
    manifest = read_manifest(folder)
    lines = [
        f"router {manifest.id}: {manifest.policy}, {len(manifest.arms)} models, verified",
        held_out_text(folder),
    ]
    router = Router.load(folder, RouterOptions(**budgets))
    router.warm_up()
    problems = router.problems()
    if upstreams is None:
        return [*lines, "no upstreams file: decisions and feedback only"], problems
    checked = read_upstreams(upstreams, manifest.names)
    for name, upstream in checked.models.items():
        price = "free" if upstream.free else "no price"
        if upstream.price is not None:
            price = f"{upstream.price.input:g} in, {upstream.price.output:g} out"
        takes = "+".join(upstream.input) + (", tools" if upstream.tools else "")
        context = "any length" if upstream.context is None else f"{upstream.context} tokens"
        lines.append(f"{name}: {upstream.url} ({', '.join(upstream.speaks)}), {price}; {takes}; {context}")
    lines += [f"note: {line}" for line in remarks(checked, manifest.names)]
    events = EventLog(log)
    try:
        lines.append(f"log {events.name}: {sum(n for _, _, n in events.counts())} calls")
    finally:
        events.close()
    return lines, problems
