"""The files of an encoder: an encoder that the model hub does not give is named in the error."""

from __future__ import annotations

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
