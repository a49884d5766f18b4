"""The film of a run: at every recorded step, how the model continues made-up words that begin again.

A made-up word is WORD tokens of random letters. A text is the word and its first BEGIN tokens again. Only the first
copy tells which token comes next, so a model that gives it a high probability looks back. The head that does is an
induction head: the *finder*. It looks at the token after the first copy of the last token, and it finds that token by
what earlier heads have written there: the *writers*, which told each token what came before it (Elhage et al. 2021, "A
Mathematical Framework for Transformer Circuits"; Olsson et al. 2022, "In-context Learning and Induction Heads"). Often
one head is enough; in some runs two share the work.

Several words are recorded, because no model continues all of them. `Film` shows the one that the last model knows best.

Shapes: N words, L layers, H heads, T = LENGTH tokens, D model width, K head width.
"""

import copy
import math
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.maps import weights_of
from model.inspection.passes import Pass, run, undisturbed
from model.inspection.reading import added_by_heads, double, next_token_figures, normed, towards_logits
from model.inspection.texts import Label, Texts
from model.rotary import rotary_angles

WORDS = 10  # recorded words
WORD = 8  # tokens of a word
BEGIN = 4  # tokens of its second copy
LENGTH = WORD + BEGIN  # tokens of a text
# The position of the token that the finder looks at: in the first copy, after the last token of the text.
SOURCE = BEGIN
TRIES = 1000  # words that are drawn at most
LEAST_CHANCE = 0.25  # of the right token: with less, the model does not continue the word
LEAST_WEIGHT = 0.25  # of the finder, from the last token to the source
LEAST_RAISE = 0.5  # of the finder's score, by a writer
SAME_KEYS = 1e-3  # the largest difference of a key that rounding explains
LEAST_SHARE = 0.5  # of the largest raise, by a writer


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
        word = tokenizer.encode(space + "".join(drawn))[:WORD]
        twice = word + word[:BEGIN]
        is_distinct = len(set(word)) == WORD
        if is_distinct and tokenizer.encode(tokenizer.decode(twice)) == twice:
            yield word


def film_texts(
    tokenizer: Any,
    text: str,
    context: int,
    attention_window: int | None = None,
) -> Texts | None:
    """Returns the texts of a film, (N, T + 1): the last token of each is the right one, which the model does not read.

    context: how many tokens the model reads at once. attention_window: as in `Texts`. Returns None if there are no
    words, or if the context is too short.
    """
    words = list(islice(made_up_words(tokenizer, text), WORDS))
    if not words or context < LENGTH:
        return None
    begun_again = [word + word[: BEGIN + 1] for word in words]
    return Texts.of(begun_again, tokenizer.label, attention_window=attention_window)


@dataclass(frozen=True, eq=False)
class Frame:
    """What a model at one step makes of the words.

    maps: (N, L, H, T, T). parts: (N, L, H), what each head adds to the logit of the right token after the last token.
    raises: (N, L, H, L, H), by how much each head's score of the source (first L, H) is raised by what each earlier
        head (last L, H) has written there, compared with the mean over all keys; 0 for a head that is not earlier, NaN
        for a layer whose keys are not a projection of the stream. The scale of each norm is held fixed, as in
        `Reading.attribution`.
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


@torch.no_grad()
def take_frame(
    gpt: GPT,
    words: Texts,
    label: Label = str,
) -> Frame:
    """Reads the words in one batch, in eval mode and without autocast. label: see `read`."""
    texts = Texts.of(words.tokens[:, :-1], attention_window=words.attention_window)
    next_ids = words.tokens[:, 1:]
    with undisturbed(gpt):
        seen = run(gpt, texts, gpt.modules())
        logits = gpt.unembed(seen.features).cpu()
        maps = [weights_of(call).float().cpu() for call in seen.calls]
    bits, rank, top = next_token_figures(logits, next_ids)
    # What each head adds to the stream, (H, N, T, D) for each layer.
    matrices = [block.attention.output_proj for block in gpt.blocks]
    written = [added_by_heads(matrix, seen.inputs[matrix], gpt.config.num_heads) for matrix in matrices]
    lasts = torch.stack(written)[..., -1, :]
    rows = double(gpt.lm_head.weight)[next_ids[:, -1]]
    direction = towards_logits(gpt.final_norm, seen.inputs[gpt.final_norm][:, -1], rows)
    return Frame(
        maps=torch.stack(maps, 1),
        parts=torch.einsum("lhnd,nd->nlh", lasts, direction).float(),
        raises=_raises(gpt, seen, written, texts.visible[:, -1]),
        chance=bits[:, -1].neg().exp2(),
        top=np.vectorize(label, otypes=[str])(top.indices.numpy()),
        top_probability=top.values,
        bits=bits,
        rank=rank,
    )


def _raises(
    gpt: GPT,
    seen: Pass,
    written: list[Tensor],
    visible: Tensor,
) -> Tensor:
    """Returns `Frame.raises`. written: see `take_frame`. visible: (N, T), the keys that the last query sees.

    A key is a linear function of the normalised stream, if the scale of each norm is held fixed. So a score is a sum
    over what was added to the stream ("K-composition" in Elhage et al. 2021). Other keys give NaN.
    """
    config = gpt.config
    L, H, (N, T) = config.num_layers, config.num_heads, visible.shape
    rotary = rotary_angles(torch.arange(T), config.head_dim) if config.position == "rotary" else None
    less_mean = -visible.double() / visible.sum(-1, keepdim=True)
    less_mean[:, SOURCE] += 1
    raises = torch.zeros(N, L, H, L, H)
    for layer, block in enumerate(gpt.blocks[1:], start=1):
        norm = block.attention_norm
        stream = seen.inputs[block]
        query = double(seen.calls[layer].q[:, :, -1])  # of the last token, (N, H, K)
        whole = double(seen.calls[layer].k)
        attention = copy.deepcopy(block.attention).cpu().double()
        attention.qk_norm = False
        _, projected, _ = attention.project(double(norm(stream)), rotary)
        scale = whole.norm(dim=-1, keepdim=True) / projected.norm(dim=-1, keepdim=True)  # of qk_norm
        scale = scale.nan_to_num()  # of a key that is 0
        if not (projected * scale - whole).abs().max() <= SAME_KEYS:
            raises[:, layer] = math.nan
            continue
        for linear in attention.modules():
            if isinstance(linear, nn.Linear):
                linear.bias = None
        earlier = torch.cat(written[:layer])  # (layer * H, N, T, D)
        _, keys, _ = attention.project(normed(norm, earlier, stream), rotary)
        keys = (keys * scale).repeat_interleave(H // config.num_kv_heads, dim=-3)
        raised = torch.einsum("nhk,pnhtk,nt->nhp", query, keys, less_mean) / config.head_dim**0.5
        raises[:, layer, :, :layer] = raised.unflatten(-1, (layer, H))
    return raises


@dataclass(frozen=True)
class Film:
    """What the last frame says of the circuit that the film shows.

    word: the number of the word that is shown: the one whose right token has the highest probability.
    finder: (layer, head); None if the model has no such head. writers: the same of each, the one that helps most first.
    missing: what the model does not do, as a sentence without its full stop; None if it has a finder and a writer.
    """

    word: int
    finder: tuple[int, int] | None = None
    writers: tuple[tuple[int, int], ...] = ()
    missing: str | None = None


def tell_film(last: Frame) -> Film:
    """Finds the circuit in the last frame. The finder is the head that adds most to the right token's logit by looking
    at the source, and the writers are the earlier heads that raise its score most.
    """
    word = int(last.chance.nan_to_num().argmax())
    looks = last.maps[word, :, :, -1, SOURCE] >= LEAST_WEIGHT
    parts = last.parts[word].where(looks, -math.inf)
    if not last.chance[word] >= LEAST_CHANCE:  # nor is NaN
        return Film(word, missing="the model does not continue a made-up word yet")
    if parts.max() <= 0:
        return Film(word, missing="no head looks at the first copy to continue the word")
    finder = _sorted_heads(parts)[0]
    raises = last.raises[(word, *finder)]
    if raises.isnan().any():
        return Film(word, missing="keys are made in another way than here, so it is not known what raises their scores")
    if raises.max() < LEAST_RAISE:
        return Film(word, finder, missing="no earlier head raises the score with which it looks there")
    least = max(LEAST_RAISE, LEAST_SHARE * float(raises.max()))
    count = int((raises >= least).sum())
    return Film(word, finder, _sorted_heads(raises)[:count])


def _sorted_heads(by_head: Tensor) -> tuple[tuple[int, int], ...]:
    """Returns the (layer, head) of each of (L, H) numbers, the largest first."""
    order = by_head.flatten().argsort(descending=True).tolist()
    return tuple(divmod(number, by_head.shape[1]) for number in order)
