"""The parts of a logit are those that gradients and a slow loop find, and their sum is the model's own logit."""

import copy
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from model.gpt import GPTConfig
from model.inspection.attribution import attribution
from model.inspection.trace import trace
from tests.by_hand import ByHand
from tests.gpts import random_gpt
from tests.model.pages.architectures import CONFIGS, TOKENS, linear_part

CONFIG_FILES = Path(__file__).parents[3] / "configs"


def model_logits(gpt, tokens):
    """The model's logits of the true next tokens, with the soft-cap undone."""
    with torch.no_grad():
        logits = gpt(tokens[None])[0, :-1].double().gather(1, tokens[1:, None])[:, 0]
    cap = gpt.config.logit_soft_cap
    return logits if cap is None else cap * torch.atanh(logits / cap)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_parts_add_up_to_the_models_own_logit(name):
    gpt = random_gpt(CONFIGS[name])
    parts, error = attribution(gpt, trace(gpt, TOKENS))
    total = torch.stack(list(parts.values())).sum(0)
    assert error <= 1e-5 and total[-1].isnan()
    torch.testing.assert_close(total[:-1], model_logits(gpt, TOKENS), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["default", "shakespeare_char", "induction", "gpt2_124m"])
def test_the_badge_holds_for_the_configs(name):
    fields = yaml.safe_load((CONFIG_FILES / f"{name}.yaml").read_text())["model"]["gpt"]
    if name == "gpt2_124m":  # its architecture, in a size for a test
        fields |= {"num_layers": 3, "num_heads": 4, "embed_dim": 64}
    gpt = random_gpt(GPTConfig(**{"vocab_size": 500, **fields}))
    for parameter in gpt.parameters():
        nn.init.normal_(parameter, std=0.1)
    tokens = torch.arange(100, 100 + min(64, gpt.config.context_length))
    parts, error = attribution(gpt, trace(gpt, tokens))
    assert 0 < error <= 1e-5
    assert max(part[:-1].abs().max() for part in parts.values()) > 0.1


@pytest.mark.parametrize("name", CONFIGS)
def test_parts_are_gradients_times_values(name):
    """With norms fixed and later layers cut off, a logit is linear in each part: its share is gradient x value."""
    gpt = random_gpt(CONFIGS[name])
    parts, _ = attribution(gpt, trace(gpt, TOKENS))
    exact = copy.deepcopy(gpt).double()
    seen = fix_norms_and_cut_layers(exact)
    features = exact.features(TOKENS[None])[0]
    logits = (features[:-1] * exact.head.weight[TOKENS[1:]]).sum(-1)
    biases = {
        "embedding bias": getattr(exact.embedding_norm, "bias", None),
        "final norm bias": getattr(exact.final_norm, "bias", None),
    }
    for layer, block in enumerate(exact.blocks):
        biases[f"attention bias {layer}"] = block.attention.output_proj.bias
        biases[f"feed-forward bias {layer}"] = block.feed_forward.down_proj.bias
    biases = {name: bias for name, bias in biases.items() if bias is not None}

    heads, groups = exact.config.num_heads, exact.config.num_kv_heads
    expected = {part: [] for part in [*seen, *biases]}
    for position in range(len(TOKENS) - 1):
        leaves = [*seen.values(), *biases.values()]
        gradients = torch.autograd.grad(logits[position], leaves, retain_graph=True, materialize_grads=True)
        for part, leaf, gradient in zip(expected, leaves, gradients, strict=True):
            products = (leaf * gradient).detach()
            pieces = {"heads": heads, "values": groups}.get(part.split()[0], 1)
            expected[part].append(products.unflatten(-1, (pieces, -1)).sum((-1, *range(products.ndim - 1))))
    by_head = {part: part.replace("heads", "head") for part in seen if part.startswith(("heads", "values"))}
    names = {f"{name}.{head}" for name in by_head.values() for head in range(heads)}
    assert set(parts) == names | {part for part in expected if part not in by_head}

    def found(part):
        return parts[part][:-1]

    worst = 0.0
    for part, by_position in expected.items():
        products = torch.stack(by_position)  # (T - 1, pieces)
        kind, _, number = part.rpartition(" ")
        if kind == "heads":
            ours = torch.stack([found(f"head {number}.{h}") for h in range(heads)], -1)
            if f"values {number}" in expected:
                ours = ours + torch.stack([found(f"values {number}.{h}") for h in range(heads)], -1)
        elif kind == "values":  # heads of a group share the table, so their sum can be compared
            ours = torch.stack([found(f"{part}.{h}") for h in range(heads)], -1).unflatten(-1, (groups, -1)).sum(-1)
        else:
            ours = found(part)[:, None]
            if kind == "feed-forward" and f"feed-forward bias {number}" in biases:
                ours = ours + found(f"feed-forward bias {number}")[:, None]
        worst = max(worst, (ours - products).abs().max().item())
    print(f"attribution, gradients, {name}: {worst:.1e}")
    assert worst <= 1e-5


def fix_norms_and_cut_layers(gpt):
    """Makes the logits linear in what each part adds, and collects the outputs to take gradients of."""
    seen = {}

    def keep(name):
        def hook(module, inputs, output):
            seen[name] = output
            output.requires_grad_()

        return hook

    for norm in (gpt.embedding_norm, gpt.final_norm):
        norm.forward = lambda x, norm=norm: linear_part(norm, x)(x)
    for table, name in [
        (gpt.token_embedding, "token embedding"),
        (gpt.bigram_embedding, "pair table"),
        (gpt.position_embedding, "positions"),
    ]:
        if table is not None:
            table.register_forward_hook(keep(name))
    for layer, table in gpt.value_embeddings.items():
        table.register_forward_hook(keep(f"values {layer}"))
    for layer, block in enumerate(gpt.blocks):
        for norm in (block.attention_norm, block.feed_forward_norm):
            norm.register_forward_pre_hook(lambda module, args: (args[0].detach(),))
        block.attention.output_proj.register_forward_pre_hook(
            lambda module, args, name=f"heads {layer}": seen.__setitem__(name, args[0].requires_grad_())
        )
        block.feed_forward.register_forward_hook(keep(f"feed-forward {layer}"))
    return seen


@pytest.mark.parametrize("name", ["gpt2", "tables", "tables of all heads", "window"])
def test_heads_and_value_embeddings_are_what_their_values_write(name):
    """Each key's value through the head's slice of the output matrix, and the final norm."""
    gpt = random_gpt(CONFIGS[name])
    traced = trace(gpt, TOKENS)
    parts, _ = attribution(gpt, traced)
    normalise, bias = linear_part(gpt.final_norm, traced.residual[-1]), getattr(gpt.final_norm, "bias", 0)
    K, H_kv = gpt.config.head_dim, gpt.config.num_kv_heads
    shared, rows = gpt.config.num_heads // H_kv, gpt.head.weight.double()[TOKENS[1:]]
    for layer, (block, exact) in enumerate(zip(gpt.blocks, ByHand(gpt, TOKENS.tolist()).layers, strict=True)):
        values = {"head": exact["queries, keys, values"][:, -H_kv * K :], "values": exact.get("value embedding")}
        for head, matrix in enumerate(block.attention.output_proj.weight.double().split(K, dim=1)):
            for part, value in values.items():
                if value is not None:
                    written = exact["weights"][head] @ value.split(K, dim=1)[head // shared] @ matrix.T
                    expected = ((normalise(written) - bias)[:-1] * rows).sum(-1)
                    found = parts[f"{part} {layer}.{head}"][:-1].double()
                    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_one_token_has_nothing_to_attribute():
    gpt = random_gpt(CONFIGS["modern"])
    parts, error = attribution(gpt, trace(gpt, TOKENS[:1]))
    assert error != error and all(part.shape == (1,) and part.isnan().all() for part in parts.values())
