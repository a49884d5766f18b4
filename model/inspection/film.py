"""The film of a run: at every recorded step, how the model continues made-up words that begin again.

A made-up word is WORD tokens of random letters. A text is the word and its first BEGIN tokens again. Only the first
copy tells which token comes next, so a model that gives it a high probability looks back. The head that does is an
induction head: the *finder*. It looks at the token after the first copy of the last token, and it finds that token by
what an earlier head has written there: the *writer*, which told each token what came before it (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context Learning and Induction Heads").

Several words are recorded, because no model continues all of them. `Film` shows the one that the last model knows best.

Shapes: N words, L layers, H heads, T = WORD + BEGIN tokens, D model width, K head width.
"""

import math
import random
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.attention import split_heads
from model.gpt import GPT
from model.inspection.maps import Attend, observed, weights_of
from model.inspection.parts import blocks_of, features_of, hooked, undisturbed
from model.inspection.reading import TOP, added_by_heads, centred, double, factor, towards_logits
from model.inspection.texts import Label, Texts
from model.kernels import RMS_EPSILON
from model.rotary import apply_rotary, rotary_angles

WORDS = 10  # recorded words
WORD = 8  # tokens of a word
BEGIN = 4  # tokens of its second copy
SOURCE = BEGIN  # the place of the token that the finder looks at: in the first copy, after the last token of the text
TRIES = 1000  # words that are drawn at most
LEAST_CHANCE = 0.25  # of the right token: with less, the model does not continue the word
LEAST_WEIGHT = 0.25  # of the finder, from the last token to the source
LEAST_RAISE = 0.5  # of the finder's score, by the writer


def made_up_words(tokenizer: Any, text: str) -> Iterator[list[int]]:
    """Yields words of random letters, as WORD distinct tokens each, always the same words in the same order.

    tokenizer: one of `data.tokenizers`. text: text that the model knows. Its letters make the words; if it has spaces,
    a space begins each word. Yields less than TRIES words if the tokens of some cannot be typed, and none without
    enough letters.
    """
    letters = [letter for letter in string.ascii_lowercase if letter in text]
    space = " " if " " in text else ""
    draw = random.Random(0)
    for _ in range(TRIES):
        drawn = draw.sample(letters, len(letters))
        for length in range(WORD // 2, len(letters) + 1):
            word = tokenizer.encode(space + "".join(drawn[:length]))
            if len(word) >= WORD:
                break
        else:
            continue
        twice = word + word[:BEGIN]
        if len(word) == len(set(word)) == WORD and tokenizer.encode(tokenizer.decode(twice)) == twice:
            yield word


def film_texts(tokenizer: Any, text: str, context: int, window: int | None = None) -> Texts | None:
    """Returns the texts of a film, (N, T + 1): the last token of each is the right one, which the model does not read.

    context: how many tokens the model reads at once. window: its attention window. Returns None if there are no words,
    or if the context is too short.
    """
    words = [word for word, _ in zip(made_up_words(tokenizer, text), range(WORDS), strict=False)]
    if not words or context < WORD + BEGIN:
        return None
    return Texts.of([word + word[: BEGIN + 1] for word in words], tokenizer.label, attention_window=window)


@dataclass(frozen=True, eq=False)
class Frame:
    """What a model at one step makes of the words.

    maps: (N, L, H, T, T). parts: (N, L, H), what each head adds to the logit of the right token after the last token.
    raises: (N, L, H, L, H), by how much each head's score of the source (first L, H) is raised by what each earlier
        head (last L, H) has written there, compared with the mean over all keys; 0 for a head that is not earlier. The
        scale of each norm is held fixed, as in `Reading.attribution`.
    chance: (N,), the probability of the right token.
    top, top_probability: (N, T, TOP), the likeliest tokens after each token, as text, and their probabilities.
    bits: (N, T), the surprise at the token after each token. rank: (N, T), its rank; 0 is the likeliest.
    """

    maps: Tensor
    parts: Tensor
    raises: Tensor
    chance: Tensor
    top: np.ndarray
    top_probability: Tensor
    bits: Tensor
    rank: Tensor

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the fields for a file, floating-point numbers as float16."""
        arrays: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                value = (value.half() if value.is_floating_point() else value.int()).numpy()
            arrays[f"film_{name}"] = value
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Frame":
        """The inverse of `arrays`. May raise any error for other input."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            value: Any = arrays[f"film_{field.name}"]
            if field.name != "top":
                tensor = torch.from_numpy(value)
                value = tensor.float() if tensor.is_floating_point() else tensor
            values[field.name] = value
        return cls(**values)


@torch.no_grad()
def take_frame(gpt: GPT, words: Texts, label: Label = str) -> Frame:
    """Reads the words in one batch, in eval mode and without autocast. label: see `read`."""
    read = replace(words, tokens=words.tokens[:, :-1])
    next_ids = words.tokens[:, 1:, None]
    blocks = blocks_of(gpt)
    matrices = [block.attention.output_proj for block in blocks]
    inputs: dict[nn.Module, Tensor] = {}
    maps: list[Tensor] = []
    queries: list[Tensor] = []  # (N, H, T, K)

    def keep(attend: Attend, q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> None:
        maps.append(weights_of(attend, q, k, v).float().cpu())
        queries.append(q)

    with undisturbed(gpt), observed(gpt, keep), hooked([*blocks, *matrices, gpt.final_norm], [], inputs.__setitem__):
        logits = gpt.unembed(features_of(gpt, read)).cpu()
    nats = -logits.log_softmax(-1)
    shares = (-nats).exp()
    of_next = nats.gather(-1, next_ids)[..., 0]
    top = shares.topk(min(TOP, shares.shape[-1]))
    written = [added_by_heads(matrix, inputs[matrix], gpt.config.num_heads) for matrix in matrices]  # (H, N, T, D) each
    return Frame(
        maps=torch.stack(maps, 1),
        parts=_added_to_logit(gpt, torch.stack(written)[..., -1, :], inputs[gpt.final_norm][:, -1], next_ids[:, -1, 0]),
        raises=_raises(gpt, [inputs[block] for block in blocks], queries, written, read.visible[:, -1]),
        chance=(-of_next[:, -1]).exp(),
        top=np.vectorize(label, otypes=[str])(top.indices.numpy()),
        top_probability=top.values,
        bits=of_next / math.log(2),
        rank=(nats < of_next[..., None]).sum(-1),
    )


def _added_to_logit(gpt: GPT, written: Tensor, stream: Tensor, ids: Tensor) -> Tensor:
    """Returns what vectors (L, H, N, D) of heads add to the logits of `ids` (N,), (N, L, H); see `Reading.attribution`.

    stream: (N, D), the whole stream, whose scale counts.
    """
    direction = towards_logits(gpt.final_norm, stream, double(gpt.lm_head.weight)[ids])
    return torch.einsum("lhnd,nd->nlh", written, direction).float()


def _raises(
    gpt: GPT,
    streams: list[Tensor],
    queries: list[Tensor],
    written: list[Tensor],
    visible: Tensor,
) -> Tensor:
    """Returns `Frame.raises`. streams: the input of each block. visible: (N, T), the keys that the last query sees.

    A key is a linear function of the normalised stream, if the scale of the norm is held fixed. So a score is a sum
    over what was added to the stream ("K-composition" in Elhage et al. 2021).
    """
    config = gpt.config
    L, H, N = config.num_layers, config.num_heads, len(visible)
    raises = torch.zeros(N, L, H, L, H)
    for layer, block in enumerate(blocks_of(gpt)[1:], start=1):
        norm = block.attention_norm
        earlier = torch.cat(written[:layer])  # (layer * H, N, T, D)
        parts = _keys(gpt, layer, centred(norm, earlier) * factor(norm, streams[layer]))
        if config.qk_norm:
            squares = _keys(gpt, layer, double(norm(streams[layer])), with_bias=True).square().mean(-1, keepdim=True)
            parts = parts * torch.rsqrt(squares + RMS_EPSILON)
        query = double(queries[layer])[:, :, -1]
        scores = torch.einsum("nhk,pnhtk->npht", query, parts) / config.head_dim**0.5
        means = (scores * visible[:, None, None]).sum(-1) / visible.sum(-1)[:, None, None]
        raised = scores[..., SOURCE] - means  # (N, layer * H, H)
        raises[:, layer, :, :layer] = raised.transpose(1, 2).unflatten(-1, (layer, H)).float()
    return raises


def _keys(gpt: GPT, layer: int, x: Tensor, with_bias: bool = False) -> Tensor:
    """Returns the keys of x (..., T, D) before QK-norm, for each head: (..., H, T, K)."""
    attention, config = blocks_of(gpt)[layer].attention, gpt.config
    rows = slice(config.embed_dim, config.embed_dim + config.num_kv_heads * config.head_dim)
    keys = x @ double(attention.qkv_proj.weight)[rows].T
    if with_bias and attention.qkv_proj.bias is not None:
        keys = keys + double(attention.qkv_proj.bias)[rows]
    keys = split_heads(keys, config.num_kv_heads)
    if config.position == "rotary":
        keys = apply_rotary(keys, *rotary_angles(torch.arange(x.shape[-2]), config.head_dim))
    return keys.repeat_interleave(config.num_heads // config.num_kv_heads, dim=-3)


@dataclass(frozen=True)
class Film:
    """What the last frame says of the circuit that the film shows.

    word: the number of the word that is shown: the one whose right token has the highest probability.
    known: how many of the words the model continues: their right token has at least LEAST_CHANCE.
    finder, writer: (layer, head); None if the model has no such head.
    missing: what the model does not do, as a sentence without its full stop; None if both heads are there.
    """

    word: int
    known: int
    finder: tuple[int, int] | None = None
    writer: tuple[int, int] | None = None
    missing: str | None = None

    @property
    def heads(self) -> dict[str, tuple[int, int] | None]:
        """By role."""
        return {"finder": self.finder, "writer": self.writer}


def tell_film(last: Frame) -> Film:
    """Finds the circuit in the last frame. The finder is the head that adds most to the right token's logit by looking
    at the source, and the writer the earlier head that raises its score most.
    """
    word = int(last.chance.nan_to_num().argmax())
    known = int((last.chance >= LEAST_CHANCE).sum())
    looks = last.maps[word, :, :, -1, SOURCE] >= LEAST_WEIGHT
    parts = last.parts[word].where(looks, -math.inf)
    if not known:
        return Film(word, known, missing="the model does not continue a made-up word yet")
    if parts.max() <= 0:
        return Film(word, known, missing="no head looks at the first copy to continue the word")
    finder = _place(parts)
    raises = last.raises[(word, *finder)]
    if raises.max() < LEAST_RAISE:
        return Film(word, known, finder, missing="no earlier head raises the score with which it looks there")
    return Film(word, known, finder, _place(raises))


def _place(by_head: Tensor) -> tuple[int, int]:
    """Returns the (layer, head) of the largest of (L, H) numbers."""
    layer, head = divmod(int(by_head.argmax()), by_head.shape[1])
    return layer, head
