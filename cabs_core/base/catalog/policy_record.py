"""The record of a policy, which holds all texts and properties of the policy outside the policy's module."""

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
    """Description of a policy.

    Attributes:
        name: name in pool files and on the command line; lower case letters, digits and single underscores.
        family: group of policies that share code and are compiled together. Any word is a group; a policy of
            `static` never learns from rewards, one of `mix` mixes models, and one of `neural` needs torch.
        path: `module:Class` of the `Policy` subclass, which is imported when the policy is first built.
        title: name in reports.
        description: sentence fragment for the asset catalogue, with its full stop.
        feedback: rewards that the policy learns from online: `none`, `bandit` (of the played arm) or
            `full` (of every arm, which no router can see, so the policy is an upper bound).
        start: data that the policy gets before the first round: `nothing`, `surrogates` or offline `labels`.
        presets: names of the presets, the default first. The class has their options in `PRESETS`.
        preset_starts: `{preset: start}` of presets that get other data than `start`.
        tuning: `{option: values}` of the grid that tuning searches. Empty if there is nothing to tune.
        references: publications of the policy.
        experts: names of the policies that this policy mixes; reports compare it with its experts.
        bandit: for an upper bound, the policy with the same learner that sees only the played arm's reward.
        style: number of the colour, dash pattern and number of the symbol in plots. None derives them
            from the name.
        headline: True if plots show the policy when the page opens.
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
        """Group of the policy in reports: `static`, `online` or `upper bound`.

        In this order, these are the groups of policies with feedback `none`, `bandit` and `full`.
        """
        return {"none": "static", "bandit": "online", "full": "upper bound"}[self.feedback]

    @property
    def learns(self) -> bool:
        """True if rewards change the policy's decisions.

        They do not in the family `static`, nor with feedback `none`.
        """
        return self.family != "static" and self.feedback != "none"

    def starts_from(self, preset: str) -> Start:
        """Return the data that the policy gets before the first round under a preset.

        This is `start` unless `preset_starts` has the preset.
        """
        return self.preset_starts.get(preset, self.start)
