"""The first screen of a page: question, answer, saving and doubt.

`AnswerPage` turns the figures of a `PoolAnswer` into sentences and tables. The template reads its attributes
by name. The figures are computed elsewhere, so a sentence here never decides anything.
"""

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
#: level of every printed interval, for the heads of columns
_LEVEL = percentage(0.95).replace(" ", "\u00a0")
#: head of the column with the difference in quality to today's model
_CHANGE = f"Change in points ({_LEVEL})"
#: {rung: its name in tables}
_NAMES = {"keep": "Keep", "switch": "Switch", "rules": "Rules", "router": "Router"}
#: most tasks of which excerpts are shown
_MOST_TASKS = 12
#: most excerpts of a task, and most characters of an excerpt
_EXCERPTS = 3
_LONGEST = 300
#: smallest share of the prompts of a model that the sentence on a router names
_LEAST_SHARE = 0.005
#: most characters of the prompt that stands for a cluster
_LONGEST_CENTER = 90
#: fewest characters that all prompts share for these to be cut
_SHARED = 20


@dataclass(frozen=True)
class Excerpts:
    """Prompts of a task on which another model scores less than today's.

    Attributes:
        task: name of the task.
        model: the model that scores less, which is the one of rung "switch".
        prompts: at most 3 texts, the largest losses first, each cut to 300 characters, without the text that
            all prompts share.
    """

    task: str
    model: str
    prompts: tuple[str, ...]


@dataclass(frozen=True)
class AnswerPage:
    """The sentences and tables of the first screen.

    Attributes:
        found: the answer with its figures.
        pool: name of the pool.
        best: the best policy with its error, in words. The headline is this sentence if no model is in use.
        rhos: values of rho that were replayed, for the table by the value of a right answer.
        scale: words for the scores of the pool.
    """

    found: PoolAnswer
    pool: str
    best: str = ""
    rhos: tuple[float, ...] = ()
    scale: Scale = field(default_factory=Scale)

    @property
    def question(self) -> str:
        """The question that the answer is for, with the name of today's model.

        For a log, no model is named. If no model is in use, the text is a statement: every option is compared
        with the best single model.
        """
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
            f"{today} answers today. What may be used instead, for which prompts, and what does it save?"
            f"{guess}"
        )

    @property
    def _today(self) -> str:
        """Name of today's model, or words for the choices that a log holds."""
        return today_in_words(self.found.answer)

    @property
    def recommended_rung(self) -> Rung | None:
        """The recommended rung; None if no rung is recommended."""
        name = self.found.answer.recommended
        if name is None:
            return None
        return self.found.answer.rung(name)

    @property
    def headline(self) -> str:
        """The answer in one line."""
        if self.found.answer.today_is_assumed and self.best:
            return self.best
        return recommendation(self.found)

    @property
    def decision(self) -> str:
        """CSS class of the section, which gives the section a colour.

        `unsure` if no rung is recommended, `keep` if "keep" is recommended, and otherwise `deploy`.
        """
        if self.recommended_rung is None:
            return "unsure"
        if self.recommended_rung.rung == "keep":
            return "keep"
        return "deploy"

    @property
    def why(self) -> str:
        """Sentences on what the recommended option changes in quality and money, with intervals.

        The first sentence is the recommendation if the headline names the best policy instead. If nothing or
        "keep" is recommended, the sentences say that no other option is sure to be good enough, or that none
        can be judged.
        """
        rung = self.recommended_rung
        if rung is None:
            return (
                "No option is sure to be as good as what it is compared with. The table says how far each is."
            )
        if rung.rung == "keep":
            others = [r for r in self.found.answer.rungs if r.rung != "keep"]
            if others and not any(np.isfinite(r.difference) for r in others):
                return "No other option can be judged by the data at hand; below stands why."
            return self._better_but_dearer or (
                "No other option is sure to be as good and cheaper, or better; the table has the figures."
            )
        sentences = [f"On {_prompts(rung)}: {self._quality(rung)} {self._money(rung)}"]
        if rung.rung == "router":
            sentences.insert(0, self._models_of_router)
        if self.headline == self.best:
            sentences.insert(0, f"{recommendation(self.found)}.")
        return " ".join(sentences)

    @property
    def _better_but_dearer(self) -> str:
        """Sentences on the options that are better than today's model and cost more; empty if there are none.

        These are all options whose word is "better" where "keep" is recommended.
        """
        options = [
            f"{rung.rung} ({use_text(self.found, rung)}: {_points(rung.difference)} points, "
            f"{money(rung.usd_per_1000)} instead of {money(rung.today_usd_per_1000)} per 1,000 requests)"
            for rung in self.found.answer.rungs
            if rung.word == Word.BETTER
        ]
        if not options:
            return ""
        return (
            "No other option is sure to be as good and cheaper. Better, but dearer: "
            f"{listed_names(options)}. Whether the points are worth the money depends on what a right answer "
            "is worth, which a goal in the pool file says."
        )

    @property
    def _models_of_router(self) -> str:
        """Sentence on the share of the prompts that the router gives to each model.

        Models with less than 0.5 % are left out.
        """
        weights = self.found.decisions("router")
        judged = weights[~np.isnan(weights).any(axis=1)]
        shares = judged.mean(axis=0)
        models = self.found.scored.models
        order = sorted(range(len(models)), key=lambda j: (-shares[j], models[j]))
        parts = [
            f"{models[j]} for {percentage(float(shares[j]))}" for j in order if shares[j] >= _LEAST_SHARE
        ]
        return f"The router chooses a model for each prompt: {listed_names(parts)} of the prompts."

    def _quality(self, rung: Rung) -> str:
        """Return the sentence on the quality of an option beside today's."""
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
        """Return the sentences on what an option costs and saves, or that the saving cannot be told."""
        if rung.saving_low is None:
            return "What is saved cannot be told."
        return (
            f"{money(rung.usd_per_1000)} instead of {money(rung.today_usd_per_1000)} per 1,000 requests. "
            f"{_saving_sentence(rung)} at {self.requests}."
        )

    @property
    def requests(self) -> str:
        """The number of requests a month for which savings are given, in words."""
        number = f"{self.found.options.requests_per_month or 0:,.0f} requests a month"
        if self.found.requests_are_guessed:
            return f"{number} (an example: requests_per_month in the pool file says yours)"
        return number

    @property
    def doubts(self) -> list[str]:
        """Sentences that a reader has to know before acting on the answer."""
        found = self.found
        sentences = [note.text for note in found.answer.notes if note.code not in _SAID_ELSEWHERE]
        sentences += self._people
        sentences += self._unlike
        rung = self.recommended_rung
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
        """Sentences on the labels of people by which a judge's scores are corrected."""
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
        """Sentences on prompts that are unlike the prompts that rules or router were made from."""
        fitted = [name for name in ("router", "rules") if name in self.found.unlike]
        if self.found.answer.recommended in fitted:
            fitted = [str(self.found.answer.recommended)]
        if not fitted:
            return []
        unlike = self.found.unlike[fitted[0]]
        name = fitted[0]
        share = percentage(unlike.share)
        if unlike.share < _LEAST_SHARE:
            share = f"Fewer than {percentage(2 * _LEAST_SHARE)}"
        copies = f"{share} of the prompts are near copies of prompts"
        if not unlike.share:
            copies = "No prompt is a near copy of a prompt"
        if name == "rules":
            made = "the rules were made from"
        else:
            made = "the router was made from"
        text = f"{copies} that {made} (cosine of {NEAR:g} or more)"
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
        """Sentence that compares the newest prompts with older ones; empty if the answer has no such note."""
        texts = [note.text for note in self.found.answer.notes if note.code == "newest"]
        if texts:
            return texts[0]
        return ""

    @property
    def ladder(self) -> PageTable | None:
        """Table of the options, from the lowest rung to the highest; None if the answer has no option."""
        recommended = self.found.answer.recommended
        rows = self.found.answer.rungs
        columns: dict[str, Any] = {
            "Option": lambda r: TableCell(_NAMES[r.rung], bold=r.rung == recommended, numeric=False),
            "Use": lambda r: words(use_text(self.found, r)),
            self.scale.quality: lambda r: percent(r.quality, 1),
            _CHANGE: lambda r: TableCell(self._rung_difference(r), r.difference),
            "USD per 1,000": lambda r: _usd(r.usd_per_1000),
            f"Saves a month ({_LEVEL})": lambda r: TableCell(self._rung_saving(r), r.saving_per_month),
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
            f"“As good” means: surely less than {tolerance:g} points worse (tolerance in the pool file). "
            f"{folds} Each interval is that of one option alone, wider at its worse end if the option was "
            "picked from several. The words hold together: in 95 % of all tables none of them is wrong.",
        )

    def _is_todays(self, rung: Rung) -> bool:
        """Return True if an option uses today's model for every prompt, as rules without exceptions do."""
        if rung.rung == "rules":
            return set(rung.use.values()) == {self.found.answer.today}
        return rung.rung == "keep"

    def _rung_difference(self, rung: Rung) -> str:
        """Return the difference of an option to today's model; `0` if the option uses that model alone."""
        if self._is_todays(rung):
            return "0"
        return _difference(rung)

    def _rung_saving(self, rung: Rung) -> str:
        """Return what an option saves a month; `0` if the option uses today's model alone."""
        if self._is_todays(rung):
            return "0"
        return _saving(rung)

    @property
    def _folds(self) -> str:
        """Number of folds in which rules and routers are judged, in words."""
        if self.found.folds > 1:
            return f"{self.found.folds} folds"
        return "one split for routers"

    @property
    def tasks(self) -> PageTable | None:
        """Table of an option's difference to today's model by task; None if there are fewer than two tasks.

        The option is the recommended one. If nothing or "keep" is recommended, it is the one of rung
        "switch".
        """
        rows = self._task_rows()
        if len(rows) < 2:
            return None
        rung = rows[0].rung
        columns = {self.found.by.capitalize(): lambda r: words(r.task)}
        if self.found.centers:
            columns["Such as"] = lambda r: words(self._center(r.task))
        columns |= {
            "Prompts": lambda r: TableCell(f"{r.prompts:,}", r.prompts),
            ("Mostly uses" if rung == "router" else "Use"): lambda r: words(r.use),
            _CHANGE: lambda r: TableCell(self._task_difference(r), r.difference),
        }
        switch = self.found.answer.rung("switch")
        if rung != "switch" and switch is not None:
            alone = {row.task: row for row in self.found.answer.by_task if row.rung == "switch"}
            columns[f"With {switch.use} alone ({_LEVEL})"] = lambda r: _task_cell(alone.get(r.task))
        columns |= {
            "USD per 1,000": lambda r: _usd(r.usd_per_1000),
            "Today": lambda r: _usd(r.today_usd_per_1000),
        }
        made_without = ""
        if rung == "rules":
            made_without = (
                f" Changes are those of rules that were made without the prompts ({self._folds}), so some of "
                "these rules may use another model than the one that is named."
            )
        return table_of(
            "by_task",
            f"{_NAMES[rung]} by {self.found.by}, beside {self._today}",
            rows,
            columns,
            f"{self.found.by.capitalize()}s with fewer than {self.found.options.smallest_task} prompts stand "
            f"together as other.{made_without}",
        )

    def _task_difference(self, row: TaskRow) -> str:
        """Return the difference to today's model on a task with its interval.

        The text is `0` if that model answers all prompts of the task.
        """
        is_todays = row.use == self.found.answer.today and row.difference == 0
        if is_todays and row.usd_per_1000 == row.today_usd_per_1000:
            return "0"
        return _difference(row)

    def _center(self, cluster: str) -> str:
        """Return the beginning of a cluster's central prompt, without the text that all prompts share.

        An en dash stands for a cluster without a known centre.
        """
        if cluster not in self.found.centers:
            return "–"
        prompts = self.found.outcomes.prompts
        place = prompts.index(self.found.centers[cluster])
        return shortened_text(without_shared(prompts)[place], _LONGEST_CENTER)

    @property
    def worth_table(self) -> PageTable | None:
        """Table of what every option gains beside today's model, by the value of a right answer.

        Cells are gains with their 95 % interval; unlike `ladder`, no option is called good or bad. None if
        no rho above 0 was replayed, if "keep" is the only option, or if scores are comparisons, which have no
        value in dollars.
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
        """Cell with the gain of an option beside today's model, in USD per 1,000 requests, and its interval.

        The cell says `cannot tell` if the gain has no interval.

        Args:
            rung: name of the option's rung.
            value: value of a right answer, USD.
        """
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
    def more_data_table(self) -> PageTable | None:
        """Table of the chance that more prompts replace "cannot tell".

        None if no option has this word and an interval.
        """
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
        """Return the rows by task of the recommended option.

        If nothing or "keep" is recommended, the rows are those of rung "switch".
        """
        rung = self.found.answer.recommended
        if rung in (None, "keep"):
            rung = "switch"
        return [row for row in self.found.answer.by_task if row.rung == rung]

    @property
    def excerpts(self) -> list[Excerpts]:
        """Prompts on which the model of rung "switch" scores less than today's, for the 12 largest tasks.

        A task without such prompts is left out. Empty without rung "switch", and for a log, in which no
        prompt has two answers.
        """
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
    def excerpts_title(self) -> str:
        """Title of `excerpts`. An answer fails if its score is 0 and every score of the table is 0 or 1."""
        scores = self.found.scored.scores
        model = self.excerpts[0].model
        today = self.found.answer.today
        if np.isin(scores[~np.isnan(scores)], (0.0, 1.0)).all():
            return f"Prompts on which {model} fails and {today} does not"
        return f"Prompts on which {model} scores less than {today}"

    @property
    def export(self) -> str:
        """Command that exports the recommended option, or the highest rung if no option is recommended."""
        command = f"cabs export {self.pool}"
        if self.recommended_rung is None and self.found.answer.rungs:
            return f"{command} --rung {self.found.answer.rungs[-1].rung}"
        return command

    @property
    def export_says(self) -> str:
        """Sentence that introduces the command `export` and says which option the command writes."""
        if self.recommended_rung is None and self.found.answer.rungs:
            return f"Nothing is recommended. Write option {self.found.answer.rungs[-1].rung} all the same:"
        return "Write what is recommended:"


def recommendation(found: PoolAnswer) -> str:
    """Return the recommendation in one line, such as `Use mid instead of big`."""
    answer = found.answer
    today = today_in_words(answer)
    if answer.recommended is None:
        rung = None
    else:
        rung = answer.rung(answer.recommended)
    if rung is None:
        return f"Cannot tell: no option is sure to be as good as {today}"
    if rung.rung == "keep":
        return f"Keep {today}"
    if rung.rung == "rules":
        return _rules_headline(rung.use, today)
    if rung.rung == "router":
        return f"Use a router ({label(rung.use)}) instead of {today}"
    return f"Use {rung.use} instead of {today}"


def judged_rung(found: PoolAnswer, name: str) -> Judged | None:
    """Return a rung with the figures that the card of an exported router shows.

    Return None if the answer has no rung of this name.
    """
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
    """Return rules in one line, such as `Use mid for all but sql, and keep big there`.

    Args:
        rule: {task or cluster: name of the model that answers it}.
        today: name of today's model.
    """
    kept = [group for group, model in rule.items() if model == today]
    others = {model for model in rule.values() if model != today}
    if len(others) == 1 and kept and len(kept) < len(rule) - len(kept):
        return f"Use {others.pop()} for all but {listed_names(kept)}, and keep {today} there"
    return f"Use {rule_text(rule, today)}"


def without_shared(prompts: Sequence[str]) -> list[str]:
    """Return the prompts without the text that all of them begin or end with, such as a system prompt.

    Fewer than 20 shared characters are not cut, and words are cut only whole. Prompts that are all equal are
    only stripped.
    """
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
    """Return the number of characters that all texts begin with.

    The first and the last text in alphabetical order share as many as all of them.
    """
    first = min(texts)
    last = max(texts)
    for place, (one, other) in enumerate(zip(first, last)):
        if one != other:
            return place
    return min(len(first), len(last))


def shortened_text(text: str, longest: int = _LONGEST) -> str:
    """Return the text in one line of at most `longest` characters."""
    line = " ".join(text.split())
    if len(line) <= longest:
        return line
    return f"{line[: longest - 1]}…"


def _prompts(rung: Rung) -> str:
    """Return the number of prompts that a rung was judged on, in words.

    If some are near-copies, the number in which near-copies count once follows in brackets.
    """
    text = counted(rung.prompts, "prompt")
    if rung.independent < rung.prompts:
        text += f" ({rung.independent:,} if near-copies count once)"
    return text


def use_text(found: PoolAnswer, rung: Rung) -> str:
    """Return the name of the model or policy that an option uses, or its rules in words."""
    if rung.rung == "rules":
        return rule_text(rung.use, found.answer.today)
    if rung.rung == "router":
        return label(str(rung.use))
    return str(rung.use)


def _points(difference: float) -> str:
    """Return a difference in score as points of a hundred, with its sign."""
    return signed_text(100 * difference, 1)


def _interval(row: Rung | TaskRow) -> str:
    """Return the interval of a difference in points, or words if it has none."""
    if not (np.isfinite(row.low) and np.isfinite(row.high)):
        return "no interval"
    return f"{_points(row.low)} to {_points(row.high)}"


def _difference(row: Rung | TaskRow) -> str:
    """Return a difference in points with its interval; an en dash if the difference is not known."""
    if not np.isfinite(row.difference):
        return "–"
    return f"{_points(row.difference)} ({_interval(row)})"


def _usd(value: float) -> TableCell:
    """Cell with dollars; an en dash if they are not known."""
    if np.isfinite(value):
        return TableCell(money(value), value)
    return TableCell("–", "")


def _task_cell(row: TaskRow | None) -> TableCell:
    """Cell with the difference to today's model on a task; an en dash if the option has no such task."""
    if row is None:
        return TableCell("–", "")
    return TableCell(_difference(row), row.difference)


def _saving(rung: Rung) -> str:
    """Return what an option saves a month with its interval, such as `$12 ($9 to $15)`.

    An en dash stands for a saving that is not known, and `cannot tell` for one without an interval.
    """
    if rung.saving_per_month is None or not np.isfinite(rung.saving_per_month):
        return "–"
    if rung.saving_low is None or rung.saving_high is None:
        return "cannot tell"
    return f"{money(rung.saving_per_month)} ({money(rung.saving_low)} to {money(rung.saving_high)})"


def _saving_sentence(rung: Rung) -> str:
    """Return the sentence on what an option saves or costs a month, without its full stop."""
    low = rung.saving_low or 0.0
    high = rung.saving_high or 0.0
    saving = rung.saving_per_month or 0.0
    if saving < 0:
        return f"Costs {money(-saving)} a month more (95 % interval {money(-high)} to {money(-low)})"
    return f"Saves {money(saving)} a month (95 % interval {money(low)} to {money(high)})"


def _latency(rung: Rung) -> str:
    """Return the median and the 95 % quantile of an option's latency in seconds; an en dash if unknown."""
    if rung.latency_median is None or rung.latency_95 is None:
        return "–"
    return f"{rung.latency_median:.1f} ({rung.latency_95:.1f})"
