"""Models of one text looked into: language models of every family, masked ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.batching import NONE
from regard.errors import ConfigError, RunError
from regard.looking import explain
from regard.looking.subject import observed
from regard.recipe import parse
from regard.run import Run, train
from regard.types import Batch, Sequences

LINES = [f"the {a} {b} on the {c} ." for a in ("cat", "dog") for b in ("sat", "ran") for c in ("mat", "road", "roof")]
WIDTHS: dict[str, Any] = {"layers": 2, "model_dim": 32, "num_heads": 4, "ffn_dim": 48}
FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt": ("language-modeling", "gpt", WIDTHS),
    "transformer_xl": ("language-modeling", "transformer_xl", WIDTHS),
    "window": ("language-modeling", "efficient_causal", {**WIDTHS, "window": [3]}),
    "linear": ("language-modeling", "efficient_causal", {**WIDTHS, "attention": "linear"}),
    "reformer": ("language-modeling", "reformer", {"preset": "tiny"}),
    "lstm": ("language-modeling", "recurrent", {"hidden_dim": 16, "embedding_dim": 16}),
    "bert": ("masked-language-modeling", "bert", WIDTHS),
    "longformer": ("masked-language-modeling", "efficient", {**WIDTHS, "window": [3]}),
    "xlnet": ("masked-language-modeling", "xlnet", WIDTHS),
    "permutation": ("permutation-language-modeling", "xlnet", WIDTHS),
    "linformer": ("masked-language-modeling", "efficient", {**WIDTHS, "attention": "low-rank", "rank": 5}),
    "spans": ("span-corruption", "t5", {"preset": "tiny", "model_dim": 32, "head_dim": 8, "ffn_dim": 48}),
}
NOT_OPENED = ("lstm", "permutation", "linformer", "spans")
MASKED, FILLED = "the cat <mask> on the mat .", "the cat sat on the mat ."


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    made: dict[str, Run] = {}
    folder = tmp_path_factory.mktemp("one-text")
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in LINES * 4), encoding="utf-8")

    def make(name: str) -> Run:
        if name not in made:
            task, family, model = FORMS[name]
            table = {
                "run": str(folder / name),
                "task": {"name": task, "context": 16} | ({} if name == "spans" else {"line_ends": "token"}),
                "data": {"train": ["text.txt"], "val": ["text.txt"]},
                "tokenizer": {"kind": "words"},
                "model": {"family": family, **model},
                "train": {"max_steps": 12, "batch_tokens": 128, "learning_rate": 5e-3, "warmup_steps": 4}
                | {"device": "cpu", "validate_every": 12, "checkpoint_every": 12},
                "decode": {"method": "greedy", "max_length": 6},
            }
            made[name] = train(parse(table, where="this test", folder=folder))
        return made[name]

    return make


@pytest.mark.parametrize("name", [name for name in FORMS if name not in NOT_OPENED])
def test_every_family_opens(run_of: Callable[[str], Run], name: str, tmp_path: Path) -> None:
    run = run_of(name)
    causal = run.recipe.task_name == "language-modeling"
    look = run.look("the cat sat on" if causal else "the cat <mask> on the mat .", thorough=True)
    assert {(view.rows_axis, view.keys_axis) for view in look.trace} == {("target" if causal else "source", "source")}
    length = look.trace[0].shape[2]
    assert all(view.shape[2:] == (length, length) for view in look.trace)
    assert len(look.trace.axes["source"].tokens) == length
    assert look.left_out == ()
    assert look.found.card is not None
    assert look.found.relevance == {"rows": "target" if causal else "source", "keys": "source", "bin": [1, 1]}
    assert look.found.tensors["relevance"].shape == (length, length)
    assert look.found.tensors["relevance"].isfinite().all()
    if causal:
        assert look.trace.info["text"] == "the cat sat on"
        assert look.found.tensors["relevance"].triu(1).abs().max() == 0 or name == "reformer"
        assert look.found.tensors["relevance"].abs().sum() > 0
    assert look.save(tmp_path / "page.html").stat().st_size > 10_000


def test_rows_are_the_weights_of_the_pass_over_text_and_answer(run_of: Callable[[str], Run]) -> None:
    run = run_of("gpt")
    trace = run.look("the cat sat on", target="the mat", quick=True).trace
    assert trace.axes["source"].tokens == ("</s>", "the", "cat", "sat", "on", "the")
    assert trace.axes["target"].tokens == ("the", "cat", "sat", "on", "the", "mat")
    assert trace.info["answer"] == " the mat"
    weights = trace[1].rows(range(6))[0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 6))
    assert weights.triu(1).max() == 0


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_what_an_answer_is_worth_without_some_words(run_of: Callable[[str], Run], name: str) -> None:
    run = run_of(name)
    subject = run.subject()
    causal = name == "gpt"
    text, answer = (
        ("the cat sat on", "the mat") if causal else ("the cat <mask> on the mat .", "the cat sat on the mat .")
    )
    batch, axes = run.task.pair(text, answer)
    trace = observed(subject, batch, axes)
    case = explain.case(subject, batch, trace, explain.token_relevance(subject, batch).weights)
    words = [i for i, label in enumerate(batch.target.ids[0].tolist()) if label == NONE]
    words = [i for i in words if int(batch.source.ids[0, i]) not in run.task.tokenizer.special_ids]
    assert {len(values) for values in case.attributions.values()} == {len(words)}
    kept = torch.ones(2, len(words), dtype=torch.bool)
    kept[1, 1] = False
    whole, without = case.score(kept).tolist()
    assert whole == pytest.approx(_mean(run, batch), abs=1e-5)
    there = [i for i in range(batch.source.ids.shape[1]) if i != words[1]]
    short = Batch(*(Sequences(x.ids[:, there], x.lengths - 1) for x in (batch.source, batch.target)))
    assert without == pytest.approx(_mean(run, short), abs=1e-5)


@torch.no_grad()
def _mean(run: Run, batch: Batch) -> float:
    labels = batch.target.ids[0]
    logits = run.model.head(run.model.hidden(batch))[0].log_softmax(-1)
    return float(torch.stack([logits[i, label] for i, label in enumerate(labels.tolist()) if label >= 0]).mean())


def test_heads_off_and_pruned(run_of: Callable[[str], Run], tmp_path: Path) -> None:
    run = run_of("gpt")
    table = run.ablate(limit=3)
    assert len(table["heads"]) == 8
    assert all("loss" in row or "change" in row for row in table["heads"])
    points = run.prune(tmp_path / "pruned", keep=0.5, limit=3)
    assert len(points[-1]["pruned"]) == 4
    assert (tmp_path / "pruned/tokenizer.json").exists()


def test_slots_are_no_words(run_of: Callable[[str], Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows are the text, the keys are not: no word can be named or deleted, and nothing is aligned."""
    run = run_of("linformer")
    look = run.look(MASKED)
    assert {(view.rows_axis, view.keys_axis) for view in look.trace} == {("source", "slots")}
    found = look.found
    assert (found.relevance, found.card, found.alignment, found.rollout) == (None, None, None, None)
    assert found.ablation is not None
    assert "the heads read mixtures of the whole text (slots)" in capsys.readouterr().err
    assert look.save(tmp_path / "page.html").stat().st_size > 10_000
    (tmp_path / "texts.txt").write_text(f"{MASKED}\n", encoding="utf-8")
    assert run.look_at_file(tmp_path / "texts.txt").card is None
    assert "the heads read mixtures of the whole text (slots)" in capsys.readouterr().err


def test_spans_are_looked_into_and_their_gaps_stay(run_of: Callable[[str], Run]) -> None:
    run = run_of("spans")
    look = run.look("the cat <extra_0> on the mat .", max_length=5)
    assert look.found.card is not None
    assert look.trace.axes["source"].tokens[2] == "<extra_0>"
    batch, _ = run.task.pair("the cat <extra_0> on the mat .", FILLED)
    assert explain._words(run.subject(), batch).tolist() == [0, 1, 3, 4, 5, 6]


def test_a_model_without_attention_says_so(run_of: Callable[[str], Run]) -> None:
    with pytest.raises(ConfigError, match="this model has no attention to look at") as caught:
        run_of("lstm").look("the cat")
    assert "another model.family" in str(caught.value)


def test_hops_without_a_story_say_so(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("good\ta fine film\nbad\ta dull film\n" * 5, encoding="utf-8")
    table = {
        "run": str(tmp_path / "run"),
        "task": {"name": "classification"},
        "data": {split: ["a.tsv"] for split in ("train", "val")},
        "model": {"family": "memory", "preset": "tiny"},
        "train": {"max_steps": 1, "device": "cpu"},
    }
    run = train(parse(table, where="this test", folder=tmp_path))
    with pytest.raises(ConfigError, match="there is nothing that the attention could read") as caught:
        run.look("a film")
    assert "a story and a question" in str(caught.value)


def test_a_task_that_answers_elsewhere_says_so(run_of: Callable[[str], Run]) -> None:
    with pytest.raises(RunError, match="the answers of this task cannot be looked into") as caught:
        run_of("permutation").look("the <mask>")
    assert "a second stream answers" in str(caught.value)
