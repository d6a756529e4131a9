"""The pictures of docs/multi30k-heads.md, from the numbers that multi30k_heads.py writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.look import faithful
from regard.look.document import layer_label

# Okabe and Ito's colours, which people who see red and green alike can tell apart; lines and marks differ too
BLUE, ORANGE, GREEN, PURPLE, BLACK = "#0072B2", "#D55E00", "#009E73", "#AA4499", "#000000"
ORDERS = {"importance": (BLUE, "-", "o"), "alone": (ORANGE, "--", "s"), "elimination": (GREEN, "-.", "^")}
METHODS = {"relevance": (BLUE, "-"), "rollout": (ORANGE, "--"), "attention": (GREEN, "-."), "gradient": (PURPLE, ":")}
BLIND = {"random": ("#666666", "-"), "recency": ("#666666", "--"), "rarity": (BLACK, ":")}


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def align(found: dict[str, Any]) -> Any:
    """Each cross head: how often it reads the right word as it writes, and as it has just read."""
    figure = new_figure(9, 4.6)
    places = np.arange(len(found["heads"]))
    for i, (key, title) in enumerate(
        [("sure", "links that model 1 finds both ways"), ("anchor", "words spelled alike")]
    ):
        axes, values = figure.add_subplot(1, 2, i + 1), 100 * np.array(found[key])
        for way, colour, mark, shift in ((0, BLUE, "o", -0.14), (1, ORANGE, "^", 0.14)):
            mean, low, high = values[:, way, : len(places)]
            label = ("as the word is written", "when it has just been read")[way]
            bars = np.stack([mean - low, high - mean])
            axes.errorbar(mean, places + shift, xerr=bars, fmt=mark, color=colour, label=label, markersize=5, lw=1)
        lines = [("diagonal", BLACK, ":")] + ([] if key == "sure" else [("model 1, one direction", GREEN, "--")])
        for name, colour, style in lines:
            axes.axvline(values[0, 0, found["rows"].index(name)], color=colour, ls=style, lw=1.2, label=name)
        axes.set_yticks(places, found["heads"], fontsize=8)
        for place in places[::4][1:]:
            axes.axhline(place - 0.5, color="#bbbbbb", lw=0.6)
        axes.invert_yaxis()
        axes.set_xlim(0, 101)
        axes.set_xlabel("percent of the links")
        axes.set_title(f"{title} ({found['known'][key]:,})", fontsize=10)
        axes.grid(axis="x", alpha=0.3)
        if not i:
            axes.set_ylabel("cross head (LAYER.HEAD as the page counts)")
    figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=4, frameon=False)
    return figure


def example(found: dict[str, Any], *, read: str, written: str) -> Any:
    """The raw weights of two heads for one text, one that aligns as it has read and one that does as it writes."""
    figure = new_figure(10, 4.6)
    for i, name in enumerate((read, written)):
        layer, _, head = name.partition(".")
        axes, weights = figure.add_subplot(1, 2, i + 1), np.array(found["weights"][layer][int(head) - 1])
        reads = i == 0  # the first of the two is named by what it has just read
        image = axes.imshow(weights, cmap="cividis", vmin=0, vmax=1, aspect="auto")
        rows = found["prefix" if reads else "target"]
        axes.set_yticks(range(len(rows)), [token.lstrip("\u2581") for token in rows], fontsize=8)
        keys = [token.lstrip("\u2581") for token in found["source"]]
        axes.set_xticks(range(len(keys)), keys, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
        axes.set_title(f"head {name}: a row is named by what it {'has just read' if reads else 'writes'}", fontsize=9)
    figure.colorbar(image, ax=figure.axes, shrink=0.8, label="weight (raw)")
    return figure


def prune(orders: dict[str, Any]) -> Any:
    """Loss and BLEU against the number of pruned heads."""
    figure = new_figure(9.5, 4.2)
    left, right = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    for axes, key in ((left, "loss"), (right, "bleu")):
        curves = [curve(part, key) for name, part in orders.items() if name.startswith("random")]
        for xs, ys in curves:
            axes.plot(xs, ys, color="#999999", lw=0.5)
        mean = np.mean([ys for _, ys in curves], axis=0)
        axes.plot(
            curves[0][0], mean, color=BLACK, ls=":", lw=2, label=f"random order, mean of {len(curves)} (thin: each)"
        )
        for name, (colour, style, mark) in ORDERS.items():
            label = {"importance": "importance (regard prune)", "alone": "loss without that head alone"}.get(name, name)
            xs, ys = curve(orders[name], key)
            axes.plot(xs, ys, color=colour, ls=style, marker=mark, markersize=3, lw=1.5, label=label)
        axes.axvline(budget(orders["importance"]), color="#bbbbbb", lw=1)
        axes.set_xlim(0, 32)
        axes.set_xlabel("heads pruned, of 48")
        axes.grid(alpha=0.3)
    left.set_ylabel("validation loss, nats a token")
    left.set_ylim(1.55, 2.8)
    right.set_ylabel("validation BLEU, greedy")
    left.legend(fontsize=8)
    return figure


def budget(part: dict[str, Any]) -> int:
    """The most heads that can go before BLEU has fallen by half a point, here or at any smaller number."""
    pruned, bleu = curve(part, "bleu")
    fallen = [number for number, value in zip(pruned, bleu, strict=True) if value <= bleu[0] - 0.5]
    return max(number for number in pruned if number < min(fallen, default=pruned[-1] + 1))


def curve(part: dict[str, Any], key: str) -> tuple[list[int], list[float]]:
    """The points of a curve that have this number."""
    points = [point for point in part["points"] if key in point]
    return [point["pruned"] for point in points], [point[key] for point in points]


def alone(found: dict[str, Any], on_val: dict[str, Any]) -> Any:
    """Every head: what the loss becomes without it, on both splits, and its importance."""
    figure = new_figure(10.5, 5.2)
    names, panels = list(found["importance"]), {}
    for split, rows in (("training pairs", found["alone"]), ("validation", on_val["heads"])):
        changes = np.array([1000 * row["change"] for row in rows]).reshape(len(names), -1)
        panels[f"change of the loss without it, x 1000:\n{split}"] = changes
    panels["importance by gradients, training pairs\n(each layer of length 1)"] = np.array(
        list(found["importance"].values())
    )
    for i, (title, values) in enumerate(panels.items()):
        axes, low = figure.add_subplot(1, len(panels), i + 1), min(0.0, float(values.min()))
        axes.imshow(values, cmap="cividis", aspect="auto", vmin=low)
        for (row, column), value in np.ndenumerate(values):
            colour = "black" if value > (values.max() + low) / 2 else "white"
            text = f"{value:.2f}" if "importance" in title else f"{value:.1f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
        axes.set_xticks(range(values.shape[1]), [f"head {n + 1}" for n in range(values.shape[1])], fontsize=8)
        labels = [f"{n + 1}: {layer_label(name, cross='.cross' in name)}" for n, name in enumerate(names)]
        axes.set_yticks(range(len(names)), labels if not i else [], fontsize=8)
        axes.set_title(title, fontsize=9)
    return figure


def check(card: dict[str, Any]) -> Any:
    """The card: both checks with their intervals, and both curves with their bands."""
    figure = new_figure(9.5, 6.4)
    methods, styles = {method["name"]: method for method in card["methods"]}, {**METHODS, **BLIND}
    words = {"gradient": "gradient times input", "rarity": "rare tokens first", "random": "random order"}
    names = [name for name in styles if name in methods]
    for i, (check, better) in enumerate(zip(faithful.CHECKS, ("more", "less"), strict=True)):
        axes = figure.add_subplot(2, 2, i + 1)
        for row, name in enumerate(names):
            mean, low, high = methods[name][check]
            axes.errorbar(mean, row, xerr=[[mean - low], [high - mean]], fmt="o", color=styles[name][0], capsize=3)
        axes.set_yticks(range(len(names)), [words.get(name, name) for name in names] if not i else [], fontsize=8)
        axes.invert_yaxis()
        axes.set_title(f"{check}, nats a token ({better} is better)", fontsize=10)
        axes.grid(axis="x", alpha=0.3)
    for i, (check, better) in enumerate((("deletion", "falling early"), ("insertion", "rising early"))):
        axes = figure.add_subplot(2, 2, i + 3)
        for name in names:
            mean, low, high = np.array(methods[name][check]).T
            colour, style = styles[name]
            shares_ = [100 * share for share in card["curve"]]
            axes.fill_between(shares_, low, high, color=colour, alpha=0.15, lw=0)
            axes.plot(shares_, mean, color=colour, ls=style, lw=1.4, label=words.get(name, name))
        axes.set_xlabel(f"percent of the source tokens {'deleted' if not i else 'put in'}")
        axes.set_ylabel("log-probability a token")
        axes.set_title(f"{check} ({better} is better)", fontsize=10)
        axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return figure
