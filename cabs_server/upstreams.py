"""Checks and prices of an upstreams file before traffic comes. `endpoints.upstreams` reads the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cabs_core.data.endpoints.upstreams import Upstream, Upstreams, read_upstreams
from cabs_core.data.events.log import EventLog
from cabs_core.router.bundle import held_out_text, read_manifest
from cabs_core.router.options import RouterOptions
from cabs_core.router.router import Router
from cabs_server.callers import is_local


class ServingCheck(NamedTuple):
    """Result of `cabs serve --check`.

    Attributes:
        lines: sentences about the router, its models and the log.
        problems: sentences about problems with which the server would still start.
    """

    lines: list[str]
    problems: list[str]


def remarks(upstreams: Upstreams, arms: Sequence[str]) -> list[str]:
    """Return notes on the models of a valid upstreams file.

    A note says that a setting is doubtful, such as an absent price or a key that travels unencrypted, or that
    a model is none of the router's.

    Args:
        arms: the router's models.
    """
    lines = []
    for name, upstream in upstreams.models.items():
        lines += _remarks_on_model(name, upstream, is_arm=name in arms)
    return lines


def _remarks_on_model(name: str, upstream: Upstream, *, is_arm: bool) -> list[str]:
    """Return the notes of `remarks` on one model of the file.

    Args:
        is_arm: True if the router chooses the model.
    """
    lines = []
    if not is_arm and upstream.joins_by is None:
        lines.append(f"models.{name}: the router never chooses it; it answers where it is named")
    elif not is_arm:
        lines.append(
            f"models.{name}: it joins the router by {upstream.joins_by}, unless it was taken out before"
        )
    price = upstream.price
    if price is None and not upstream.free:
        lines.append(
            f"models.{name}: no price and not free, so its calls cost nothing in budgets and reports"
        )
    if price is not None:
        if price.cached is None and price.input > 0:
            lines.append(f"models.{name}.price.cached is not given: cached input counts half of input")
        doubt = price.doubt(f"models.{name}.price")
        if doubt:
            lines.append(doubt)
    scheme, _, host, *_ = upstream.url.split("/")
    if scheme == "http:" and upstream.key_env and not is_local(host):
        lines.append(f"models.{name}.url is http://: its key travels unencrypted")
    return lines


def prices_of(upstreams: Upstreams, arms: Sequence[str]) -> Mapping[str, float]:
    """Return {model: USD per one million tokens in} of the router's models whose price is known.

    The price of a free model is 0.

    Args:
        arms: the router's models. Each stands in the file.
    """
    prices: dict[str, float] = {}
    for arm in arms:
        upstream = upstreams.models[arm]
        if upstream.free:
            prices[arm] = 0.0
        elif upstream.price is not None:
            prices[arm] = upstream.price.input
    return prices


def check_serving(
    folder: str | Path, log: str | Path, upstreams: str | Path | None, **options: Any
) -> ServingCheck:
    """Check a router, its upstreams file and its log, as `cabs serve --check` does.

    The router decides once, so that its kernels are compiled before it serves.

    Args:
        folder: folder of the bundle.
        log: path or URL of the event log, which is opened only if there is an upstreams file.
        upstreams: path of the upstreams file, or None.
        **options: fields of `RouterOptions`.

    Raises:
        CabsError: the bundle is damaged, the file is invalid, a key is absent, or the log cannot be opened.
    """
    manifest = read_manifest(folder)
    lines = [
        f"router {manifest.id}: {manifest.policy}, {len(manifest.arms)} models, verified",
        held_out_text(folder),
    ]
    router = Router.load(folder, RouterOptions(**options))
    router.warm_up()
    problems = router.budget_problems()
    if upstreams is None:
        return ServingCheck([*lines, "no upstreams file: decisions and feedback only"], problems)
    checked = read_upstreams(upstreams, manifest.names)
    lines += [_describe_model(name, upstream) for name, upstream in checked.models.items()]
    lines += [f"note: {line}" for line in remarks(checked, manifest.names)]
    events = EventLog(log)
    try:
        lines.append(f"log {events.name}: {sum(n for _, _, n in events.counts())} calls")
    finally:
        events.close()
    return ServingCheck(lines, problems)


def _describe_model(name: str, upstream: Upstream) -> str:
    """Return one line about a model: address, dialects, price, kinds of input and context."""
    price = "free" if upstream.free else "no price"
    if upstream.price is not None:
        price = f"{upstream.price.input:g} in, {upstream.price.output:g} out"
    takes = "+".join(upstream.input)
    if upstream.tools:
        takes += ", tools"
    if upstream.context is None:
        context = "any length"
    else:
        context = f"{upstream.context} tokens"
    return f"{name}: {upstream.url} ({', '.join(upstream.speaks)}), {price}; {takes}; {context}"
