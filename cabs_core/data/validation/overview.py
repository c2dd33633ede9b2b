"""Overview of a pool's table for `cabs pool add`: its content in a few lines, after the checks of a run."""

import re
from dataclasses import dataclass

import numpy as np

from cabs_core.base.catalog.encoders import encoder_record, encoders
from cabs_core.base.errors import DataError, PoolError, counted, did_you_mean, listed
from cabs_core.base.utility import margin
from cabs_core.data.logs.receipt import Receipt
from cabs_core.data.outcomes import Outcomes, load_outcomes, splits_of_pool
from cabs_core.data.outcomes.copies import copies_text
from cabs_core.data.outcomes.gaps import gaps_text, left_out_because
from cabs_core.data.outcomes.judges import judges_text
from cabs_core.data.pool_files import ModelPool, PoolFile
from cabs_core.data.pool_files.columns import CostColumn
from cabs_core.data.pool_files.pool import TODAY_LOG, TODAY_NONE
from cabs_core.data.pool_files.rhos import dollars, grid_for_costs
from cabs_core.data.tables.cells import Place
from cabs_core.data.validation.catalog import CHECKS, Stage, accept_words
from cabs_core.data.validation.run import run_checks

#: Number of models that are listed; the others are counted.
_LISTED = 12
#: Least number of cells (prompts x models) of a table whose time and memory are foretold.
_LARGE = 300_000
#: Processor seconds and gigabytes of a cell, and gigabytes of an empty table, measured by
#: `benchmarks/scale.py` of commit 002682d2 (docs/measurements/speed.md).
_SECONDS = 159 / 3e6
_GIGABYTES = 1.2 / 3e6
_LEAST_GIGABYTES = 0.4
#: {form of texts that are no prompts: advice if most prompts of a table have this form}
_NO_PROMPTS = {
    re.compile(
        r"[\x21-\x7e]{1,64}"
    ): "are these ids? A router goes by the wording: join the texts to the table, "
    "and keep the ids as query_id",
    re.compile(
        r"\s*[\[{]+\s*'[a-z]+':.*", re.DOTALL
    ): "these are messages as Python prints them: write them as "
    "JSON (json.dumps), so that the text is found in them",
}
#: least spread of all scores, as a share of `score_range`, without a warning that the range may be wrong
_NARROW = 0.05
STAGES: tuple[Stage, ...] = ("outcomes", "splits")


@dataclass(frozen=True)
class Overview:
    """Overview of a table that a run would accept.

    Attributes:
        outcomes: the loaded table.
        lines: the overview as text.
        warnings: sentences on facts that should be known and do not stop a run.
    """

    outcomes: Outcomes
    lines: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def text(self) -> str:
        """All lines, with warnings last."""
        return "\n".join((*self.lines, *(f"note: {warning}" for warning in self.warnings)))


def overview(pool_file: PoolFile) -> Overview:
    """Return the overview of a pool's table, after the checks that would stop a run.

    Raises:
        PoolError, DataError: the error that `cabs run` would raise.
    """
    outcomes = load_outcomes(pool_file)
    _check_names_in_pool_file(outcomes, pool_file.pool)
    failed = _warnings_of_checks(outcomes, pool_file.pool)
    lines = [
        *_shape(outcomes),
        *_costs_from(outcomes, pool_file),
        *_models(outcomes),
        *_latencies(outcomes, pool_file),
        *_repeated(outcomes),
        *_rhos(outcomes, pool_file),
        *_effort(outcomes, pool_file),
    ]
    return Overview(outcomes, tuple(lines), (*failed, *_warnings(outcomes, pool_file)))


def _check_names_in_pool_file(outcomes: Outcomes, pool: ModelPool) -> None:
    """Refuse a pool file that names a model or a check that does not exist, as a run would.

    Raises:
        PoolError: a name in `goal`, `today` or `accept` is unknown.
    """
    if pool.goal is not None and pool.goal.of is not None and pool.goal.of not in outcomes.arms:
        raise PoolError(
            f"pool {pool.name!r}: goal.of names {pool.goal.of!r:.100}, which is no model of the table."
            f"{did_you_mean(pool.goal.of, outcomes.arms)} It has: {listed(outcomes.arms)}"
        )
    if pool.today not in (None, TODAY_LOG, TODAY_NONE, *outcomes.arms):
        raise PoolError(
            f"pool {pool.name!r}: today is {pool.today!r:.100}, which is no model of the table."
            f"{did_you_mean(str(pool.today), outcomes.arms)} It has: {listed(outcomes.arms)}"
        )
    unknown = sorted(set(pool.accept) - {spec.name for spec in CHECKS})
    if unknown:
        raise PoolError(
            f"pool {pool.name!r}: accept names {unknown[0]!r:.100}, which is no check of the data. "
            f"The checks are: {', '.join(spec.name for spec in CHECKS)}"
        )


def _warnings_of_checks(outcomes: Outcomes, pool: ModelPool) -> list[str]:
    """Return the warnings of the checks that fail without stopping a run.

    Raises:
        DataError: a check fails that stops a run.
    """
    splits = splits_of_pool(outcomes, pool)[0]
    warnings = []
    for stage in STAGES:
        for check in run_checks(stage, outcomes, splits, pool):
            if not check.passed and check.severity == "ERROR":
                origin = outcomes.report.get("origin", pool.name)
                advice = (
                    f"{check.means and ' ' + check.means}{_advice(check.name, outcomes)}{_left_out(outcomes)}"
                )
                raise DataError(
                    f"{origin}: {check.observed}; expected {check.expected} (check {check.name}).{advice}"
                )
            if not check.passed:
                warnings.append(check.warning)
    return warnings


def _left_out(outcomes: Outcomes) -> str:
    """Return a sentence on the calls of a log that were left out when it was read, or ''."""
    receipt = outcomes.report.get("receipt")
    if receipt and receipt["left_out"]:
        return f". The log: {'; '.join(Receipt(**receipt).lines()[:2])}"
    return ""


def _advice(check: str, outcomes: Outcomes) -> str:
    """Return what to do about a failed check that stops a run."""
    accept = f" {accept_words(check)}"
    missing = outcomes.report.get("missing_cells", {}) | outcomes.report.get("missing_costs", {})
    if check != "queries_kept" or not missing:
        return accept
    worst = max(missing, key=lambda arm: missing[arm])
    if "apart" in outcomes.report:
        apart = f" {outcomes.report['apart']}."
    else:
        apart = ""
    return (
        f"{apart} Most cells are missing for {worst!r:.100} ({missing[worst]:,}): "
        f"list the other models under `models`, or set `missing: predict` to use all queries.{accept}"
    )


def _shape(outcomes: Outcomes) -> list[str]:
    """Return lines on the size of the table, its judges, its gaps and dropped queries.

    For a log, return the lines of `_log_shape`.
    """
    report = outcomes.report
    if "decisions" in report:
        return _log_shape(outcomes)
    tasks = sorted(set(outcomes.tasks.tolist()))
    if len(tasks) > 1:
        named = f": {listed(tasks, 100)}"
    else:
        named = ""
    lines = [
        f"{report.get('origin', 'table')}: {report.get('rows_read', outcomes.scores.size):,} rows, "
        f"{len(outcomes):,} queries x {len(outcomes.arms)} models, "
        f"{counted(len(tasks), 'task')}{named}"
    ]
    if report.get("judges"):
        lines.append(judges_text(report["judges"]))
    lines += gaps_text(report.get("gaps", {}))
    dropped = int(report.get("queries_dropped", 0))
    if dropped:
        why = left_out_because(report.get("gaps", {}))
        lines.append(f"left out: {dropped:,} of {report['queries_read']:,} queries, because {why}")
        lines += [
            f"  missing {what}: {listed((f'{model} {count:,}' for model, count in cells.items()), 200)}"
            for what, cells in (
                ("scores", report.get("missing_cells")),
                ("costs", report.get("missing_costs")),
            )
            if cells
        ]
    if report.get("no_models"):
        lines.append(
            f"not read: {listed(report['no_models'], 200)}, since a column of such a model is not there"
        )
    if report.get("apart"):
        lines.append(report["apart"])
    return lines


def _column(pool_file: PoolFile, field: str) -> str:
    """Return the name of a column of the pool's table, or the field's own name if the file names none."""
    columns = getattr(pool_file.pool.source, "columns", None)
    column = getattr(columns, field, None) or field
    if isinstance(column, CostColumn):
        return column.path
    return str(column)


def _latencies(outcomes: Outcomes, pool_file: PoolFile) -> list[str]:
    """Return a line on the unit in which latencies were read, and their median. Empty without latencies."""
    if outcomes.latencies is None:
        return []
    name = _column(pool_file, "latency")
    middle = float(np.median(outcomes.latencies))
    unit = Place("", 0, name).unit("latency")[0]
    if unit:
        return [f"latencies: column {name!r} is read as {unit}; median {middle:.3g} s"]
    if middle > 300:
        doubt = "; if they are milliseconds, give the column a name that ends in _ms"
    else:
        doubt = ""
    return [f"latencies: seconds, median {middle:.3g} s{doubt}"]


def _log_shape(outcomes: Outcomes) -> list[str]:
    """Return lines on the calls of a log, its propensities and its conversations."""
    report = outcomes.report
    merged = report.get("merged_models", {})
    if "receipt" in report:
        lines = Receipt(**report["receipt"]).without(merged).lines()
    else:
        lines = [report["origin"]]
    lines.append(
        f"{report['rows_read']:,} decisions, {len(outcomes):,} of them with a score and a cost, on "
        f"{len(set(outcomes.prompts)):,} prompts; {len(outcomes.arms)} models"
    )
    if outcomes.propensities is None:
        lines.append(
            "propensities: none in the log; they are estimated, and every figure then rests on that model "
            "(map source.columns.propensity where they are known)"
        )
    else:
        known = outcomes.propensities[outcomes.answered == 1]
        lines.append(f"propensities: from {known.min():.3g} to {known.max():.3g}")
    if outcomes.sessions is not None:
        count = len(set(outcomes.sessions.tolist()) - {""})
        lines.append(f"conversations: {count:,}; intervals take the decisions of one as dependent")
    return lines


def _costs_from(outcomes: Outcomes, pool_file: PoolFile) -> list[str]:
    """Return lines on the source and the unit of the costs."""
    report = outcomes.report
    lines = []
    if "costs_from" in report:
        lines.append(f"costs: from {report['costs_from']}")
    name = _column(pool_file, "cost")
    unit = Place("", 0, name).unit("cost")[0]
    if unit:
        lines.append(f"costs: column {name!r} is read as {unit}")
    if report.get("costs_priced"):
        lines.append(
            f"  priced calls: {listed((f'{m} {c:,}' for m, c in report['costs_priced'].items()), 200)}"
        )
    return lines


def _models(outcomes: Outcomes) -> list[str]:
    """Return a table of the models as lines: mean score, USD per 1,000 calls and number of real answers.

    The means are those of real answers. The number of answers is given only if some outcomes are predicted,
    as for a log and for a table with gaps. The `_LISTED` models with the best mean scores have a line each.
    If there are more models, a last line counts them.
    """
    scores, costs = outcomes.means
    calls = [""] * len(scores)
    head = ""
    if outcomes.answered is not None:
        calls = [f"{n:11,.0f}" for n in outcomes.answered.sum(axis=0)]
        head = "    answers"
    order = np.argsort(-scores, kind="stable")
    width = min(40, max(len(arm) for arm in outcomes.arms))
    lines = [f"{'model':{width}s}  mean score  USD per 1,000 calls{head}"]
    lines += [
        f"{outcomes.arms[j]:{width}.{width}s}  {scores[j]:10.3f}  {1000 * costs[j]:19.4g}{calls[j]}"
        for j in order[:_LISTED]
    ]
    if len(order) > _LISTED:
        lines.append(f"  and {len(order) - _LISTED} more models, mean scores {scores.min():.3f} and up")
    return lines


def _repeated(outcomes: Outcomes) -> list[str]:
    """Return lines on repeated prompts, on near-copies, and on forms that many prompts share.

    The list is empty if there are none of them.
    """
    texts, counts = np.unique(np.array(outcomes.prompts, dtype=object), return_counts=True)
    again = np.flatnonzero(counts > 1)
    near = copies_text(outcomes.prompts, outcomes.copies)
    if not len(again):
        return near
    most = again[counts[again].argmax()]
    return [
        f"repeated prompts: {len(again):,}, the most often ({counts[most]} times) {texts[most]!r:.80}; "
        "the queries of one prompt stay in one split",
        *near,
    ]


def _rhos(outcomes: Outcomes, pool_file: PoolFile) -> list[str]:
    """Return a line with the values of a right answer that are compared, in USD (1 / rho).

    Of more than 15 values only the first three and the last two are shown. A second line gives the range of
    values that fits the costs. The second line is left out if the rhos were chosen from the costs, because
    the first line shows that range then. The second line is also left out if all costs are 0.
    """
    rhos = sorted(pool_file.pool.replay.rhos, reverse=True)
    shown = [dollars(r) for r in rhos]
    listed = ", ".join(shown if len(shown) <= 15 else [*shown[:3], "...", *shown[-2:]])
    if pool_file.rhos_from == "costs":
        chosen = "; chosen from the costs"
    else:
        chosen = ""
    lines = [f"one right answer is worth: {listed} ({counted(len(rhos), 'value')} to be compared{chosen})"]
    fitting = [r for r in grid_for_costs(outcomes.costs.mean(axis=0)) if r > 0]
    if pool_file.rhos_from != "costs" and fitting:
        lines.append(
            "  at these costs, which model is best depends on it between about "
            f"{dollars(fitting[-1])} and {dollars(fitting[0])}; "
            "`replay: {rhos: auto}` takes values of that range"
        )
    return lines


def _effort(outcomes: Outcomes, pool_file: PoolFile) -> list[str]:
    """Return a line with the processor time and memory that a large table will take, by measured rates.

    The line says that replays, and embedding if the encoder is not a fitted one, come on top. Return an empty
    list for a table with fewer than `_LARGE` cells.
    """
    cells = outcomes.scores.size
    if cells < _LARGE:
        return []
    known = encoder_record(pool_file.pool.encoder.name)
    if known and known.fitted:
        more = ""
    else:
        more = ", and embedding, whose rate `cabs run` shows"
    return [
        f"large: {cells:,} outcomes will take about {max(cells * _SECONDS / 60, 1):.0f} minutes "
        f"of processor time and {_LEAST_GIGABYTES + cells * _GIGABYTES:.1f} GB of memory; "
        f"on top come the replays{more}. Fewer models or prompts take less in proportion"
    ]


def _warnings(outcomes: Outcomes, pool_file: PoolFile) -> list[str]:
    """Return sentences on facts that should be known and do not stop a run.

    The facts are doubtful prices, costs that are all 0, values of a right answer below the cost of most
    models, prompts that look like ids or like printed messages, an unknown name of the encoder, and scores
    that use a small part of `score_range`.
    """
    costs = outcomes.costs.mean(axis=0)
    rhos = np.array(pool_file.pool.replay.rhos)
    prices = pool_file.pool.prices
    warnings = list(filter(None, (price.doubt(f"prices.{model}") for model, price in prices.items())))
    if (costs == 0).all():
        warnings.append(
            "all costs are 0: then nothing can be saved, and the best model is the one with the best score"
        )
    worthless = margin(costs[None, :], rhos[:, None]) == 0
    if (worthless.mean(axis=1) > 0.5).mean() > 0.5:
        warnings.append(
            f"at {int((worthless.mean(axis=1) > 0.5).sum())} of {len(rhos)} worths of a right answer "
            "most models cost more than it is worth, so the cheapest wins by its price alone: "
            "set `replay: {rhos: auto}`, or larger answer_value_usd"
        )
    doubt = _no_prompts(outcomes.prompts)
    if doubt:
        warnings.append(doubt)
    name = pool_file.pool.encoder.name
    if encoder_record(name) is None and "/" not in name:
        known = list(encoders())
        warnings.append(
            f"encoder {name!r:.100} is none of {', '.join(known)}, so a folder or a model of that name "
            f"on the Hugging Face hub is looked for.{did_you_mean(name, known)}"
        )
    low, high = pool_file.pool.score_range
    spread = float(np.ptp(outcomes.scores))
    if 0 < spread < _NARROW:
        least, most = (low + (high - low) * float(x) for x in (outcomes.scores.min(), outcomes.scores.max()))
        warnings.append(
            f"all scores lie between {least:.4g} and {most:.4g}, but score_range says that {low:g} "
            f"to {high:g} can be given: set it to the worst and the best score that can be given"
        )
    elif outcomes.scores.max() <= 0.2:
        warnings.append(
            f"the best score is {outcomes.scores.max():g}: if {outcomes.scores.max():g} is as good "
            "as it gets, set score_range to the worst and the best score that can be given"
        )
    return warnings


def _no_prompts(prompts: list[str]) -> str:
    """Return a doubt if most prompts look like ids or like messages as Python prints them; else ''."""
    for pattern, doubt in _NO_PROMPTS.items():
        alike = [text for text in prompts if pattern.fullmatch(text)]
        if len(alike) > len(prompts) / 2:
            return f"{len(alike):,} of {len(prompts):,} prompts are like {alike[0]!r:.80}: {doubt}"
    return ""
