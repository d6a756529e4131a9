"""`run.look`: one pass over the answer that won, explained; for every family, in Python and in a notebook."""

from __future__ import annotations

import errno
import html
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.data.tokenizers import BOS, EOS
from regard.errors import ConfigError, RegardError, RunError
from regard.layers.attention import SelfAttention
from regard.look.document import make_document
from regard.look.intervene import prune_order
from regard.look.trace import load, save
from regard.looking import explain
from regard.looking.explain import scores_of, token_relevance, worth
from regard.looking.heads import Judge, by_length, heads_to_switch
from regard.looking.subject import joined, losses, observed, repeated, target_of
from regard.ops.heads import MEASURES
from regard.ops.observe import Weighed
from regard.run import Run
from regard.train import checkpoint
from regard.train.observe import OBSERVATIONS
from regard.types import Axis, Example, Trace

RunOf = Callable[[str], Run]


def test_a_text_that_was_cut_is_named_so(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.look("three", quick=True).document().doc["cut"] is None
    monkeypatch.setattr(run.task, "data", replace(run.task.data, max_length=3, too_long="truncate"))
    seen = run.look("three", quick=True)
    assert seen.document().doc["axes"]["source"]["tokens"] == ["t", "h", "r", "</s>"]
    assert seen.document().doc["cut"] == 3
    assert "the text was cut to 3 tokens (data.max_length)" in capsys.readouterr().err
    save(seen.trace, tmp_path / "trace")
    assert make_document(load(tmp_path / "trace")).doc["cut"] == 3
    (tmp_path / "texts.txt").write_text("three\none\nseven\n", encoding="utf-8")
    assert run.look_at_file(tmp_path / "texts.txt", quick=True).num_cut == 2


@pytest.mark.parametrize("name", ["transformer", "additive", "multiplicative", "convolutional", "t5"])
def test_every_family_is_looked_into(run_of: RunOf, name: str, tmp_path: Path) -> None:
    seen = run_of(name).look("three", max_length=12)
    doc = seen.document().doc
    length = len(doc["axes"]["target"]["tokens"])
    assert doc["axes"]["source"]["tokens"] == ["t", "h", "r", "e", "e", "</s>"]
    cross = [i for i, layer in enumerate(doc["layers"]) if layer["kind"] == "cross"]
    assert all((doc["layers"][i]["rows"], doc["layers"][i]["keys"]) == ("target", "source") for i in cross)
    for i in cross:
        weights = seen.trace[i].rows(range(length))
        assert weights.shape[2:] == (length, 6)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert doc["alignment"]["layer"] in cross
    assert len(doc["alignment"]["pairs"]) == length
    assert doc["card"]["examples"] == 1
    assert seen.document().tensors["relevance"].shape == (length, 6)
    assert (doc["rollout"] is not None) == (doc["ablation"] is not None) == (name in ("transformer", "t5"))
    assert seen.left_out == ()
    assert seen.save(tmp_path / "a" / "page.html").stat().st_size > 100_000
    json.loads(seen.json())


def test_a_model_without_attention_says_so(run_of: RunOf) -> None:
    with pytest.raises(ConfigError) as refused:
        run_of("none").look("three")
    assert str(refused.value).startswith("this model has no attention to look at\n  got:    recurrent, ")
    assert "  try:    train it again with model.attention = " in str(refused.value)


@pytest.mark.parametrize(
    "keys", [{"method": "greedy"}, {"beam": 4}, {"method": "sample", "seed": 5, "temperature": 3.0}]
)
def test_the_answer_that_won_is_observed(run: Run, keys: dict[str, Any]) -> None:
    (prediction,) = run.predict(["seven"], **keys)
    seen = run.look("seven", quick=True, **keys)
    assert seen.trace.info["answer"] == prediction.text
    assert seen.trace.axes["target"].tokens[:-1] == prediction.tokens[0]
    target = torch.tensor([[BOS, *prediction.ids[0]]])
    source = torch.tensor([[*run.task.source.encode_batch(["seven"])[0], EOS]])
    with torch.no_grad(), regard.observe(run.model) as trace:
        run.logits(source, target)
    for mine, other in zip(seen.trace, trace, strict=True):
        rows = range(mine.shape[2])
        torch.testing.assert_close(mine.rows(rows), other.rows(rows))


def test_a_target_is_taken_as_it_is(run: Run) -> None:
    seen = run.look("one", "kuusi", quick=True)
    assert seen.trace.axes["target"].tokens == ("k", "u", "u", "s", "i", "</s>")
    assert seen.trace.axes["prefix"].tokens == ("<s>", "k", "u", "u", "s", "i")
    assert seen.trace.axes["target"].offsets[1] == (1, 2)


@pytest.mark.parametrize("text", ["", "  ", 3, None])
def test_there_must_be_a_text(run: Run, text: Any) -> None:
    with pytest.raises(ConfigError, match=r"there is no text to look at\n  got:    .*\n  wanted: some words"):
        run.look(text)


# --- what is said -----------------------------------------------------------------------------------------------------


def test_relevance_stands_on_the_answers_own_tokens(run: Run) -> None:
    subject = run.subject()
    batch, axes = run.task.pair("one", "yksi")
    found = token_relevance(subject, batch)
    assert found.own is not None
    assert found.own.shape == (5, 5)
    shown = run.look("one", "yksi").document().tensors["relevance.target"]
    assert shown.shape == (5, len(axes["target"].tokens))
    own = found.own.numpy()
    np.testing.assert_allclose(shown[4, 0], own[4, 1], rtol=1e-4)  # y, which stands second in the prefix
    np.testing.assert_allclose(shown[4, 3], own[4, 4] - 1, rtol=1e-3, atol=1e-6)  # i, the row's own place
    assert not shown[:, 4].any()  # </s> is read by nobody
    assert not shown[0].any()  # the first row has read nothing but <s>


def test_relevance_is_the_same_in_parts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = run.subject()
    batch, _ = run.task.pair("three", "kolme")
    whole = token_relevance(subject, batch)
    monkeypatch.setattr("regard.looking.subject.BATCH_TOKENS", 30)  # two rows at a time
    parts = token_relevance(subject, batch)
    torch.testing.assert_close(parts.weights, whole.weights)
    torch.testing.assert_close(parts.own, whole.own)


def test_what_an_answer_is_worth_without_some_tokens(run: Run) -> None:
    subject = run.subject()
    batch, _ = run.task.pair("three", "kolme")
    kept = torch.tensor([[True] * 5, [True, False, False, True, True], [False] * 5])
    found = worth(subject, batch, kept)
    with torch.no_grad():
        wanted = [subject.log_probs(run.task.pair(text, "kolme")[0]).mean() for text in ("three", "tee")]
        empty = batch.source.ids[:, -1:]
        alone = type(batch)(type(batch.source)(empty, torch.tensor([1])), batch.target)
        wanted.append(subject.log_probs(alone).mean())
    torch.testing.assert_close(found, torch.stack(wanted))


def test_induction_is_asked_by_tokens(run: Run) -> None:
    seen = run.look("three three", quick=True)
    scores = scores_of(seen.trace)
    assert all(score["induction"] is not None for score in scores[0])
    assert all(score["induction"] is None for score in scores[2])  # of two texts none repeats the other
    assert seen.document().doc["heads"][0][0]["scores"]["induction"] == scores[0][0]["induction"]


def test_a_kind_is_a_habit() -> None:
    """One row has none; and of one token that stands twice, induction is not told from reading the word after it."""

    def kinds(text: str, reads: list[int]) -> list[str]:
        tokens = tuple(text.split())
        view = Saved(torch.eye(len(tokens))[reads][None, None])
        view.kind = "self" if len(reads) == len(tokens) else "cross"
        axis = Axis("source", tokens, ((0, 0),) * len(tokens), text)
        found: list[str] = explain.head_records(Trace([view], {"source": axis}))[0][0]["kinds"]
        return found

    class Saved(Weighed):
        name, kind, rows_axis, keys_axis = "layer", "self", "source", "source"

    assert kinds("the red cat saw the house", [1] * 6) == []
    assert kinds("a b a c b d c", [5, 6, 1, 0, 2, 0, 4]) == ["induction"]
    assert kinds("red house", [0]) == []


def test_a_model_that_is_sure_does_not_say_which_head_matters(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {view.name: torch.zeros(view.shape[1]) for view in run.look("one", quick=True).trace}
    monkeypatch.setattr(explain.relevance, "head_importance", lambda *_: nothing)
    heads = run.look("one", "yksi").found.heads
    assert heads is not None
    assert {head["importance"] for layer in heads for head in layer} == {None}


def test_what_takes_long_is_left_out_and_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "MOST_TOKENS", 10)
    monkeypatch.setattr(explain, "MOST_WORK", 10)
    seen = run.look("three", "kolme")
    assert seen.left_out == ("relevance", "the check", "heads off")
    assert seen.found.relevance is seen.found.card is seen.found.ablation is None
    assert seen.found.heads is not None
    assert seen.found.heads[0][0]["importance"] is not None
    monkeypatch.setattr(explain, "MOST_WEIGHTS", 10)
    seen = run.look("three", "kolme")
    assert seen.left_out == ("rollout", "head importance", "relevance", "the check", "heads off")
    assert seen.found.rollout is None
    assert seen.found.heads is not None
    assert seen.found.heads[0][0]["importance"] is None
    assert seen.found.heads[0][0]["scores"]["entropy"] is not None
    assert run.look("three", "kolme", quick=True).left_out == regard.show(seen.trace).left_out == ("rollout",)
    assert run.look("three", "kolme", thorough=True).left_out == regard.show(seen.trace, thorough=True).left_out == ()


def test_texts_of_a_file_that_would_take_long_are_left_out(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.tsv").write_text("one\tyksi\nseven seven seven\tseitsemän seitsemän\n", encoding="utf-8")
    monkeypatch.setattr(explain, "MOST_WEIGHTS", 1000)
    found = run.look_at_file(tmp_path / "in.tsv")
    alone = run.look_at_file(tmp_path / "in.tsv", limit=1)
    assert found.num_texts == 2
    assert found.importance == alone.importance
    assert found.card is not None
    assert found.card["examples"] == 1
    assert capsys.readouterr().err == "left out of the importance of heads: 1 texts, too long\n"
    monkeypatch.setattr(explain, "MOST_TOKENS", 10)
    assert run.look_at_file(tmp_path / "in.tsv").card is None
    assert capsys.readouterr().err.endswith(
        "left out: the check; every text is too long for it, or has no word that could be deleted\n"
    )


def test_ablation_names_layers_as_the_page_does(run: Run) -> None:
    seen = run.look("three")
    found = seen.found.ablation
    assert found is not None
    assert [(row["layer"], row["head"]) for row in found["heads"]] == [(i, h) for i in range(5) for h in range(4)]
    changed = [row for row in found["heads"] if row["changed"]]
    assert all(isinstance(row["answer"], str) for row in changed)
    with torch.no_grad():
        own = run.subject().log_probs(run.task.pair("three", seen.trace.info["answer"])[0])
    assert found["loss"] == pytest.approx(-float(own.mean()), rel=1e-4)


# --- showing ----------------------------------------------------------------------------------------------------------


def test_a_notebook_shows_it_inline(run: Run) -> None:
    seen = run.look("one", quick=True)
    shown = seen._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    inner = shown.partition('srcdoc="')[2].partition('"')[0]
    assert html.unescape(inner) == seen.html()


def test_a_title_fits_a_line(run: Run) -> None:
    assert run.look("one two", quick=True).title == "one two"
    assert run.look("seven " * 20, "yksi", quick=True).title == "seven " * 9 + "seven…"


def test_any_trace_is_shown(tmp_path: Path) -> None:
    layer = SelfAttention(8, 2).eval()
    with torch.no_grad(), regard.observe(layer) as trace:
        layer(torch.randn(1, 3, 8))
    for view in trace:
        view.rows_axis = view.keys_axis = "source"  # type: ignore[misc]
    seen = regard.show(trace, ["Ġa", "b", "▁c"])
    doc = seen.document().doc
    assert doc["axes"]["source"] == {"tokens": ["Ġa", "b", "▁c"], "offsets": [[0, 2], [2, 3], [3, 5]], "text": " ab c"}
    assert doc["heads"][0][1]["scores"]["entropy"] > 0
    assert doc["rollout"] == {"rows": "source", "keys": "source", "bin": [1, 1]}
    with pytest.raises(
        ConfigError, match=r"the tokens are not those of the trace\n  got:    2 source tokens\n  wanted: 3, as"
    ):
        regard.show(trace, ["a", "b"])


def test_a_saved_trace_is_shown_as_far_as_it_goes(run: Run, tmp_path: Path) -> None:
    seen = run.look("three", quick=True)
    save(seen.trace, tmp_path / "maps")
    save(seen.trace, tmp_path / "exact", exact=True)
    maps, exact = (regard.show(load(tmp_path / name)) for name in ("maps", "exact"))
    assert [layer["exact"] for layer in maps.document().doc["layers"]] == [None] * 5
    assert [layer["exact"] for layer in exact.document().doc["layers"]] == ["weights"] * 5
    for i, view in enumerate(seen.trace):
        weights = view.rows(range(view.shape[2]))[0]
        np.testing.assert_allclose(maps.document().tensors[f"{i}.map"], weights, atol=1e-6)
        np.testing.assert_allclose(exact.document().tensors[f"{i}.weights"], weights, atol=1e-6)
    assert maps.document().doc["axes"] == seen.document().doc["axes"]
    assert maps.title == "three"
    assert exact.document().doc["rollout"] == seen.document().doc["rollout"]
    assert maps.save(tmp_path / "page.html").exists()
    # of a head's scores only those are lost that need more than was saved
    assert maps.found.heads is not None
    assert seen.found.heads is not None
    for mine, whole in zip(maps.found.heads, seen.found.heads, strict=True):
        for head, other in zip(mine, whole, strict=True):
            lost = {"evenness", "induction"} | ({"positional"} if abs(other["scores"]["offset"]) > 1 else set())
            kept = {name: value for name, value in other["scores"].items() if name not in lost}
            assert {name: head["scores"][name] for name in kept} == pytest.approx(kept, abs=1e-6)
            assert {head["scores"][name] for name in lost} == {None}


def test_an_error_that_is_none_of_a_saved_trace_is_not_hidden(run: Run) -> None:
    seen = run.look("three", quick=True)
    weight = run.model.get_submodule("encoder.blocks.0.attention.body.out").weight
    with torch.no_grad():
        weight.mul_(1.0)
    with pytest.raises(RegardError, match="were changed after it was observed"):
        regard.show(seen.trace)


# --- examples that judge ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", ["1.2", "foo", (0, 1), [(0,)], [1.1], ["11"], 3, None])
def test_heads_that_stay_exact_are_named_as_python_counts(
    run: Run, exact: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = (
        f"exact is not understood\n  got:    {exact!r}\n"
        '  wanted: "auto", "all" or pairs (layer, head) counted from 0, as [(0, 1)]'
    )
    seen = run.look("three", quick=True, exact=[(0, 1)])
    assert seen.exact == [(0, 1)]
    monkeypatch.setattr(type(run.task), "predict", None)  # it is said before the model is asked
    with pytest.raises(ConfigError) as raised:
        run.look("three", exact=exact)
    assert str(raised.value) == message
    with pytest.raises(ConfigError) as raised:
        regard.show(seen.trace, exact=exact)
    assert str(raised.value) == message


@pytest.mark.parametrize("keep", ["x", float("nan"), 0, 2])
def test_a_share_that_is_none_is_refused(run: Run, tmp_path: Path, keep: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        run.prune(tmp_path / "new", keep=keep)
    assert str(raised.value) == f"keep is a share of the heads\n  got:    {keep}\n  wanted: 0 < x <= 1, as 0.5"


@pytest.mark.parametrize("head", ["1.1", "11", 3, (0,), (0, "1")])
def test_heads_that_are_no_pairs_are_refused(run: Run, head: Any) -> None:
    with pytest.raises(RegardError) as raised:
        run.ablate([head])
    assert str(raised.value) == (
        f"heads are not understood\n  got:    {head!r}\n  wanted: pairs (layer, head) counted from 0, as [(0, 1)]"
    )


def test_a_judge_sums_over_tokens(run: Run) -> None:
    subject = run.subject({"method": "greedy"})
    examples = [Example("one", ("yksi",)), Example("seven", ("seitsemän", "x")), Example("two", ("kaksi",))]
    found = Judge(subject, examples, answers=True).score()
    rows = [run.task.pair(example.source, example.targets[0])[0] for example in examples]
    with torch.no_grad():
        total = sum(float(losses(subject, row).sum()) for row in rows)
    assert found["loss"] == pytest.approx(total / (5 + 10 + 6), rel=1e-5)
    assert found["answers"] == [answer.text for answer in run.predict(["one", "seven", "two"], method="greedy")]
    assert found["changed"] == 0
    assert 0 <= found["exact_match"] <= 100
    assert set(Judge(subject, examples, answers=False).score()) == {"loss"}


def test_a_judge_says_how_many_answers_changed(run: Run) -> None:
    from regard.look.intervene import all_heads, heads_off

    judge = Judge(
        run.subject({"method": "greedy"}), [Example("one", ("yksi",)), Example("two", ("kaksi",))], answers=True
    )
    assert judge.score()["changed"] == 0
    with heads_off(run.model, all_heads(run.model)):
        assert judge.score()["changed"] == 100


def test_heads_are_chosen_on_other_examples(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"val": [Example("one", ("yksi",))] * 3, "train": [Example("six", ("kolme neljä",))] * 9}
    monkeypatch.setattr(run.task, "examples", splits.__getitem__)
    judge, chooser = (Judge(run.subject(), splits[name], answers=False) for name in ("val", "train"))
    points = run.prune(tmp_path / "new", keep=0.9, limit=2, answers=False)
    assert points[1]["pruned"] == prune_order(chooser.importance())[:1] != prune_order(judge.importance())[:1]
    assert points[0]["loss"] == pytest.approx(judge.score()["loss"])
    assert {(point["chosen_on"], point["judged_on"]) for point in points} == {("train", "val")}

    def only_val(split: str) -> list[Example]:
        if split != "val":
            raise RunError("no such file")
        return splits[split]

    monkeypatch.setattr(run.task, "examples", only_val)
    points = run.prune(tmp_path / "other", keep=0.9, answers=False)
    assert points[1]["pruned"] == prune_order(judge.importance())[:1]
    assert {(point["chosen_on"], point["judged_on"]) for point in points} == {("val", "val")}


@pytest.mark.parametrize("full", ["copyfile", "save_weights", "write_text"])
def test_a_full_disk_leaves_no_half_of_a_pruned_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "small"
    with monkeypatch.context() as patch:
        patch.setattr(shutil if full == "copyfile" else checkpoint, full, fails)
        with pytest.raises(RunError) as error:
            run.prune(out, keep=0.5, limit=2, answers=False)
    assert str(error.value).splitlines() == [
        "the disk is full",
        "  got:    [Errno 28] No space left on device",
        f"  where:  {out}",
        "  try:    more space, or another --out",
    ]
    assert list(tmp_path.iterdir()) == []
    out.mkdir()  # an empty folder is as good as none
    run.prune(out, keep=0.5, limit=2, answers=False)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    assert regard.load(out).look("one", quick=True).trace.info["run"] == str(out)


def test_means_do_not_count_padding(run: Run) -> None:
    subject = run.subject()
    pairs = [("one", "yksi"), ("seven", "seitsemän")]
    judge = Judge(subject, [Example(a, (b,)) for a, b in pairs], answers=False)
    means = judge.means()
    assert len(means) == 5
    module = run.model.get_submodule("decoder.blocks.1.cross.body.out")
    seen: list[torch.Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().flatten(0, 1)))
    with torch.no_grad():
        for source, target in pairs:
            run.model.hidden(run.task.pair(source, target)[0])  # type: ignore[operator]
    hook.remove()
    torch.testing.assert_close(means["decoder.blocks.1.cross.body"].flatten(), torch.cat(seen).mean(0))


def test_rows_of_like_length_are_joined(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.looking.heads.BATCH_TOKENS", 33)
    rows = [run.task.pair(a, b)[0] for a, b in [("one", "yksi"), ("seven", "seitsemän"), ("two", "kaksi")]]
    groups = by_length(rows)
    assert [len(group) for group in groups] == [1, 2]  # 6 + 11 tokens; 4 + 7 and 4 + 6 beside each other
    batch = joined(run.subject(), groups[1])
    assert batch.source.lengths.tolist() == [4, 4]
    assert target_of(batch).lengths.tolist() == [7, 6]
    torch.testing.assert_close(target_of(batch).ids[1, :6], target_of(rows[0]).ids[0])


def test_copies_of_a_row(run: Run) -> None:
    batch, axes = run.task.pair("one", "yksi")
    many = repeated(batch, 3)
    assert many.source.ids.shape == (3, 4)
    assert target_of(many).lengths.tolist() == [6, 6, 6]
    trace: Trace = observed(run.subject(), batch, axes)
    assert [view.keys_axis for view in trace] == ["source", "prefix", "source", "prefix", "source"]


def test_families_without_such_heads_have_none(run_of: RunOf) -> None:
    assert heads_to_switch(run_of("convolutional").model) == []
    assert len(heads_to_switch(run_of("transformer").model)) == 20
    with pytest.raises(regard.errors.RegardError, match="this model has no heads to switch off"):  # type: ignore[attr-defined]
        run_of("convolutional").ablate()


# --- what training left -----------------------------------------------------------------------------------------------


def test_how_heads_changed_in_training_is_shown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = run.look("one", quick=True)
    assert seen.document().doc["drift"] is None
    path, names = tmp_path / OBSERVATIONS, [view.name for view in seen.trace]
    lines = [{"step": 10 * n, "layers": names, **{m: [[n + 0.5, None, 0, 1]] * 5 for m in MEASURES}} for n in range(4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(run, "folder", tmp_path)
    made = run.look("one", quick=True).document()
    assert made.doc["drift"] == {"steps": [0, 10, 20, 30], "measures": list(MEASURES)}
    assert made.tensors["drift.entropy"].shape == (4, 5, 4)
    assert made.tensors["drift.entropy"][:, 0, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert np.isnan(made.tensors["drift.entropy"][0, 0, 1])
    monkeypatch.setattr(explain, "MOST_STEPS", 2)
    assert run.look("one", quick=True).document().doc["drift"]["steps"] == [0, 30]
    path.write_text("nonsense\n")
    assert run.look("one", quick=True).document().doc["drift"] is None
    assert (
        "left out, how the heads changed in training: a line of the observations is damaged" in capsys.readouterr().err
    )
