"""Experiments that hold for one model: a text, one change, and how the prediction of the next token changes with it.

An experiment proposes texts, each with the tokens that should come next, and a change: another text, or a head that is
switched off, that is, ablated as in parts.py. The model is right on a text if it gives these tokens at least RIGHT of
the probability. The experiment holds if the model is right on at least MIN_TEXTS texts, and the change takes at least
half of that probability on at least MIN_SHARE of them.

The head is chosen on the first CHOOSING texts, and all figures are measured on the others. No model passes by chance:
an untrained model gives each of V tokens a probability of about 1 / V, so it is not right on any text; and a model that
always predicts the same is not moved by a change.

To add an experiment, write a function that proposes its texts, and add its words to EXPERIMENTS.
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

LISTED = 20  # only the likeliest LISTED next tokens count: the page has no others
RIGHT = 0.25
MIN_TEXTS = 20
MIN_SHARE = 0.75
CHOOSING = 12  # texts on which a head is chosen
MADE_UP = 72  # texts that an experiment makes from words
MOST = 92  # texts that an experiment tries at most
PIECE_LENGTHS = (8, 18)  # fewest and most tokens in a piece of recorded text; in between, a sixth of the context
WORD = 8  # letters in a made-up word
BEGINNING = 4  # tokens in a prompt from which the model writes a text of its own
NGRAM = 5  # the model repeats itself if its last NGRAM tokens also occur earlier
OTHER_KIND = str.maketrans("'\"([", "\"'[(")  # the other kind of a quote or an opening bracket
CLOSING = str.maketrans("([", ")]")  # a quote is closed by the same quote


@dataclass(frozen=True)
class Trial:
    """A text of an experiment.

    right: the ids of the tokens that should come next. answer: the text with which they begin.
    changed: the text after the change.
    source: the place of the token that the model must look at to know what comes next.
    """

    text: str
    right: Sequence[int]
    answer: str
    changed: str
    source: int


@dataclass(frozen=True)
class Effect:
    """The result of an experiment that holds, with a text on which the change has its usual effect.

    title, look, change, question, finding: the words of the experiment, see `Experiment`.
    trial: the text.
    off: the parts that the change switches off.
    head: "LAYER.HEAD", the head without which the right tokens lose most (see `_chosen_head`); None if they lose none.
    weight: the mean weight that this head gives from the last token to the source; 0 if it is below RIGHT, which is too
        little to mention.
    shares: the probability of the right tokens of this text, before and after the change.
    usual: the medians of these two over the texts on which the model is right.
    texts: the number of texts on which the change takes half or more, on which the model is right, and all tried.
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

    In words, {head} stands for the chosen head, and {context} for the number of tokens that the model reads at once.

    look: what the text shows.
    change: what to do. If it names {head}, it switches that head off.
    question: what to ask then; the page shows the answer.
    finding: what a head that looks at the source does.
    """

    title: str
    look: str
    change: str
    question: str
    finding: str
    propose: Callable[[Material], Iterator[Trial]]


class Material:
    """A model, and what the texts of experiments are made of: the recorded text, and what the model writes itself.

    tokenizer: one of `data.tokenizers`.
    means: the output of each part when it is switched off.
    context: how many tokens the model reads at once.
    recorded: the recorded text.
    pieces: lists of token ids: parts of the recorded text that do not overlap, each with the token after it.
    piece_length: tokens in a piece, without the token after it.
    """

    def __init__(self, gpt: GPT, tokenizer: Any, windows: Texts, means: Vectors) -> None:
        self.gpt = gpt
        self.tokenizer = tokenizer
        self.encode = tokenizer.encode
        self.means = means
        self.context = gpt.config.context_length
        self.recorded = "\n".join("".join(labels) for labels in windows.labels)
        self.matching: dict[str, list[int]] = {}  # the tokens whose text matches a pattern, see `of_text`
        fewest, most = PIECE_LENGTHS
        self.piece_length = min(max(self.context // 6, fewest), most)
        self.pieces = []
        for tokens in windows.tokens.tolist():
            for start in range(0, len(tokens) - self.piece_length, self.piece_length + 1):
                piece = tokens[start : start + self.piece_length + 1]
                # A piece that begins or ends within a character has no text that gives the same tokens.
                is_whole = self.encode(tokenizer.decode(piece[:-1])) == piece[:-1]
                if is_whole and tokenizer.end_of_text not in piece:
                    self.pieces.append(piece)

    def words(self, count: int) -> Iterator[list[str]]:
        """Draws `count` different words from the recorded text, MADE_UP times. A text with too few yields nothing."""
        words = sorted(set(re.findall(r"\b[a-z]{3,9}\b", self.recorded)))
        draw = random.Random(0)
        for _ in range(MADE_UP if len(words) >= 10 * count else 0):
            yield draw.sample(words, count)

    def made_up(self) -> Iterator[tuple[list[int], list[int], int]]:
        """Makes words of random letters. Yields a word's tokens, the first few of them, and the token that follows."""
        letters = [letter for letter in string.ascii_lowercase if letter in self.recorded]
        draw = random.Random(0)
        space = " " if " " in self.recorded else ""
        for _ in range(MADE_UP if len(letters) > WORD else 0):
            word = self.encode(space + "".join(draw.sample(letters, WORD)))
            cut = draw.randrange(len(word) // 2, len(word))
            yield word, word[:cut], word[cut]

    def written(self) -> Iterator[list[int]]:
        """Yields the token ids of texts that the model writes at temperature 0 after the beginnings of pieces."""
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
        """Makes a trial of token ids, in which the token `following` is right."""
        tokenizer = self.tokenizer
        return Trial(
            tokenizer.decode(tokens),
            [following],
            tokenizer.label(following),
            tokenizer.decode(changed),
            source,
        )

    def of_text(
        self,
        text: str,
        pattern: str,
        answer: str,
        changed: str,
        character: int,
    ) -> Trial:
        """Makes a trial of a text. A next token is right if its text begins with a match of the regular expression.

        character: the number of a character in the text. The source is the token that holds it.
        """
        tokenizer = self.tokenizer
        if pattern not in self.matching:
            vocabulary = range(tokenizer.vocab_size)
            self.matching[pattern] = [token for token in vocabulary if re.match(pattern, tokenizer.label(token))]
        tokens = self.encode(text)
        source = next(place for place in range(len(tokens)) if len(tokenizer.decode(tokens[: place + 1])) > character)
        return Trial(text, self.matching[pattern], answer, changed, source)


def _word_twice(material: Material) -> Iterator[Trial]:
    for word, again, following in material.made_up():
        yield material.of_tokens(word + again, following, word + again, len(again))


def _far_above(material: Material) -> Iterator[Trial]:
    for number, (word, again, following) in enumerate(material.made_up() if material.pieces else ()):
        start = number % len(material.pieces)
        pieces = (material.pieces[start:] + material.pieces)[: 1 + material.context // material.piece_length]
        between = [token for piece in pieces for token in piece]
        near = word + between[: min(material.piece_length, material.context - 2 * len(word))] + again
        yield material.of_tokens(near, following, word + between + again, len(again))


def _token_before(material: Material) -> Iterator[Trial]:
    for *tokens, following in material.pieces:
        yield material.of_tokens(tokens, following, [*tokens[:-2], tokens[0], tokens[-1]], len(tokens) - 2)


def _quotes(material: Material) -> Iterator[Trial]:
    for number, (name, value) in enumerate(material.words(2)):
        quote = "'\""[number % 2]
        yield _closing(material, f"        if {name} == ", quote, value)


def _brackets(material: Material) -> Iterator[Trial]:
    for number, (name, outer, inner) in enumerate(material.words(3)):
        bracket = "(["[number % 2]
        start = f"        {name} = {outer}{bracket.translate(OTHER_KIND)}{inner}"
        yield _closing(material, start, bracket, "0, 1")


def _closing(material: Material, start: str, opening: str, inside: str) -> Trial:
    """Makes a trial that ends within quotes or brackets. The change swaps their two kinds in the whole text."""
    text = f"{start}{opening}{inside}"
    closing = opening.translate(CLOSING)
    return material.of_text(text, re.escape(closing), closing, text.translate(OTHER_KIND), len(start))


def _indentation(material: Material) -> Iterator[Trial]:
    for number, (name, argument, item, collection) in enumerate(material.words(4)):
        start = f"    def {name}(self, {argument}):\n"
        condition = f"if {item} in {collection}"
        depth, changed_depth = (12, 8) if number % 2 else (8, 12)
        text = f"{start}{' ' * depth}{condition}"
        changed = f"{start}{' ' * changed_depth}{condition}"
        pattern = rf":\n {{{depth + 4}}}$"
        answer = f":\n{' ' * (depth + 4)}"
        yield material.of_text(text, pattern, answer, changed, len(start))


def _own_text(material: Material) -> Iterator[Trial]:
    for tokens in material.written():
        for end in range(2 * NGRAM, len(tokens)):
            last = tokens[end - NGRAM : end]
            # The places just after earlier copies of the last tokens: the token there is the one to repeat.
            copies = [at for at in range(NGRAM, end - NGRAM + 1) if tokens[at - NGRAM : at] == last]
            if copies and tokens[copies[-1]] == tokens[end]:
                prompt = tokens[:end]
                if material.encode(material.tokenizer.decode(prompt)) == prompt:
                    yield material.of_tokens(prompt, tokens[end], prompt, copies[-1])
                break


EXPERIMENTS = [
    Experiment(
        "A made-up word, twice",
        "These letters were drawn at random: only their first copy can tell how the second goes on.",
        "switch head {head} off",
        "Is the token that followed in the first copy still on top of the list?",
        "finds what followed in the first copy of a made-up word",
        _word_twice,
    ),
    Experiment(
        "A word used far above",
        "A made-up word begins again after other text. Attention can fetch it while it is among the {context} tokens "
        "that the model reads at once.",
        "put more text between, until the first copy is out of reach",
        "How many tokens does the model read at once (below the box), and is the first copy among them?",
        "finds the first copy of a made-up word further up",
        _far_above,
    ),
    Experiment(
        "The token just before",
        "The last token alone does not tell what comes next: the model also reads the one before it.",
        "put another token before the last",
        "The last token is the same: which token is on top of the list now?",
        "reads the token before the last",
        _token_before,
    ),
    Experiment(
        "A quote closes as it opened",
        "A string is open. The last token does not tell which quote opened it: to close it, the model must look back.",
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
        "indent this line differently",
        "How many spaces follow the likeliest line break now?",
        "finds how far the line is indented",
        _indentation,
    ),
    Experiment(
        "Why does it repeat itself?",
        "The model wrote this itself, always with the likeliest token, and here begins to repeat itself. Write on at "
        "temperature 0.5 to see it go on.",
        "switch head {head} off",
        "Write on at temperature 0.5 with the head off, and once more with all parts on: which text repeats itself?",
        "finds what the model itself wrote before, and so makes it repeat itself",
        _own_text,
    ),
]


@torch.no_grad()
def try_all(gpt: GPT, tokenizer: Any, windows: Texts, means: Vectors) -> tuple[list[Effect], dict[str, str]]:
    """Tries all experiments on a model.

    windows: the recorded text. means: the output of each part when it is switched off.

    Returns the effects of the experiments that hold, strongest first; and for each other experiment, by its title, why
    it does not hold.
    """
    material = Material(gpt, tokenizer, windows, means)
    effects: list[Effect] = []
    failed: dict[str, str] = {}
    with undisturbed(gpt):
        for experiment in EXPERIMENTS:
            result = _try(experiment, material)
            if isinstance(result, Effect):
                effects.append(result)
            else:
                failed[experiment.title] = result
    return sorted(effects, key=lambda effect: effect.usual[1] - effect.usual[0]), failed


def _try(experiment: Experiment, material: Material) -> Effect | str:
    """Returns the effect of an experiment, or why it does not hold."""
    proposed = islice(experiment.propose(material), MOST)
    # The model reads only the end of a longer text, where `source` would be another token.
    trials = [trial for trial in proposed if trial.right and len(material.encode(trial.text)) <= material.context]
    if len(trials) < CHOOSING + MIN_TEXTS:
        return "too few such texts can be made from its tokens and its recorded text"
    measured = trials[CHOOSING:]
    shares, weights = _measure(material, measured)
    is_right = shares >= RIGHT
    right = [measured[number] for number in is_right.nonzero().flatten().tolist()]
    if len(right) < MIN_TEXTS:
        return f"right on only {len(right)} of {len(measured)} texts"
    switches_off = "{head}" in experiment.change
    head = _chosen_head(material, trials[:CHOOSING], switches_off)
    off = [head] if head and switches_off else []
    with replaced(material.gpt, {part: material.means[part] for part in off}):
        after, _ = _measure(material, right, changed=True)
    before = shares[is_right]
    halved = int((after <= before / 2).sum())
    if halved < MIN_SHARE * len(right):
        return f"the change takes half or more on only {halved} of the {len(right)} texts on which it is right"
    usual = before.median().item(), after.median().item()
    distance = (before - usual[0]).abs() + (after - usual[1]).abs()
    nearest = int(distance.argmin())
    weight = weights[head][is_right].mean().item() if head else 0.0
    name = head and head.removeprefix("head ")
    words = {
        word: getattr(experiment, word).format(head=name, context=material.context)
        for word in ("title", "look", "change", "question", "finding")
    }
    return Effect(
        **words,
        trial=right[nearest],
        off=off,
        head=name,
        weight=weight if weight >= RIGHT else 0.0,
        shares=(before[nearest].item(), after[nearest].item()),
        usual=usual,
        texts=(halved, len(right), len(measured)),
    )


def _chosen_head(material: Material, trials: Sequence[Trial], switches_off: bool) -> str | None:
    """Returns the head whose absence takes most probability from the right tokens; None if none takes any.

    If the change switches the head off, all heads are tried, else those that look at the source. To look is not enough:
    a head may look there and yet give nothing that the model needs.
    """
    before, weights = _measure(material, trials)
    chosen = None
    most = 0.0
    for head, weight in weights.items():
        if switches_off or weight.mean() >= RIGHT:
            with replaced(material.gpt, {head: material.means[head]}):
                after, _ = _measure(material, trials, changed=switches_off)
            lost = (before - after).sum().item()
            if lost > 0 and lost >= most:
                chosen = head
                most = lost
    return chosen


def _measure(
    material: Material,
    trials: Sequence[Trial],
    changed: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the probability of the right tokens in each of N trials, (N,), and by head the last token's weight on the
    source, (N,).

    changed: measure the texts after the change, without weights.
    """
    gpt = material.gpt
    tokens = []
    for trial in trials:
        ids = material.encode(trial.changed if changed else trial.text)
        tokens.append(torch.tensor(ids[-material.context :]))
    rows = torch.arange(len(tokens))
    last = torch.tensor([len(ids) - 1 for ids in tokens])
    source = torch.tensor([trial.source for trial in trials])
    by_layer: list[Tensor] = []  # (N, H)

    def keep_weights(attend: Attend, q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> None:
        by_layer.append(weights_of(attend, q, k, v)[rows, :, last, source].float().cpu())

    with nullcontext() if changed else observed(gpt, keep_weights):
        # The padding after a text does not change the prediction at its end.
        batch = pad_sequence(tokens, batch_first=True).to(gpt.token_embedding.weight.device)
        features = gpt.features(batch)[rows, last]
    listed = gpt.unembed(features).softmax(-1).cpu().topk(min(LISTED, gpt.lm_head.out_features))
    right_places = []
    for ids, trial in zip(listed.indices, trials, strict=True):
        right_places.append(torch.isin(ids, torch.tensor(trial.right)))
    weights = {}
    for layer, by_head in enumerate(by_layer):
        for head, head_weights in enumerate(by_head.T):
            weights[f"head {layer}.{head}"] = head_weights
    return (listed.values * torch.stack(right_places)).sum(-1), weights
