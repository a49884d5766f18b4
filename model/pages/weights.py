"""Packs trained models for a page that runs them: weights, tokenizer, and what the page checks itself against.

The page's data is a manifest, which is JSON, and for each snapshot of the model one block of bytes in base64, all laid
out alike. The manifest's tensors say where in a block each weight matrix begins and how it is stored:

    bfloat16    the upper halves of float32 numbers, for small models
    int8        for others: the scale of each row in float32, and then each row divided by its scale, as integers.
                Half the size, so that the page opens sooner; rounding adds 0.0005 bits to the default run's loss of a
                token (19,200 tokens of code)
    float32     what has one axis, such as biases

After the weights come the mean of each part that can be switched off (see `ablation`), and the logits that PyTorch
computes with these same rounded weights for a recorded text, by which the page checks its own arithmetic.

Shapes: T tokens, V vocabulary.
"""

import base64
import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT, NGRAM_FACTORS
from model.inspection.parts import blocks_of, features_of, part_means, parts_of, undisturbed
from model.inspection.texts import Texts
from model.mistakes import Mistake

MAX_BYTES = 40_000_000  # of the weights in a page, which may hold several snapshots
MAX_REFERENCE = 2**13  # logits that are kept to check the page's own, 32 KiB a snapshot
MAX_DIFFERENCE = 1e-3  # of a logit, above which the model's attention is another than the page's
EXACT_BYTES = 12_000_000  # below which a page is small enough to hold bfloat16

Models = Sequence[tuple[int, GPT]]  # by step, in ascending order


@dataclass(frozen=True)
class Packed:
    """What a page holds to run a model.

    manifest: plain data for JSON; see `pack`. blocks: the weights of each snapshot in base64. models: each as the page
    has it, with the means of its parts.
    """

    manifest: dict[str, Any]
    blocks: list[str]
    models: list[tuple[GPT, dict[str, Tensor]]]


def pack(
    snapshots: Models,
    tokenizer: Any,
    probe: Texts,
    windows: Texts | None = None,
) -> Packed:
    """The data of a page that runs a model, or several snapshots of one.

    Args:
        snapshots: of one config, in the order of a slider.
        tokenizer: one of `data.tokenizers`.
        probe: T tokens, 2 or more, that the page reads to check itself, and by which the cost of rounding is measured.
            Where it has document ids, the page reads each document apart.
        windows: texts over which parts are averaged; the probe if None.

    Returns:
        The blocks, the models, and a manifest of: config; tokenizer; parameters, of each part; steps; kind, of the
        matrices; bytes, of a block; tensors and means, lists of {name, shape, kind, start}; reference, one of these;
        and parity, with the probe, the positions that the reference has logits of, and for each snapshot the bits a
        token that rounding costs.

    Raises a Mistake if the snapshots are of different configs or have diverged, if the model's attention is not the
    standard one, which the page computes, or the smallest kind takes more than MAX_BYTES.
    """
    config = snapshots[0][1].config
    if any(gpt.config != config for _, gpt in snapshots):
        raise Mistake("the snapshots are not of one model: their configs differ")
    for step, gpt in snapshots:
        if not all(weight.isfinite().all() for weight in gpt.parameters()):
            raise Mistake(f"the model at step {step} has diverged: some of its weights are not numbers")
    kind = _kind_that_fits(snapshots)
    stored_tokenizer = tokenizer.to_dict()
    kept = min(probe.length, max(1, MAX_REFERENCE // snapshots[0][1].head.out_features))
    positions = np.linspace(probe.length - 1, 0, kept).astype(int)[::-1].tolist()  # evenly spread, the last included
    blocks, bits, models = [], [], []
    for _, gpt in snapshots:
        exact = copy.deepcopy(gpt).float().cpu().eval()
        rounded, stored = _rounded(exact, kind)
        with undisturbed(exact), torch.no_grad():
            logits, expected = (gpt.unembed(features_of(gpt, probe))[0] for gpt in (rounded, exact))
            # What rounding adds to the loss of a text that the exact model writes: the mean Kullback-Leibler
            # divergence. Few tokens are enough; the difference of two losses would be mostly chance.
            approximate, true = (one.double().log_softmax(-1) for one in (logits, expected))
            bits.append(F.kl_div(approximate, true, reduction="batchmean", log_target=True).item() / math.log(2))
            means = part_means(rounded, windows or probe)
        models.append((rounded, means))
        content = bytearray()
        tensors = [_append(content, name, *tensor) for name, tensor in stored.items()]
        averages = [_append(content, part, "float32", [mean]) for part, mean in means.items()]
        reference = _append(content, "reference", "float32", [logits[positions]])
        blocks.append(base64.b64encode(content).decode())
    _check_attention_is_standard(exact, probe.tokens)
    # The token that begins a document, where the model was trained to see nothing before it.
    document_start = None if probe.document_ids is None else tokenizer.end_of_text
    manifest = {
        "config": asdict(config) | {"ngram_factors": NGRAM_FACTORS, "document_start": document_start},
        "tokenizer": stored_tokenizer | {"tokens": base64.b64encode(stored_tokenizer["tokens"]).decode()},
        "parameters": _parameters(exact),
        "steps": [step for step, _ in snapshots],
        "kind": kind,
        "bytes": len(content),
        "tensors": tensors,
        "means": averages,
        "reference": reference,
        "parity": {"probe": probe.tokens[0].tolist(), "positions": positions, "bits": bits},
    }
    return Packed(manifest, blocks, models)


def _parameters(gpt: GPT) -> dict[str, int]:
    """How many numbers the model, its last matrix and each part have; a head has its share of the attention."""
    counts = {"model": gpt.num_parameters(), "next token": gpt.head.weight.numel()}
    for name, part in parts_of(gpt).items():
        is_head = name.startswith("head ")
        module = gpt.get_submodule(f"blocks.{part.layer}.attention") if is_head else part.module
        count = sum(weight.numel() for weight in module.parameters())
        counts[name] = count // gpt.config.num_heads if is_head else count
    return counts


def _append(
    content: bytearray,
    name: str,
    kind: str,
    tensors: Sequence[Tensor],
) -> dict[str, Any]:
    """Adds the tensors, the last of which has the shape, at a multiple of four bytes. Returns the manifest's entry."""
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


def _kind_that_fits(snapshots: Models) -> str:
    """How matrices are stored, by their size alone, so that no large model is packed in vain."""
    gpt = snapshots[0][1]
    numbers, rows = gpt.num_parameters(), sum(len(weight) for weight in gpt.parameters() if weight.ndim > 1)
    in_base64 = len(snapshots) * 4 / 3
    if 2 * numbers * in_base64 <= min(EXACT_BYTES, MAX_BYTES):
        return "bfloat16"
    size = (numbers + 4 * rows) * in_base64
    if size <= MAX_BYTES:
        return "int8"
    raise Mistake(
        f"a page with this model would take {size / 1e6:.0f} MB, and the limit is {MAX_BYTES / 1e6:.0f} MB: it has "
        f"{numbers:,} weights in each of {len(snapshots)} snapshots"
    )


def _rounded(gpt: GPT, kind: str) -> tuple[GPT, dict[str, tuple[str, list[Tensor]]]]:
    """A copy of the model with the weights that the page will have, and how each is stored: its kind and tensors."""
    rounded = copy.deepcopy(gpt)
    stored = {}
    for name, parameter in rounded.named_parameters():  # a head that is the embedding once
        weight = parameter.detach()
        if weight.ndim < 2:
            stored[name] = ("float32", [weight])
        elif kind == "bfloat16":
            weight.copy_(weight.bfloat16())
            stored[name] = (kind, [weight.bfloat16().view(torch.int16)])
        else:
            scales = weight.abs().amax(1, keepdim=True) / 127
            integers = (weight / scales.clamp(min=torch.finfo(scales.dtype).tiny)).round().to(torch.int8)
            weight.copy_(integers * scales)
            stored[name] = (kind, [scales, integers])
    return rounded, stored


def _check_attention_is_standard(gpt: GPT, tokens: Tensor) -> None:
    """Raises a Mistake for a model whose `attend` gives something else than what the page computes.

    The tokens (1, T) are repeated up to the context's end: an `attend` may differ only for keys that are far away. The
    model is left with the standard attention.
    """
    context = gpt.config.context_length
    tokens = tokens.repeat(1, math.ceil(context / tokens.shape[1]))[:, :context]

    def standard_attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
    ) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)

    with undisturbed(gpt), torch.no_grad():
        logits = gpt(tokens)
        for block in blocks_of(gpt):
            block.attention.attend = standard_attention
        difference = (gpt(tokens) - logits).abs().max().item()
    if not difference <= MAX_DIFFERENCE:
        raise Mistake(
            "the page computes standard attention, and this model's attend gives something else: logits differ by up "
            f"to {difference:.2g}; the maps here are of the recorded texts, as your attend made them"
        )
