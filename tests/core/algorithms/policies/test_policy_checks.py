"""Every policy passes the battery for plug-in authors, and the battery finds what it is there for."""

from dataclasses import replace

import numpy as np
import pytest

from cabs_core import check_policy
from cabs_core.algorithms.policies.policy import Policy
from cabs_core.algorithms.policies.request import Choice, Reads
from cabs_core.algorithms.policies.static import Carrot
from cabs_core.algorithms.policies.uniform import RandomPolicy
from cabs_core.base.catalog.policies import all_policies, policies, split_name
from cabs_core.base.errors import PolicyError

#: options that keep networks small
SMALL = {"hidden": 8, "batch": 4}


#: checked by `make test` as well; the others by `make test-all`
QUICK = "random kernel_ridge lin_ucb lin_ts@warm cabs_c_linear cabs_d_linear@tuned hier_mix".split()


@pytest.mark.parametrize(
    "name", [p if p in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in all_policies()]
)
def test_every_policy_passes(name):
    check_policy(name, **(SMALL if policies()[split_name(name)[0]].family == "neural" else {}))


class Forgetful(RandomPolicy):
    """Forgets its round when it is loaded."""

    def load_parts(self, folder):
        self.round = 0


class Careless(RandomPolicy):
    """Plays arms that are not there."""

    def run(self, stream, lane, start, stop):
        lane.actions[start:stop] = int(np.argmax(stream.offline.utilities.mean(axis=0)))
        lane.propensities[start:stop] = 1.0
        self.round += stop - start


class TwoFaced(RandomPolicy):
    """Online it plays the last arm."""

    def choose(self, request):
        pmf = np.zeros(len(self.arms))
        pmf[-1] = 1.0
        return Choice(len(pmf) - 1, 1.0, pmf, self.rho)


class Drawn(RandomPolicy):
    """Draws from a generator of its own."""

    def run(self, stream, lane, start, stop):
        lane.actions[start:stop] = np.random.default_rng().integers(0, len(self.arms), stop - start)
        lane.propensities[start:stop] = 1.0 / len(self.arms)
        self.round += stop - start


class Undecided(Policy):
    """Lacks `choose`."""

    def start(self, offline):
        pass


class Untaught(RandomPolicy):
    """Its record says that it learns, but it lacks `learn`."""


class Illiterate(Carrot):
    """It reads predictions, and says that it reads nothing: a router would not hand them to it."""

    def reads(self):
        return Reads()


@pytest.mark.parametrize(
    ("name", "cls", "message"),
    [
        ("random", Undecided, "class Undecided lacks choose"),
        ("random", Forgetful, "its round is"),
        ("random", Careless, "it plays an arm that has disappeared"),
        ("random", TwoFaced, "decide plays otherwise than run"),
        ("random", Drawn, "two replays with one seed differ in their actions"),
        ("lin_ucb", Untaught, "it learns, but Untaught lacks learn"),
        ("carrot", Illiterate, r"needs Request\.predicted_scores"),
    ],
)
def test_broken_promises_are_found(name, cls, message, monkeypatch):
    record = replace(policies()[name], path=f"{__name__}:{cls.__name__}", presets=("default",))
    monkeypatch.setitem(policies(), name, record)
    with pytest.raises(PolicyError, match=message):
        check_policy(name)
