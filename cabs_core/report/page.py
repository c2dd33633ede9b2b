"""Contents of a pool's page. The template `report.html.j2` reads the attributes of a `PoolPage` by name."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cabs_core.base.units import money
from cabs_core.base.utility import middle_rho
from cabs_core.report import cards, charts, findings, round_tables, sections, stages
from cabs_core.report.answer_page import AnswerPage
from cabs_core.report.banners import limits
from cabs_core.report.collected import CollectionPart
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence, examples
from cabs_core.report.names import condition_name, condition_text, description_of, label
from cabs_core.report.plots.figure import Figure
from cabs_core.report.pool_answer import GoalAnswer
from cabs_core.report.tables import PageTable, missing

#: most characters of a prompt among the examples
_LONGEST_PROMPT = 600


@dataclass(frozen=True)
class PoolPage:
    """The contents of a pool's page. Each part is computed only when the template reads it.

    Attributes:
        data: marts of the pool.
        evidence: replays with their problem; None if they are not at hand.
        origin: section on how a collected table came about; empty for other pools.
        changes: sentences on changes since the last report; None if this is the first one.
        links: (text, address) of related pages.
        warnings: sentences of the data checks.
        older_data: sentence on why there is no answer on the data at hand; empty if there is one.
        first_screen: sentences and tables of the answer; None if the outcome table or the replays are not at
            hand.
    """

    data: PoolData
    evidence: Evidence | None
    origin: CollectionPart
    changes: list[str] | None
    links: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    older_data: str = ""
    first_screen: AnswerPage | None = None

    # ---- the first screen

    @property
    def goal(self) -> GoalAnswer | None:
        """The answer to the pool's goal; None if the pool has no goal, or the page no first screen."""
        if self.first_screen is None:
            return None
        return self.first_screen.found.goal

    @cached_property
    def banners(self) -> list[str]:
        """Sentences on the limits of the page's claims, which stand below the title and above the answer.

        They say why there is no answer on older data, what the data checks warn of, where the collection of
        the table fell short, and at which values of rho replays are missing.
        """
        older = [self.older_data] if self.older_data else []
        return [*older, *self.warnings, *self.origin.banners, *limits(self.data, self.evidence)]

    @property
    def stress(self) -> str:
        """Title of the stress condition, such as `delayed rewards`; empty if there is none.

        A stress condition changes the split, the offline labels or the stream of the pool's replays, to show
        how much policies suffer.
        """
        return condition_name(self.data.info["condition"])

    @property
    def condition(self) -> str:
        """Sentence on the stress condition (see `stress`), with its title and what it changes in a replay.

        Empty if there is none.
        """
        return condition_text(self.data.info["condition"])

    @property
    def winner(self) -> str:
        """Label of the ranked router with the highest mean utility; empty if no router has a rank."""
        if self.data.routers:
            return label(self.data.routers[0])
        return ""

    @cached_property
    def as_good(self) -> list[str]:
        """Labels of the other routers that are not significantly worse than the best one."""
        if self.data.routers:
            return [label(p) for p in cards.as_good(self.data)]
        return []

    # ---- the sections

    @property
    def best(self) -> str:
        """Line with the name of the best policy, its mean utility and the standard error of that mean."""
        return findings.best_policy(self.data)

    @cached_property
    def text(self) -> dict[str, Any]:
        """{name of one of seven functions of `findings`, such as `rq1`: the text that it made}.

        The names are not those of sections: `ranking`, for example, stands in the section `utility`, and
        `learning` in the answer.
        """
        makers = ("ranking", "learning", "rq1", "rq2", "rq3", "rq4", "encoders")
        return {name: getattr(findings, name)(self.data) for name in makers}

    @property
    def paper(self) -> bool:
        """True if the paper reports figures of this benchmark."""
        return bool(self.data.info["paper_benchmark"])

    @cached_property
    def figures(self) -> dict[str, Figure | None]:
        """{key: figure}, or None in place of a figure for which the pool has no data.

        Each figure is drawn by the drawing process, if there is one, while the next ones are prepared.
        """
        found = {}
        for key, figure in charts.figures(self.data, self.evidence):
            if figure:
                figure.draw_ahead()
            found[key] = figure
        return found

    @cached_property
    def more(self) -> list[PageTable]:
        """Tables on speed, oracles and solver that the pool has data for."""
        made = [make(self.data) for make in sections.BEHIND]
        return [table for table in made if table is not None]

    @cached_property
    def tables(self) -> dict[str, PageTable | None]:
        """{key: table}, or None in place of a table for which there are no data.

        The tables of `more` have a key only if there are data for them.
        """
        data = self.data
        evidence = self.evidence
        first = self.first_screen
        tables = {
            "ladder": None if first is None else first.ladder,
            "by_task": None if first is None else first.tasks,
            "more": None if first is None else first.more_data_table,
            "by_value": None if first is None else first.worth_table,
            "utility": sections.utility(data),
            "coupled": sections.coupled(data),
            "presets": sections.presets(data),
            "efficiency": sections.efficiency(data),
            "arms": sections.arms(data),
            "encoders": sections.encoders(data),
            "tuning": stages.tuning(data),
            "logged": stages.logged(data),
            "budgets": None,
            "tasks": None,
            "propensities": round_tables.propensities(evidence) if evidence else None,
        }
        if evidence and data.routers:
            best = data.routers[0]
            tables["budgets"] = round_tables.budgets(evidence, best)
            tables["tasks"] = round_tables.tasks(evidence, best, _shown_rho(evidence, best))
        return tables | self.origin.tables | {table.key: table for table in self.more}

    @property
    def shown_rho(self) -> str:
        """The value of rho at which the examples were played, as text.

        Empty if the replays are not at hand or no router has a rank.
        """
        if self.evidence is None or not self.data.routers:
            return ""
        return f"{_shown_rho(self.evidence, self.data.routers[0]):g}"

    @cached_property
    def examples(self) -> list[tuple[str, list[dict[str, str]], str]]:
        """Prompts that the best router routed well, and prompts that it did not.

        Two groups (title, prompts as {field: text}, class in the style sheet). Empty if the replays or the
        texts of the prompts are not at hand, or if no prompt is an example.
        """
        evidence = self.evidence
        if evidence is None or not self.data.routers or not evidence.prompts:
            return []
        router = self.data.routers[0]
        frame = examples(evidence, router, _shown_rho(evidence, router))
        hit = self.data.scale.hit
        titles = {
            True: (f"{hit.capitalize()}, and cheaper than the mean", "hit"),
            False: (f"Missed, though another model {self.data.scale.hits}", "miss"),
        }
        groups = [
            (title, [_example(e) for e in frame[frame["hit"] == kind].itertuples()], name)
            for kind, (title, name) in titles.items()
        ]
        if any(rows for _, rows, _ in groups):
            return groups
        return []

    @property
    def glossary(self) -> list[tuple[str, str]]:
        """(label, description) of every policy in the pool's leaderboard."""
        return [(label(p), description_of(p)) for p in self.data.board.index]

    @property
    def sections(self) -> list[tuple[str, str]]:
        """(id, title) of every section that the page has, for its menu."""
        tables = self.tables
        figures = self.figures
        candidates = [
            ("collected", "Collection", tables["collection"]),
            ("by-value", "By the worth of an answer", tables["by_value"]),
            ("frontier", "Quality against cost", True),
            ("tasks", "By task", tables["tasks"]),
            ("examples", "Examples", self.examples),
            ("utility", "Every policy", True),
            ("learning", "Learning", True),
            ("trust", "Traces", figures["calibration"] or tables["propensities"]),
            ("arms", "Models played", tables["arms"]),
            ("logged", "Logged traffic", tables["logged"]),
            ("paper", "The paper's questions", tables["coupled"] or tables["presets"] or self.paper),
            ("robustness", "Encoders", tables["encoders"]),
            ("inside", "Speed, oracles, tuning", self.more or tables["tuning"]),
            ("changes", "Changes", True),
            ("words", "Words", True),
            ("provenance", "Provenance", True),
        ]
        return [(key, title) for key, title, content in candidates if content]

    @property
    def provenance(self) -> list[tuple[str, str]]:
        """(name, value) of the data, settings and versions that the figures rest on."""
        row = self.data.mart("provenance").iloc[0]
        versions = json.loads(row["versions"] or "{}")
        seeds = (row["split_seed"], row["oracle_seed"], row["order_seed"])
        if self.condition:
            stress = f"{row['condition']} ({self.condition})"
        else:
            stress = "none"
        entries = [
            ("Replays compared", f"{row['runs']} ({row['policies']} policies × {row['rhos']} values of ρ)"),
            ("Replays set aside as outdated", str(row["outdated_runs"])),
            ("Replays that the pool file does not name", str(row["unnamed_runs"])),
            ("Rounds × trials", f"{row['rounds']:,} × {row['trials']}"),
            ("Encoder", row["encoder"]),
            ("Stress condition", stress),
            ("Weight of latency (ρ₁)", f"{self.data.info['latency_weight']:g}"),
            ("Replay problem (hash)", row["problem_hash"]),
            ("Query orders (hash)", row["order_hash"]),
            ("Pool settings (hash)", row["pool_hash"]),
            ("Seeds: split / oracle / order", " / ".join(_seed(seed) for seed in seeds)),
            ("Replayed (UTC)", f"{row['oldest_run']} to {row['newest_run']}"),
            ("Python", row["python"]),
            ("Packages", ", ".join(f"{k} {v}" for k, v in versions.items())),
        ]
        return [(name, "–" if missing(value) else str(value)) for name, value in entries]

    @property
    def commands(self) -> list[str]:
        """Commands that show the pool, compute its results, check them, and make the page again."""
        pool = self.data.pool
        verbs = (
            f"pool show {pool}",
            f"run --pool {pool}",
            f"check --pool {pool}",
            f"report --pool {pool} --open",
        )
        return [f"cabs {verb}" for verb in verbs]


def _seed(value: Any) -> str:
    """Return a seed as text; an en dash if it is not known."""
    if missing(value):
        return "–"
    return str(int(value))


def _shown_rho(evidence: Evidence, policy: str) -> float:
    """Return the lower median of the rhos at which a policy was replayed."""
    return middle_rho(rho for name, rho in evidence.folders if name == policy)


def _example(row: Any) -> dict[str, str]:
    """Return a row of `evidence.examples` as texts for the template."""
    prompt = row.prompt
    if len(prompt) > _LONGEST_PROMPT:
        prompt = prompt[: _LONGEST_PROMPT - 1] + "…"
    others = [(model, score) for model, score in row.scores.items() if model != row.model]
    others.sort(key=lambda pair: (-pair[1], pair[0]))
    return {
        "task": row.task,
        "prompt": prompt,
        "model": row.model,
        "score": f"{row.score:g}",
        "cost": money(row.cost),
        "others": "Others: " + ", ".join(f"{model} {score:g}" for model, score in others) + ".",
    }
