"""The files of an encoder: what the model hub does not give, other weights and damaged settings are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from cabs_core.base.errors import EncoderError
from cabs_core.data.encoders.resolve import resolve
from cabs_core.data.pool_files.sections import Encoder


@pytest.mark.parametrize("message", ["", "no route to the hub\nand more lines"])
def test_encoder_that_cannot_be_downloaded_is_named(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    def fail(*names: Any, **options: Any) -> None:
        raise OSError(message)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(EncoderError, match="'somebody/encoder' is not in the local cache") as caught:
        resolve(Encoder(name="somebody/encoder"))
    assert "more lines" not in str(caught.value)


def test_the_checksum_is_that_of_the_published_weights_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *names, **options: str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # no package has the weights
    with pytest.raises(EncoderError, match="the weights are not the published ones"):
        resolve(Encoder(name="all-MiniLM-L6-v2"))
    found = resolve(Encoder(name="all-MiniLM-L6-v2", revision="my-branch"))
    assert found.weights == (tmp_path / "model.safetensors",)


@pytest.mark.parametrize("text", ["{", "3"])
def test_damaged_settings_of_pooling_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(text)
    with pytest.raises(EncoderError, match=r"1_Pooling/config\.json is no JSON object"):
        resolve(Encoder(name=str(tmp_path)))
