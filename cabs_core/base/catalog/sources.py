"""Records of the sources of outcomes, one for each `source.kind` of a pool file.

Other packages add sources by the entry points `cabs.sources`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from cabs_core.base.catalog.plugins import records

_SOURCES = "cabs_core.data.outcomes.sources"


@dataclass(frozen=True)
class SourceRecord:
    """Description of a source of outcomes.

    Attributes:
        name: `source.kind` in pool files; lower case letters, digits and single underscores.
        path: `module:function` that reads the source. It is called with the pool's `Source`, whose paths are
            absolute (the sources `file` and `logs` get the `PoolFile`), and returns `RawOutcomes` with all
            models and queries of the source.
        description: sentence fragment, with its full stop.
        remote: True if the source is downloaded, unless the pool names a mirror.
        table: True if the source is the file `source.path`.
        logged: True if one model answered each prompt. Such a pool is not replayed; its log gives estimates.
        collected: True if the models are asked first (stages `answers` and `scores`). `path` is then
            called with the folders of both stages.
        costs: of a collected source, `module:function` that takes the `PoolFile` and returns the mean
            cost in USD that a call of each model is expected to have before any model is asked.
        ordered: True if rows of several models are joined by their order, not by a key, and may be
            misaligned.
    """

    name: str
    path: str
    description: str
    remote: bool = False
    table: bool = False
    logged: bool = False
    collected: bool = False
    costs: str = ""
    ordered: bool = False

    @property
    def module(self) -> str:
        """Name of the module that reads the source."""
        return self.path.partition(":")[0]


_BUILT_IN = (
    SourceRecord("file", f"{_SOURCES}.file:read_file", "a table of your own.", table=True),
    SourceRecord(
        "logs",
        "cabs_core.data.outcomes.from_logs:read_logged",
        "a log: one model answered each prompt.",
        table=True,
        logged=True,
    ),
    SourceRecord(
        "collect",
        "cabs_core.data.collect.source:read_collected",
        "prompts: the models are asked, and the answers scored.",
        table=True,
        collected=True,
        costs="cabs_core.data.collect.plan:mean_costs",
    ),
    SourceRecord("synthetic", f"{_SOURCES}.synthetic:synthetic_raw", "generated prompts and outcomes."),
    SourceRecord("routerbench", f"{_SOURCES}.routerbench:read", "RouterBench (0-shot).", remote=True),
    SourceRecord("sprout", f"{_SOURCES}.sprout:read", "SPROUT, of CARROT.", remote=True),
    SourceRecord(
        "openllm_v2", f"{_SOURCES}.openllm_v2:read", "the Open LLM Leaderboard v2.", remote=True, ordered=True
    ),
)


@cache
def sources() -> Mapping[str, SourceRecord]:
    """Return `{kind: record}` of every source: built-in ones, then those of other packages."""
    return records("cabs.sources", _BUILT_IN)
