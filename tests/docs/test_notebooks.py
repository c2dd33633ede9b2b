"""Every notebook of the documentation runs from its first cell to its last, and holds no outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
pytest.importorskip("ipykernel", reason="needs the extra dev")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    monkeypatch.setenv("NOTEBOOK_FOLDER", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    NotebookClient(notebook, timeout=400, resources={"metadata": {"path": str(tmp_path)}}).execute()
    output = "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))
    assert len(output.splitlines()) >= 3
