"""What is made before the gauntlet is played: routers of a small pool, and a virtual environment with the
clients."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from cabs_core.base.atomic import write_text
from cabs_core.data.pool_files import ModelPool
from cabs_core.router.build import build_bundle
from cabs_core.router.requirements import OWN

from .stage import ROOT

#: policies of the routers: one that serves any rho, and one that learns
POLICIES = ("carrot", "hier_mix")
REQUIREMENTS = Path(__file__).parent / "requirements.txt"


def make_routers(folder: Path) -> Path:
    """Bundles of the small pool of the router's own tests, named by their policies."""
    if str(ROOT / "tests") not in sys.path:
        sys.path.append(str(ROOT / "tests"))
    from small_router import POOL, make_artifacts

    pool = ModelPool.model_validate(POOL)
    made = make_artifacts(folder / "artifacts", pool)
    for policy in POLICIES:
        build_bundle(folder / policy, pool, made, policy=policy, rho=300.0, epsilon=0.1)
    return folder


def ready(folder: Path, router: Path) -> Path:
    """Its Python: a virtual environment that holds what a router lists for serving, and the clients; made
    anew where lists changed."""
    serving = [
        line for line in (router / "requirements.txt").read_text().splitlines() if not line.startswith(OWN)
    ]
    stamp = hashlib.sha256("\n".join([*serving, REQUIREMENTS.read_text(), sys.version]).encode()).hexdigest()
    python, mark = folder / "bin" / "python", folder / "stamp"
    if mark.is_file() and mark.read_text() == stamp:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    write_text(folder / "serving.txt", "\n".join(serving))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "-r", str(folder / "serving.txt")], check=True)
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    write_text(mark, stamp)
    return python
