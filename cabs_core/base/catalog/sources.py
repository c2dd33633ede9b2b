"""Sources of outcomes: one record per `source.kind` of a pool file.

Other packages bring theirs (`cabs.sources`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from cabs_core.base.catalog.plugins import records

_SOURCES = "cabs_core.data.outcomes.sources"


@dataclass(frozen=True)
class SourceRecord:
    """What is said about a source of outcomes, in one place.

    Attributes:
        name: `source.kind` in pool files; lower case letters, digits and single underscores.
        path: `module:function`; called with the pool's `Source`, whose paths are absolute, it returns
            `RawOutcomes` with every model and query that the source has. `file`, `logs`: the `PoolFile`.
        description: one sentence fragment, with its full stop.
        remote: what it reads is downloaded, unless the pool names a mirror.
        table: it reads the file `source.path`.
        ordered: the models' rows are joined by their order, not by a key, so that they may be misaligned.
        logged: one model answered each prompt; such a pool is not replayed but estimated from.
        collected: the models are asked first (stages `answers` and `scores`), and `path` is called with the
            folders of both.
        costs: `module:function`; called with the `PoolFile`, it returns the mean cost of a call of each
            model, USD, that is to be expected before anything is asked. Of a collected source.
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
        """The module that reads it."""
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
    """{kind: record} of every source: built-in ones, then plug-ins."""
    return records("cabs.sources", _BUILT_IN)
