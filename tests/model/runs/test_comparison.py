"""Comparing runs: the statistics against formulas by hand, and what is said instead of averaged."""

import json
import math
from pathlib import Path
from statistics import mean, stdev

import pytest
import yaml

from model.runs.comparison import compare, with_error
from tests import programs
from tests.command_lines import mistake, tells

pytestmark = pytest.mark.usefixtures("here")


def save_run(
    name,
    losses=(4.0, 3.0),
    seed=1,
    code="a",
    state="finished",
    bits=2.0,
    rate=100,
    text=(1, 9),
    read=3,
    options=(1, 1),
    **data,
):
    """Writes a run of 20 steps of 50 tokens that validates at steps 10 and 20.

    code: a digit of attention.py's hash, one for each start. Only "a" is as in the commit.
    text: the checksum of the tokens on which it validates, and the bytes of their text. read: that of those on which it
    trains. options: their checksum at each start. data: options.
    """
    run = Path("runs", name)
    run.mkdir(parents=True)
    data = {"tokenizer": "bytes", "batch_size": 8, "files": "a.txt", "validation_files": None} | data
    # Options that change nothing differ in all runs.
    unimportant = {"recording": {"probe_tokens": len(name)}, "samples": {"top_k": seed}}
    config = {"seed_everything": seed, "trainer": {"max_steps": 20}, "data": data} | unimportant
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [f"{step},{50 * step},{loss},{bits},{rate}" for step, loss in zip((10, 20), losses, strict=False)]
    (run / "metrics.csv").write_text("\n".join(["step,tokens,val/loss,val/bits_per_byte,tokens_per_second", *rows, ""]))
    known = {"training_tokens": read, "changed": {} if code[-1] == "a" else {"attention.py": "changed: +9 -2"}}
    known |= {"parameters": 1000, "flops_per_token": 6000, "validation_tokens": text[0], "validation_bytes": text[1]}
    starts = [
        {"step": step, "since": code[step - 1] if digit != code[step - 1] else "", "options": options[step]}
        | {"hashes": {"attention.py": 16 * digit}}
        | known
        for step, digit in enumerate(code)
    ]
    (run / "code.json").write_text(json.dumps(starts))
    (run / "state.json").write_text(json.dumps({"state": state}))
    return run


def estimated(*values):
    """The mean and its standard error, as approximate figures."""
    return pytest.approx(mean(values)), pytest.approx(stdev(values) / math.sqrt(len(values)))


def rows_of(*runs, **options):
    return compare(runs or ["runs/*"], **options).rows.reset_index().to_dict("records")


def test_means_errors_and_paired_differences_are_those_of_the_formulas():
    """The seeds differ by far more than the variants do: only pairs show the difference."""
    for seed, (loss, other) in enumerate([(6.48, 6.477), (6.46, 6.456), (6.43, 6.426)]):
        save_run(f"a{seed}", (7, loss), seed)
        save_run(f"b{seed}", (7, other), seed, batch_size=9)
    save_run("c0", (7, 6.0), 0, batch_size=10)
    save_run("c9", (7, 9.0), 9, batch_size=10)  # no other variant has this seed
    first, second, third = rows_of()
    assert (first["val/loss"], first["val/loss ±"], first["seeds"]) == (*estimated(6.48, 6.46, 6.43), 3)
    assert (second["difference"], second["difference ±"]) == estimated(-0.003, -0.004, -0.004)
    assert third["difference"] == pytest.approx(6.0 - 6.48) and math.isnan(third["difference ±"])
    assert [(row["seeds"], row["pairs"]) for row in (second, third)] == [(3, 3), (2, 1)]
    save_run("d0", (7, 6.5), 0)  # a repetition is no further seed
    again = rows_of()[0]
    assert (again["seeds"], again["runs"]) == (3, "a0, a1, a2, d0")
    last = compare(["runs/a*", "runs/d0"]).curves("steps").iloc[-1]
    assert [last["y"], last["error"]] == pytest.approx([again["val/loss"], again["val/loss ±"]])  # curves too
    assert with_error("difference", -0.00001, 0) == "0.0000"
    assert again["val/loss"] == pytest.approx((6.49 + 6.46 + 6.43) / 3)


def test_runs_with_equal_options_are_told_apart_by_their_code():
    save_run("a")
    for seed in (1, 2):
        save_run(f"b{seed}", code="b", seed=seed)
    save_run("c", code="c")  # as many lines, but others
    save_run("d", code="bc")  # it was resumed with other code
    save_run("e", code="bbc", options=(1, 1, 1), seed=2)  # later, so it is no further seed
    changed = [f"attention.py {digits} changed: +9 -2" for digits in ("bbbbbb", "cccccc", "bbbbbb then cccccc")]
    resumed = [f"other options or code at step {step}" for step in (1, 2)]
    labels = [f"attention.py aaaaaa, {resumed[0]} none, {resumed[1]} none", *changed[:2]]
    labels += [f"{changed[2]}, {when} yes" for when in resumed]
    expected = zip(labels, ["a", "b1, b2", "c", "d", "e"], strict=True)
    assert [(row["variant"], row["runs"]) for row in rows_of()] == [*expected]


def test_a_run_that_was_resumed_with_other_options_is_another_variant():
    save_run("a")
    run = save_run("b", code="aa", seed=2, batch_size=8.0)
    first, second = json.loads((run / "code.json").read_text())
    second["hashes"]["mine.py"] = "b" * 16  # a module that was loaded later
    (run / "code.json").write_text(json.dumps([first, second]))
    run = save_run("c", (2, 5), code="aa", seed=3, options=(1, 2))
    assert [row["runs"] for row in rows_of()] == ["a, b", "c"] and "step 1" in rows_of()[1]["variant"]
    first, second = json.loads((run / "code.json").read_text())
    (run / "code.json").write_text(json.dumps([first | {"validation_tokens": 9}, second | {"step": 10}]))
    assert rows_of("runs/c")[0]["best val/loss"] == 5  # the other was measured on other text


def test_a_run_counts_once_and_its_name_is_no_pattern():
    save_run("lr[1]", (4.0, 2.0))
    save_run("lr1", (4.0, 3.0), batch_size=9)
    Path("link").symlink_to("runs/lr[1]")
    comparison = compare(["runs/lr[1]", "link", "runs/*"])
    assert [*comparison.rows["runs"]] == ["lr[1]", "lr1"] and [*comparison.rows["val/loss"]] == [2.0, 3.0]


def test_what_is_not_comparable_has_a_row_without_a_difference():
    save_run("a")
    save_run("b", seed=2, state="running")  # killed once its last step was saved
    save_run("edited", text=(2, 9))  # the options are the same, and the file is not
    save_run("reread", read=4)  # only the training text has been edited
    save_run("infinite", state="diverged")  # a weight, at the last step
    save_run("more", files="b.txt")  # trained on other text, validated on the same
    for state in ("running", "diverged"):
        save_run(state, (4.5,), state=state)
        assert tells(str(compare([f"runs/{state}"])), f"{state} 10 20 4.5000")
    save_run("unpaired", seed=9, batch_size=7)  # a fit can use it
    assert {row["runs"] for row in rows_of() if row["comparable"]} == {"a, b", "more", "reread", "unpaired"}
    differences = {row["runs"]: row["difference"] for row in rows_of()}
    assert {runs for runs, difference in differences.items() if difference == 0} == {"a, b", "more", "reread"}
    assert len(differences) == 8 and sum(map(math.isnan, differences.values())) == 5


def test_variants_with_several_tokenizers_are_compared_by_bits_per_byte_alone():
    save_run("a", bits=2.5)
    save_run("b", bits=2.25, tokenizer="gpt2", text=(2, 9))
    save_run("c", bits=2.25, tokenizer="gpt2", text=(3, 8))
    first, second, third = rows_of(goal=3.5)
    assert not any("loss" in title for title in first) and second["difference"] == -0.25
    assert "nats per token" in str(compare(goal=3.5, runs="runs/*"))
    assert math.isnan(third["difference"])


def test_figures_and_curves_come_from_the_files_of_the_run():
    run = save_run("a", rate=50)
    heads = {10: [[0, 0]], 20: [[0, 1]], 30: [[1, 1]]}
    lines = [json.dumps({"step": step, "formed": {"recent": [[0, 0]], "induction": heads[step]}}) for step in heads]
    (run / "attention").mkdir()
    (run / "attention/scores.jsonl").write_text("\n".join([*lines, '{"step": 4']))  # the last line is being written
    save_run("b", (2.0, 2.5), seed=2)
    [row] = rows_of("runs/a", goal=3.5)
    assert row["induction formed"] == 20 and math.isnan(row["recent formed"])
    assert (row["steps to val/loss 3.5"], row["minutes to val/loss 3.5"]) == (20, pytest.approx(1000 / 50 / 60))
    assert (row["tokens"], row["FLOPs per token"], row["parameters"]) == (1000, 6000, 1000)
    [both] = rows_of(goal=2.2)
    assert (both["best val/loss"], both["val/loss"]) == (2.5, 2.75)
    assert math.isnan(both["induction formed"]) and math.isnan(both["steps to val/loss 2.2"])  # one seed lacks it
    expected = {"steps": [10, 20], "tokens": [500, 1000], "seconds": [7.5, 15], "flops": [3e6, 6e6]}
    for axis, values in expected.items():
        assert compare(["runs/*"]).curves(axis).to_numpy().T.tolist() == [values, [3.0, 2.75], [1.0, 0.25]]


def test_a_damaged_run_is_named_and_left_out():
    run = save_run("a", ())  # it has just begun
    assert rows_of()[0]["seeds"] == 1
    with (run / "metrics.csv").open("a") as file:
        file.write("10,500,4.0,2.0,100\n20,10")  # the last line is being written
    damages = {"config.yaml": "[", "code.json": "[]", "metrics.csv": "step\nx\n"}
    for file, content in damages.items():
        (save_run(file) / file).write_text(content)
    comparison = compare(["runs/*", "elsewhere"])
    assert [*comparison.rows["runs"]] == ["a"] and [*comparison.rows["val/loss"]] == [4.0]
    for name in [*damages, "elsewhere"]:
        assert sum(name in note for note in comparison.notes) == 1
    with mistake("elsewhere"):
        compare(["elsewhere"])


def test_hostile_text_is_shown_and_never_parsed():
    hostile = "<script>alert(1)</script>\x1b[2J\n" + "x" * 5000
    save_run("a", files=hostile)
    save_run("<b>", files=f"{hostile}y{'x' * 5000}", text=([2], {}), read=[])  # differs in what is cut
    html, text = compare(["runs/*"])._repr_html_(), repr(compare(["runs/*"]))
    assert len(rows_of()) == 2 and len(text) < 10_000
    assert "<script" not in html and "<b>" not in html and "\x1b" not in html + text


def test_comparing_needs_no_torch():
    save_run("a")
    program = "import sys; from model import compare; print(compare(['runs/a'])); assert 'torch' not in sys.modules"
    assert tells(programs.run("-c", program), "a 3.0000")
