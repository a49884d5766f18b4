"""scripts/walk.py: every stop's value is that of the forward pass by hand, and what it prints is true."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from data.tokenizers import byte_level
from model.glass import Glass
from scripts.walk import Stop, lesson, main
from tests.attentions import ALIBI, LEAK
from tests.by_hand import ByHand
from tests.command_lines import call, check_mistakes, tells
from tests.gpts import CONFIGS, random_gpt, save_checkpoint
from tests.programs import REPOSITORY

MODELS = ["gpt2", "tables", "window", "soft-cap", "every norm and bias"]
PROMPT = "for x in y"


def model(name):
    return random_gpt(replace(CONFIGS[name], vocab_size=257, context_length=24))


def by_hand(gpt, layer):
    """The expected value at every stop of a walk through a layer."""
    values = ByHand(gpt, list(PROMPT.encode()))
    stops = values.stops | values.layers[layer]
    if layer == 0:
        del stops["stream into the block"]
    unbatched = {"ids", "mask", "position embedding", "surprise", "loss"}  # all others have a batch of one
    return {name: value if name in unbatched else value[None] for name, value in stops.items()}


def stops_of(gpt, layer, prompt=PROMPT, **options):
    glass = Glass(gpt, byte_level(), "a model", **options)
    walked = lesson(glass, glass.read(prompt), layer, token=2)
    return [stop for stop in walked if isinstance(stop, Stop)]


ORDER = ["ids", "token embedding", "scores", "weights", "mixed values", "hidden units", "final norm", "loss"]


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_the_forward_pass_by_hand_in_its_order(name, layer):
    gpt, ids = model(name), list(PROMPT.encode())
    expected = by_hand(gpt, layer)
    values = {stop.name: stop.value for stop in stops_of(gpt, layer)}
    assert values.keys() == expected.keys() and [stop for stop in values if stop in ORDER] == ORDER
    for stop, value in values.items():
        assert_close(value.double(), expected[stop].double(), rtol=1e-4, atol=1e-4, msg=f"at {stop}")
    assert torch.equal(values["logits"], gpt(torch.tensor([ids])))  # the walk leaves the model as it was


def test_a_model_trained_within_documents_is_walked_within_documents():
    gpt = model("gpt2")
    stops = stops_of(gpt, 0, [5, 256, *PROMPT.encode()], document_masking=True)
    values = {stop.name: stop.value for stop in stops}
    assert_close(gpt.unembed(values["final norm"]), values["logits"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in MODELS:
        save_checkpoint(folder / name / "checkpoints/best.ckpt", model(name))
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_printed_lines_shapes_and_values_are_those_of_source_and_tensors(runs, capsys, name):
    """The line defines the function, the letters give the shape, and the index before the five values selects them."""
    status, out, err = call(main, capsys, "--checkpoint", runs / name, "--prompt", PROMPT, "--layer", 1, "--head", 3)
    assert (status, err) == (0, "") and "best.ckpt, step 7, on cpu\n" in out
    gpt = model(name)
    c, T = gpt.config, len(PROMPT)
    sizes = {"B": 1, "T": T, "S": T, "D": c.embed_dim, "H": c.num_heads, "H_kv": c.num_kv_heads, "K": c.head_dim}
    sizes |= {"V": c.vocab_size, "F": c.feed_forward_dim}
    shown = re.findall(
        r"^ ?\d+\. (.+?)  +(\S+), (\S+):(\d+)\n    (\S.*) = (\(.*?\))   (\[.*?\])?(.+)\n    [A-Z-]", out, re.M
    )
    for stop, (name, function, file, line, letters, shape, index, values) in zip(stops_of(gpt, 1), shown, strict=True):
        assert stop.name == name
        source = (REPOSITORY / file).read_text().splitlines()[int(line) - 1]
        assert f"def {function.rpartition('.')[2]}(" in source
        assert np.atleast_1d(eval(letters, sizes)).tolist() == [*eval(shape)] == [*stop.value.shape] or not index
        if letters == "(B, H, T, K)":
            assert index.startswith("[0, 3, ")
        five = eval(f"value{index}", {"value": stop.value}).reshape(-1)
        assert [eval(text) for text in values.split()] == pytest.approx(five.tolist(), rel=2e-3, abs=2e-4), name


@pytest.mark.parametrize("attend", [ALIBI, LEAK], ids=["ALiBi", "a leak"])
def test_a_replaced_attention_is_shown_by_its_own_weights_and_their_difference_to_ours(attend, replace_attend):
    gpt, tokens = model("gpt2"), torch.tensor([list(PROMPT.encode())])
    ours = {stop.name: stop for stop in stops_of(gpt, 0)}["weights"].value
    replace_attend(attend)
    stops = {stop.name: stop for stop in stops_of(gpt, 0)}
    assert torch.equal(stops["logits"].value, gpt(tokens))
    assert {"scores", "mask"} & stops.keys() == set()  # our formula does not hold
    assert ("future" in stops["mixed values"].why) == (attend is LEAK)
    weights = stops["weights"].value
    assert_close(weights @ stops["values"].value, stops["mixed values"].value)
    assert f"{(weights - ours).abs().max().item():.2g}" in stops["weights"].why


def unwrapped(out):
    """What is printed, with each paragraph on one line."""
    return out.replace("\n    ", " ")


def test_the_newest_run_is_walked_and_parts_of_characters_are_shown(tmp_path, here, capsys):
    save_checkpoint(tmp_path / "runs/first/checkpoints/best.ckpt", model("gpt2"))
    _, out, _ = call(main, capsys, "--prompt", "héllo")
    assert tells(out.splitlines()[0], "runs/first/checkpoints/best.ckpt 7 cpu")
    assert r"'h' '\\xc3' '\\xa9' 'l' 'l' 'o'" in unwrapped(out)


def test_spaces_of_tokens_are_kept_and_the_end_of_a_long_prompt_is_walked(runs, capsys, caplog):
    _, out, _ = call(main, capsys, "--checkpoint", runs / "gpt2", "--prompt", 25 * "b" + 20 * "a" + "    ")
    assert " ' ' ' ' ' '" in unwrapped(out) and "T = S = 24 tokens" in out and "'b' 'a'" not in unwrapped(out)
    assert tells(caplog.text, "49 24")


def test_a_diverged_model_and_control_characters_are_shown(tmp_path, capsys):
    gpt = model("window")
    gpt.blocks[0].feed_forward.up_proj.weight.data.fill_(math.nan)
    save_checkpoint(tmp_path / "nan.ckpt", gpt)
    status, out, _ = call(main, capsys, "--checkpoint", tmp_path / "nan.ckpt", "--prompt", "a\x1b\n{b}")
    assert status == 0 and "() = ()   nan" in out
    assert "\x1b" not in out and r"'a' '\x1b' '\n' '{' 'b' '}'" in unwrapped(out)


MISTAKES = {
    "--prompt a": "'a' 2 1",
    "--layer 3": "--layer 2 3",
    "--head -1": "--head 0 -1",
}


def test_every_mistake_gets_one_sentence(runs, capsys):
    check_mistakes(main, capsys, MISTAKES, "--checkpoint", runs / "gpt2")
