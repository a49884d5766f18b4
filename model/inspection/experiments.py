"""Experiments that hold for one model: a text, one change, and how the prediction of the next token changes with it.

An experiment proposes texts, each with the tokens that should come next, and a change: another text, or a head that is
switched off, that is, ablated as in parts.py. The experiment holds if, on average over all texts tried, the model gives
these tokens at least ENOUGH of the probability, and the change takes at least half of that.

The head is chosen on the first CHOOSING texts, and all figures are measured on the others. No model passes by chance:
an untrained model gives each of V tokens a probability of about 1 / V; and a model that always predicts the same is not
moved by a change.

To add an experiment, write a function that proposes its texts, and add its words to EXPERIMENTS.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.gpt import GPT
from model.inspection.film import made_up_words
from model.inspection.maps import weights_of
from model.inspection.parts import Vectors, part_means, replaced
from model.inspection.passes import run, undisturbed
from model.inspection.texts import Texts

LISTED = 20  # only the likeliest LISTED next tokens count: the page has no others
ENOUGH = 0.25
MIN_TEXTS = 20
CHOOSING = 12  # texts on which a head is chosen
MADE_UP = 72  # texts that an experiment makes from words, and the most that it tries
QUOTES = ("'", '"')
DEPTHS = (8, 12)  # spaces


@dataclass(frozen=True)
class Trial:
    """A text of an experiment.

    right: the ids of the tokens that should come next. answer: the text with which they begin.
    changed: the text after the change.
    source: the position of the token that the model must look at to know what comes next.
    """

    text: str
    right: Sequence[int]
    answer: str
    changed: str
    source: int


@dataclass(frozen=True)
class Experiment:
    """An experiment in words.

    look: what the text shows.
    change: what to do. If it names {head}, it switches off the chosen head.
    question: what to ask then; the page shows the answer.
    finding: what a head that looks at the source does.
    """

    title: str
    look: str
    change: str
    question: str
    finding: str


@dataclass(frozen=True)
class Effect(Experiment):
    """An experiment that holds for a model, with a text on which the change has its usual effect.

    trial: the text.
    off: the parts that the change switches off.
    head: "LAYER.HEAD", the head without which the right tokens lose most (see `_chosen_head`); None if they lose none.
    weight: the mean weight that this head gives from the last token to the source, over all texts; 0 if it is below
        ENOUGH, which is too little to mention.
    shares: the probability of the right tokens of this text, before and after the change.
    means: the means of these two over all texts.
    texts: how many these are.
    """

    trial: Trial
    off: list[str]
    head: str | None
    weight: float
    shares: tuple[float, float]
    means: tuple[float, float]
    texts: int


@dataclass(frozen=True)
class Material:
    """A model, and what the texts of experiments are made of.

    tokenizer: one of `data.tokenizers`.
    means: the output of each part when it is switched off.
    recorded: the recorded text.
    """

    gpt: GPT
    tokenizer: Any
    means: Vectors
    recorded: str

    def words(self, count: int) -> Iterator[list[str]]:
        """Draws `count` different words from the recorded text, MADE_UP times. A text with too few yields nothing."""
        words = sorted(set(re.findall(r"\b[a-z]{3,9}\b", self.recorded)))
        draw = random.Random(0)
        for _ in range(MADE_UP if len(words) >= 10 * count else 0):
            yield draw.sample(words, count)

    def beginning_with(self, pattern: str) -> list[int]:
        """Returns the tokens whose text begins with a match of the regular expression."""
        label = self.tokenizer.label
        return [token for token in range(self.tokenizer.vocab_size) if re.match(pattern, label(token))]

    def token_at(self, text: str, character: int) -> int:
        """Returns the position of the token that holds this character of the text."""
        tokens = self.tokenizer.encode(text)
        decode = self.tokenizer.decode
        return next(position for position in range(len(tokens)) if len(decode(tokens[: position + 1])) > character)


def _word_twice(material: Material) -> Iterator[Trial]:
    tokenizer = material.tokenizer
    draw = random.Random(1)
    for word in made_up_words(tokenizer, material.recorded):
        cut = draw.randrange(len(word) // 2, len(word))
        tokens = word + word[:cut]
        text = tokenizer.decode(tokens)
        if tokenizer.encode(text) == tokens:
            yield Trial(text, [word[cut]], tokenizer.label(word[cut]), text, cut)


def _quotes(material: Material) -> Iterator[Trial]:
    closing = {quote: material.beginning_with(quote) for quote in QUOTES}
    for number, (name, value) in enumerate(material.words(2)):
        quote, other = QUOTES[number % 2], QUOTES[1 - number % 2]
        start = f"        if {name} == "
        text = f"{start}{quote}{value}"
        yield Trial(text, closing[quote], quote, f"{start}{other}{value}", material.token_at(text, len(start)))


def _indentation(material: Material) -> Iterator[Trial]:
    deeper = {depth: material.beginning_with(rf":\n {{{depth + 4}}}$") for depth in DEPTHS}
    for number, (name, argument, item, collection) in enumerate(material.words(4)):
        depth, other = DEPTHS[number % 2], DEPTHS[1 - number % 2]
        start = f"    def {name}(self, {argument}):\n"
        condition = f"if {item} in {collection}"
        text = f"{start}{' ' * depth}{condition}"
        changed = f"{start}{' ' * other}{condition}"
        answer = f":\n{' ' * (depth + 4)}"
        yield Trial(text, deeper[depth], answer, changed, material.token_at(text, len(start)))


EXPERIMENTS = {
    _word_twice: Experiment(
        "A made-up word, twice",
        "These letters were drawn at random: only their first copy can tell how the second goes on.",
        "switch head {head} off",
        "Is the token that followed in the first copy still on top of the list?",
        "finds what followed in the first copy of a made-up word",
    ),
    _quotes: Experiment(
        "A quote closes as it opened",
        "A string is open. The last token does not tell which quote opened it: to close it, the model must look back.",
        "open it with the other quote",
        "Which quote do the likeliest tokens begin with now?",
        "finds the quote that is still open",
    ),
    _indentation: Experiment(
        "A colon indents the next line",
        "After the colon that comes next, a new line has to begin four spaces deeper than this one.",
        "indent this line differently",
        "How many spaces follow the likeliest line break now?",
        "finds how far the line is indented",
    ),
}


@torch.no_grad()
def try_all(gpt: GPT, tokenizer: Any, windows: Texts) -> tuple[list[Effect], dict[str, str]]:
    """Tries all experiments on a model.

    windows: the recorded text. A head that is switched off returns its mean over this text.

    Returns the effects of the experiments that hold, strongest first; and for each other experiment, by its title, why
    it does not hold.
    """
    recorded = "\n".join("".join(labels) for labels in windows.labels)
    material = Material(gpt, tokenizer, part_means(gpt, windows), recorded)
    effects: list[Effect] = []
    failed: dict[str, str] = {}
    with undisturbed(gpt):
        for propose, experiment in EXPERIMENTS.items():
            result = _try(experiment, propose(material), material)
            if isinstance(result, Effect):
                effects.append(result)
            else:
                failed[experiment.title] = result
    return sorted(effects, key=lambda effect: effect.means[1] - effect.means[0]), failed


def _try(experiment: Experiment, proposed: Iterator[Trial], material: Material) -> Effect | str:
    """Returns the effect of an experiment with the `proposed` texts, or why it does not hold."""
    context = material.gpt.config.context_length
    trials = []
    for trial in islice(proposed, MADE_UP):
        # The model reads only the end of a longer text, where `source` would be another token.
        if trial.right and len(material.tokenizer.encode(trial.text)) <= context:
            trials.append(trial)
    if len(trials) < CHOOSING + MIN_TEXTS:
        return "too few such texts can be made from its tokens and its recorded text"
    measured = trials[CHOOSING:]
    before, weights = _measure(material, measured)
    if before.mean() < ENOUGH:
        return f"the right tokens get only {before.mean():.0%} on average over {len(measured)} texts"
    switches_off = "{head}" in experiment.change
    head = _chosen_head(material, trials[:CHOOSING], switches_off)
    off = [head] if head and switches_off else []
    with replaced(material.gpt, {part: material.means[part] for part in off}):
        after, _ = _measure(material, measured, changed=True)
    means = before.mean().item(), after.mean().item()
    if means[1] > means[0] / 2:
        return (
            f"the change takes less than half: {means[0]:.0%} -> {means[1]:.0%} on average over {len(measured)} texts"
        )
    distance = (before - means[0]).abs() + (after - means[1]).abs()
    nearest = int(distance.argmin())
    weight = weights[head].mean().item() if head else 0.0
    name = head and head.removeprefix("head ")
    words = vars(experiment) | {"change": experiment.change.format(head=name)}
    return Effect(
        **words,
        trial=measured[nearest],
        off=off,
        head=name,
        weight=weight if weight >= ENOUGH else 0.0,
        shares=(before[nearest].item(), after[nearest].item()),
        means=means,
        texts=len(measured),
    )


def _chosen_head(material: Material, trials: Sequence[Trial], switches_off: bool) -> str | None:
    """Returns the head whose absence takes most probability from the right tokens; None if none takes any.

    If the change switches the head off, all heads are tried, else those that look at the source. To look is not enough:
    a head may look there and yet give nothing that the model needs.
    """
    before, weights = _measure(material, trials)
    losses = {}
    for head, weight in weights.items():
        if switches_off or weight.mean() >= ENOUGH:
            with replaced(material.gpt, {head: material.means[head]}):
                after, _ = _measure(material, trials, changed=switches_off)
            lost = (before - after).sum().item()
            if lost > 0:
                losses[head] = lost
    return max(losses, key=losses.__getitem__, default=None)


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
        ids = material.tokenizer.encode(trial.changed if changed else trial.text)
        tokens.append(torch.tensor(ids[-gpt.config.context_length :]))
    rows = torch.arange(len(tokens))
    last = torch.tensor([len(ids) - 1 for ids in tokens])
    source = torch.tensor([trial.source for trial in trials])
    # The padding after a text does not change the prediction at its end.
    seen = run(gpt, Texts.of(pad_sequence(tokens, batch_first=True)))
    features = seen.features[rows, last]
    listed = gpt.unembed(features).softmax(-1).cpu().topk(min(LISTED, gpt.lm_head.out_features))
    is_right = [torch.isin(ids, torch.tensor(trial.right)) for ids, trial in zip(listed.indices, trials, strict=True)]
    weights = {}
    for layer, call in enumerate([] if changed else seen.calls):
        by_head = weights_of(call)[rows, :, last, source].float().cpu()  # (N, H)
        for head, head_weights in enumerate(by_head.T):
            weights[f"head {layer}.{head}"] = head_weights
    return (listed.values * torch.stack(is_right)).sum(-1), weights
