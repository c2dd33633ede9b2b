"""A pool gains a model: only that is asked, and it joins the deployed router, by `cabs run` and by the
sensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests_support import TINY, chain_of, home_with, made_stages, output_of

from cabs_core.base.paths import default_log, deployed_folder
from cabs_core.data.inputs import split_of
from cabs_core.pipeline.artifacts import make_artifact
from cabs_core.pipeline.chain_order import Part
from cabs_core.pipeline.stages.deployment import deploy
from cabs_core.pipeline.stages.prompt_embeddings import PromptEmbeddingsSummary
from cabs_core.router.options import RouterOptions
from cabs_core.router.promotion import roll_back
from cabs_core.router.router import Router
from cabs_dagster.chain_runner import RunFailed
from cabs_dagster.cli.runner import CommandRunner
from cabs_dagster.due import planner_of
from cabs_dagster.instance import open_instance
from cabs_dagster.job_names import JOIN, PREPARE
from cabs_dagster.partitions import register
from cabs_dagster.sensors import chain_requests, follow_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FEW = ["gpt-4-1106-preview", "claude-v1", "mistralai_mistral-7b-chat"]
NEW = "claude-v2"


def pool_of(models: list[str]) -> str:
    return f"{TINY}models: [{', '.join(models)}]\nrouter: {{policy: lin_ucb, add_models: true}}\n"


def test_a_model_that_the_pool_gains_joins_its_deployed_router(tmp_path: Path) -> None:
    with home_with(pool_of(FEW), tmp_path):
        made_stages()
        assert deploy(chain_of())["passed"] and not joins()
        place = deployed_folder("tiny")
        log = default_log(place)
        served = Router.load(place, RouterOptions(seed=1), log=log)
        for i in range(5):
            served.feedback(served.route(f"a question {i}").id, score=1.0)

        (tmp_path / "pools" / "tiny.yaml").write_text(pool_of([*FEW, NEW]))
        first = output_of("plan", "tiny").splitlines()[0].split()
        assert first[:2] == ["deployed_router", "waiting"] and f"does not choose {NEW} yet" in " ".join(first)
        assert joins()[0].assets == ("outcomes", "splits", "deployed_router")
        (request,) = chain_requests(joins(), "c")
        assert (request.job_name, request.partition_key) == (JOIN, "tiny")
        before = chain_of().store.record(("oracles", "tiny"))

        with open_instance() as instance:
            register(instance, chain_of().store, "tiny")
            failing = CannotJoin(instance)
            with pytest.raises(RunFailed, match="cannot join"):  # all else is made
                failing.run_pool(chain_of().pool_file, report=False)
            assert [job for job, *_ in failing.launched][:2] == [JOIN, PREPARE]
            runner = CommandRunner(instance)
            events = runner.execute(JOIN, "tiny", joins()[0].assets, {})
        (join,) = [e for e in events if e.is_step_materialization and e.step_key == "deployed_router"]
        assert join.partition == "tiny" and NEW in str(join.materialization.metadata)
        assert chain_of().store.record(("oracles", "tiny")).created == before.created  # it waited for none
        (request,) = follow_up(planner_of(chain_of().store, [chain_of().pool_file]), "tiny", JOIN, "c", set())
        assert request.job_name == PREPARE
        line = output_of("plan", "tiny").splitlines()[0]
        assert "fresh" in line and "figures and report are not of its models" in line
        grown = Router.load(place, log=log)
        assert grown.arms == [*FEW, NEW] and grown.manifest.provenance["continued"]["rewards"] == 5
        splits = chain_of().verified(chain_of().stage("splits"))
        train = int((split_of({"splits": splits}) == "train").sum())
        assert grown.manifest.provenance["arms"][-1]["scored"] == train
        assert np.mean([grown.route(f"a prompt {i}").scores[NEW] for i in range(40)]) > 0.2
        assert not joins()
        make_artifact(chain_of(), chain_of().stage("prompt_embeddings"))
        made = PromptEmbeddingsSummary.of(chain_of().store.record(("prompt_embeddings", "tiny")))
        assert made.encoding["embedded"] == 0  # its prompts are those of before
        roll_back(place)  # what was taken back does not come again
        assert not joins()


class CannotJoin(CommandRunner):
    """Makes nothing, and no model can join."""

    def execute(self, name: str, partition: Any, assets: Iterable[str], config: Mapping[str, Any]) -> None:
        self.launched.append((name, str(partition), tuple(assets)))
        if name == JOIN:
            raise RunFailed("the model cannot join")


def joins() -> list[Part]:
    """What the planner would have join."""
    parts = planner_of(chain_of().store, [chain_of().pool_file]).next_parts("tiny")
    return [part for part in parts if part.kind == "join"]
