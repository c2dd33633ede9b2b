"""The budget's pacer: spending meets the target, within reach of the range of rho."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from server_support import ASK, FIGURES, client

from cabs_core.base.errors import RouterError
from cabs_core.data.events.retention import compact
from cabs_core.router.bundle import read_manifest
from cabs_core.router.doctor_cli import doctor
from cabs_core.router.options import RouterOptions
from cabs_core.router.pacer import Budget, Pacer, first_rho, highest_rho
from cabs_core.router.router import Router
from cabs_server.cli import serve


def spend(pacer: Pacer, n: int, seed: int = 0, seconds=None) -> np.ndarray:
    """Costs [n] of a world where dearer calls are worth less at a larger rho: log-normal around 4e-3 / (1 +
    rho/100)."""
    rng = np.random.default_rng(seed)
    costs = np.empty(n)
    for i in range(n):
        costs[i] = 4e-3 / (1 + pacer.rho / 100) * rng.lognormal(0.0, 1.0) / np.exp(0.5)
        if seconds is not None:
            seconds[0] += rng.exponential(10.0)
        pacer.spend(costs[i])
    return costs


@pytest.mark.parametrize("target", [2.5e-4, 6e-4, 1e-3, 2e-3])  # the first one needs rho 1,500
@pytest.mark.parametrize("start", [0.0, 300.0, 1000.0])
def test_the_mean_cost_is_the_target(target, start):
    costs = [spend(Pacer(Budget(per_request=target, start=start)), 5000, seed).mean() for seed in range(4)]
    assert np.mean(costs) == pytest.approx(target, rel=0.02)


def test_a_target_per_day():
    clock = [0.0]
    pacer = Pacer(Budget(per_day=10.0, start=300.0), clock=lambda: clock[0])
    costs = spend(pacer, 20_000, seconds=clock)  # 8,640 calls a day, 1.16e-3 USD each
    assert costs.sum() / (clock[0] / 86_400) == pytest.approx(10.0, rel=0.02)
    assert pacer.spent == pytest.approx(costs.sum())
    assert pacer.allowed == pytest.approx(10.0 * clock[0] / 86_400)


def test_out_of_reach_rho_waits_at_its_end():
    cheap, dear = Pacer(Budget(per_request=1.0)), Pacer(Budget(per_request=1e-9))
    spend(cheap, 200), spend(dear, 200)
    assert cheap.rho == 0.0 and dear.rho == 2000.0


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e6), max_size=50), st.floats(1e-9, 1e3))
def test_rho_stays_in_range_whatever_calls_cost(costs, target):
    pacer = Pacer(Budget(per_request=target, low=10.0, high=20.0))
    assert all(10.0 <= pacer.spend(c) <= 30.0 for c in costs)
    assert pacer.spent == pytest.approx(sum(costs)) and pacer.calls == len(costs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"per_request": 1e-3, "per_day": 1.0},
        {"per_request": 0.0},
        {"per_day": -1.0},
        {"per_day": float("nan")},
        {"per_request": 1.0, "low": 5.0, "high": 5.0},
        {"per_request": 1.0, "low": -1.0},
    ],
)
def test_impossible_budgets(options):
    with pytest.raises(RouterError, match="budget"):
        Pacer(Budget(**options))


def test_failed_attempts_bring_no_allowance(make_bundle, tmp_path):
    """A request with three attempts is one request, for the pacer that saw them and for one that reads the
    log."""
    place = tmp_path / "log.sqlite"
    seen = Router.load(make_bundle("carrot"), RouterOptions(budget_per_request=1e-3), log=place)
    second = Router.load(make_bundle("carrot"), RouterOptions(budget_per_request=1e-3), log=place)
    for i in range(10):
        for status, cost in (("error", None), ("timeout", 2e-4), ("answered", 5e-4)):
            seen.finish(seen.route(f"question {i}").id, status=status, cost=cost)
    second.follow_budget()
    for router in (seen, second):
        pacer = router.pacer
        assert (pacer.calls, pacer.spent, pacer.allowed) == (10, pytest.approx(7e-3), pytest.approx(1e-2))
    assert seen.follow_budget()[1] == pytest.approx(7e-3) and seen.pacer.calls == 10


@pytest.mark.parametrize(
    ("budget", "spent"), [({"budget_per_request": 1e-3}, 5e-3), ({"budget_per_day": 10.0}, 5e-3 + 40e-3)]
)
def test_calls_that_the_router_did_not_decide_count_alike_live_and_after_a_restart(
    make_bundle, tmp_path, budget, spent
):
    """Embeddings and calls that name their model are no requests; a target per day counts their cost."""
    folder, place = make_bundle("carrot"), tmp_path / "log.sqlite"
    seen = Router.load(folder, RouterOptions(**budget), log=place)
    second = Router.load(folder, RouterOptions(**budget), log=place)
    for i in range(10):
        seen.finish(seen.route(f"question {i}").id, cost=5e-4)
        for model in ("embedder", seen.arms[0]):
            for status in ("answered", "error"):
                seen.log_call(model, status=status, cost=1e-3)
    seen.log_call("embedder", status="answered")
    seen.follow_budget()
    second.follow_budget()
    compact(seen.log, 1e12)  # sums stay
    third = Router.load(folder, RouterOptions(**budget), log=place)
    for router in (seen, second, third):
        assert (router.pacer.calls, router.pacer.spent) == (10, pytest.approx(spent))
        if "budget_per_request" in budget:
            assert router.pacer.allowed == pytest.approx(10 * 1e-3)
    totals = seen.log.totals(int(time.time() // 86_400))
    assert totals == (10, pytest.approx(5e-3), 21, pytest.approx(40e-3))
    assert seen.follow_budget()[1] == pytest.approx(45e-3)  # a cap of the day counts all


def test_the_end_of_a_call_that_is_refused_spends_nothing(make_bundle):
    router = Router.load(make_bundle("carrot"), RouterOptions(budget_per_request=1e-3), log=":memory:")
    d = router.route("a question")
    with pytest.raises(RouterError, match="no fact 'colour'"):
        router.finish(d.id, cost=5e-4, colour="red")
    assert (router.pacer.calls, router.pacer.spent) == (0, 0.0)
    router.finish(d.id, cost=5e-4)
    assert (router.pacer.calls, router.pacer.spent) == (1, 5e-4)


def test_a_day_may_begin_with_a_failed_attempt():
    pacer = Pacer(Budget(per_day=1.0), clock=lambda: 0.0)
    assert pacer.spend(1e-3, answered=False) >= 0.0


def test_a_target_below_what_the_end_costs_is_told_before_and_by_what_was_spent():
    pacer = Pacer(Budget(per_request=5e-5, least=3.58e-4))
    assert "$0.00005 a request" in pacer.problem()
    assert "rho 2000" in pacer.problem() and "$0.000358" in pacer.problem()
    assert Pacer(Budget(per_request=4e-4, least=3.58e-4)).problem() is None
    assert Pacer(Budget(per_request=5e-5)).problem() is None
    spend(pacer, 2000)  # 4e-3 / 21 a call at the end
    assert pacer.rho == pacer.high and "calls cost $0.000" in pacer.problem()
    assert "$0.00005 were allowed" in pacer.problem()
    reached = Pacer(Budget(per_request=6e-4, least=7e-4))  # calls turn out cheaper than expected
    assert "expected" in reached.problem()
    reached.resume(2000.0)
    for _ in range(100):
        reached.spend(1e-4)
    assert reached.problem() is None


def test_a_target_per_day_is_told_by_what_was_spent_and_withdrawn():
    clock = [0.0]
    pacer = Pacer(Budget(per_day=0.1, start=0.0), clock=lambda: clock[0])
    assert pacer.problem() is None
    spend(pacer, 3000, seconds=clock)  # 8,640 calls a day at 1.9e-4 USD and more
    assert "$0.10 a day" in pacer.problem()
    clock[0] += 86_400 * 100.0
    spend(pacer, 5, seconds=clock)
    assert pacer.problem() is None


def test_what_a_bundle_can_reach_is_in_it(make_bundle):
    """The curve goes to the pacer's own end; exploration and shadow mode cost what they cost."""
    manifest = read_manifest(make_bundle("carrot", epsilon=0.1))
    curve, costs = manifest.provenance["spending"], {a["name"]: a["mean_cost"] for a in manifest.arms}
    assert curve["rhos"][-1] == highest_rho(min(manifest.rhos), max(manifest.rhos)) == 1800.0

    def least_of(**options):
        resolved = RouterOptions(budget_per_request=1e-9, **options).completed(manifest)
        return Pacer.for_bundle(manifest, resolved, any_rho=True).budget.least

    least = {e: least_of(epsilon=e) for e in (0.0, 0.5, 1.0)}
    assert least[0.0] == pytest.approx(min(curve["usd"])) and least[0.0] < least[0.5] < least[1.0]
    assert least[1.0] == pytest.approx(np.mean([*costs.values()]))
    assert least_of(epsilon=0.1, mode="shadow") == costs[manifest.fallback]


def test_a_pacer_starts_where_the_target_per_request_is_spent_and_otherwise_at_the_rho_of_the_bundle(
    make_bundle,
):
    manifest = read_manifest(make_bundle("carrot"))
    curve = manifest.provenance["spending"]
    target = (min(curve["usd"]) + max(curve["usd"])) / 2

    def start_of(**options):
        completed = RouterOptions(**options).completed(manifest)
        return Pacer.for_bundle(manifest, completed, any_rho=True).rho

    assert start_of(budget_per_day=1.0) == manifest.rho
    assert start_of(budget_per_request=target) == first_rho(target, curve) != manifest.rho
    without_curve = replace(manifest, provenance={})
    options = RouterOptions(budget_per_request=target).completed(manifest)
    assert Pacer.for_bundle(without_curve, options, any_rho=True).rho == manifest.rho
    assert Pacer.for_bundle(manifest, RouterOptions().completed(manifest), any_rho=True) is None


def test_a_budget_out_of_reach_is_told_everywhere(place, caplog):
    """--check, the log, /readyz and doctor; the server serves all the same."""
    options = ["--router", str(place / "router"), "--log", str(place / "log.sqlite")]
    command = [*options, "--upstreams", str(place / "upstreams.yaml"), "--check"]
    low = CliRunner().invoke(serve, [*command, "--budget-per-request", "0.0000001"])
    fine = CliRunner().invoke(serve, [*command, "--budget-per-request", "0.5"])
    assert low.exit_code == 1
    assert "$0.0000001" in low.output
    assert fine.exit_code == 0 and "all is well" in fine.output and "all is well" not in low.output
    with client(place, budget_per_request=1e-7) as c:
        ready = c.get(f"{FIGURES}/readyz")
        assert ready.status_code == 200 and "cannot be reached" in ready.json()["problems"][0]
        assert c.post("/v1/chat/completions", json=ASK).status_code == 200
    assert "cannot be reached" in caplog.text
    assert "cannot be reached" in CliRunner().invoke(doctor, options).output
    with client(place, budget_per_request=0.5) as c:
        assert c.get(f"{FIGURES}/readyz").json() == {"status": "ready", "problems": []}
    assert "cannot be reached" not in CliRunner().invoke(doctor, options).output
