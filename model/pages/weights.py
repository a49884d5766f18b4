"""Packs trained models for a page that runs them: weights, tokenizer, and reference logits.

The page gets a manifest in JSON, and one block of bytes in base64 for the model at each step. All blocks have the
same layout. The manifest's tensors say where in a block each weight begins and how it is stored:

    bfloat16    matrices of small models: the upper halves of float32 numbers
    int8        matrices of larger models: the scale of each row in float32, then each row divided by its scale, as
                integers. Half the size, so that the page opens sooner; rounding raises the loss of the default run by
                0.0005 bits per token (measured on 19,200 tokens of code)
    float32     tensors with one axis, such as biases

After the weights come the mean of each part that can be switched off (see `part_means`), and the logits (V,) that
PyTorch computes from the same rounded weights after a recorded text: with these the page checks its own arithmetic.

Shapes: T tokens, V vocabulary.
"""

import base64
import copy
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT, NGRAM_FACTORS
from model.inspection.parts import part_means, parts_of
from model.inspection.passes import features_of, undisturbed
from model.inspection.recording import Models
from model.inspection.texts import Texts
from model.masks import sliding_window_mask
from model.mistakes import Mistake

MAX_BYTES = 40_000_000  # of the weights in a page, all models together
MAX_DIFFERENCE = 1e-3  # of a logit; above it, the model's attention is not the one that the page computes
EXACT_BYTES = 12_000_000  # up to which weights are stored in bfloat16

# The weights that browser/network.js computes with. A weight that you teach it needs its name here.
PAGE_WEIGHTS = re.compile(
    r"lm_head\.weight|((token|position|ngram)_embedding|value_embeddings\.\d+|(embedding|final)_norm"
    r"|blocks\.\d+\.(attention_norm|attention\.(qkv|output)_proj|feed_forward_norm|feed_forward\.(up|gate|down)_proj))"
    r"\.(weight|bias)"
)


@dataclass(frozen=True)
class Packed:
    """The data with which a page runs a model.

    manifest: plain data for JSON; see `pack`.
    blocks: the weights of each model, in base64.
    gpt: the last model, with the rounded weights that the page has.
    """

    manifest: dict[str, Any]
    blocks: list[str]
    gpt: GPT


def pack(
    models: Models,
    tokenizer: Any,
    probe: Texts,
    windows: Texts,
) -> Packed:
    """Packs a model, or one at several steps.

    Args:
        models: all of the same config, in the order of the page's slider.
        tokenizer: one of `data.tokenizers`.
        probe: one text of T tokens, 2 or more. The page reads it to check itself, and the cost of rounding is measured
            on it. If it has document ids, the page's attention stays within a document.
        windows: texts over which the outputs of parts are averaged.

    The manifest has:
        config, tokenizer, steps.
        parameters: how many each part has.
        kind: how matrices are stored.
        tensors, means: lists of {name, shape, kind, start}. reference: one such entry.
        parity: the probe, and what rounding costs each model, in bits per token.

    Raises a Mistake if a model has diverged, if the model's attention or weights are not those that the page
    computes with, or if even int8 takes more than MAX_BYTES.
    """
    config = models[0][1].config
    for step, gpt in models:
        if not gpt.is_finite():
            raise Mistake(f"the model at step {step} has diverged: some of its weights are not numbers")
    kind = _kind_that_fits(models)
    blocks, bits = [], []
    for _, gpt in models:
        exact = copy.deepcopy(gpt).float().cpu().eval()
        rounded = copy.deepcopy(exact)
        content = bytearray()
        tensors = _append_rounded(content, rounded, kind)
        with undisturbed(exact), torch.no_grad():
            logits, expected = (gpt.unembed(features_of(gpt, probe))[0] for gpt in (rounded, exact))
            # What rounding adds to the loss on text that the exact model writes: the mean Kullback-Leibler divergence.
            # A few tokens are enough for it; the difference of two losses would be mostly chance.
            log_rounded, log_exact = (one.double().log_softmax(-1) for one in (logits, expected))
            bits.append(F.kl_div(log_rounded, log_exact, reduction="batchmean", log_target=True).item() / math.log(2))
            means = part_means(rounded, windows)
        averages = [_append(content, part, "float32", mean) for part, mean in means.items()]
        reference = _append(content, "reference", "float32", logits[-1])
        blocks.append(base64.b64encode(content).decode())
    _check_network_is_standard(exact)
    # The token that begins a document, for a model whose attention stays within a document; else None.
    document_start = None if probe.document_ids is None else tokenizer.end_of_text
    manifest = {
        "config": asdict(config) | {"ngram_factors": NGRAM_FACTORS, "document_start": document_start},
        "tokenizer": tokenizer.to_dict(),
        "parameters": _parameters(exact),
        "steps": [step for step, _ in models],
        "kind": kind,
        "tensors": tensors,
        "means": averages,
        "reference": reference,
        "parity": {"probe": probe.tokens[0].tolist(), "bits": bits},
    }
    return Packed(manifest, blocks, rounded)


def _parameters(gpt: GPT) -> dict[str, int]:
    """Counts the parameters of the model, of its last matrix and of each part; a head counts 1/H of its attention."""
    counts = {"model": gpt.num_parameters(), "next token": gpt.lm_head.weight.numel()}
    for name, part in parts_of(gpt).items():
        is_head = name.startswith("head ")
        module = gpt.blocks[part.layer].attention if is_head else part.module
        count = sum(weight.numel() for weight in module.parameters())
        counts[name] = count // gpt.config.num_heads if is_head else count
    return counts


def _append(
    content: bytearray,
    name: str,
    kind: str,
    *tensors: Tensor,
) -> dict[str, Any]:
    """Appends tensors at a multiple of four bytes, and returns their manifest entry, with the last tensor's shape."""
    content += bytes(-len(content) % 4)
    start = len(content)
    for tensor in tensors:
        content += tensor.contiguous().numpy().tobytes()
    return {
        "name": name,
        "shape": list(tensors[-1].shape),
        "kind": kind,
        "start": start,
    }


def _kind_that_fits(models: Models) -> str:
    """Chooses how matrices are stored, from their size alone, so that a model that is too large is never packed."""
    size = len(models) * models[0][1].num_parameters() * 4 / 3  # as int8, in base64
    if 2 * size <= EXACT_BYTES:
        return "bfloat16"
    if size <= MAX_BYTES:
        return "int8"
    raise Mistake(f"a page with this model would take {size / 1e6:.0f} MB, and the limit is {MAX_BYTES / 1e6:.0f} MB")


def _append_rounded(content: bytearray, gpt: GPT, kind: str) -> list[dict[str, Any]]:
    """Rounds the weights of a model to those of the page, appends them, and returns their manifest entries."""
    entries = []
    for name, parameter in gpt.named_parameters():  # yields an lm_head tied to the embedding only once
        weight = parameter.detach()
        if weight.ndim < 2:
            entries.append(_append(content, name, "float32", weight))
        elif kind == "bfloat16":
            rounded = weight.bfloat16()
            weight.copy_(rounded)
            entries.append(_append(content, name, kind, rounded.view(torch.int16)))
        else:
            scales = weight.abs().amax(1, keepdim=True) / 127
            integers = (weight / scales.clamp(min=1e-30)).round().to(torch.int8)
            weight.copy_(integers * scales)
            entries.append(_append(content, name, kind, scales, integers))
    return entries


def _check_network_is_standard(gpt: GPT) -> None:
    """Raises a Mistake if the model gives other logits with standard attention and without weights of its own.

    The text fills the context, because an `attend` may differ only for distant keys. The model is changed: it keeps the
    standard attention afterwards, and its own weights are 0.
    """
    config = gpt.config
    tokens = torch.arange(config.context_length)[None] % config.vocab_size
    visible = sliding_window_mask(config.context_length, config.window)  # in every layer, whatever mask it would use
    with undisturbed(gpt), torch.no_grad():
        logits = gpt(tokens)
        for name, weight in gpt.named_parameters():
            if not PAGE_WEIGHTS.fullmatch(name):
                weight.zero_()
        for block in gpt.blocks:
            block.attention.attend = lambda q, k, v, mask=None: F.scaled_dot_product_attention(
                q, k, v, visible, enable_gqa=True
            )
        difference = (gpt(tokens) - logits).abs().max().item()
    if not difference <= MAX_DIFFERENCE:
        raise Mistake(
            f"your attend, or masks or weights of your own, change its logits by up to {difference:.2g}, and the page "
            "computes the network without them; it shows the maps that your attend made of the recorded texts"
        )
