"""The optimizer, with one parameter group and one update rule for each kind of weight.

embeddings   AdamW     embeddings of tokens and positions, and value embeddings
lm_head      AdamW     the last matrix, unless it is tied to the token embedding
tables       Adagrad   n-gram tables
matrices     Muon      the weight of every nn.Linear inside a block
vectors      AdamW     all other weights: biases, gains of norms, bare parameters such as a gate or sink that you add
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from model.attention import CausalSelfAttention
from model.gpt import GPT
from model.kernels import has_fast_bfloat16
from model.mistakes import Mistake, check_choices, check_range, imported

ALGORITHMS = ("muon", "adamw")
Matrices = defaultdict[tuple[int, int], list[tuple[Tensor, Tensor]]]  # shape -> pairs of weight and direction


@dataclass
class OptimizerConfig:
    """How the weights are updated.

    Args:
        algorithm: muon: Muon for the weights of the linear layers in the blocks, AdamW for the rest; adamw: AdamW for
            both. N-gram tables use Adagrad either way. Or your own, by the path of a class or function that takes
            PyTorch's parameter groups, such as mine.MyAdam or torch.optim.SGD; of the options below it gets the rates
            and weight_decay, in the groups.
        rate_scale: multiplies all five rates below.
        learning_rate: AdamW's rate for embeddings, whatever the width; with any other algorithm than muon also for
            matrices, where it goes with 1 / embed_dim, and for biases and norms. Your own algorithm gets it for n-gram
            tables too.
        lm_head_learning_rate: AdamW's rate for an untied lm_head; null means learning_rate. The best one goes with
            1 / embed_dim: half of it for twice the width.
        matrix_learning_rate: Muon's rate: about how far one step moves a matrix, as a spectral norm, whatever the
            width.
        vector_learning_rate: with algorithm muon, AdamW's rate for biases, gains of norms, and parameters that you add
            to attention, such as a gate or a sink: about how far one step moves each number, whatever the width.
        table_learning_rate: Adagrad's rate for n-gram tables, whatever the width.
        weight_decay: a step shrinks matrices and lm_head by learning rate x weight_decay (decoupled). Embeddings,
            tables, norms, biases and bare parameters are never decayed.
        betas: AdamW's decay rates of the first and second moment.
        epsilon: added to the root by which AdamW and Adagrad divide.
        momentum: Muon's Nesterov momentum.

    Raises:
        Mistake: if a value is not allowed.
    """

    algorithm: str = "muon"
    rate_scale: float = 1.0
    learning_rate: float = 0.01
    lm_head_learning_rate: float | None = None
    matrix_learning_rate: float = 0.02
    vector_learning_rate: float = 0.003
    table_learning_rate: float = 0.25
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.8, 0.95)
    epsilon: float = 1e-8
    momentum: float = 0.95

    def __post_init__(self):
        check_choices(self, "model.optimizer.")
        self.own = None  # what the path of your own algorithm names
        if self.algorithm not in ALGORITHMS:
            self.own = imported("model.optimizer.algorithm", self.algorithm, ALGORITHMS)
        names = (
            "rate_scale",
            "learning_rate",
            "lm_head_learning_rate",
            "matrix_learning_rate",
            "vector_learning_rate",
            "table_learning_rate",
            "weight_decay",
            "epsilon",
        )
        for name in names:
            check_range(f"model.optimizer.{name}", getattr(self, name), 0)
        check_range("model.optimizer.momentum", self.momentum, 0, 1, high_open=True)
        for number, beta in enumerate(self.betas):
            check_range(f"model.optimizer.betas[{number}]", beta, 0, 1, high_open=True)


def build_optimizer(gpt: GPT, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Builds the optimizer of all weights of `gpt`. Each group has a `name`, and an `initial_lr` for the schedule.

    Any optimizer of PyTorch may be returned. A new rule for some weights is a method of `MuonAdamW`, with a name in
    `OptimizerConfig.algorithm`.

    The rules of how rates go with width are those of muP (Yang et al. 2022, arXiv:2203.03466, table 8) for Adam.
    """
    groups: dict[str, dict[str, Any]] = {
        "embeddings": {"lr": config.learning_rate, "weight_decay": 0.0},
        "lm_head": {"lr": config.learning_rate},
        "tables": {"lr": config.table_learning_rate, "weight_decay": 0.0, "rule": "adagrad"},
        "matrices": {"lr": config.learning_rate},
        "vectors": {"lr": config.learning_rate, "weight_decay": 0.0},
    }
    if config.lm_head_learning_rate is not None:
        groups["lm_head"]["lr"] = config.lm_head_learning_rate
    if config.algorithm == "muon":
        groups["matrices"] = {"lr": config.matrix_learning_rate, "momentum": config.momentum, "rule": "muon"}
        groups["vectors"]["lr"] = config.vector_learning_rate
    if config.own:
        groups["tables"]["lr"] = config.learning_rate
    for name, group in groups.items():
        group["name"] = name
        group["params"] = []
        group["lr"] *= config.rate_scale
        group["initial_lr"] = group["lr"]
        group.setdefault("weight_decay", config.weight_decay)
    for name, parameter in zip(group_names(gpt), gpt.parameters(), strict=True):
        groups[name]["params"].append(parameter)
    used = [group for group in groups.values() if group["params"]]
    if config.own:
        return config.own(used)
    # The projections to queries, keys and values share one weight, but learn at very different speeds: Muon treats them
    # as three matrices.
    stacked_rows = {}
    for layer in gpt.modules():
        if isinstance(layer, CausalSelfAttention) and hasattr(layer, "qkv_proj"):
            queries, keys = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
            stacked_rows[layer.qkv_proj.weight] = [queries, keys, keys]
    return MuonAdamW(
        used,
        stacked_rows,
        betas=config.betas,
        eps=config.epsilon,
    )


def with_own_options(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Returns a saved state with the options that the optimizer has now: a resumed run may have new ones.

    The learning rate of the last update stays until the next update sets its own.
    """
    pairs = zip(optimizer.param_groups, state["param_groups"], strict=True)
    return state | {"param_groups": [own | {name: saved[name] for name in ("params", "lr")} for own, saved in pairs]}


def group_names(gpt: GPT) -> list[str]:
    """Returns the name of each parameter's group, in the order of `gpt.named_parameters()`.

    That order lists a tied lm_head as the token embedding.
    """
    modules = chain.from_iterable(block.modules() for block in gpt.blocks)
    matrices = {module.weight for module in modules if isinstance(module, nn.Linear)}
    names = []
    for name, parameter in gpt.named_parameters():
        if name == "lm_head.weight":
            names.append("lm_head")
        elif name == "ngram_embedding.weight":
            names.append("tables")
        elif parameter in matrices:
            names.append("matrices")
        elif name.startswith("blocks.") or parameter.ndim != 2:
            names.append("vectors")
        else:
            names.append("embeddings")
    return names


class MuonAdamW(torch.optim.Optimizer):
    """Updates each parameter group by its `rule`: "muon", "adagrad" or, by default, "adamw".

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) replaces the momentum of each matrix by the
    nearest orthogonal matrix, so that a step moves an m x n matrix equally far in every direction, by
    lr * sqrt(max(1, m / n)). Matrices of one shape are orthogonalised as one batch, tall ones transposed: a small model
    has many small matrices, and one batched product costs less than a loop.

    AdamW calls the fused kernel of torch.optim.AdamW. The class itself is not used: with it, Lightning refuses gradient
    clipping in mixed precision.

    Adagrad (Duchi et al. 2011) divides the gradient of each row by the root of a single number: the sum, over all
    steps, of that gradient's mean square. A row that no token of the batch reads has no gradient and does not change.
    So a step with a sparse gradient costs the same for a table of any size, and gives the same weights as a step with a
    dense one. Adam would have to decay the moments of every row at every step; if it skips unread rows, as
    torch.optim.SparseAdam does, it learns less.

    Args:
        groups: parameter groups; a group of Muon holds only matrices and has `momentum`.
        parts: for each weight in which several matrices are stacked, the number of rows of each matrix.
        defaults: AdamW's `betas` and `eps`, and the `weight_decay` of groups without their own.
    """

    def __init__(self, groups: list[dict], parts: dict[Tensor, list[int]], **defaults: Any):
        super().__init__(groups, {"lr": 0.0, "rule": "adamw", **defaults})
        self.parts = parts

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state as torch does. Raises a `Mistake` for other shapes, which would only fail at the next step."""
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            if any(value.shape != parameter.shape[: value.ndim] for value in state.values()):
                raise Mistake("the checkpoint's optimizer state has other shapes than the model's weights")

    @torch.no_grad()
    def step(self, closure=None):
        """Updates every parameter that has a gradient."""
        with torch.enable_grad():
            loss = closure() if closure else None
        rules = {"muon": self._muon, "adagrad": self._adagrad, "adamw": self._adamw}
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                rules[group["rule"]](group, parameters)
        return loss

    def _muon(self, group: dict, parameters: list[Tensor]) -> None:
        """Works on lists of tensors: on a GPU, one kernel launch then serves all tensors of a list."""
        gradients = [parameter.grad for parameter in parameters]
        momenta = self._state("momentum", parameters)
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        directions = torch._foreach_lerp(gradients, momenta, group["momentum"])  # Nesterov: look one step ahead
        # Matrices by their shape, and tall matrices by the shape of their transpose.
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
            wide_pairs, tall_pairs = wide[m, n], tall[m, n]
            matrices = [direction for _, direction in wide_pairs]
            matrices += [direction.mT for _, direction in tall_pairs]
            updates = orthogonalize(torch.stack(matrices))
            tall_updates = updates[len(wide_pairs) :] * math.sqrt(n / m)
            weights += [weight for weight, _ in wide_pairs + tall_pairs]
            steps += updates[: len(wide_pairs)]
            steps += tall_updates.mT.contiguous()
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
            else:  # `squares[rows]` is a view, updated above; `parameter[rows] -= step` would copy the table once more
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
        """Returns the state `name` of each parameter, zeros at first.

        The state has the parameter's shape, with two exceptions: "squares" has one number for each row, and "step", the
        number of updates, has shape ().
        """
        for parameter in parameters:
            state = self.state[parameter]
            if name not in state and name == "step":
                state[name] = torch.zeros((), device=parameter.device)
            elif name not in state:
                shape = parameter.shape[:1] if name == "squares" else parameter.shape
                state[name] = parameter.new_zeros(shape)
            elif name == "step":
                # `adamw` increments the step on the device; Lightning leaves it on the CPU when it loads a checkpoint.
                state[name] = state[name].to(parameter.device)
        return [self.state[parameter][name] for parameter in parameters]


# Five polynomials p(x) = a x + b x^3 + c x^5. Applied one after the other, they map all singular values in [0.003, 1]
# to 1. Each is the minimax solution on the interval that those before it map to (Amsel et al. 2025, "The Polar
# Express", https://arxiv.org/abs/2505.16932). All but the last are scaled down by 1%, so that rounding in bfloat16
# cannot push a value above the interval, where they diverge.
POLAR_EXPRESS = (
    (8.300667, -24.037544, 17.466134),
    (4.003387, -2.922840, 0.541871),
    (3.470862, -2.549404, 0.500204),
    (2.465461, -1.780329, 0.415633),
    (1.917776, -1.296750, 0.379705),
)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Returns the orthogonal matrix nearest to each: U V^T of its singular value decomposition, to within rounding.

    Singular values below 0.003 times the matrix's Frobenius norm become values between 0 and 1 instead of 1.

    Args:
        matrices: (N, m, n), m <= n.

    Returns:
        (N, m, n) in the dtype of `matrices`. The products are in bfloat16 if the device multiplies that faster than
        float32.
    """
    x = matrices.bfloat16() if has_fast_bfloat16(matrices.device.type) else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b G + c G G
        x = torch.baddbmm(x, polynomial, x, beta=a)  # a X + (b G + c G G) X
    return x.to(matrices.dtype)
