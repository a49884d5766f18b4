"""GPT: token embeddings -> blocks -> logits, in two families with one code path.

GPT-2's (Radford et al. 2019): learned positions, LayerNorm, GELU, biases, tied head.
The modern one: rotary positions, parameter-free RMSNorm, QK-norm, squared ReLU or SwiGLU, no biases, untied head,
value embeddings, logit soft-cap, grouped KV heads.

Shapes: B batch, T query length, S key length, D model width, H heads, K head width, V vocabulary.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.block import Block, build_norm
from model.cache import KVCache, StaticCache
from model.linear import Linear
from model.masks import document_mask
from model.rotary import RotaryEmbedding


@dataclass
class GPTConfig:
    """What makes a GPT. Plain data: `dataclasses.asdict` and `GPTConfig(**fields)` are inverses.

    Args:
        vocab_size: V; null in a YAML means: as many as the tokenizer has.
        context_length: the longest sequence the model sees, in tokens.
        num_layers: number of blocks.
        num_heads: H, query heads in a layer.
        embed_dim: D, width of the residual stream; a multiple of num_heads.
        num_kv_heads: key and value heads (grouped-query attention, arXiv:2305.13245); null means num_heads.
        feed_forward_dim: width of the hidden layer; null means 4 D (8/3 D for SwiGLU: the same number of weights).
        position: "rotary" (arXiv:2104.09864) or "learned" (a table of context_length vectors).
        norm: "rmsnorm" (without parameters) or "layernorm".
        embedding_norm: the embeddings are normalised before they enter the first block, as in nanochat.
        activation: "relu2", "swiglu", "gelu" or "gelu_exact".
        bias: offsets in the linear layers and LayerNorms.
        tie_embeddings: the head's matrix is the embedding's (arXiv:1608.05859).
        qk_norm: queries and keys are normalised before their product (arXiv:2302.05442).
        window: how many positions back a query sees, itself included; null means all.
        value_embeddings: every other layer's values get a learned vector of their token added, so that the
            attention can move a token's identity without the residual stream carrying it (ResFormer,
            arXiv:2410.17897, in modded-nanogpt's form).
        bigram_buckets: each token's embedding gets a second vector added that stands for the pair of it and the token
            before, found by hashing the pair into so many buckets (n-gram embeddings, arXiv:2501.16975; hashed as in
            modded-nanogpt). What often follows what is then known before the first layer; null means no such table.
        logit_soft_cap: logits become cap * tanh(logits / cap) (Gemma 2, arXiv:2408.00118); null means no cap.
        dropout: probability, on attention weights, on what each sub-layer adds, and on the embeddings.

    Raises:
        ValueError: for values that fit no model; the message names the field and what it may be.
    """

    vocab_size: int | None = None
    context_length: int = 256
    num_layers: int = 6
    num_heads: int = 6
    embed_dim: int = 192
    num_kv_heads: int | None = None
    feed_forward_dim: int | None = None
    position: str = "rotary"
    norm: str = "rmsnorm"
    embedding_norm: bool = True
    activation: str = "relu2"
    bias: bool = False
    tie_embeddings: bool = False
    qk_norm: bool = True
    window: int | None = None
    value_embeddings: bool = False
    bigram_buckets: int | None = None
    logit_soft_cap: float | None = 15.0
    dropout: float = 0.0

    def __post_init__(self):
        for name in ("context_length", "num_layers", "num_heads", "embed_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.vocab_size is not None and self.vocab_size < 1:
            raise ValueError(f"vocab_size must be at least 1, not {self.vocab_size}")
        if self.feed_forward_dim is not None and self.feed_forward_dim < 1:
            raise ValueError(f"feed_forward_dim must be at least 1, or null, not {self.feed_forward_dim}")
        if self.embed_dim % self.num_heads:
            raise ValueError(f"num_heads must divide embed_dim: {self.num_heads} does not divide {self.embed_dim}")
        if self.position not in ("rotary", "learned"):
            raise ValueError(f"position must be 'rotary' or 'learned', not {self.position!r}")
        if self.position == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head width: embed_dim / num_heads is {self.head_dim}")
        if self.bigram_buckets is not None and self.bigram_buckets < 1:
            raise ValueError(f"bigram_buckets must be at least 1, or null for none, not {self.bigram_buckets}")
        if self.logit_soft_cap is not None and not 0 < self.logit_soft_cap < math.inf:
            raise ValueError(f"logit_soft_cap must be positive (and finite) or null, not {self.logit_soft_cap}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), not {self.dropout}")
        if self.num_kv_heads is None:
            self.num_kv_heads = self.num_heads
        if self.feed_forward_dim is None:
            self.feed_forward_dim = 8 * self.embed_dim // 3 if self.activation == "swiglu" else 4 * self.embed_dim

    @property
    def head_dim(self) -> int:
        """K, the width of one head."""
        return self.embed_dim // self.num_heads


class GPT(nn.Module):
    """A decoder-only transformer language model: tokens (B, T) -> logits (B, T, V).

    Raises:
        ValueError: if the config has no vocab_size, or (in forward) if a sequence is longer than context_length.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is null: set it, or take it from a tokenizer")
        self.config = config
        vocab_size, dim = config.vocab_size, config.embed_dim
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.bigram_embedding = None if config.bigram_buckets is None else nn.Embedding(config.bigram_buckets, dim)
        if config.position == "rotary":
            self.position_embedding = None
            self.rotary = RotaryEmbedding(config.head_dim, config.context_length)
        else:
            self.position_embedding = nn.Embedding(config.context_length, dim)
            self.rotary = None
        self.embedding_norm = build_norm(config.norm, dim, config.bias) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.value_embeddings = nn.ModuleDict()
        if config.value_embeddings:
            # The last layer and every second before it, as nanochat has them.
            for layer in range((config.num_layers - 1) % 2, config.num_layers, 2):
                self.value_embeddings[str(layer)] = nn.Embedding(vocab_size, config.num_kv_heads * config.head_dim)
        self.final_norm = build_norm(config.norm, dim, config.bias)
        self.head = Linear(dim, vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.token_embedding.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draws every parameter anew from torch's global generator.

        With a tied head, GPT-2's: normal with standard deviation 0.02, and what each sub-layer adds scaled down by
        sqrt(2 num_layers), the number of additions to the residual stream (Radford et al. 2019, section 2.3).
        Otherwise muP-like (Yang et al. 2022, arXiv:2203.03466; modded-nanogpt): matrices uniform with standard
        deviation 1 / sqrt(fan-in), and zeros in the head, in the bigram table and in each sub-layer's last
        matrix, so that the network starts as the identity and its first logits are exactly uniform.
        """
        gpt2 = self.config.tie_embeddings
        residual_std = 0.02 / math.sqrt(2 * self.config.num_layers)
        for name, parameter in self.named_parameters():
            ends_sublayer = name.endswith(("output_proj.weight", "down_proj.weight"))
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" in name:
                nn.init.ones_(parameter)
            elif gpt2:
                nn.init.normal_(parameter, std=residual_std if ends_sublayer else 0.02)
            elif ends_sublayer or name in ("head.weight", "bigram_embedding.weight"):
                nn.init.zeros_(parameter)
            elif name.startswith("token_embedding"):
                nn.init.normal_(parameter, std=1.0)
            elif name.startswith("position_embedding"):
                nn.init.normal_(parameter, std=0.02)
            else:
                bound = math.sqrt(3 / self.config.embed_dim)  # of the uniform distribution with that deviation
                nn.init.uniform_(parameter, -bound, bound)

    def forward(self, tokens: Tensor, *, cache: KVCache | None = None, document_ids: Tensor | None = None) -> Tensor:
        """Logits of each position's next token.

        Args:
            tokens: (B, T) token ids.
            cache: keys and values of earlier tokens; the new ones are appended, and positions go on after them.
            document_ids: (B, T); attention then stays within equal ids. Not together with a cache.

        Returns:
            (B, T, V), float32.
        """
        return self.unembed(self.features(tokens, cache=cache, document_ids=document_ids))

    def loss(
        self, tokens: Tensor, targets: Tensor, *, document_ids: Tensor | None = None, reduction: str = "mean"
    ) -> Tensor:
        """Cross-entropy in nats of `targets` (B, T) after `tokens` (B, T); targets of -100 do not count."""
        logits = self(tokens, document_ids=document_ids)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=reduction)

    def features(
        self, tokens: Tensor, *, cache: KVCache | StaticCache | None = None, document_ids: Tensor | None = None
    ) -> Tensor:
        """(B, T) -> (B, T, D), the residual stream after the last block and the final norm."""
        length = tokens.shape[1]
        offset = 0 if cache is None else cache.length
        if isinstance(offset, int) and offset + length > self.config.context_length:
            raise ValueError(
                f"the sequence has {offset + length} tokens, more than the context_length {self.config.context_length}"
            )
        recent = tokens if cache is None else cache.append_tokens(tokens)
        x = self.token_embedding(tokens)
        if self.bigram_embedding is not None:
            x = x + self.bigram_embedding(self.bigram_buckets(recent, document_ids)[:, -length:])
        if self.position_embedding is not None:
            x = x + self.position_embedding(offset + torch.arange(length, device=tokens.device))
        if torch.is_autocast_enabled(x.device.type):  # else the sums below would stay in float32
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rotary = None
        if self.rotary is not None:
            rotary = tuple(table.to(x.dtype) for table in self.rotary(length, offset))
        mask = None if document_ids is None else document_mask(document_ids)
        x = self.dropout(self.embedding_norm(x).to(x.dtype))  # on GPUs autocast lets a norm give float32
        for layer, block in enumerate(self.blocks):
            value_embedding = None
            if str(layer) in self.value_embeddings:
                value_embedding = self.value_embeddings[str(layer)](tokens).to(x.dtype)
            layer_cache = None if cache is None else cache.layer(layer)
            x = block(x, rotary=rotary, mask=mask, cache=layer_cache, value_embedding=value_embedding)
        return self.final_norm(x)

    def bigram_buckets(self, tokens: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T): which vector of the bigram table stands for each token and the one before it.

        The first token of a sequence, or of a document, counts as following an id that no token has.
        """
        nothing = self.config.vocab_size
        previous = F.pad(tokens[:, :-1], (1, 0), value=nothing)
        if document_ids is not None:
            starts = F.pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0), value=True)
            previous = previous.masked_fill(starts, nothing)
        # Two odd constants without a common factor spread neighbouring ids over the table.
        return (40503 * tokens + 65599 * previous) % self.config.bigram_buckets

    def unembed(self, x: Tensor) -> Tensor:
        """Features (B, T, D) -> logits (B, T, V) in float32, soft-capped if the config says so."""
        cap = self.config.logit_soft_cap
        if cap is None:
            return self.head(x).float()
        # cap * tanh(logits / cap); processors are three times as fast at a sigmoid, and at scaling D numbers, not V.
        gates = torch.sigmoid(self.head(x * (2 / cap)).float())
        return (2 * cap * gates).sub_(cap)

    def num_parameters(self) -> int:
        """Number of weights; shared ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def flops_per_token(self) -> int:
        """Floating-point operations of one training step, forward and backward, for each token of a full context.

        6 for each weight that is multiplied (embeddings are looked up) and 12 D S for a layer's scores and mixing,
        as in appendix B of PaLM (Chowdhery et al. 2022, arXiv:2204.02311); S is context_length (or the window):
        the causal half is not subtracted, as is the custom.
        """
        weights = sum(module.weight.numel() for module in self.modules() if isinstance(module, nn.Linear))
        seen = min(self.config.context_length, self.config.window or self.config.context_length)
        return 6 * weights + 12 * self.config.num_layers * self.config.embed_dim * seen


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Within, dropout is off; afterwards every module is in the mode that it was in."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, training in modes.items():
            module.training = training
