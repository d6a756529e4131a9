"""Looking into a run: one text or many, heads off, heads pruned."""

from __future__ import annotations

import hashlib
import json as json_module
import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.cli.jobs import DEVICE, OVERRIDES, Output, progress
from regard.cli.output import console, say, table
from regard.cli.words import section
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.look.document import Exact
    from regard.looking.text import Look

RUN = typer.Argument(metavar="RUN", help="The folder of a trained run.")
FILES = (".json", ".jsonl", ".tsv", ".txt")  # a word with such an ending is meant to be a file
HEADS = "LAYER.HEAD as the page counts them, from 1.1, with commas between"


class Mode(StrEnum):
    """What a head that is off gives."""

    mask = "mask"
    mean = "mean"


def look(
    run: Path = RUN,
    text: str = typer.Argument(metavar="TEXT|FILE", help="A text (- is stdin), or a .jsonl, .tsv or text file."),
    overrides: list[str] = OVERRIDES,
    target: str | None = typer.Option(None, help="The answer to look at; without it, the model's own."),
    out: Path | None = typer.Option(
        None, metavar="FILE", help="Where the page goes; in RUN/look without it, named by the text."
    ),
    exact: str = typer.Option("", metavar="L.H,..|all", help=f"Heads that stay exact beyond 1,024 tokens: {HEADS}."),
    live: bool = typer.Option(False, "--live", help="Serve the page to this machine; every row exact, on demand."),
    port: int = typer.Option(0, min=0, max=65535, help="Port of --live; a free one without it."),
    png: Path | None = typer.Option(None, metavar="FILE", help="Also draw the heads as a PNG."),
    svg: Path | None = typer.Option(None, metavar="FILE", help="Also draw the heads as an SVG."),
    json: Path | None = typer.Option(None, metavar="FILE", help="Also write all numbers as JSON."),
    terminal: bool = typer.Option(False, "--terminal", help="Print a heat map of one head."),
    layer: int | None = typer.Option(None, min=1, help="The layer of the pictures, counted from 1."),
    head: int | None = typer.Option(None, min=1, help="The head of the pictures, counted from 1."),
    raw: bool = typer.Option(False, "--raw", help="Pictures of the plain weights, not of the value-weighted ones."),
    quick: bool = typer.Option(False, "--quick", help="Maps and measures only: no gradients, no check, no heads off."),
    thorough: bool = typer.Option(False, "--thorough", help="Leave nothing out, however long it takes."),
    limit: int = typer.Option(0, min=0, help="Texts of a file that are read; 0 reads all."),
    open: bool = typer.Option(True, "--open/--no-open", help="Open the page in the browser, where there is one."),
    device: str = DEVICE,
) -> None:
    """Show who reads what, as a page that works offline.

    A file of texts, such as that of a split, gives a table: what each head does over all of them, with their right
    answers where the file has them. With --png, --svg or --terminal alone no page is written; --out asks for it.
    """
    changes = section("decode", overrides or [])
    file = as_file(text)
    said = _read_stdin() if text == "-" else text
    drawn = png is not None or svg is not None or terminal
    pictures: dict[str, object] = {"--layer": layer, "--head": head, "--raw": raw}
    single: dict[str, object] = {"--target": target, "--exact": exact, "--live": live, "--port": port, "--png": png}
    single |= {"--svg": svg, "--terminal": terminal, "--thorough": thorough, **pictures}
    if file is not None:
        _refuse(single, "is about one text", "a text, or of a file of texts: --out, --json, --limit, --quick")
    _refuse({"--limit": limit and file is None}, "is about a file of texts", "a file of texts, or without it")
    _refuse({"--port": port and not live}, "is that of --live", "--live --port PORT")
    _refuse({"--out": out is not None and live}, "is the page of a look that is not served", "--out or --live")
    _refuse({} if drawn else pictures, "is about pictures", "--png, --svg or --terminal beside it")
    _refuse({"--quick": quick and thorough}, "leaves out what --thorough waits for", "one of the two")
    place = _place(layer, head)
    chosen = parse_heads(exact)

    from regard.run import load

    loaded = load(run, device)
    paged = file is not None or out is not None or live or not drawn
    page = out or (text_page(run, said, target) if file is None else file_page(run, file))
    _need_places("the page", page if paged and not live else None, make_folders=True)
    _need_places("the picture", png, svg)
    _need_places("the JSON", json)
    _need_ending(png, ".png")
    _need_ending(svg, ".svg")
    if file is not None:
        path = summarise(loaded, file, page=page, json=json, limit=limit, quick=quick, changes=changes)
        return show(path.resolve().as_uri()) if open else None
    found = loaded.look(said, target, exact=chosen, quick=quick or not (paged or json), thorough=thorough, **changes)
    if found.left_out:
        say(f"left out, as it takes long: {', '.join(found.left_out)}; --thorough waits for it", stderr=True)
    _draw(found, png, svg, place, raw)
    if json is not None:
        with Output(json) as output:
            output.write(found.json() + "\n")
        _tell(json)
    if terminal:
        found.terminal(*place, raw=raw, console=console())
    if live:
        serve(found, port, open)
    elif paged:
        path = found.save(page)
        say(f"wrote {path}")
        if open:
            show(path.resolve().as_uri())


def _refuse(given: dict[str, object], why: str, wanted: str) -> None:
    """Raises where one of these options was given: it would do nothing."""
    for name, value in given.items():
        if value:
            raise ConfigError(f"{name} {why}", got=name, wanted=wanted)


def _need_places(what: str, *places: Path | None, make_folders: bool = False) -> None:
    """Raises where one of these cannot be written, before the work that it is to hold."""
    from regard.files import require_writable

    for place in places:
        if place is not None:
            require_writable(place, what, make_folders=make_folders)


def _need_ending(place: Path | None, ending: str) -> None:
    """Raises where a picture would be of another kind than its name says."""
    if place is not None and place.suffix.lower() not in ("", ending):
        raise ConfigError("the picture is of another kind than its name", got=place, wanted=f"a name in {ending}")


def _read_stdin() -> str:
    from regard.data.readers import read_text

    return "\n".join(read_text(sys.stdin.buffer, "stdin")).strip()


def _draw(found: Look, png: Path | None, svg: Path | None, place: tuple[int | None, int | None], raw: bool) -> None:
    """The pictures that go into files."""
    if png is not None:
        missing = found.png(png, *place, raw=raw)
        say(f"wrote {png}")
        if missing:
            some = f"{len(missing)} of its characters ({''.join(missing[:12])})"
            say(f"no font here can draw {some}; --svg leaves that to who looks at it")
    if svg is not None:
        found.svg(svg, *place, raw=raw)
        say(f"wrote {svg}")


def ablate(
    run: Path = RUN,
    overrides: list[str] = OVERRIDES,
    heads: str = typer.Option("", metavar="L.H,..|all", help=f"Heads to switch off, one at a time: {HEADS}; or all."),
    mode: Mode = typer.Option(Mode.mask, help="mask: a head that is off gives zeros; mean: what it gives on average."),
    split: str = typer.Option("val", help="The split that judges: val, test or train."),
    limit: int = typer.Option(100, min=0, help="Examples of the split; 0 takes all."),
    loss_only: bool = typer.Option(False, "--loss-only", help="Do not decode: no metrics, no answers."),
    json: Path | None = typer.Option(None, metavar="FILE", help="Also write the table as JSON."),
    device: str = DEVICE,
) -> None:
    """Switch heads off, one at a time, and see what changes.

    A head without which the loss falls is one that the model would be better without. Answers are decoded greedily
    unless keys say otherwise.
    """
    from regard.look.document import check_numbers
    from regard.look.intervene import layers
    from regard.run import load

    numbers = parse_heads(heads)
    chosen = None if isinstance(numbers, str) else list(numbers)
    changes, loaded = section("decode", overrides or []), load(run, device)
    _need_places("the JSON", json)
    if chosen is not None:
        check_numbers([layer.num_heads for layer in layers(loaded.model).values()], chosen)
    with progress("heads off") as on_step:
        found = loaded.ablate(
            chosen, mode=mode.value, split=split, limit=limit, answers=not loss_only, on_step=on_step, **changes
        )
    metrics = list(found["metrics"])
    rows = sorted(found["heads"], key=lambda row: -row["change"])
    header = ["head", "layer", "loss", *metrics, *([] if loss_only else ["the first answer that changed"])]
    table((_ablated(row, metrics)[: len(header)] for row in rows), header=header)
    values = {"loss": found["loss"], **found["metrics"]}
    whole = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if name != "changed")
    say(f"with all heads: {whole}; the columns are changes")
    _write_json(json, found, told=True)


def prune(
    run: Path = RUN,
    overrides: list[str] = OVERRIDES,
    out: Path = typer.Option(..., metavar="NEWRUN", help="The folder of the new run."),
    keep: float = typer.Option(..., help="The share of heads that stays, as 0.5."),
    split: str = typer.Option("val", help="The split that judges: val, test or train."),
    limit: int = typer.Option(100, min=0, help="Examples of the split; 0 takes all."),
    loss_only: bool = typer.Option(False, "--loss-only", help="Do not decode: no metrics in the curve."),
    device: str = DEVICE,
) -> None:
    """Take the least important heads away for good.

    Which those are is found out on as many examples of the train split, where that is there. NEWRUN is a run as any
    other: look at it, evaluate it, predict with it. What each number of heads is worth on the way is printed, and goes
    into its prune.json and, with matplotlib, prune.png.
    """
    from regard.run import load

    changes, loaded = section("decode", overrides or []), load(run, device)
    with progress("pruning") as on_step:
        points = loaded.prune(
            out, keep=keep, split=split, limit=limit, answers=not loss_only, on_step=on_step, **changes
        )
    metrics = list(points[0]["metrics"])
    table(
        ([p["kept"], f"{p['loss']:.4f}", *(f"{p['metrics'][name]:.2f}" for name in metrics)] for p in points),
        header=["heads", "loss", *metrics],
    )
    _write_json(out / "prune.json", points)
    try:
        from regard.look.pictures import curve, write

        write(curve(points), out / "prune.png", "png")
    except ConfigError:
        say("no picture of the curve: matplotlib is not installed", stderr=True)
    say(f"which heads go: by {points[0]['chosen_on']}; what the rest is worth: by {points[0]['judged_on']}")
    say(f"wrote {out}: {points[-1]['kept']} of {points[0]['kept']} heads")
    say(f"next:  regard evaluate {shlex.quote(str(out))}", stderr=True)


def summarise(
    run: Any, file: Path, *, page: Path, json: Path | None, limit: int, quick: bool, changes: dict[str, Any]
) -> Path:
    """Prints what each head does over a file of texts, and writes it; gives the page."""
    from regard.looking.text import write_page

    with progress("passes") as on_step:  # of each text one to read it, of the first also its check
        summary = run.look_at_file(file, limit=limit, quick=quick, on_step=on_step, **changes)
    header, rows = summary.table()
    table(rows, header=header)
    texts = f"{summary.num_texts:,} text{'s' * (summary.num_texts != 1)}"
    say(f"means over {texts}; where a head reads is not why the model answered")
    if summary.num_cut:
        say(f"{summary.num_cut:,} of them were too long (data.max_length): only their beginning was read")
    if summary.card is not None:
        say(summary.card["verdict"]["en"])
    _write_json(json, summary.document(), told=True)
    path = write_page(page, summary.html(f"{file.name} · {run.folder}"))
    say(f"wrote {path}")
    return path


def as_file(text: str) -> Path | None:
    """The file that a word names, if it does: one that is there and has a suffix, or a suffix of data."""
    from regard.data.readers import data_suffix, require_file

    if "\n" in text or len(text) > 1000:
        return None
    path = Path(text)
    try:
        if path.suffix and path.is_file():
            return path
    except OSError:  # no file has so long a name
        return None
    if data_suffix(path) in FILES and not re.search(r"\s", text):
        require_file(path)
    return None


def parse_heads(words: str) -> Exact:
    """Heads as the page counts them.

    >>> parse_heads("1.2,3.1"), parse_heads("all"), parse_heads("")
    ([(0, 1), (2, 0)], 'all', 'auto')
    """
    if not words:
        return "auto"
    if words == "all":
        return "all"
    found = [re.fullmatch(r"([1-9]\d*)\.([1-9]\d*)", word.strip()) for word in words.split(",")]
    if not all(found):
        raise ConfigError("heads are not understood", got=words, wanted=f"{HEADS}, as in 1.2,3.1")
    return [(int(each[1]) - 1, int(each[2]) - 1) for each in found if each]


def slug(text: str) -> str:
    """A file name that says what is inside.

    >>> slug("A man in a blue shirt!"), slug("猫が 好き"), slug("...")
    ('a-man-in-a-blue-shirt', '猫が-好き', 'text')
    """
    words = re.findall(r"\w+", unicodedata.normalize("NFC", text.lower()))
    return "-".join(words)[:60].rstrip("-") or "text"


def text_page(run: Path, text: str, target: str | None) -> Path:
    """The page of a text, one for each: where the plain name could be that of another, or of another target, a mark
    of both is added.

    >>> [text_page(Path("run"), text, None).name for text in ("a b", "A b!")]
    ['a-b.html', 'a-b-19a09a45.html']
    """
    name = slug(text)
    plain = target is None and name.replace("-", " ") == text
    mark = _mark(f"{text}\0{'' if target is None else target}".encode(errors="surrogatepass"))
    return run / "look" / (f"{name}.html" if plain else f"{name}-{mark}.html")


def file_page(run: Path, file: Path) -> Path:
    """The page of a file of texts, one for each file: a mark of its folder tells it from others of its name."""
    return run / "look" / f"{slug(file.name)}-{_mark(os.fsencode(file.resolve()))}.html"


def _mark(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def serve(found: Look, port: int, open: bool) -> None:
    """Serves the page until Ctrl-C."""
    with found.live(port) as live:
        say(f"serving {live.url} to this machine alone; Ctrl-C ends it")
        if open:
            show(live.url)
        live.serve()
    say("")


def show(url: str) -> None:
    """Opens the browser, where a person sits before one."""
    import webbrowser

    seen = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if seen and sys.stdout.isatty():
        webbrowser.open(url)


def _ablated(row: dict[str, Any], metrics: Sequence[str]) -> list[str]:
    from regard.look.document import layer_label

    where = [f"{row['layer'] + 1}.{row['head'] + 1}", layer_label(row["name"], cross=row["kind"] == "cross")]
    changes = [f"{row['change']:+.4f}", *(f"{row['metrics'][name]:+.2f}" for name in metrics)]
    return [*where, *changes, row["answer"] or ""]


def _write_json(path: Path | None, value: object, *, told: bool = False) -> None:
    if path is None:
        return
    with Output(path) as output:
        output.write(json_module.dumps(value, ensure_ascii=False, indent=1) + "\n")
    if told:
        _tell(path)


def _tell(path: Path) -> None:
    """That a file was written; what went into a pipe or a terminal needs no word, and may be stdout itself."""
    if path.is_file():
        say(f"wrote {path}")


def _place(layer: int | None, head: int | None) -> tuple[int | None, int | None]:
    if head is not None and layer is None:
        raise ConfigError("a head is one of a layer", got=f"--head {head}", wanted="--layer L --head H")
    return None if layer is None else layer - 1, None if head is None else head - 1
