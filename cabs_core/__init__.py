"""Correlation-aware contextual bandits with surrogate rewards for LLM routing: the library.

    from cabs_core import build_policy, load_outcomes, paired_difference, replay_many, ...

Seven doors, lowest first: `base` (errors, files, the utility, the catalog), `data` (what was asked, answered,
scored and logged), `algorithms` (who decides), `evaluation` (how good it is), `router` (a policy that decides
for texts, saved), `report` (what people read), `pipeline` (what is made when). A door imports from those
before it only.

These names are the public interface (docs/api.md), and so is `cabs_core.evaluation.replay.replay`; everything
below `cabs_core.*` that is not among them may change between releases. Each is imported when it is first
used: `import cabs_core` loads neither NumPy nor torch, and nothing here ever imports dagster.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

#: public name -> the module that holds it, as the stub beside this file says to type checkers
_PUBLIC = {
    name.name: str(line.module)
    for line in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(line, ast.ImportFrom)
    for name in line.names
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
