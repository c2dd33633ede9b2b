"""Condition `sessions`: queries of a task as turns of conversations, where a switch loses the prompt cache.

docs/model-pools.md, "Conversations", describes how conversations are made, what a turn costs, who answers a
turn and what a decision is told. Conversations depend on the trial alone, so differences of policies are
paired.

Let a_j be the price of an input token of model j, H_j the tokens of the earlier turns, and R_j those of them
that the last turn read as well. Then

    cost of model j = its cost in the table + a_j H_j                             if j did not answer last
                    = its cost in the table + a_j (H_j - R_j) + cached a_j R_j    if j answered the last turn

A turn that keeps the last turn's model is no decision, and its propensity is 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cabs_core.algorithms.policies.play import Lane, Stream
from cabs_core.algorithms.policies.request import Decision, Request
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.threads import over_threads
from cabs_core.base.utility import clipped_utility, may_keep, worth_a_switch
from cabs_core.data.endpoints.tokens import BYTES_A_TOKEN
from cabs_core.data.pool_files.sessions import Sessions

#: price of an output token in input tokens, if the table has no token counts (list prices: 2 to 8)
ANSWER_PRICE = 4.0


@dataclass(frozen=True)
class Turns:
    """The conversations of one trial, as turns in the order in which they are played.

    Attributes:
        number: `[T]` number of each turn in its conversation, from 0.
        in_tools: bool `[T]`, True if the turn answers a tool call.
    """

    number: np.ndarray
    in_tools: np.ndarray


@dataclass(frozen=True)
class TokenCounts:
    """Tokens of every query and model, and the models' prices.

    Attributes:
        read: `[n, K]` input tokens.
        written: `[n, K]` output tokens.
        price: `[K]` USD of an input token.
    """

    read: np.ndarray
    written: np.ndarray
    price: np.ndarray


def tokens_of(problem: ReplayProblem, options: Sessions) -> TokenCounts:
    """Return the problem's token counts, or estimates of them if it has none.

    Estimates take input tokens from the lengths of prompts, and prices and output tokens from the costs, of
    which `options.input_share` is for input. An output token costs `ANSWER_PRICE` input tokens.
    """
    if problem.input_tokens is not None and problem.output_tokens is not None:
        assert problem.input_prices is not None
        return TokenCounts(
            read=np.asarray(problem.input_tokens, dtype=np.float64),
            written=np.asarray(problem.output_tokens, dtype=np.float64),
            price=problem.input_prices,
        )
    read = _tokens_of_lengths(problem.prompt_lengths, problem.n)
    costs = problem.costs
    counts = read
    if len(problem.offline_costs):
        costs = problem.offline_costs
        counts = _tokens_of_lengths(problem.offline_prompt_lengths, len(costs))
    price = options.input_share * costs.mean(axis=0) / counts.mean()
    price_of_output = np.where(price > 0, ANSWER_PRICE * price, np.inf)
    return TokenCounts(
        read=np.repeat(read[:, None], problem.K, axis=1),
        written=(1.0 - options.input_share) * problem.costs / price_of_output,
        price=price,
    )


def _tokens_of_lengths(lengths: np.ndarray | None, n: int) -> np.ndarray:
    """Tokens `[n]` of prompts by their lengths in characters, at least 1; 1 if the lengths are unknown."""
    if lengths is None:
        return np.ones(n)
    return np.maximum(lengths / BYTES_A_TOKEN, 1.0)


def in_conversations(
    order: np.ndarray,
    tasks: np.ndarray,
    times: np.ndarray | None,
    options: Sessions,
    generator: np.random.Generator,
) -> tuple[np.ndarray, Turns]:
    """Arrange the queries of a trial as conversations, which are played one after another.

    A conversation begins with the next query of the order that is not yet placed. Its further turns are the
    next such queries of the same task and time.

    Args:
        order: `[T]` queries in the order of the trial, which may be fewer than the n queries of the problem.
        tasks: `[n]` task of each query. A conversation holds queries of one task.
        times: `[n]` time of each query, or None. A conversation holds queries of one time.
        options: lengths of conversations and share of turns with tools.
        generator: source of random lengths (geometric) and of turns with tools.

    Returns:
        The queries `[T]` in the order in which their turns are played, and the turns.
    """
    total = len(order)
    groups = np.unique(tasks, return_inverse=True)[1]
    if times is not None:
        groups = groups * len(times) + np.unique(times, return_inverse=True)[1]
    waiting: dict[int, list[int]] = {}
    for place in reversed(range(total)):
        waiting.setdefault(int(groups[order[place]]), []).append(place)
    lengths = generator.geometric(1.0 / options.turns, size=total)
    places = np.empty(total, dtype=np.int64)
    number = np.empty(total, dtype=np.int64)
    played = np.zeros(total, dtype=bool)
    filled = 0
    conversation = 0
    for place in range(total):
        if played[place]:
            continue
        queue = waiting[int(groups[order[place]])]
        for turn in range(min(int(lengths[conversation]), len(queue))):
            places[filled] = queue.pop()
            number[filled] = turn
            played[places[filled]] = True
            filled += 1
        conversation += 1
    in_tools = (number > 0) & (generator.random(total) < options.tools)
    return order[places], Turns(number, in_tools)


class ConversationTokens:
    """Token counts of the conversation that is being played, which give the costs of its next turn.

    Attributes:
        before: `[K]` tokens of the earlier turns, as each model counts them (H of the module).
        cache: `[K]` those of them that the last turn read (R).
        last: model of the last turn, -1 in a first turn.
        saved: `[K]` USD that a cached input token saves.
    """

    def __init__(self, tokens: TokenCounts, cached: float):
        self.tokens = tokens
        self.saved = (1.0 - cached) * tokens.price
        self.begin()

    def begin(self) -> None:
        """Start a new conversation."""
        self.before = np.zeros(len(self.tokens.price))
        self.cache = np.zeros_like(self.before)
        self.last = -1

    def costs_of_earlier_turns(self) -> np.ndarray:
        """Costs `[K]` in USD of reading the earlier turns of the conversation without a cache, by model."""
        return self.tokens.price * self.before

    def cache_worth(self) -> float:
        """USD that the prompt cache of the last turn's model saves; 0 in a first turn."""
        if self.last < 0:
            return 0.0
        return float(self.saved[self.last] * self.cache[self.last])

    def costs(self, table: np.ndarray) -> np.ndarray:
        """Costs `[K]` in USD of the next turn, given the costs `table`, `[K]`, of its query alone."""
        usd: np.ndarray = table + self.costs_of_earlier_turns()
        if self.last >= 0:
            usd[self.last] -= self.cache_worth()
        return usd

    def answered(self, row: int, arm: int) -> None:
        """Record that model `arm` answered the turn with query `row`."""
        self.cache = self.before + self.tokens.read[row]
        self.before = self.cache + self.tokens.written[row, arm]
        self.last = arm


def kept_costs(
    problem: ReplayProblem, orders: Sequence[np.ndarray], turns: Sequence[Turns], options: Sessions
) -> np.ndarray:
    """Costs `[n, K]` in USD of each query if one model answers its whole conversation, as mean over trials.

    A query that was played in no trial has its cost of the table.

    Args:
        orders: `[T]` queries of each trial, in the order in which they are played.
        turns: the turns of each trial.
    """
    tokens = tokens_of(problem, options)
    total = np.zeros((problem.n, problem.K))
    plays = np.zeros(problem.n)
    for order, spoken in zip(orders, turns, strict=True):
        cache = np.zeros(problem.K)
        before = np.zeros(problem.K)
        for row, number in zip(order.tolist(), spoken.number.tolist(), strict=True):
            if number == 0:
                cache = np.zeros(problem.K)
                before = np.zeros(problem.K)
            total[row] += tokens.price * (before - (1.0 - options.cached) * cache)
            cache = before + tokens.read[row]
            before = cache + tokens.written[row]
        plays[order] += 1
    return problem.costs + total / np.maximum(plays, 1)[:, None]


class ConversationTrial:
    """One trial of a replay in conversations. `play` takes the place of the policy's compiled loop.

    Attributes:
        costs: `[T]` USD of the answer.
        best: `[T]` largest clipped utility of a model in the turn.
        random: `[T]` mean clipped utility of all models in the turn.
        kept: bool `[T]`, True if the turn kept the last turn's model without a decision.
    """

    def __init__(
        self,
        policy: SafePolicy,
        stream: Stream,
        lane: Lane,
        turns: Turns,
        tokens: TokenCounts,
        options: Sessions,
    ):
        self.policy = policy
        self.stream = stream
        self.lane = lane
        self.turns = turns
        if policy.algorithm.needs_outcomes:
            self.sticky = "off"
        else:
            self.sticky = options.sticky
        self.conversation = ConversationTokens(tokens, options.cached)
        rounds = len(lane.order)
        self.costs = np.zeros(rounds)
        self.best = np.zeros(rounds)
        self.random = np.zeros(rounds)
        self.kept = np.zeros(rounds, dtype=bool)
        key = policy.algorithm.reads().static
        self.predicted = stream.static_scores.get(key or "", stream.predicted_scores)
        self.decision: Decision | None = None
        self.answers: list[tuple[int, np.ndarray]] = []

    def play(self, start: int, stop: int) -> None:
        """Play the rounds from `start` to `stop` - 1, in order.

        The policy learns from a decision before its next decision, and from the last one when the trial ends.
        """
        lane = self.lane
        stream = self.stream
        for t in range(start, stop):
            row = int(lane.order[t])
            if self.turns.number[t] == 0:
                self.conversation.begin()
            costs = self.conversation.costs(stream.costs[row])
            if stream.latencies is None:
                latencies = None
            else:
                latencies = stream.latencies[row]
            utilities = clipped_utility(
                stream.scores[row], costs, stream.rho, latencies, stream.latency_weight
            )
            arm = self._keeps(t, row)
            if arm is None:
                arm = self._decide(t, row, utilities)
            else:
                self.kept[t] = True
                lane.propensities[t] = 1.0
                if lane.meta_weights is not None:
                    lane.meta_weights[t] = lane.meta_weights[t - 1]
            lane.actions[t] = arm
            self.costs[t] = costs[arm]
            self.best[t] = utilities.max()
            self.random[t] = utilities.mean()
            self.answers.append((row, costs))
            self.conversation.answered(row, arm)
        if stop == len(lane.order):
            self._learn()

    def _keeps(self, t: int, row: int) -> int | None:
        """Return the last turn's model if the pool's setting `sticky` keeps it, otherwise None.

        Outside of tool calls, a model is not kept if the predicted gain of a switch in utility exceeds rho
        times the USD that the model's prompt cache saves.
        """
        conversation = self.conversation
        in_tools = bool(self.turns.in_tools[t])
        if conversation.last < 0 or not may_keep(self.sticky, in_tools):
            return None
        if not in_tools:
            full_costs = self.stream.predicted_costs[row] + conversation.costs_of_earlier_turns()
            if worth_a_switch(
                self.predicted[row],
                full_costs,
                arm=conversation.last,
                rho=self.stream.rho,
                lost=conversation.cache_worth(),
            ):
                return None
        return conversation.last

    def _decide(self, t: int, row: int, utilities: np.ndarray) -> int:
        """Let the policy choose a model for the turn, after it has learned from the turns before.

        A policy that needs outcomes gets the model of the largest `utilities`, `[K]`.
        """
        self._learn()
        if self.policy.algorithm.needs_outcomes:
            self.lane.propensities[t] = 1.0
            return int(np.argmax(utilities))
        self.decision = self.policy.decide(self._request(t, row))
        self.lane.record(t, self.decision, self.policy.algorithm.trace(self.decision))
        return self.decision.arm

    def _request(self, t: int, row: int) -> Request:
        """Request of the turn, with the costs of the earlier turns in the predicted costs."""
        request = self.stream.request(row, t)
        more = self.conversation.costs_of_earlier_turns()
        assert request.predicted_costs is not None and request.static_costs is not None
        return replace(
            request,
            predicted_costs=request.predicted_costs + more,
            static_costs=request.static_costs + more,
        )

    def _learn(self) -> None:
        """Give the last decision the mean outcome of its turn and of the turns that kept its model."""
        decision = self.decision
        answers = self.answers
        stream = self.stream
        self.decision = None
        self.answers = []
        if decision is None:
            return
        arm = decision.arm
        rows = [row for row, _ in answers]
        scores = stream.scores[rows].mean(axis=0)
        costs = np.mean([each for _, each in answers], axis=0)
        if self.policy.algorithm.full_feedback:
            full = {"all_scores": scores, "all_costs": costs}
        else:
            full = {}
        self.policy.update(
            decision,
            float(scores[arm]),
            float(costs[arm]),
            latency_penalty=float(np.mean([stream.latency_penalty(row, arm) for row in rows])),
            deltas=stream.deltas[rows, arm].mean(axis=0),
            **full,
        )


def play_conversation_trials(
    trials: Sequence[ConversationTrial], start: int, stop: int, threads: int
) -> None:
    """Play the rounds from `start` to `stop` - 1 of every trial; results do not depend on `threads`."""
    over_threads([partial(trial.play, start, stop) for trial in trials], threads)
