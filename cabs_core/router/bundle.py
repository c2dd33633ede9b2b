"""The bundle: a folder with everything from a prompt's text to a decision, without pickles.

    router.json   format, id, arms with prices, rho, encoder, how it explores, provenance, files with SHA-256
    README.md     model card
    requirements.txt  what a machine installs that only serves it (`requirements`)
    policy/       policy.json, state.npz
    oracles/      the predictors that the policy needs
    encoder/      the ONNX graph and tokenizer of a transformer; of another encoder its arrays and settings
    neighbours/   train prompts for explanations, unless they were left out
    seen.npy      hashes of the prompts that it was trained or chosen on: a comparison leaves them out
    events.sqlite a copy of a log that was in memory, where `Router.save` wrote it: which may still be scored

Written whole or not at all; every file is compared with its hash when the bundle is opened. Never changed in
place: what is learnt lies beside it (`learner`).
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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
#: what the pool's report said when the router was exported, in words
HELD_OUT = "held_out.md"
#: files that an export, a hub or its users put beside those of a bundle; they are not verified
_BESIDE = (HELD_OUT, "LICENSE", ".gitattributes")


@dataclass(frozen=True)
class Manifest:
    """What `router.json` says.

    Attributes:
        pool, policy, rho: what was replayed. rhos: the pool's grid, whose range is a budget's (`Pacer`).
        arms: one dict per arm: name, mean_score and mean_cost on the train split (USD), free: 0 is meant.
        fallback: the arm of largest mean utility on the train split; answers in shadow and guarded mode.
        epsilon: share of uniform exploration over the available arms. mode: route, shadow or guarded.
        encoder: settings; identity: hash of weights, tokenizer and settings.
        evidence: paired difference of the policy to the fallback on validation: mean, se, n; empty for a log.
        provenance: hashes of what it was made from, replay settings, versions.
        id: hash of all files and settings; a bundle made again from the same inputs has the same id.
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
        """Hash (16 hex characters) of everything but the id itself."""
        content = {k: v for k, v in asdict(self).items() if k != "id"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def writing(folder: str | Path, manifest: dict[str, Any]) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes the bundle, with hashes and id, when the block ends well."""
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
    """Return what the report said when the router was exported, or that nothing was said."""
    path = Path(folder) / HELD_OUT
    if path.is_file():
        return path.read_text(encoding="utf-8").strip()
    return "no answer of a report lies beside this router: the report of its pool may have one"


def contents_of(folder: str | Path) -> Contents:
    """What a bundle at `folder` consists of, so that nothing else that lies there is ever replaced."""
    try:
        data = json.loads((Path(folder) / HEADER).read_text(encoding="utf-8"))
        files = (HELD_OUT, *data["files"])
    except (OSError, ValueError, KeyError, TypeError):  # damaged: what a bundle is made of
        parts = ("policy", "oracles", "encoder", "neighbours")
        files = (SEEN, CARD, HELD_OUT, "requirements.txt", "events.sqlite", *(f"{part}/*" for part in parts))
    return Contents("a router", HEADER, files, ("files", "identity"))


def read_manifest(folder: str | Path, *, verify: bool = True) -> Manifest:
    """The manifest of a bundle, after comparing every file with its hash.

    Raises:
        ProvenanceError: no bundle, another format, or a named file that is missing, altered or not listed.
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
        later = isinstance(data.get("format"), int) and data["format"] > FORMAT
        what = "update this software" if later else "export the router again"
        raise ProvenanceError(
            f"{path}: format {data.get('format')!r}, this version reads format {FORMAT}: {what}"
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
    files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} - {HEADER}
    for name, digest in manifest.files.items():
        path = folder / name
        if folder.resolve() not in path.resolve().parents:
            raise ProvenanceError(f"{folder}/{HEADER} names a file outside the bundle: {name!r}")
        if name not in files:
            raise ProvenanceError(f"{path} is missing: export the router again")
        if hash_file(path) != digest:
            raise ProvenanceError(f"{path} was altered since the bundle was written: export the router again")
    files -= {name for name in files if name in _BESIDE or name.startswith(".cache/huggingface/")}
    if extra := sorted(files - set(manifest.files)):
        raise ProvenanceError(f"{folder} holds {extra[0]!r}, which is no part of the bundle: take it away")


def prompt_hashes(prompts: Sequence[str]) -> np.ndarray:
    """`[n]` uint64, from BLAKE2b of each text."""
    digests = [hashlib.blake2b(p.encode("utf-8", "surrogatepass"), digest_size=8).digest() for p in prompts]
    return np.frombuffer(b"".join(digests), dtype="<u8")


def seen_prompts(folder: str | Path) -> np.ndarray:
    """Sorted hashes `[m]` of the prompts that a bundle was trained or chosen on."""
    path = Path(folder) / SEEN
    return np.load(path, allow_pickle=False) if path.is_file() else np.zeros(0, dtype="<u8")


def check_mode(mode: str, epsilon: float) -> None:
    """RouterError unless mode and epsilon fit together."""
    if mode not in ("route", "shadow", "guarded"):
        raise RouterError(f"mode {mode!r}: expected route, shadow or guarded")
    if not 0.0 <= epsilon <= 1.0:
        raise RouterError(f"epsilon {epsilon}: expected a share in [0, 1]")
    if mode == "guarded" and epsilon == 0.0:
        raise RouterError("mode guarded needs epsilon > 0: without exploration there is no evidence")
