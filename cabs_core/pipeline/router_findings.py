"""Verdicts of the checks of a router, from the summary of its stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cabs_core.pipeline.stages.router_summary import RouterSummary

#: milliseconds of a whole decision beyond which a check warns: median and 99th percentile
SLOW_P50 = 15.0
SLOW_P99 = 40.0
#: megabytes of a bundle beyond which a check warns
LARGE = 200.0


def verdicts(summary: RouterSummary) -> dict[str, tuple[bool, str]]:
    """Return {check: (passed, text)} of the checks same_decisions, latency and size of a router.

    All three fail if no bundle was made.
    """
    if summary.not_made:
        text = f"no router was made: {summary.not_made}"
        return dict.fromkeys(("same_decisions", "latency", "size"), (False, text))
    same = summary.same
    times = summary.latency
    p50 = times["total_p50"]
    p99 = times["total_p99"]
    size = summary.megabytes
    return {
        "same_decisions": (
            same["different"] == 0,
            f"{same['different']} of {same['rounds']} decisions on test prompts differ from the replay's"
            + ("" if same["first"] is None else f", the first in round {same['first']}")
            + f"; embedded again one at a time, {same['text_different']} of {same['text_rounds']}",
        ),
        "latency": (
            p50 <= SLOW_P50 and p99 <= SLOW_P99,
            f"a decision from text takes {p50:.1f} ms (p50), {p99:.1f} ms (p99), of which "
            f"{times['rest_p50']:.2f} ms are not the encoder; expected at most {SLOW_P50:g} and "
            f"{SLOW_P99:g} ms",
        ),
        "size": (size <= LARGE, f"{size:.1f} MB; expected at most {LARGE:g} MB"),
    }
