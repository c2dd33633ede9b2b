"""Sentences on the limits of a page's claims, such as values of rho at which policies were not replayed."""

from typing import Any

from cabs_core.base.units import money, percentage
from cabs_core.base.utility import margin
from cabs_core.report.data import PoolData, rhos_text
from cabs_core.report.evidence import Evidence


def limits(data: PoolData, evidence: Evidence | None) -> list[str]:
    """Return the limits that hold for a pool, one to three sentences each.

    Args:
        evidence: the replays with their problem; None if they are not at hand.
    """
    rho = f"ρ ({data.scale.rho})"
    texts = []
    table = data.mart("utility_by_rho")
    planned = [float(rho) for rho in data.info["rhos"]]
    replayed = sorted(table["rho"].unique())
    absent = [r for r in planned if r not in replayed]
    if absent:
        texts.append(
            f"Replayed at {len(replayed)} of the pool's {len(planned)} values of {rho}; missing: "
            f"{rhos_text(absent, 12)}; “cabs run --pool {data.pool}” makes them."
        )
    if data.missing_rhos:
        texts.append(data.missing_text())
    later = data.settings.get("later_models")
    if later:
        texts.append(
            f"Half of the queries come after {', '.join(later)} changed under their names; every mean on "
            "this page is over both halves, “Learning” shows them along the stream."
        )
    if data.info["condition"] == "sessions":
        texts.append(_sessions_text(data.settings["replay"]["sessions"], evidence))
    if evidence is not None:
        rhos = [r for r in replayed if r > 0]
        cost = evidence.problem.costs.mean(axis=0)
        worthless = [r for r in rhos if (margin(cost, r) == 0).mean() > 0.5]
        if len(worthless) > len(rhos) / 2:
            least = min(worthless)
            most_values = f"At {len(worthless)} of {len(rhos)} values of {rho} above 0"
            if data.scale.against:
                texts.append(
                    f"{most_values} a call to most of the models costs more than a comparison won counts. ρ "
                    f"below {least:g} tells more."
                )
            else:
                worth = f"a right answer worth more than {money(1 / least)}"
                texts.append(
                    f"{most_values} a call to most of the models costs more than a right answer is worth. "
                    f"Smaller ρ ({worth}) tell more."
                )
    return texts


def _sessions_text(options: dict[str, Any], evidence: Evidence | None) -> str:
    """Return sentences on how conversations were made, which model answers a turn, and what a turn costs.

    Args:
        options: settings of the conversations, `replay.sessions` of the pool file.
        evidence: the replays with their problem; None if they are not at hand.
    """
    keeps = {
        "session": "a turn keeps the model of the last one unless another is predicted to be worth the lost "
        "prompt cache",
        "tools": "a turn keeps the model of the last one within tool loops only",
        "off": "every turn is a decision",
    }[options["sticky"]]
    tools = percentage(options["tools"], None)
    cached = percentage(options["cached"], None)
    if options["tools"]:
        loops = f", {tools} of the later turns in tool loops"
    else:
        loops = ""
    counted = evidence is not None and evidence.problem.input_tokens is not None
    share = f"{percentage(options['input_share'], None)} of a call's cost is taken to be its input"
    if counted:
        tokens = "token counts are the table's"
    else:
        tokens = share
    return (
        f"Conversations are made of single queries of a task, {options['turns']:g} turns on average{loops}; "
        f"{keeps} (sticky: {options['sticky']}). A cached token costs {cached} of one "
        f"that is not; {tokens}. Costs of a single model are those of one that answers whole conversations."
    )
