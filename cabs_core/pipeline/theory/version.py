"""Code version of the theory page, known without loading what draws it."""

from pathlib import Path

from cabs_core.pipeline.artifacts.code_versions import code_version


def theory_code_version() -> str:
    """Hash of the experiments, the page and its template."""
    template = Path(__file__).parent / "templates" / "theory.html.j2"
    modules = tuple(f"cabs_core.pipeline.theory.{name}" for name in ("bandit", "experiments", "page"))
    return code_version(modules, files=[template])
