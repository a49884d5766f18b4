"""Follows a prompt through a GPT: text, ids, embeddings, one block in detail, logits, loss.

Each stop of the walk shows one value of the forward pass: the function that computes it, its shape in letters and
numbers, five of its numbers, and why the model needs it.
"""

from __future__ import annotations

import inspect
import itertools
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.mistakes import check_range
from model.runs.terminal import say
from scripts.parser import program

if TYPE_CHECKING:
    from torch import Tensor

    from model.glass import Glass
    from model.gpt import GPTConfig
    from model.inspection.reading import Reading

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 96  # characters in a printed line
KEPT_SPACE = "\xa0"  # replaces spaces in quoted tokens while lines are wrapped: no line may break there
NORMS = {
    "rmsnorm": "divided by its root mean square",
    "layernorm": "shifted to mean 0, divided by its standard deviation and scaled by learned weights",
}

# Why the model needs the value of each stop. `words_of` gives the words in braces.
WHY = {
    "ids": """
        The tokenizer cuts the text into tokens, pieces that are in its vocabulary, and replaces each by its number, the
        id. The network sees nothing else of the text. It begins with: {pieces}
        """,
    "token embedding": """
        Each id selects its row of a learned table with {config.vocab_size:,} rows: a token becomes a vector of
        {config.embed_dim} numbers.
        """,
    "n-gram embedding": """
        Further tables add a vector for the last n tokens, taken together, for each n in {config.ngram_sizes}, so that
        the model knows common sequences before any attention. All sequences of one length share
        {config.ngram_buckets:,} rows: a hash of the sequence selects its row.
        """,
    "position embedding": """
        Attention alone cannot tell the order of its keys, so each position adds a learned vector of its own.
        """,
    "residual stream": """
        The sum of the vectors looked up so far{normed}. The blocks start from here: every layer reads this stream and
        adds its result to it.
        """,
    "stream into the block": """
        The stream after {layer} of the {config.num_layers} blocks.
        """,
    "attention norm": """
        Each token's vector is {norm}, so that the layer works at one scale, however large the numbers in the stream
        have grown.
        """,
    "queries, keys, values": """
        One matrix computes all three for all heads; then the result is cut into heads of {config.head_dim} channels. A
        query says what a token looks for, a key how other tokens find it, a value what it hands on to them.
        """,
    "queries": """
        What each token looks for, in each of {config.num_heads} heads.{qk_norm}
        """,
    "queries, turned": """
        Rotary positions: in queries and keys, each pair of channels is turned by an angle that grows with the position.
        The product of a query and a key then depends on how far apart their tokens are, not on where they stand. Values
        are not turned.
        """,
    "keys": """
        What other tokens can find each token by, computed in the same way as the queries. The {config.num_heads} heads
        of queries use {config.num_kv_heads} heads of keys and values.
        """,
    "value embedding": """
        A further table has a vector for each token, which is added to the token's values. So attention can hand on
        which token this was, even if the stream no longer shows it.
        """,
    "values": """
        What each token hands on to the tokens that attend to it.
        """,
    "scores": """
        How well each query (row) fits each key (column): their dot product, divided by sqrt({config.head_dim}). Without
        the division, the sum of {config.head_dim} products would be so large that the softmax would be too sharp.
        """,
    "mask": """
        True where a query may attend: to itself and {reach}, never to a later token. The model learns to predict all
        next tokens of the text at once, and no position may see its own answer. Softmax turns the visible scores of
        each row into shares that add up to 1; hidden keys get 0.
        """,
    "weights": """
        The attention map: how much of each key's value (column) each query (row) takes. Fast kernels never store the
        map, so it is measured: it is what the layer's own `attend` returns when the values are the identity matrix. It
        differs from softmax(query @ key^T / sqrt(K)) by at most {difference:.2g}.
        """,
    "mixed values": """
        What `attend` returns for each query. If the map tells the truth, this is the mean of the values, weighted by
        the map: the two differ by at most {error:.1e}.{problems}
        """,
    "output projection": """
        The results of all {config.num_heads} heads are put side by side, as one vector for each token again. A matrix
        combines what the heads have found into what attention adds to the stream.
        """,
    "stream after attention": """
        The result is added to the stream and replaces nothing: what came in is still there, and in training the
        gradient has a direct way back.
        """,
    "feed-forward norm": """
        Each token's vector is {norm}, as before attention.
        """,
    "hidden units": """
        Each unit asks one question about a token: it multiplies the token's vector by a vector of its own, and applies
        a nonlinear function, {config.activation}{gated}. Without it, two matrices in a row could do no more than one.
        """,
    "feed-forward output": """
        Another matrix turns the units into what the feed-forward adds to the stream.
        """,
    "stream after the block": """
        Again the result is added. Attention has moved information between tokens; the feed-forward has worked on each
        token by itself.
        """,
    "final norm": """
        Every block has added to the stream, with weights of its own. Each token's vector is {norm} once more, so that
        its direction, not its length, decides what comes next.
        """,
    "logits": """
        One number for each token of the vocabulary: the larger it is, the likelier this token comes next. It is the dot
        product of the vector above and the token's row of lm_head{capped}. Likeliest: {likeliest}.
        """,
    "surprise": """
        -ln p of the token that really comes next, in nats: 0 for certainty, ln {config.vocab_size:,} = {log_V:.3f} for
        a blind guess. Nothing comes after the last token, so it has none.
        """,
    "loss": """
        The mean surprise of all tokens but the last. Each training step changes the weights a little, in the
        direction that makes the loss smaller.
        """,
}
QK_NORM = " They and the keys are divided by their root mean square, which bounds the scores (QK-norm)."


class Stop(NamedTuple):
    """One value of the forward pass. letters: its shape. function: computes it. why: a paragraph about its purpose."""

    name: str
    letters: str
    function: Callable
    value: Tensor
    why: str


def walk(
    *,
    checkpoint: Path | None = None,
    prompt: str = "for i in range(10):",
    layer: int = 0,
    head: int = 0,
) -> None:
    """Prints the walk.

    Args:
        checkpoint: checkpoint file, run folder or folder of a Hugging Face model (default: newest run under runs/)
        prompt: text to follow, two tokens or more
        layer: block to show in detail, counted from 0
        head: head whose values to show, counted from 0
    """
    from model.glass import open_run

    glass = open_run(checkpoint)
    config, reading = glass.gpt.config, glass.read(glass.encode(prompt, at_least=2))
    T, H, H_kv = len(reading.ids), config.num_heads, config.num_kv_heads
    check_range("--layer", layer, 0, config.num_layers - 1)
    check_range("--head", head, 0, H - 1)
    token = min(2, T - 2)  # it has a next token, and sees three keys if the prompt is long enough
    introduction = (
        f"Shapes are written in letters: B = 1 text, T = S = {T} tokens (T as queries, S as keys), D = "
        f"{config.embed_dim} numbers in a token's vector, H = {H} heads of width K = {config.head_dim} (H_kv = {H_kv} "
        f"for keys and values), F = {config.feed_forward_dim} hidden units, V = {config.vocab_size:,} tokens in the "
        f"vocabulary. The values shown belong to token {token}, {quoted(reading.tokens[token])}, counted from 0, and "
        f"to head {head} wherever each head has values of its own."
    )
    lines = [str(glass), *textwrap.wrap(introduction, WIDTH)]
    indices = {"B": 0, "T": token, "H": head, "H_kv": head * H_kv // H}
    number = itertools.count(1)
    for stop in lesson(glass, reading, layer, token):
        lines += ["", stop.upper()] if isinstance(stop, str) else ["", *show(next(number), stop, indices)]
    say("\n".join(lines).replace(KEPT_SPACE, " "))


def show(number: int, stop: Stop, indices: dict[str, int]) -> list[str]:
    """Returns a stop as lines of text.

    indices: for the letter of an axis, the index to show. Of the last axis, the first five values are shown.
    """
    index = [indices[letter] for letter in stop.letters[1:-1].split(", ")[:-1]]
    position = f"[{', '.join(map(str, [*index, '0:5']))}]  " if stop.value.ndim else ""
    values = stop.value[tuple(index)].view(-1)[:5].tolist()
    shown = "  ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
    title, source = f"{number:2}. {stop.name}", source_of(stop.function)
    return [
        f"{title}{source:>{WIDTH - len(title)}}",
        f"    {stop.letters} = {tuple(stop.value.shape)}   {position}{shown}",
        *textwrap.wrap(inspect.cleandoc(stop.why), WIDTH, initial_indent="    ", subsequent_indent="    "),
    ]


def source_of(function: Callable) -> str:
    """Returns the name of a function, and the file and line where it begins: "next_token_loss, model/losses.py:18"."""
    _, line = inspect.getsourcelines(function)
    return f"{function.__qualname__}, {os.path.relpath(inspect.getfile(function), ROOT)}:{line}"


def lesson(glass: Glass, reading: Reading, layer: int, token: int) -> Iterator[Stop | str]:
    """Yields the stops of one forward pass, and headings as str. There are no stops for parts that the model lacks.

    The weights are what the layer's own `attend` returns if the values are the identity matrix. Scores and mask are
    shown only if the usual formula computes the same weights from them.
    """
    import torch

    from model.attention import CausalSelfAttention
    from model.gpt import GPT, Block, FeedForward, NgramEmbedding
    from model.inspection.maps import EXACT
    from model.inspection.passes import run, undisturbed
    from model.losses import next_token_loss
    from model.masks import sliding_window_mask
    from model.multihead import scaled_dot_product_attention
    from model.rotary import apply_rotary

    def found(values: dict, parent: Any, name: str) -> Tensor | None:
        return values.get(getattr(parent, name, None))

    gpt = glass.gpt
    config, block = gpt.config, gpt.blocks[layer]
    attention, feed_forward = block.attention, block.feed_forward
    with torch.no_grad(), undisturbed(gpt):
        _, calls, inputs, outputs = run(gpt, glass.texts(reading.ids), gpt.modules())
        queries, _, _ = attention.project(outputs[block.attention_norm])  # not yet turned by rotary positions
    surprise = reading.surprise * math.log(2)  # in nats
    q, k, v, weights = (of_layers[layer][None] for of_layers in (reading.q, reading.k, reading.v, reading.maps))
    group = config.num_heads // config.num_kv_heads  # heads that share keys and values
    streams = reading.residual[:, None]  # after the embeddings, attention 0, feed-forward 0, attention 1, ...
    scores, mask = q @ k.mT / math.sqrt(config.head_dim), sliding_window_mask(len(reading.ids), config.window)
    _, formula = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
    difference = (weights - formula).abs().max().item()
    is_formula = not difference > EXACT  # a diverged model gives NaN, which counts as equal
    is_projected = found(inputs, attention, "qkv_proj") is outputs[block.attention_norm]
    value_embedding = dict(gpt.value_embeddings.items()).get(str(layer))
    project = CausalSelfAttention.project

    # Name, letters of the shape, the function that computes the value, and the value: None if the model lacks the part.
    rows = [
        "From text to vectors",
        ("ids", "(B, T)", glass.tokenizer.encode, reading.ids[None]),
        ("token embedding", "(B, T, D)", GPT.features, outputs[gpt.token_embedding]),
        ("n-gram embedding", "(B, T, D)", NgramEmbedding.rows, outputs.get(gpt.ngram_embedding)),
        ("position embedding", "(T, D)", GPT.features, outputs.get(gpt.position_embedding)),
        ("residual stream", "(B, T, D)", GPT.features, streams[0]),
        f"Block {layer}, attention: tokens read each other",
        ("stream into the block", "(B, T, D)", GPT.features, streams[2 * layer] if layer else None),
        ("attention norm", "(B, T, D)", Block.forward, outputs[block.attention_norm]),
        ("queries, keys, values", "(B, T, (H+2*H_kv)*K)", project, found(outputs, attention, "qkv_proj")),
        ("queries", "(B, H, T, K)", project, queries if is_projected else None),
        ("queries, turned", "(B, H, T, K)", apply_rotary, q if config.position == "rotary" else None),
        ("keys", "(B, H_kv, T, K)", project, k[:, ::group]),
        ("value embedding", "(B, T, H_kv*K)", project, outputs.get(value_embedding)),
        ("values", "(B, H_kv, T, K)", project, v[:, ::group]),
        ("scores", "(B, H, T, S)", scaled_dot_product_attention, scores if is_formula else None),
        ("mask", "(T, S)", sliding_window_mask, mask if is_formula else None),
        ("weights", "(B, H, T, S)", attention.attend, weights),
        ("mixed values", "(B, H, T, K)", attention.attend, calls[layer].attended),
        ("output projection", "(B, T, D)", CausalSelfAttention.forward, outputs[attention.output_proj]),
        ("stream after attention", "(B, T, D)", Block.forward, streams[2 * layer + 1]),
        f"Block {layer}, feed-forward: each token by itself",
        ("feed-forward norm", "(B, T, D)", Block.forward, found(outputs, block, "feed_forward_norm")),
        ("hidden units", "(B, T, F)", FeedForward.forward, found(inputs, feed_forward, "down_proj")),
        ("feed-forward output", "(B, T, D)", FeedForward.forward, outputs[feed_forward]),
        ("stream after the block", "(B, T, D)", Block.forward, streams[2 * layer + 2]),
        "From vectors to the loss",
        ("final norm", "(B, T, D)", GPT.features, outputs[gpt.final_norm]),
        ("logits", "(B, T, V)", GPT.unembed, reading.logits[None]),
        ("surprise", "(T-1)", next_token_loss, surprise),
        ("loss", "()", next_token_loss, surprise.mean()),
    ]
    words = words_of(config, reading, layer, token) | {"difference": difference}
    for row in rows:
        if isinstance(row, str):
            yield row
        elif row[-1] is not None:
            yield Stop(*row, WHY[row[0]].format(**words))


def words_of(config: GPTConfig, reading: Reading, layer: int, token: int) -> dict[str, Any]:
    """Returns what the texts of WHY say about this model and this text."""
    norm, window, cap = NORMS[config.norm], config.window, config.logit_soft_cap
    return {
        "config": config,
        "layer": layer,
        "norm": norm,
        "pieces": " ".join(map(quoted, reading.tokens[:50])),
        "normed": f", each vector {norm}" if config.embedding_norm else "",
        "qk_norm": QK_NORM if config.qk_norm else "",
        "reach": f"the {window - 1} tokens before it" if window else "all tokens before it",
        "error": reading.checks.by_layer["fidelity"][layer],
        "problems": "".join(f" Warning: {problem}." for problem in reading.checks.problems.values()),
        "gated": ", which is a gate for another such product" if config.activation == "swiglu" else "",
        "capped": f", squeezed to stay between -{cap:g} and {cap:g}" if cap else "",
        "likeliest": ", ".join(f"{quoted(text)} {probability:.1%}" for text, probability in reading.top(token, 3)),
        "log_V": math.log(config.vocab_size),
    }


def quoted(text: str) -> str:
    """Returns a token's text as a Python literal, with KEPT_SPACE for spaces."""
    return repr(text).replace(" ", KEPT_SPACE)


main = program(walk, __doc__)
if __name__ == "__main__":
    sys.exit(main())
