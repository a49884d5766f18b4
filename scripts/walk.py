"""Follows a prompt through a GPT: text, ids, embeddings, one block in detail, logits, loss.

Each stop names the function that computes it, the shape in letters and numbers, five values of this forward pass, and
why it is there.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.mistakes import Missing, Mistake, check_range, exit_status
from scripts.generate import write_text
from scripts.parser import Parser, prompt_text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from data.tokenizers import Tokenizer
    from model.glass import Glass
    from model.gpt import GPT

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 96  # columns
KEPT_SPACE = "\xa0"  # stands for a space of a token until the lines are broken
NORMS = {
    "rmsnorm": "divided by its root mean square",
    "layernorm": "shifted to mean 0, divided by its standard deviation and scaled by learned weights",
}
ACTIVATION_NAMES = {"relu2": "the square of ReLU", "gelu": "GELU", "gelu_exact": "GELU", "swiglu": "SiLU"}


class Stop(NamedTuple):
    """One value of the forward pass, and the function that computes it."""

    name: str
    letters: str  # its shape, as the docstrings of the code write it; F is the width of the feed-forward
    value: Tensor
    function: Callable
    why: str


@exit_status("walk.py")
def main(argv: list[str] | None = None) -> None:
    parser = Parser(prog="walk.py", description=__doc__)
    add, model = parser.add_argument, parser.add_mutually_exclusive_group()
    newest = "checkpoint file or run folder (default: newest under runs/, or --fresh where there is none)"
    model.add_argument("--checkpoint", type=Path, metavar="PATH", help=newest)
    model.add_argument("--fresh", action="store_true", help="a small model of bytes that has learned nothing yet")
    text = "text to follow, at least two tokens; - reads it from standard input (default: %(default)s)"
    add("--prompt", default="for i in range(10):", metavar="TEXT", help=text)
    add("--layer", type=int, default=0, metavar="N", help="block to walk through in detail, from 0 (default: 0)")
    add("--head", type=int, default=0, metavar="N", help="head whose values are shown, from 0 (default: 0)")
    options = parser.parse_args(argv)
    prompt = prompt_text(options.prompt)
    glass = open_model(options.checkpoint, options.fresh)
    lines = walk(glass, prompt, options.layer, options.head)
    write_text("\n".join([str(glass), *lines, ""]))


def open_model(checkpoint: Path | None, fresh: bool) -> Glass:
    import torch

    from data.tokenizers import byte_level
    from model.glass import Glass, open_run
    from model.gpt import GPT, GPTConfig

    if not fresh:
        try:
            return open_run(checkpoint)
        except Missing:
            if checkpoint is not None:
                raise
    torch.manual_seed(0)
    tokenizer = byte_level()
    # See GPT.init_weights.
    origin = "a fresh model (each matrix that writes to the stream or to the logits is 0; python train.py trains one)"
    return Glass(GPT(GPTConfig(vocab_size=tokenizer.vocab_size)).eval(), tokenizer, origin)


def walk(glass: Glass, prompt: str, layer: int, head: int) -> list[str]:
    """The whole walk as lines of text. Raises Mistake for a prompt, layer or head that the model cannot take."""
    ids, config = glass.encode(prompt).tolist(), glass.gpt.config
    if len(ids) < 2:
        raise Mistake("--prompt must be at least 2 tokens long, so that there is a next token; this one is 1")
    check_range("--layer", layer, 0, config.num_layers - 1)
    check_range("--head", head, 0, config.num_heads - 1)
    token = min(2, len(ids) - 1)  # in its row of a map, three keys are visible and others may be hidden
    place = {"B": 0, "T": token, "H": head, "H_kv": head * config.num_kv_heads // config.num_heads}
    lines = [
        f"B = 1 text, T = S = {len(ids)} tokens, D = {config.embed_dim} wide, H = {config.num_heads} heads of "
        f"K = {config.head_dim}, V = {config.vocab_size:,} known tokens.",
        f"Values are those of token {token}, {quoted(glass.tokenizer, ids[token])}, and of head {head} where heads "
        "have an axis.",
    ]
    numbers = count(1)
    for stop in lesson(glass.gpt, glass.tokenizer, ids, layer, token):
        lines += ["", *([stop.upper()] if isinstance(stop, str) else show(next(numbers), stop, place))]
    return [line.replace(KEPT_SPACE, " ") for line in lines]


def show(number: int, stop: Stop, place: dict[str, int]) -> list[str]:
    """One stop as text. place: the index that is shown of an axis, by its letter; of the last axis the first five."""
    index = [place[letter] for letter in stop.letters[1:-1].split(", ")[:-1]]
    at = f"[{', '.join(map(str, [*index, '0:5']))}]  " if stop.value.ndim else ""
    values = stop.value[tuple(index)].view(-1)[:5].tolist()
    shown = "  ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
    title, where = f"{number:2}. {stop.name}", place_of(stop.function)
    return [
        f"{title}{where:>{WIDTH - len(title)}}",
        f"    {stop.letters} = {tuple(stop.value.shape)}   {at}{shown}",
        *textwrap.wrap(inspect.cleandoc(stop.why), WIDTH, initial_indent="    ", subsequent_indent="    "),
    ]


def place_of(function: Callable) -> str:
    """Such as "GPT.loss, model/gpt.py:263"."""
    _, line = inspect.getsourcelines(function)
    return f"{function.__qualname__}, {os.path.relpath(inspect.getfile(function), ROOT)}:{line}"


# fmt: off
def lesson(gpt: GPT, tokenizer: Tokenizer, ids: list[int], layer: int, token: int) -> Iterator[Stop | str]:
    """All stops of one forward pass, with headings between them. What a model does not have is left out.

    The weights are what the layer's `attend` makes of the identity. The formula is shown where it gives the same.
    """
    import torch
    import torch.nn.functional as F

    from data.windows import IGNORED
    from model.attention import CausalSelfAttention
    from model.gpt import GPT, Block, FeedForward, NgramEmbedding
    from model.inspection.maps import EXACT
    from model.inspection.parts import hooked, undisturbed
    from model.inspection.reading import read
    from model.inspection.texts import Texts
    from model.masks import causal_mask, sliding_window_mask
    from model.mistakes import listed
    from model.multihead import scaled_dot_product_attention
    from model.rotary import apply_rotary

    config, block = gpt.config, gpt.blocks[layer]
    attention, feed_forward = block.attention, block.feed_forward
    D, H, H_kv, K, V = config.embed_dim, config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size
    T, norm, group = len(ids), NORMS[config.norm], H // H_kv
    tokens, targets = torch.tensor([ids]), torch.tensor([[*ids[1:], IGNORED]])

    # What every module gives, and what attention did in between, each with its axis of one text.
    reading = read(gpt, Texts.of(ids))
    outputs: dict[nn.Module, Tensor] = {}
    last_matrix = feed_forward.down_proj  # of which the input is shown
    others = [module for module in gpt.modules() if module is not last_matrix]
    with torch.no_grad(), undisturbed(gpt), hooked([last_matrix], others, outputs.__setitem__):
        loss = gpt.loss(tokens, targets)
        queries, _, _ = attention.project(outputs[block.attention_norm])  # before rotary turns them
    q, k, v, weights, mixed = (
        of_layers[layer][None] for of_layers in (reading.q, reading.k, reading.v, reading.maps, reading.heads)
    )
    streams = reading.residual[:, None]  # after the embeddings, attention 0, feed-forward 0, attention 1, ...
    mask = sliding_window_mask(T, config.window)
    _, formula = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
    difference = (weights - formula).abs().max().item()
    is_formula = not difference > EXACT  # of a model that diverged it is NaN
    error = reading.checks.by_layer["fidelity"][layer]
    problems = "".join(f" The check of all maps: {problem}." for problem in reading.checks.problems.values())

    yield "From text to vectors"
    pieces = " ".join(quoted(tokenizer, id) for id in ids[:50]) + " ..." * (T > 50)
    yield Stop("ids", "(B, T)",
               tokens, tokenizer.encode, f"""
               The tokenizer cuts the text into pieces that it knows and gives their numbers; the network sees nothing
               else of the text. Here: {pieces}
               """)
    yield Stop("token embedding", "(B, T, D)",
               outputs[gpt.token_embedding], GPT.features, f"""
               Each id picks its row of a learned table with {V:,} rows: a token becomes a vector of {D} numbers.
               """)
    if gpt.ngram_embedding is not None:
        sizes = listed([str(size) for size in config.ngram_sizes])
        yield Stop("n-gram embedding", "(B, T, D)",
                   outputs[gpt.ngram_embedding], NgramEmbedding.rows, f"""
                   Further tables add a vector for the last {sizes} tokens together, so that what is common is known
                   before any attention. All n-grams of a size share {config.ngram_buckets:,} rows by hashing.
                   """)
    if gpt.position_embedding is not None:
        yield Stop("position embedding", "(T, D)",
                   outputs[gpt.position_embedding], GPT.features, """
                   Attention alone cannot tell the order of its keys, so every place adds a learned vector.
                   """)
    normed = f", each vector {norm}" if config.embedding_norm else ""
    yield Stop("residual stream", "(B, T, D)",
               streams[0], GPT.features, f"""
               What the blocks start from{normed}. Every layer reads this stream and adds to it.
               """)

    yield f"Block {layer}, attention: tokens read each other"
    if layer:
        yield Stop("stream into the block", "(B, T, D)",
                   streams[2 * layer], GPT.features, f"""
                   What the blocks below have made of the stream so far: {layer} of {config.num_layers}.
                   """)
    yield Stop("attention norm", "(B, T, D)",
               outputs[block.attention_norm], Block.forward, f"""
               Each token's vector is {norm}, so that the layer works at one scale however long the stream has grown.
               """)
    yield Stop("queries, keys, values", "(B, T, (H+2*H_kv)*K)",
               outputs[attention.qkv_proj], CausalSelfAttention.project, f"""
               One matrix makes them for all heads; then they are cut into heads of {K} channels. A query is what a
               token looks for, a key what it can be found by, a value what it hands on.
               """)
    name, normed = "queries", ""
    if config.qk_norm:
        name = "queries, normalised"
        normed = (f" Queries and keys are divided by their root mean square (QK-norm): no score can then exceed "
                  f"sqrt({K}) = {math.sqrt(K):.3g}, which keeps training stable.")
    yield Stop(name, "(B, H, T, K)",
               queries, CausalSelfAttention.project, f"""
               What each token looks for, in each of {H} heads.{normed}
               """)
    not_turned = ""
    if config.position == "rotary":
        not_turned = " Values are not turned."
        yield Stop("queries, turned", "(B, H, T, K)",
                   q, apply_rotary, """
                   Rotary positions: pairs of channels turn by an angle that grows with the place, in queries and keys
                   alike. Their product then depends on how far apart two tokens are, not on where they stand.
                   """)
    shared = f" Every {group} neighbouring heads share their keys and values." if group > 1 else ""
    yield Stop("keys", "(B, H_kv, T, K)",
               k[:, ::group], CausalSelfAttention.project, f"""
               What each token can be found by, made in the same way.{shared}
               """)
    if str(layer) in gpt.value_embeddings:
        yield Stop("value embedding", "(B, T, H_kv*K)",
                   outputs[gpt.value_embeddings[str(layer)]], CausalSelfAttention.project, """
                   A table of its own adds a vector of each token to its values, so that attention can hand on which
                   token it was even where the stream no longer says so.
                   """)
    yield Stop("values", "(B, H_kv, T, K)",
               v[:, ::group], CausalSelfAttention.project, f"""
               What each token hands on to those that attend to it.{not_turned}
               """)
    if is_formula:
        yield Stop("scores", "(B, H, T, S)",
                   q @ k.mT / math.sqrt(K), scaled_dot_product_attention, f"""
                   How well each query (row) fits each key (column): their dot product, divided by sqrt({K}) =
                   {math.sqrt(K):.3g} because a sum of {K} products would grow with the width and make the softmax too
                   sharp.
                   """)
        reach = f"the nearest {config.window}, itself included" if config.window else "itself and what came before"
        below = " Further back it sees through the layers below." if layer and config.window else ""
        yield Stop("mask", "(T, S)",
                   mask, sliding_window_mask if config.window else causal_mask, f"""
                   True where a query may attend: to {reach}, and never to the future. All next tokens are learned at
                   once, and none may see its answer.{below}
                   """)
        yield Stop("weights", "(B, H, T, S)",
                   weights, scaled_dot_product_attention, f"""
                   Softmax turns the visible scores into shares that add up to 1 in every row; hidden keys get 0. This
                   is the attention map: what the layer's `attend` makes of the identity, which differs from the formula
                   by {difference:.1e}.
                   """)
    else:
        yield Stop("weights", "(B, H, T, S)",
                   weights, attention.attend, f"""
                   How much each query (row) takes of each key's value (column): what this layer's `attend` makes of the
                   identity. They are not those of softmax(query @ key^T / sqrt(K)): the largest difference is
                   {difference:.2g}.
                   """)
    kernel = ", in one fused kernel that never stores scores or weights" if is_formula else ""
    yield Stop("mixed values", "(B, H, T, K)",
               mixed, attention.attend, f"""
               Each query's mean of the values, by those weights{kernel}. Weights times values differ from it by
               {error:.1e}.{problems}
               """)
    yield Stop("output projection", "(B, T, D)",
               outputs[attention.output_proj], CausalSelfAttention.forward, f"""
               The results of all {H} heads stand side by side, as one vector a token again. A matrix combines what they
               have found, and says what that adds to the stream.
               """)
    yield Stop("stream after attention", "(B, T, D)",
               streams[2 * layer + 1], Block.forward, """
               The result is added and replaces nothing: what came in is still there, and the gradient has a straight
               way back.
               """)

    yield f"Block {layer}, feed-forward: each token by itself"
    yield Stop("feed-forward norm", "(B, T, D)",
               outputs[block.feed_forward_norm], Block.forward, f"""
               Brought to one scale again: {norm}.
               """)
    activation = ACTIVATION_NAMES.get(config.activation, config.activation)
    gate = f", times a gate, {activation}, which passes its answer on or blocks it"
    if feed_forward.gate_proj is None:
        gate = f"; {activation} passes some answers on and blocks others"
    yield Stop("hidden units", "(B, T, F)",
               outputs[last_matrix], FeedForward.forward, f"""
               Each unit is a question about one token's vector{gate}. Without such a bend two matrices in a row would
               be no more than one.
               """)
    yield Stop("feed-forward output", "(B, T, D)",
               outputs[feed_forward], FeedForward.forward, """
               A second matrix says what each active unit adds to the stream.
               """)
    yield Stop("stream after the block", "(B, T, D)",
               streams[2 * layer + 2], Block.forward, """
               Added again. Attention has moved information between tokens; this has worked on it in place.
               """)

    yield "From vectors to the loss"
    yield Stop("final norm", "(B, T, D)",
               outputs[gpt.final_norm], GPT.features, f"""
               All {config.num_layers} blocks, each with its own weights, have added to the stream. Each token's vector
               is {norm} once more, so that its direction decides what comes next.
               """)
    cap, logits = config.logit_soft_cap, reading.logits[None]
    bent = f", bent so that it stays between -{cap:g} and {cap:g}" if cap else ""
    matrix = "the token embedding, which is the head too" if config.tie_embeddings else "the head"
    yield Stop("logits", "(B, T, V)",
               logits, GPT.unembed, f"""
               One number for each known token: the product of this vector with the token's row of {matrix}{bent}.
               {guesses(logits[0, token], tokenizer, ids[token : token + 2])}
               """)
    yield Stop("surprise", "(B*T)",
               F.cross_entropy(logits[0], targets[0], reduction="none"), GPT.loss, f"""
               -ln p of the token that really came next, in nats: 0 for certainty, ln {V:,} = {math.log(V):.3f} for a
               blind guess. The last token has nothing after it and does not count.
               """)
    yield Stop("loss", "()",
               loss, GPT.loss, f"""
               The mean of the {T - 1} that count. Training moves every weight above a little, in the direction that
               makes it smaller.
               """)
# fmt: on


def guesses(logits: Tensor, tokenizer: Tokenizer, following: list[int]) -> str:
    """The likeliest next tokens by the logits (V,) of the first of `following`, and the true one if that follows."""
    probabilities = logits.softmax(dim=-1)
    likeliest = probabilities.topk(3).indices.tolist()
    *said, truth = [f"{quoted(tokenizer, id)} {probabilities[id]:.1%}" for id in (*likeliest, following[-1])]
    ending = f"; the prompt has {truth}" if len(following) > 1 else ""
    return f"Likeliest after {quoted(tokenizer, following[0])}: {', '.join(said)}{ending}."


def quoted(tokenizer: Tokenizer, id: int) -> str:
    """A token as Python writes it: 'text', or b'bytes' where it is no whole characters. It is kept on one line."""
    content = tokenizer.token_bytes(id, unused=f"<{id}>")
    try:
        text = repr(content.decode())
    except UnicodeDecodeError:
        text = repr(content)
    return text.replace(" ", KEPT_SPACE)


if __name__ == "__main__":
    sys.exit(main())
