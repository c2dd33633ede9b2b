"""State of a policy: checks of arrays and numbers, the ledger of learnt decisions, saved files.

Compiled code checks neither shapes nor types. Values from outside (a caller, a queue of decisions, a file)
therefore pass the checks of this module first. A `Field` states the shape, type and range of an array.
`array` returns a value that compiled code can take, or raises a PolicyError that names the fault; it takes
about a microsecond for a few hundred arms.

A saved policy is a folder with `policy.json` (name, arms, options) and `state.npz` (learnt arrays). No file
is taken on trust. `load` reads the header and checks every field. It then reads the shapes of all arrays,
which stand in front of their bytes, and compares them with what the class expects. Only then it reads the
arrays and checks their types and ranges.

Belongs here: shapes, types, ranges, finiteness, files. Elsewhere: which policy made a decision (`safe`).
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, ValidationError

from cabs_core.base.atomic import Contents, atomic_directory
from cabs_core.base.errors import CabsError, PolicyError, ProvenanceError, first_fault
from cabs_core.base.utility import LARGEST_INPUT

F8 = np.dtype(np.float64)
I8 = np.dtype(np.int64)
B1 = np.dtype(np.bool_)
#: largest rho, in score units per USD
RHO_LIMIT = 1e12
#: largest product of rho and a predicted cost
PRICE_LIMIT = LARGEST_INPUT * RHO_LIMIT
FINITE = float(np.finfo(np.float64).max)
POSITIVE = float(np.finfo(np.float64).tiny)
#: largest probability: 1, with room for rounding
ONE = 1.0 + 1e-9
#: largest `margin` of `SafePolicy.add_arm`
MOST_MARGIN = 10.0
#: largest round number; a round is part of the index of a random draw (`rng.uniform`)
MOST_ROUNDS = 2**43
_ndarray = np.ndarray


class Field(NamedTuple):
    """Requirements of one array.

    Attributes:
        shape: sizes. A name in place of a size stands for any size that is equal in all fields with the name.
            No field may have a name twice.
        low: least entry. None accepts every entry, NaN too, for arrays that no kernel computes with.
        high: largest entry.
        dtype: float64, int64 or bool.
    """

    shape: tuple[int | str, ...]
    low: float | None = -LARGEST_INPUT
    high: float = LARGEST_INPUT
    dtype: np.dtype = F8


def probabilities(*shape: int) -> Field:
    """Return the field of an array of probabilities, which bounds each entry by 0 and `ONE`, not the sum."""
    return Field(shape, 0.0, ONE)


def learnt(*shape: int | str, low: float = -FINITE, high: float = FINITE, dtype: np.dtype = F8) -> Field:
    """Return the field of a learnt array, whose entries are finite and lie from `low` to `high`."""
    return Field(shape, low, high, dtype)


def is_inside(values: np.ndarray, low: float, high: float) -> bool:
    """Return True if every entry of the array lies in [low, high], or there is no entry. NaN lies outside."""
    if not values.size:
        return True
    # `item(argmin())` finds an extreme, and NaN, in a tenth of the time of `min`
    least: float = values.item(values.argmin())
    return low <= least and bool(values.item(values.argmax()) <= high)


def is_distribution(values: np.ndarray) -> bool:
    """Return True if values [n] are probabilities whose sum is 1."""
    return is_inside(values, 0.0, ONE) and abs(sum(values.tolist()) - 1.0) < 1e-6


def array(where: str, what: str, value: Any, field: Field) -> np.ndarray:
    """Return the value as an array [`field.shape`] of the field's type, C-contiguous and writeable.

    An array that fits already is returned as it is. Other real numbers are converted into a copy, but a field
    of whole numbers takes whole numbers only, and a field of bools takes bools only. Text, complex numbers,
    dates and masked arrays are refused.

    Args:
        where: name of the policy or file, for the message. what: name of the value, for the message.

    Raises:
        PolicyError: the value does not fit the field.
    """
    shape, low, high, dtype = field
    if (
        type(value) is not _ndarray
        or value.dtype is not dtype
        or value.shape != shape
        or not value.flags.carray
    ):
        value = _converted(where, what, value, field)
    values: np.ndarray = value
    if low is None or (dtype is F8 and is_inside(values, low, high)):
        return values
    bad = np.argwhere(~((values >= low) & (values <= high)))
    if len(bad):
        place = tuple(int(i) for i in bad[0])
        raise PolicyError(f"{where}: {what}{list(place)} is {values[place]}, expected {_range(low, high)}")
    return values


def _range(low: float, high: float) -> str:
    """Return the text of a range of numbers, for a message."""
    if high != FINITE:
        return f"a number from {low:g} to {high:g}"
    if low == -FINITE:
        return "a finite number"
    return f"a finite number >= {low:g}"


def _converted(where: str, what: str, value: Any, field: Field) -> np.ndarray:
    """Return a copy of the value with the field's type; raise PolicyError if type or shape do not fit."""
    if (
        type(value) is _ndarray
        and value.dtype.kind == "f"
        and field.dtype is F8
        and value.shape == field.shape
    ):
        return np.array(value, dtype=F8, order="C")
    expected = f"expected {field.dtype.name} {list(field.shape)}"
    if isinstance(value, np.ma.MaskedArray):
        raise PolicyError(f"{where}: {what} is a masked array: {expected}; fill in what is masked")
    try:
        plain = np.asarray(value)
    except Exception as error:  # an array-like object can raise anything here
        raise PolicyError(f"{where}: {what} is no array ({type(error).__name__}): {expected}") from None
    kinds = {F8: "fiub", I8: "iu", B1: "b"}[field.dtype]
    if plain.dtype.kind not in kinds or plain.shape != field.shape:
        raise PolicyError(f"{where}: {what} has shape {list(plain.shape)} of {plain.dtype}: {expected}")
    return np.array(plain, dtype=field.dtype, order="C").view(np.ndarray)


def number(where: str, what: str, value: Any, low: float = -FINITE, high: float = FINITE) -> float:
    """Return the value as a float; raise PolicyError if it is no real number in [low, high].

    True and False count as 1 and 0. Text and arrays with dimensions are no numbers.
    """
    real: float = value
    if type(value) is not float:
        try:
            plain = isinstance(value, (float, int))
            if not plain and (
                isinstance(value, (str, bytes, bytearray)) or np.ndim(value) or np.iscomplexobj(value)
            ):
                raise TypeError
            real = float(value)
        except Exception:  # a number-like object can raise anything here
            real = math.nan
    if not low <= real <= high:
        raise PolicyError(f"{where}: {what} is {repr_of(value)}, expected {_range(low, high)}")
    return real


def whole_number(where: str, what: str, value: Any, low: int = 0, high: int = MOST_ROUNDS) -> int:
    """Return the value as an int; raise PolicyError if it is no whole number from low to high.

    True, 3.0 and '3' are no whole numbers.
    """
    if type(value) is int and low <= value <= high:
        return value
    if (
        isinstance(value, (bool, np.bool_))
        or not isinstance(value, (int, np.integer))
        or not low <= value <= high
    ):
        raise PolicyError(
            f"{where}: {what} is {repr_of(value)}, expected a whole number from {low} to {high}"
        )
    return int(value)


def excerpt(value: Any, most: int = 200) -> str:
    """Return the value as text of at most `most` characters; a longer text is cut and ends in `...`."""
    full = str(value)
    if len(full) <= most:
        return full
    return full[: most - 3] + "..."


def repr_of(value: Any) -> str:
    """Return `repr` of a value in at most 80 characters, or the name of its type if `repr` fails."""
    try:
        return excerpt(repr(value), 80)
    except Exception:
        return f"a {type(value).__name__}"


def names(where: str, values: Any) -> tuple[str, ...]:
    """Return names of arms as a tuple.

    Raises:
        PolicyError: `values` is a text or cannot be iterated, there is no name, or a name is empty, is no
            text or occurs twice.
    """
    try:
        if isinstance(values, (str, bytes)):
            arms = ()
        else:
            arms = tuple(values)
    except TypeError:
        arms = ()
    if not arms:
        raise PolicyError(f"{where}: arms {repr_of(values)}: expected a list of at least one name")
    if any(not isinstance(a, str) or not a for a in arms) or len(set(arms)) != len(arms):
        raise PolicyError(f"{where}: arms {repr_of(arms)}: expected at least one name, each once")
    return tuple(str(a) for a in arms)


def stream_keys_of(where: str, keys: Any) -> np.ndarray:
    """Return a copy of the keys of the random streams, uint64 [12 or more, 2] (`streams.stream_keys`).

    Raises:
        PolicyError: the keys have another shape or type, or a negative entry.
    """
    values = np.asarray(keys)
    if values.dtype.kind not in "iu" or values.ndim != 2 or values.shape[0] < 12 or values.shape[1] != 2:
        raise PolicyError(
            f"{where}: keys have shape {list(values.shape)} of {values.dtype}, expected uint64 [12, 2] as "
            "`streams.stream_keys` makes them"
        )
    if values.dtype.kind == "i" and (values < 0).any():
        raise PolicyError(f"{where}: keys must not be negative")
    return np.array(values, dtype=np.uint64, order="C")  # a copy, because `reseed` writes into it


def check_size(where: str, fields: Mapping[str, Field]) -> None:
    """Raise PolicyError if arrays of these fields take more bytes than this machine has memory in all.

    Sizes that a field gives by name count as 1. A system that does not say its memory counts as 64 GiB.
    """
    size = 8 * sum(math.prod(n for n in f.shape if isinstance(n, int)) for f in fields.values())
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = 2**36
    if size > memory:
        raise PolicyError(
            f"{where}: its state takes {size / 2**30:,.1f} GiB, this machine has {memory / 2**30:,.1f}; use "
            "fewer arms or features"
        )


def check_variances(where: str, name: str, matrices: np.ndarray) -> None:
    """Raise PolicyError if a diagonal entry of the covariances [..., d, d] is negative."""
    if matrices.size and not np.diagonal(matrices, axis1=-2, axis2=-1).min() >= 0.0:
        raise PolicyError(f"{where}: {name} has a negative variance on its diagonal")


def _fitting(
    where: str, arrays: Mapping[str, np.ndarray], fields: Mapping[str, Field]
) -> dict[str, np.ndarray]:
    """Return the arrays that have a field, each checked by it; raise PolicyError if an array does not fit."""
    sizes: dict[str, int] = {}
    checked = {}
    for name, field in fields.items():
        shape = _resolved_shape(where, name, np.shape(arrays[name]), field, sizes)
        checked[name] = array(where, name, arrays[name], field._replace(shape=shape))
    return checked


def _resolved_shape(
    where: str, name: str, shape: Sequence[int], field: Field, sizes: dict[str, int]
) -> tuple[int, ...]:
    """Return the field's shape with numbers in place of named sizes; raise PolicyError if `shape` differs.

    Args:
        sizes: numbers of the named sizes that are known. Sizes named here for the first time are added.
    """
    resolved = []
    for i, size in enumerate(field.shape):
        actual = shape[i] if i < len(shape) else -1
        resolved.append(size if isinstance(size, int) else sizes.get(size, actual))
    if tuple(shape) != tuple(resolved):
        raise PolicyError(f"{where}: {name} has shape {list(shape)}, expected {list(field.shape)}")
    sizes.update({size: shape[i] for i, size in enumerate(field.shape) if isinstance(size, str)})
    return tuple(resolved)


# -- which decisions were learnt -----------------------------------------------------------------------------

#: rounds of a page of the ledger
PAGE = 1024
_PAGE_BYTES = PAGE // 8


class Ledger:
    """Set of learnt decisions, each named by (instance, round).

    Feedback queues deliver at least once. A router therefore keeps, with its state, which decisions it has
    learnt, so that no reward counts twice. The set is kept as bits in pages of 1,024 rounds. A page exists
    only if a decision of its rounds was learnt: a million rewards take about 200 kB, and a forged round
    number costs at most one page.
    """

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int], int] = {}

    def __contains__(self, key: tuple[str, int]) -> bool:
        """Return True if the decision (instance, round) has been learnt."""
        instance, round_number = key
        page = self._pages.get((instance, round_number // PAGE))
        return page is not None and bool(page >> (round_number % PAGE) & 1)

    def __len__(self) -> int:
        """Return the number of learnt decisions."""
        return sum(page.bit_count() for page in self._pages.values())

    def add(self, instance: str, round_number: int) -> None:
        """Record that this instance's decision of this round has been learnt.

        A second call for the decision changes nothing.
        """
        key = (instance, round_number // PAGE)
        self._pages[key] = self._pages.get(key, 0) | 1 << round_number % PAGE

    def arrays(self) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Return the ledger as arrays for `restore`.

        Returns:
            The instances; int64 [P, 2] with the place of the instance and the number of each page; uint8
            [P, 128] with the bits of each page.
        """
        keys = sorted(self._pages)
        instances = sorted({instance for instance, _ in keys})
        number_of = {instance: i for i, instance in enumerate(instances)}
        places = np.array([(number_of[i], page) for i, page in keys], dtype=np.int64).reshape(-1, 2)
        bits = b"".join(self._pages[key].to_bytes(_PAGE_BYTES, "little") for key in keys)
        return instances, places, np.frombuffer(bits, dtype=np.uint8).reshape(-1, _PAGE_BYTES)

    @classmethod
    def restore(cls, instances: list[str], places: np.ndarray, bits: np.ndarray) -> Ledger:
        """Return the ledger whose `arrays` these are; raise ValueError if they contradict each other."""
        if places.ndim != 2 or places.shape[1] != 2 or bits.shape != (len(places), _PAGE_BYTES):
            raise ValueError(f"learnt decisions: places {places.shape} and bits {bits.shape} do not fit")
        if len(places) and not (
            places.min() >= 0
            and places[:, 0].max() < len(instances)
            and len(np.unique(places, axis=0)) == len(places)
        ):
            raise ValueError("learnt decisions: places out of range or twice the same")
        ledger = cls()
        for (instance, page), row in zip(places.tolist(), bits, strict=True):
            ledger._pages[instances[instance], page] = int.from_bytes(row.tobytes(), "little")
        return ledger


# -- files -----------------------------------------------------------------------------------------------

FORMAT = 1
HEADER = "policy.json"
ARRAYS = "state.npz"
CONTENTS = Contents(
    "a saved policy",
    HEADER,
    (ARRAYS, "predictor/predictor.json", "predictor/predictor.npz"),
    ("name", "arms"),
)
#: names of the ledger's arrays in `state.npz`
_PLACES = "learnt_places"
_BITS = "learnt_bits"

_Count = Annotated[int, pydantic.Field(ge=0, le=MOST_ROUNDS)]
_Key = Annotated[int, pydantic.Field(ge=0, lt=2**64)]
_Token = Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{16,32}$")]


class Header(BaseModel):
    """Content of `policy.json`.

    Attributes:
        format: number of the format of the files. name: name of the policy, with its preset.
        arms: names of the arms. dim: number of features. rho: cost sensitivity. horizon: expected rounds.
        round: number of decisions so far. share: how binary the scores are, from 0 to 1
            (`base.utility.binary_share`).
        keys: keys of the random streams. options: the policy's options. values: part of the policy's state
            that is no array.
        router: id of the router. version: how often its arms have changed. since: {arm: version in which the
            arm joined}. learnt_by: the instances in the ledger of learnt decisions.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    format: int
    name: str
    arms: list[str]
    dim: _Count
    rho: float
    horizon: _Count | None
    round: _Count
    share: float
    keys: list[Annotated[list[_Key], pydantic.Field(min_length=2, max_length=2)]]
    options: dict[str, Any]
    values: dict[str, Any]
    router: _Token
    version: _Count
    since: dict[str, _Count]
    learnt_by: list[_Token]


class Saved:
    """A saved policy that is being read.

    Attributes:
        folder: folder of the saved policy. header: content of `policy.json`.
        ledger: the policy's learnt decisions, empty until `arrays` was called.
    """

    def __init__(self, folder: Path, header: Header):
        self.folder = folder
        self.header = header
        self.ledger = Ledger()

    def arrays(self, policy: Any) -> dict[str, np.ndarray]:
        """Return the learnt arrays, checked by the policy's `layout`; fill `ledger`.

        Raises:
            PolicyError: an array of the policy is absent, belongs to another policy, or has an unexpected
                shape, type or entry.
            Exception: `state.npz` or the ledger in it is absent or damaged. The type depends on the damage;
                `load` turns every type into a ProvenanceError.
        """
        where = f"{self.folder / ARRAYS}"
        with zipfile.ZipFile(self.folder / ARRAYS) as stored:
            shapes = _stored_shapes(stored)
            fields = _expected_fields(where, policy, set(shapes) - {_PLACES, _BITS})
            sizes: dict[str, int] = {}
            for name, field in fields.items():
                _resolved_shape(where, name, shapes[name], field, sizes)
            check_size(where, {name: Field(shapes[name]) for name in fields})
            arrays = {name: _stored_array(stored, name) for name in shapes}
        places = arrays.pop(_PLACES)
        bits = arrays.pop(_BITS)
        if places.dtype != np.int64 or bits.dtype != np.uint8:
            raise PolicyError(f"{where}: {_PLACES} and {_BITS} are {places.dtype} and {bits.dtype}")
        self.ledger = Ledger.restore(self.header.learnt_by, places, bits)
        return checked_state(where, policy, arrays)


def checked_state(where: str, policy: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a state, each checked and converted by its field in the policy's `layout`.

    Raises:
        PolicyError: an array is absent, is not the policy's, does not fit its field, or contradicts another.
    """
    checked = _fitting(where, arrays, _expected_fields(where, policy, set(arrays)))
    policy.check_state(where, checked)
    return checked


def _expected_fields(where: str, policy: Any, present: set[str]) -> dict[str, Field]:
    """Return the fields of the policy's state: all of `layout`, and optional groups that are present.

    Args:
        present: names of the arrays of the state.

    Raises:
        PolicyError: the names of the fields are others than these.
    """
    fields = dict(policy.layout())
    for group in policy.optional_layouts():
        if present & set(group):
            fields |= group
    if present != set(fields):
        absent = sorted(set(fields) - present)
        foreign = sorted(present - set(fields))
        raise PolicyError(f"{where}: arrays absent: {absent[:8]}, not of this policy: {foreign[:8]}")
    return fields


def _stored_shapes(stored: zipfile.ZipFile) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of all arrays, read from their headers alone.

    Raises:
        ValueError: an entry is no `.npy` file, occurs twice, holds Python objects, or has another size than
            its header states.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for entry in stored.infolist():
        name = entry.filename.removesuffix(".npy")
        if name in shapes or name == entry.filename:
            raise ValueError(f"unexpected entry {excerpt(entry.filename, 60)!r}")
        with stored.open(entry) as file:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, _, dtype = read[version](file)
            stated = dtype.itemsize * int(np.prod(shape, dtype=object))
            if dtype.hasobject or stated != entry.file_size - file.tell():
                raise ValueError(f"{name} does not have the size that its header states")
        shapes[name] = shape
    return shapes


def _stored_array(stored: zipfile.ZipFile, name: str) -> np.ndarray:
    """Return one array of the file, in C order."""
    with stored.open(f"{name}.npy") as file:
        return np.array(np.lib.format.read_array(file, allow_pickle=False), order="C")


def read_header(folder: str | Path) -> dict[str, Any]:
    """Return the content of `policy.json`, unchecked but for its name and format.

    Raises:
        ProvenanceError: the file is absent or damaged, names no policy, or has another format.
    """
    path = Path(folder) / HEADER
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise ValueError("it names no policy")
        if header.get("format") != FORMAT or isinstance(header["format"], (bool, float)):
            raise ValueError(f"format {header.get('format')!r}, this version reads {FORMAT}")
    except Exception as error:  # damaged bytes raise anything
        raise ProvenanceError(f"{path}: cannot be read as a saved policy ({excerpt(error)})") from None
    return header


def save(policy: Any, folder: str | Path) -> Path:
    """Write a `SafePolicy` into a folder, which is replaced as a whole, and return the folder's path.

    Raises:
        PolicyError: the state does not fit the policy's `layout`. The folder stays as it is.
        StorageError: the folder holds anything but a saved policy. The folder stays as it is.
    """
    algorithm = policy.algorithm
    state, values = algorithm.state()
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in state.items()}
    checked_state(f"{policy.name}: not saved", algorithm, arrays)
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
    """Return the algorithm of class `cls` that `save` wrote into a folder, and the rest of the saved policy.

    Raises:
        ProvenanceError: the folder holds no saved policy of this class, or a damaged file.
    """
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
        policy.load_parts(folder)
    except ValidationError as error:
        raise ProvenanceError(f"{folder / HEADER}: {first_fault(error)[0]}") from None
    except CabsError as error:
        raise ProvenanceError(f"{folder}: not a sound saved policy: {excerpt(error, 400)}") from None
    except Exception as error:  # damaged bytes raise anything
        raise ProvenanceError(
            f"{folder}: cannot be read as a saved policy ({type(error).__name__}: {excerpt(error)})"
        ) from None
    return policy, saved
