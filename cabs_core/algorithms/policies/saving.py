"""Files of a policy: policy.json (who it is), state.npz (what it has learnt); nothing taken on trust.

A saved policy is read in this order: the header, checked field by field; the shapes and kinds of all arrays,
which stand in front of their bytes, against what the class expects for these arms, features and options; only
then the arrays themselves, checked for range and finiteness. A damaged or foreign file is refused at once.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cabs_core.algorithms.policies import checks
from cabs_core.algorithms.policies.ledger import Ledger
from cabs_core.base.atomic import Contents, atomic_directory
from cabs_core.base.errors import CabsError, PolicyError, ProvenanceError, first_fault

FORMAT = 1
HEADER, ARRAYS = "policy.json", "state.npz"
CONTENTS = Contents(
    "a saved policy",
    HEADER,
    (ARRAYS, "predictor/predictor.json", "predictor/predictor.npz"),
    ("name", "arms"),
)
#: arrays of the ledger, beside those of the class
_PLACES, _BITS = "learnt_places", "learnt_bits"

_Count = Annotated[int, Field(ge=0, le=checks.MOST_ROUNDS)]
_Key = Annotated[int, Field(ge=0, lt=2**64)]
_Token = Annotated[str, Field(pattern=r"^[0-9a-f]{16,32}$")]


class Header(BaseModel):
    """policy.json."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    format: int
    name: str
    arms: list[str]
    dim: _Count
    rho: float
    horizon: _Count | None
    round: _Count
    share: float
    keys: list[Annotated[list[_Key], Field(min_length=2, max_length=2)]]
    options: dict[str, Any]
    values: dict[str, Any]
    router: _Token
    version: _Count
    since: dict[str, _Count]
    learnt_by: list[_Token]


class Saved:
    """A saved policy that is being read: its header now, its arrays once the class has said what they are."""

    def __init__(self, folder: Path, header: Header):
        self.folder, self.header = folder, header
        self.ledger = Ledger()

    def arrays(self, policy: Any) -> dict[str, np.ndarray]:
        """The class's arrays, checked; PolicyError where one is absent, foreign or not as expected."""
        where = f"{self.folder / ARRAYS}"
        with zipfile.ZipFile(self.folder / ARRAYS) as stored:
            shapes = _shapes(where, stored)
            fields = _present(where, policy, set(shapes) - {_PLACES, _BITS})
            sizes: dict[str, int] = {}
            for name, field in fields.items():
                checks.resolved(where, name, shapes[name], field, sizes)
            checks.check_size(where, {n: checks.Field(shapes[n]) for n in fields})
            arrays = {name: _array(stored, name) for name in shapes}
        places, bits = arrays.pop(_PLACES), arrays.pop(_BITS)
        if places.dtype != np.int64 or bits.dtype != np.uint8:
            raise PolicyError(f"{where}: {_PLACES} and {_BITS} are {places.dtype} and {bits.dtype}")
        self.ledger = Ledger.restore(self.header.learnt_by, places, bits)
        return sound(where, policy, arrays)


def sound(where: str, policy: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a state of this policy, each as its class expects it; PolicyError otherwise."""
    checked = checks.fitting(where, arrays, _present(where, policy, set(arrays)))
    policy.check_state(where, checked)
    return checked


def _present(where: str, policy: Any, names: set[str]) -> dict[str, checks.Field]:
    """The fields of the policy's state: those that always are, and the optional groups that are there."""
    fields = dict(policy.layout())
    for group in policy.optional_layouts():
        if names & set(group):
            fields |= group
    if names != set(fields):
        absent, foreign = sorted(set(fields) - names), sorted(names - set(fields))
        raise PolicyError(f"{where}: arrays absent: {absent[:8]}, not of this policy: {foreign[:8]}")
    return fields


def _shapes(where: str, stored: zipfile.ZipFile) -> dict[str, tuple[int, ...]]:
    """{name: shape} from the headers alone; ValueError for an entry that is no .npy of the stated size."""
    shapes: dict[str, tuple[int, ...]] = {}
    for entry in stored.infolist():
        name = entry.filename.removesuffix(".npy")
        if name in shapes or name == entry.filename:
            raise ValueError(f"unexpected entry {checks.excerpt(entry.filename, 60)!r}")
        with stored.open(entry) as file:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, _, dtype = read[version](file)
            if (
                dtype.hasobject
                or dtype.itemsize * int(np.prod(shape, dtype=object)) != entry.file_size - file.tell()
            ):
                raise ValueError(f"{name} does not have the size that its header states")
        shapes[name] = shape
    return shapes


def _array(stored: zipfile.ZipFile, name: str) -> np.ndarray:
    with stored.open(f"{name}.npy") as file:
        return np.array(np.lib.format.read_array(file, allow_pickle=False), order="C")


def read_header(folder: str | Path) -> dict[str, Any]:
    """policy.json as it is; ProvenanceError where there is none or it is no policy of a known format."""
    path = Path(folder) / HEADER
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise ValueError("it names no policy")
        if header.get("format") != FORMAT or isinstance(header["format"], (bool, float)):
            raise ValueError(f"format {header.get('format')!r}, this version reads {FORMAT}")
    except Exception as error:  # damaged bytes raise anything
        raise ProvenanceError(f"{path}: cannot be read as a saved policy ({checks.excerpt(error)})") from None
    return header


def save(policy: Any, folder: str | Path) -> Path:
    """Write a `SafePolicy` into `folder`, replaced as a whole.

    Raises:
        PolicyError: the state is not sound; what was saved before stays.
        StorageError: the folder holds anything but a saved policy; it stays as it is.
    """
    algorithm = policy.algorithm
    state, values = algorithm.state()
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in state.items()}
    sound(f"{policy.name}: not saved", algorithm, arrays)
    learnt_by, places, bits = policy.learnt.arrays()
    header = {
        "format": FORMAT,
        "name": policy.name,
        "arms": policy.arms,
        "dim": algorithm.dim,
        "rho": policy.rho,
        "horizon": algorithm.horizon,
        "round": policy.round,
        "share": algorithm.share,
        "keys": [[int(x) for x in row] for row in algorithm.keys],
        "options": policy.settings.model_dump(mode="json"),
        "values": values,
        "router": policy.router,
        "version": policy.version,
        "since": policy.since,
        "learnt_by": learnt_by,
    }
    with atomic_directory(folder, CONTENTS) as temporary:
        (temporary / HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")
        with open(temporary / ARRAYS, "wb") as handle:
            np.savez(handle, **arrays | {_PLACES: places, _BITS: bits})
        algorithm.save_parts(temporary)
    return Path(folder)


def load(cls: Any, folder: str | Path) -> tuple[Any, Saved]:
    """The algorithm that `save` wrote into `folder`, and the rest; ProvenanceError for anything else."""
    folder = Path(folder)
    raw = read_header(folder)
    try:
        header = Header.model_validate(raw)
        saved = Saved(folder, header)
        policy = cls(
            header.name,
            arms=header.arms,
            dim=header.dim,
            rho=header.rho,
            horizon=header.horizon,
            binary_share=header.share,
            keys=np.array(header.keys, dtype=np.uint64),
            options=header.options,
            saved=saved,
        )
    except ValidationError as error:
        raise ProvenanceError(f"{folder / HEADER}: {first_fault(error)[0]}") from None
    except CabsError as error:
        raise ProvenanceError(f"{folder}: not a sound saved policy: {checks.excerpt(error, 400)}") from None
    except Exception as error:  # damaged bytes raise anything
        raise ProvenanceError(
            f"{folder}: cannot be read as a saved policy ({type(error).__name__}: {checks.excerpt(error)})"
        ) from None
    policy.load_parts(folder)
    return policy, saved
