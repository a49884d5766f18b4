"""The GPT's forward pass written out from its weights alone, in float64, as a reference for tests.

Gradients flow to the GPT's own weights.
"""

import math

import torch

from model.gpt import NGRAM_FACTORS, NGRAM_PRIME

ACTIVATIONS = {
    "gelu": lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_exact": lambda x: x / 2 * (1 + torch.erf(x / math.sqrt(2))),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "swiglu": lambda x: x / (1 + torch.exp(-x)),  # applied to the gate
}


def normalised(x):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def turned(x):
    """Rotates x (..., T, K) by its positions: each pair of numbers is multiplied as a complex number."""
    T, half = x.shape[-2], x.shape[-1] // 2
    angles = torch.arange(T).double()[:, None] * 10000.0 ** (-torch.arange(half) / half)
    pairs = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * angles)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


class ByHand:
    """All intermediate values by name: `stops` of the whole GPT, `layers` of each block. Only "ids" has a batch."""

    def __init__(self, gpt, ids):
        named = gpt.named_parameters(remove_duplicate=False)
        self.config, self.weights = gpt.config, {name: weight.double() for name, weight in named}
        config, weights, T = self.config, self.weights, len(ids)
        self.stops, self.layers = {"ids": torch.tensor([ids])}, []
        self.stops["token embedding"] = x = weights["token_embedding.weight"][ids]
        if config.ngram_sizes:
            buckets, padded = config.ngram_buckets, [config.vocab_size] * 8 + ids
            vectors = torch.zeros_like(x)
            for table, size in enumerate(config.ngram_sizes):
                for t in range(T):
                    key = sum(NGRAM_FACTORS[back] * padded[8 + t - back] for back in range(size))
                    mixed = key % NGRAM_PRIME
                    bucket = (mixed ^ (mixed >> 15)) % buckets
                    vectors[t] += weights["ngram_embedding.weight"][table * buckets + bucket]
            self.stops["n-gram embedding"] = vectors
            x = x + vectors
        if config.position == "learned":
            self.stops["position embedding"] = weights["position_embedding.weight"][:T]
            x = x + self.stops["position embedding"]
        self.stops["residual stream"] = x = self.norm(x, "embedding_norm") if config.embedding_norm else x
        for layer in range(config.num_layers):
            x = self.block(x, layer, ids)
        self.stops["final norm"] = self.norm(x, "final_norm")
        self.stops["logits"] = logits = self.read(x)
        surprise = logits.logsumexp(-1)[:-1] - logits[range(T - 1), ids[1:]]
        self.stops |= {"surprise": surprise, "loss": surprise.mean()}

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0)

    def norm(self, x, name):
        return self.share_of_norm(x, x, name) + self.weights.get(f"{name}.bias", 0)

    def share_of_norm(self, x, at, name):
        """Applies a norm to x without its bias, with the scale that the norm has for its whole input `at`."""
        epsilon = 1e-6
        if self.config.norm == "layernorm":
            x, at, epsilon = x - x.mean(-1, keepdim=True), at - at.mean(-1, keepdim=True), 1e-5
        x = x / (at.square().mean(-1, keepdim=True) + epsilon).sqrt()
        return x * self.weights.get(f"{name}.weight", 1)

    def read(self, x):
        """Returns the logits of a residual stream (T, D)."""
        logits, cap = self.linear(self.norm(x, "final_norm"), "lm_head"), self.config.logit_soft_cap
        return cap * torch.tanh(logits / cap) if cap else logits

    def written(self, layers=None):
        """Returns what each table, and each part of the first `layers`, adds to the residual stream, (T, D) each."""
        config, weights = self.config, self.weights
        names = {"token embedding": "token embedding", "n-gram embedding": "n-gram tables"}
        names["position embedding"] = "positions"
        found = {name: self.stops[stop] for stop, name in names.items() if stop in self.stops}
        total = sum(found.values())
        if config.embedding_norm:
            found = {part: self.share_of_norm(x, total, "embedding_norm") for part, x in found.items()}
        biases = {"embedding bias": "embedding_norm.bias"}
        for layer, seen in enumerate(self.layers[:layers]):
            block = f"blocks.{layer}"
            matrices = weights[f"{block}.attention.output_proj.weight"].split(config.head_dim, dim=1)
            for head, matrix in enumerate(matrices):
                found[f"head {layer}.{head}"] = seen["mixed values"][head] @ matrix.T
            biases[f"attention bias {layer}"] = f"{block}.attention.output_proj.bias"
            biases[f"feed-forward bias {layer}"] = bias = f"{block}.feed_forward.down_proj.bias"
            found[f"feed-forward {layer}"] = seen["feed-forward output"] - weights.get(bias, 0)
        known = {part: weights[name].expand_as(total) for part, name in biases.items() if name in weights}
        return found | known

    def block(self, x, layer, ids):
        config, block, T = self.config, f"blocks.{layer}", len(ids)
        H, H_kv, K = config.num_heads, config.num_kv_heads, config.head_dim
        distance = torch.arange(T)[:, None] - torch.arange(T)
        mask = (distance >= 0) & (distance < (config.window or T))
        seen = {"stream into the block": x, "mask": mask}
        seen["attention norm"] = normed = self.norm(x, f"{block}.attention_norm")
        seen["queries, keys, values"] = qkv = self.linear(normed, f"{block}.attention.qkv_proj")
        q, k, v = qkv.split((H * K, H_kv * K, H_kv * K), dim=-1)
        if f"value_embeddings.{layer}.weight" in self.weights:
            seen["value embedding"] = self.weights[f"value_embeddings.{layer}.weight"][ids]
            v = v + seen["value embedding"]
        q, k, v = (torch.stack(one.split(K, dim=-1)) for one in (q, k, v))  # (H or H_kv, T, K)
        if config.qk_norm:
            q, k = normalised(q), normalised(k)
        seen["queries"] = q
        if config.position == "rotary":
            seen["queries, turned"] = q = turned(q)
            k = turned(k)
        seen |= {"keys": k, "values": v}
        shared = [head // (H // H_kv) for head in range(H)]
        seen["scores"] = scores = torch.stack([q[head] @ k[shared[head]].T / math.sqrt(K) for head in range(H)])
        seen["weights"] = maps = (scores - torch.where(mask, 0.0, math.inf)).softmax(-1)
        seen["mixed values"] = mixed = torch.stack([maps[head] @ v[shared[head]] for head in range(H)])
        seen["output projection"] = self.linear(torch.cat([*mixed], dim=-1), f"{block}.attention.output_proj")
        seen["stream after attention"] = x = x + seen["output projection"]
        seen["feed-forward norm"] = normed = self.norm(x, f"{block}.feed_forward_norm")
        up = self.linear(normed, f"{block}.feed_forward.up_proj")
        activation = ACTIVATIONS[config.activation]  # a new one needs its formula there
        if f"{block}.feed_forward.gate_proj.weight" in self.weights:
            seen["hidden units"] = activation(self.linear(normed, f"{block}.feed_forward.gate_proj")) * up
        else:
            seen["hidden units"] = activation(up)
        seen["feed-forward output"] = self.linear(seen["hidden units"], f"{block}.feed_forward.down_proj")
        seen["stream after the block"] = x = x + seen["feed-forward output"]
        self.layers.append(seen)
        return x
