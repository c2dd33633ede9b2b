"""Code version of the theory page, known without loading what draws it."""

from __future__ import annotations

from pathlib import Path

from cabs_core.pipeline.artifacts.code_versions import code_version


def theory_code_version() -> str:
    """Hash of the experiments, the page and its template."""
    template = Path(__file__).parent / "templates" / "theory.html.j2"
    return code_version(
        ("cabs_core.pipeline.theory.experiments", "cabs_core.pipeline.theory.page"), files=[template]
    )
