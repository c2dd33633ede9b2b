"""The profile page of a pool: what its outcome table holds, as one self-contained HTML file."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
from scipy.spatial.distance import squareform

from cabs_core.base.atomic import write_text
from cabs_core.base.errors import listed
from cabs_core.base.statistics.uncertainty import mean_error
from cabs_core.base.units import percentage
from cabs_core.base.utility import clipped_utility
from cabs_core.data.outcomes import Outcomes, published_means
from cabs_core.data.outcomes.gaps import gaps_text
from cabs_core.data.pool_files import ModelPool
from cabs_core.data.validation.alignment import Blocks, correlation_blocks
from cabs_core.report.plots.page import render_page
from cabs_core.report.profile import charts

_TEMPLATE = Path(__file__).with_name("profile.html.j2")
#: most tasks of the page
_TASKS_SHOWN = 60


def write_profile(
    outcomes: Outcomes,
    splits: np.ndarray | None,
    pool: ModelPool,
    path: str | Path,
    *,
    links: tuple[tuple[str, str], ...] = (),
) -> Path:
    """Write the profile page atomically and return its path.

    Args:
        outcomes: outcome table of the pool.
        splits: `[n]` "train", "validation" or "test" of each query; None if there is no split yet.
        pool: settings of the pool.
        path: file to write.
        links: (text, address) of related pages, as seen from this one.
    """
    values = _content(outcomes, splits, pool)
    page = render_page(_TEMPLATE.name, _TEMPLATE.parent, links=links, **values)
    return write_text(path, page)


def headroom(outcomes: Outcomes, rhos: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Return mean utilities over all queries at each rho, as arrays `[R]`.

    Returns:
        {"random": of random play, "single": of the best single model at each rho, "which": index of this
        model, "oracle": of the best model of every query}.
    """
    utilities = [clipped_utility(outcomes.scores, outcomes.costs, rho) for rho in rhos]
    means = np.array([utility.mean(axis=0) for utility in utilities])
    return {
        "random": means.mean(axis=1),
        "single": means.max(axis=1),
        "which": means.argmax(axis=1),
        "oracle": np.array([utility.max(axis=1).mean() for utility in utilities]),
    }


def _content(o: Outcomes, splits: np.ndarray | None, pool: ModelPool) -> dict[str, Any]:
    """Return {name: value} of everything that the template reads."""
    rhos = pool.replay.rhos
    gain = headroom(o, rhos)
    blocks = correlation_blocks(o.scores, o.tasks)
    tasks, hidden = _tasks(o, splits)
    order = _similar_order(blocks.correlations)
    names = [o.arms[j] for j in order]
    shown = [t["key"] for t in tasks]
    by_task = np.array([o.scores[o.tasks == t].mean(axis=0) for t in shown])
    best_first = np.argsort(-o.scores.mean(axis=0), kind="stable")
    if pool.paper_benchmark:
        published = published_means(pool.paper_benchmark, o.arms)
    else:
        published = {}
    return {
        "title": pool.title or pool.name,
        "description": pool.description,
        "synthetic": pool.synthetic,
        "facts": _facts(o, splits),
        "figures": {
            "headroom": charts.headroom(rhos, gain, o.arms),
            "scatter": charts.costs(o),
            "tasks": charts.tasks(by_task[:, best_first], shown, [o.arms[j] for j in best_first]),
            "correlation": charts.correlations(
                blocks.correlations[np.ix_(order, order)], names, _block_note(blocks, o.arms)
            ),
        },
        "models": _models(o, published),
        "published": bool(published),
        "tasks": tasks,
        "hidden_tasks": hidden,
        "correlation_note": _block_note(blocks, o.arms),
        "content_hash": o.content_hash(),
        "loading_note": _loading_note(o),
    }


def _facts(o: Outcomes, splits: np.ndarray | None) -> list[tuple[str, str]]:
    """Return (name, figure) of the facts at the top of the page."""
    means = o.scores.mean(axis=0)
    facts = [
        ("queries", f"{len(o):,}"),
        ("models", str(len(o.arms))),
        ("tasks", f"{len(np.unique(o.tasks)):,}"),
        ("mean score of all models", f"{means.mean():.3f}"),
        (f"best single model: {o.arms[int(means.argmax())]}", f"{means.max():.3f}"),
        ("best model per query", f"{o.scores.max(axis=1).mean():.3f}"),
        ("dearest ÷ cheapest model", _ratio(o.costs.mean(axis=0))),
        (
            "characters of a prompt, 5 % / median / 95 %",
            " / ".join(f"{n:,.0f}" for n in np.quantile(o.prompt_lengths, [0.05, 0.5, 0.95])),
        ),
    ]
    copied = np.bincount(np.unique(o.copies, return_inverse=True)[1])
    if (copied > 1).any():
        facts.append(("queries with a near-duplicate", f"{copied[copied > 1].sum():,}"))
    if splits is not None:
        counts = " / ".join(f"{int((splits == s).sum()):,}" for s in ("train", "validation", "test"))
        facts.insert(3, ("train / validation / test", counts))
    return facts


def _ratio(costs: np.ndarray) -> str:
    """Return the dearest model's cost as a multiple of the cheapest one's, or a text that a model is free."""
    if costs.min() <= 0:
        return "a model is free"
    return f"{costs.max() / costs.min():,.0f}×"


def _models(o: Outcomes, published: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the texts of the table of models, the model with the highest mean score first.

    Args:
        published: {model: published mean score and cost}; empty if the pool is no benchmark of the paper.
    """
    best = o.scores == o.scores.max(axis=1, keepdims=True)
    alone = (best & (best.sum(axis=1, keepdims=True) == 1)).mean(axis=0)
    error = [mean_error(scores, clusters=o.clusters).value for scores in o.scores.T]
    low, high = np.quantile(o.costs, [0.05, 0.95], axis=0)
    rows = []
    for j in np.argsort(-o.scores.mean(axis=0), kind="stable"):
        arm = o.arms[j]
        score = float(o.scores[:, j].mean())
        rows.append(
            {
                "name": arm,
                "score": f"{score:.3f}",
                "share": f"{100 * score:.1f}",
                "se": f"{error[j]:.3f}",
                "cost": f"{o.costs[:, j].mean():.2e}",
                "spread": f"{low[j]:.1e} – {high[j]:.1e}",
                "alone": percentage(alone[j], 1),
                "paper_score": f"{published[arm].score:.3f}" if arm in published else "–",
                "paper_cost": f"{published[arm].cost:.2e}" if arm in published else "–",
            }
        )
    return rows


def _tasks(o: Outcomes, splits: np.ndarray | None) -> tuple[list[dict[str, Any]], int]:
    """Return the texts of the table of the most frequent tasks, and the number of the other tasks."""
    names, counts = np.unique(o.tasks, return_counts=True)
    rows = []
    for name in names[np.argsort(-counts, kind="stable")][:_TASKS_SHOWN]:
        is_task = o.tasks == name
        means = o.scores[is_task].mean(axis=0)
        mix = []
        if splits is not None:
            for split in ("train", "validation", "test"):
                queries = int((splits[is_task] == split).sum())
                mix.append(
                    {
                        "split": split,
                        "queries": f"{queries:,}",
                        "share": f"{100 * queries / is_task.sum():.2f}",
                    }
                )
        rows.append(
            {
                "key": str(name),
                "name": str(name),
                "queries": f"{int(is_task.sum()):,}",
                "mix": mix,
                "score": f"{means.mean():.3f}",
                "best": o.arms[int(means.argmax())],
                "best_score": f"{means.max():.3f}",
                "any": f"{o.scores[is_task].max(axis=1).mean():.3f}",
            }
        )
    return rows, max(0, len(names) - _TASKS_SHOWN)


def _similar_order(correlations: np.ndarray) -> np.ndarray:
    """Return an order `[K]` of the models in which models with correlated scores stand together.

    The order is the leaf order of average-linkage clustering on 1 - correlation. Models whose rows in
    `correlations` are NaN, such as those with constant scores within every task, come last.
    """
    known = np.flatnonzero(np.isfinite(np.diag(correlations)))
    rest = np.setdiff1d(np.arange(len(correlations)), known)
    if len(known) < 3:
        return np.concatenate([known, rest])
    distance = np.clip(1 - correlations[np.ix_(known, known)], 0, None)
    np.fill_diagonal(distance, 0)
    flat = squareform((distance + distance.T) / 2, checks=False)
    return np.concatenate([known[leaves_list(optimal_leaf_ordering(linkage(flat, "average"), flat))], rest])


def _block_note(blocks: Blocks, arms: list[str]) -> str:
    """Return a note on the blocks of models whose scores correlate, or on data too few to tell blocks apart.

    If blocks are `apart`, the note warns that their scores cannot be about the same queries. Other unrelated
    blocks are listed without a warning, because a model may be unlike all others.
    """
    if not blocks.conclusive:
        return (
            "There are too few queries, or too few models whose scores vary, to tell whether the models fall "
            "into unrelated blocks."
        )
    if len(blocks.blocks) < 2:
        return "All models hang together, as they should when their scores are about the same queries."
    members = "; ".join(
        f"({number}) {', '.join(arms[j] for j in block)}" for number, block in enumerate(blocks.blocks, 1)
    )
    note = f"The models fall into {len(blocks.blocks)} unrelated blocks: {members}."
    if blocks.apart:
        numbers = listed([str(block + 1) for block in blocks.apart])
        return f"{note} The scores of these blocks cannot all be about the same queries: {numbers}."
    return f"{note} This proves no misaligned rows, because a model may be unlike all others."


def _loading_note(o: Outcomes) -> str:
    """Return sentences on gaps that were kept, or else on queries that were dropped or that none was."""
    dropped = int(o.report.get("queries_dropped", 0))
    read = int(o.report.get("queries_read", len(o)))
    gaps = gaps_text(o.report.get("gaps", {}))
    if gaps:
        return " ".join(gaps)
    if not dropped:
        return "No query was dropped."
    lost = o.report.get("dropped_by_task", {})
    most = sorted(lost, key=lambda t: -lost[t]["dropped"] / lost[t]["read"])[:3]
    where = ", ".join(f"{t} ({lost[t]['dropped']:,} of {lost[t]['read']:,})" for t in most)
    note = f"{dropped:,} of {read:,} queries were dropped because a model did not answer them"
    if not where:
        return f"{note}."
    return f"{note}; hardest hit: {where}."
