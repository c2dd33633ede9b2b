"""Trained oracles of scores, costs and surrogates: their candidates, the chosen heads, and their files.

n rows, K arms of today, B trained arms. K and B differ only if arms came or went since the training.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from cabs_core.algorithms.oracles.arm_map import ArmMap
from cabs_core.algorithms.oracles.card import model_card
from cabs_core.algorithms.oracles.frozen_network import FrozenNetwork, rows_of_pairs
from cabs_core.algorithms.oracles.propagation import CorrelationPropagation, deltas_from_surrogates
from cabs_core.algorithms.predictors import STATIC, load_score_predictor
from cabs_core.algorithms.predictors.base import ScorePredictor, without_prefix
from cabs_core.algorithms.predictors.costs import ContextCostPredictor, CostPredictor
from cabs_core.algorithms.predictors.features import ROWS, PcaFeatures, length_features
from cabs_core.algorithms.predictors.kernel_ridge import KernelPredictor
from cabs_core.algorithms.predictors.neighbour_lists import NeighbourLists
from cabs_core.algorithms.predictors.simple import KnnPredictor
from cabs_core.base.atomic import Contents, atomic_directory
from cabs_core.base.errors import DataError, ProvenanceError

FORMAT = 1
CONTENTS = Contents(
    "saved oracles",
    "oracles.json",
    ("README.md", "*.safetensors", "predictors/*/predictor.json", "predictors/*/predictor.npz"),
    ("arms", "chosen"),
)


@dataclass
class Oracles:
    """All models that were learned offline, from the train split. Validation rows serve early stopping and
    choices only.

    Attributes:
        arms: names of the K arms. inputs: number of columns of the embeddings.
        predictors: fitted static score predictors by name.
        costs: predictor of costs from the prompt's length. context_costs: predictor from length and content.
        correlation: propagation of scores between arms by residual correlation.
        pca, head_pca: makers of the contexts of linear policies, from the embedding and from the network's
            feature head.
        network: the trained network, None if the pool's settings and policies need none.
        scaling: centres and scales of the network's inputs and cost outputs.
        chosen: head -> the model used for it: accuracy, propagation, cost, features.
        blend: the network's share in the candidate 'blend' of the accuracy head (the rest is kernel_ridge)
            and of the propagation head (the rest is `correlation`), and the share of the task predictor in
            the candidate 'tasks' (the rest is kernel_ridge).
        metrics: validation errors per head and candidate, training log, data hash, settings.
        arm_map: arms that came or went since the training, None if there are none.
    """

    arms: list[str]
    inputs: int
    predictors: dict[str, ScorePredictor]
    costs: CostPredictor
    context_costs: ContextCostPredictor
    correlation: CorrelationPropagation
    pca: PcaFeatures
    chosen: dict[str, str]
    network: FrozenNetwork | None = None
    head_pca: PcaFeatures | None = None
    scaling: dict[str, np.ndarray | np.float64] = field(default_factory=dict)
    blend: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    arm_map: ArmMap | None = None

    def use(self, lists: NeighbourLists | None) -> None:
        """Let predictors take neighbours among the train prompts from these lists. None lets them search."""
        for predictor in self.predictors.values():
            predictor.use(lists)

    def predict_scores(
        self, embeddings: np.ndarray, prompt_lengths: np.ndarray, model: str | None = None
    ) -> np.ndarray:
        """Predict scores `[n, K]` in [0, 1] by the chosen accuracy head, or by the named candidate."""
        trained = self.trained_scores(embeddings, prompt_lengths, model)
        if self.arm_map is None:
            return trained
        return self.arm_map.scores(trained)

    def trained_scores(
        self, embeddings: np.ndarray, prompt_lengths: np.ndarray, model: str | None = None
    ) -> np.ndarray:
        """Predict scores `[n, B]` in [0, 1] of trained arms, as `predict_scores` does for today's arms."""
        model = model or self.chosen["accuracy"]
        network = model in ("network", "blend")
        if network:
            first = self._network("scores", embeddings, prompt_lengths)
        else:
            first = self._predictor(model).predict(embeddings, prompt_lengths)
        if model not in ("blend", "tasks"):
            return first
        kernel = self.predictors["kernel_ridge"].predict(embeddings, prompt_lengths)
        return self._mixture("accuracy" if network else "tasks", first, kernel)

    def _mixture(self, share: str, first: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        """Return the mixture `[n, B]` of scores `first`, with weight `blend[share]`, and of kernel_ridge."""
        weight = self.blend[share]
        return weight * first + (1.0 - weight) * kernel

    def predict_costs(
        self, embeddings: np.ndarray, prompt_lengths: np.ndarray, model: str | None = None
    ) -> np.ndarray:
        """Predict costs `[n, K]` in USD by the chosen cost head, or by the named candidate."""
        trained = self.trained_costs(embeddings, prompt_lengths, model)
        if self.arm_map is None:
            return trained
        return self.arm_map.costs_of(trained)

    def trained_costs(
        self, embeddings: np.ndarray, prompt_lengths: np.ndarray, model: str | None = None
    ) -> np.ndarray:
        """Predict costs `[n, B]` in USD of the trained arms, as `predict_costs` does for today's arms."""
        model = model or self.chosen["cost"]
        if model == "network":
            return self._network("costs", embeddings, prompt_lengths)
        if model == "ridge":
            return self.context_costs.predict(embeddings, prompt_lengths)
        return self.costs.predict(prompt_lengths)

    def candidate_scores(self, embeddings: np.ndarray, prompt_lengths: np.ndarray) -> dict[str, np.ndarray]:
        """Predict scores `[n, B]` of the trained arms by static predictors, the network and the mixtures."""
        scores = {n: self._predictor(n).predict(embeddings, prompt_lengths) for n in ("mean", *STATIC)}
        if "tasks" in self.predictors:
            tasks = self._predictor("tasks").predict(embeddings, prompt_lengths)
            scores["tasks"] = self._mixture("tasks", tasks, scores["kernel_ridge"])
        if self.network is not None:
            scores["network"] = self._network("scores", embeddings, prompt_lengths)
        if "accuracy" in self.blend:
            scores["blend"] = self._mixture("accuracy", scores["network"], scores["kernel_ridge"])
        return scores

    def surrogate_scores(
        self,
        embeddings: np.ndarray,
        prompt_lengths: np.ndarray,
        scores: np.ndarray,
        model: str | None = None,
        *,
        predicted: np.ndarray | None = None,
    ) -> np.ndarray:
        """Predict the scores of all arms once the score of an anchor is known: `[n, K anchors, K]` in [0, 1].

        Args:
            scores: observed scores `[n, K]` of the arms as anchors. model: `network`, `correlation` or
                `blend`. None takes the chosen one.
            predicted: `trained_scores` of these rows, if they are known; None to compute them.
        """
        model = model or self.chosen["propagation"]
        if self.arm_map is not None:
            scores = self.arm_map.trained_scores(np.asarray(scores, dtype=np.float64))
        share = {**self.blend, "network": 1.0, "correlation": 0.0}[
            "propagation" if model == "blend" else model
        ]
        out: np.ndarray = np.zeros(())
        if share > 0.0:
            network = self._network("surrogates", embeddings, prompt_lengths, scores)
            out = share * np.clip(network, 0.0, 1.0)
        if share < 1.0:
            if predicted is None:
                base = self.trained_scores(embeddings, prompt_lengths)
            else:
                base = predicted
            out = out + (1.0 - share) * self.correlation.surrogates(
                base, np.asarray(scores, dtype=np.float64)
            )
        if self.arm_map is None:
            return out
        return self.arm_map.surrogates(out)

    def surrogate_deltas(
        self,
        embeddings: np.ndarray,
        prompt_lengths: np.ndarray,
        scores: np.ndarray,
        predicted: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return deltas `[n, K, K]` float32: delta_j(x_t, i, y_ti), the surrogate score of arm j less the
        observed score of anchor i, with a diagonal of zeros. Arguments are those of `surrogate_scores`.
        """
        scores = np.asarray(scores, dtype=np.float64)
        out = np.empty((len(scores), len(self.arms), len(self.arms)), dtype=np.float32)
        size = rows_of_pairs(len(self.arms))
        for start in range(0, len(scores), size):
            rows = slice(start, start + size)
            base = None if predicted is None else predicted[rows]
            parts = self.surrogate_scores(
                embeddings[rows], prompt_lengths[rows], scores[rows], predicted=base
            )
            out[rows] = deltas_from_surrogates(parts, scores[rows])
        return out

    def contexts(
        self, embeddings: np.ndarray, prompt_lengths: np.ndarray, kind: str | None = None
    ) -> np.ndarray:
        """Return contexts `[n, d]` of the linear policies.

        They are scaled components of the embedding ('pca') or of the network's feature head ('head'), and a
        constant.

        Raises:
            DataError: contexts of the feature head are asked for, and there is none.
        """
        if (kind or self.chosen["features"]) == "head":
            if self.head_pca is None:
                raise DataError("these oracles have no contexts from the network's feature head")
            parts = [slice(start, start + ROWS) for start in range(0, max(len(embeddings), 1), ROWS)]
            return np.concatenate(
                [
                    self.head_pca.transform(self._network("features", embeddings[p], prompt_lengths[p]))
                    for p in parts
                ]
            )
        return self.pca.transform(embeddings)

    def _predictor(self, name: str) -> ScorePredictor:
        """Return the static predictor of a name; `knn_literal` is the fitted `knn` with k = 3.

        Raises:
            DataError: the oracles hold no such predictor.
        """
        if name == "knn_literal":
            near = self.predictors["knn"]
            assert isinstance(near, KnnPredictor)
            return near.with_k(3)  # as published
        if name not in self.predictors:
            raise DataError(f"oracles hold no predictor {name!r}; they hold {', '.join(self.predictors)}")
        return self.predictors[name]

    def network_inputs(self, embeddings: np.ndarray, prompt_lengths: np.ndarray) -> np.ndarray:
        """Return standardised inputs `[n, e + 3]` float32 of the network.

        The first e columns are the embedding. The last three are functions of the prompt's length
        (`length_features`).
        """
        s = self.scaling
        x = np.asarray(embeddings)
        out = np.empty((len(x), x.shape[1] + 3), dtype=np.float32)
        for start in range(0, len(x), ROWS):
            rows = slice(start, start + ROWS)
            out[rows, :-3] = (x[rows] - s["input_center"]) / s["input_scale"]
        out[:, -3:] = length_features(prompt_lengths, float(s["log_center"]), float(s["log_scale"]))
        return out

    def _network(
        self, head: str, embeddings: np.ndarray, prompt_lengths: np.ndarray, scores: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the output, float64, of the network's head `scores`, `surrogates`, `costs` (USD) or
        `features`.

        Scores are clipped to [0, 1], and costs to between a quarter and four times the arm's mean cost.
        Surrogates are not clipped.

        Args:
            scores: observed scores of the anchors, for `surrogates`.

        Raises:
            DataError: there is no network.
        """
        if self.network is None:
            raise DataError("these oracles have no network: the pool's oracle.kind is 'ridge'")
        inputs = self.network_inputs(embeddings, prompt_lengths)
        out = self.network.outputs(inputs, head, None if scores is None else np.asarray(scores))
        out = out.astype(np.float64)
        if head == "scores":
            out = np.clip(out, 0.0, 1.0)
        if head == "costs":
            mean = self.scaling["cost_center"]
            out = np.clip(mean + out * self.scaling["cost_scale"], 0.25 * mean, 4.0 * mean)
        return out

    def save(self, folder: str | Path) -> Path:
        """Write everything into `folder`, which is replaced as a whole, and return its path.

        The files are oracles.json, README.md (the model card), arrays.safetensors, network.safetensors if
        there is a network, and below `predictors` one folder per static predictor and one for the costs.
        """
        arrays = {
            "pca.center": self.pca.center,
            "pca.basis": self.pca.basis,
            "correlation": self.correlation.correlation,
            **(
                {}
                if self.head_pca is None
                else {"head.center": self.head_pca.center, "head.basis": self.head_pca.basis}
            ),
            **{f"context_costs.{name}": value for name, value in self.context_costs.state().items()},
            **{f"scaling.{name}": np.atleast_1d(value) for name, value in self.scaling.items()},
        }
        arrays = {name: np.ascontiguousarray(value, dtype=np.float64) for name, value in arrays.items()}
        settings = {
            "format": FORMAT,
            "arms": self.arms,
            "inputs": self.inputs,
            "chosen": self.chosen,
            "blend": self.blend,
            "predictors": sorted(self.predictors),
            "network": None if self.network is None else asdict(self.network.shape),
            "metrics": self.metrics,
            "arm_map": None if self.arm_map is None else self.arm_map.to_dict(),
        }
        with atomic_directory(folder, CONTENTS) as temporary:
            (temporary / "oracles.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
            (temporary / "README.md").write_text(
                model_card(self.arms, self.chosen, self.metrics), encoding="utf-8"
            )
            save_file(arrays, temporary / "arrays.safetensors")
            if self.network is not None:
                self.network.save(temporary / "network.safetensors")
            for name, predictor in self.predictors.items():
                predictor.save(temporary / "predictors" / name)
            self.costs.save(temporary / "predictors" / "cost")
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load the oracles that `save` wrote.

        Raises:
            ProvenanceError: a file is absent, unreadable, incomplete or of another format.
        """
        folder = Path(folder)
        try:
            settings = dict(json.loads((folder / "oracles.json").read_text(encoding="utf-8")))
            arrays = load_file(folder / "arrays.safetensors")
        except (OSError, TypeError, ValueError, SafetensorError) as error:
            raise ProvenanceError(
                f"{folder} holds no readable oracles ({error}). Train them again."
            ) from None
        if settings.get("format") != FORMAT:
            raise ProvenanceError(
                f"{folder}: oracles of format {settings.get('format')!r}, this version reads {FORMAT}. "
                "Train again."
            )
        try:
            return cls._restored(folder, settings, arrays)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ProvenanceError(
                f"{folder} holds incomplete oracles ({type(error).__name__}: {error}). Train them again."
            ) from None

    @classmethod
    def _restored(cls, folder: Path, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the oracles whose settings and arrays were read, with the models that lie beside them.

        An incomplete setting or array raises an error of any type.
        """
        network = None
        if settings["network"] is not None:
            network = FrozenNetwork.load(folder / "network.safetensors", settings["network"])
        scaling = {
            k: v[0] if k.startswith("log_") or k == "input_scale" else v
            for k, v in without_prefix("scaling", arrays).items()
        }
        pca = PcaFeatures(arrays["pca.center"], arrays["pca.basis"])
        predictors = {n: load_score_predictor(folder / "predictors" / n) for n in settings["predictors"]}
        near = predictors.get("knn")
        kernel = predictors.get("kernel_ridge")
        if isinstance(near, KnnPredictor) and isinstance(kernel, KernelPredictor):
            kernel.knn_.share(near)
        return cls(
            arms=settings["arms"],
            inputs=settings["inputs"],
            predictors=predictors,
            costs=CostPredictor.load(folder / "predictors" / "cost"),
            context_costs=ContextCostPredictor.restore(pca, without_prefix("context_costs", arrays)),
            correlation=CorrelationPropagation(arrays["correlation"]),
            pca=pca,
            chosen=settings["chosen"],
            blend=settings["blend"],
            network=network,
            head_pca=PcaFeatures(arrays["head.center"], arrays["head.basis"])
            if "head.basis" in arrays
            else None,
            scaling=scaling,
            metrics=settings["metrics"],
            arm_map=None if settings["arm_map"] is None else ArmMap.from_dict(settings["arm_map"]),
        )
