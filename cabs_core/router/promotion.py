"""Promotion: a challenger takes the champion's place if it is shown to be no worse.

Promotion is a test of non-inferiority: the challenger must be shown to be no worse than the champion less a
margin (`router.margin` of the pool file, utility a request). The rule "not shown to be worse" would promote
almost anything that was compared on few prompts: with 1,000 scored calls, a router .06 worse in seven logs of
ten.
"""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scipy import special

from cabs_core.base.atomic import atomic_directory, check_replaceable
from cabs_core.base.errors import ProvenanceError, RouterError
from cabs_core.base.statistics.uncertainty import LEVEL
from cabs_core.router.bundle import contents_of, read_manifest

#: Standard errors by which the lower end must clear -margin, so that an equally good challenger is promoted
#: with probability .9 once `Comparison.needed` decisions are there.
_POWER = 1.2816


def _normal_half_width(decisions: float) -> float:
    """Return the half width of a 95 % interval in standard errors, whatever the number of decisions."""
    return 1.96


@dataclass(frozen=True)
class Difference:
    """Estimated difference in utility of two routers on the same held-out decisions.

    Attributes:
        champion, challenger: mean clipped utilities.
        mean: challenger minus champion.
        se: standard error of `mean`.
        decisions: number of decisions compared, or of prompts if the routers are compared on a table.
        half_width: function that returns the half width of the 95 % interval in standard errors for a number
            of decisions.
        interval_distances: distances from `mean` to the lower and to the upper end of the interval. None
            takes `half_width` times `se` for both.
        least: fewest decisions for a valid interval, so for a promotion.
        collected: number of prompts or decisions to collect so that one more is compared. The number exceeds
            1 if only the held-out part of a table is compared.
        unknown: how much smaller and how much larger the difference may be, because some answers are not
            known. Both are at least 0.
        method: method of the estimate, in a word.
    """

    champion: float
    challenger: float
    mean: float
    se: float
    decisions: int
    half_width: Callable[[float], float] = _normal_half_width
    interval_distances: tuple[float, float] | None = None
    least: float = 0.0
    collected: float = 1.0
    unknown: tuple[float, float] = (0.0, 0.0)
    method: str = "paired"

    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the difference, widened by what is unknown."""
        if self.interval_distances is None:
            below = self.half_width(float(self.decisions)) * self.se
            above = below
        else:
            below, above = self.interval_distances
        return self.mean - self.unknown[0] - below, self.mean + self.unknown[1] + above

    def needed(self, margin: float) -> int:
        """Return the number of decisions from which an equally good challenger is promoted in 9 of 10 cases.

        The number is a total that includes the decisions compared so far. The number is at least `least`.
        """
        deviation = self.se * math.sqrt(self.decisions)
        count = float(self.decisions)
        for _ in range(30):  # the width of a confidence sequence depends on the count a little
            count = ((self.half_width(max(count, 1.0)) + _POWER) * deviation / margin) ** 2
        most = max(count, self.least)
        if self.interval_distances is not None:
            # if no loss is seen, so many decisions show that losses of everything are rarer than the margin
            # (Wilson)
            quantile = special.ndtri(1.0 - LEVEL / 2.0)
            most = max(most, quantile**2 * (1.0 - margin) / margin)
        return math.ceil(most)


@dataclass(frozen=True)
class Comparison:
    """Judgement on a challenger, compared with the champion on the same held-out decisions.

    Attributes:
        queries: number of decisions compared, or of prompts if the routers are compared on a table.
        champion, challenger: mean clipped utilities.
        difference: challenger minus champion.
        se: standard error of `difference`.
        low, high: 95 % interval of `difference`.
        margin: accepted loss of utility a request.
        needed: total number of compared decisions from which an equally good challenger is promoted in nine
            of ten cases.
        promote: True if there are enough decisions, low > -margin, and high >= 0, which means that the
            challenger is not measurably worse.
        reason: the judgement in words.
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


def judge(difference: Difference, margin: float) -> Comparison:
    """Judge if a challenger takes the champion's place, and say why in words.

    Args:
        margin: accepted loss of utility a request, > 0.
    """
    low, high = difference.interval()
    needed = difference.needed(margin)
    is_enough = difference.decisions >= difference.least
    promote = bool(is_enough and low > -margin and high >= 0.0)
    figures = (
        f"utility {difference.challenger:.4f} against {difference.champion:.4f}: {difference.mean:+.4f} ± "
        f"{difference.se:.4f} ({difference.method}, {difference.decisions:,} held-out decisions)"
    )
    if promote:
        reason = f"{figures}; not worse by more than {margin:g}"
    elif is_enough and high < 0.0:
        reason = f"{figures}; worse beyond noise: the champion stays"
    else:
        unclear = f"cannot tell whether it is worse by more than {margin:g}: the champion stays"
        reason = f"{figures}; {unclear}. {_advice(difference, margin, needed)}"
    return Comparison(
        queries=difference.decisions,
        champion=difference.champion,
        challenger=difference.challenger,
        difference=difference.mean,
        se=difference.se,
        low=low,
        high=high,
        margin=margin,
        needed=needed,
        promote=promote,
        reason=reason,
    )


def _advice(difference: Difference, margin: float, needed: int) -> str:
    """Return a sentence on the data to collect so that the comparison can tell.

    If what is unknown exceeds the margin, the sentence gives the range of the difference and asks for the
    missing answers, without their number. Otherwise the sentence gives the number of further decisions, or of
    further prompts of the table.

    Args:
        needed: total number of decisions, see `Difference.needed`.
    """
    if sum(difference.unknown) > margin:
        smallest = difference.mean - difference.unknown[0]
        largest = difference.mean + difference.unknown[1]
        return (
            "The table lacks answers that they chose, and whatever these would be, the difference is from "
            f"{smallest:+.4f} to {largest:+.4f}: ask these models on the prompts that lack them"
        )
    more = math.ceil(max(needed - difference.decisions, 1) * difference.collected)
    if difference.collected == 1:
        return f"About {more:,} more scored decisions are needed"
    return f"About {more:,} more prompts in the table, of which a part is held out, are needed"


def previous(folder: str | Path) -> Path:
    """Return the folder of the bundle that the last promotion replaced: router -> router.previous."""
    folder = Path(folder)
    return folder.with_name(folder.name + ".previous")


def promote(candidate: str | Path, folder: str | Path) -> str:
    """Copy a bundle to `folder` after verifying it, and return its id.

    The bundle that lay there is kept as `previous(folder)`, unless it is damaged: then it is replaced, and
    the one before it stays kept. A server that watches `folder` sees the old bundle or the new one. Nothing
    is copied if the bundle in `folder` is the candidate already.

    Raises:
        StorageError: `folder`, or the place of the earlier bundle, holds anything but a router. Both stay.
        ProvenanceError: the candidate is no bundle, or is damaged.
    """
    candidate = Path(candidate)
    folder = Path(folder)
    old = previous(folder) if folder.name else folder
    for place in (folder, old):
        check_replaceable(place, contents_of(place))
    new = read_manifest(candidate)
    live = _sound_id(folder)
    if live == new.id:
        return new.id
    if live:
        with atomic_directory(old, contents_of(old)) as temporary:
            shutil.copytree(folder, temporary, dirs_exist_ok=True)
    with atomic_directory(folder, contents_of(folder)) as temporary:
        shutil.copytree(candidate, temporary, dirs_exist_ok=True)
    return new.id


def _sound_id(folder: Path) -> str:
    """Return the id of the bundle in a folder, or '' if there is no bundle or it is damaged."""
    try:
        return read_manifest(folder).id
    except ProvenanceError:
        return ""


def roll_back(folder: str | Path) -> str:
    """Bring back the bundle that the last promotion replaced, and return its id.

    A second call undoes the first. Everything that either bundle has learnt is kept: it lies beside the log,
    by the bundle's id.

    Raises:
        RouterError: there is no earlier bundle, there is no bundle to replace, or the replaced bundle could
            not be written to its place; the message says where the replaced bundle is kept then.
        ProvenanceError: the earlier bundle is damaged.
        StorageError: `folder` holds anything but a router.
    """
    folder = Path(folder)
    old = previous(folder)
    if not old.is_dir():
        raise RouterError(f"{old} does not exist: nothing was promoted over {folder} yet")
    if not folder.is_dir():
        raise RouterError(f"{folder} does not exist: copy {old} there to bring the earlier router back")
    manifest = read_manifest(old)
    with atomic_directory(folder, contents_of(folder)) as temporary:
        shutil.copytree(old, temporary, dirs_exist_ok=True)
        displaced = temporary.with_name(temporary.name + "-current")
        shutil.copytree(folder, displaced)
    try:
        with atomic_directory(old, contents_of(old)) as temporary:
            shutil.copytree(displaced, temporary, dirs_exist_ok=True)
    except OSError as error:
        raise RouterError(
            f"{folder} is rolled back to {manifest.id}, but the router that was there is kept in "
            f"{displaced}: it could not be written to {old} ({error})"
        ) from error
    shutil.rmtree(displaced, ignore_errors=True)
    return manifest.id
