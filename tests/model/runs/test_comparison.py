"""Comparing runs: the statistics against formulas by hand, and what is said instead of averaged."""

import json
import math
from pathlib import Path

import pytest
import yaml

from model.runs.comparison import compare
from tests import programs
from tests.command_lines import tells

STEPS = (10, 20)
pytestmark = pytest.mark.usefixtures("here")


def save_run(
    name, losses=(4.0, 3.0), seed=1, code=None, changed=None, state=None, probes="", bits=2.0, rate=100, **options
):
    """Writes a run of 20 steps of 50 tokens that validates at STEPS. code: a hash, or one for each start.

    options: with __ for the dot.
    """
    run = Path("runs", name)
    (run / "attention").mkdir(parents=True)
    values = {"data.tokenizer": "bytes", "model.gpt.window": None, "data.files": "a.txt", "data.validation_files": None}
    config = {"seed_everything": seed, "trainer": {"max_steps": 20}, "data": {}, "model": {"gpt": {}}}
    for option, value in (values | {name.replace("__", "."): value for name, value in options.items()}).items():
        *groups, last = option.split(".")
        group = config
        for each in groups:
            group = group[each]
        group[last] = value
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [f"{step},{50 * step},{loss},{bits},{rate}" for step, loss in zip(STEPS, losses, strict=False)]
    (run / "metrics.csv").write_text("\n".join(["step,tokens,val/loss,val/bits_per_byte,tokens_per_second", *rows, ""]))
    (run / "attention/probe.json").write_text(probes)
    if code:
        known = {"commit": None, "since": {}, "parameters": 1000, "flops_per_token": 6000}
        known["changed"] = {"model/attention.py": changed} if changed else {}
        starts = []
        for step, digits in enumerate([code] if isinstance(code, str) else code):
            starts.append({"step": step, "hashes": {"model/attention.py": digits, "train.py": "0" * 16}} | known)
        (run / "code.json").write_text(json.dumps(starts, indent=1))
    if state:
        (run / "state.json").write_text(json.dumps({"state": state, "step": STEPS[len(losses) - 1], "max_steps": 20}))
    return run


def rows_of(*runs, **options):
    return compare(runs or ["runs/*"], **options).rows.reset_index().to_dict("records")


def test_means_errors_and_paired_differences_are_those_of_the_formulas():
    """The seeds differ by far more than the variants do: only pairs show the difference."""
    softmax, sigmoid = (6.48, 6.46, 6.43), (6.477, 6.456, 6.426)
    for seed, (loss, other) in enumerate(zip(softmax, sigmoid, strict=True)):
        save_run(f"a{seed}", (7, loss), seed)
        save_run(f"b{seed}", (7, other), seed, model__gpt__window=8)
    save_run("c0", (7, 6.0), 0, model__gpt__window=9)
    save_run("c9", (7, 9.0), 9, model__gpt__window=9)  # no other variant has this seed
    first, second, third = rows_of()
    mean = (6.48 + 6.46 + 6.43) / 3
    variance = ((6.48 - mean) ** 2 + (6.46 - mean) ** 2 + (6.43 - mean) ** 2) / 2
    assert first["val/loss"] == pytest.approx(mean) and first["seeds"] == 3
    assert first["val/loss ±"] == pytest.approx(math.sqrt(variance / 3))
    assert second["difference"] == pytest.approx(-(0.003 + 0.004 + 0.004) / 3)
    spread = ((0.003 - 0.011 / 3) ** 2 + 2 * (0.004 - 0.011 / 3) ** 2) / 2
    assert second["difference ±"] == pytest.approx(math.sqrt(spread / 3)) and second["val/loss ±"] > 20 * spread**0.5
    assert third["difference"] == pytest.approx(6.0 - 6.48) and math.isnan(third["difference ±"])
    save_run("d0", (7, 6.5), 0)  # a repetition is no further seed
    again = rows_of()[0]
    assert again["seeds"] == 3 and again["val/loss"] == pytest.approx((6.49 + 6.46 + 6.43) / 3)
    assert again["runs"] == "a0, a1, a2, d0"


def test_runs_with_equal_options_are_told_apart_by_their_code():
    save_run("a", code="a" * 16)
    save_run("b", code="b" * 16, changed=[9, 2])
    save_run("c", code="b" * 16, seed=2)  # the same code, committed since
    save_run("d", code=["b" * 16, "c" * 16], changed=[1, 1])
    save_run("e")
    assert len(rows_of("runs/a", "runs/e")) == 2  # what ran in e is not known
    rows = {row["runs"]: row["variant"] for row in rows_of()}
    assert [*rows] == ["a", "b, c", "d", "e"]
    assert "model/attention.py +9 -2" in rows["b, c"] and "train.py" not in "".join(rows.values())
    assert len({*rows.values()}) == 4


def test_what_is_not_comparable_has_a_row_without_a_difference():
    save_run("a", probes="[1]")
    save_run("b", probes="[1]", seed=2)
    save_run("files", probes="[2]", data__files="b.txt")
    save_run("since", probes="[3]")  # the text has changed, the options have not
    save_run("running", (4.5,), seed=3, state="running", probes="[1]")
    save_run("killed", (4.5,), seed=4, probes="[1]")
    save_run("diverged", (4.5,), seed=5, state="diverged", probes="[1]")
    for others in (["runs/files"], ["runs/since"], ["runs/running", "runs/killed", "runs/diverged"]):
        first, *rest = rows_of("runs/a", "runs/b", *others)
        assert first["runs"] == "a, b" and len(rest) == len(others)
        assert all(math.isnan(row["difference"]) for row in rest)
    assert tells(rest[0]["variant"], "running 10 20") and tells(rest[2]["variant"], "diverged")
    assert tells(str(compare(["runs/running"])), "running 10 20")
    save_run("mine", data__validation_files="v.txt")
    save_run(
        "more", data__validation_files="v.txt", data__files="b.txt"
    )  # trained on other text, validated on the same
    assert rows_of("runs/mine", "runs/more")[1]["difference"] == 0


def test_variants_with_several_tokenizers_are_compared_by_bits_per_byte_alone():
    save_run("a", bits=2.5)
    save_run("b", bits=2.25, data__tokenizer="gpt2")
    first, second = rows_of(goal=3.5)
    assert not any("loss" in title for title in first) and second["difference"] == pytest.approx(-0.25)


def test_figures_come_from_the_files_of_the_run():
    run = save_run("a", (4.0, 3.0), code="a" * 16, changed=[9, 2], rate=50)
    flags = {10: [[False, False]], 20: [[False, True]], 30: [[True, True]]}
    lines = [
        json.dumps({"step": step, "formed": {"induction": formed, "sink": [[False] * 2]}})
        for step, formed in flags.items()
    ]
    (run / "attention/scores.jsonl").write_text("\n".join(lines))
    save_run("b", (2.0, 2.5), seed=2, code="a" * 16, changed=[9, 2], rate=100)
    [row] = rows_of("runs/a", goal=3.5)
    assert row["induction formed"] == 20 and "sink formed" not in row
    assert (row["steps to val/loss 3.5"], row["minutes to val/loss 3.5"]) == (20, pytest.approx(1000 / 50 / 60))
    assert (row["tokens"], row["FLOPs"], row["parameters"]) == (1000, 6e6, 1000)
    [both] = rows_of(goal=3.5)
    assert both["best val/loss"] == pytest.approx((3.0 + 2.0) / 2) and both["val/loss"] == pytest.approx(2.75)
    assert both["steps to val/loss 3.5"] == 15 and math.isnan(both["induction formed"])
    assert math.isnan(rows_of(goal=2.2)[0]["steps to val/loss 2.2"])  # one seed has not reached it


def test_curves_have_the_mean_and_the_error_of_each_step():
    save_run("a", (4.0, 3.0), code="a" * 16, rate=50)
    save_run("b", (2.0, 2.5), seed=2, code="a" * 16, rate=100)
    comparison = compare(["runs/*"])
    expected = {"steps": [10, 20], "tokens": [500, 1000], "seconds": [7.5, 15], "flops": [3e6, 6e6]}
    for axis, values in expected.items():
        [(_, x, mean, error)] = comparison.curves(axis)
        assert [*x] == values and [*mean] == [3.0, 2.75] and [*error] == pytest.approx([1.0, 0.25])
    save_run("c")
    with pytest.raises(ValueError, match=r"flops.*code\.json"):
        compare(["runs/*"]).curves("flops")


def test_a_damaged_run_is_named_and_left_out():
    save_run("a")
    (save_run("b") / "config.yaml").write_text("[")
    (save_run("c") / "code.json").write_text("[1]")
    (save_run("d") / "metrics.csv").write_text("step,val/loss\nx,1\n")
    comparison = compare(["runs/*", "elsewhere"])
    assert [*comparison.rows["runs"]] == ["a"]
    assert all(
        sum(name in note for note in comparison.notes) == 1 for name in ("runs/b", "runs/c", "runs/d", "elsewhere")
    )
    with pytest.raises(ValueError, match="runs/b"):
        compare(["runs/b"])


def test_a_run_that_has_just_begun_is_read_as_it_stands():
    run = save_run("a", ())
    assert rows_of()[0]["seeds"] == 1 and compare([run]).curves("steps")
    with (run / "metrics.csv").open("a") as file:
        file.write("10,500,4.0,2.0,100\n20,10")  # the last line is being written
    assert tells(str(compare([run])), "10 20 4.0000")


def test_hostile_text_is_shown_and_never_parsed():
    hostile = "<script>alert(1)</script>\x1b[2J\n" + "x" * 5000
    save_run("a", data__files=hostile)
    save_run("b", data__files=f"{hostile}y{'x' * 5000}")  # differs in what is cut
    assert len(rows_of()) == 2
    save_run("<b>", code="a" * 16)
    html, text = compare(["runs/*"])._repr_html_(), str(compare(["runs/*"]))
    assert "<script" not in html and "<b>" not in html and "\x1b" not in html + text
    assert len(text) < 10_000 and "\x1b" not in text


def test_comparing_needs_no_torch():
    save_run("a")
    shown = programs.run(
        "-c", "import sys; from model import compare; print(compare(['runs/a'])); assert 'torch' not in sys.modules"
    )
    assert tells(shown, "a 3.0000")
