"""Options with which a bundle is opened, by a program, by `cabs serve` or inside LiteLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import get_args

from cabs_core.base.errors import RouterError
from cabs_core.base.utility import Sticky
from cabs_core.data.endpoints.person_text import HARNESS_BLOCKS, TextRules
from cabs_core.router.bundle import Manifest, check_mode
from cabs_core.router.marks import RULES, check_share

STICKY: tuple[str, ...] = get_args(Sticky)
ROUTE_BY: tuple[str, ...] = ("last_user", "first_user", "conversation")


@dataclass(frozen=True)
class RouterOptions:
    """Options of a router. `None` leaves a value as the bundle says, or leaves a feature out.

    The making of an object checks only the options that `Raises` names. `completed` checks mode and epsilon.

    Attributes:
        mode: `route`, `shadow` (decides and logs, the fallback answers) or `guarded` (the fallback answers
            until scores show that the policy earns more, see `guarded`). None takes the bundle's.
        epsilon: share of uniform exploration, from 0 to 1. None takes the bundle's.
        fallback: name of the model of shadow and guarded mode. None takes the bundle's.
        budget_per_request, budget_per_day: USD, at most one of them. A pacer then moves rho between the
            lowest rho of the pool's grid and twice the grid's range above it (`Pacer`).
        seed: seed of the random streams. None takes fresh streams, which processes that share a log need.
            'bundle' takes the streams of the replay.
        keep_prompts: True logs the texts of the prompts.
        score_share: share of the drawn decisions that are marked to be scored, above 0 up to 1. None marks
            none.
        score_rule: rule by which they are marked, `uniform` or `seldom` (`marks`).
        prices: {model: USD per one million tokens in}. With a price, the expected cost of a call is its known
            part plus what was learnt about its output (`charges`). Without a price, the expected cost is the
            bundle's prediction for the text.
        cache_prices: {model: (USD per one million tokens in, USD per one million cached tokens in, or None if
            unknown)}. A model that is absent loses nothing when its cache is lost.
        sticky: when a conversation keeps its model: `session`, `tools` or `off` (`sessions`).
        route_by: text by which a conversation is routed: `last_user`, `first_user` or `conversation`.
        harness_blocks: names of further blocks that agents' harnesses write into a user's message, beside
            `person_text.HARNESS_BLOCKS`.
        text_pattern: regular expression that finds the person's text within the template of an application.
        learned: folder of checkpoints. None takes the place beside the log's file, or beside the bundle if
            the log is in PostgreSQL.

    Raises:
        RouterError: `sticky`, `route_by` or `score_rule` is not one of its values, or `score_share`,
            `harness_blocks` or `text_pattern` cannot be used.

    Examples:
        >>> from cabs_core import RouterOptions
        >>> RouterOptions(mode="shadow", fallback="small").mode
        'shadow'
    """

    mode: str | None = None
    epsilon: float | None = None
    fallback: str | None = None
    budget_per_request: float | None = None
    budget_per_day: float | None = None
    seed: int | str | None = None
    keep_prompts: bool = False
    score_share: float | None = None
    score_rule: str = "uniform"
    prices: Mapping[str, float] | None = None
    cache_prices: Mapping[str, tuple[float, float | None]] | None = None
    sticky: str = "session"
    route_by: str = "last_user"
    harness_blocks: Sequence[str] = ()
    text_pattern: str | None = None
    learned: str | Path | None = None

    def __post_init__(self) -> None:
        check_share(self.score_share)
        _ = self.text_rules  # raises an error if a block or the pattern cannot be used
        for name, value, choices in (
            ("sticky", self.sticky, STICKY),
            ("route_by", self.route_by, ROUTE_BY),
            ("score_rule", self.score_rule, RULES),
        ):
            if value not in choices:
                raise RouterError(f"{name} {value!r:.40}: expected one of {', '.join(choices)}")

    @cached_property
    def text_rules(self) -> TextRules:
        """Rules that find the text of a person in a message."""
        return TextRules((*HARNESS_BLOCKS, *self.harness_blocks), self.text_pattern)

    def completed(self, manifest: Manifest) -> RouterOptions:
        """Return these options with the bundle's mode, epsilon and fallback where none is given.

        Raises:
            RouterError: the mode is unknown, epsilon is out of range, or the two do not fit together.
        """
        if self.epsilon is None:
            epsilon = manifest.epsilon
        else:
            epsilon = float(self.epsilon)
        mode = self.mode or manifest.mode
        check_mode(mode, epsilon)
        return replace(self, mode=mode, epsilon=epsilon, fallback=self.fallback or manifest.fallback)
