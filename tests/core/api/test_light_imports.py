"""What must be quick or small in memory imports nothing heavy, counted in modules and not in seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: what is done -> (code, modules that it must not load)
LIGHT = {
    "the package": ("import cabs_core", "numpy pandas torch dagster numba"),
    # 40 MB that a server does without
    "replay, router and server": (
        "import cabs_core.evaluation.replay.engine, cabs_core.router.router, cabs_server.app",
        "dagster scipy.stats scipy.optimize scipy.sparse torch",
    ),
    # 95 MB beside those of each worker
    "what watches workers": ("import cabs_server.main, cabs_server.start", "numba scipy cabs_server.app"),
    "the names of checks": (
        "from cabs_core.data.validation.catalog import checks_of_stage; checks_of_stage('outcomes')",
        "great_expectations sklearn pandas torch numpy",
    ),
    "the list of SQL models": (
        "from dbt_like_sql.runner import list_models; list_models()",
        "duckdb sqlglot pandas numpy",
    ),
    # `cabs plan` and the sensors answer in a second or two of processor, not in five
    "what is due": ("import cabs_dagster.due", "dagster pandas scipy.stats duckdb torch numba sklearn"),
    # a second of processor of each run that makes a report
    "the answer of a pool, its page and the traces that it shows": (
        "import cabs_core.pipeline.goal, cabs_core.report.build, cabs_core.evaluation.replay.storage",
        "numba llvmlite dagster torch",
    ),
    "cabs --help": (
        "from cabs_dagster.cli import main; main(['--help'], standalone_mode=False)",
        "dagster pydantic numpy yaml pandas torch altair",
    ),
}


@pytest.mark.parametrize("what", LIGHT)
def test_nothing_heavy_is_loaded(what: str) -> None:
    work, heavy = LIGHT[what]
    code = f"import sys\n{work}\nsys.exit(', '.join(m for m in {heavy.split()} if m in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
