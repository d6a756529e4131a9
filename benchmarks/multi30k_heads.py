"""What the heads of a trained Multi30k model do: which align, which can go, and whether explanations hold.

    export REGARD_DATA=path/to/archives OMP_NUM_THREADS=1
    python benchmarks/multi30k_heads.py align runs/multi30k-en-de --out results
    python benchmarks/multi30k_heads.py prune runs/multi30k-en-de --out results --orders importance alone
    python benchmarks/multi30k_heads.py prune runs/multi30k-en-de --out results --orders elimination
    python benchmarks/multi30k_heads.py prune runs/multi30k-en-de --out results --orders random:{0,1,2,3,4,5,6,7,8,9}
    python benchmarks/multi30k_heads.py check runs/multi30k-en-de --out results
    regard ablate runs/multi30k-en-de --limit 0 --loss-only --json results/ablate.json
    python benchmarks/multi30k_heads.py draw --out results --pictures docs/images

All but the last write their numbers as JSON; the last prints the tables and draws the pictures. docs/multi30k-heads.md
says what came out. Nothing here reads the test split. Heads are named LAYER.HEAD, from 1.1, as the page counts them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import multi30k_pictures as pictures
import numpy as np
import torch
from numpy.typing import NDArray
from word_alignment import Model1, both_ways, links

import regard
from regard.look import faithful, intervene, measures
from regard.look.corpus import word_of
from regard.looking.explain import case, token_relevance
from regard.looking.heads import Judge
from regard.looking.lookable import GREEDY
from regard.looking.subject import losses, observed, target_of
from regard.types import Axis, Trace

Values = NDArray[np.float64]
Numbers = NDArray[np.int64]
TRAIN_PAIRS = 500  # that heads are ranked on: the first of the training split
FEW_PAIRS, MOST_ELIMINATED = 200, 14  # elimination tries every head at every step, so on fewer pairs
MOST_PRUNED = 32  # to where the orders are compared
TEXTS = 300  # that explanations are checked on: the first of the validation split
RESAMPLES = 2000  # of a bootstrap
ANCHOR_LETTERS = 4  # words of fewer letters can be false friends: an, in, hat
WAYS = ("written", "read", "written, value-weighted", "read, value-weighted")
PAIRED = (("relevance", "rarity"), ("attention", "rarity"), ("rollout", "rarity"), ("relevance", "attention"))
EXAMPLE = 2  # the validation sentence of the picture


# --- which heads align ------------------------------------------------------------------------------------------------


def align(run: Any) -> dict[str, Any]:
    """How often each cross head reads the word that an aligner, or the spelling, says it should read.

    On the validation split with its reference translations, and with the model's own answers.
    """
    train, val = run.task.examples("train"), run.task.examples("val")
    models = both_ways([pair.source for pair in train], [pair.targets[0] for pair in train])
    sources = [pair.source for pair in val]
    answers = [answer.text for answer in run.predict(sources)]
    reference = agreement(run, models, list(zip(sources, [pair.targets[0] for pair in val], strict=True)))
    own = agreement(run, models, [pair for pair in zip(sources, answers, strict=True) if pair[1].strip()])
    return {"reference": reference, "own": own, "example": example(run, sources[EXAMPLE], answers[EXAMPLE])}


def agreement(run: Any, models: tuple[Model1, Model1], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The shares of sure links and of anchors that each head, the diagonal and model 1 in one direction hit."""
    subject, picked, anchors = run.subject(), Counter[str](), Counter[str]()
    hits: dict[str, list[Values]] = {"sure": [], "anchor": []}  # of each text: ways x heads and baselines
    known: dict[str, list[int]] = {"sure": [], "anchor": []}  # how many could be hit
    information, end = [], []
    for source, target in pairs:
        batch, axes = subject.task.pair(source, target)
        trace = observed(subject, batch, axes)
        crosses = {i: view for i, view in enumerate(trace) if view.kind == "cross"}
        information.append(torch.cat([measures.information(view) for view in crosses.values()]))
        end.append(torch.cat([view.received[0, :, -1] / view.shape[2] for view in crosses.values()]))
        best = measures.alignment(trace)
        picked[f"{best.layer + 1}.{(best.head or 0) + 1}"] += 1
        blind = np.stack([diagonal(source, target), forward(models[0], source, target)])
        found = np.concatenate([guesses(trace, axes), np.broadcast_to(blind, (len(WAYS), *blind.shape))], axis=1)
        same = identical(source, target)
        anchors.update(target.split()[j] for _, j in same)
        for name, wanted in (("sure", links(models, source, target)[0]), ("anchor", same)):
            hits[name].append(sum((found[:, :, j] == i for i, j in wanted), np.zeros(found.shape[:2])))
            known[name].append(len(wanted))
    heads = [f"{i + 1}.{head + 1}" for i, view in crosses.items() for head in range(view.shape[1])]
    most = Counter(heads[int(numbers.argmax())] for numbers in information)
    return {
        "texts": len(pairs),
        "heads": heads,
        "rows": [*heads, "diagonal", "model 1, one direction"],
        "information": torch.stack(information).mean(0).tolist(),
        "end": torch.stack(end).mean(0).tolist(),
        "most informative": dict(most.most_common()),
        "picked": dict(picked.most_common()),
        "anchors": dict(anchors.most_common()),
        "known": {name: sum(counts) for name, counts in known.items()},
        **{name: shares(np.stack(hits[name]), np.array(known[name])).tolist() for name in hits},
    }


def guesses(trace: Trace, axes: dict[str, Axis]) -> Numbers:
    """The source word that each cross head reads most for each target word, -1 for </s>: ways x heads x words.

    The ways: as the first piece of the word is written, or when its last piece has just been read; by the raw weights,
    or by the value-weighted ones.
    """
    source, target = word_of(axes["source"]), word_of(axes["target"])
    words = range(len(axes["target"].text.split()))
    first = [target.index(word) for word in words]
    after = [len(target) - target[::-1].index(word) for word in words]
    of_key = np.array([-1 if word is None else word for word in source])
    found = []
    for view in trace:
        if view.kind == "cross":
            weights, norms = view.rows(range(view.shape[2]))[0], view.value_norms
            assert norms is not None
            most = [scaled.argmax(-1).numpy() for scaled in (weights, weights * norms[0, :, None])]
            found.append(np.stack([of_key[keys[:, rows]] for keys in most for rows in (first, after)]))
    return np.concatenate(found, axis=1)


def diagonal(source: str, target: str) -> Numbers:
    """The source word at the same share of the way: what a blind aligner says."""
    count = len(target.split())
    return ((np.arange(count) + 0.5) * len(source.split()) / count).astype(np.int64)


def forward(model: Model1, source: str, target: str) -> Numbers:
    """What model 1 says from source to target, -1 for no word."""
    found = {j: i for i, j in model.align(source, target)}
    return np.array([found.get(j, -1) for j in range(len(target.split()))])


def identical(source: str, target: str) -> list[tuple[int, int]]:
    """Words that are spelled alike and stand once in each text: nearly sure links that need no aligner.

    >>> identical("a man with a ball", "ein man mit einem ball")
    [(4, 4)]
    """
    one, other = source.split(), target.split()
    return [
        (one.index(word), j)
        for j, word in enumerate(other)
        if word.isalpha() and len(word) >= ANCHOR_LETTERS and one.count(word) == other.count(word) == 1
    ]


def shares(hits: Values, counts: Numbers) -> Values:
    """The share of hits, and its 95 % bootstrap interval over texts: 3 x the shape of one text's hits."""
    drawn = np.random.default_rng(0).integers(len(counts), size=(RESAMPLES, len(counts)))
    found = np.stack([hits[texts].sum(0) / counts[texts].sum() for texts in drawn])
    return np.stack([hits.sum(0) / counts.sum(), *np.quantile(found, [0.025, 0.975], axis=0)])


def example(run: Any, source: str, target: str) -> dict[str, Any]:
    """The raw weights of every cross head for one text, with the tokens that stand along them."""
    batch, axes = run.task.pair(source, target)
    trace = observed(run.subject(), batch, axes)
    crosses = {i: view for i, view in enumerate(trace) if view.kind == "cross"}
    weights = {str(i + 1): view.rows(range(view.shape[2]))[0].tolist() for i, view in crosses.items()}
    return {"weights": weights, **{name: axis.tokens for name, axis in axes.items()}}


# --- which heads can go -----------------------------------------------------------------------------------------------


def prune(run: Any, order: str) -> dict[str, Any]:
    """Loss and greedy BLEU on the validation split as heads go in an order found on training pairs, or a random one.

    importance: by gradients, asked anew after every fourth head, as `regard prune` does; alone: by the loss without
    that head alone; elimination: at each step the head that the loss misses least, for the first few; random:SEED.
    """
    subject, model = run.subject(GREEDY), run.model
    train = Judge(subject, run.task.examples("train")[:TRAIN_PAIRS], answers=False)
    val = Val(subject, run.task.examples("val"))
    found: dict[str, Any] = {"order": order}
    if order == "importance":
        points = intervene.prune_curve(model, lambda: val.score(len(val.points)), train.importance)
        heads = points[-1]["pruned"]
    elif order == "alone":
        found["alone"] = intervene.ablate(model, train.score)["heads"]
        found["importance"] = {name: values.tolist() for name, values in train.importance().items()}
        heads = [(row["name"], row["head"]) for row in sorted(found["alone"], key=lambda row: row["change"])]
    elif order == "elimination":
        heads = eliminated(model, Judge(subject, run.task.examples("train")[:FEW_PAIRS], answers=False))
    else:
        heads = intervene.all_heads(model)
        heads = [heads[i] for i in np.random.default_rng(int(order.partition(":")[2])).permutation(len(heads))]
    end, step = min(len(heads), MOST_PRUNED), 2 if order == "elimination" else 4
    for pruned in [] if order == "importance" else range(0, end + 1, step):
        with intervene.heads_off(model, heads[:pruned]), torch.no_grad():
            val.score(pruned)
    names = list(intervene.layers(model))
    order_found = [f"{names.index(name) + 1}.{head + 1}" for name, head in heads]
    return {**found, "heads": order_found, "points": val.points, "tokens": val.tokens}


def eliminated(model: Any, judge: Judge) -> list[intervene.Head]:
    """At each step the head goes without which the loss is lowest."""
    off: list[intervene.Head] = []
    while len(off) < MOST_ELIMINATED:
        table: dict[intervene.Head, float] = {}
        for head in intervene.all_heads(model):
            if head not in off:
                with intervene.heads_off(model, [*off, head]):
                    table[head] = judge.score()["loss"]
        off.append(min(table, key=lambda head: table[head]))
    return off


class Val:
    """The validation split as a judge that keeps the loss of each sentence, so that models can be compared in pairs."""

    def __init__(self, subject: Any, examples: Any) -> None:
        self.subject = subject
        self.judge, self.decoding = (Judge(subject, examples, answers=answers) for answers in (False, True))
        self.tokens = [int(n) - 1 for batch in self.judge.batches for n in target_of(batch).lengths]
        self.points: list[dict[str, Any]] = []

    def score(self, pruned: int) -> dict[str, Any]:
        """One more point, decoded where the number of pruned heads is even to 16, and at 24 and 32."""
        found = torch.cat([losses(self.subject, batch) for batch in self.judge.batches]).double()
        point = {"pruned": pruned, "loss": float(found.sum()) / sum(self.tokens), "sentences": found.tolist()}
        if pruned in (*range(0, 17, 2), 24, 32):
            point["bleu"] = self.decoding.score()["bleu"]
        self.points.append(point)
        print(pruned, f"{point['loss']:.4f}", f"{point['bleu']:.2f}" if "bleu" in point else "", flush=True)
        return {"loss": point["loss"]}


def changes(found: dict[str, Any]) -> list[list[float]]:
    """The change of the loss a token at each point, with its 95 % paired bootstrap interval over sentences."""
    counts = np.array(found["tokens"])
    drawn = np.random.default_rng(0).integers(len(counts), size=(RESAMPLES, len(counts)))
    whole, rows = np.array(found["points"][0]["sentences"]), []
    for point in found["points"]:
        change = np.array(point["sentences"]) - whole
        means = change[drawn].sum(1) / counts[drawn].sum(1)
        rows.append([change.sum() / counts.sum(), *np.quantile(means, [0.025, 0.975])])
    return [[float(number) for number in row] for row in rows]


# --- whether explanations hold ----------------------------------------------------------------------------------------


def check(run: Any) -> dict[str, Any]:
    """The faithfulness card of the model's own answers, found as its recipe decodes.

    Beside its own references stands one more order that knows nothing of the model: rare tokens first. The verdict is
    about the others, as the page has it.
    """
    subject, cases = run.subject(), []
    train, examples = run.task.examples("train"), run.task.examples("val")[:TEXTS]
    count = Counter(token for row in run.task.source.encode_batch([pair.source for pair in train]) for token in row)
    answers = run.predict([example.source for example in examples])
    for example, answer in zip(examples, answers, strict=True):
        batch, axes = subject.task.pair(example.source, answer.ids[0])
        trace = observed(subject, batch, axes)
        one = case(subject, batch, trace, token_relevance(subject, batch).weights)
        rarity = torch.tensor([-float(count[token]) for token in batch.source.ids[0, :-1].tolist()])
        cases.append(replace(one, attributions={**one.attributions, "rarity": rarity}))
    card = faithful.card(cases)
    usual = [method for method in card["methods"] if method["name"] != "rarity"]
    return {**card, "verdict": faithful.verdict(usual, len(cases)), "paired": paired(cases)}


def paired(cases: Sequence[faithful.Case]) -> dict[str, dict[str, list[float]]]:
    """Differences within each text, with their 95 % bootstrap interval over texts: a sharper test than the card's own.

    Random and recency are not asked again: the card tells them apart already.
    """
    texts = []
    for one in cases:
        kept = {name: one.attributions[name] for name in ("relevance", "attention", "rollout", "rarity")}
        alone = faithful.card([replace(one, attributions=kept)], seeds=1, resamples=1)["methods"]
        texts.append({method["name"]: [method[check][0] for check in faithful.CHECKS] for method in alone})
    drawn = np.random.default_rng(0).integers(len(cases), size=(RESAMPLES, len(cases)))
    found: dict[str, dict[str, list[float]]] = {}
    for first, second in PAIRED:
        change = np.array([np.array(text[first]) - text[second] for text in texts])
        rows = np.stack([change.mean(0), *np.quantile(change[drawn].mean(1), [0.025, 0.975], axis=0)], axis=1)
        found[f"{first} - {second}"] = dict(zip(faithful.CHECKS, rows.tolist(), strict=True))
    return found


# --- tables -----------------------------------------------------------------------------------------------------------


def draw(folder: Path, out: Path | None) -> None:
    """Prints the tables of what the parts have written, and draws it."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    orders = {name.removeprefix("prune-"): part for name, part in found.items() if name.startswith("prune-")}
    for name, part in found.items():
        print(f"{name}: {part['seconds']:.0f} s of one core" if "seconds" in part else name)
    for texts in ("reference", "own"):
        print_align(found["align"][texts], texts)
    print_prune(orders, found["ablate"])
    print_check(found["check"])
    if out is not None:
        made = {
            "align": pictures.align(found["align"]["reference"]),
            "example": pictures.example(found["align"]["example"], read="6.1", written="10.1"),
            "prune": pictures.prune(orders),
            "alone": pictures.alone(orders["alone"], found["ablate"]),
            "check": pictures.check(found["check"]),
        }
        for name, figure in made.items():
            figure.savefig(out / f"multi30k-{name}.png", dpi=130, metadata={"Software": None})


def print_align(found: dict[str, Any], texts: str) -> None:
    known = found["known"]
    print(f"\n{found['texts']:,} pairs ({texts}), {known['sure']:,} sure links, {known['anchor']} anchors; percent hit")
    print("the most informative head of a text:", found["most informative"], "\nthe one chosen:", found["picked"])
    print("anchors:", found["anchors"])
    print("head\tinformation\t</s>", *(f"{name}, {way}" for name in ("sure", "anchor") for way in WAYS), sep="\t")
    for row, name in enumerate(found["rows"]):
        about = [f"{found[key][row]:.2f}" if row < len(found["heads"]) else "" for key in ("information", "end")]
        hit = [100 * np.array(found[key])[:, way, row] for key in ("sure", "anchor") for way in range(len(WAYS))]
        print(name, *about, *("{:.1f} ({:.1f}-{:.1f})".format(*values) for values in hit), sep="\t")
    best = np.array(found["sure"])[0, :2, : len(found["heads"])].max(0)
    print(f"rank correlation of information and the better share: {ranked(found['information'], best.tolist()):.2f}")


def print_prune(orders: dict[str, Any], on_val: dict[str, Any]) -> None:
    blind = {name: part for name, part in orders.items() if name.startswith("random")}
    for name in pictures.ORDERS:
        print(f"\n{name}: {' '.join(orders[name]['heads'])}")
        for point, change in zip(orders[name]["points"], changes(orders[name]), strict=True):
            bleu = f"BLEU {point['bleu']:.2f}" if "bleu" in point else ""
            print(
                point["pruned"], f"{point['loss']:.4f}", "{:+.4f} ({:+.4f} to {:+.4f})".format(*change), bleu, sep="\t"
            )
    print(f"\nrandom, {len(blind)} seeds: mean (lowest to highest)")
    for points in zip(*(part["points"] for part in blind.values()), strict=True):
        parts = [[point[key] for point in points if key in point] for key in ("loss", "bleu")]
        cells = [f"{np.mean(part):.4f} ({min(part):.4f} to {max(part):.4f})" for part in parts if part]
        print(points[0]["pruned"], *cells, sep="\t")
    gradients = [value for values in orders["alone"]["importance"].values() for value in values]
    train, val = ([row["change"] for row in table] for table in (orders["alone"]["alone"], on_val["heads"]))
    print("rank correlation with the change of the validation loss without that head alone:")
    print(
        f"importance on training pairs {ranked(val, gradients):.2f}, change on training pairs {ranked(val, train):.2f}"
    )
    print(f"the budget, by BLEU: {pictures.budget(orders['importance'])} heads")


def print_check(card: dict[str, Any]) -> None:
    print(f"\n{card['examples']} texts, {card['seeds']} random orders each; nats a token of the answer")
    by_name = {method["name"]: method for method in card["methods"]}
    for name, method in by_name.items():
        cells = ["{:.3f} ({:.3f} to {:.3f})".format(*method[check]) for check in faithful.CHECKS]
        print(name, *cells, sep="\t")
    for name in pictures.METHODS:
        won = [check for check in faithful.CHECKS if faithful.beats(by_name[name], by_name["rarity"], check)]
        print(f"{name} beats rare tokens first on: {', '.join(won) or 'nothing'}")
    for name, row in card["paired"].items():
        cells = ["{:+.3f} ({:+.3f} to {:+.3f})".format(*row[check]) for check in faithful.CHECKS]
        print(name, "within texts", *cells, sep="\t")
    print(card["verdict"]["en"], card["verdict"]["zh"], sep="\n")


def ranked(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's correlation.

    >>> ranked([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    first, second = (np.argsort(np.argsort(values)) for values in (one, other))
    return float(np.corrcoef(first, second)[0, 1].round(12))


PARTS = {"align": align, "check": check}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["align", "prune", "check", "draw"])
    parser.add_argument("run", nargs="?", help="the folder of the trained run")
    parser.add_argument("--out", type=Path, required=True, help="where the numbers lie")
    parser.add_argument("--orders", nargs="+", default=["importance"], help="of `prune`, see there")
    parser.add_argument("--pictures", type=Path, help="where `draw` puts the pictures")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.part == "draw":
        return draw(arguments.out, arguments.pictures)
    run = regard.load(arguments.run, device="cpu")
    for order in arguments.orders if arguments.part == "prune" else [""]:
        start = time.process_time()
        found = prune(run, order) if order else PARTS[arguments.part](run)
        found["seconds"] = time.process_time() - start
        path = arguments.out / f"{arguments.part}{order and '-'}{order.replace(':', '-')}.json"
        path.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        print(f"{path}: {found['seconds']:.0f} s of one core", flush=True)


if __name__ == "__main__":
    main()
