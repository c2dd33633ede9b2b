"""The routing table of a pool whose report was made (`report.routing_table`)."""

from cabs_core.base.errors import ProvenanceError, ResultError
from cabs_core.data.inputs import embeddings_of, outcomes_of, split_of
from cabs_core.pipeline.artifacts import Chain
from cabs_core.pipeline.stages.replay import trace_again
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence, load_evidence
from cabs_core.report.routing_table import RoutingTable, routing_table
from cabs_core.report.verdict import verdicts


def _evidence_of(chain: Chain) -> tuple[PoolData, Evidence]:
    """The marts of a pool and the replays behind them.

    Raises:
        ResultError: no replay is in the marts, or the problem that they are of is gone.
    """
    name, store = chain.pool.name, chain.store
    artifacts = store.root
    if store.remote:
        for parts in (("marts",), ("replay", name), ("replay_problem", name)):
            artifacts = store.mirror(parts)
    data = PoolData(name, artifacts)
    evidence = load_evidence(data, again=lambda policy, rho: trace_again(chain, policy, rho))
    if evidence is None:
        raise ResultError(
            f"the problem that the marts are of is gone: `cabs run --pool {name}` makes all anew"
        )
    return data, evidence


def table_of(
    chain: Chain, rho: float | None = None, *, examples: bool = True, anyway: bool = False
) -> RoutingTable:
    """The routing table that a pool's verdict supports.

    Args:
        rho: cost sensitivity, score units per USD, one that was replayed; None: the pool's.
        examples: keep prompts. anyway: although artifacts are of older data.

    Raises:
        ProvenanceError: the chain has not been run, or not on the data at hand. ResultError: there is no
            verdict at this rho. DataError: see `routing_table`.
    """
    pool = chain.pool
    if pool.logged:
        raise ResultError(
            f"pool {pool.name} is a log, which has one model's answer to a prompt: a routing table needs all"
        )
    if not anyway and (older := chain.older_figures()):
        raise ProvenanceError(f"{older} Run it again, or say --anyway to export the table all the same.")
    rho = pool.router_rho if rho is None else float(rho)
    data, evidence = _evidence_of(chain)
    verdict = next((v for v in verdicts(data, evidence) if v.rho == rho), None)
    if verdict is None:
        played = ", ".join(f"{value:g}" for value in sorted(pool.replay.rhos))
        raise ResultError(
            f"the report of pool {pool.name} has no verdict at rho {rho:g}: take one that was replayed "
            f"({played}), for a router and best_single"
        )
    stages = ("outcomes", "splits", "prompt_embeddings")
    inputs = {name: chain.verified(chain.stage(name)) for name in stages}
    return routing_table(
        evidence,
        outcomes_of(inputs),
        split_of(inputs),
        embeddings_of(inputs),
        pool=pool.name,
        rho=rho,
        router=verdict.router,
        decision=verdict.decision,
        examples=examples,
    )
