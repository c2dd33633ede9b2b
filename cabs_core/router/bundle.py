"""The bundle: a folder with everything from a prompt's text to a decision, without pickles.

    router.json       format, id, arms with costs, rho, encoder, exploration, provenance, files with SHA-256
    README.md         model card
    requirements.txt  packages for a machine that only serves the bundle (`requirements`)
    policy/           policy.json, state.npz
    oracles/          the predictors that the policy needs
    encoder/          ONNX graph and tokenizer of a transformer; arrays and settings of another encoder
    neighbours/       train prompts for explanations, unless they were left out
    seen.npy          hashes of the prompts on which the router was trained or chosen, for comparisons
    events.sqlite     copy of a log in memory, written by `Router.save`: its decisions may still be scored
    held_out.md       answer of the pool's report at the export, if there was one; compared with no hash
A bundle is written whole or not at all, and every other file is compared with its hash when the bundle is
opened. A bundle is never changed in place: what is learnt lies beside it (`learner`).
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cabs_core.base.atomic import Contents, atomic_directory
from cabs_core.base.errors import ProvenanceError, RouterError
from cabs_core.base.hashing import hash_file

FORMAT = 2
HEADER = "router.json"
SEEN = "seen.npy"
CARD = "README.md"
#: The answer of the pool's report at the time of the export, in words.
HELD_OUT = "held_out.md"
#: The files that any bundle may have.
ANY_BUNDLE = Contents(
    what="a router",
    marker=HEADER,
    names=(
        SEEN,
        CARD,
        HELD_OUT,
        "requirements.txt",
        "events.sqlite",
        "policy/*",
        "oracles/*",
        "encoder/*",
        "neighbours/*",
    ),
    keys=("files", "identity"),
)
#: Files that an export, a hub or its users put beside those of a bundle. They are not verified.
_UNVERIFIED = (HELD_OUT, "LICENSE", ".gitattributes")


@dataclass(frozen=True)
class Manifest:
    """Content of `router.json`.

    Attributes:
        pool: name of the pool from which the router was built.
        policy: name of the policy.
        rho: cost sensitivity at which the policy was chosen, score units per USD.
        rhos: the pool's grid of rho. A pacer moves rho up to twice the grid's range above its lowest value.
        arms: one dict per model: `name`, `mean_score` and `mean_cost` (USD a call) on the train split, and
            `free`, True if a cost of 0 is meant.
        fallback: model of largest mean utility on the train split. It answers in shadow mode, and in guarded
            mode until scores show that the policy earns more.
        encoder: settings of the encoder.
        identity: hash of the encoder's weights, tokenizer and settings.
        epsilon: share of uniform exploration over the available models.
        mode: `route`, `shadow` or `guarded`.
        evidence: difference in utility of the policy to the fallback on validation, paired by query: `mean`,
            `se`, `n`. Empty if nothing was measured on real outcomes.
        provenance: hashes of the inputs, replay settings and versions.
        files: {path in the folder: SHA-256}.
        id: hash of all files and settings. A bundle that is made again from the same inputs has the same id.
        format: version of the format.
    """

    pool: str
    policy: str
    rho: float
    rhos: list[float]
    arms: list[dict[str, Any]]
    fallback: str
    encoder: dict[str, Any]
    identity: str
    epsilon: float = 0.0
    mode: str = "route"
    evidence: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    id: str = ""
    format: int = FORMAT

    @cached_property
    def names(self) -> list[str]:
        """Names of the arms, in order."""
        return [arm["name"] for arm in self.arms]

    def digest(self) -> str:
        """Return the hash (16 hex characters) of all fields but `id`."""
        content = {k: v for k, v in asdict(self).items() if k != "id"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def write_bundle(folder: str | Path, manifest: dict[str, Any]) -> Iterator[Path]:
    """Yield an empty folder to fill. It becomes the bundle, with hashes and id, if the block raises nothing.

    Args:
        manifest: fields of `Manifest` but `files`, `id` and `format`.

    Raises:
        StorageError: the folder holds other files than a bundle. The folder stays as it is.
    """
    with atomic_directory(folder, contents_of(folder)) as temporary:
        yield temporary
        files = {
            path.relative_to(temporary).as_posix(): hash_file(path)
            for path in sorted(temporary.rglob("*"))
            if path.is_file()
        }
        draft = Manifest(**{**manifest, "files": files, "id": "", "format": FORMAT})
        content = asdict(draft) | {"id": draft.digest()}
        (temporary / HEADER).write_text(json.dumps(content, indent=1), encoding="utf-8")


def held_out_text(folder: str | Path) -> str:
    """Return the text of `held_out.md`: the answer of the pool's report when the router was exported.

    If the file is missing, return a sentence that says that there is no answer.
    """
    path = Path(folder) / HELD_OUT
    if path.is_file():
        return path.read_text(encoding="utf-8").strip()
    return "no answer of a report lies beside this router: the report of its pool may have one"


def contents_of(folder: str | Path) -> Contents:
    """Return the files of which a bundle at `folder` consists, so that no other file there is ever replaced.

    If `router.json` cannot be read, the files are those of `ANY_BUNDLE`.
    """
    try:
        data = json.loads((Path(folder) / HEADER).read_text(encoding="utf-8"))
        return replace(ANY_BUNDLE, names=(HELD_OUT, *data["files"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ANY_BUNDLE


def read_manifest(folder: str | Path, *, verify: bool = True) -> Manifest:
    """Return the manifest of a bundle.

    Args:
        verify: True compares every file with its hash as well. The header is compared with its id always.

    Raises:
        ProvenanceError: there is no bundle, it has another format, or a file is missing, altered or not
            listed. The error names the file. Files of `_UNVERIFIED` need not be listed.
    """
    folder = Path(folder)
    path = folder / HEADER
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
    except FileNotFoundError:
        raise ProvenanceError(
            f"there is no router at {folder}: make one with `cabs export --pool NAME --out {folder}`"
        ) from None
    except (OSError, ValueError) as error:
        raise ProvenanceError(
            f"{folder} holds no readable router ({error}): make one with `cabs export --pool NAME --out "
            f"{folder}`"
        ) from None
    if data.get("format") != FORMAT:
        is_newer = isinstance(data.get("format"), int) and data["format"] > FORMAT
        if is_newer:
            advice = "update this software"
        else:
            advice = "export the router again"
        raise ProvenanceError(
            f"{path} has format {data.get('format')!r}, and this version reads format {FORMAT}: {advice}"
        )
    try:
        manifest = Manifest(**data)
    except TypeError as error:
        raise ProvenanceError(f"{path}: {error}: export the router again") from None
    if manifest.digest() != manifest.id:
        raise ProvenanceError(f"{path} was altered after it was written: export the router again")
    if verify:
        _verify(folder, manifest)
    return manifest


def _verify(folder: Path, manifest: Manifest) -> None:
    """Raise ProvenanceError unless the files of a bundle are those of its manifest, each with its hash."""
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {HEADER}
    for name, digest in manifest.files.items():
        path = folder / name
        if folder.resolve() not in path.resolve().parents:
            raise ProvenanceError(f"{folder}/{HEADER} names a file outside the bundle: {name!r}")
        if name not in files:
            raise ProvenanceError(f"{path} is missing: export the router again")
        if hash_file(path) != digest:
            raise ProvenanceError(f"{path} was altered since the bundle was written: export the router again")
    files -= {name for name in files if name in _UNVERIFIED or name.startswith(".cache/huggingface/")}
    extra = sorted(files - set(manifest.files))
    if extra:
        raise ProvenanceError(f"{folder} holds {extra[0]!r}, which is no part of the bundle: take it away")


def prompt_hashes(prompts: Sequence[str]) -> np.ndarray:
    """Return the BLAKE2b hash with `digest_size=8` of every text in UTF-8, `[n]` uint64, little-endian."""
    digests = [hashlib.blake2b(p.encode("utf-8", "surrogatepass"), digest_size=8).digest() for p in prompts]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def seen_prompts(folder: str | Path) -> np.ndarray:
    """Return the sorted hashes `[m]` of the prompts on which a bundle was trained or chosen.

    The array is empty if the bundle does not list them.
    """
    path = Path(folder) / SEEN
    return np.load(path, allow_pickle=False) if path.is_file() else np.zeros(0, dtype="<u8")


def check_mode(mode: str, epsilon: float) -> None:
    """Raise RouterError unless the mode exists and epsilon is in [0, 1], above 0 in mode `guarded`."""
    if mode not in ("route", "shadow", "guarded"):
        raise RouterError(f"mode {mode!r}: expected route, shadow or guarded")
    if not 0.0 <= epsilon <= 1.0:
        raise RouterError(f"epsilon {epsilon}: expected a share in [0, 1]")
    if mode == "guarded" and epsilon == 0.0:
        raise RouterError("mode guarded needs epsilon > 0: without exploration there is no evidence")
