"""What is said of a pass beside its measures: heads, alignment, rollout, relevance, the check, heads off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.batching import NONE
from regard.data.tokenizers import PAD
from regard.decode.search import pad_rows
from regard.errors import RunError
from regard.look import faithful, intervene, measures, relevance
from regard.look.document import Explanations
from regard.look.trace import NotSaved
from regard.looking.heads import heads_to_switch
from regard.looking.subject import Subject, losses, repeated, rows_at_once, target_of
from regard.train.observe import OBSERVATIONS, read_observations
from regard.train.progress import Progress, say
from regard.types import Batch, Trace, View

T = TypeVar("T")

# Beyond these, what takes many passes is left out unless it is asked for.
MOST_TOKENS = 100_000  # relevance makes a row of each token of the answer, and the check some hundred of the source
MOST_STEPS = 256  # of a training that was observed
MOST_WEIGHTS = 10**9  # of all heads: the rollout computes each of them, and head importance its gradient
LEAST_REPEATS = 3  # tokens that stood before: of fewer, induction is not told from reading a word that matters
MOST_WORK = 3e10  # heads x parameters x tokens x beams: some ten seconds on two cores
NO_TEXT = "left out, relevance and the check: the heads read mixtures of the whole text (slots), so no words are named"


def explain(
    subject: Subject,
    text: str,
    batch: Batch,
    trace: Trace,
    *,
    given: bool = False,
    quick: bool = False,
    thorough: bool = False,
) -> tuple[Explanations, list[str]]:
    """What can be said of a pass beside its measures, and what would have taken too long to find out.

    `given`: the answer of the pass is not the model's own.
    """
    found, left_out = described(trace, thorough=thorough)
    found = with_drift(found, subject.folder / OBSERVATIONS, trace)
    if quick:
        return found, left_out
    source, target = batch.source.ids.shape[1], target_of(batch).ids.shape[1]
    if thorough or not is_long(trace):
        found = replace(found, heads=head_records(trace, importance_on(subject, [batch])))
    else:
        left_out.append("head importance")
    relevant = None
    if not reads_text(trace):
        say(NO_TEXT)
    elif thorough or not is_long_to_explain(batch):
        relevant = token_relevance(subject, batch)
        found = with_relevance(found, relevant)
    else:
        left_out.append("relevance")
    if not reads_text(trace):
        pass
    elif can_be_checked(subject, batch, thorough=thorough):
        checked = case(subject, batch, trace, None if relevant is None else relevant.weights)
        found = replace(found, card=faithful.card([checked]))
    elif len(_words(subject, batch)):
        left_out.append("the check")
    heads = heads_to_switch(subject.model)
    work = subject.num_parameters * (source + target) * subject.decode.rows_per_source
    if heads and (thorough or len(heads) * work <= MOST_WORK):
        found = replace(found, ablation=ablation(subject, text, batch, trace, given=given))
    elif heads:
        left_out.append("heads off")
    return found, left_out


def reads_text(trace: Trace) -> bool:
    """Whether all that is read has a place in the text; slots that mix the whole of it have none."""
    return all(view.keys_axis in trace.axes for view in trace)


def is_long(trace: Trace) -> bool:
    """Whether every weight of it, computed once more, is too much to be done unasked."""
    return sum(math.prod(view.shape) for view in trace) > MOST_WEIGHTS


def is_long_to_explain(batch: Batch) -> bool:
    """Whether a copy of the text for each token of its answer is too much."""
    source, target = batch.source.ids.shape[1], target_of(batch).ids.shape[1]
    return target * (source + target) > MOST_TOKENS


def can_be_checked(subject: Subject, batch: Batch, *, thorough: bool = False) -> bool:
    """Whether there are words to delete, and copies of the text without some of them are not too many."""
    source, target = batch.source.ids.shape[1], target_of(batch).ids.shape[1]
    return bool(len(_words(subject, batch))) and (thorough or source * (source + target) <= MOST_TOKENS)


def described(trace: Trace, *, thorough: bool = False) -> tuple[Explanations, list[str]]:
    """What the trace alone tells: the kinds of its heads, the alignment, the rollout; and what would take long."""
    kinds = {view.kind for view in trace}
    # one text and another; not a question and its sentences, nor a text and its slots
    texts = {view.keys_axis for view in trace if view.kind == "cross"} in ({"source"}, {""})
    aligned = _asked(measures.alignment, trace) if texts else None
    # where states also flow around attention, as in recurrent and convolutional models, mixing says little
    long = "self" in kinds and is_long(trace) and not thorough
    rolled = _asked(measures.rollout, trace) if "self" in kinds and not long else None
    found = Explanations(
        heads=head_records(trace),
        alignment=None if aligned is None else alignment_record(aligned),
        rollout=None if rolled is None else {"rows": rolled.rows, "keys": rolled.keys, "bin": list(rolled.bin)},
        tensors={} if rolled is None else {"rollout": rolled.weights[0]},
    )
    return found, ["rollout"] if long else []


def _asked(measure: Callable[[Trace], T], trace: Trace) -> T | None:
    """What a trace tells; None where that has no meaning for it, or was not saved of it."""
    try:
        return measure(trace)
    except (measures.Undefined, NotSaved):
        return None


def with_drift(found: Explanations, path: Path, trace: Trace) -> Explanations:
    """The explanations with what the heads did while they were trained, where that was observed."""
    if not path.exists():
        return found
    try:
        seen = read_observations(path, [view.name for view in trace])
    except RunError as error:  # no reason not to look at a text
        say(f"left out, how the heads changed in training: {error}")
        return found
    steps = seen.pop("steps")
    kept = torch.linspace(0, len(steps) - 1, min(len(steps), MOST_STEPS)).round().long()
    tensors = {f"drift.{name}": values[kept] for name, values in seen.items()}
    drift = {"steps": steps[kept].tolist(), "measures": list(seen)}
    return replace(found, drift=drift, tensors={**found.tensors, **tensors})


def head_records(trace: Trace, importance: dict[str, Tensor] | None = None) -> list[list[dict[str, Any]]]:
    """What each head does on this text: its scores, the kinds that these earn it, its importance."""
    # a layer of zeros had no gradient: the model is as sure as numbers can be, and which head matters cannot be told
    told = {name: values.tolist() for name, values in (importance or {}).items() if values.any()}

    def record(view: View, head: int, scores: dict[str, float | None]) -> dict[str, Any]:
        counted = told[view.name][head] if view.name in told else None
        return {"importance": counted, "kinds": _kinds(trace, view, head, scores), "scores": scores}

    return [
        [record(view, head, one) for head, one in enumerate(scores)]
        for view, scores in zip(trace, scores_of(trace), strict=True)
    ]


def _kinds(trace: Trace, view: View, head: int, scores: dict[str, float | None]) -> list[str]:
    """The kinds of a head, as far as one text can tell: a kind is a habit, and nothing done once is one."""
    if measures.gives_nothing(view, head):
        return [measures.NOTHING]
    if view.shape[2] == 1:
        return []
    axis = trace.axes.get(view.keys_axis)
    repeats = 0 if axis is None else len(axis.tokens) - len(set(axis.tokens))
    return [kind for kind in measures.head_kinds(scores) if kind != "induction" or repeats >= LEAST_REPEATS]


def scores_of(trace: Trace) -> list[list[dict[str, float | None]]]:
    """The scores of every head of every layer."""
    found = []
    for view in trace:
        axis = trace.axes.get(view.keys_axis) if view.kind == "self" else None
        # induction asks which tokens are the same, whatever their ids are
        same = None if axis is None else {token: i for i, token in enumerate(axis.tokens)}
        ids = None if axis is None or same is None else torch.tensor([[same[token] for token in axis.tokens]])
        found.append(measures.head_scores(view, None if ids is None else ids.to(view.confidence.device)))
    return found


def alignment_record(aligned: measures.Alignment) -> dict[str, Any]:
    """The alignment as the page has it."""
    pairs = [list(pair) for pair in aligned.pairs[0]]
    return {"layer": aligned.layer, "head": aligned.head, "pairs": pairs, "error": None}


def importance_on(subject: Subject, batches: Iterable[Batch]) -> dict[str, Tensor]:
    """How much the loss on these texts depends on each head, by the names of the layers."""
    return relevance.head_importance(subject.model, (partial(losses, subject, batch) for batch in batches))


def token_relevance(subject: Subject, batch: Batch) -> relevance.Relevance:
    """How much each source token, and each token of the answer so far, counts for each token of the answer."""
    if subject.only_reads:
        read = subject.task.places(subject.model, batch.to(subject.device))
        found = relevance.relevance(subject.model, lambda: subject.log_probs(batch).sum(1), read)
        if subject.reads_units(found.keys):  # none of which is a row, so that nothing is to be taken off
            return replace(found, rows="target", own=None)
        # the shares that every place starts with would hide the rest
        return replace(found, rows="target", keys="source", weights=found.weights - read)

    def of(rows: Tensor) -> relevance.Relevance:
        # one copy of the text for each of these rows, asked for the token that the row writes
        many, index = repeated(batch, len(rows)), rows.to(subject.device)[:, None]
        return relevance.relevance(subject.model, lambda: subject.log_probs(many).gather(1, index)[:, 0], rows)

    if subject.speaks_in_place:
        if subject.kind == "causal":  # each place says something, also of the text that was given
            whole_labels = torch.cat([batch.source.ids[:, 1:], target_of(batch).ids[:, -1:]], dim=1)
            batch = replace(batch, target=replace(target_of(batch), ids=whole_labels))
        labelled = (target_of(batch).ids[0] >= 0).nonzero()[:, 0].cpu()
        parts = [of(rows) for rows in labelled.split(rows_at_once(batch))]
        said = torch.cat([part.weights for part in parts])
        whole = said.new_zeros(said.shape[1], said.shape[1])
        whole[labelled.to(said.device)] = said
        whole[labelled, labelled] -= 1.0  # every place starts with itself, which would hide the rest
        rows = "target" if subject.kind == "causal" else "source"
        return replace(parts[0], rows=rows, keys="source", weights=whole)
    places = torch.arange(target_of(batch).ids.shape[1] - 1)
    parts = [of(rows) for rows in places.split(rows_at_once(batch))]
    own = [part.own for part in parts if part.own is not None]
    weights = torch.cat([part.weights for part in parts])
    return replace(parts[0], weights=weights, own=torch.cat(own) if own else None)


def with_relevance(found: Explanations, relevant: relevance.Relevance) -> Explanations:
    """The explanations with the relevance among them."""
    tensors = {**found.tensors, "relevance": relevant.weights}
    if relevant.own is not None:
        # Place j of the prefix is token j - 1 of the answer, and <s> none of them; the 1 of a row's own place, which
        # every row has before anything is read, would hide the rest.
        read = relevant.own - torch.eye(len(relevant.own), device=relevant.own.device)
        tensors["relevance.target"] = F.pad(read[:, 1:], (0, 1))
    return replace(found, relevance={"rows": relevant.rows, "keys": relevant.keys, "bin": [1, 1]}, tensors=tensors)


def case(subject: Subject, batch: Batch, trace: Trace, relevant: Tensor | None) -> faithful.Case:
    """This text as the check wants it: what each method says of its tokens, and what the answer is worth without some.

    <s> and </s> are no words of the text: they are neither explained nor deleted. `relevant` is the relevance, rows x
    keys. Where there is no cross-attention, what the text reads of itself stands for it.
    """
    reading = [view for view in trace if view.kind == "cross"] or list(trace)
    speaks = _speaking(subject, batch)  # the rows that answer
    found = {"attention": torch.stack([_received(view, speaks) for view in reading]).mean(0)}
    if any(view.kind == "self" for view in trace):
        rolled = measures.rollout(trace, max(trace[-1].shape[2:])).weights[0]
        found["rollout"] = (rolled if speaks is None else rolled[speaks]).mean(0)
    if relevant is not None:
        found["relevance"] = (relevant if speaks is None else relevant[speaks.to(relevant.device)]).sum(0)
    found["gradient"] = relevance.gradient_times_input(subject.model.source, lambda: -losses(subject, batch))[0]
    units = _units(subject, batch, trace)
    attributions = {name: _by_unit(values.cpu(), units) for name, values in found.items()}
    return faithful.Case(lambda kept: worth(subject, batch, kept, units), attributions)


def worth(subject: Subject, batch: Batch, kept: Tensor, units: Sequence[Tensor] | None = None) -> Tensor:
    """The mean log-probability of the answer's tokens where only these units (words if not said) of the source are
    there: masks x units."""
    units = list(_words(subject, batch)[:, None]) if units is None else units
    ids, target, found = batch.source.ids[0].cpu(), target_of(batch), []
    labels, codes, places = target.ids[0].cpu(), batch.source.branches, torch.cat(list(units))
    sizes = torch.tensor([len(unit) for unit in units])
    for masks in kept.split(rows_at_once(batch)):
        there = torch.ones(len(masks), len(ids), dtype=torch.bool)
        there[:, places] = masks.cpu().repeat_interleave(sizes, dim=1)
        left = None if codes is None else [codes[0].cpu()[row].tolist() for row in there]
        many = replace(repeated(batch, len(masks)), source=pad_rows([ids[row].tolist() for row in there], PAD, left))
        if subject.speaks_in_place:  # a place that goes takes its (missing) label along
            many = replace(many, target=pad_rows([labels[row].tolist() for row in there], NONE))
        with torch.no_grad():
            found.append(subject.log_probs(many).sum(1).cpu() / _answers(subject, batch))
    return torch.cat(found)


def _units(subject: Subject, batch: Batch, trace: Trace) -> list[Tensor]:
    """The places that are deleted together: those of a word, or where another thing is read (sentences), of such."""
    if subject.reads_units(trace[-1].keys_axis):
        return [torch.tensor(places) for places in subject.task.units(batch)]
    return list(_words(subject, batch)[:, None])


def _by_unit(values: Tensor, units: Sequence[Tensor]) -> Tensor:
    """What is said of units; of tokens it is summed."""
    return values if len(values) == len(units) else torch.stack([values[places].sum() for places in units])


def _words(subject: Subject, batch: Batch) -> Tensor:
    """The places that can be deleted: what is of the text and says nothing itself.

    An encoder's row begins with <s>, each row of a pair or a labelled text ends with </s>; marks are no words.
    """
    ids = batch.source.ids[0].cpu()
    if not subject.speaks_in_place:
        marks = subject.marks
        return torch.tensor([i for i in range(int(subject.only_reads), len(ids) - 1) if int(ids[i]) not in marks])
    special = subject.task.tokenizer.special_ids
    silent = (target_of(batch).ids[0] < 0).cpu()
    return torch.tensor([i for i in range(len(ids)) if silent[i] and int(ids[i]) not in special], dtype=torch.long)


def _answers(subject: Subject, batch: Batch) -> int:
    """How many log-probabilities a row's worth is the mean of."""
    return subject.count(batch) if subject.speaks_in_place else subject.log_probs(batch).shape[1]


def _speaking(subject: Subject, batch: Batch) -> Tensor | None:
    """The rows that say something, None where all do."""
    return (target_of(batch).ids[0] >= 0).nonzero()[:, 0].cpu() if subject.speaks_in_place else None


def _received(view: View, rows: Tensor | None) -> Tensor:
    """What each key receives of these rows, the mean over heads."""
    if rows is None:
        return view.received[0].mean(0)
    weights = torch.stack([view.rows(range(row, row + 1))[0, :, 0] for row in rows.tolist()])  # rows x heads x keys
    return weights.mean((0, 1))


def ablation(subject: Subject, text: str, batch: Batch, trace: Trace, *, given: bool = False) -> dict[str, Any]:
    """What changes on this text while each head gives nothing, one at a time.

    The loss is that of the answer of the pass, which may have been `given`; "answer" is the model's own with all heads,
    which those of its heads are compared with.
    """
    heads, own = heads_to_switch(subject.model), []
    with Progress("heads off", len(heads) + 1) as shown:
        done = iter(range(1, len(heads) + 2))

        def score() -> dict[str, Any]:
            with torch.no_grad():
                loss = -subject.log_probs(batch).sum() / _answers(subject, batch)
            own.append(subject.answer(text)[0])
            shown.update(next(done))
            return {"loss": float(loss), "answers": own[-1:]}

        table = intervene.ablate(subject.model, score, heads)
    place = {view.name: i for i, view in enumerate(trace)}
    rows = [{**row, "layer": place[row["name"]]} for row in table["heads"]]
    kept = ("layer", "head", "change", "answer", "changed")
    whole = {"mode": table["mode"], "loss": table["loss"], "answer": own[0], "given": given}
    return {**whole, "heads": [{key: row[key] for key in kept} for row in rows]}
