"""Which text of a conversation to route by: the last user message, the first, or all of them
(`cabs serve --route-by`).

    python -m benchmarks.route_text [--pools NAME ...] [--splits 3] [--trials 2] [--turns 4] [--mixed] [--json
    FILE]

Queries of a task, or with `--mixed` of any, become turns of conversations
(`cabs_core.evaluation.replay.sessions`). A share of the later turns is made into follow-ups that say nothing
("make it shorter"): the task, and so every model's score and cost, stay those of the turn before. Kernel
ridge on TF-IDF, trained on single queries, routes every turn by the text in question; mean clipped utility at
rho 150, without stickiness and costs of contexts, which are the same for all texts. Errors: over splits, or
over conversations where that is larger.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.script import Script, head, write_figures
from benchmarks.study_plan import FIELD_SETUP
from benchmarks.study_problems import set_up
from cabs_core.algorithms.oracles.train import train_oracles
from cabs_core.base.compiled.rng import query_order
from cabs_core.base.paths import cabs_home
from cabs_core.base.units import percentage
from cabs_core.base.utility import clipped_utility
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.endpoints.person_text import LONGEST
from cabs_core.data.outcomes import load_outcomes, make_splits
from cabs_core.data.pool_files.sessions import Sessions
from cabs_core.data.pools.find import find_pool
from cabs_core.evaluation.replay.sessions import in_conversations

POOLS = ("routerbench_sub3", "paretobandit_k4", "simple_evals_ru")
SHARES = (0.0, 0.25, 0.5, 0.75)
TEXTS = ("last_user", "first_user", "conversation")
FOLLOW_UPS = (
    "Make it shorter, please.",
    "Are you sure?",
    "And now explain it to a beginner.",
    "Thanks. Go on.",
)
RHO = 150.0


def one_split(pool_name: str, seed: int, args: argparse.Namespace) -> dict[tuple[float, str], np.ndarray]:
    """{(share, text): utility of every conversation, mean over its turns}."""
    file, store = find_pool(pool_name), cabs_home() / "embeddings"
    pool = set_up(file.pool, FIELD_SETUP)
    settings = pool.split.model_copy(update={"split_seed": seed})
    outcomes = load_outcomes(dataclasses.replace(file, pool=pool.model_copy(update={"split": settings})))
    split = make_splits(outcomes, settings)
    train = [p for p, part in zip(outcomes.prompts, split, strict=True) if part == "train"]
    x, _ = embed_prompts(outcomes.prompts, pool.encoder, store=store, fit_prompts=train)
    oracles = train_oracles(x, outcomes, split, pool.oracle, features=pool.features)
    test = np.flatnonzero(split == "test")
    value = clipped_utility(outcomes.scores, outcomes.costs, RHO)
    options, results = Sessions(turns=args.turns), {}
    for share in SHARES:
        texts: dict[str, list[str]] = {name: [] for name in TEXTS}
        rows = []
        sessions: list[int] = []
        for trial in range(args.trials):
            rng = np.random.default_rng([seed, trial, 7])
            order, turns = in_conversations(
                query_order(seed, pool_name, trial, len(test)),
                np.zeros(len(test)) if args.mixed else outcomes.tasks[test],
                None,
                options,
                rng,
            )
            follows = rng.random(len(order)) < share
            messages: list[str] = []
            for t, row in enumerate(test[order]):
                if turns.number[t] == 0:
                    messages, current = [], row
                    sessions.append(len(sessions))
                else:
                    sessions.append(sessions[-1])
                if turns.number[t] and follows[t]:
                    messages.append(FOLLOW_UPS[int(rng.integers(len(FOLLOW_UPS)))])
                else:
                    current = row
                    messages.append(outcomes.prompts[row])
                rows.append(current)
                texts["last_user"].append(messages[-1][:LONGEST])
                texts["first_user"].append(messages[0][:LONGEST])
                texts["conversation"].append("\n".join(one[-LONGEST:] for one in messages)[-LONGEST:])
        groups = np.unique(sessions, return_inverse=True)[1]
        for name, given in texts.items():
            vectors, _ = embed_prompts(given, pool.encoder, store=store, fit_prompts=train)
            lengths = np.array([float(len(text)) for text in given])
            scores = oracles.predict_scores(vectors, lengths, "kernel_ridge")
            arms = np.argmax(clipped_utility(scores, oracles.predict_costs(vectors, lengths), RHO), axis=1)
            results[share, name] = np.bincount(groups, value[rows, arms]) / np.bincount(groups)
            results[share, f"{name}, turns"] = np.bincount(groups).astype(float)
    return results


def study(pool: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of share and text: utility of a turn, and the difference from `last_user` with its error."""
    splits = [one_split(pool, seed, args) for seed in range(args.splits)]
    rows = []
    for share in SHARES:
        for name in TEXTS:
            means, gaps, errors = [], [], []
            for results in splits:
                turns = results[share, f"{name}, turns"]
                weights = turns / turns.mean()
                gap = weights * (results[share, name] - results[share, "last_user"])
                means.append(float((weights * results[share, name]).mean()))
                gaps.append(float(gap.mean()))
                errors.append(float(gap.std(ddof=1) / np.sqrt(len(gap) / args.trials)))
            error = float(np.sqrt(np.mean(np.square(errors)) / len(splits)))
            if len(splits) > 2:
                error = max(error, float(np.std(gaps, ddof=1) / np.sqrt(len(splits))))
            rows.append(
                {
                    "pool": pool,
                    "follow-ups": share,
                    "text": name,
                    "utility": float(np.mean(means)),
                    "difference": float(np.mean(gaps)),
                    "se": error,
                }
            )
            print(
                f"| {pool} | {percentage(share)} | {name} | {np.mean(means):.4f} | {np.mean(gaps):+.4f} ± "
                f"{error:.4f} |",
                flush=True,
            )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--pools", nargs="+", default=POOLS)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--turns", type=float, default=4.0)
    parser.add_argument("--mixed", action="store_true", help="the subject changes: turns are of any task")
    args = parser.parse_args(argv)
    print(head("pool", "follow-ups", "routed by", "utility", "against last_user"))
    rows = [row for pool in args.pools for row in study(pool, args)]
    write_figures(rows, args.json)


if __name__ == "__main__":
    main()
