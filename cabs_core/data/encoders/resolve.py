"""Find and check the files of an encoder by its name, and compute the identity of its embeddings.

The identity is a hash of everything on which the embeddings depend (weights, tokenizer, pooling, lengths,
numeric type). Two pools share embeddings exactly if they may, wherever the files lie.
"""

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

from cabs_core.base.catalog.encoders import EncoderRecord, encoder_record, encoders
from cabs_core.base.errors import EncoderError
from cabs_core.base.hashing import hash_file
from cabs_core.data.pool_files.sections import Encoder

FORMAT = 1
_SMALL_FILES = ["*.json", "*.model", "*.txt", "1_Pooling/*"]


@dataclass(frozen=True)
class EncoderFiles:
    """A transformer encoder on disk.

    Attributes:
        name: name of the encoder as the user wrote it.
        folder: folder with config, tokenizer and weights.
        weights: files of weights; safetensors if there are any, else files of torch.
        pooling: 'mean' (with the attention mask), or 'cls' if the model's own `1_Pooling` says so.
    """

    name: str
    folder: Path
    weights: tuple[Path, ...]
    pooling: str

    def identity(self, encoder: Encoder, dtype: str) -> str:
        """Return a hash of 16 hex characters of the files and of the settings that change the embeddings.

        Args:
            encoder: settings of the pool.
            dtype: numeric type in which the embeddings are computed.
        """
        digest = hashlib.sha256()
        settings = {
            "format": FORMAT,
            "pooling": self.pooling,
            "normalize": encoder.normalize,
            "max_length": encoder.max_length,
            "dtype": dtype,
        }
        digest.update(json.dumps(settings, sort_keys=True).encode())
        small = [p for p in sorted(self.folder.iterdir()) if p.suffix in (".json", ".model", ".txt")]
        for path in (*small, *self.weights):
            digest.update(path.name.encode() + bytes.fromhex(hash_file(path)))
        return digest.hexdigest()[:16]


def resolve(encoder: Encoder) -> EncoderFiles:
    """Find the files of a transformer encoder: local folder, offline package, or model hub (and its cache).

    A name that is no short name and is a folder stands for that folder. The package of a short name comes
    before the hub, unless a revision is given. The checksum of an encoder's record is that of its published
    weights, so it is not compared for another revision.

    Raises:
        EncoderError: the encoder is not found, it is not in the cache and the hub cannot be reached, there
            are no weights that can be read safely, the weights do not have the checksum of the encoder's
            record, or a revision is given for a local folder.
    """
    name = encoder.name
    record = encoder_record(name) or EncoderRecord(name, "", hub_id=name)
    local = Path(name).expanduser()
    if name not in encoders() and local.is_dir():
        if encoder.revision:
            raise EncoderError(
                f"encoder {name!r} is a local folder: it has no revision; remove encoder.revision"
            )
        return transformer_files(name, local)
    if encoder.revision is not None:
        return transformer_files(name, _from_hub(name, record, encoder.revision))
    if record.package:
        spec = importlib.util.find_spec(record.package)
        if spec is not None and spec.submodule_search_locations:
            folder = Path(next(iter(spec.submodule_search_locations))) / "model"
            return transformer_files(name, folder, record.sha256)
    return transformer_files(name, _from_hub(name, record, None), record.sha256)


def _from_hub(name: str, record: EncoderRecord, revision: str | None) -> Path:
    """Return the folder of an encoder in the hub's cache, after downloading the files that are missing.

    Raises:
        EncoderError: the files are not in the cache and cannot be downloaded.
    """
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (only for the hub)
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415  (only for the hub)

    try:
        folder = Path(
            snapshot_download(
                record.hub_id, revision=revision, allow_patterns=[*_SMALL_FILES, "*.safetensors"]
            )
        )
        if not list(folder.glob("*.safetensors")):
            # older models publish only a torch file, which is read with weights_only (no code is run)
            folder = Path(
                snapshot_download(
                    record.hub_id, revision=revision, allow_patterns=[*_SMALL_FILES, "pytorch_model.bin"]
                )
            )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        at = f" at revision {revision!r}" if revision else ""
        if record.package:
            hint = " pip install 'cabs-routing[offline-encoder]' has it without a network;"
        else:
            hint = ""
        reason = str(error).partition("\n")[0][:200]
        raise EncoderError(
            f"encoder {name!r}{at} is not in the local cache and cannot be downloaded from the model hub "
            f"({type(error).__name__}: {reason});{hint} or give a local folder "
            f"with config.json, tokenizer and model.safetensors. Short names: {', '.join(encoders())}"
        ) from None
    return folder


def transformer_files(name: str, folder: Path, pin: str = "") -> EncoderFiles:
    """Return the files of the transformer in a folder.

    Args:
        name: name of the encoder, for messages.
        folder: folder with config, tokenizer and weights.
        pin: expected SHA-256 of the first file of weights. If it is empty, any weights will do.

    Raises:
        EncoderError: the folder holds no transformer, no weights, or weights with another hash than the pin.
    """
    if not (folder / "config.json").is_file():
        raise EncoderError(
            f"encoder {name!r}: {folder} has no config.json, so it is not a transformer's folder: name the "
            "folder that holds config.json, tokenizer and weights"
        )
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not weights:
        raise EncoderError(
            f"encoder {name!r}: {folder} has no *.safetensors and no pytorch_model.bin: save the model with "
            "its weights"
        )
    digest = hash_file(weights[0]) if pin else ""
    if digest != pin:
        raise EncoderError(
            f"encoder {name!r}: {weights[0]} has SHA-256 {digest}, expected {pin}: the weights are not the "
            "published ones. Install or download them again"
        )
    return EncoderFiles(name, folder, tuple(weights), _pooling(folder))


def _pooling(folder: Path) -> str:
    """Return 'cls' if the model's sentence-transformers settings say so, else 'mean'.

    Raises:
        EncoderError: the settings are no JSON object.
    """
    path = folder / "1_Pooling" / "config.json"
    if path.is_file():
        try:
            settings = dict(json.loads(path.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise EncoderError(
                f"{path} is no JSON object ({error}): get it from the model's publisher, or delete it to use "
                "the mean of a text's tokens"
            ) from None
        if settings.get("pooling_mode_cls_token") or settings.get("pooling_mode") == "cls":
            return "cls"
    return "mean"
