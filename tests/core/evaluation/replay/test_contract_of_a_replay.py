"""The battery for a policy's replay passes sound policies and names the promise that a broken one breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from cabs_core.algorithms.policies.policy import Policy
from cabs_core.algorithms.policies.uniform import RandomPolicy
from cabs_core.base.catalog.policies import policies
from cabs_core.base.errors import PolicyError
from cabs_core.evaluation.replay.policy_checks import check_replay


@pytest.mark.parametrize("name", ["random", "ridge", "lin_ucb", "lin_ucb_full", "oracle_best"])
def test_sound_policies_pass(name):
    check_replay(name, {})


class Sound(RandomPolicy):
    """Plays as `random` does; the others break one promise each."""


class Undecided(Policy):
    """Lacks `choose`."""

    def start(self, offline):
        pass


class Prophet(RandomPolicy):
    needs_outcomes = True


class Outsider(RandomPolicy):
    """Plays the arm -1, which NumPy takes for the last one."""

    def run(self, stream, lane, start, stop):
        super().run(stream, lane, start, stop)
        lane.actions[stop - 1] = -1


class Overconfident(RandomPolicy):
    probability: ClassVar[float] = 1.5

    def run(self, stream, lane, start, stop):
        super().run(stream, lane, start, stop)
        lane.propensities[start] = self.probability


class Hopeless(Overconfident):
    probability = 0.0


class Drawn(RandomPolicy):
    """Reports probabilities from a generator without a seed."""

    def run(self, stream, lane, start, stop):
        super().run(stream, lane, start, stop)
        lane.propensities[start] = np.random.default_rng().uniform(0.1, 1)


class Sociable(RandomPolicy):
    """Every trial plays the arm whose number is the number of trials."""

    trials: ClassVar[int] = 0
    playing: ClassVar[bool] = False

    def start(self, offline):
        Sociable.trials = 1 if Sociable.playing else Sociable.trials + 1
        Sociable.playing = False

    def run(self, stream, lane, start, stop):
        Sociable.playing = True
        super().run(stream, lane, start, stop)
        lane.actions[start:stop] = Sociable.trials


class Asleep(RandomPolicy):
    """Plays nothing in rounds in which an arm is missing."""

    def run(self, stream, lane, start, stop):
        super().run(stream, lane, start, stop)
        if (stream.active_from > 0).any():
            lane.actions[start] = -1


class Careless(RandomPolicy):
    """In the 61st round it plays the best arm, which may be gone by then."""

    def run(self, stream, lane, start, stop):
        super().run(stream, lane, start, stop)
        lane.actions[60:61] = np.argmax(stream.offline.utilities.mean(axis=0))


class Forgetful(RandomPolicy):
    """Forgets its round when it is loaded."""

    def load_parts(self, folder):
        self.round = 0


class Restless(RandomPolicy):
    """Loaded, it plays the next arm."""

    loaded = False

    def load_parts(self, folder):
        self.loaded = True

    def run(self, stream, lane, start, stop):
        super().run(stream, lane, start, stop)
        if self.loaded:
            lane.actions[start:stop] = (lane.actions[start:stop] + 1) % len(self.arms)


class Fading(Restless):
    """Loaded, it plays the same arm and reports another probability."""

    def run(self, stream, lane, start, stop):
        RandomPolicy.run(self, stream, lane, start, stop)
        if self.loaded:
            lane.propensities[start:stop] *= 0.5


class Newborn(Restless):
    """Loaded after its first round, it plays the next arm; later it can be loaded."""

    def run(self, stream, lane, start, stop):
        self.loaded = self.loaded and start == 1
        super().run(stream, lane, start, stop)


class TwoFaced(RandomPolicy):
    """Online it plays the next arm."""

    def choose(self, request):
        choice = super().choose(request)
        return choice._replace(arm=(choice.arm + 1) % len(self.arms))


class Modest(RandomPolicy):
    """Online it reports a slightly smaller probability."""

    def choose(self, request):
        choice = super().choose(request)
        return choice._replace(probability=choice.probability * (1 - 1e-5))


class Inconsistent(Modest):
    """In replay and online its probability is not the one in `pmf`."""

    own_loop = False


class Lenient(RandomPolicy):
    """Leaves unknown options out."""

    @classmethod
    def parse(cls, name, options):
        return super().parse(name, {})


class Unwelcoming(RandomPolicy):
    def add_arm(self):
        raise PolicyError("no arm may come")


class Stuck(RandomPolicy):
    """Stops to know how many arms there are when one came and one went."""

    gone = False

    def remove_arm(self, index):
        self.gone = True

    def choose(self, request):
        choice = super().choose(request)
        return choice._replace(pmf=choice.pmf[:-1]) if self.gone else choice


def played_as(monkeypatch, cls, **record):
    """Let the catalogue's policy `random` be of the class `cls`."""
    changed = replace(policies()["random"], path=f"{__name__}:{cls.__name__}", **record)
    monkeypatch.setitem(policies(), "random", changed)


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Undecided, "class Undecided lacks choose"),
        (Prophet, "it looks at outcomes: feedback must be 'full'"),
        (Outsider, "an action is no index of an arm"),
        (Overconfident, r"a propensity is not in \(0, 1\]"),
        (Hopeless, r"a propensity is not in \(0, 1\]"),
        (Drawn, "two replays with one seed differ in their propensities"),
        (Sociable, "trial 1 plays otherwise alone than beside trial 0"),
        (Asleep, "rounds without an action under arms_arrive"),
        (Careless, "it plays an arm that has disappeared"),
        (Forgetful, "its round is 70 after 120 rounds"),
        (Restless, "saved and loaded after round 1 and 50, it plays otherwise than without a break"),
        (Newborn, "saved and loaded after round 1 and 50, it plays otherwise than without a break"),
        (Fading, "saved and loaded after round 1 and 50, it plays otherwise than without a break"),
        (TwoFaced, "decide plays otherwise than run"),
        (Modest, "propensities of decide and run differ by 2.5e-06"),
        (Inconsistent, "probability is not the arm's in pmf"),
        (Lenient, "an unknown option is taken without an error"),
        (Unwelcoming, "no arm may come"),
        (Stuck, r"Decision\.pmf"),
    ],
)
def test_the_broken_promise_is_named(cls, message, monkeypatch):
    played_as(monkeypatch, cls)
    with pytest.raises(PolicyError, match=message):
        check_replay("random", {})


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"presets": ("default", "bold")}, "its class has no preset 'bold'"),
        ({"description": "draws an arm"}, "its description must end with a full stop"),
        ({"family": "linear", "feedback": "bandit"}, "it learns, but Sound lacks learn"),
    ],
)
def test_a_record_that_does_not_fit_its_class_is_named(record, message, monkeypatch):
    played_as(monkeypatch, Sound, **record)
    with pytest.raises(PolicyError, match=message):
        check_replay("random", {})
