"""The drift bench: the stream's halves, what stays known, quarters by hand; real snapshots where the data
are."""

from __future__ import annotations

import pytest

from benchmarks import drift


@pytest.mark.data
@pytest.mark.parametrize("delayed", [[], ["--delayed"]], ids=["at once", "delayed"])
def test_the_default_recovers_from_a_real_change(delayed, data_dir, cabs_home, monkeypatch, capsys):
    """gpt-4 falls from .84 to .50 on primes under its name: hier_mix comes near what it learns from June
    alone."""
    monkeypatch.setenv("CABS_DATA_DIR", str(data_dir))
    names = ("kernel_ridge", "hier_mix")
    figures = drift.main(argv=["--trials", "5", "--policies", *names, *delayed])
    assert set(figures) == set(names) and "| hier_mix |" in capsys.readouterr().out
    last = figures["hier_mix"]["utility"][-1]
    assert last > figures["hier_mix"]["from June"] - 0.05
    assert last > figures["kernel_ridge"]["utility"][-1] + 0.08
