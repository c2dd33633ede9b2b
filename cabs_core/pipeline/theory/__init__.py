"""What the theorems predict, measured on generated bandits, and the page of it; the asset `theory` makes it.

What belongs here: `bandit` is generated and played, `experiments` measures on it and keeps the page as an
artifact, `page` draws it. What does not: policies on outcome tables, which `benchmarks/` compares.
"""

from pathlib import Path

from cabs_core.pipeline.artifacts.code_versions import code_version


def theory_code_version() -> str:
    """Hash of the experiments, the page and its template, known without loading any."""
    template = Path(__file__).parent / "templates" / "theory.html.j2"
    modules = [f"{__name__}.{name}" for name in ("bandit", "experiments", "page")]
    return code_version(modules, files=[template])
