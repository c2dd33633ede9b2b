"""Bundles: promoted, rolled back and damaged while requests come in."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from cabs_core.router.bundle import read_manifest
from cabs_core.router.promotion import promote, roll_back

from .play import Seen, behaviour
from .stage import Server, Stage, user, wait
from .state import Load


def _folder(stage: Stage, name: str, policy: str = "carrot") -> Path:
    folder = stage.folder / name / "router"
    folder.parent.mkdir()
    promote(stage.routers / policy, folder)
    return folder


def _serves(server: Server) -> str:
    return server.get("/healthz").json()["bundle"]


@behaviour(short=True)
def promoted_and_rolled_back(stage: Stage) -> Seen:
    """A second bundle is promoted and rolled back under load -> no request fails, each bundle decides in its
    turn"""
    folder = _folder(stage, "swapped")
    server = stage.fresh(folder)
    first = _serves(server)
    with Load(server) as load:
        time.sleep(0.5)
        second = promote(stage.routers / "hier_mix", folder)
        swapped = wait(lambda: _serves(server) == second)
        server.ask()
        roll_back(folder)
        back = wait(lambda: _serves(server) == first)
        time.sleep(0.5)
    bundles = {d.bundle for d in server.rows()}
    good = swapped and back and set(load.seen) == {"200"} and bundles == {first, second}
    good = bool(good)
    return (
        good,
        f"{dict(load.seen)}, promoted {bool(swapped)}, back {bool(back)}, {len(bundles)} bundles logged",
    )


@behaviour()
def scores_across_a_promotion(stage: Stage) -> Seen:
    """A decision of the old bundle is scored after a promotion -> recorded; the budget's spending goes on"""
    folder = _folder(stage, "scored")
    server = stage.fresh(folder, options=("--budget-cap-per-day", "1"))
    names = [server.ask(user(f"Question {i}")).headers["x-cabs-decision"] for i in range(5)]
    server.rows()
    spent = wait(lambda: server.metrics().get("cabs_cap_spent_usd"))
    second = promote(stage.routers / "hier_mix", folder)
    swapped = wait(lambda: _serves(server) == second)
    said = server.post("/v1/feedback", {"id": names[0], "score": 1.0}).json()["result"]
    after = server.metrics()["cabs_cap_spent_usd"]
    good = bool(swapped) and said == "recorded" and after >= spent > 0
    return good, f"{said}, spent {spent:.4f}, then {after:.4f} USD"


@behaviour()
def a_lost_folder(stage: Stage) -> Seen:
    """The bundle's folder disappears under a running server -> it serves on"""
    folder = _folder(stage, "lost")
    server = stage.fresh(folder)
    first = read_manifest(folder).id
    shutil.rmtree(folder)
    time.sleep(1.5)
    seen = {server.ask().status_code for _ in range(10)}
    return seen == {200} and _serves(server) == first, seen
