"""Follows a prompt through a GPT: text, ids, embeddings, one block in detail, logits, loss.

Each stop of the walk shows one value of the forward pass: the function that computes it, its shape in letters and
numbers, five of its numbers, and why the model needs it.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.mistakes import Missing, Mistake, check_range, exit_status
from scripts.generate import write_text
from scripts.parser import Parser, prompt_text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from data.tokenizers import Tokenizer
    from model.glass import Glass
    from model.gpt import GPT

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 96  # characters in a printed line
KEPT_SPACE = "\xa0"  # replaces spaces in quoted tokens while lines are wrapped: no line may break there
NORMS = {
    "rmsnorm": "divided by its root mean square",
    "layernorm": "shifted to mean 0, divided by its standard deviation and scaled by learned weights",
}
ACTIVATION_NAMES = {"relu2": "the square of ReLU", "gelu": "GELU", "gelu_exact": "GELU", "swiglu": "SiLU"}


class Stop(NamedTuple):
    """One value of the forward pass. letters: its shape. function: computes it. why: a paragraph about its purpose."""

    name: str
    letters: str
    value: Tensor
    function: Callable
    why: str


@exit_status("walk.py")
def main(argv: list[str] | None = None) -> None:
    parser = Parser(prog="walk.py", description=__doc__)
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "--checkpoint",
        type=Path,
        metavar="PATH",
        help="checkpoint file, run folder or folder of a Hugging Face model (default: newest run under runs/; "
        "--fresh if there is none)",
    )
    model.add_argument("--fresh", action="store_true", help="use a small untrained model that reads bytes")
    add = parser.add_argument
    add(
        "--prompt",
        default="for i in range(10):",
        metavar="TEXT",
        help="text to follow, two tokens or more; - reads standard input (default: %(default)s)",
    )
    add("--layer", type=int, default=0, metavar="N", help="block to show in detail, counted from 0 (default: 0)")
    add("--head", type=int, default=0, metavar="N", help="head whose values to show, counted from 0 (default: 0)")
    options = parser.parse_args(argv)
    prompt = prompt_text(options.prompt)
    glass = open_model(options.checkpoint, options.fresh)
    lines = walk(glass, prompt, options.layer, options.head)
    write_text("\n".join([str(glass), *lines, ""]))


def open_model(checkpoint: Path | None, fresh: bool) -> Glass:
    """Opens the checkpoint, or else the newest run. If `fresh`, or without a run, makes a small untrained model."""
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
    # GPT.init_weights fills these matrices with zeros.
    source = "a fresh model (each matrix that writes to the stream or to the logits is 0; python train.py trains one)"
    return Glass(GPT(GPTConfig(vocab_size=tokenizer.vocab_size)).eval(), tokenizer, source)


def walk(glass: Glass, prompt: str, layer: int, head: int) -> list[str]:
    """Returns the walk as lines of text. Raises Mistake for a prompt, layer or head that the model does not accept."""
    ids, config = glass.encode(prompt).tolist(), glass.gpt.config
    if len(ids) < 2:
        raise Mistake("--prompt must be at least 2 tokens long, so that there is a next token; this one is 1")
    check_range("--layer", layer, 0, config.num_layers - 1)
    check_range("--head", head, 0, config.num_heads - 1)
    token = min(2, len(ids) - 2)  # it has a next token, and sees three keys if the prompt is long enough
    H, H_kv = config.num_heads, config.num_kv_heads
    introduction = (
        f"Shapes are written in letters: B = 1 text, T = S = {len(ids)} tokens (T as queries, S as keys), D = "
        f"{config.embed_dim} numbers in a token's vector, H = {H} heads of width K = {config.head_dim} (H_kv = {H_kv} "
        f"for keys and values), F = {config.feed_forward_dim} hidden units, V = {config.vocab_size:,} tokens in the "
        f"vocabulary. The values shown belong to token {token}, {quoted(glass.tokenizer, ids[token])}, counted from 0, "
        f"and to head {head} wherever each head has values of its own."
    )
    lines = textwrap.wrap(introduction, WIDTH)
    indices = {"B": 0, "T": token, "H": head, "H_kv": head * H_kv // H}
    number = 0
    for stop in lesson(glass.gpt, glass.tokenizer, ids, layer, token):
        if isinstance(stop, str):
            lines += ["", stop.upper()]
        else:
            number += 1
            lines += ["", *show(number, stop, indices)]
    return [line.replace(KEPT_SPACE, " ") for line in lines]


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
    """Returns the name of a function, and the file and line where it begins: "GPT.loss, model/gpt.py:263"."""
    _, line = inspect.getsourcelines(function)
    return f"{function.__qualname__}, {os.path.relpath(inspect.getfile(function), ROOT)}:{line}"


# fmt: off
def lesson(gpt: GPT, tokenizer: Tokenizer, ids: list[int], layer: int, token: int) -> Iterator[Stop | str]:
    """Yields the stops of one forward pass, and headings as str. There are no stops for parts that the model lacks.

    The weights are what the layer's own `attend` returns if the values are the identity matrix. Scores and mask are
    shown only if the usual formula computes the same weights from them.
    """
    import torch

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

    # What every module returns, and what attention computes inside it, each with an axis B of one text.
    label = partial(quoted, tokenizer)
    reading = read(gpt, Texts.of(ids, label), label=label)
    outputs: dict[nn.Module, Tensor] = {}
    last_matrix = feed_forward.down_proj  # its input, the hidden units, is shown
    others = [module for module in gpt.modules() if module is not last_matrix]
    with torch.no_grad(), undisturbed(gpt), hooked([last_matrix], others, outputs.__setitem__):
        surprise = gpt.loss(tokens, targets, reduction="none")
        queries, _, _ = attention.project(outputs[block.attention_norm])  # not yet turned by rotary positions
    q, k, v, weights, mixed = (
        of_layers[layer][None] for of_layers in (reading.q, reading.k, reading.v, reading.maps, reading.heads)
    )
    streams = reading.residual[:, None]  # after the embeddings, attention 0, feed-forward 0, attention 1, ...
    mask = sliding_window_mask(T, config.window)
    _, formula = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
    difference = (weights - formula).abs().max().item()
    is_formula = not difference > EXACT  # a diverged model gives NaN, which counts as equal
    error = reading.checks.by_layer["fidelity"][layer]
    problems = "".join(f" Warning: {problem}." for problem in reading.checks.problems.values())

    yield "From text to vectors"
    pieces = " ".join(reading.tokens[:50]) + " ..." * (T > 50)
    yield Stop("ids", "(B, T)",
               tokens, tokenizer.encode, f"""
               The tokenizer cuts the text into tokens, pieces that are in its vocabulary, and replaces each by its
               number, the id. The network sees nothing else of the text. Here: {pieces}
               """)
    yield Stop("token embedding", "(B, T, D)",
               outputs[gpt.token_embedding], GPT.features, f"""
               Each id selects its row of a learned table with {V:,} rows: a token becomes a vector of {D} numbers.
               """)
    if gpt.ngram_embedding is not None:
        sizes = listed([str(size) for size in config.ngram_sizes])
        yield Stop("n-gram embedding", "(B, T, D)",
                   outputs[gpt.ngram_embedding], NgramEmbedding.rows, f"""
                   Further tables add a vector for the last {sizes} tokens, taken together, so that the model knows
                   common sequences before any attention. All sequences of one length share {config.ngram_buckets:,}
                   rows: a hash of the sequence selects its row.
                   """)
    if gpt.position_embedding is not None:
        yield Stop("position embedding", "(T, D)",
                   outputs[gpt.position_embedding], GPT.features, """
                   Attention alone cannot tell the order of its keys, so each position adds a learned vector of its own.
                   """)
    normed = f", each vector {norm}" if config.embedding_norm else ""
    yield Stop("residual stream", "(B, T, D)",
               streams[0], GPT.features, f"""
               The sum of the vectors looked up so far{normed}. The blocks start from here: every layer reads this
               stream and adds its result to it.
               """)

    yield f"Block {layer}, attention: tokens read each other"
    if layer:
        yield Stop("stream into the block", "(B, T, D)",
                   streams[2 * layer], GPT.features, f"""
                   The stream after {layer} of the {config.num_layers} blocks.
                   """)
    yield Stop("attention norm", "(B, T, D)",
               outputs[block.attention_norm], Block.forward, f"""
               Each token's vector is {norm}, so that the layer works at one scale, however large the numbers in the
               stream have grown.
               """)
    yield Stop("queries, keys, values", "(B, T, (H+2*H_kv)*K)",
               outputs[attention.qkv_proj], CausalSelfAttention.project, f"""
               One matrix computes all three for all heads; then the result is cut into heads of {K} channels. A query
               says what a token looks for, a key how other tokens find it, a value what it hands on to them.
               """)
    name, normed = "queries", ""
    if config.qk_norm:
        name = "queries, normalised"
        normed = (" Queries and keys are divided by their root mean square (QK-norm). The dot product of a query and a "
                  f"key then never exceeds K = {K}, which keeps training stable.")
    yield Stop(name, "(B, H, T, K)",
               queries, CausalSelfAttention.project, f"""
               What each token looks for, in each of {H} heads.{normed}
               """)
    if config.position == "rotary":
        yield Stop("queries, turned", "(B, H, T, K)",
                   q, apply_rotary, """
                   Rotary positions: in queries and keys, each pair of channels is turned by an angle that grows with
                   the position. The product of a query and a key then depends on how far apart their tokens are, not on
                   where they stand. Values are not turned.
                   """)
    shared = f" Every {group} neighbouring heads share the same keys and values." if group > 1 else ""
    yield Stop("keys", "(B, H_kv, T, K)",
               k[:, ::group], CausalSelfAttention.project, f"""
               What other tokens can find each token by, computed in the same way as the queries.{shared}
               """)
    if str(layer) in gpt.value_embeddings:
        yield Stop("value embedding", "(B, T, H_kv*K)",
                   outputs[gpt.value_embeddings[str(layer)]], CausalSelfAttention.project, """
                   A further table has a vector for each token, which is added to the token's values. So attention can
                   hand on which token this was, even if the stream no longer shows it.
                   """)
    yield Stop("values", "(B, H_kv, T, K)",
               v[:, ::group], CausalSelfAttention.project, """
               What each token hands on to the tokens that attend to it.
               """)
    rule = "This layer computes the map by a rule of its own."
    if is_formula:
        rule = "Softmax turns the visible scores of each row into shares that add up to 1; hidden keys get 0."
        yield Stop("scores", "(B, H, T, S)",
                   q @ k.mT / math.sqrt(K), scaled_dot_product_attention, f"""
                   How well each query (row) fits each key (column): their dot product, divided by sqrt({K}) =
                   {math.sqrt(K):.3g}. Without the division, the sum of {K} products would be so large that the softmax
                   would be too sharp.
                   """)
        reach = "itself and the tokens before it"
        if config.window:
            reach = f"the nearest {config.window}, itself included (each further layer reaches further back)"
        yield Stop("mask", "(T, S)",
                   mask, sliding_window_mask if config.window else causal_mask, f"""
                   True where a query may attend: to {reach}, never to a later token. The model learns to predict all
                   next tokens of the text at once, and no position may see its own answer.
                   """)
    yield Stop("weights", "(B, H, T, S)",
               weights, attention.attend, f"""
               The attention map: how much of each key's value (column) each query (row) takes. {rule} Fast kernels
               never store the map, so it is measured: it is what the layer's own `attend` returns when the values are
               the identity matrix. It differs from softmax(query @ key^T / sqrt(K)) by at most {difference:.2g}.
               """)
    yield Stop("mixed values", "(B, H, T, K)",
               mixed, attention.attend, f"""
               What `attend` returns for each query. If the map tells the truth, this is the mean of the values,
               weighted by the map: the two differ by at most {error:.1e}.{problems}
               """)
    yield Stop("output projection", "(B, T, D)",
               outputs[attention.output_proj], CausalSelfAttention.forward, f"""
               The results of all {H} heads are put side by side, as one vector for each token again. A matrix combines
               what the heads have found into what attention adds to the stream.
               """)
    yield Stop("stream after attention", "(B, T, D)",
               streams[2 * layer + 1], Block.forward, """
               The result is added to the stream and replaces nothing: what came in is still there, and in training the
               gradient has a direct way back.
               """)

    yield f"Block {layer}, feed-forward: each token by itself"
    yield Stop("feed-forward norm", "(B, T, D)",
               outputs[block.feed_forward_norm], Block.forward, f"""
               Each token's vector is {norm}, as before attention.
               """)
    activation = ACTIVATION_NAMES.get(config.activation, config.activation)
    nonlinearity = f"multiplies the product by a gate, which is {activation} of a second product of this kind"
    if feed_forward.gate_proj is None:
        nonlinearity = f"passes the product through {activation}"
    yield Stop("hidden units", "(B, T, F)",
               outputs[last_matrix], FeedForward.forward, f"""
               Each unit asks one question about a token: it multiplies the token's vector by a vector of its own, and
               {nonlinearity}. Without this nonlinear step, two matrices in a row could do no more than one.
               """)
    yield Stop("feed-forward output", "(B, T, D)",
               outputs[feed_forward], FeedForward.forward, """
               Another matrix turns the units into what the feed-forward adds to the stream.
               """)
    yield Stop("stream after the block", "(B, T, D)",
               streams[2 * layer + 2], Block.forward, """
               Again the result is added. Attention has moved information between tokens; the feed-forward has worked on
               each token by itself.
               """)

    yield "From vectors to the loss"
    yield Stop("final norm", "(B, T, D)",
               outputs[gpt.final_norm], GPT.features, f"""
               Every block has added to the stream, with weights of its own. Each token's vector is {norm} once more, so
               that its direction, not its length, decides what comes next.
               """)
    cap = config.logit_soft_cap
    capped = f", squeezed to stay between -{cap:g} and {cap:g}" if cap else ""
    matrix = "the token embedding, which is also lm_head" if config.tie_embeddings else "lm_head, the last matrix"
    likeliest = ", ".join(f"{text} {probability:.1%}" for text, probability in reading.top(token, 3))
    here, following = reading.tokens[token : token + 2]
    yield Stop("logits", "(B, T, V)",
               reading.logits[None], GPT.unembed, f"""
               One number for each token of the vocabulary: the larger it is, the likelier this token comes next. It is
               the dot product of the vector above and the token's row of {matrix}{capped}. Likeliest after {here}:
               {likeliest}. The prompt goes on with {following}, {math.exp(-surprise[token]):.1%}.
               """)
    yield Stop("surprise", "(B*T)",
               surprise, GPT.loss, f"""
               -ln p of the token that really comes next, in nats: 0 for certainty, ln {V:,} = {math.log(V):.3f} for a
               blind guess. Nothing comes after the last token, so it does not count.
               """)
    yield Stop("loss", "()",
               surprise[:-1].mean(), GPT.loss, f"""
               The mean surprise of the {T - 1} tokens that count. Each training step changes the weights a little, in
               the direction that makes the loss smaller.
               """)
# fmt: on


def quoted(tokenizer: Tokenizer, id: int) -> str:
    """Returns a token as a Python literal: 'text', or b'bytes' if it is not UTF-8, with KEPT_SPACE for spaces."""
    content = tokenizer.token_bytes(id, unused=f"<{id}>")
    try:
        text = repr(content.decode())
    except UnicodeDecodeError:
        text = repr(content)
    return text.replace(" ", KEPT_SPACE)


if __name__ == "__main__":
    sys.exit(main())
