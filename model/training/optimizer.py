"""Which weight is updated how, as one optimizer with a parameter group for each kind of weight.

embeddings   AdamW     vectors of tokens and positions, and value embeddings
head         AdamW     the last matrix, where it is not the embedding's
tables       Adagrad   n-gram tables
matrices     Muon      every matrix inside a block
vectors      AdamW     every weight that is no matrix: biases, gains of norms, gates, sinks
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from model.attention import CausalSelfAttention
from model.gpt import GPT
from model.kernels import has_fast_bfloat16
from model.mistakes import Mistake, check_choices, check_range

Matrices = defaultdict[tuple[int, int], list[tuple[Tensor, Tensor]]]


@dataclass
class OptimizerConfig:
    """How the weights are updated.

    Args:
        algorithm: muon: Muon for the matrices of the blocks, AdamW for the rest; adamw: AdamW for both. N-gram tables
            have Adagrad either way.
        learning_rate: AdamW's, for embeddings; where algorithm is adamw, for matrices, biases and norms too.
        head_learning_rate: AdamW's, for an untied head; null means learning_rate.
        matrix_learning_rate: Muon's: about how far one step moves a matrix, as a spectral norm.
        vector_learning_rate: AdamW's beside Muon, for weights that are no matrices: biases, gains of norms, and what
            you add to attention, such as a gate or a sink. About how far one step moves each number.
        table_learning_rate: Adagrad's, for n-gram tables.
        weight_decay: decoupled: a step shrinks matrices by learning rate x weight_decay; norms, biases and
            embeddings are never decayed.
        betas: AdamW's decay of the first and second moment.
        epsilon: AdamW's, added to the root of the second moment.
        momentum: Muon's Nesterov momentum.

    Raises Mistake for a value that is not allowed.
    """

    algorithm: Literal["muon", "adamw"] = "muon"
    learning_rate: float = 0.01
    head_learning_rate: float | None = None
    matrix_learning_rate: float = 0.02
    vector_learning_rate: float = 0.003
    table_learning_rate: float = 0.25
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.8, 0.95)
    epsilon: float = 1e-8
    momentum: float = 0.95

    def __post_init__(self):
        check_choices(self, "model.optimizer.")
        rates = [f"{kind}learning_rate" for kind in ("", "head_", "matrix_", "vector_", "table_")]
        for name in (*rates, "weight_decay", "epsilon"):
            check_range(f"model.optimizer.{name}", getattr(self, name), 0)
        check_range("model.optimizer.momentum", self.momentum, 0, 1, high_open=True)
        for number, beta in enumerate(self.betas):
            check_range(f"model.optimizer.betas[{number}]", beta, 0, 1, high_open=True)


def build_optimizer(gpt: GPT, config: OptimizerConfig) -> torch.optim.Optimizer:
    """One optimizer for all weights of `gpt`; every parameter group has a `name`, and an `initial_lr` to schedule."""
    groups: dict[str, dict[str, Any]] = {
        "embeddings": {"lr": config.learning_rate, "weight_decay": 0.0},
        "head": {"lr": config.learning_rate},
        "tables": {"lr": config.table_learning_rate, "rule": "adagrad"},
        "matrices": {"lr": config.learning_rate},
        "vectors": {"lr": config.learning_rate, "weight_decay": 0.0},
    }
    if config.head_learning_rate is not None:
        groups["head"]["lr"] = config.head_learning_rate
    if config.algorithm == "muon":
        groups["matrices"] = {"lr": config.matrix_learning_rate, "momentum": config.momentum, "rule": "muon"}
        groups["vectors"]["lr"] = config.vector_learning_rate
    for name, group in groups.items():
        group["name"] = name
        group["params"] = []
        group["initial_lr"] = group["lr"]
    for name, parameter in gpt.named_parameters():
        groups[group_of(name, parameter)]["params"].append(parameter)
    # Queries, keys and values share one weight, but are matrices of their own, which learn at very different speeds.
    parts = {}
    for layer in gpt.modules():
        if isinstance(layer, CausalSelfAttention):
            queries, keys = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
            parts[layer.qkv_proj.weight] = [queries, keys, keys]
    optimizer = MuonAdamW(
        [group for group in groups.values() if group["params"]],
        parts,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
    )
    optimizer.register_load_state_dict_pre_hook(lambda _, state: with_vectors_apart(state, gpt))
    return optimizer


def group_of(name: str, parameter: Tensor) -> str:
    """The name of the parameter group of a weight of a GPT. A tied head is listed under the embedding's name."""
    if name == "head.weight":
        return "head"
    if name == "ngram_embedding.weight":
        return "tables"
    if parameter.ndim != 2:
        return "vectors"
    return "matrices" if name.startswith("blocks.") else "embeddings"


def with_vectors_apart(state: dict[str, Any], gpt: GPT) -> dict[str, Any]:
    """The saved state of an optimizer, also of an earlier version, which had the vectors among the embeddings."""
    groups = {group.get("name"): group for group in state["param_groups"]}
    kinds = [group_of(name, parameter) for name, parameter in gpt.named_parameters()]
    if "vectors" in groups or "vectors" not in kinds or "embeddings" not in groups:
        return state
    together = groups["embeddings"]
    kinds = [kind for kind in kinds if kind in ("embeddings", "vectors")]
    for kind in ("embeddings", "vectors"):
        numbers = [number for number, own in zip(together["params"], kinds, strict=True) if own == kind]
        groups[kind] = together | {"name": kind, "params": numbers}
    return state | {"param_groups": [*groups.values()]}


class MuonAdamW(torch.optim.Optimizer):
    """Muon, AdamW or Adagrad, as the `rule` of each parameter group says; without one AdamW.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) replaces the momentum of each matrix by the
    nearest orthogonal one, so that a step moves every direction of the matrix by the same amount: m x n matrices
    move by lr * sqrt(max(1, m / n)). Matrices of one shape are orthogonalised as one batch, tall ones as their
    transposes: a small model has many small matrices, and one batched product costs less than a loop.

    AdamW is torch.optim's fused one, which itself refuses gradient clipping in mixed precision.

    Adagrad (Duchi et al. 2011) divides the gradient of a table's row by the root of one number a row: the sum, over all
    steps, of that gradient's mean square. Rows that no token of the batch reads have no gradient, and nothing of
    them changes. So a step costs as much for a table of any size, if its gradient is sparse, and gives the same
    weights if it is dense. Adam would have to lower the moments of every row at every step, or, where it leaves those
    of unread rows as they are (as torch.optim.SparseAdam does), learns less.

    Args:
        groups: parameter groups; Muon's hold matrices only and have `momentum`.
        parts: for weights that hold several matrices above each other, the number of rows of each.
        defaults: AdamW's `betas` and `eps`, and the `weight_decay` of groups that have none of their own.
    """

    def __init__(self, groups: list[dict], parts: dict[Tensor, list[int]], **defaults: Any):
        super().__init__(groups, {"lr": 0.0, "rule": "adamw", **defaults})
        self.parts = parts

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, but the groups keep their own options, since a resumed run may have been given others.

        Raises Mistake for a state of another algorithm, or of other shapes, which would only fail at the next step.
        """
        own = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, options in zip(self.param_groups, own, strict=True):
            if group["rule"] != options["rule"]:
                raise Mistake(
                    f"model.optimizer.algorithm is {options['rule']}, but the checkpoint can only be resumed with "
                    f"{group['rule']}: write that, or start a run without a checkpoint"
                )
            # The rate is that of the last update, until the next one sets it.
            group |= options | {"lr": group["lr"]}
        for parameter, state in self.state.items():
            if any(value.shape != parameter.shape[: value.ndim] for value in state.values()):
                raise Mistake("the checkpoint's optimizer state is of other weights")

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every parameter that has a gradient."""
        with torch.enable_grad():
            loss = closure() if closure else None
        rules = {"muon": self._muon, "adagrad": self._adagrad, "adamw": self._adamw}
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                rules[group["rule"]](group, parameters)
        return loss

    def _muon(self, group: dict, parameters: list[Tensor]) -> None:
        """Lists of tensors are updated at once: on a GPU one launch serves them all."""
        gradients = [parameter.grad for parameter in parameters]
        momenta = self._state("momentum", parameters)
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        directions = torch._foreach_lerp(gradients, momenta, group["momentum"])  # Nesterov: look one step ahead
        # The (weight, direction) of each matrix, by the shape that it has or, if it is tall, its transpose.
        wide: Matrices = defaultdict(list)
        tall: Matrices = defaultdict(list)
        for parameter, direction in zip(parameters, directions, strict=True):
            rows = self.parts.get(parameter, parameter.shape[0])
            for pair in zip(parameter.split(rows), direction.split(rows), strict=True):
                m, n = pair[0].shape
                if m > n:
                    tall[n, m].append(pair)
                else:
                    wide[m, n].append(pair)
        weights: list[Tensor] = []
        steps: list[Tensor] = []
        for m, n in wide | tall:
            as_is, turned = wide[m, n], tall[m, n]
            matrices = [matrix for _, matrix in as_is]
            matrices += [matrix.mT for _, matrix in turned]
            updates = orthogonalize(torch.stack(matrices))
            of_turned = updates[len(as_is) :] * math.sqrt(n / m)
            weights += [weight for weight, _ in as_is + turned]
            steps += updates[: len(as_is)]
            steps += of_turned.mT.contiguous()
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, steps, alpha=-group["lr"])

    def _adagrad(self, group: dict, parameters: list[Tensor]) -> None:
        for parameter, squares in zip(parameters, self._state("squares", parameters), strict=True):
            gradient = parameter.grad
            rows: slice | Tensor = slice(None)
            if gradient.is_sparse:
                gradient = gradient.coalesce()
                rows, gradient = gradient.indices()[0], gradient.values()
            sums = squares[rows].add_(gradient.square().mean(dim=1))
            step = group["lr"] * gradient / (sums.sqrt() + group["eps"])[:, None]
            if parameter.grad.is_sparse:
                squares[rows] = sums
                parameter[rows] -= step
            else:  # `squares[rows]` was all of it, and an index on the left would copy the table once more
                parameter.sub_(step)

    def _adamw(self, group: dict, parameters: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters],
            self._state("exp_avg", parameters),
            self._state("exp_avg_sq", parameters),
            [],
            self._state("step", parameters),
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )

    def _state(self, name: str, parameters: list[Tensor]) -> list[Tensor]:
        """Zeros at first, like each parameter; "squares" has one a row, and "step", the number of updates, shape ()."""
        for parameter in parameters:
            state = self.state[parameter]
            if name not in state and name == "step":
                state[name] = torch.zeros((), device=parameter.device)
            elif name not in state:
                shape = parameter.shape[:1] if name == "squares" else parameter.shape
                state[name] = parameter.new_zeros(shape)
            elif name == "step":
                # `adamw` increments it on the device; from a checkpoint Lightning leaves it on the CPU.
                state[name] = state[name].to(parameter.device)
        return [self.state[parameter][name] for parameter in parameters]


# Five polynomials p(x) = a x + b x^3 + c x^5, applied in a row to send all singular values in [0.003, 1] to 1. Each is
# the minimax solution for the interval that the ones before it leave (Amsel et al. 2025, "The Polar Express",
# https://arxiv.org/abs/2505.16932). All but the last are scaled down by 1%, so that rounding in bfloat16 cannot push
# a value above the interval, where they diverge.
POLAR_EXPRESS = (
    (8.300667, -24.037544, 17.466134),
    (4.003387, -2.922840, 0.541871),
    (3.470862, -2.549404, 0.500204),
    (2.465461, -1.780329, 0.415633),
    (1.917776, -1.296750, 0.379705),
)


def orthogonalize(matrices: Tensor) -> Tensor:
    """The orthogonal matrix nearest to each: U V^T of its singular value decomposition, to within rounding.

    Singular values below 0.003 of the matrix's Frobenius norm stay between 0 and 1.

    Args:
        matrices: (N, m, n), m <= n.

    Returns:
        (N, m, n) in the dtype of `matrices`. The products are in bfloat16 where the device multiplies it faster than
        float32.
    """
    x = matrices.bfloat16() if has_fast_bfloat16(matrices.device.type) else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b G + c G G
        x = torch.baddbmm(x, polynomial, x, beta=a)  # a X + (b G + c G G) X
    return x.to(matrices.dtype)
