"""One transformer block: norm, attention, norm, feed-forward, each added to the residual stream.

Shapes: B batch, T query length, D model width.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import CausalSelfAttention
from model.linear import Linear


def build_norm(kind: str, dim: int, bias: bool) -> nn.Module:
    """A norm over the last dimension.

    Args:
        kind: `"layernorm"` (Ba et al. 2016, arXiv:1607.06450; weight and, with `bias`, offset) or `"rmsnorm"`
            (Zhang & Sennrich 2019, arXiv:1910.07467), here without parameters: the next matrix can learn the scale.
        dim: D.
        bias: whether LayerNorm has an offset; RMSNorm has none.

    Raises:
        ValueError: if `kind` is neither.
    """
    if kind == "layernorm":
        return nn.LayerNorm(dim, bias=bias)
    if kind == "rmsnorm":
        return nn.RMSNorm(dim, eps=1e-6, elementwise_affine=False)
    raise ValueError(f"norm must be 'layernorm' or 'rmsnorm', not {kind!r}")


class FeedForward(nn.Module):
    """(B, T, D) -> (B, T, D), position by position, through a hidden layer of `hidden_dim`.

    Args:
        activation: `"gelu_exact"` (Hendrycks & Gimpel 2016, arXiv:1606.08415), `"gelu"` (its approximation by tanh, as
            GPT-2 has it; on a processor three times slower), `"relu2"` (squared ReLU, So et al. 2021,
            arXiv:2109.08668) or `"swiglu"` (gated, Shazeer 2020, arXiv:2002.05202; one matrix more).

    Raises:
        ValueError: if `activation` is none of these.
    """

    def __init__(self, dim: int, hidden_dim: int, *, activation: str = "relu2", bias: bool = False):
        super().__init__()
        if activation not in ("gelu", "gelu_exact", "relu2", "swiglu"):
            raise ValueError(f"activation must be 'gelu', 'gelu_exact', 'relu2' or 'swiglu', not {activation!r}")
        self.activation = activation
        self.up_proj = Linear(dim, hidden_dim, bias=bias)
        self.gate_proj = Linear(dim, hidden_dim, bias=bias) if activation == "swiglu" else None
        self.down_proj = Linear(hidden_dim, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up_proj(x)
        if self.activation == "gelu":
            hidden = F.gelu(hidden, approximate="tanh")
        elif self.activation == "gelu_exact":
            hidden = F.gelu(hidden)
        elif self.activation == "relu2":
            hidden = F.relu(hidden).square()
        else:
            hidden = F.silu(self.gate_proj(x)) * hidden
        return self.down_proj(hidden)


class Block(nn.Module):
    """Pre-norm residual block: x + attention(norm(x)), then x + feed_forward(norm(x)); (B, T, D) -> (B, T, D)."""

    def __init__(self, config):  # a GPTConfig; gpt.py imports this module, so it cannot be named here
        super().__init__()
        self.attention_norm = build_norm(config.norm, config.embed_dim, config.bias)
        self.attention = CausalSelfAttention(
            config.embed_dim,
            config.num_heads,
            num_kv_heads=config.num_kv_heads,
            bias=config.bias,
            qk_norm=config.qk_norm,
            window=config.window,
            dropout=config.dropout,
        )
        self.feed_forward_norm = build_norm(config.norm, config.embed_dim, config.bias)
        self.feed_forward = FeedForward(
            config.embed_dim, config.feed_forward_dim, activation=config.activation, bias=config.bias
        )
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()

    def forward(
        self,
        x: Tensor,
        *,
        rotary: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        cache=None,
        value_embedding: Tensor | None = None,
    ) -> Tensor:
        attended = self.attention(
            self.attention_norm(x), rotary=rotary, mask=mask, cache=cache, value_embedding=value_embedding
        )
        x = x + self.dropout(attended)
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
