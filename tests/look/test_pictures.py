"""Pictures of heads: what stands in them, that they fit the terminal, and that no font is missed in silence."""

from __future__ import annotations

import io
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from regard.errors import ConfigError, RunError
from regard.look import pictures
from regard.look.collect import LayerView
from regard.look.pictures import Panel, curve, draw, heat_map, panel, terminal, write
from regard.types import Axis, Trace

WEIGHTS = torch.tensor([[0.5, 0.5, 0.0], [0.04, 0.06, 0.9]])


def trace_of(weights: torch.Tensor, *, rows: tuple[str, ...] = (), keys: tuple[str, ...] = ()) -> Trace:
    """A trace of one cross-attention with these weights (H x N x M) and norms 1, 3, 1 ..."""
    values = torch.ones(1, 1, weights.shape[2], 2)
    values[:, :, 1] = 3.0
    view = LayerView("decoder.blocks.0.cross.body", "cross", ("target", "source"), None)
    view.add_weights(weights[None], values, values, torch.eye(2).repeat(1, len(weights)))
    names = {"target": rows, "source": keys}
    axes = {name: Axis(name, tokens, ((0, 0),) * len(tokens), "") for name, tokens in names.items() if tokens}
    return Trace((view,), axes)


def lines_of(shown: Panel, *, width: int = 80) -> list[str]:
    return [line.plain for line in heat_map(shown, width=width, colour=False)]


# --- the terminal -----------------------------------------------------------------------------------------------------


def test_a_heat_map_without_colours() -> None:
    assert lines_of(Panel("a head", WEIGHTS, ("x", "yes"), ("a", "bc", "d"))) == [
        "a head",
        "      b",
        "    a c d",
        "x   6 6 ·",
        "yes · 1 9",
        "a row reads the keys (in tenths of 0.9); where a head reads is not why the model answered",
    ]


def test_a_heat_map_with_colours() -> None:
    lines = heat_map(Panel("a head", WEIGHTS, ("x", "yes"), ("a", "b", "c")), colour=True)
    assert lines[2].plain == "x         "
    assert str(lines[3].spans[-1].style) == "on #fee838"  # the largest is the brightest
    assert str(lines[2].spans[-1].style) == "on #00224e"


def test_wide_characters_keep_the_columns() -> None:
    shown = Panel("", torch.eye(3), ("猫", "桌子", "</s>"), ("cat", "猫", "b"))
    lines = lines_of(shown)
    assert lines[1:4] == ["     c", "     a", "     t 猫b"]
    assert {cell_len(line) for line in lines[4:7]} == {10}
    assert lines[5] == "桌子 · 9 ·"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_blocks_below_each_other_fit_the_width(width: int) -> None:
    shown = Panel("wide", torch.full((2, 90), 1 / 90), ("a", "a long name of a row"), tuple(map(str, range(90))))
    lines = lines_of(shown, width=width)
    assert max(map(cell_len, lines[:-1])) <= width
    assert sum(len(re.findall(r"[\d·]", line)) for line in lines[:-1] if line.startswith("a  ")) == 90
    assert any(line.startswith("a long name o…") for line in lines)


def test_the_console_decides_about_colours() -> None:
    shown = Panel("a head", WEIGHTS, ("x", "y"), ("a", "b", "c"))
    plain, coloured = io.StringIO(), io.StringIO()
    terminal(shown, Console(file=plain, width=80))
    terminal(shown, Console(file=coloured, width=80, force_terminal=True, color_system="truecolor"))
    assert "\x1b" not in plain.getvalue()
    assert "x 6 6 ·\n" in plain.getvalue()
    assert "\x1b[48;2;" in coloured.getvalue()


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_values_weigh_unless_raw_weights_are_asked_for() -> None:
    trace = trace_of(WEIGHTS[None], rows=("x", "y"), keys=("a", "b", "c"))
    weighed, raw = panel(trace, 0, 0), panel(trace, 0, 0, raw=True)
    assert weighed.title == "decoder 1, cross, head 1: value-weighted"
    assert raw.title == "decoder 1, cross, head 1: weights"
    torch.testing.assert_close(raw.values, WEIGHTS)
    torch.testing.assert_close(
        weighed.values, torch.tensor([[0.25, 0.75, 0.0], [0.04, 0.18, 0.9]]) / torch.tensor([[1.0], [1.12]])
    )
    assert (weighed.rows, weighed.keys) == (("x", "y"), ("a", "b", "c"))


def test_a_long_text_is_pooled_and_says_so() -> None:
    shown = panel(trace_of(torch.full((2, 100, 200), 1 / 200)), 0, 1)
    assert shown.title == "decoder 1, cross, head 2: value-weighted, pooled: a cell is 4 rows x 8 keys"
    assert shown.values.shape == (25, 25)
    norms = torch.tensor([1.0, 3] + [1] * 198)
    torch.testing.assert_close(shown.values, (norms / 202).view(25, 8).sum(1).expand(25, 25))
    raw = panel(trace_of(torch.full((2, 100, 200), 1 / 200)), 0, 1, raw=True)
    assert raw.title == "decoder 1, cross, head 2: weights, pooled: a cell is 4 rows x 8 keys"
    torch.testing.assert_close(raw.values, torch.full((25, 25), 0.04))
    assert shown.rows[:2] == ("1-4", "5-8")
    assert panel(trace_of(torch.full((2, 2, 200), 1 / 200)), 0, 1).rows == ("1", "2")  # each row is itself, not "1-1"
    assert shown.keys[-1] == "193"


def test_tokens_that_would_move_the_cursor_are_shown_as_such() -> None:
    shown = panel(trace_of(WEIGHTS[None], rows=("\x1b[31m", "a\nb"), keys=("\u200b", "b", "c")), 0, 0)
    assert shown.rows == ("\ufffd[31m", "a\ufffdb")
    assert shown.keys[0] == "\ufffd"


def test_without_tokens_places_are_numbered() -> None:
    shown = panel(trace_of(WEIGHTS[None]), 0, 0)
    assert (shown.rows, shown.keys) == (("1", "2"), ("1", "2", "3"))


def test_a_head_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no such head\n  got:    1.3 .*\n  wanted: LAYER.HEAD from 1.1 to 1.1"):
        panel(trace_of(WEIGHTS[None]), 0, 2)
    with pytest.raises(ConfigError, match="no such head"):
        draw(trace_of(WEIGHTS[None]), layer=4)


# --- files ------------------------------------------------------------------------------------------------------------


def test_png_and_svg(tmp_path: Path) -> None:
    trace = trace_of(WEIGHTS.expand(3, -1, -1), rows=("x$1$", "y"), keys=("a", "b", "c"))
    assert write(draw(trace, layer=0, head=1), tmp_path / "one.png", "png") == []
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    write(draw(trace, layer=0, head=1), tmp_path / "one.svg", "svg")
    text = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert ">x$1$</text>" in text  # letters that can be searched; a dollar is no mathematics
    assert "decoder 1, cross, head 2: value-weighted" in text
    write(draw(trace), tmp_path / "all.svg", "svg")
    grid = (tmp_path / "all.svg").read_text(encoding="utf-8")
    assert [f"head {n}" in grid for n in (1, 2, 3, 4)] == [True, True, True, False]
    write(draw(trace), tmp_path / "again.svg", "svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "all.svg").read_bytes()


def test_characters_that_no_font_has_are_told_without_a_warning(tmp_path: Path) -> None:
    nobody = "\U0001fadf"  # a splatter, of Unicode 16
    trace = trace_of(WEIGHTS[None], rows=("x", nobody), keys=("a", "b", "c"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert write(draw(trace, layer=0, head=0), tmp_path / "a.svg", "svg") == []
        missing = write(draw(trace, layer=0, head=0), tmp_path / "a.png", "png")
    fonts = [set(pictures._characters(file)) for _, file in pictures._families()]
    assert missing == ([] if any(ord(nobody) in font for font in fonts) else [nobody])


def test_fonts_are_found_by_what_they_can_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    fonts = {"Latin": set(map(ord, "abc")), "Greek": {ord("α")}, "Han": {ord("猫"), ord("a")}}
    monkeypatch.setattr(pictures, "_families", lambda: iter([(name, name) for name in fonts]))
    monkeypatch.setattr(pictures, "_characters", fonts.__getitem__)
    assert pictures._fonts(["a b", "猫"]) == (["Latin", "Han"], [])
    assert pictures._fonts(["ab"]) == (["Latin"], [])
    assert pictures._fonts(["аж猫"]) == (["Latin", "Han"], ["а", "ж"])
    assert pictures._fonts([""]) == (["Latin"], [])


def test_a_curve(tmp_path: Path) -> None:
    points = [{"kept": kept, "loss": 1 / kept, "metrics": {"bleu": kept}} for kept in (4, 3, 2)]
    write(curve(points), tmp_path / "curve.svg", "svg")
    text = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert "heads kept" in text
    assert "bleu" in text


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of(WEIGHTS[None])
    with pytest.raises(RunError, match=r"the picture cannot be written\n  got:    No such file or directory"):
        write(draw(trace), tmp_path / "no" / "a.png", "png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ConfigError, match=r"pictures need matplotlib\n  got:    it is not installed\n  try: .*regard\[plots\]"
    ):
        draw(trace)
