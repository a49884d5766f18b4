"""Experiments that are true of one model: a text, one change, and what the model expects then.

An experiment proposes texts, each with the tokens that should come next, and a change: another text, or a head that is
switched off. A model is right where these tokens get at least RIGHT of the probability. The experiment holds if it is
right on MIN_TEXTS texts, and the change takes at least half of that probability on MIN_SHARE of these.

The head is chosen on the first CHOOSING texts, and all figures are of the others. Chance cannot pass: an untrained
model gives each of V tokens about 1 / V, so it is right nowhere; and a change does not move one that always expects the
same.

To add an experiment, write a function that proposes its texts, and a line in EXPERIMENTS that words it.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.generation import generate
from model.gpt import GPT
from model.inspection.maps import Attend, observed, weights_of
from model.inspection.parts import Vectors, replaced, undisturbed
from model.inspection.texts import Texts

LISTED = 20  # likeliest next tokens that count, as many as the page knows
RIGHT, MIN_TEXTS, MIN_SHARE = 0.25, 20, 0.75
CHOOSING, MADE_UP, MOST = 12, 72, 92  # texts: those that choose a head, are made up, and are tried at all
PIECE = (8, 18)  # tokens of a part of the recorded text: so many for each window to have six
WORD = 8  # letters of a made-up word
BEGINNING = 4  # tokens of a prompt, after which the model writes a text of its own
NGRAM = 5  # tokens in a row that are in a text twice: from the second time on, the model repeats itself
SWAPPED = {"'": '"', '"': "'", "(": "[", "[": "("}
CLOSING = {"'": "'", '"': '"', "(": ")", "[": "]"}


@dataclass(frozen=True)
class Trial:
    """A text. right: ids of the tokens that should come next; answer: how they begin. changed: the text after the
    change. source: the place of the token that tells what comes next."""

    text: str
    right: Sequence[int]
    answer: str
    changed: str
    source: int


@dataclass(frozen=True)
class Effect:
    """An experiment that holds, and a text on which its change does what is usual.

    off: the parts that are switched off. head: "LAYER.HEAD" to look at: of those that look at the source, the one
    without which the right tokens lose most; None if they lose nothing. finding: what that head does, in words. weight:
    what it gives to the source from the last token, on average; 0 if that is below RIGHT, too little to speak of.
    shares: what the right tokens of the text get before and after the change; usual: the medians over the texts on
    which the model is right. texts: on how many of those the change takes half or more, how many those are, and of how
    many.
    """

    title: str
    look: str
    change: str
    question: str
    finding: str
    trial: Trial
    off: list[str]
    head: str | None
    weight: float
    shares: tuple[float, float]
    usual: tuple[float, float]
    texts: tuple[int, int, int]


@dataclass(frozen=True)
class Experiment:
    """An experiment in words, and the function that proposes its texts.

    look: what the text shows. change: what to do; {head} stands for the head without which the right tokens lose most,
    if the change `switches` it off. question: what to ask then, whose answer is on the screen. {context} stands in all
    three for the tokens that the model reads at once. finding: what a head does that looks at the source.
    """

    title: str
    look: str
    change: str
    question: str
    finding: str
    propose: Callable[[Material], Iterator[Trial]]
    switches: bool = False


Found = tuple[list[Effect], dict[str, str]]  # those that hold, strongest first; of the others by title why they do not


class Material:
    """A model, and what texts for it are made of: its tokenizer, recorded windows, and what it writes itself.

    tokenizer: one of `data.tokenizers`. means: what a part that is switched off gives. context: the tokens that the
    model reads at once.
    """

    def __init__(self, gpt: GPT, tokenizer: Any, windows: Texts, means: Vectors) -> None:
        self.gpt = gpt
        self.tokenizer = tokenizer
        self.encode = tokenizer.encode
        self.means = means
        self.context = gpt.config.context_length
        self.recorded = "\n".join("".join(labels) for labels in windows.labels)
        self.known: dict[str, list[int]] = {}
        least, most = PIECE
        self.piece = min(max(self.context // 6, least), most)
        # Parts that do not overlap, and the token after each; not those that begin or end within a character.
        self.pieces = []
        for tokens in windows.tokens.tolist():
            for at in range(0, len(tokens) - self.piece, self.piece + 1):
                piece = tokens[at : at + self.piece + 1]
                is_whole = self.encode(tokenizer.decode(piece[:-1])) == piece[:-1]
                if is_whole and tokenizer.end_of_text not in piece:
                    self.pieces.append(piece)

    def words(self, count: int) -> Iterator[list[str]]:
        """Different words of the recorded text."""
        known = sorted(set(re.findall(r"\b[a-z]{3,9}\b", self.recorded)))
        draw = random.Random(0)
        for _ in range(MADE_UP if len(known) >= 10 * count else 0):
            yield draw.sample(known, count)

    def made_up(self) -> Iterator[tuple[list[int], list[int], int]]:
        """Words of random letters: the tokens of one, those with which it begins again, and the next one."""
        letters = [letter for letter in string.ascii_lowercase if letter in self.recorded]
        draw = random.Random(0)
        space = " " if " " in self.recorded else ""
        for _ in range(MADE_UP if len(letters) > WORD else 0):
            word = self.encode(space + "".join(draw.sample(letters, WORD)))
            cut = draw.randrange(len(word) // 2, len(word))
            yield word, word[:cut], word[cut]

    def written(self) -> Iterator[list[int]]:
        """Token ids: beginnings of the recorded text, each continued by the model, always with the likeliest token."""
        beginnings = [piece[:BEGINNING] for piece in self.pieces[:MOST]]
        if beginnings and self.context > BEGINNING:
            prompts = torch.tensor(beginnings, device=self.gpt.token_embedding.weight.device)
            yield from generate(self.gpt, prompts, self.context - BEGINNING, temperature=0).tolist()

    def of_tokens(
        self,
        tokens: list[int],
        following: int,
        changed: list[int],
        source: int,
    ) -> Trial:
        text = self.tokenizer.decode(tokens)
        other = self.tokenizer.decode(changed)
        return Trial(text, [following], self.tokenizer.label(following), other, source)

    def of_text(self, text: str, pattern: str, answer: str, changed: str, character: int) -> Trial:
        """Right are the tokens whose text begins as a regular expression says; the source holds a character."""
        if pattern not in self.known:
            tokens = range(self.tokenizer.vocab_size)
            self.known[pattern] = [one for one in tokens if re.match(pattern, self.tokenizer.label(one))]
        tokens = self.encode(text)
        source = next(i for i in range(len(tokens)) if len(self.tokenizer.decode(tokens[: i + 1])) > character)
        return Trial(text, self.known[pattern], answer, changed, source)


def _word_twice(texts: Material) -> Iterator[Trial]:
    for word, again, following in texts.made_up():
        yield texts.of_tokens(word + again, following, word + again, len(again))


def _far_above(texts: Material) -> Iterator[Trial]:
    for number, (word, again, following) in enumerate(texts.made_up() if texts.pieces else ()):
        first = number % len(texts.pieces)
        pieces = (texts.pieces[first:] + texts.pieces)[: 1 + texts.context // texts.piece]
        between = [token for piece in pieces for token in piece]
        near = word + between[: min(texts.piece, texts.context - 2 * len(word))] + again
        yield texts.of_tokens(near, following, word + between + again, len(again))


def _token_before(texts: Material) -> Iterator[Trial]:
    for *tokens, following in texts.pieces:
        yield texts.of_tokens(tokens, following, [*tokens[:-2], tokens[0], tokens[-1]], len(tokens) - 2)


def _quotes(texts: Material) -> Iterator[Trial]:
    for number, (one, other) in enumerate(texts.words(2)):
        yield _closing(texts, f"        if {one} == ", "'\""[number % 2], other)


def _brackets(texts: Material) -> Iterator[Trial]:
    for number, (one, other, inner) in enumerate(texts.words(3)):
        sign = "(["[number % 2]
        yield _closing(texts, f"        {one} = {other}{SWAPPED[sign]}{inner}", sign, "0, 1")


def _closing(texts: Material, start: str, sign: str, inside: str) -> Trial:
    """A text with an open quote or bracket, and with the other kind in its place; brackets of `start` swap too."""
    text = f"{start}{sign}{inside}"
    closing = CLOSING[sign]
    changed = "".join(SWAPPED.get(char, char) for char in text)
    return texts.of_text(text, re.escape(closing), closing, changed, len(start))


def _indentation(texts: Material) -> Iterator[Trial]:
    for number, (name, argument, one, other) in enumerate(texts.words(4)):
        start = f"    def {name}(self, {argument}):\n"
        depth, changed = (12, 8) if number % 2 else (8, 12)
        text, moved = (f"{start}{' ' * width}if {one} in {other}" for width in (depth, changed))
        pattern = rf":\n {{{depth + 4}}}$"
        answer = f":\n{' ' * (depth + 4)}"
        yield texts.of_text(text, pattern, answer, moved, len(start))


def _own_text(texts: Material) -> Iterator[Trial]:
    for tokens in texts.written():
        for end in range(2 * NGRAM, len(tokens)):
            last = tokens[end - NGRAM : end]
            copies = [at for at in range(NGRAM, end - NGRAM + 1) if tokens[at - NGRAM : at] == last]
            if copies and tokens[copies[-1]] == tokens[end]:
                read = tokens[:end]
                if texts.encode(texts.tokenizer.decode(read)) == read:
                    yield texts.of_tokens(read, tokens[end], read, copies[-1])
                break


EXPERIMENTS = [
    Experiment(
        "A made-up word, twice",
        "These letters were drawn at random: only their first copy can tell how the second goes on.",
        "switch head {head} off",
        "Does the list still put what the first copy says on top?",
        "finds what followed in the first copy of a made-up word",
        _word_twice,
        switches=True,
    ),
    Experiment(
        "A word used far above",
        "A made-up word begins again after other text. Attention can fetch it while it is among the {context} tokens "
        "that the model reads at once.",
        "put more text between, until the word is out of reach",
        "How many tokens does the model read at once (below the box), and is the first copy among them?",
        "finds a made-up word again that stands further up",
        _far_above,
    ),
    Experiment(
        "The token just before",
        "The last token alone does not tell what comes next: the model also reads the one before it.",
        "put another token before the last",
        "The last token is the same: what does the list put on top now?",
        "reads the token before the last",
        _token_before,
    ),
    Experiment(
        "A quote closes as it opened",
        "A string is open. The last token does not tell which quote opened it: to close it, the model has to look "
        "back.",
        "open it with the other quote",
        "Which quote do the likeliest tokens begin with now?",
        "finds the quote that is still open",
        _quotes,
    ),
    Experiment(
        "Brackets close in order",
        "Two brackets are open, and the inner one has to close first.",
        "swap the two opening brackets",
        "The same characters, two of them swapped: which bracket do more of the listed tokens begin with now?",
        "finds the bracket that is still open",
        _brackets,
    ),
    Experiment(
        "A colon indents the next line",
        "After the colon that comes next, a new line has to begin four spaces deeper than this one.",
        "indent this line otherwise",
        "How many spaces does the likeliest line break have now?",
        "finds how far the line is indented",
        _indentation,
    ),
    Experiment(
        "Why does it repeat itself?",
        "The model wrote this by itself, always the likeliest token, and here begins to repeat what it wrote. Write on "
        "at temperature 0.5 to see it go on.",
        "switch head {head} off",
        "Write on at temperature 0.5 with the head off, and once more with all parts on: which text repeats itself?",
        "finds what the model itself wrote before, and so makes it repeat itself",
        _own_text,
        switches=True,
    ),
]


@torch.no_grad()
def try_all(gpt: GPT, tokenizer: Any, windows: Texts, means: Vectors) -> Found:
    """Tries all experiments on a model.

    windows: of the recorded text. means: what a head that is switched off gives at every token.
    """
    texts = Material(gpt, tokenizer, windows, means)
    effects: list[Effect] = []
    missing: dict[str, str] = {}
    with undisturbed(gpt):
        for experiment in EXPERIMENTS:
            found = _tried(experiment, texts)
            if isinstance(found, Effect):
                effects.append(found)
            else:
                missing[experiment.title] = found
    return sorted(effects, key=lambda effect: effect.usual[1] - effect.usual[0]), missing


def _tried(tried: Experiment, texts: Material) -> Effect | str:
    """What comes of an experiment: an effect, or why there is none."""
    proposed = islice(tried.propose(texts), MOST)
    # Of a text beyond the context only the end is read, where its source would be another token.
    trials = [one for one in proposed if one.right and len(texts.encode(one.text)) <= texts.context]
    if len(trials) < CHOOSING + MIN_TEXTS:
        return "its tokens and its recorded text make no such texts"
    others = trials[CHOOSING:]
    share, looks = _expected(texts, others)
    is_right = share >= RIGHT
    known = [trial for trial, right in zip(others, is_right, strict=True) if right]
    if len(known) < MIN_TEXTS:
        return f"right on only {len(known)} of {len(others)} texts"
    head = _chosen_head(texts, trials[:CHOOSING], tried.switches)
    off = [head] if head and tried.switches else []
    with replaced(texts.gpt, {part: texts.means[part] for part in off}):
        after, _ = _expected(texts, known, changed=True)
    before = share[is_right]
    halved = int((after <= before / 2).sum())
    if halved < MIN_SHARE * len(known):
        return f"the change takes half or more on only {halved} of the {len(known)} texts that it is right on"
    usual = before.median().item(), after.median().item()
    distance = (before - usual[0]).abs() + (after - usual[1]).abs()
    shown = int(distance.argmin())
    weight = looks[head][is_right].mean().item() if head else 0.0
    name = head and head.removeprefix("head ")
    words = {
        word: getattr(tried, word).format(head=name, context=texts.context)
        for word in ("title", "look", "change", "question", "finding")
    }
    return Effect(
        **words,
        trial=known[shown],
        off=off,
        head=name,
        weight=weight if weight >= RIGHT else 0.0,
        shares=(before[shown].item(), after[shown].item()),
        usual=usual,
        texts=(halved, len(known), len(others)),
    )


def _chosen_head(texts: Material, trials: Sequence[Trial], switches: bool) -> str | None:
    """The head without which the right tokens lose most: of all if it is to be switched off, else of those that look at
    the source, as a head may look there and yet give nothing that the model needs. None if they lose nothing."""
    share, looks = _expected(texts, trials)
    best = None
    most = 0.0
    for head, weight in looks.items():
        if switches or weight.mean() >= RIGHT:
            with replaced(texts.gpt, {head: texts.means[head]}):
                left, _ = _expected(texts, trials, changed=switches)
            lost = (share - left).sum().item()
            if lost > 0 and lost >= most:
                best = head
                most = lost
    return best


def _expected(
    texts: Material,
    trials: Sequence[Trial],
    changed: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """What the right tokens get of the probability, (N,), and before the change by the name of each head its weight
    from the last token to the source, (N,)."""
    gpt = texts.gpt
    read = [texts.encode(trial.changed if changed else trial.text) for trial in trials]
    tokens = [torch.tensor(ids[-texts.context :]) for ids in read]
    rows = torch.arange(len(tokens))
    last = torch.tensor([len(ids) - 1 for ids in tokens])
    source = torch.tensor([trial.source for trial in trials])
    weights: list[Tensor] = []  # of each layer (N, H)

    def see(attend: Attend, q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> None:
        weights.append(weights_of(attend, q, k, v)[rows, :, last, source].float().cpu())

    with nullcontext() if changed else observed(gpt, see):
        # What follows the end of a text does not change what is expected there.
        batch = pad_sequence(tokens, batch_first=True).to(gpt.token_embedding.weight.device)
        features = gpt.features(batch)[rows, last]
    listed = gpt.unembed(features).softmax(-1).cpu().topk(min(LISTED, gpt.head.out_features))
    right = []
    for ids, trial in zip(listed.indices, trials, strict=True):
        right.append(torch.isin(ids, torch.tensor(trial.right)))
    looks = {}
    for layer, of_layer in enumerate(weights):
        for head, of_head in enumerate(of_layer.T):
            looks[f"head {layer}.{head}"] = of_head
    return (listed.values * torch.stack(right)).sum(-1), looks
