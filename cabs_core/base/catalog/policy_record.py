"""The record of a policy: all that the project says about it outside its own module."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Feedback = Literal["none", "bandit", "full"]
Start = Literal["nothing", "surrogates", "labels"]

#: what a preset means, in words
PRESET_TEXT = {
    "default": "as in the literature",
    "warm": "started from discounted sufficient statistics of the train split",
    "practical": "the paper's algorithm with the departures that make it work",
    "literal": "word for word with the published constants",
    "tuned": "our best settings, tuned on validation",
    "published": "the likeliest arm is played and models learn plain targets; other constants as printed",
    "pair": "the pairwise loss of RouteLLM",
    "pilot": "without forgetting",
    "cold": "without the train split",
    "two_models": "the anchored and the cold model alone, without corrections",
    "lin_ucb_expert": "word for word, with LinUCB as the standard expert",
}
#: presets that are readings of a paper, and are therefore never tuned
FIXED_PRESETS = ("literal", "practical", "published", "lin_ucb_expert")


@dataclass(frozen=True)
class PolicyRecord:
    """All that is said about a policy, in one place.

    Attributes:
        name: in pool files and on the command line; lower case letters, digits and single underscores.
        family: policies of a family are computed by one asset function.
        path: `module:Class` of the `Policy` subclass; imported when the policy is first built.
        title: how reports write it.
        description: one sentence fragment for the asset catalogue, with its full stop.
        feedback: what it learns from online: `none`, `bandit` (the played arm's reward) or `full` (every
            arm's, which no router can see: an upper bound).
        start: what it is given before the first round: `nothing`, `surrogates` or offline `labels`.
        presets: names of its presets, the default first; their settings are `PRESETS` of the class.
        preset_starts: {preset: start} where a preset starts from something else.
        tuning: {option: values} of the grid that tuning searches; empty: nothing to tune.
        references: where it comes from.
        experts: policies that it mixes; reports compare it with them.
        bandit: of an upper bound, the policy with the same learner that sees the played arm's reward alone.
        style: (number of the colour, dash pattern, number of the symbol) in plots; None: from the name.
        headline: whether plots show it from the start.
    """

    name: str
    family: str
    path: str
    title: str
    description: str
    feedback: Feedback = "bandit"
    start: Start = "nothing"
    presets: tuple[str, ...] = ("default",)
    preset_starts: Mapping[str, Start] = field(default_factory=dict, hash=False)
    tuning: Mapping[str, Sequence[Any]] = field(default_factory=dict, hash=False)
    references: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    bandit: str = ""
    style: tuple[int, str, int] | None = None
    headline: bool = False

    @property
    def kind(self) -> str:
        """`static`, `online` or `upper bound`, as reports group policies."""
        return {"none": "static", "bandit": "online", "full": "upper bound"}[self.feedback]

    @property
    def learns(self) -> bool:
        """Whether rewards change what it does."""
        return self.family != "static" and self.feedback != "none"

    def starts_from(self, preset: str) -> Start:
        """What the policy is given before the first round under one of its presets."""
        return self.preset_starts.get(preset, self.start)
