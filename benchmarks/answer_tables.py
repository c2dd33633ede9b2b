"""Worlds of scored tables for `benchmarks.answer_worlds`, which measures how often the answer is right.

A world draws a table with its truth: the scores and the costs that its generator expects of every answer.
The module prints nothing; run `python -m benchmarks.answer_worlds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import make_pipeline

from benchmarks.answer_goals import Costs, lognormal, pareto
from cabs_core.data.outcomes.copies import near_copies
from cabs_core.evaluation.answer import ScoredTable
from cabs_core.evaluation.answer.logged import LoggedTable
from cabs_core.evaluation.ope.data import LoggedData

Rng = np.random.Generator


@dataclass(frozen=True)
class Drawn:
    """A table, what is true of it, and what the router may look at.

    Attributes:
        scores, costs: `[N, K]` what the generator expects of each answer.
        weight: `[N]` how much of the population each prompt stands for, mean 1.
        features: `[N, d]` of the prompts, or None: then there is no router.
        fresh: features and expected scores of prompts that nobody has seen, for what a router truly gains.
    """

    table: ScoredTable
    scores: np.ndarray
    costs: np.ndarray
    features: np.ndarray | None = None
    fresh: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class World:
    """A generator with the name that the table of results prints."""

    name: str
    draw: Callable[[Rng, int], Drawn]


def _answers(rng: Rng, right: np.ndarray, agree: float) -> np.ndarray:
    """Right or wrong, `[N, K]`: on a share `agree` of the prompts all models are right or wrong together."""
    same = rng.random((len(right), 1)) < agree
    alike = rng.random((len(right), 1))
    return (np.where(same, alike, rng.random(right.shape)) < right).astype(float)


def _prices(rng: Rng, n: int, prices: list[float], sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """(costs that are paid, expected costs), `[N, K]`: half of the spread is the prompt's own length."""
    length = rng.lognormal(0.0, sigma * math.sqrt(0.5), (n, 1))
    own = rng.lognormal(0.0, sigma * math.sqrt(0.5), (n, len(prices)))
    mean = math.exp(sigma**2 / 2)
    return length * own * np.array(prices), np.tile(np.array(prices) * mean, (n, 1))


def _table(
    scores: np.ndarray, costs: np.ndarray, tasks: np.ndarray, clusters: np.ndarray | None = None
) -> ScoredTable:
    names = tuple(f"m{j}" for j in range(scores.shape[1]))
    members = np.arange(len(scores)) if clusters is None else clusters
    return ScoredTable(names, scores, costs, tasks, members, 0)


def _tasks(n: int, count: int = 4) -> np.ndarray:
    return np.array([f"t{i}" for i in range(count)])[np.arange(n) % count]


def plain(
    means: list[float],
    prices: list[float],
    agree: float = 0.6,
    sigma: float = 0.5,
    lost_task: float = 0.0,
) -> Callable[[Rng, int], Drawn]:
    """Models with these shares of right answers and prices; the second one loses more in the last task."""

    def draw(rng: Rng, n: int) -> Drawn:
        tasks = _tasks(n)
        right = np.tile(np.array(means), (n, 1))
        right[tasks == "t3", 1] -= lost_task
        paid, expected = _prices(rng, n, prices, sigma)
        return Drawn(_table(_answers(rng, right, agree), paid, tasks), right, expected)

    return draw


def alike(others: int, price: float) -> Callable[[Rng, int], Drawn]:
    """Return a generator of models that are as good as today's, at one price."""
    return plain([0.85] * (others + 1), [1.0] + [price] * others)


def heavy(costs: Costs) -> Callable[[Rng, int], Drawn]:
    """Return a generator of an equal model at three fifths of the price, with these costs of a call."""

    def draw(rng: Rng, n: int) -> Drawn:
        right = np.full((n, 2), 0.85)
        paid = np.column_stack([costs(rng, n), 0.6 * costs(rng, n)])
        return Drawn(_table(_answers(rng, right, 0.8), paid, _tasks(n)), right, np.tile([1.0, 0.6], (n, 1)))

    return draw


def beyond(lost: float, price: float) -> Callable[[Rng, int], Drawn]:
    """Graded scores of today's model, but a share of the prompts is lost wholly, at this price."""

    def draw(rng: Rng, n: int) -> Drawn:
        own = rng.beta(6.0, 2.0, (n, 1))
        gone = rng.random((n, 2)) < lost
        scores = np.column_stack([own, np.where(gone, 0.0, own)])
        right = np.tile(0.75 * np.array([1.0, 1.0 - lost, 1.0 - lost]), (n, 1))
        paid, expected = _prices(rng, n, [1.0, price, price], 0.5)
        return Drawn(_table(scores, paid, _tasks(n)), right, expected)

    return draw


def copied(times: int) -> Callable[[Rng, int], Drawn]:
    """Equal models; each prompt is asked so many times, and its answers are nearly the same."""

    def draw(rng: Rng, n: int) -> Drawn:
        prompts = -(-n // times)
        cluster = np.repeat(np.arange(prompts), times)[:n]
        chance = special.ndtr(rng.normal(0.8, 1.5, (prompts, 4)))
        right = chance[cluster]
        paid, expected = _prices(rng, n, [1.0, 1.0, 0.5, 0.3], 0.5)
        table = _table((rng.random(right.shape) < right).astype(float), paid, _tasks(n), cluster)
        truth = np.full(right.shape, float(special.ndtr(0.8 / math.sqrt(1 + 1.5**2))))
        return Drawn(table, truth, expected)

    return draw


def conversations(pareto: bool) -> Callable[[Rng, int], Drawn]:
    """Equal models; n conversations of 2 to 18 turns, or of Pareto sizes, that go well or badly."""

    def draw(rng: Rng, n: int) -> Drawn:
        sizes = np.minimum(rng.pareto(1.5, n) + 1, 200).astype(int) if pareto else rng.integers(2, 19, n)
        cluster = np.repeat(np.arange(n), sizes)
        right = special.ndtr(0.8 + rng.normal(0.0, 1.0, (n, 4)))[cluster]
        paid, expected = _prices(rng, len(cluster), [1.0, 1.0, 0.5, 0.3], 0.5)
        table = _table((rng.random(right.shape) < right).astype(float), paid, _tasks(len(cluster)), cluster)
        return Drawn(table, np.full(right.shape, float(special.ndtr(0.8 / math.sqrt(2)))), expected)

    return draw


def templates(per_template: int) -> Callable[[Rng, int], Drawn]:
    """Equal models, and templates that each suit one model; all prompts of a template are one cluster."""

    def draw(rng: Rng, n: int) -> Drawn:
        count = -(-n // per_template)
        cluster = np.repeat(np.arange(count), per_template)[:n]
        chance = special.ndtr(rng.normal(0.6, 1.2, (count, 4)))
        centers = rng.normal(0.0, 1.0, (count, 24))
        features = centers[cluster] + rng.normal(0.0, 0.15, (n, 24))
        right = chance[cluster]
        paid, expected = _prices(rng, n, [1.0, 1.0, 1.0, 1.0], 0.5)
        table = _table((rng.random(right.shape) < right).astype(float), paid, _tasks(n), cluster)
        mean = float(special.ndtr(0.6 / math.sqrt(1 + 1.2**2)))
        fresh = rng.normal(0.0, 1.0, (4000, 24)), np.full((4000, 4), mean)
        return Drawn(table, np.full(right.shape, mean), expected, features, fresh)

    return draw


def text_templates(slots: int, per_template: int = 5) -> Callable[[Rng, int], Drawn]:
    """Equal models; prompts are templates of text with filled slots, and each template suits one model.

    Clusters are those that `near_copies` finds in the texts, and features are word counts in 24 dimensions.
    A router gains nothing on a prompt of a template that nobody has seen.
    """

    def draw(rng: Rng, n: int) -> Drawn:
        count = -(-n // per_template)
        template = np.repeat(np.arange(count), per_template)[:n]
        forms = [_form(rng, slots) for _ in range(count)]
        texts = [_filled(rng, forms[index]) for index in template]
        fresh_texts = [_filled(rng, _form(rng, slots)) for _ in range(1000)]
        encode = make_pipeline(HashingVectorizer(n_features=2**12), TruncatedSVD(24, random_state=0))
        features = encode.fit_transform(texts)
        chance = special.ndtr(rng.normal(0.6, 1.2, (count, 4)))
        right = chance[template]
        paid, expected = _prices(rng, n, [1.0, 1.0, 1.0, 1.0], 0.5)
        scores = (rng.random(right.shape) < right).astype(float)
        table = _table(scores, paid, _tasks(n), near_copies(texts))
        mean = float(special.ndtr(0.6 / math.sqrt(1 + 1.2**2)))
        fresh = encode.transform(fresh_texts), np.full((len(fresh_texts), 4), mean)
        return Drawn(table, np.full(right.shape, mean), expected, features, fresh)

    return draw


def _word(rng: Rng, words: int) -> str:
    """Return a made word of four syllables from a vocabulary of at most `words` words.

    Words have no digits, since texts that differ in numbers alone are copies.
    """
    number = int(rng.integers(words))
    syllables = []
    for _ in range(4):
        number, place = divmod(number, 10)
        syllables.append("balemipotudanesirovu"[2 * place : 2 * place + 2])
    return "".join(syllables)


def _form(rng: Rng, slots: int) -> list[str]:
    """Return the words of a template; an empty word is a slot."""
    words = [_word(rng, 2000) for _ in range(rng.integers(12, 25))]
    for place in rng.choice(len(words), slots, replace=False):
        words[place] = ""
    return words


def _filled(rng: Rng, form: list[str]) -> str:
    """Return the text of a template whose slots are filled by one to three words each."""
    words: list[str] = []
    for word in form:
        if word:
            words.append(word)
        else:
            words += [_word(rng, 10_000) for _ in range(rng.integers(1, 4))]
    return " ".join(words)


def logged(sigma: float, champion: float = 0.0) -> Callable[[Rng, int], Drawn]:
    """A log of known probabilities: an equal model at a third of the price, and one that is 25 points worse.

    Args:
        sigma: spread of the logarithm of a call's cost.
        champion: share of the calls that today's model gets before the others share the rest alike.
    """

    def draw(rng: Rng, n: int) -> Drawn:
        right = np.tile(np.array([0.85, 0.85, 0.6]), (n, 1))
        paid, expected = _prices(rng, n, [1.0, 0.33, 0.1], sigma)
        scores = _answers(rng, right, 0.6)
        pmf = np.full((n, 3), (1.0 - champion) / 3)
        pmf[:, 0] += champion
        actions = (rng.random((n, 1)) > pmf.cumsum(axis=1)).sum(axis=1).clip(max=2)
        rows = np.arange(n)
        tasks = _tasks(n)
        data = LoggedData(
            arms=["m0", "m1", "m2"],
            actions=actions,
            scores=scores[rows, actions],
            costs=paid[rows, actions],
            features=(tasks[:, None] == np.unique(tasks)).astype(float),
            groups=rows.astype(str),
            pmf=pmf,
        )
        return Drawn(LoggedTable.of(data, tasks, 0), right, expected)

    return draw


def dear_calls(factor: float, share: float) -> Callable[[Rng, int], Drawn]:
    """An equal model at half the price, but for calls that cost `factor` as much: nothing saved."""

    def draw(rng: Rng, n: int) -> Drawn:
        right = np.full((n, 2), 0.85)
        paid, expected = _prices(rng, n, [1.0, 0.5], 0.5)
        dear = rng.random(n) < share
        paid[dear, 1] *= factor
        expected[:, 1] *= 1.0 + share * (factor - 1.0)
        return Drawn(_table(_answers(rng, right, 0.8), paid, _tasks(n)), right, expected)

    return draw


def cancelling(gain: float, share: float) -> Callable[[Rng, int], Drawn]:
    """An equal model at half the price that gains much on a few prompts and loses it on as many."""

    def draw(rng: Rng, n: int) -> Drawn:
        own = np.clip(rng.normal(0.5, 0.05, n), 0.0, 1.0)
        kind = rng.random(n)
        other = own + np.where(kind < share, gain, 0.0) - np.where(kind > 1 - share, gain, 0.0)
        scores = np.clip(np.column_stack([own, other]), 0.0, 1.0)
        paid, expected = _prices(rng, n, [1.0, 0.5], 0.5)
        return Drawn(_table(scores, paid, _tasks(n)), np.full((n, 2), 0.5), expected)

    return draw


def routed(strength: float, models: int = 4) -> Callable[[Rng, int], Drawn]:
    """Models that are equally good on average and at one price; features say where each is good.

    strength: of what the features say, in standard deviations of the latent quality of an answer.
    """

    def draw(rng: Rng, n: int) -> Drawn:
        loads = rng.normal(0.0, strength / math.sqrt(8), (8, models))
        loads -= loads.mean(axis=1, keepdims=True)

        def chances(x: np.ndarray) -> np.ndarray:
            spread = np.sqrt(1.0 + (loads**2).sum(axis=0))
            chance: np.ndarray = special.ndtr(0.7 * spread + x[:, :8] @ loads)
            return chance

        features = rng.normal(0.0, 1.0, (n, 24))
        right = chances(features)
        paid, expected = _prices(rng, n, [1.0] * models, 0.5)
        table = _table((rng.random(right.shape) < right).astype(float), paid, _tasks(n))
        new = rng.normal(0.0, 1.0, (4000, 24))
        truth = np.full(right.shape, float(special.ndtr(0.7)))
        return Drawn(table, truth, expected, features, (new, chances(new)))

    return draw


WORLDS = (
    World("four equal models at one price", plain([0.8] * 4, [1.0] * 4)),
    World("two equal models at one price", plain([0.8] * 2, [1.0] * 2)),
    World("twelve equal models at one price", plain([0.8] * 12, [1.0] * 12)),
    World("equal at a third of the price", plain([0.85, 0.85, 0.6], [1.0, 0.33, 0.1], 0.5)),
    World("one point worse at a third", plain([0.85, 0.84, 0.6], [1.0, 0.33, 0.1], 0.5)),
    World("one topic much worse", plain([0.88, 0.88, 0.78], [1.0, 0.2, 0.02], 0.4, lost_task=0.3)),
    World("one topic lost wholly", plain([0.88, 0.88, 0.78], [1.0, 0.2, 0.02], 0.4, lost_task=0.88)),
    World("two models alike at a third", alike(2, 0.33)),
    World("five models alike at a third", alike(5, 0.33)),
    World("ten models alike at a third", alike(10, 0.33)),
    World("costs of sigma 2", heavy(lognormal(2.0))),
    World("costs with a Pareto tail of 1.5", heavy(pareto(1.5))),
    World("just beyond the tolerance", plain([0.85, 0.8195, 0.8195], [1.0, 0.3, 0.1], 0.6)),
    World("right in 99 %, the other in 95.9 %", plain([0.99, 0.959], [1.0, 0.5], 0.9)),
    World("lost wholly on 3.1 %, at a fifth", beyond(0.031 / 0.75, 0.2)),
    World("equal, 2 % dearer, sigma 2", plain([0.8, 0.8], [1.0, 1.02], 0.9, sigma=2.0)),
    World("half price, 26 times as dear in 4 %", dear_calls(26.0, 0.04)),
    World("each prompt five times", copied(5)),
    World("conversations of 2 to 18 turns", conversations(pareto=False)),
    World("conversations of Pareto sizes", conversations(pareto=True)),
    World("templates of 5, router", templates(5)),
    World("templates of 30, router", templates(30)),
    World("texts with one slot, router", text_templates(1)),
    World("texts with two slots, router", text_templates(2)),
    World("texts with four slots, router", text_templates(4)),
    World("log of random choices, sigma .5", logged(0.5)),
    World("log of random choices, sigma 1", logged(1.0)),
    World("log of random choices, sigma 1.5", logged(1.5)),
    World("log of .7 today's model, sigma .5", logged(0.5, champion=0.7)),
    World("gains of .5 on 2 % cancel", cancelling(0.45, 0.02)),
    World("no router gains", routed(0.0)),
    World("router gains about .10", routed(0.5)),
)
