"""GPT: token embeddings -> blocks -> logits. Two families of models share one code path.

GPT-2 (Radford et al. 2019): learned positions, LayerNorm, GELU, biases, tied lm_head.
Modern: rotary positions, RMSNorm without parameters, QK-norm, squared ReLU or SwiGLU, no biases, untied lm_head,
value embeddings, logit soft-cap, grouped KV heads.

Shapes: B batch, T query length, S key length, D model width, H heads, K head width, V vocabulary.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import CausalSelfAttention
from model.cache import KVCache
from model.kernels import RMS_EPSILON, rms_norm
from model.masks import document_mask
from model.mistakes import Mistake, check_choices, check_divides, check_range
from model.rotary import rotary_angles

# The hash of an n-gram: each id times a factor (the last id times the first factor), summed modulo a prime; then the
# upper bits are mixed into the lower ones. A run's page computes the hash in JavaScript, whose numbers are exact below
# 2^53. The sum is below that for ids below 2^20.
NGRAM_FACTORS = (663608941, 1013904223, 987654361, 694847539, 841722311, 735632791, 899809343, 612345683)
NGRAM_PRIME = 2**31 - 1


@dataclass
class GPTConfig:
    """The hyperparameters of a GPT. Plain data: `dataclasses.asdict` and `GPTConfig(**fields)` are inverses.

    Args:
        vocab_size: V, the number of different tokens; null means the tokenizer's.
        context_length: the longest sequence the model reads, in tokens.
        num_layers: number of blocks.
        num_heads: H, query heads in a layer.
        embed_dim: D, width of the residual stream; a multiple of num_heads.
        num_kv_heads: key and value heads in a layer (grouped-query attention, arXiv:2305.13245); null means num_heads.
        feed_forward_dim: width of the hidden layer; null means 4 D (8/3 D for SwiGLU: the same number of weights).
        position: "rotary" (arXiv:2104.09864) or "learned" (a table of context_length vectors).
        norm: "rmsnorm" (without parameters) or "layernorm".
        embedding_norm: normalise the embeddings before the first block, as in nanochat.
        activation: "relu2" (squared ReLU, arXiv:2109.08668), "swiglu" (gated, arXiv:2002.05202; one more matrix),
            "gelu" (the tanh approximation, as in GPT-2; three times slower on a CPU) or "gelu_exact"
            (arXiv:1606.08415).
        bias: give the linear layers in the blocks and the LayerNorms a bias.
        tie_embeddings: use the token embedding's matrix as lm_head's (arXiv:1608.05859).
        qk_norm: normalise queries and keys before their dot product (arXiv:2302.05442).
        window: number of positions that a query can see, its own and those just before it; null means all.
        value_embeddings: in every second layer, add a learned vector of each token to its value, so that attention
            can copy a token's identity even if the residual stream has lost it (ResFormer, arXiv:2410.17897, in
            modded-nanogpt's form).
        ngram_sizes: for every n in this list, such as [2, 3, 4], add to each token's embedding a learned vector for the
            n-gram that ends with the token (n-gram embeddings, arXiv:2501.16975).
        ngram_buckets: vectors in the table of each n. N-grams are hashed to vectors, so some n-grams share a vector.
        logit_soft_cap: logits become cap * tanh(logits / cap) (Gemma 2, arXiv:2408.00118); null means no cap.
        dropout: probability, for attention weights, the output of each sub-layer, and the embeddings.
        init: how initial weights are drawn: "scaled" (for the modern family) or "gpt2"; see `GPT.init_weights`.

    Raises:
        Mistake: if a value is invalid; the message names the field and the values it may have.
    """

    vocab_size: int | None = None
    context_length: int = 256
    num_layers: int = 6
    num_heads: int = 6
    embed_dim: int = 192
    num_kv_heads: int | None = None
    feed_forward_dim: int | None = None
    position: Literal["rotary", "learned"] = "rotary"
    norm: Literal["layernorm", "rmsnorm"] = "rmsnorm"
    embedding_norm: bool = True
    activation: Literal["gelu", "gelu_exact", "relu2", "swiglu"] = "relu2"
    bias: bool = False
    tie_embeddings: bool = False
    qk_norm: bool = True
    window: int | None = None
    value_embeddings: bool = False
    ngram_sizes: list[int] = field(default_factory=list)
    ngram_buckets: int = 16384
    logit_soft_cap: float | None = 15.0
    dropout: float = 0.0
    init: Literal["scaled", "gpt2"] = "scaled"

    def __post_init__(self) -> None:
        check_choices(self, "model.gpt.")
        sizes = (
            "context_length",
            "num_layers",
            "num_heads",
            "embed_dim",
            "vocab_size",
            "num_kv_heads",
            "feed_forward_dim",
            "window",
            "ngram_buckets",
        )
        for name in sizes:
            check_range(f"model.gpt.{name}", getattr(self, name), 1)
        for size in self.ngram_sizes:
            check_range("model.gpt.ngram_sizes", size, 2, len(NGRAM_FACTORS), whole=True)
        self.ngram_sizes = sorted(set(self.ngram_sizes))
        check_range("model.gpt.logit_soft_cap", self.logit_soft_cap, 0, 1000, low_open=True)
        check_range("model.gpt.dropout", self.dropout, 0, 1, high_open=True)
        check_divides("model.gpt.num_heads", self.num_heads, "embed_dim", self.embed_dim)
        if self.position == "rotary" and self.head_dim % 2:
            raise Mistake(f"rotary positions need an even head width, but embed_dim / num_heads is {self.head_dim}")
        if self.num_kv_heads is None:
            self.num_kv_heads = self.num_heads
        check_divides("model.gpt.num_kv_heads", self.num_kv_heads, "num_heads", self.num_heads)
        if self.feed_forward_dim is None:
            is_gated = self.activation == "swiglu"
            self.feed_forward_dim = 8 * self.embed_dim // 3 if is_gated else 4 * self.embed_dim

    @property
    def head_dim(self) -> int:
        """K, the width of one head."""
        return self.embed_dim // self.num_heads


class RMSNorm(nn.RMSNorm):
    """`rms_norm` as a module. It has no gain to learn: the matrix that follows can learn the scale."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x)


def build_norm(config: GPTConfig) -> nn.Module:
    """Returns the config's norm over the last axis, D: RMSNorm or LayerNorm (Ba et al. 2016, arXiv:1607.06450)."""
    if config.norm == "layernorm":
        return nn.LayerNorm(config.embed_dim, bias=config.bias)
    return RMSNorm(config.embed_dim, eps=RMS_EPSILON, elementwise_affine=False)  # `rms_norm` has this epsilon too


def relu2(x: Tensor) -> Tensor:
    """Squared ReLU. A function and no lambda, so that a model which holds it can be pickled."""
    return F.relu(x).square()


# For a new one add a line here, a name in `GPTConfig.activation`, its formula in tests/by_hand.py, and a line in
# `ACTIVATIONS` of model/pages/browser/formulas.js, which computes the model on a run's page.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "gelu_exact": F.gelu,
    "relu2": relu2,
    "swiglu": F.silu,  # of the gate
}


class FeedForward(nn.Module):
    """The MLP: one hidden layer, applied to each position alone; (B, T, D) -> (B, T, D)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        D = config.embed_dim
        hidden = config.feed_forward_dim
        bias = config.bias
        self.activation = ACTIVATIONS[config.activation]
        self.up_proj = nn.Linear(D, hidden, bias=bias)
        self.gate_proj = None
        if config.activation == "swiglu":
            self.gate_proj = nn.Linear(D, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, D, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_proj is None:
            return self.down_proj(self.activation(self.up_proj(x)))
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Pre-norm residual block: x + attention(norm(x)), then x + feed_forward(norm(x)); (B, T, D) -> (B, T, D).

    On a run's page model/pages/browser/network.js computes the same; a badge says if it gives other logits than yours.
    While a text is written, x holds only the new tokens: what else looks at earlier ones must keep them too.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = build_norm(config)
        self.attention = CausalSelfAttention(
            config.embed_dim,
            config.num_heads,
            num_kv_heads=config.num_kv_heads,
            bias=config.bias,
            qk_norm=config.qk_norm,
            window=config.window,
            dropout=config.dropout,
        )
        self.feed_forward_norm = build_norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, **inputs: Any) -> Tensor:
        """inputs: what `CausalSelfAttention.forward` takes besides x."""
        x = x + self.dropout(self.attention(self.attention_norm(x), **inputs))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class NgramEmbedding(nn.Embedding):
    """Embeds a token by the n-grams that end with it: the sum of N vectors, one for each n in ngram_sizes.

    `weight` holds the N tables one after the other, smallest n first.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(len(config.ngram_sizes) * config.ngram_buckets, config.embed_dim)
        self.config = config

    def rows(self, tokens: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, N): the row of `weight` for each n-gram.

        Positions before the first token of a sequence or document count as an id that no token has.
        """
        T = tokens.shape[1]
        no_token = self.config.vocab_size
        buckets = self.config.ngram_buckets
        key = torch.zeros_like(tokens)
        rows: list[Tensor] = []
        for back in range(self.config.ngram_sizes[-1]):
            earlier = F.pad(tokens, (back, 0), value=no_token)[:, :T]
            if document_ids is not None:
                earlier_ids = F.pad(document_ids, (back, 0))[:, :T]
                earlier = earlier.where(earlier_ids == document_ids, no_token)
            key = key + NGRAM_FACTORS[back] * earlier
            if back + 1 in self.config.ngram_sizes:
                mixed = key % NGRAM_PRIME
                mixed = mixed ^ (mixed >> 15)
                rows.append(mixed % buckets + len(rows) * buckets)
        return torch.stack(rows, dim=-1)

    def forward(self, rows: Tensor) -> Tensor:
        """(B, T, N) -> (B, T, D)."""
        return super().forward(rows).sum(dim=-2)


class GPT(nn.Module):
    """A decoder-only transformer language model: tokens (B, T) -> logits (B, T, V).

    Raises:
        Mistake: if the config has no vocab_size.
        ValueError: from `forward`, if a sequence is longer than context_length.
    """

    blocks: list[Block]

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise Mistake("vocab_size is null: set it, or take it from a tokenizer")
        self.config = config
        V = config.vocab_size
        D = config.embed_dim
        self.token_embedding = nn.Embedding(V, D)
        self.ngram_embedding = NgramEmbedding(config) if config.ngram_sizes else None
        self.position_embedding = None
        if config.position == "learned":
            self.position_embedding = nn.Embedding(config.context_length, D)
        self.embedding_norm = build_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))  # type: ignore[assignment]
        self.value_embeddings = nn.ModuleDict()
        if config.value_embeddings:
            # The last layer and every second one before it, as in nanochat.
            for layer in range((config.num_layers - 1) % 2, config.num_layers, 2):
                self.value_embeddings[str(layer)] = nn.Embedding(V, config.num_kv_heads * config.head_dim)
        self.final_norm = build_norm(config)
        self.lm_head = nn.Linear(D, V, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draws the weights of all nn.Linear and nn.Embedding modules, as `config.init` says; their biases become 0.

        Norms, and a bare nn.Parameter that you add to a module, keep the values they were created with.

        "gpt2": normal with standard deviation 0.02. In the last matrix of each sub-layer this is divided by
        sqrt(2 num_layers), since there are 2 num_layers additions to the residual stream (Radford et al. 2019,
        section 2.3).

        "scaled": like muP (Yang et al. 2022, arXiv:2203.03466) as in modded-nanogpt. Matrices are uniform with standard
        deviation 1 / sqrt(fan-in), value embeddings with 1 / sqrt(D). The token embedding is normal with standard
        deviation 1, learned positions with 0.02. lm_head, the n-gram tables and the last matrix of each sub-layer are
        zero, so that every block starts as the identity and the first logits are exactly uniform. A tied lm_head cannot
        be zero: its standard deviation is 1 / D, which keeps the logit that each token gives itself near 1.

        All draws are from torch's global generator.
        """
        config = self.config
        last = ("output_proj", "down_proj")  # the last matrix of each sub-layer
        sublayer_ends = {module for name, module in self.named_modules() if name.endswith(last)}
        for module in self.modules():
            if not isinstance(module, nn.Linear | nn.Embedding):
                continue
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if module is self.lm_head and config.tie_embeddings:
                continue  # it is the token embedding, which is drawn too
            if config.init == "gpt2":
                std = 0.02 / math.sqrt(2 * config.num_layers) if module in sublayer_ends else 0.02
                nn.init.normal_(module.weight, std=std)
            elif module in sublayer_ends | {self.lm_head, self.ngram_embedding}:
                nn.init.zeros_(module.weight)
            elif module is self.token_embedding:
                nn.init.normal_(module.weight, std=1 / config.embed_dim if config.tie_embeddings else 1.0)
            elif module is self.position_embedding:
                nn.init.normal_(module.weight, std=0.02)
            else:
                fan_in = module.in_features if isinstance(module, nn.Linear) else config.embed_dim
                bound = math.sqrt(3 / fan_in)  # uniform in -bound..bound has standard deviation 1 / sqrt(fan_in)
                nn.init.uniform_(module.weight, -bound, bound)

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        """Returns, at each position, the logits of the next token: (B, T) -> (B, T, V), float32.

        options: those of `features`.
        """
        return self.unembed(self.features(tokens, **options))

    def features(
        self,
        tokens: Tensor,
        *,
        cache: KVCache | None = None,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        """(B, T) -> (B, T, D): the residual stream after the last block and final norm.

        Args:
            tokens: ids (B, T).
            cache: tokens of earlier calls with their keys and values. `tokens` follow them and are appended.
            document_ids: (B, T); a token then attends only to tokens with its own id. Not together with a cache.
        """
        T = tokens.shape[1]
        start = 0 if cache is None else cache.length
        if start + T > self.config.context_length:
            raise ValueError(f"got {start + T} tokens, more than the context_length {self.config.context_length}")
        layer_caches = [None] * len(self.blocks) if cache is None else cache.append(tokens)
        positions = torch.arange(start, start + T, device=tokens.device)
        x = self.token_embedding(tokens)
        if self.ngram_embedding is not None:
            recent = tokens
            if cache is not None:  # n-grams of the new tokens may begin among the cached ones
                first = max(0, start + 1 - len(NGRAM_FACTORS))
                recent = cache.tokens[:, first : start + T]
            x = x + self.ngram_embedding(self.ngram_embedding.rows(recent, document_ids)[:, -T:])
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions)
        if torch.is_autocast_enabled(x.device.type):  # autocast leaves embeddings in float32, and so the whole stream
            x = x.to(torch.get_autocast_dtype(x.device.type))
        x = self.dropout(self.embedding_norm(x).to(x.dtype))  # on GPUs autocast makes norms return float32

        rotary = None
        if self.config.position == "rotary":
            if cache is None:
                angles = rotary_angles(positions, self.config.head_dim)
            else:
                angles = cache.rotary_angles[:, start : start + T]
            rotary = angles.to(x.dtype).unbind()
        mask = None if document_ids is None else document_mask(document_ids)
        for layer, block in enumerate(self.blocks):
            value_embedding = None
            if str(layer) in self.value_embeddings:
                value_embedding = self.value_embeddings[str(layer)](tokens).to(x.dtype)
            x = block(
                x,
                rotary=rotary,
                mask=mask,
                cache=layer_caches[layer],
                value_embedding=value_embedding,
            )
        return self.final_norm(x)

    def unembed(self, x: Tensor) -> Tensor:
        """Features (..., D) -> logits (..., V) in float32, soft-capped if logit_soft_cap is set."""
        cap = self.config.logit_soft_cap
        if cap is None:
            return self.lm_head(x).float()
        # cap * tanh(z / cap) = 2 cap sigmoid(2 z / cap) - cap, where z are the logits. Sigmoid is faster than tanh, and
        # scaling x costs less than scaling z, which is larger. The subtraction rounds logits to cap / 10 million:
        # GPTConfig refuses a cap so large that this would matter.
        gates = torch.sigmoid(self.lm_head(x * (2 / cap)).float())
        return (2 * cap * gates).sub_(cap)

    def known_ids(self, tokens: Tensor) -> Tensor:
        """Returns the tokens as int64 on the model's device.

        Raises:
            TypeError: if they are not integers.
            ValueError: if an id is not in the vocabulary.
        """
        if tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise TypeError(f"tokens must hold integers, not {tokens.dtype}")
        tokens = tokens.long()
        if tokens.min() < 0 or tokens.max() >= self.config.vocab_size:
            allowed = f"0..{self.config.vocab_size - 1}"
            raise ValueError(f"token ids must lie in {allowed}, not in {tokens.min()}..{tokens.max()}")
        return tokens.to(self.token_embedding.weight.device)

    def is_finite(self) -> bool:
        """Returns whether all weights are numbers. Those of a model that has diverged are not."""
        return all(bool(torch.stack(weight.aminmax()).isfinite().all()) for weight in self.parameters())

    def num_parameters(self) -> int:
        """Returns the number of weights. The matrix of a tied lm_head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def flops_per_token(self) -> int:
        """Floating-point operations per token of one training step, forward and backward, over a full context.

        6 for each weight of a matrix (embeddings are only looked up), and 12 D S in each layer for the attention scores
        and the weighted sum of values, as in appendix B of PaLM (Chowdhery et al. 2022, arXiv:2204.02311). S is
        context_length, or the window if that is shorter. By custom the masked half of the scores is counted too. A
        network of your own may need another formula: speed (MFU) and comparisons use this one.
        """
        config = self.config
        modules = self.named_modules(remove_duplicate=False)  # a module that layers share works in each
        matrices = [module.weight for _, module in modules if isinstance(module, nn.Linear)]
        S = min(config.context_length, config.window or config.context_length)
        return 6 * sum(map(Tensor.numel, matrices)) + 12 * config.num_layers * config.embed_dim * S


# Held by whoever changes a model for a while, such as with hooks: one model may have many callers, in threads or in
# turns. One lock for all models, because random numbers and the compiler's state belong to the whole process.
one_at_a_time = threading.RLock()


@contextmanager
def in_eval_mode(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Puts modules into eval mode, without dropout, while the block runs; then restores the mode of each.

    Holds `one_at_a_time`. modules: all of a model, `model.modules()`.
    """
    with one_at_a_time:
        training = [module for module in modules if module.training]
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True
