"""Pages that hold a model over bytes."""

import functools
import random
import string

import torch

from data.tokenizers import byte_level
from model.gpt import GPTConfig
from model.inspection.film import film_texts
from model.inspection.recording import Recording
from model.inspection.texts import Texts, repeated_tokens
from model.pages import weights
from model.pages.page import run_page
from tests.gpts import TOKENS, random_gpt

TOKENIZER = byte_level()
CONFIG = GPTConfig(vocab_size=257, context_length=32, num_layers=2, num_heads=2, embed_dim=16, value_embeddings=True)
OPENING = "blacksmithblacksmithbla"
DRAW = random.Random(0)
LETTERS = tuple("".join(DRAW.sample("abcdefghijklmnopqrstuvwxyz", 8)) * 8 for _ in range(16))


def plain_gpt(seed, config=CONFIG):
    """A random GPT that writes printable ASCII. bfloat16 represents its weights exactly."""
    gpt = random_gpt(config, seed)
    with torch.no_grad():
        for weight in gpt.parameters():
            weight.copy_(weight.bfloat16())
        gpt.lm_head.weight[[*range(32), *range(127, 257)]] = 0
    return gpt


GPTS = [plain_gpt(seed) for seed in (0, 1)]
PROBE = Texts.of(TOKENS)


@functools.cache
def windows(*texts):
    return {
        "text": Texts.of([TOKENIZER.encode(text) for text in texts], TOKENIZER.label),
        "repeated": Texts.of(repeated_tokens(range(97, 123), 10), TOKENIZER.label, kind="repeated"),
    }


def recording_of(*texts, has_film=False):
    """A recording without snapshots that reads the first text and is measured on all."""
    probes = {kind: of.pieces(1)[0] for kind, of in windows(*texts).items()}
    words = film_texts(TOKENIZER, string.ascii_lowercase, CONFIG.context_length) if has_film else None
    return Recording(probes, windows(*texts), words=words, name="tiny")


@functools.cache
def page_of(*gpts, texts=(OPENING,), has_film=False):
    """The page of a run with these GPTs at steps 0, 8 and so on."""
    models = [(8 * i, gpt) for i, gpt in enumerate(gpts)]
    return run_page("tiny", recording_of(*texts, has_film=has_film), models=models, tokenizer=TOKENIZER)


def pack(*gpts, tokenizer=TOKENIZER, probe=PROBE):
    """The page's data for these GPTs at steps 0, 50 and so on. The page compares itself with PyTorch on the probe."""
    return weights.pack([(50 * i, gpt) for i, gpt in enumerate(gpts)], tokenizer, probe, PROBE)
