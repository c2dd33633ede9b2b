"""Two tiny encoders, made once for all tests of encoders."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_encoders import small_bert, small_deberta


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    return small_bert(tmp_path_factory.mktemp("encoder") / "bert")


@pytest.fixture(scope="session")
def tiny_deberta(tmp_path_factory) -> Path:
    return small_deberta(tmp_path_factory.mktemp("encoder") / "deberta")
