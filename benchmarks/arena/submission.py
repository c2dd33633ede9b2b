"""A router on RouterArena (Lu et al. 2025, arXiv 2510.00202): the files of a submission, and its score.

A submission is three JSON files: a config with the names of the models, the predictions (which model answers
which prompt), and the predictions for altered prompts (robustness). RouterArena asks the models itself and
writes `accuracy` and `cost` into the predictions; `score` is then computed as RouteWorks/RouterArena does in
`llm_evaluation/run.py` and `global_utils/robustness.py`. Nothing here learns from its data.

`class_for(BaseRouter)` is the class that RouterArena's own script `generate_prediction_file.py` takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cabs_core.base.atomic import write_text
from cabs_core.base.errors import DataError, StorageError
from cabs_core.base.paths import safe_name
from cabs_core.router.router import Router

#: weight of cost against accuracy, and the costs in USD per 1,000 queries that count as none and as all
BETA, CHEAPEST, DEAREST = 0.1, 0.0044, 200.0
#: prompts that are embedded together
_BATCH = 64
Entry = Mapping[str, Any]


class Chooser:
    """Which model a router would use for a prompt, by the names that RouterArena knows.

    It takes the likeliest model and never explores, so that equal prompts get equal models; nothing is
    logged.

    Args:
        folder: the bundle. names: {our name: RouterArena's}, for models whose names differ.

    Raises:
        DataError: `names` has a model that the router does not have, or two of one name.
    """

    def __init__(self, folder: str | Path, names: Mapping[str, str] | None = None) -> None:
        self.router = Router.load(folder, log=":memory:", mode="route", epsilon=0.0, seed="bundle")
        unknown = sorted(set(names or {}) - set(self.router.arms))
        if unknown:
            raise DataError(
                f"names: {unknown[0]!r} is none of the router's models {', '.join(self.router.arms)}"
            )
        self.names = {arm: (names or {}).get(arm, arm) for arm in self.router.arms}
        if len(set(self.names.values())) < len(self.names):
            raise DataError(f"names: two models have one name among {', '.join(self.names.values())}")

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        """RouterArena's name of the likeliest model for every prompt."""
        names: list[str] = []
        for start in range(0, len(prompts), _BATCH):
            routed = self.router.route_many(prompts[start : start + _BATCH])
            names += [self.names[max(r.probabilities, key=lambda arm: r.probabilities[arm])] for r in routed]
        return names


def class_for(base: type) -> type:
    """Subclass of RouterArena's `BaseRouter` that asks a bundle.

    `BaseRouter(name)` reads config/NAME.json into `models` and checks what `_get_prediction(prompt)` returns.
    The bundle is `pipeline_params.router_folder` of that config, as `write_submission` wrote it.
    """

    def _get_prediction(self: Any, query: str) -> str:
        if not hasattr(self, "_chooser"):
            params = self.config["pipeline_params"]
            self._chooser = Chooser(params["router_folder"], params.get("router_names"))
        model: str = self._chooser([query])[0]
        return model

    return type("CabsRouter", (base,), {"_get_prediction": _get_prediction})


def read_dataset(path: str | Path) -> list[tuple[str, str]]:
    """(global index, prompt) of RouterArena's router_data.json, router_data_10.json or
    router_robustness.json.

    Raises:
        DataError: no list of objects with a `global index` and a `prompt_formatted` or `prompt`, or an index
            twice.
    """
    rows: list[tuple[str, str]] = []
    for i, entry in enumerate(_entries(path)):
        index, prompt = _index(entry), entry.get("prompt_formatted") or entry.get("prompt")
        if index is None or not isinstance(prompt, str) or not prompt:
            raise DataError(
                f"{path}: entry {i} has no 'global index' or no text in 'prompt_formatted' or 'prompt'"
            )
        rows.append((index, prompt))
    if len({index for index, _ in rows}) < len(rows):
        raise DataError(f"{path}: a global index occurs twice")
    return rows


def write_submission(
    chooser: Chooser,
    name: str,
    dataset: str | Path,
    out: str | Path,
    *,
    folder: str | Path,
    robustness: str | Path | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Write config/NAME.json, predictions/NAME.json and, with `robustness`, predictions/NAME-robustness.json.

    Args:
        dataset, robustness: RouterArena's files. out: its folder `router_inference`, or any other.
        folder: the bundle, for `class_for`. notify: told how far it is.

    Raises:
        DataError: a dataset is not in RouterArena's form. StorageError: one of the files is there already.
    """
    out, name = Path(out), safe_name(name)
    jobs = [(name, dataset)] if robustness is None else [(name, dataset), (f"{name}-robustness", robustness)]
    for path in (
        out / "config" / f"{name}.json",
        *(out / "predictions" / f"{title}.json" for title, _ in jobs),
    ):
        if path.exists():  # answers that RouterArena paid for may be in it
            raise StorageError(f"{path} is there already: choose another name, or move the file away")
    params = {
        "router_name": name,
        "models": list(chooser.names.values()),
        "router_folder": str(Path(folder).absolute()),
        "router_names": chooser.names,
    }
    read = [(title, read_dataset(file)) for title, file in jobs]
    written = [_write(out / "config" / f"{name}.json", {"pipeline_params": params})]
    for title, rows in read:
        entries: list[dict[str, Any]] = []
        for start in range(0, len(rows), 16 * _BATCH):
            part = rows[start : start + 16 * _BATCH]
            for (index, prompt), model in zip(part, chooser([p for _, p in part]), strict=True):
                entries.append(
                    {
                        "global index": index,
                        "prompt": prompt,
                        "prediction": model,
                        "generated_result": None,
                        "cost": None,
                        "accuracy": None,
                    }
                )
            notify(f"{title}: {len(entries):,} of {len(rows):,} prompts")
        written.append(_write(out / "predictions" / f"{title}.json", entries))
    return written


def arena_score(cost: float, accuracy: float) -> float:
    """RouterArena's score: accuracy and cheapness in a weighted harmonic mean.

    S = (1 + b) A C / (b A + C) with b = .1 and C = (log2 200 - log2 c) / (log2 200 - log2 .0044), c cut to
    that range.

    Args:
        cost: USD per 1,000 queries, > 0. accuracy: in [0, 1].

    Examples:
        >>> round(arena_score(0.0044, 0.5), 4), round(arena_score(200.0, 0.5), 4)
        (0.5238, 0.0)
    """
    if not cost > 0 or not 0 <= accuracy <= 1:
        raise DataError(f"cost {cost} must be > 0 and accuracy {accuracy} in [0, 1]")
    cut = min(max(cost, CHEAPEST), DEAREST)
    cheap = math.log2(DEAREST / cut) / math.log2(DEAREST / CHEAPEST)
    below = BETA * accuracy + cheap
    return (1 + BETA) * accuracy * cheap / below if below else 0.0


def robustness_score(predictions: Sequence[Entry], altered: Sequence[Entry]) -> float | None:
    """Share of altered prompts that get the model of the unaltered one; None where no index is in both."""
    chosen = {_index(e): e.get("prediction") for e in predictions if not e.get("for_optimality")}
    both = [
        (chosen[_index(e)], e["prediction"]) for e in altered if chosen.get(_index(e)) and e.get("prediction")
    ]
    return None if not both else sum(a == b for a, b in both) / len(both)


def score(predictions: str | Path, robustness: str | Path | None = None) -> dict[str, Any]:
    """Figures of evaluated predictions: accuracy, cost_per_1000 (USD), arena_score, queries, and where known
    robustness and optimality.

    Means as RouterArena takes them: accuracy over the entries that have one, cost over all entries.
    Optimality is over queries for which other models were asked, too (`for_optimality`), and one of them was
    right: opt_sel, how often the router took the cheapest right one; opt_cost, what those cost over what the
    router cost where it was right; opt_acc.

    Raises:
        DataError: the file is none of predictions, or none has an accuracy and a cost: run RouterArena's
            evaluation first.
    """
    entries = _entries(predictions)
    entries_played = [e for e in entries if not e.get("for_optimality")]
    right = [float(e["accuracy"]) for e in entries_played if e.get("accuracy") is not None]
    costs = [float(e["cost"]) for e in entries_played if e.get("cost")]
    if not right or not costs:
        raise DataError(
            f"{predictions}: no entry has an accuracy and a cost: run RouterArena's llm_inference/run.py and "
            "llm_evaluation/run.py on it first"
        )
    accuracy, cost = sum(right) / len(right), 1000 * sum(costs) / len(entries_played)
    figures: dict[str, Any] = {
        "accuracy": accuracy,
        "cost_per_1000": cost,
        "arena_score": arena_score(cost, accuracy),
        "queries": len(entries_played),
        **_optimality(entries_played, [e for e in entries if e.get("for_optimality")]),
    }
    if robustness is not None:
        figures["robustness"] = robustness_score(entries_played, _entries(robustness))
    return figures


def _optimality(played: Sequence[Entry], others: Sequence[Entry]) -> dict[str, float]:
    in_others = {_index(e) for e in others}
    by_query: dict[str | None, dict[str, tuple[float, float]]] = {}
    for e in [*played, *others]:
        known_both = e.get("accuracy") is not None and e.get("cost") is not None
        if _index(e) in in_others and known_both and (e["accuracy"] or e["cost"]):
            by_query.setdefault(_index(e), {})[e["prediction"]] = (float(e["accuracy"]), float(e["cost"]))
    queries = taken = 0
    best_right = own_right = best_cost = own_cost = 0.0
    for e in played:
        answers = by_query.get(_index(e), {})
        perfect = {m: c for m, (a, c) in answers.items() if a >= 1.0}
        if e.get("prediction") not in answers or not perfect:
            continue
        cheapest = min(perfect, key=lambda m: perfect[m])
        accuracy, cost = answers[e["prediction"]]
        queries += 1
        best_right, own_right = best_right + answers[cheapest][0], own_right + accuracy
        if accuracy >= 1.0:
            taken += e["prediction"] == cheapest
            best_cost, own_cost = best_cost + perfect[cheapest], own_cost + cost
    if not queries:
        return {}
    return {
        "opt_sel": taken / queries,
        "opt_cost": best_cost / own_cost if own_cost else 0.0,
        "opt_acc": own_right / best_right,
        "optimality_queries": queries,
    }


def _index(entry: Entry) -> str | None:
    index = entry.get("global index") or entry.get("global_index")
    return None if index is None else str(index)


def _entries(path: str | Path) -> list[dict[str, Any]]:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no readable JSON ({error})") from None
    if not isinstance(data, list) or not all(isinstance(e, dict) for e in data):
        raise DataError(f"{path}: expected a list of objects, as RouterArena writes it")
    return data


def _write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_text(path, json.dumps(content, ensure_ascii=False, indent=2))
