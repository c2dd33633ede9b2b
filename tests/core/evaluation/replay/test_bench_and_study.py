"""The benchmark compares like with like, and the study driver resumes and adds up."""

import importlib
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks import study_problems, study_ranking
from benchmarks.speed.peers import numpy_peer
from benchmarks.speed.replay import Ours, Peer
from benchmarks.study import main, run
from benchmarks.study_plan import Plan, Setup, cell_path
from benchmarks.study_tables import table
from cabs_core.algorithms.problem.synthetic import synthetic_problem
from cabs_core.base.errors import CabsError, PoolError
from cabs_core.data.outcomes import load_outcomes, make_splits
from cabs_core.data.pools.find import find_pool
from cabs_core.evaluation.replay import ReplayProblem, replay
from cabs_core.evaluation.replay.engine import make_stream


def test_numpy_lin_ucb_plays_the_same_actions():
    problem = synthetic_problem(n=300, K=5, d=9)
    stream, order = make_stream(problem, 300.0), np.arange(300)
    ours, peer = Ours("lin_ucb", stream, order), Peer(numpy_peer("lin_ucb", 5, 9), stream, order)
    ours.advance(300)
    peer.advance(300)
    assert ours.lane.actions.tolist() == [int(a) for a in peer.actions]
    assert ours.lane_bytes() > 5 * 9 * 9 * 8


@pytest.fixture
def work(tmp_path):
    for seed in (0, 1, 2):
        for condition in ("clean", "corrupted"):
            problem = synthetic_problem(n=80, K=4, d=4, seed=seed, pool="toy")
            problem.save(tmp_path / "problems" / "toy" / condition / f"seed{seed}" / "test")
    return tmp_path


@pytest.mark.slow
def test_study_resumes_and_adds_up(work):
    plan = Plan(("toy",), ("clean", "corrupted"), (0, 1, 2), ("random", "best_single", "lin_ts"), "short")
    run(plan, work, threads=1)
    path = cell_path(work, "toy", "clean", 1, "lin_ts", 550.0)
    before = path.stat().st_mtime_ns
    cell_path(work, "toy", "clean", 0, "lin_ts", 0.0).unlink()
    run(plan, work, threads=1)
    assert path.stat().st_mtime_ns == before, "what is there is not run again"
    figures = table(plan, work)
    row = figures["values"]["toy"]["clean"]["best_single"]
    by_hand = []
    for seed in (0, 1, 2):
        by_rho = {}
        for rho in (0.0, 150.0, 300.0):
            with np.load(cell_path(work, "toy", "clean", seed, "best_single", rho)) as cell:
                by_rho[rho] = cell["utilities"].mean()
        by_hand.append(np.mean(list(by_rho.values())))
    assert row["low"] == pytest.approx(np.mean(by_hand)) and row["splits"] == [0, 1, 2]
    assert row["mean"] == pytest.approx((row["low"] + row["medium"] + row["high"]) / 3)
    paired = next(d for d in figures["differences"] if d["policy"] == "random" and d["condition"] == "clean")
    assert paired["reference"] == "lin_ts" and len(paired["per_split"]) == 3 and paired["se"] > 0
    values = figures["values"]["toy"]["clean"]
    assert paired["difference"] == pytest.approx(values["random"]["mean"] - values["lin_ts"]["mean"])


STUDIES = Path(__file__).parents[4] / "benchmarks"
SCRIPTS = [
    f"benchmarks.{folder}{path.stem}"
    for folder in ("", "speed.")
    for path in sorted((STUDIES / folder.rstrip(".")).glob("*.py"))
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", SCRIPTS)
def test_every_script_reads_its_own_options_and_is_listed(module, capsys):
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main(["--no-such-option"])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"python -m {module}: error: unrecognized arguments: --no-such-option" in error
    assert f"`python -m {module}`" in (STUDIES / "README.md").read_text(encoding="utf-8")


def test_tfidf_never_sees_the_test_prompts(tmp_path, cabs_home, monkeypatch):
    """The study's features are fitted on the train split alone, as those of a pool's chain are."""
    asked = {}

    class Enough(Exception):
        pass

    def embed(prompts, encoder, *, store, fit_prompts=None, **_):
        asked.update(prompts=list(prompts), fit=None if fit_prompts is None else list(fit_prompts))
        raise Enough

    monkeypatch.setattr(study_problems, "embed_prompts", embed)
    with pytest.raises(Enough):
        study_problems.problem(tmp_path, "demo_tfidf", "clean", 3)
    pool = find_pool("demo_tfidf")
    split = make_splits(load_outcomes(pool), pool.pool.split.model_copy(update={"split_seed": 3}))
    assert asked["fit"] == [p for p, part in zip(asked["prompts"], split, strict=True) if part == "train"]
    assert 0 < len(asked["fit"]) < len(asked["prompts"])
    with pytest.raises(Enough):
        study_problems.problem(tmp_path / "again", "demo_tfidf", "clean", 3, Setup(rehearsal=True))
    held_out = {p for p, part in zip(load_outcomes(pool).prompts, split, strict=True) if part == "test"}
    assert held_out and held_out.isdisjoint(asked["prompts"]), "options are chosen without the test queries"
    assert 0 < len(asked["fit"]) < len(asked["prompts"])


def test_severe_tasks_are_named_and_not_guessed_from_underscores():
    tasks = ["mmlu_pro_law", "bbh_navigate", "bbh_navigate", "mmlu_pro_math", "bbh_ruin_names"]
    assert study_problems.severe_tasks("openllm_lb_v2_carrot", tasks) == ("mmlu_pro_law", "mmlu_pro_math")
    assert study_problems.severe_tasks("routerbench_sub3", ["winogrande", "mbpp", "arc-challenge"]) == (
        "mbpp",
    )
    with pytest.raises(PoolError, match=r"split.test_tasks.*bbh_navigate"):
        study_problems.severe_tasks("mmlu_pro_tiger", tasks)


def test_an_upgrade_is_a_better_middling_model_that_no_offline_label_knows_of(work):
    setup = study_problems.AS_IS
    clean, upgrade = (study_problems.problem(work, "toy", c, 0, setup) for c in ("clean", "upgrade"))
    (arm,) = np.flatnonzero((clean.scores != upgrade.scores).any(axis=0))
    train = clean.offline_scores.mean(axis=0)
    best = int(train.argmax())
    assert np.sort(train).tolist().index(train[arm]) == 1, "the second of four"
    assert (upgrade.scores[:, arm] >= clean.scores[:, best]).all()
    gain = upgrade.scores[:, arm].mean() - clean.scores[:, best].mean()
    assert 0.03 < gain < 0.18, "a tenth of 80 prompts"
    for name in ("offline_scores", "costs", "predicted_scores"):
        np.testing.assert_array_equal(getattr(clean, name), getattr(upgrade, name))


def test_conditions_on_the_stream_use_the_clean_problem(work, capsys):
    """Replayed under the condition on the clean problem; the cost of it is clean minus stressed."""
    conditions = ["clean", "drift", "arms_arrive", "arms_disappear", "delayed_rewards"]
    arguments = ["--pool", "toy", "--work", str(work), "--protocol", "short", "--split-seeds", "0"]
    arguments += ["--policies", "best_single", "lin_ts", "--conditions", *conditions]
    figures = main(argv=arguments)
    assert not (work / "problems" / "toy" / "drift").exists()
    values = {c: v["lin_ts"]["mean"] for c, v in figures["values"]["toy"].items()}
    assert list(values) == conditions and len(set(values.values())) == 5
    problem = ReplayProblem.load(work / "problems/toy/clean/seed0/test")
    by_hand = replay(problem, "lin_ts", 550.0, 5, condition="arms_arrive", propensity="sampled")
    with np.load(cell_path(work, "toy", "arms_arrive", 0, "lin_ts", 550.0)) as cell:
        np.testing.assert_array_equal(cell["utilities"], by_hand.rewards.mean(axis=1))
    costs = {(c["condition"], c["policy"]): c for c in figures["costs"]}
    assert set(costs) == {(c, p) for c in conditions[1:] for p in ("best_single", "lin_ts")}
    for condition in conditions[1:]:
        figure = costs[condition, "lin_ts"]
        assert figure["cost"] == pytest.approx(values["clean"] - values[condition]) and figure["se"] > 0
    for condition in ("drift", "delayed_rewards"):
        # the same queries, each once: what learns nothing loses nothing
        assert costs[condition, "best_single"]["cost"] == pytest.approx(0.0, abs=1e-12)
    assert "| policy | drift | arms_arrive | arms_disappear | delayed_rewards |" in capsys.readouterr().out


@pytest.mark.slow
def test_ranking_is_that_of_the_means(work):
    plan = Plan(
        ("toy",),
        ("clean", "corrupted"),
        (0, 1),
        ("random", "best_single", "ridge", "lin_ts", "oracle_best"),
        "short",
    )
    run(plan, work, threads=1)
    ranks = study_ranking.ranking(plan, work, simple=("best_single", "ridge"), reference="best_single")
    values = table(plan, work)["values"]["toy"]
    assert [c["condition"] for c in ranks["cells"]] == ["clean", "corrupted"] == list(ranks["conditions"])
    for cell in ranks["cells"]:
        policies = ranks["conditions"][cell["condition"]]
        assert set(policies) == {"best_single", "ridge", "lin_ts"}, "a bound and chance have no rank"
        means = {p: values[cell["condition"]][p]["mean"] for p in policies}
        order = sorted(means, key=means.__getitem__, reverse=True)
        rival = max(("best_single", "ridge"), key=means.__getitem__)
        for policy, summary in policies.items():
            (row,) = summary["by_cell"]
            assert row["rank"] == 1 + order.index(policy)
            assert row["gap"] == pytest.approx(means[policy] - means[rival])
            assert row["tied"] or policy != order[0]
            assert 0.0 <= row["unseen"] <= 0.98
            assert summary["value"] == pytest.approx(means[policy]) and summary["value_se"] > 0
    without_rival = study_ranking.ranking(plan, work, simple=("stack",), reference="ridge")
    assert without_rival["cells"] == []
    text = "\n".join(study_ranking.lines(ranks))
    assert "#### clean" in text and "#### corrupted" in text
    assert "| toy, clean | 2 |" in text


def test_what_is_chosen_for_a_table_does_not_depend_on_it():
    means = {
        (condition, pool): {"a": 0.5, "b": 0.6 if pool == "x" else 0.4, "c": 0.45}
        for condition, pool in product(("clean", "shift"), ("x", "y", "z"))
    }
    choose = study_ranking.elsewhere
    assert [choose(means, ("a", "b", "c"), pool, ["clean", "shift"]) for pool in "xyz"] == ["a", "a", "a"]
    for condition in ("clean", "shift"):
        means[condition, "y"]["b"] = 0.7
    assert [choose(means, ("a", "b", "c"), pool, ["clean", "shift"]) for pool in "xyz"] == ["b", "a", "b"]
    del means["shift", "y"]["b"]
    assert choose(means, ("a", "b", "c"), "x", ["clean", "shift"]) == "a", "what was not played is not chosen"
    assert choose(means, ("a",), "x", ["noisy"]) is None


def test_one_folder_one_setup(work, capsys):
    asked = ["--pool", "toy", "--split-seeds", "0", "--policies", "ridge", "--work", str(work)]
    main(argv=[*asked, "--protocol", "short"])
    with pytest.raises(CabsError, match="another --work"):
        main(argv=[*asked, "--protocol", "field", "--conditions", "clean"])
    fresh = [*asked[:-1], str(work / "fresh"), "--table-only"]
    main(argv=[*fresh, "--protocol", "field"])
    main(argv=[*fresh, "--protocol", "field"])
    with pytest.raises(CabsError, match="tfidf-svd"):
        main(argv=[*fresh, "--protocol", "short"])
