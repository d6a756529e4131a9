"""Documents for trials of the page, in pure numpy: heads that one knows, and lengths that are hard.

python tests/web/make_doc.py OUT_FOLDER  writes translation.html, exact.html (1,024 tokens), long.html (32,768 tokens)
"""

import sys
from pathlib import Path

import numpy as np

from regard.look.document import Document
from regard.look.page import page

NUMPY = {"f4": "<f4", "f2": "<f2", "i4": "<i4", "u1": "u1"}
SOURCE = ["<s>", "Zwei", "junge", "Männer", "spielen", "im", "Park", "mit", "einem", "roten", "Ball", ".", "</s>"]
TARGET = ["<s>", "Two", "young", "men", "are", "playing", "with", "a", "red", "ball", "in", "the", "park", ".", "</s>"]
ALIGNED = [0, 1, 2, 3, 4, 4, 7, 8, 9, 10, 5, 5, 6, 11, 12]
PROSE = "the of and a to in head reads token weight while model answers from long text where each word looks back"
FULL = {"lse": "f4", "received": "f4", "norms": "f4"}  # as look/document.py keeps them at any length
FRACTIONS, CURVE = [0.01, 0.05, 0.1, 0.2, 0.5], [i / 10 for i in range(11)]


def axis(tokens):
    """Tokens with the spans that they have in the text; <s> and </s> have none."""
    text, offsets = "", []
    for token in tokens:
        if token in ("<s>", "</s>"):
            offsets.append([len(text), len(text)])
            continue
        text += " " if text and token not in ".,;" else ""
        offsets.append([len(text), len(text) + len(token)])
        text += token
    return {"tokens": list(tokens), "offsets": offsets, "text": text}


def softmax(scores):
    """Over the last axis; a row that may attend nowhere is zero."""
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)


def bin_width(n, bins):
    """The smallest power of two that leaves at most `bins` bins."""
    width = 1
    while -(-n // width) > bins:
        width *= 2
    return width


def pool(weights, row_width, key_width):
    """Mean over rows of summed keys: heads x R x C."""
    keys = np.add.reduceat(weights, range(0, weights.shape[2], key_width), 2)
    rows = np.add.reduceat(keys, range(0, weights.shape[1], row_width), 1)
    counts = np.minimum(row_width, weights.shape[1] - np.arange(0, weights.shape[1], row_width))
    return rows / counts[None, :, None]


class Builder:
    """Collects layers and tensors of a document."""

    def __init__(self, title, model, source, target=None, bins=128):
        self.rng = np.random.default_rng(0)
        self.tensors, self.bins = {}, bins
        axes = {"source": axis(source)} | ({"target": axis(target)} if target else {})
        self.doc = {
            "version": 1,
            "title": title,
            "model": model,
            "run": "runs/trial",
            "text": axes["source"]["text"],
            "answer": axes["target"]["text"] if target else None,
            "axes": axes,
            "layers": [],
            "exact_heads": None,
            "heads": [],
            "rollout": None,
            "relevance": None,
            "alignment": None,
            "card": None,
            "ablation": None,
            "drift": None,
            "live": None,
            "tensors": {},
        }

    def put(self, name, array, dtype="f4"):
        """One tensor, little-endian."""
        self.doc["tensors"][name] = {"dtype": dtype, "shape": list(array.shape)}
        self.tensors[name] = np.ascontiguousarray(array.astype(NUMPY[dtype]))

    def layer(self, label, kind, rows, keys, q, k, v, scale, band=(None, None), kinds=(), exact="qk"):
        """A layer from its q, k, v (heads x length x width), every measure from the matrix."""
        i, (heads, n, d), m = len(self.doc["layers"]), q.shape, k.shape[1]
        k_of = np.repeat(k, heads // k.shape[0], 0)
        scores = scale * np.einsum("hnd,hmd->hnm", q, k_of, optimize=True)
        row, key = np.arange(n)[:, None], np.arange(m)[None]
        allowed = np.ones((n, m), bool)
        if band[0] is not None:
            allowed &= row - key <= band[0]
        if band[1] is not None:
            allowed &= key - row <= band[1]
        scores = np.where(allowed, scores, -np.inf)
        weights = softmax(scores)
        row_width, key_width = bin_width(n, self.bins), bin_width(m, self.bins)
        self.doc["layers"].append(
            {
                "name": f"layer.{i}.attention",
                "label": label,
                "kind": kind,
                "rows": rows,
                "keys": keys,
                "heads": heads,
                "kv_heads": k.shape[0],
                "width": d,
                "scale": scale,
                "band": list(band),
                "exact": exact,
                "bin": [row_width, key_width],
            }
        )
        entropy = -(weights * np.log(np.maximum(weights, 1e-30))).sum(-1)
        top = scores.max(-1)
        self.put(f"{i}.map", pool(weights, row_width, key_width), "f2")
        self.put(f"{i}.entropy", entropy)
        self.put(f"{i}.confidence", weights.max(-1))
        self.put(f"{i}.distance", (weights * abs(row - key)).sum(-1))
        self.put(f"{i}.lse", top + np.log(np.exp(scores - top[..., None]).sum(-1)))
        self.put(f"{i}.first", weights[..., 0])
        self.put(f"{i}.received", weights.sum(1))
        v_of = np.repeat(v, heads // v.shape[0], 0)
        norms = np.linalg.norm(v_of, axis=-1)
        self.put(f"{i}.norms", norms)
        if max(row_width, key_width) > 1:
            weighted = weights * norms[:, None]
            self.put(f"{i}.weighted", pool(weighted / weighted.sum(-1, keepdims=True), row_width, key_width), "f2")
        order = np.argsort(-weights, -1)[..., : min(8, m)]
        self.put(f"{i}.top.weights", np.take_along_axis(weights, order, -1))
        self.put(f"{i}.top.keys", order, "i4")
        if exact == "qk":
            self.put(f"{i}.q", q)
            self.put(f"{i}.k", k)
            if n <= 256:
                self.put(f"{i}.v", v)
        self.heads(i, kinds, weights[..., 0].mean(-1), entropy.mean(-1))
        return weights

    def heads(self, i, kinds, first, entropy):
        """Facts of each head of layer i."""
        rng = self.rng
        self.doc["heads"].append(
            [
                {
                    "importance": float(rng.gamma(1.2, 0.02)),
                    "kinds": list(kinds[h]) if h < len(kinds) else [],
                    "scores": {
                        "previous": float(rng.random() * 0.3),
                        "next": float(rng.random() * 0.2),
                        "induction": float(rng.random() * 0.2),
                        "positional": float(rng.random()),
                        "first": float(first[h]),
                        "entropy": float(entropy[h]),
                        "confidence": float(rng.random()),
                        "distance": float(rng.random() * 9),
                    },
                }
                for h in range(len(first))
            ]
        )

    def explain(self, rows, keys, rollout, relevance):
        """Rollout and relevance (answer tokens x source tokens), the card, an ablation, drift."""
        doc, rng = self.doc, self.rng
        doc["rollout"] = {"rows": rows, "keys": keys, "bin": [1, 1]}
        doc["relevance"] = {"rows": rows, "keys": keys, "bin": [1, 1]}
        self.put("rollout", rollout)
        self.put("relevance", relevance)

        def method(name, strength):
            def around(x):
                return [round(x, 3), round(x - 0.04, 3), round(x + 0.04, 3)]

            drop = [round(0.9 * (1 - x) ** (1 + 3 * strength), 3) for x in CURVE]
            # points of a curve are means with their bands, or (recency) plain means
            band = (lambda x: x) if name == "recency" else around
            return {
                "name": name,
                "comprehensiveness": around(0.2 + strength / 2),
                "sufficiency": around(0.5 - strength / 3),
                "beats": {
                    "comprehensiveness": [other for other, weaker in named if weaker < strength - 0.16],
                    "sufficiency": [other for other, weaker in named if weaker < strength - 0.24],
                },
                "deletion": [band(x) for x in drop],
                "insertion": [band(round(0.9 - x, 3)) for x in drop],
            }

        named = [
            ("relevance", 0.8),
            ("rollout", 0.4),
            ("attention", 0.5),
            ("gradient", 0.55),
            ("random", 0.2),
            ("recency", 0.3),
        ]
        verdict = "Relevance finds the words that the answer depends on better than random and recency"
        doc["card"] = {
            "methods": [method(*each) for each in named],
            "fractions": FRACTIONS,
            "curve": CURVE,
            "seeds": 5,
            "examples": 64,
            "verdict": {
                "en": verdict + "; rollout does not beat recency.",
                "zh": "相关性优于随机顺序与就近顺序；注意力展开不优于就近顺序。",
            },
        }
        places = [(i, h) for i, layer in enumerate(doc["layers"]) for h in range(layer["heads"])]
        changes = rng.normal(0.01, 0.03, len(places))
        doc["ablation"] = {
            "mode": "mean",
            "loss": 1.234,
            "answer": doc["answer"] or doc["text"],
            "given": False,
            "heads": [
                {
                    "layer": i,
                    "head": h,
                    "change": float(c),
                    "answer": "Two young men play ." if c > 0.05 else None,
                    "changed": bool(c > 0.05),
                }
                for (i, h), c in zip(places, changes, strict=True)
            ],
        }
        doc["drift"] = {"steps": list(range(0, 1000, 50)), "measures": ["entropy", "confidence"]}
        heads = max(layer["heads"] for layer in doc["layers"])
        for name in doc["drift"]["measures"]:
            self.put(f"drift.{name}", np.abs(np.cumsum(rng.normal(0, 0.1, (20, len(doc["layers"]), heads)), 0) + 2))


def from_scores(rng, scores, d, scale):
    """q, k of width d whose scaled product is `scores` (heads x N x M, M <= d), turned so that no number is round."""
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    k = np.broadcast_to(2 * np.eye(scores.shape[2], d), (scores.shape[0], scores.shape[2], d)) @ turn
    padded = np.zeros((*scores.shape[:2], d))
    padded[..., : scores.shape[2]] = scores / scale / 2
    return padded @ turn, k


def translation():
    """A small encoder and decoder with heads that one knows: previous, next, sink, alignment, broad."""
    build = Builder(
        "Zwei junge Männer …", "Translation, German to English: 3 + 3 layers, 4 heads of width 16.", SOURCE, TARGET
    )
    rng, d, n, m = build.rng, 16, len(SOURCE), len(TARGET)

    def near(rows, keys, offset, sharp=5.0):
        return sharp * (np.arange(keys)[None] == np.arange(rows)[:, None] + offset) + rng.normal(0, 0.7, (rows, keys))

    def sink(rows, keys):
        return 4.0 * (np.arange(keys)[None] == 0) + rng.normal(0, 0.5, (rows, keys))

    def match(sharp):
        return sharp * (np.arange(n)[None] == np.array(ALIGNED)[:, None]) + rng.normal(0, 0.8, (m, n))

    def add(label, kind, rows, keys, scores, kinds, band=(None, None)):
        q, k = from_scores(rng, np.stack(scores), d, 0.25)
        v = rng.normal(size=k.shape)
        v[:, 0] *= 0.2  # what a sink brings in is small
        return build.layer(label, kind, rows, keys, q, k, v, 0.25, band, kinds)

    for i in range(3):
        add(
            f"encoder {i + 1}",
            "self",
            "source",
            "source",
            [near(n, n, -1), near(n, n, 1, 4), sink(n, n), rng.normal(0, 1, (n, n))],
            [["previous"], ["next"], ["first"], ["broad"]],
        )
    aligned = np.array(ALIGNED)[:, None]
    for i in range(3):
        add(
            f"decoder {i + 1}, self",
            "self",
            "target",
            "target",
            [near(m, m, -1), near(m, m, 0, 3), sink(m, m), rng.normal(0, 1, (m, m))],
            [["previous", "positional"], ["positional"], ["first"], []],
            (None, 0),
        )
        last = add(
            f"decoder {i + 1}, cross",
            "cross",
            "target",
            "source",
            [match(5.5), match(3.5), sink(m, n), match(2)],
            [["alignment"], [], ["first"], ["broad"]],
        )
    build.explain(
        "target", "source", softmax(rng.normal(0, 1, (m, n)) + 2 * (np.arange(n)[None] == aligned)), last[0] ** 0.8
    )
    build.put("relevance.target", np.tril(softmax(rng.normal(0, 1, (m, m))), -1))
    build.doc["alignment"] = {"layer": 8, "head": 0, "pairs": [[i, j] for i, j in enumerate(ALIGNED)], "error": 0.183}
    return build


def exact(n=1024, layers=4, heads=6, d=64):
    """A causal model of one axis, every weight exact: sharp diagonals, sinks and some content."""
    build = Builder(
        "1,024 tokens, exact", f"Language model: {layers} layers, {heads} heads of width {d}.", ["<s>", *prose(n - 1)]
    )
    rng, place = build.rng, np.arange(n)[:, None]
    waves = np.exp(-np.linspace(0, 7, d // 2))[None]

    def turned(shift):
        return np.concatenate([np.cos((place + shift) * waves), np.sin((place + shift) * waves)], 1)

    for i in range(layers):
        q, k, v, kinds = np.zeros((heads, n, d)), np.zeros((heads, n, d)), rng.normal(size=(heads, n, d)), []
        for h in range(heads):
            sharp, content = (2.4, 0.2) if h % 3 == 0 else (0.7, 1.2)
            q[h] = sharp * turned(-1 if h % 3 == 0 else -40 * h) + content * rng.normal(size=(n, d))
            k[h] = sharp * turned(0) + content * rng.normal(size=(n, d))
            if h % 3 == 2:
                k[h, 0] += 9 * q[h].mean(0) / np.linalg.norm(q[h].mean(0))
            kinds.append([["previous"], ["broad"], ["first"]][h % 3])
        v[:, 0] *= 0.1
        last = build.layer(f"layer {i + 1}", "self", "source", "source", q, k, v, 0.125, (None, 0), kinds)
    build.explain("source", "source", last.mean(0), last[0])
    return build


def prose(count):
    """Tokens that look like text."""
    rng = np.random.default_rng(3)
    words = rng.choice(PROSE.split(), count)
    words[9::13] = "."
    return words.tolist()


def long(n=32768, layers=10, heads=10, bins=128):
    """Many heads over a long text: pooled maps and measures only."""
    build = Builder(
        "32,768 tokens, pooled", f"Language model: {layers} layers, {heads} heads of width 64.", ["<s>", *prose(n - 1)]
    )
    rng, width = build.rng, bin_width(n, bins)
    row, key = np.arange(bins)[:, None], np.arange(bins)[None]
    for i in range(layers):
        build.doc["layers"].append(
            {
                "name": f"layer.{i}",
                "label": f"layer {i + 1}",
                "kind": "self",
                "rows": "source",
                "keys": "source",
                "heads": heads,
                "kv_heads": heads,
                "width": 64,
                "scale": 0.125,
                "band": [None, 0],
                "exact": None,
                "bin": [width, width],
            }
        )
        scores = -np.abs(row - key)[None] * rng.gamma(0.6, 0.4, (heads, 1, 1)) + rng.normal(0, 0.6, (heads, bins, bins))
        scores[:, :, 0] += rng.normal(1, 2.5, (heads, 1))
        scores += 1.5 * np.sin(key / rng.uniform(1, 9, (heads, 1, 1)))
        weights = softmax(np.where(key <= row, scores, -np.inf))
        build.put(f"{i}.map", weights, "f2")
        weighted = weights * rng.gamma(2, 0.5, (heads, 1, bins))
        build.put(f"{i}.weighted", weighted / weighted.sum(-1, keepdims=True), "f2")
        for name, centre in [
            ("entropy", 5),
            ("confidence", 0.2),
            ("distance", 900),
            ("lse", 6),
            ("first", 0.2),
            ("received", 1),
            ("norms", 1),
        ]:
            noise = np.repeat(rng.gamma(4, 0.25, (heads, bins * 4)), n // bins // 4, 1)
            build.put(f"{i}.{name}", centre * noise * rng.uniform(0.8, 1.2, (heads, n)), FULL.get(name, "f2"))
        kinds = [
            ["first"] if weights[h, :, 0].mean() > 0.4 else [["broad"], [], ["previous"], ["positional"]][h % 4]
            for h in range(heads)
        ]
        build.heads(i, kinds, weights[:, :, 0].mean(1), np.full(heads, 5.0))
    build.doc["rollout"] = {"rows": "source", "keys": "source", "bin": [width, width]}
    build.put("rollout", weights.mean(0), "f2")
    return build


def write(folder):
    """All trial documents into a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for make in (translation, exact, long):
        build = make()
        (folder / f"{make.__name__}.html").write_text(page(Document(build.doc, build.tensors)), "utf-8")


if __name__ == "__main__":
    write(sys.argv[1])
