"""The routing table of a pool whose report was made (`report.routing_table`)."""

from cabs_core.base.errors import ResultError
from cabs_core.data.inputs import embeddings_of
from cabs_core.pipeline.answer import answer_for_chain, evidence_for_chain
from cabs_core.pipeline.artifacts import Chain
from cabs_core.report.answer_page import recommendation
from cabs_core.report.routing_table import RoutingTable, may_be_recommended, routing_table


def table_of(chain: Chain, *, examples: bool = True, anyway: bool = False) -> RoutingTable:
    """Return the rules of a pool's answer as a routing table.

    Args:
        examples: keep prompts as examples of the tasks.
        anyway: return the table although artifacts are of older data or the rules may not be recommended.

    Raises:
        ProvenanceError: the chain has not been run, or not on the data at hand. ResultError: the pool is
            a log or has no rules, or the rules may not be recommended.
    """
    pool = chain.pool
    if pool.logged:
        raise ResultError(
            f"pool {pool.name} is a log, which has one model's answer to a prompt: a routing table needs all"
        )
    found = answer_for_chain(chain, evidence_for_chain(chain), anyway=anyway)
    vectors = embeddings_of({"prompt_embeddings": chain.verified(chain.stage("prompt_embeddings"))})
    table = routing_table(found, vectors, pool.name, examples=examples)
    if not may_be_recommended(table) and not anyway:
        raise ResultError(
            f"pool {pool.name}: {recommendation(found)}. The rules beside it: {table.word}. --anyway writes "
            "them all the same"
        )
    return table
