"""Figures that the paper published, as data: what the reports and marts put beside ours.

    published.csv       utility and regret by encoder, benchmark, policy and cost regime; `label` is the LaTeX
                        label of the paper's table. Policies carry this project's names (`knn` is the paper's
                        RouterBench row).
    model_averages.csv  mean score and mean cost (USD per query) of every model of every benchmark
    model_names.csv     the paper's model names and those of the data sources

Source: Correlation-Aware Contextual Bandits with Surrogate Rewards, section Experiments and its appendix.
Caution on `openllm`: the published score matrix is misaligned between models, so those figures are not a target.
"""

from __future__ import annotations

import csv
import io
from functools import lru_cache
from importlib import resources

BENCHMARKS = ("routerbench", "sprout", "openllm")
ENCODERS = ("mdeberta-v3-base", "all-MiniLM-L6-v2")


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text, newline="")))


@lru_cache(maxsize=1)
def _published() -> dict[tuple[str, str, str, str, str], float]:
    return {
        (r["encoder"], r["benchmark"], r["policy"], r["regime"], r["metric"]): float(r["value"])
        for r in _rows("published.csv")
    }


def published(
    benchmark: str, policy: str, regime: str, metric: str = "utility", encoder: str = ENCODERS[0]
) -> float | None:
    """The paper's figure, or None where it gives none. Regimes: low, medium, high; metric: utility or regret."""
    if benchmark not in BENCHMARKS or encoder not in ENCODERS:
        raise KeyError(f"benchmark {benchmark!r} / encoder {encoder!r}: expected {BENCHMARKS} / {ENCODERS}")
    return _published().get((encoder, benchmark, policy, regime, metric))


def mean_costs(benchmark: str) -> dict[str, float]:
    """{model: mean USD per query} as published (paper, section Dataset Details), under the paper's names."""
    return {
        r["model"]: float(r["cost_usd"]) for r in _rows("model_averages.csv") if r["benchmark"] == benchmark
    }


def source_names(benchmark: str) -> dict[str, str]:
    """{the paper's model name: name in the data source}."""
    return {
        r["paper_name"]: r["source_name"] for r in _rows("model_names.csv") if r["benchmark"] == benchmark
    }
