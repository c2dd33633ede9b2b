"""Training of the oracle network: all anchors at once, Adam, early stopping on the validation split.

Huber loss with threshold 1 on scores in [0, 1] is half the squared error. Plain L1 (`loss="l1"`), which the
paper also names, fits medians and so rounds 0/1 scores. On the CPU training runs on one thread and is
reproducible bit for bit by seed; on CUDA it is reproducible up to rounding (no scatter operations are used).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import huber_loss, l1_loss, mse_loss

from cabs_core.algorithms.oracles.frozen_network import NetworkShape, Rows, rows_of_pairs
from cabs_core.algorithms.oracles.network import OracleNetwork
from cabs_core.base.threads import one_torch_thread

#: inputs, scores and costs of one split
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
#: number of train queries above which an epoch takes only a random part of them
MANY = 16_384
#: size of this part, which is drawn anew for every epoch
EPOCH = 8_192
#: loss of the score heads by its name in a pool's `oracle.loss`
SCORE_LOSSES: dict[str, Callable[..., torch.Tensor]] = {"huber": huber_loss, "l1": l1_loss}


@dataclass
class TrainingLog:
    """Log of a training.

    Attributes:
        epochs: for every epoch, from 0 (before training), its train loss, stopping criterion and the mean
            squared error of each head on validation. best_epoch: the epoch whose weights are kept.
        stopped: reason for the end. device: device of the training. parameters: number of parameters.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    stopped: str = ""
    device: str = "cpu"
    parameters: int = 0


def residual_slopes(residuals: np.ndarray) -> np.ndarray:
    """Return the slope of every arm's residual on the anchor's, `[K anchors, K]`, from residuals `[n, K]`.

    The slope is C_ij / (C_ii + .001) with the covariances C, so that it is small if C_ii is tiny.
    """
    cov = np.cov(residuals, rowvar=False, ddof=0).reshape(residuals.shape[1], -1)
    return cov / (np.diag(cov)[:, None] + 1e-3)


def train_network(
    train: Rows,
    validation: Rows,
    *,
    seed: int = 0,
    hidden: int = 256,
    learning_rate: float = 1e-4,
    max_epochs: int = 60,
    patience: int = 8,
    dropout: float = 0.3,
    loss: str = "huber",
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[OracleNetwork, TrainingLog]:
    """Train and return the network of the best validation epoch (in evaluation mode, on the CPU) and the log.

    The stopping criterion is the sum over accuracy, propagation and cost of the validation squared error,
    relative to that of the train means, whatever the loss. Training ends after `patience` epochs in a row in
    which it does not fall, or after `max_epochs`.

    Args:
        loss: key of `SCORE_LOSSES`.
        progress: called with (epoch, max_epochs) after every epoch, and with epoch 0 before training.
    """
    k = train.scores.shape[1]
    with one_torch_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = NetworkShape(train.inputs.shape[1], k, hidden, dropout=dropout)
        network = OracleNetwork(shape)
        means = train.scores.mean(axis=0)
        slopes = residual_slopes(train.scores - means)
        network.start_at(torch.tensor(means), torch.tensor(slopes))
        network.to(device)
        log = TrainingLog(device=device, parameters=sum(p.numel() for p in network.parameters()))
        best = _fit(
            network,
            _tensors(train, device),
            _tensors(validation, device),
            log,
            seed=seed,
            learning_rate=learning_rate,
            max_epochs=max_epochs,
            patience=patience,
            score_loss=SCORE_LOSSES[loss],
            progress=progress,
        )
        network.load_state_dict(best)
    return network.cpu().eval().requires_grad_(False), log


def _tensors(rows: Rows, device: str) -> Tensors:
    """Return the rows as float32 tensors on the device."""
    inputs, scores, costs = (
        torch.as_tensor(np.asarray(a), dtype=torch.float32).to(device)
        for a in (rows.inputs, rows.scores, rows.costs)
    )
    return inputs, scores, costs


def _fit(
    network: OracleNetwork,
    train: Tensors,
    validation: Tensors,
    log: TrainingLog,
    *,
    seed: int,
    learning_rate: float,
    max_epochs: int,
    patience: int,
    score_loss: Callable[..., torch.Tensor],
    progress: Callable[[int, int], None] | None,
) -> dict[str, torch.Tensor]:
    """Train the network, fill the log, and return the state of the network in the best epoch."""
    x, y, c = train
    n, k = y.shape
    of_epoch = n if n <= MANY else EPOCH
    size = int(min(128, max(16, n // 32)))
    others = 1.0 - torch.eye(k, device=x.device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)
    scale = _constant_errors(train, validation)
    generator = torch.Generator().manual_seed(seed)
    best = copy.deepcopy(network.state_dict())
    best_value = np.inf
    waited = 0
    for epoch in range(max_epochs + 1):
        total = 0.0
        if epoch:
            network.train()
            order = torch.randperm(n, generator=generator)[:of_epoch].to(x.device)
            for start in range(0, len(order), size):
                rows = order[start : start + size]
                heads = network(x[rows], y[rows])
                pairs = score_loss(heads.surrogates, y[rows].unsqueeze(1).expand(-1, k, -1), reduction="none")
                loss = (
                    score_loss(heads.scores, y[rows])
                    + (pairs * others).sum() / (len(rows) * max(k * (k - 1), 1))
                    + 0.25 * mse_loss(heads.costs, c[rows])
                    + score_loss(heads.readout, y[rows])
                )
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                total += float(loss.detach()) * len(rows)
        errors = validation_errors(network, *validation)
        value = sum(errors[name] / scale[name] for name in ("accuracy", "propagation", "cost"))
        if progress is not None:
            progress(epoch, max_epochs)
        log.epochs.append({"epoch": epoch, "train_loss": total / of_epoch, "criterion": value, **errors})
        if value < best_value - 1e-5:
            best = copy.deepcopy(network.state_dict())
            best_value = value
            waited = 0
            log.best_epoch = epoch
        else:
            waited += 1
        if waited >= patience:
            log.stopped = f"no improvement on validation for {patience} epochs"
            break
    else:
        log.stopped = f"max_epochs = {max_epochs}"
    return best


@torch.no_grad()
def validation_errors(
    network: OracleNetwork, x: torch.Tensor, y: torch.Tensor, c: torch.Tensor
) -> dict[str, float]:
    """Return {head: mean squared error} of the network in evaluation mode.

    The heads are accuracy (scores predicted from the inputs), propagation (surrogates, of all pairs of an
    anchor and another arm), cost, and readout (scores predicted from the features alone). Predicted scores
    and surrogates are clipped to [0, 1].

    Args:
        x: inputs `[n, inputs]`. y: scores `[n, K]`. c: z-scored costs `[n, K]`.
    """
    network.eval()
    k = y.shape[1]
    sums = dict.fromkeys(("accuracy", "propagation", "cost", "readout"), 0.0)
    size = rows_of_pairs(k)
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        heads = network(x[rows], y[rows])
        sums["accuracy"] += float(((heads.scores.clamp(0, 1) - y[rows]) ** 2).mean(1).sum())
        square = (heads.surrogates.clamp(0, 1) - y[rows].unsqueeze(1)) ** 2
        square = square.sum((1, 2)) - square.diagonal(dim1=1, dim2=2).sum(1)
        sums["propagation"] += float(square.sum()) / max(k * (k - 1), 1)
        sums["cost"] += float(((heads.costs - c[rows]) ** 2).mean(1).sum())
        sums["readout"] += float(((heads.readout.clamp(0, 1) - y[rows]) ** 2).mean(1).sum())
    return {name: value / len(x) for name, value in sums.items()}


def _constant_errors(train: Tensors, validation: Tensors) -> dict[str, float]:
    """Return the mean squared errors on validation of predicting every arm's train mean, at least 1e-6.

    The errors of the heads accuracy, propagation and cost are divided by them.
    """
    _, y, c = train
    _, vy, vc = validation
    score = max(float(((vy - y.mean(0)) ** 2).mean()), 1e-6)
    cost = max(float(((vc - c.mean(0)) ** 2).mean()), 1e-6)
    return {"accuracy": score, "propagation": score, "cost": cost}
