"""Pickles: only what rebuilds arrays and tables is allowed."""

from __future__ import annotations

import base64
import codecs
import os
import pickle
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cabs_core.base.errors import DataError
from cabs_core.data.outcomes.unpickle import NUMPY_GLOBALS, PANDAS_GLOBALS, restricted_load

#: a table of three rows as pandas 2.2 with numpy 1.26 pickled it (protocol 4), compressed
OLD_TABLE = (
    "c-oCq&2G~`5RMb4v`|r12na&r2;~wETzWvVL=Xrp0_we5jqOcrb-lKB*D8^y1P9s%?XANB-h@ZshQtf-CNR5BL`pd@huv9w=9~HE"
    "=Uw>eW3S`IZr30)(8IJ+d^k~1a<m&yz`#?lpW*%Yc!WDPWaU($y|ZdwNW+x`p@$_%m~y4jZax-OdhoJ+le@jK@L-}y^dA?rTda|F"
    "ksb)n66fQLugj*aXDxc!2vdMkFe6l^cv?wqRFfKK*!PBLFA=skIm5W~0Y^cCC%A_@aS(Uo-ZAD|wx5|<?U>l^t6iL*w*PxJc#Grl"
    "_{A?0f5ef&WWG;a13*haHc0VV^t~-q9ORpJO{XBh(aHz5J2{8;=r6Pmp^esC=bsTClO3l|c0FkdA||N<eJzTV`_w7hz(K`bcji~}"
    "tNFGglwVuY2|S&<^U>hTXD45y_Wl+<^ztJ@g3li~-v5V16p9rJ`Mrw-C|b}`=yVtNVsJW(XuUXGjdp^rfP?c>lJPfO4-?QdTbG&S"
    "hwQog=E^v>{iW`wEThT8iwTGHxb1thp`om4WQvUXQ=$#iN*hvTTisB)sU0`2-1%#J>tBf|kW-h*p1W6~=Zvz^29%+O*if6QM(Qjn"
    "oRq+0a(B=&&`8mqxNMg@!%A+zr@v2~1!HI%j?k{LiGZnBZ-Nljp=McAQ{TaGCLrOo3a7eBhQ9#_ZD3~"
)


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *args) -> None:
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


def write(tmp_path: Path, content: object, protocol: int = 4) -> Path:
    path = tmp_path / "a.pkl"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tables_and_arrays_are_rebuilt(tmp_path: Path, protocol: int) -> None:
    table = pd.DataFrame(
        {
            "a": pd.Series(["x", "y"], dtype=object),
            "b": pd.Series([0.25, np.float64(1)], dtype=object),
            "c": [0.5, 1.5],
        }
    )
    table.columns = pd.Index(list(table.columns), dtype=object)
    back = restricted_load(write(tmp_path, table, protocol), PANDAS_GLOBALS)
    assert back.to_dict("list") == table.to_dict("list")
    arrays = {"t": {"models": ["m"], "correctness": np.eye(3)}}
    back = restricted_load(write(tmp_path, arrays, protocol), NUMPY_GLOBALS)
    np.testing.assert_array_equal(back["t"]["correctness"], np.eye(3))


def test_table_of_an_older_pandas(tmp_path: Path) -> None:
    back = restricted_load(write(tmp_path, zlib.decompress(base64.b85decode(OLD_TABLE))), PANDAS_GLOBALS)
    assert back["sample_id"].tolist() == ["a", "b", "c"]
    assert back["m"].tolist() == [0.25, 1, 0.5]
    assert back["cost"].tolist() == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    "attack",
    [
        lambda witness: Call(os.system, f"touch {witness}"),
        lambda witness: Call(eval, f"open({str(witness)!r}, 'w')"),
        lambda witness: [np.eye(2), Call(open, str(witness), "w")],
        lambda witness: Call(getattr, "text", "format"),
        lambda witness: Call(__import__, "os"),
        lambda witness: Call(np.load, str(witness)),
        lambda witness: Call(pickle.loads, b""),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path, attack, protocol: int) -> None:
    witness = tmp_path / "witness"
    path = write(tmp_path, attack(witness), protocol)
    for allowed in (NUMPY_GLOBALS, PANDAS_GLOBALS):
        with pytest.raises(DataError, match=r"asks for .*refused"):
            restricted_load(path, allowed)
    assert not witness.exists()


def test_dotted_names_do_not_reach_inside(tmp_path: Path) -> None:
    """Protocol 4 resolves `a.b` inside a module: an allowed module is no way around the list."""
    payload = b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__base__\x93."
    with pytest.raises(DataError, match="refused"):
        restricted_load(write(tmp_path, payload), NUMPY_GLOBALS)


def test_codecs_are_latin1_only(tmp_path: Path) -> None:
    assert restricted_load(write(tmp_path, Call(codecs.encode, "é", "latin1"), 2), NUMPY_GLOBALS) == b"\xe9"
    with pytest.raises(DataError, match="rot13"):
        restricted_load(write(tmp_path, Call(codecs.encode, "abc", "rot13"), 2), NUMPY_GLOBALS)


@pytest.mark.parametrize(
    "content", [b"", b"not a pickle", pickle.dumps(np.eye(3))[:-20], b"\x80\x04\x8c\x01aQ."]
)
def test_damaged_pickle(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError):
        restricted_load(write(tmp_path, content), NUMPY_GLOBALS)
