"""The first screen of a page: question, answer, saving and doubt, in words and two tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from cabs_core.base.errors import counted
from cabs_core.base.units import money, percentage
from cabs_core.evaluation.answer import Decisions, LoggedTable, Rung, TaskRow, Word, losses, option_worth
from cabs_core.evaluation.answer.ladder import LOG
from cabs_core.evaluation.answer.more_data import more_data
from cabs_core.evaluation.answer.neighbours import NEAR
from cabs_core.report.names import label
from cabs_core.report.pool_answer import LEAST_LABELLED, TASK, Judged, PoolAnswer, today_in_words
from cabs_core.report.rule_text import listed_names, rule_text
from cabs_core.report.scale import Scale
from cabs_core.report.tables import PageTable, TableCell, percent, signed_text, table_of, words

#: codes of notes of the answer that the headline, the question or the table have in other words
_SAID_ELSEWHERE = ("nothing_to_recommend", "assumed_today")
#: header of the difference in quality to today's model
#: level of every printed interval, in the heads of columns
_LEVEL = percentage(0.95).replace(" ", "\u00a0")
_CHANGE = f"Change in points ({_LEVEL})"
_NAMES = {"keep": "Keep", "switch": "Switch", "rules": "Rules", "router": "Router"}
#: tasks with a table row of excerpts, excerpts of a task, and characters of one
_MOST_TASKS = 12
_EXCERPTS = 3
_LONGEST = 300
#: characters of the prompt that stands for a cluster
_LONGEST_CENTER = 90
#: fewest characters that all prompts share for them to be cut
_SHARED = 20


@dataclass(frozen=True)
class Excerpts:
    """Prompts of a task on which the cheaper model fails and today's does not.

    Attributes:
        task: its name. model: the cheaper model. prompts: the texts, without what all prompts share.
    """

    task: str
    model: str
    prompts: tuple[str, ...]


@dataclass(frozen=True)
class AnswerPage:
    """What the first screen says of an answer.

    Attributes:
        found: the answer. pool: name of the pool. best: the best policy with its error, in words; it is the
            headline where no model is in use.
        rhos: cost sensitivities that were replayed; 1 / rho is what a right answer may be worth in USD.
        scale: what a score counts.
    """

    found: PoolAnswer
    pool: str
    best: str = ""
    rhos: tuple[float, ...] = ()
    scale: Scale = field(default_factory=Scale)

    @property
    def question(self) -> str:
        """What is asked, and what today's model is."""
        today = self.found.answer.today
        if self.found.answer.today_is_assumed:
            return (
                f"No model is in use (today: none). Every option is compared with {today}, the single model "
                "that is best on all rows."
            )
        if today == LOG:
            return "The log's choices answer today. What may be used instead, and what does it save?"
        guess = ""
        if self.found.today_is_guessed:
            guess = (
                f" That {today} is used today is a guess: it is the dearest model of the table. "
                "“today: MODEL” in the pool file changes it."
            )
        return (
            f"{today} answers today. What may be used instead, for which prompts, what does it save?{guess}"
        )

    @property
    def _today(self) -> str:
        """What is used today, in words."""
        return today_in_words(self.found.answer)

    @property
    def shown(self) -> Rung | None:
        """The recommended rung; None if there is none."""
        name = self.found.answer.recommended
        return None if name is None else self.found.answer.rung(name)

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if self.found.answer.today_is_assumed and self.best:
            return self.best
        return recommendation(self.found)

    @property
    def decision(self) -> str:
        """`keep`, `use` or `unsure`, for the colour of the section."""
        if self.shown is None:
            return "unsure"
        return "keep" if self.shown.rung == "keep" else "deploy"

    @property
    def why(self) -> str:
        """What the answer changes in quality and money, with its intervals."""
        rung = self.shown
        if rung is None:
            return (
                "No option is sure to be as good as what it is compared with. The table says how far each is."
            )
        if rung.rung == "keep":
            others = [r for r in self.found.answer.rungs if r.rung != "keep"]
            if others and not any(np.isfinite(r.difference) for r in others):
                return "No other option can be judged by the data at hand; below stands why."
            return "No other option is sure to be as good and cheaper, or better; the table has the figures."
        return f"On {_prompts(rung)}: {self._quality(rung)} {self._money(rung)}"

    def _quality(self, rung: Rung) -> str:
        name = self.scale.quality.lower()
        points = f"{_points(rung.difference)} points, 95 % interval {_interval(rung)}"
        before = percentage(rung.quality - rung.difference, 1)
        text = f"{name} {percentage(rung.quality, 1)} instead of {before} ({points})"
        if self.found.scored.people is not None:
            text = f"{name} as people would score {points}"
        if rung.word == Word.CHEAPER:
            tolerance = f"{100 * self.found.options.tolerance:g} points"
            text += f". It is sure that quality falls by less than {tolerance}, the tolerance"
        return f"{text}."

    def _money(self, rung: Rung) -> str:
        if rung.cost_low is None:
            return "what is saved cannot be told."
        keep = self.found.answer.rung("keep") or self.found.answer.rungs[0]
        before = rung.usd_per_1000 / rung.cost_ratio if rung.cost_ratio else keep.usd_per_1000
        return (
            f"{money(rung.usd_per_1000)} instead of {money(before)} per 1,000 requests. "
            f"{_saving_sentence(rung)} at {self.requests}."
        )

    @property
    def requests(self) -> str:
        """The number of requests that savings are told for."""
        number = f"{self.found.options.requests_per_month or 0:,.0f} requests a month"
        if self.found.requests_are_guessed:
            return f"{number} (an example: requests_per_month in the pool file says yours)"
        return number

    @property
    def doubts(self) -> list[str]:
        """What a reader has to know before acting on the answer."""
        found = self.found
        sentences = [note.text for note in found.answer.notes if note.code not in _SAID_ELSEWHERE]
        sentences += self._people
        sentences += self._unlike
        rung = self.shown
        if rung is not None and rung.rung == "rules" and found.by != TASK:
            sentences.append(
                "A cluster is a group of prompts that are alike. A request belongs to the cluster whose "
                "middle is nearest to it; the table below has a prompt from the middle of each."
            )
        if rung is not None and rung.rung == "rules" and found.by == TASK:
            text = "The rules need the task of a request, as the table names it, from whoever calls."
            if found.guessed_right is not None:
                text += (
                    f" The nearest centre of the table's prompts guesses it right for "
                    f"{percentage(found.guessed_right)} of the prompts."
                )
            sentences.append(text)
        if rung is not None and rung.rung == "router":
            sentences.append(
                "The router was judged on prompts that it had not seen. The one that cabs export writes is "
                "fitted on all rows."
            )
        return sentences

    @property
    def _people(self) -> list[str]:
        """Sentence on the labels of people by which a judge's scores are corrected."""
        people = self.found.scored.people
        prompts = counted(self.found.labelled, "prompt")
        if people is not None:
            answers = counted(int((~np.isnan(people)).sum()), "answer")
            return [
                f"A judge gave the scores. Differences, their intervals and the words are as people would "
                f"score: people labelled {answers} to {prompts}, which corrects the judge. Mean scores are "
                "the judge's."
            ]
        if self.found.labelled:
            return [
                f"A judge gave the scores, and people labelled answers to {prompts} only: too few to correct "
                f"the judge by ({LEAST_LABELLED} are needed)."
            ]
        return []

    @property
    def _unlike(self) -> list[str]:
        """Sentence on the prompts that are unlike those that the shown rules or router were made from."""
        fitted = [name for name in ("router", "rules") if name in self.found.unlike]
        if self.found.answer.recommended in fitted:
            fitted = [str(self.found.answer.recommended)]
        if not fitted:
            return []
        unlike = self.found.unlike[fitted[0]]
        name = fitted[0]
        text = (
            f"{percentage(unlike.share)} of the prompts have a near neighbour (cosine of {NEAR:g} or more) "
            f"among those from which the {name} judged on them {'were' if name == 'rules' else 'was'} made"
        )
        if not unlike.prompts:
            return [f"{text}, so nothing is known of prompts that are unlike these."]
        if not unlike.share:
            return [f"{text}."]
        gain = f"{_points(unlike.difference)} points"
        if np.isfinite(unlike.low) and np.isfinite(unlike.high):
            gain += f" (95 % interval {_points(unlike.low)} to {_points(unlike.high)})"
        return [f"{text}. On the other {counted(unlike.prompts, 'prompt')} the difference is {gain}."]

    @property
    def newest(self) -> str:
        """Sentence that compares the newest prompts with the older ones; empty if the table has no times."""
        texts = [note.text for note in self.found.answer.notes if note.code == "newest"]
        return texts[0] if texts else ""

    @property
    def ladder(self) -> PageTable | None:
        """The options from the lowest rung to the highest."""
        recommended = self.found.answer.recommended
        rows = self.found.answer.rungs
        columns: dict[str, Any] = {
            "Option": lambda r: TableCell(_NAMES[r.rung], bold=r.rung == recommended, numeric=False),
            "Use": lambda r: words(use_text(self.found, r)),
            self.scale.quality: lambda r: percent(r.quality, 1),
            _CHANGE: lambda r: TableCell(_difference(r), r.difference),
            "USD per 1,000": lambda r: _usd(r.usd_per_1000),
            f"Saves a month ({_LEVEL})": lambda r: TableCell(_saving(r), r.saving_per_month),
        }
        if any(rung.latency_median is not None for rung in rows):
            columns[f"Seconds: median ({_LEVEL} within)"] = lambda r: TableCell(_latency(r), r.latency_median)
        columns["In a word"] = lambda r: words(str(r.word))
        tolerance = 100 * self.found.options.tolerance
        folds = f"Rules and router are judged on prompts that they were not made from ({self._folds})."
        return table_of(
            "ladder",
            f"Every option beside {self._today}",
            rows,
            columns,
            f"As good: less than {tolerance:g} points worse for sure (tolerance in the pool file). {folds} "
            "Intervals are those of each option alone; words ask for more, since all of them share an error "
            "of 5 %.",
        )

    @property
    def _folds(self) -> str:
        if self.found.folds > 1:
            return f"{self.found.folds} folds"
        return "one split for routers"

    @property
    def tasks(self) -> PageTable | None:
        """The recommended option by task; the single model's, if none or today's is recommended."""
        rows = self._task_rows()
        if len(rows) < 2:
            return None
        rung = rows[0].rung
        columns = {self.found.by.capitalize(): lambda r: words(r.task)}
        if self.found.centers:
            columns["Such as"] = lambda r: words(self._center(r.task))
        columns |= {
            "Prompts": lambda r: TableCell(f"{r.prompts:,}", r.prompts),
            "Use": lambda r: words(r.use),
            _CHANGE: lambda r: TableCell(self._task_difference(r), r.difference),
        }
        switch = self.found.answer.rung("switch")
        if rung != "switch" and switch is not None:
            alone = {row.task: row for row in self.found.answer.by_task if row.rung == "switch"}
            columns[f"With {switch.use} alone ({_LEVEL})"] = lambda r: TableCell(
                _difference(alone[r.task]) if r.task in alone else "–",
                alone[r.task].difference if r.task in alone else "",
            )
        columns |= {
            "USD per 1,000": lambda r: TableCell(money(r.usd_per_1000), r.usd_per_1000),
            "Today": lambda r: TableCell(money(r.today_usd_per_1000), r.today_usd_per_1000),
        }
        return table_of(
            "by_task",
            f"{_NAMES[rung]} by {self.found.by}, beside {self._today}",
            rows,
            columns,
            f"{self.found.by.capitalize()}s with fewer than {self.found.options.smallest_task} prompts stand "
            "together as other.",
        )

    def _task_difference(self, row: TaskRow) -> str:
        """Difference to today's model on a task; 0 without an interval if today's model answers it."""
        same = row.use == self.found.answer.today and row.difference == 0
        return "0" if same and row.usd_per_1000 == row.today_usd_per_1000 else _difference(row)

    def _center(self, cluster: str) -> str:
        """Beginning of the prompt in the middle of a cluster, without what all prompts share."""
        if cluster not in self.found.centers:
            return "–"
        prompts = self.found.outcomes.prompts
        place = prompts.index(self.found.centers[cluster])
        return shortened_text(without_shared(prompts)[place], _LONGEST_CENTER)

    @property
    def worth(self) -> PageTable | None:
        """Gain of every option beside today's model, by what a right answer is worth; no word of judgement.

        None if no value was tried, or if scores are comparisons, which have no value in dollars.
        """
        rungs = [rung for rung in self.found.answer.rungs if rung.rung != "keep"]
        values = [1.0 / rho for rho in sorted(self.rhos) if rho > 0]
        if not rungs or not values or self.scale.against:
            return None
        columns: dict[str, Any] = {
            "One right answer is worth": lambda value: TableCell(money(value), value, numeric=False)
        }
        for rung in rungs:
            columns[_NAMES[rung.rung]] = partial(self._worth_cell, rung.rung)
        return table_of(
            "by_value",
            f"USD per 1,000 requests more than {self.found.answer.today} is worth",
            values,
            columns,
            "Worth: what a right answer is worth times quality, less cost, with the 95 % interval of each "
            "figure alone.",
        )

    def _worth_cell(self, rung: str, value: float) -> TableCell:
        """What an option is worth beside today's model, in USD per 1,000 requests, with its interval."""
        found = self.found
        played = Decisions(rung, found.decisions(rung))
        if rung == "rules" and found.rules is not None:
            played = found.rules
        worth = option_worth(value, found.scored, played, found.options, fitted=rung in ("rules", "router"))
        ends = worth.interval(found.options.level / 2)
        if ends is None:
            return TableCell("cannot tell", "")
        low, high = (money(1000.0 * end) for end in ends)
        return TableCell(f"{money(1000.0 * worth.gain)} ({low} to {high})", 1000.0 * worth.gain)

    @property
    def more(self) -> PageTable | None:
        """The chance that more prompts replace "cannot tell", for the options that have this word."""
        compared = {"switch": len(self.found.answer.models), "rules": 2, "router": 2}
        rows = []
        for rung in self.found.answer.rungs:
            outlooks = more_data(rung, self.found.options, compared=compared.get(rung.rung, 1))
            if outlooks:
                rows.append((rung, outlooks))
        if not rows:
            return None
        columns: dict[str, Any] = {
            "Option": lambda r: words(f"{_NAMES[r[0].rung]}: {use_text(self.found, r[0])}")
        }
        for place, outlook in enumerate(rows[0][1]):
            columns[f"{outlook.prompts:,} more prompts"] = lambda r, k=place: percent(r[1][k].chance)
        return table_of(
            "more", "Chance that more scored prompts replace “cannot tell” by another word", rows, columns
        )

    def _task_rows(self) -> list[TaskRow]:
        name = self.found.answer.recommended
        rung = name if name not in (None, "keep") else "switch"
        return [row for row in self.found.answer.by_task if row.rung == rung]

    @property
    def excerpts(self) -> list[Excerpts]:
        """Prompts by task on which the single model of rung "switch" fails and today's does not."""
        switch = self.found.answer.rung("switch")
        if switch is None or isinstance(self.found.scored, LoggedTable):  # no prompt has two answers
            return []
        scored = self.found.scored
        prompts = without_shared(self.found.outcomes.prompts)
        groups = []
        names, counts = np.unique(scored.tasks.astype(str), return_counts=True)
        for name in names[np.argsort(-counts, kind="stable")][:_MOST_TASKS]:
            places = losses(scored, self.found.decisions("switch"), str(name), _EXCERPTS)
            texts = tuple(shortened_text(prompts[i]) for i in places)
            if texts:
                groups.append(Excerpts(str(name), str(switch.use), texts))
        return groups

    @property
    def export(self) -> str:
        """The command that writes what is recommended, or the highest option if nothing is."""
        command = f"cabs export {self.pool}"
        if self.shown is None and self.found.answer.rungs:
            return f"{command} --rung {self.found.answer.rungs[-1].rung}"
        return command

    @property
    def export_says(self) -> str:
        """What the command of `export` does."""
        if self.shown is None and self.found.answer.rungs:
            return f"Nothing is recommended. Write option {self.found.answer.rungs[-1].rung} all the same:"
        return "Write what is recommended:"


def recommendation(found: PoolAnswer) -> str:
    """Say in one line what is recommended."""
    answer = found.answer
    today = today_in_words(answer)
    rung = None if answer.recommended is None else answer.rung(answer.recommended)
    if rung is None:
        return f"Cannot tell: no option is sure to be as good as {today}"
    if rung.rung == "keep":
        return f"Keep {today}"
    if rung.rung == "rules":
        return _rules_headline(rung.use, today)
    if rung.rung == "router":
        return f"Use the router {label(rung.use)} instead of {today}"
    return f"Use {rung.use} instead of {today}"


def judged_rung(found: PoolAnswer, name: str) -> Judged | None:
    """Return a rung as the card of an exported router says it; None if the answer has no such rung."""
    rung = found.answer.rung(name)
    if rung is None:
        return None
    return Judged(
        said=f"The report says: {recommendation(found)}. Option {name}: {rung.word}.",
        today=found.answer.today,
        quality=rung.quality,
        difference=rung.difference,
        low=rung.low,
        high=rung.high,
        usd_per_1000=rung.usd_per_1000,
        folds=found.folds,
    )


def _rules_headline(rule: dict[str, str], today: str) -> str:
    """Return `Use mid for all but sql, and keep big there`, or the rules if they are of more models."""
    kept = [group for group, model in rule.items() if model == today]
    others = {model for model in rule.values() if model != today}
    if len(others) == 1 and kept and len(kept) < len(rule) - len(kept):
        return f"Use {others.pop()} for all but {listed_names(kept)}, and keep {today} there"
    return f"Use {rule_text(rule, today)}"


def without_shared(prompts: Sequence[str]) -> list[str]:
    """Return the prompts without the text that all of them begin and end with, such as a system prompt."""
    texts = [prompt.strip() for prompt in prompts]
    if len(set(texts)) < 2:
        return texts
    start = _shared_start(texts)
    while start and not texts[0][start - 1].isspace():  # at a word's beginning
        start -= 1
    end = _shared_start([text[start:][::-1] for text in texts])
    while end and not texts[0][len(texts[0]) - end].isspace():
        end -= 1
    start = start if start >= _SHARED else 0
    end = end if end >= _SHARED else 0
    return [text[start : len(text) - end].strip() for text in texts]


def _shared_start(texts: Sequence[str]) -> int:
    """Number of characters that all texts begin with: of the first and last in alphabetical order."""
    first, last = min(texts), max(texts)
    return next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), min(len(first), len(last)))


def shortened_text(text: str, longest: int = _LONGEST) -> str:
    """Return the text in one line, cut at the length of an excerpt."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _prompts(rung: Rung) -> str:
    text = counted(rung.prompts, "prompt")
    if rung.independent < rung.prompts:
        text += f" ({rung.independent:,} if near-copies count once)"
    return text


def use_text(found: PoolAnswer, rung: Rung) -> str:
    """Return what an option uses: a model, rules in words, or the name of a policy."""
    if rung.rung == "rules":
        return rule_text(rung.use, found.answer.today)
    if rung.rung == "router":
        return label(str(rung.use))
    return str(rung.use)


def _points(difference: float) -> str:
    return signed_text(100 * difference, 1)


def _interval(row: Rung | TaskRow) -> str:
    if not (np.isfinite(row.low) and np.isfinite(row.high)):
        return "no interval"
    return f"{_points(row.low)} to {_points(row.high)}"


def _difference(row: Rung | TaskRow) -> str:
    if not np.isfinite(row.difference):
        return "–"
    if isinstance(row, Rung) and row.rung == "keep":
        return "0"
    return f"{_points(row.difference)} ({_interval(row)})"


def _usd(value: float) -> TableCell:
    """Cell with dollars; an en dash if they are not known."""
    return TableCell(money(value), value) if np.isfinite(value) else TableCell("–", "")


def _saving(rung: Rung) -> str:
    if rung.rung == "keep":
        return "0"
    if rung.saving_per_month is None or not np.isfinite(rung.saving_per_month):
        return "–"
    if rung.saving_low is None or rung.saving_high is None:
        return "cannot tell"
    return f"{money(rung.saving_per_month)} ({money(rung.saving_low)} to {money(rung.saving_high)})"


def _saving_sentence(rung: Rung) -> str:
    low, high = rung.saving_low or 0.0, rung.saving_high or 0.0
    saving = rung.saving_per_month or 0.0
    if saving < 0:
        return f"Costs {money(-saving)} a month more (95 % interval {money(-high)} to {money(-low)})"
    return f"Saves {money(saving)} a month (95 % interval {money(low)} to {money(high)})"


def _latency(rung: Rung) -> str:
    if rung.latency_median is None or rung.latency_95 is None:
        return "–"
    return f"{rung.latency_median:.1f} ({rung.latency_95:.1f})"
