"""The source `logs`: decisions with their outcomes, one model a prompt, from a log or from a router's event
log.
"""

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd

from cabs_core.base.errors import DataError, counted
from cabs_core.data.endpoints.prices import doubt_of_costs
from cabs_core.data.endpoints.usage import Tokens
from cabs_core.data.events.log import EventLog
from cabs_core.data.logs.read import Log, read_log
from cabs_core.data.logs.receipt import Receipt
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.pool_files import PoolFile
from cabs_core.data.pool_files.log import LogPool
from cabs_core.data.pool_files.prices import USUAL_SEARCH, USUAL_TIERS, CallPrice
from cabs_core.data.pool_files.prompts import PromptsPool

#: endings of a router's event log
EVENT_LOGS = (".sqlite", ".sqlite3", ".db")
_SQLITE = b"SQLite format 3\x00"
#: the task of a call that has none in a log where others have one
_NO_TASK = "none"


def is_event_log(place: str | Path) -> bool:
    """Return True if a log is a router's event log.

    Every URL counts as an event log, since an event log may be a PostgreSQL database. A file is an event log
    if it has an ending of `EVENT_LOGS` or begins as SQLite files do.
    """
    if "://" in str(place) or Path(place).suffix.lower() in EVENT_LOGS:
        return True
    if not Path(place).is_file():
        return False
    with open(place, "rb") as handle:
        return handle.read(len(_SQLITE)) == _SQLITE


def read_logged(pool_file: PoolFile) -> RawOutcomes:
    """Return every decision of a log as a query that has one cell, that of the model that answered.

    The id of a query is the number of its record in the log. If a record holds several calls, the ids of the
    second and later calls end in `.1`, `.2` and so on. In an event log, the ids count the decisions from 1.

    Args:
        pool_file: a pool whose source is the event log of a router that keeps prompts (`cabs serve
            --keep-prompts`), or a log that `cabs_core.read_log` reads.

    Raises:
        DataError: the log cannot be read, a column is missing, or a value is wrong. The message names row,
            column and value.
    """
    path = pool_file.table_path()
    if is_event_log(path):
        frame = event_frame(path)
        frame["query_id"] = [str(row) for row in range(1, 1 + len(frame))]
        return RawOutcomes.from_tidy(frame, origin=str(path))
    log = log_of_pool(pool_file)
    log.require("score")
    rows = log.details["record"]
    within = rows.groupby(rows).cumcount()  # calls of one record
    frame = pd.DataFrame(
        {
            "query_id": [f"{row}.{i}" if i else f"{row}" for row, i in zip(rows, within, strict=True)],
            **{name: log.frame[name] for name in ("prompt", "model", "score")},
        }
    )
    known = {name: log.frame[name] for name in ("cost", "propensity", "session", "task", "time")}
    known |= {f"n_{name}": log.details[name] for name in ("input_tokens", "output_tokens")}
    known |= {"split": log.details["split"]}
    for name, values in known.items():
        if values.notna().any():
            if name == "task":
                frame[name] = values.fillna(_NO_TASK)
            else:
                frame[name] = values
    raw = RawOutcomes.from_tidy(frame, origin=str(path))
    pool = pool_file.pool
    assert isinstance(pool, LogPool)
    by_price = costs_by_price(log, _prices_by_name_in_log(pool))
    receipt = asdict(_receipt_with_prices(log, pool, by_price))
    priced = np.full(raw.scores.shape, np.nan)
    priced[np.arange(len(log)), [raw.arms.index(name) for name in log.frame["model"]]] = by_price
    return replace(raw, priced_costs=priced, report={**raw.report, "receipt": receipt})


def receipt_of_pool(pool_file: PoolFile) -> Receipt | None:
    """Return the receipt of a pool's log, also of a log that is too small for a pool.

    Return None if the pool is no pool of a log, or if its source is the event log of a router, which has no
    receipt.

    Raises:
        DataError: the log cannot be read.
    """
    pool = pool_file.pool
    if not isinstance(pool, LogPool) or is_event_log(pool_file.table_path()):
        return None
    log = log_of_pool(pool_file)
    return _receipt_with_prices(log, pool, costs_by_price(log, _prices_by_name_in_log(pool)))


def _receipt_with_prices(log: Log, pool: LogPool, by_price: np.ndarray) -> Receipt:
    """Return the receipt of a log with notes on the unit of costs and on prices that lack a tier or searches.

    Args:
        log: n calls.
        pool: the pool of the log, for its prices.
        by_price: USD of each call by the pool's prices, `[n]` (`costs_by_price`).
    """
    notes = [
        *notes_on_unit(log, by_price),
        *_notes_on_missing_prices(log, _prices_by_name_in_log(pool), all_calls=pool.missing != "price"),
    ]
    return replace(log.receipt, notes=[*log.receipt.notes, *notes])


def _prices_by_name_in_log(pool: LogPool) -> dict[str, CallPrice]:
    """Return {name in the log: price}. All names of one model have its price."""
    if not pool.models:
        return dict(pool.prices)
    found: dict[str, CallPrice] = {}
    for shown, names in pool.names_in_source().items():
        if shown in pool.prices:
            found |= dict.fromkeys(names, pool.prices[shown])
    return found


def costs_by_price(log: Log, prices: Mapping[str, CallPrice]) -> np.ndarray:
    """Return the USD of each call by its model's price, `[n]`; nan without a price or without token counts.

    Args:
        log: n calls.
        prices: {model as the log names it: price}.
    """
    found = np.full(len(log), np.nan)
    details = log.details
    rows = zip(log.frame["model"], details["counts"], details["input_tokens"], details["output_tokens"])
    for row, (model, counts, into, out) in enumerate(rows):
        price = prices.get(model)
        if price is None:
            continue
        if counts is None and not (np.isnan(into) or np.isnan(out)):
            counts = Tokens(float(into), float(out))
        if counts is not None:
            cost = replace(counts, usd=None).cost(price)
            found[row] = np.nan if cost is None else cost
    return found


def _notes_on_missing_prices(log: Log, prices: Mapping[str, CallPrice], *, all_calls: bool) -> list[str]:
    """Return a note for every tier or search that calls of a model name and the price of the model lacks.

    Args:
        log: the calls.
        prices: {model as the log names it: price}.
        all_calls: True if prices give the cost of every call, False if only of calls that have no cost.
    """
    lacking: Counter[tuple[str, str]] = Counter()
    calls = zip(log.frame["model"], log.details["counts"], log.frame["cost"].isna())
    for model, counts, without_cost in calls:
        if model not in prices or counts is None or not (all_calls or without_cost):
            continue
        for words in replace(counts, usd=None, currency="").unpriced(prices[model]):
            lacking[model, words] += 1
    notes = []
    for (model, words), number in lacking.items():
        notes.append(
            f"{counted(number, 'call')} of {model} with {words}, which prices.{model} lacks: counted at the "
            f"ordinary price. {_advice_on_price(words)}"
        )
    return notes


def _advice_on_price(words: str) -> str:
    """Return advice on a price that is not given: its field, and the amount that providers usually charge.

    Args:
        words: `tier NAME`, or other words for a search.
    """
    kind, _, name = words.partition(" ")
    if kind == "tier":
        if name in USUAL_TIERS:
            times = f" (providers usually ask {USUAL_TIERS[name]:g} times)"
        else:
            times = ""
        return f"Give tiers: {{{name}: MULTIPLE}}{times}"
    return f"Give per_search (providers usually ask {USUAL_SEARCH:g} USD)"


def notes_on_unit(log: Log, by_price: np.ndarray) -> list[str]:
    """Return a list with a note if the costs of a log may be in another unit than USD, else an empty list.

    The median cost is compared with the median by the pool's prices. Without prices, a median too high for
    any usual call gives the note (`doubt_of_costs`).

    Args:
        log: n calls.
        by_price: costs of the calls by the pool's prices, nan if unknown, `[n]`.
    """
    costs = log.frame["cost"].to_numpy(dtype=np.float64)
    known = ~np.isnan(costs)
    if not known.any():
        return []
    both = known & ~np.isnan(by_price)
    if both.any():
        expected = float(np.median(by_price[both]))
    else:
        expected = None
    note = doubt_of_costs(float(np.median(costs[both if both.any() else known])), expected)
    if note:
        return [note]
    return []


def log_of_pool(pool_file: PoolFile, *, scored: bool = True) -> Log:
    """Return the log that a pool's source names.

    Args:
        pool_file: a pool of a log, or of prompts to collect from a log.
        scored: False leaves the column of scores out.

    Raises:
        DataError: the log cannot be read.
    """
    pool = pool_file.pool
    assert isinstance(pool, LogPool | PromptsPool)
    source = pool.source
    columns = source.columns.chosen()
    return read_log(
        pool_file.table_path(),
        source.format,
        columns if scored else columns | {"score": None},
        pool.score_range if "score_range" in pool.model_fields_set else None,
        rows=source.rows,
        score_words=source.score_words,
        scores=pool_file.scores_path(),
    )


def event_frame(path: Path) -> pd.DataFrame:
    """Return the decisions of an event log as a tidy frame.

    Turns of a conversation that kept an earlier decision's model are no decisions. Score and cost are those
    of a decision's first reward that was not taken back. They are missing for a decision without such a
    reward, and for a decision that was not marked where others were (`router.marks`), since its probability
    is not known. The propensity of a marked decision is its probability among the marked ones.

    Raises:
        DataError: the log holds no decision, or decisions without their prompt.
    """
    with closing(EventLog(path, read_only=True)) as log:
        rewards = {r.decision_id: r for r in log.rewards() if r.teaches}
        decisions = [d for d in log.decisions() if d.kept is None]
    rewards = {d.id: rewards[d.id] for d in decisions if d.id in rewards and d.marked is not False}
    if not decisions:
        raise DataError(f"{path} holds no decision yet")
    without = sum(d.prompt is None for d in decisions)
    if without:
        raise DataError(
            f"{path}: {without} of {len(decisions)} decisions keep no prompt, "
            "and a pool is trained on prompts. Serve with --keep-prompts; "
            "a log without prompts can be evaluated and learnt from beside a table (router: {log: PATH})"
        )
    rows = [(d, rewards.get(d.id)) for d in decisions]
    return pd.DataFrame(
        {
            "prompt": [d.prompt for d, _ in rows],
            "model": [d.arm for d, _ in rows],
            "propensity": [json.loads(d.decision)["probability"] if d.marked else d.p for d, _ in rows],
            "session": [d.session for d, _ in rows],
            "time": [d.ts for d, _ in rows],
            "score": [None if r is None else r.score for _, r in rows],
            "cost": [None if r is None else r.cost for _, r in rows],
        }
    )
