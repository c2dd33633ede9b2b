"""Routing tables as configurations of other gateways.

Each function takes a routing table and {model: name of the model in the gateway}, and returns the text of a
file:

litellm     a deployment of LiteLLM's auto router: a route a model, found by the embeddings of example prompts
            (fields `auto_router_*` of `litellm.types.router.LiteLLM_Params`, routes as
            `litellm.router_strategy.auto_router.AutoRouter` reads them)
openrouter  for each task the `models` of a request, best first (openrouter.ai/docs, Model Fallbacks)
vllm_sr     signals and decisions of vLLM Semantic Router, configuration v0.3 (vllm-project/semantic-router,
            config/config.yaml, config/signal/embedding, config/decision/single; `vllm-sr config validate`)
json        all figures
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from cabs_core.base.errors import ResultError
from cabs_core.base.units import percentage
from cabs_core.report.routing_table import RoutingTable, TableRow

#: models that a request to OpenRouter tries: its list may have three
_MODELS = 3
#: cosine above which vLLM Semantic Router assigns a prompt to a row, as in its own reference file
_NEAR = 0.72


def litellm(table: RoutingTable, names: Mapping[str, str]) -> str:
    """Return YAML with an auto router to add to `model_list` of a LiteLLM configuration.

    A row of the table gives its example prompts to the route of its model. The names are those of model
    groups in that configuration.

    Raises:
        ResultError: a row has no example prompts.
    """
    routes: dict[str, dict[str, Any]] = {}
    for row in table.rows:
        route = routes.setdefault(row.model, {"name": names[row.model], "description": "", "utterances": []})
        route["description"] = ", ".join(filter(None, [route["description"], row.group]))
        route["utterances"] += _examples(row, "litellm")
    params = {
        "model": "auto_router/cabs",
        "auto_router_config": json.dumps({"routes": list(routes.values())}, ensure_ascii=False),
        "auto_router_default_model": names[table.default],
        "auto_router_embedding_model": "embedding",
    }
    content = {"model_list": [{"model_name": "cabs", "litellm_params": params}]}
    return _commented(table, "add a model group `embedding`, whose model embeds prompts") + _yaml(content)


def openrouter(table: RoutingTable, names: Mapping[str, str]) -> str:
    """Return JSON with the field `models` of a request to OpenRouter, for each task and for all else.

    The field has at most three models: the model of the task, then the row's `others`, best first. For all
    else it has the default model alone.

    Raises:
        ResultError: the name of a model is not of the form `author/model`.
    """
    for arm in names:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w-]+)?", names[arm]):
            raise ResultError(
                f"OpenRouter calls models author/model, not {names[arm]!r:.80}: say --call {arm}=author/model"
            )
    tasks = {
        row.group: {"models": [names[m] for m in (row.model, *row.others)[:_MODELS]]} for row in table.rows
    }
    content = {"default": {"models": [names[table.default]]}, "tasks": tasks}
    return json.dumps({**content, "about": about(table)}, indent=1, ensure_ascii=False) + "\n"


def vllm_sr(table: RoutingTable, names: Mapping[str, str]) -> str:
    """Return YAML to merge into a configuration that has the models under `providers.models`.

    Rows that the default model answers are left out, since it answers all other prompts.

    Raises:
        ResultError: a row that is not left out has no example prompts.
    """
    signals = []
    decisions = []
    for place, row in enumerate(row for row in table.rows if row.model != table.default):
        name = f"cabs-{place + 1}-" + (re.sub(r"[^a-z0-9]+", "-", row.group.lower()).strip("-") or "row")
        candidates = _examples(row, "vllm_sr")
        signal: dict[str, Any] = {"name": name, "threshold": _NEAR, "aggregation_method": "max"}
        signals.append({**signal, "candidates": candidates})
        decisions.append(
            {
                "name": name,
                "description": f"{row.group}: score {row.score:.3f}, {row.usd_per_1000:.4g} USD per 1,000",
                "priority": 100 - min(place, 99),
                "rules": {"operator": "AND", "conditions": [{"type": "embedding", "name": name}]},
                "modelRefs": [{"model": names[row.model], "use_reasoning": False}],
            }
        )
    routing: dict[str, Any] = {"strategy": "priority"}
    if decisions:
        routing |= {"signals": {"embeddings": signals}, "decisions": decisions}
    defaults = {"defaults": {"model": names[table.default]}}
    content = {"version": "v0.3", "providers": defaults, "routing": routing}
    return _commented(table, "merge it into your configuration; check it with `vllm-sr config validate`") + (
        _yaml(content)
    )


def as_json(table: RoutingTable, names: Mapping[str, str]) -> str:
    """Return all figures of the table as JSON, with the names of the models in the gateway."""
    content = table.to_dict()
    for row in content["rows"]:
        row |= {"model": names[row["model"]], "others": [names[m] for m in row["others"]]}
    return json.dumps(content | {"default": names[table.default]}, indent=1, ensure_ascii=False) + "\n"


#: {format that `cabs export --table` takes: function that writes it}
FORMATS: dict[str, Callable[[RoutingTable, Mapping[str, str]], str]] = {
    "litellm": litellm,
    "openrouter": openrouter,
    "vllm_sr": vllm_sr,
    "json": as_json,
}


def about(table: RoutingTable) -> list[str]:
    """Return sentences on what the rules of a table change, compared with the default model alone."""
    others = len({row.model for row in table.rows} - {table.default})
    points = ", ".join(f"{100 * value:+.1f}" for value in (table.low, table.high))
    lines = [
        f"pool {table.pool}: {len(table.rows)} rows by {table.by}, {others} models beside {table.default}, "
        "which answers all else",
        f"beside always {table.default}: {table.word}; {100 * table.difference:+.1f} points of quality (95 % "
        f"interval {points}), {table.usd_per_1000:.2f} USD per 1,000 requests",
    ]
    if table.guessed_right is not None:
        lines.append(
            f"these figures hold where the caller gives the {table.by}; the nearest centre of the prompts "
            f"guesses it right for {percentage(table.guessed_right)} of them"
        )
    return lines


def _examples(row: TableRow, gateway: str) -> list[str]:
    """Return the example prompts of a row.

    Raises:
        ResultError: the row has none, because prompts were left out.
    """
    if not row.examples:
        raise ResultError(f"{gateway} finds rows by example prompts: leave --no-prompts out")
    return list(row.examples)


def _commented(table: RoutingTable, advice: str) -> str:
    """Return the sentences on a table, and an advice, as comment lines of YAML."""
    return "".join(f"# {line}\n" for line in (*about(table), advice))


def _yaml(content: dict[str, Any]) -> str:
    """Return content as YAML, in its order and with letters of all scripts as they are."""
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100))
