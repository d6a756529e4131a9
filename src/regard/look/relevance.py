"""Explanations from gradients: relevance (Chefer et al. 2021), head importance (Michel et al. 2019), gradient x input.

The gradient of a weight needs no matrix: O_i = sum_j P_ij v_j, so dP_ij = dO_i . v_j, and the paper's

    A = mean_h (P * dP)^+

is had in strips of rows from q, k, v and the gradient dO at the attention's output.

Shapes: B batch, H heads, K key heads, N rows (queries), M keys, d head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import RegardError
from regard.look.collect import NoAttention, observe
from regard.look.measures import decoder_layers, strips
from regard.types import Trace, View

# Runs the model once, and gives one number for each batch row.
Score = Callable[[], Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class Relevance:
    """How much each place counts for the answer of each batch row.

    `weights` (B x M) is about the text that is read: a decoder's source, else the one text that there is. `own`
    (B x N) is about a decoder's text so far; None where there is no decoder.
    """

    rows: str
    keys: str
    weights: Tensor
    own: Tensor | None


def relevance(model: nn.Module, score: Score, rows: Sequence[int] | Tensor) -> Relevance:
    """Gradient-weighted relevance (Chefer et al. 2021) of one answer for each batch row.

    `score` gives, say, the log-probability of a token of the answer, and `rows` the place in the last layer that it was
    read from, or which share of it was read from each place (B x N); to explain every token of an answer, give the
    model a batch row for each. With R_ss = R_tt = I and R_ts = 0 at first, the layers from the lowest to the highest, s
    the text that is read and t a decoder's own:

    self-attention       R_ss += A R_ss;  in a decoder  R_tt += A R_tt  and  R_ts += A R_ts
        cross-attention      R_ts += N(R_tt)^T A N(R_ss),  N(R) = I + (R - I) with rows that sum to 1

    Only one row of R is wanted, so vectors are carried through the layers and the memory grows with the length. The
    row's own place holds the 1 of I. What goes around attention (a recurrent state, a convolution) is not seen.

    >>> from regard.layers.attention import SelfAttention
    >>> layer, x = SelfAttention(8, num_heads=2).eval(), torch.randn(1, 5, 8)
    >>> relevance(layer, lambda: layer(x)[:, 4].sum(1), rows=[4]).weights.shape
    torch.Size([1, 5])
    """
    trace, layers = _backward(model, score)
    crosses, decoder = [layer for layer in layers if layer.view.kind == "cross"], decoder_layers(trace)
    upper = [layer for layer in layers if layer.view.kind == "cross" or layer.view.name in decoder]
    lower = [layer for layer in layers if layer not in upper]
    last = (crosses or lower)[-1]
    end, start = last.view, last.start(rows)
    if not crosses:
        return Relevance(end.rows_axis, end.keys_axis, start + _grown(lower, start), None)
    own, read = _through_decoder(upper, start)
    # read N(R_ss): the sums of the rows of R_ss - I from below, then each row's share of it from above
    sums = torch.zeros_like(read)[..., None]
    for layer in lower:
        sums = sums + layer.up(1 + sums)
    return Relevance(end.rows_axis, end.keys_axis, read + _grown(lower, _ratio(read, sums[..., 0])), own)


def head_importance(model: nn.Module, losses: Iterable[Score]) -> dict[str, Tensor]:
    """The mean over examples of |sum <O_h, dL/dO_h>| (Michel et al. 2019), each layer's numbers of length 1: H a layer.

    That is how fast the loss changes as the head is faded out. Each of `losses` runs a batch and gives the loss of
    every example in it; the names are those of the layers.
    """
    sums: dict[str, Tensor] = {}
    for loss in losses:
        _, layers = _backward(model, loss)
        for layer in layers:
            moved = (layer.output.double() * layer.gradient.double()).sum((2, 3)).abs().sum(0)  # H
            sums[layer.view.name] = sums[layer.view.name] + moved if layer.view.name in sums else moved
    if not sums:
        raise RegardError("head importance needs examples", got=0, wanted="1 or more")
    # of one length, a sum over examples and their mean are the same; all 0 where the loss has no gradient there
    return {name: torch.where(total > 0, total / total.norm(), 0.0).cpu() for name, total in sums.items()}


def gradient_times_input(module: nn.Module, score: Score) -> Tensor:
    """sum_d x_d dscore/dx_d of each vector that `module`, an embedding, gives: B x N.

    `score` runs the model, and in it the module once.
    """
    given: list[Tensor] = []
    hook = module.register_forward_hook(lambda _, inputs, output: given.append(output))
    try:
        with torch.enable_grad():
            numbers = score()
    finally:
        hook.remove()
    if len(given) != 1:
        raise RegardError("the embedding must run once", got=f"{len(given)} times", wanted="once")
    (gradient,) = _gradients(numbers, given)
    return (given[0].detach() * gradient).sum(-1)


@dataclass(frozen=True, eq=False, slots=True)
class _Layer:
    """What one attention weighed, and the gradient at its output."""

    view: View
    values: Tensor  # B x K x M x d
    output: Tensor  # B x H x N x d
    gradient: Tensor  # B x H x N x d

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.values.dtype, torch.float32)

    def start(self, rows: Sequence[int] | Tensor) -> Tensor:
        """1 at the place of each answer, or its shares of all places: B x N."""
        places = torch.as_tensor(rows, device=self.values.device)
        batch, _, length, _ = self.view.shape
        if places.shape == (batch, length):
            return places.to(self.dtype)
        if places.shape != (batch,) or not bool(((places >= 0) & (places < length)).all()):
            wanted = f"{batch} numbers from 0 to {length - 1}"
            raise RegardError("the rows do not fit the model's batch", got=places.tolist(), wanted=wanted)
        return F.one_hot(places, length).to(self.dtype)

    def strips(self) -> Iterator[tuple[slice, Tensor]]:
        """A, some rows at a time: which rows, and B x R x M."""
        groups = self.view.shape[1] // self.values.shape[1]
        values = self.values.to(self.dtype).mT.repeat_interleave(groups, dim=1)  # B x H x d x M
        for rows in strips(self.view):
            part = slice(rows.start, rows.stop)
            changes = self.gradient[:, :, part].to(self.dtype) @ values
            yield part, (self.view.rows(rows) * changes).clamp(min=0).mean(1)

    def down(self, rows: Tensor) -> Tensor:
        """rows A, from the rows to the keys: B x N -> B x M."""
        parts = ((rows[:, None, part] @ strip)[:, 0] for part, strip in self.strips())
        return sum(parts, start=rows.new_zeros(1))

    def up(self, keys: Tensor) -> Tensor:
        """A keys, from the keys to the rows: B x M x C -> B x N x C."""
        return torch.cat([strip @ keys for _, strip in self.strips()], dim=1)


def _grown(layers: Sequence[_Layer], rows: Tensor) -> Tensor:
    """rows (R - I), for the R of these self-attentions; without I, beside which a small gradient would be lost."""
    grown = torch.zeros_like(rows)
    for layer in reversed(layers):
        grown = grown + layer.down(rows + grown)
    return grown


def _through_decoder(layers: Sequence[_Layer], start: Tensor) -> tuple[Tensor, Tensor]:
    """From the rows of an answer to the decoder's own text, start R_tt, and to what its cross-attentions read."""
    reached: list[Tensor] = []  # by the layers above each cross-attention
    grown = torch.zeros_like(start)
    for layer in reversed(layers):
        if layer.view.kind == "cross":
            reached.insert(0, start + grown)
        else:
            grown = grown + layer.down(start + grown)
    # each of them meets N(R_tt)^T, so N(R_tt) as a column, with the R_tt that stands below its cross-attention
    columns = torch.stack([torch.ones_like(start), *reached], dim=2)
    risen, read = torch.zeros_like(columns), torch.zeros_like(start[:, :1])
    numbers = iter(range(1, len(columns[0, 0])))
    for layer in layers:
        if layer.view.kind == "cross":
            number = next(numbers)
            read = read + layer.down(columns[..., number] + _ratio(risen[..., number], risen[..., 0]))
        else:
            risen = risen + layer.up(columns + risen)
    return start + grown, read


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, 0 where the whole is 0."""
    return torch.where(whole > 0, part / whole.where(whole > 0, 1.0), 0.0)


def _backward(model: nn.Module, score: Score) -> tuple[Trace, list[_Layer]]:
    """Runs the model once, forwards and backwards: its attentions with their outputs and the gradients there."""
    if model.training:
        raise RegardError("dropout would blur an explanation", got="a model in training", remedy="model.eval()")
    told: dict[View, tuple[list[Tensor], Tensor]] = {}

    def tell(view: View, output: Tensor, values: Tensor) -> None:
        told[view] = ([*told[view][0], output] if view in told else [output], values.detach())

    try:
        with torch.enable_grad(), observe(model, tell=tell) as trace:
            numbers = score()
    except NoAttention:
        raise _nothing(model) from None
    if set(told) != set(trace):
        raise _nothing(model)
    batch = trace[0].shape[0]
    if numbers.shape != (batch,):
        raise RegardError("a score is one number for each batch row", got=tuple(numbers.shape), wanted=(batch,))
    gradients = iter(_gradients(numbers, [output for view in trace for output in told[view][0]]))
    layers = []
    for view in trace:
        parts, values = told[view]
        gradient = torch.cat([next(gradients) for _ in parts], dim=2)
        if gradient.shape[2] != view.shape[2]:
            raise RegardError("a score runs the model once", got=f"{len(parts)} passes", where=view.name)
        layers.append(_Layer(view, values, torch.cat([part.detach() for part in parts], dim=2), gradient))
    return trace, layers


def _nothing(model: nn.Module) -> RegardError:
    got, wanted = type(model).__name__, "attention by `attend`"
    return RegardError("there is no attention to explain", got=got, wanted=wanted)


def _gradients(numbers: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    if not numbers.requires_grad or not all(tensor.requires_grad for tensor in tensors):
        remedy = "no torch.no_grad in what computes the score, and parameters that require gradients"
        raise RegardError("the score has no gradient", got="tensors without a graph", remedy=remedy)
    return torch.autograd.grad(numbers, tensors, torch.ones_like(numbers), materialize_grads=True)
