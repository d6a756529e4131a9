"""Pictures of a trace: one head or all of them as PNG or SVG (matplotlib), one head as a heat map in the terminal."""

from __future__ import annotations

import contextlib
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from regard.errors import ConfigError, RunError
from regard.files import put_file
from regard.look.document import check_heads, label
from regard.ops.observe import bin_width, value_weighted
from regard.types import Trace, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.text import Text

MOST_LABELS = 96  # tokens that are still written out beside a map
LABEL_WIDTH = 14  # of a row in the terminal
# five colours of cividis, which looks the same to people who see red and green alike
COLOURS = ((0, 34, 78), (66, 78, 108), (124, 123, 120), (187, 173, 109), (254, 232, 56))
# fonts with Chinese, Japanese and Korean characters that systems come with, tried before all others
CJK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Arial Unicode MS",
)


@dataclass(frozen=True, eq=False)
class Panel:
    """One head as a matrix that can be drawn: exact weights of a short text, bins of a long one."""

    title: str
    values: Tensor  # rows x keys, each row sums to 1
    rows: tuple[str, ...]
    keys: tuple[str, ...]


def panel(trace: Trace, layer: int, head: int, *, raw: bool = False, bins: int = 32) -> Panel:
    """The picture of one head: weights times the norms of the values that they read, or the raw weights.

    Beyond 96 tokens it is pooled, and says so.
    """
    check_heads(trace, [(layer, head)])
    view = trace[layer]
    _, _, num_rows, num_keys = view.shape
    name = f"{label(view)}, head {head + 1}"
    if max(num_rows, num_keys) <= MOST_LABELS:
        weights = view.rows(range(num_rows), [head])[0, 0].cpu()
        norms = None if raw else view.value_norms
        if norms is not None:
            weights = value_weighted(weights, norms[0, head].cpu())
        what = "weights" if norms is None else "value-weighted"
        return Panel(f"{name}: {what}", weights, _labels(trace, view, "rows"), _labels(trace, view, "keys"))
    height, width = bin_width(num_rows, bins), bin_width(num_keys, bins)
    ranges = tuple(f"{first + 1}-{min(num_rows, first + height)}" for first in range(0, num_rows, height))
    rows = _labels(trace, view, "rows") if height == 1 else ranges
    keys = tuple(f"{first + 1}" for first in range(0, num_keys, width))
    weighted = None if raw else view.weighted_map(bins)
    what, pooled = ("weights", view.map(bins)) if weighted is None else ("value-weighted", weighted)
    return Panel(f"{name}: {what}, pooled: a cell is {height} rows x {width} keys", pooled[0, head].cpu(), rows, keys)


def heat_map(shown: Panel, *, width: int = 80, colour: bool = True) -> list[Text]:
    """The lines of a heat map: two columns a key, as many blocks below each other as the width needs.

    Colours go from 0 to the largest weight; without colour a digit says how many tenths of that a weight is.
    """
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    margin = min(LABEL_WIDTH, max(map(cell_len, shown.rows), default=0))
    room = max(1, (width - margin - 1) // 2)
    lines, largest = [Text(shown.title)], float(shown.values.max()) or 1.0
    for first in range(0, len(shown.keys), room):
        keys = shown.keys[first : first + room]
        lines += [Text(" " * (margin + 1) + line) for line in _upright(keys)]
        for name, row in zip(shown.rows, shown.values[:, first : first + room].tolist(), strict=True):
            line = Text(set_cell_size(_cut(name, margin), margin) + " " * colour)
            for weight in row:
                line.append(*(("  ", f"on {_hex(weight / largest)}") if colour else (_digit(weight / largest), "")))
            lines.append(line)
    lines.append(Text(_legend(largest, colour)))
    return lines


def terminal(shown: Panel, console: Console) -> None:
    """Prints the heat map, in colours where the terminal has them."""
    for line in heat_map(shown, width=min(console.width, 160), colour=console.color_system is not None):
        console.print(line, soft_wrap=True)


def draw(trace: Trace, *, layer: int | None = None, head: int | None = None, raw: bool = False) -> Figure:
    """A figure of one head, of the heads of one layer, or of all heads in a grid."""
    layers = range(len(trace)) if layer is None else [layer]
    check_heads(trace, [(i, head or 0) for i in layers])
    heads = [[(i, h) for h in (range(trace[i].shape[1]) if head is None else [head])] for i in layers]
    panels = [[panel(trace, i, h, raw=raw) for i, h in row] for row in heads]
    return _one(panels[0][0]) if len(panels) == len(panels[0]) == 1 else _grid(panels)


def curve(points: Sequence[Mapping[str, Any]]) -> Figure:
    """What a model is worth as heads go: the loss, and each metric below it."""
    figure_class, _ = _figure()
    names = ["loss", *points[0]["metrics"]]
    figure = figure_class(figsize=(6, 1 + 1.8 * len(names)), layout="constrained")
    kept = [point["kept"] for point in points]
    for i, name in enumerate(names, 1):
        axes = figure.add_subplot(len(names), 1, i)
        axes.plot(kept, [point["loss"] if name == "loss" else point["metrics"][name] for point in points], marker=".")
        axes.set_ylabel(name)
        axes.invert_xaxis()
        axes.grid(alpha=0.3)
    axes.set_xlabel("heads kept")
    return figure


def write(figure: Figure, path: Path, form: Literal["png", "svg"]) -> list[str]:
    """Writes a figure; gives the characters of a PNG that no font here can draw."""
    import matplotlib
    from matplotlib.text import Text

    texts: list[Any] = figure.findobj(Text)
    fonts, missing = _fonts(text.get_text() for text in texts)
    for text in texts:
        text.set_fontfamily(fonts)
        text.set_parse_math(False)  # a dollar is a dollar
    # the same picture is the same file; without a date, and with a fixed seed of the names inside
    metadata: dict[str, Any] = {"Date": None} if form == "svg" else {"Software": None}
    try:
        # an SVG keeps its letters, so that who looks at it can search them and uses fonts of their own
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regard"}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            put_file(path, lambda place: figure.savefig(place, format=form, dpi=150, metadata=metadata))
    except OSError as error:
        raise RunError("the picture cannot be written", got=error.strerror, where=path) from None
    return missing if form == "png" else []


def has_hops(trace: Trace) -> bool:
    """Whether one question reads the same things again and again, which a map of one head would not show."""
    return len({(view.keys_axis, *view.shape[1:]) for view in trace}) == 1 and trace[0].shape[1:3] == (1, 1)


def terminal_hops(trace: Trace, console: Console) -> None:
    """Prints what each hop reads: a line for each of the things that are read, with a weight for each hop."""
    from rich.text import Text

    weights = [view.rows(range(1))[0, 0, 0].tolist() for view in trace]
    console.print(Text("  ".join([*(label(view).rjust(6) for view in trace), *_labels(trace, trace[0], "rows")])))
    for place, name in enumerate(_labels(trace, trace[0], "keys")):
        cells = [f"{own[place]:6.2f}" if own[place] >= 0.005 else "     ·" for own in weights]
        console.print(Text("  ".join([*cells, name])), soft_wrap=True)
    console.print(Text("a hop reads the sentences by these weights; where it reads is not why the model answered"))


def need_matplotlib() -> None:
    """Raises where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        remedy = 'pip install "regard[plots]"; --terminal and the page need nothing more'
        raise ConfigError("pictures need matplotlib", got="it is not installed", remedy=remedy) from None


def _one(shown: Panel) -> Figure:
    figure_class, name = _figure()
    width, height = (min(20.0, 2.5 + 0.28 * n) for n in (len(shown.keys), len(shown.rows)))
    figure = figure_class(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shown.values.numpy(), cmap=name, vmin=0, aspect="equal")
    axes.set_title(shown.title, fontsize=9)
    axes.set_xticks(range(len(shown.keys)), shown.keys, rotation=90, fontsize=8)
    axes.set_yticks(range(len(shown.rows)), shown.rows, fontsize=8)
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def _grid(panels: Sequence[Sequence[Panel]]) -> Figure:
    figure_class, name = _figure()
    columns = max(map(len, panels))
    figure = figure_class(figsize=(1.5 * columns + 0.5, 1.7 * len(panels) + 0.3), layout="constrained")
    for i, row in enumerate(panels):
        for j, shown in enumerate(row):
            axes = figure.add_subplot(len(panels), columns, i * columns + j + 1)
            axes.imshow(shown.values.numpy(), cmap=name, vmin=0, aspect="auto", interpolation="nearest")
            axes.set_title(shown.title.partition(":")[0], fontsize=6)
            axes.set_xticks([])
            axes.set_yticks([])
    what = {shown.title.partition(": ")[2] for row in panels for shown in row}
    figure.suptitle(f"rows read keys ({'; '.join(sorted(what))}; each map by its own largest)", fontsize=7)
    return figure


def _figure() -> tuple[type[Figure], str]:
    need_matplotlib()
    from matplotlib.figure import Figure  # without pyplot no window is ever opened

    return Figure, "cividis"


def _labels(trace: Trace, view: View, side: str) -> tuple[str, ...]:
    name, length = (view.rows_axis, view.shape[2]) if side == "rows" else (view.keys_axis, view.shape[3])
    axis = trace.axes.get(name)
    return tuple(map(_plain, axis.tokens)) if axis else tuple(str(n + 1) for n in range(length))


def _plain(token: str) -> str:
    """A token without characters that draw nothing or move the cursor."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join("\ufffd" if unicodedata.category(c) in hidden else c for c in token)


def _upright(labels: Sequence[str]) -> list[str]:
    """Labels written from top to bottom, so that each needs two columns only."""
    from rich.cells import cell_len

    most = 10
    cut = [_cut(text, most) for text in labels]
    height = max(map(len, cut), default=0)
    cells = [text.rjust(height) for text in cut]
    lines = ["".join(cell[i] + " " * (2 - cell_len(cell[i])) for cell in cells) for i in range(height)]
    return [line.rstrip() for line in lines]


def _cut(text: str, most: int) -> str:
    """The beginning of a text, within so many columns."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= most else f"{set_cell_size(text, most - 1).rstrip()}…"


def _hex(share: float) -> str:
    place = min(max(share, 0.0), 1.0) * (len(COLOURS) - 1)
    low = min(int(place), len(COLOURS) - 2)
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(COLOURS[low], COLOURS[low + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _digit(share: float) -> str:
    return f" {min(9, int(10 * share + 0.5))}" if share >= 0.05 else " ·"


def _legend(largest: float, colour: bool) -> str:
    scale = f"bright is {largest:.2g}" if colour else f"in tenths of {largest:.2g}"
    return f"a row reads the keys ({scale}); where a head reads is not why the model answered"


def _fonts(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Families that together can draw these texts, and the characters that none of them has."""
    wanted = {ord(character) for text in texts for character in text if not character.isspace()}
    chosen: list[str] = []
    for name, file in _families():
        has = wanted & _characters(file)
        if has or not chosen:
            chosen.append(name)
            wanted -= has
        if not wanted:
            break
    return chosen, sorted(map(chr, wanted))


def _families() -> Iterator[tuple[str, str]]:
    """Fonts and their files: the usual ones first, then all that matplotlib knows, then what was installed since."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    files: dict[str, str] = {}
    for entry in sorted(fontManager.ttflist, key=lambda entry: (entry.weight != 400, entry.style != "normal")):
        if "Last Resort" not in entry.name:  # which draws boxes, for every character that there is
            files.setdefault(entry.name, entry.fname)
    usual = [name for name in ("DejaVu Sans", *CJK_FONTS) if name in files]
    yield from ((name, files[name]) for name in dict.fromkeys([*usual, *sorted(files)]))
    later = set(findSystemFonts()) - {entry.fname for entry in fontManager.ttflist}
    for file in sorted(later, key=lambda file: ("Bold" in file, file)):
        with contextlib.suppress(RuntimeError, OSError):  # a font that only its maker can read
            fontManager.addfont(file)
            yield fontManager.ttflist[-1].name, file


def _characters(file: str) -> set[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return set(FT2Font(file).get_charmap())
    except (RuntimeError, OSError):
        return set()
