"""Whether a challenger may take the champion's place, replacing a bundle in one step, and taking that back.

Promotion is a test of non-inferiority: the challenger must be shown to be no worse than the champion less a
margin (`router.margin` of the pool file, utility a request). "Not shown to be worse" would promote almost
anything that was compared on few prompts: with 1,000 scored calls, a router .06 worse in seven logs of ten.
"""

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scipy import special

from cabs_core.base.atomic import atomic_directory, check_replaceable
from cabs_core.base.errors import RouterError
from cabs_core.base.statistics.uncertainty import LEVEL
from cabs_core.router.bundle import HEADER, contents_of, read_manifest

#: in standard errors: a challenger that is just as good is promoted with probability .9 once `needed` prompts
#: are there
_POWER = 1.2816


@dataclass(frozen=True)
class Comparison:
    """Challenger minus champion on the same held-out decisions: mean clipped utility, error, 95 % interval.

    Attributes:
        queries: decisions compared; of a table prompts. margin: accepted loss of utility a request.
        promote: low > -margin, and the challenger is not measurably worse. reason: in words.
        needed: decisions from which a challenger that is just as good is promoted in nine of ten cases.
    """

    queries: int
    champion: float
    challenger: float
    difference: float
    se: float
    low: float
    high: float
    margin: float
    needed: int
    promote: bool
    reason: str


def judge(
    champion: float,
    challenger: float,
    difference: float,
    se: float,
    queries: int,
    margin: float,
    *,
    half_width: Callable[[float], float] = lambda n: 1.96,
    reach: tuple[float, float] | None = None,
    least: float = 0.0,
    collected: float = 1.0,
    unknown: tuple[float, float] = (0.0, 0.0),
    how: str = "paired",
) -> Comparison:
    """Compare two routers that differ in utility on `queries` decisions by `difference`, standard error `se`.

    Args:
        champion, challenger: mean utilities. margin: > 0.
        half_width: of the 95 % interval in standard errors, after a number of decisions.
        reach: distances from the difference to the lower and to the upper end of its interval. None takes
            `half_width` standard errors on both sides.
        collected: prompts or decisions that have to be collected for one of these.
        least: fewest decisions for a valid interval, so for promotion. how: the estimate, in a word.
        unknown: how much smaller and larger the difference may be, for answers that are not known.
    """
    below, above = reach or (half_width(float(queries)) * se,) * 2
    low, high = difference - unknown[0] - below, difference + unknown[1] + above
    deviation, count = se * math.sqrt(queries), float(queries)
    for _ in range(30):  # a confidence sequence's width depends on the count a little
        count = ((half_width(max(count, 1.0)) + _POWER) * deviation / margin) ** 2
    # if no loss is seen, so many decisions show that losses of everything are rarer than the margin (Wilson)
    without_loss = special.ndtri(1.0 - LEVEL / 2.0) ** 2 * (1.0 - min(margin, 1.0)) / margin if reach else 0.0
    needed = math.ceil(max(count, least, without_loss))
    promote = queries >= least and low > -margin and high >= 0.0
    words = (
        f"utility {challenger:.4f} against {champion:.4f}: {difference:+.4f} ± {se:.4f} ({how}, {queries:,} "
        "held-out decisions)"
    )
    if promote:
        words += f"; not worse by more than {margin:g}"
    elif queries >= least and high < 0.0:
        words += "; worse beyond noise: the champion stays"
    else:
        words += f"; cannot tell whether it is worse by more than {margin:g}: the champion stays. "
        if sum(unknown) > margin:
            words += (
                "The table lacks answers that they chose, and whatever these would be, the difference is "
                f"from {difference - unknown[0]:+.4f} to {difference + unknown[1]:+.4f}: ask these models on "
                "the prompts that lack them"
            )
        else:
            more = math.ceil(max(needed - queries, 1) * collected)
            kind = (
                "scored decisions are"
                if collected == 1
                else "prompts in the table, of which a part is held out, are"
            )
            words += f"About {more:,} more {kind} needed"
    return Comparison(
        queries, champion, challenger, difference, se, low, high, margin, needed, bool(promote), words
    )


def previous(folder: str | Path) -> Path:
    """Where the bundle lies that a promotion replaced: router -> router.previous."""
    folder = Path(folder)
    return folder.with_name(folder.name + ".previous")


def promote(candidate: str | Path, folder: str | Path) -> str:
    """Copy a verified bundle to `folder`; what stood there is kept as `previous`. Returns the bundle's id.

    A server that watches `folder` sees the old bundle or the new one.

    Raises:
        StorageError: `folder`, or the place of the earlier bundle, holds anything but a router; both stay.
    """
    candidate, folder = Path(candidate), Path(folder)
    old = previous(folder) if Path(folder).name else folder
    for place in (folder, old):
        check_replaceable(place, contents_of(place))
    new = read_manifest(candidate)
    if (folder / HEADER).is_file() and read_manifest(folder, verify=False).id == new.id:
        return new.id
    if (folder / HEADER).is_file():
        with atomic_directory(old, contents_of(old)) as temporary:
            shutil.copytree(folder, temporary, dirs_exist_ok=True)
    with atomic_directory(folder, contents_of(folder)) as temporary:
        shutil.copytree(candidate, temporary, dirs_exist_ok=True)
    return new.id


def roll_back(folder: str | Path) -> str:
    """Bring back the bundle that the last promotion replaced; a second call undoes the first. Returns its id.

    What either of them has learnt is kept: it lies beside the log, by the bundle's id.

    Raises:
        RouterError: there is no earlier bundle. ProvenanceError: it is damaged.
    """
    folder, old = Path(folder), previous(folder)
    if not old.is_dir():
        raise RouterError(f"{old} does not exist: nothing was promoted over {folder} yet")
    manifest = read_manifest(old)
    with atomic_directory(folder, contents_of(folder)) as temporary:
        shutil.copytree(old, temporary, dirs_exist_ok=True)
        aside = temporary.with_name(temporary.name + "-current")
        shutil.copytree(folder, aside)
    try:
        with atomic_directory(old, contents_of(old)) as temporary:
            for path in aside.iterdir():
                os.replace(path, temporary / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return manifest.id
