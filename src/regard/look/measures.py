"""Measures on traces: rollout, what kind of head each is, alignment.

They ask views (`types.View`) for exact rows in strips and for sums along rows, keys and diagonals, never for the
matrix. Row i is taken to stand at position i.

Shapes: B batch, H heads, N rows (queries), M keys, G bins of keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import RegardError
from regard.look.trace import NotSaved
from regard.ops.call import Call
from regard.ops.observe import bin_width
from regard.types import Trace, View

STRIP = 2**24  # weights in memory at once: 64 MiB

# A head is of a kind where on average at least this share of its weight goes there; "broad" is measured by the
# entropy, as a share of the largest that the visible keys allow.
KINDS = {"previous": 0.5, "next": 0.5, "induction": 0.5, "positional": 0.5, "first": 0.5, "broad": 0.8}
NOTHING = "nothing"  # the kind of a head that writes nothing, whatever it reads


class Undefined(RegardError):
    """A measure that has no meaning for this trace."""


@dataclass(frozen=True, eq=False, slots=True)
class Rollout:
    """A mixing estimate: the share of each key bin in what stands at each row bin after the last layer.

    `weights` is B x rows x keys. Where one text reads another, `own` is the share of the rows' own text, and the two
    together sum to 1 along a row; else it is None.
    """

    rows: str
    keys: str
    bin: tuple[int, int]  # row and key width
    weights: Tensor
    own: Tensor | None


def rollout(trace: Trace, bins: int | tuple[int, int] = 128) -> Rollout:
    """Attention rollout (Abnar & Zuidema 2020), streaming: Y <- Y / 2 + mean_h P_h Y / 2, from Y = the key bins.

    That is the product of all (I + mean_h P_h) / 2 with the bins, in O(n G) memory. It takes each layer for an even
    mixture of what comes from below and what attention reads, and knows nothing of values and feed-forward layers:
    a mixing estimate, not an explanation. A decoder's rows begin as themselves and read the encoder's rollout
    through every cross attention.

    >>> from regard.layers.attention import SelfAttention
    >>> from regard.look.collect import observe
    >>> layer = SelfAttention(8, num_heads=2)
    >>> with observe(layer) as trace:
    ...     _ = layer(torch.randn(1, 5, 8))
    >>> rollout(trace).weights.shape
    torch.Size([1, 5, 5])
    """
    crosses, decoder = [view for view in trace if view.kind == "cross"], decoder_layers(trace)
    if not len(trace):
        raise Undefined("there is nothing to roll out", got="a trace without attention layers")
    end = crosses[-1] if crosses else trace[-1]
    row_bins, key_bins = (bins, bins) if isinstance(bins, int) else bins
    width, key_width = bin_width(end.shape[2], row_bins), bin_width(end.shape[3], key_bins)
    source, own = _one_hot(end.shape[3], key_width, end), _one_hot(end.shape[2], width, end)
    bins_read = source.shape[2]
    target = F.pad(own, (bins_read, 0))  # a decoder's row holds bins of the source, none yet, then of its own text
    for view in trace:
        if view.kind == "cross":
            target = _mix(view, target, F.pad(source, (0, own.shape[2])))
        elif view.name in decoder:
            target = _mix(view, target, target)
        else:
            source = _mix(view, source, source)
    mixed = _pool(target if crosses else source, (end.confidence > 0).any(1), width)
    read, kept = mixed[:, :, :bins_read], mixed[:, :, bins_read:] if crosses else None
    return Rollout(end.rows_axis, end.keys_axis, (width, key_width), read, kept)


def _mix(view: View, mine: Tensor, read: Tensor) -> Tensor:
    """One layer: half of what was there, half of what the heads read on average."""
    if (mine.shape[1], read.shape[1]) != view.shape[2:]:
        got, wanted = f"{view.shape[2]} rows, {view.shape[3]} keys", f"{mine.shape[1]} rows, {read.shape[1]} keys"
        raise Undefined("rollout needs layers over the same places", got=got, wanted=wanted, where=view.name)
    mixed = torch.empty_like(mine, memory_format=torch.contiguous_format)
    for rows in strips(view):
        part = slice(rows.start, rows.stop)
        weights = view.rows(rows).mean(1)  # B x R x M
        taken = weights.sum(-1, keepdim=True) / 2  # a half, or less where heads read nowhere: the rest stays
        mixed[:, part] = (1 - taken) * mine[:, part] + weights @ read / 2
    return mixed


def decoder_layers(trace: Trace) -> set[str]:
    """The names of the self-attentions that stand in one stack with cross-attentions: a decoder's."""
    crosses = [view for view in trace if view.kind == "cross"]
    others = [view for view in trace if view.kind != "cross"]
    stacks, axes = {_stack(view.name) for view in crosses}, {view.rows_axis for view in crosses}
    return {view.name for view in others if (view.rows_axis in axes if view.rows_axis else _stack(view.name) in stacks)}


def _stack(name: str) -> str:
    """The path to the numbered blocks that a layer is in.

    >>> _stack("model.decoder.layers.0.encoder_attn")
    'model.decoder.layers'
    """
    parts = name.split(".")
    return ".".join(parts[: next((i for i, part in enumerate(parts) if part.isdigit()), 1)])


def strips(view: View) -> Iterator[range]:
    """The rows, so many at a time that their weights fit into `STRIP`."""
    batch, heads, rows, keys = view.shape
    height = max(1, STRIP // (batch * heads * keys))
    return (range(start, min(rows, start + height)) for start in range(0, rows, height))


def _one_hot(length: int, width: int, view: View) -> Tensor:
    places = torch.arange(length, device=view.confidence.device)
    return F.one_hot(places // width).to(view.confidence.dtype).expand(view.shape[0], -1, -1)


def _pool(rows: Tensor, real: Tensor, width: int) -> Tensor:
    """The mean of the real rows of each bin: B x N x G -> B x bins x G."""
    membership = F.one_hot(torch.arange(rows.shape[1], device=rows.device) // width).T * real[:, None]  # B x bins x N
    return membership.to(rows.dtype) @ rows / membership.sum(-1, keepdim=True).clamp(min=1)


def head_scores(view: View, ids: Tensor | None = None) -> list[dict[str, float | None]]:
    """What each head does on average over the rows that read, in plain numbers.

    A score that has no meaning, or that a saved view cannot give, is None.

    - previous, next: the weight on the key before and after the row's own place (self-attention only);
    - induction: the weight on the key after the last earlier place of the row's token (`ids` B x N, negative = none);
    - offset, positional: how far from the row the largest weight is most often found, and the weight there;
    - first: the weight on key 0, the sink; in self-attention without row 0, whose own place that is;
    - entropy (nats), and evenness: the entropy by its largest value, the log of the number of keys that a row sees;
    - confidence: the largest weight (Voita et al. 2019, who leave out </s>); distance: the expected |i - j|.

    >>> from regard.layers.attention import SelfAttention
    >>> from regard.look.collect import observe
    >>> layer = SelfAttention(8, num_heads=2)
    >>> with observe(layer) as trace:
    ...     _ = layer(torch.zeros(1, 5, 8))
    >>> [round(head["evenness"], 3) for head in head_scores(trace[0])]
    [1.0, 1.0]
    """
    real, own = view.confidence > 0, view.kind == "self"
    place = torch.arange(view.shape[2], device=real.device)
    keys = induction_keys(ids) if own and ids is not None else None
    offset, weight_there = _positional(view, real)
    visible = _if_saved(_visible, view)
    scores = {
        "previous": _mean(view.diagonal(-1), real & (place >= 1)) if own else None,
        "next": _mean(view.diagonal(1), real & (place + 1 < view.shape[3])) if own else None,
        "induction": None if keys is None else _if_saved(_induction, view, keys, real),
        "positional": weight_there,
        "offset": offset,
        "first": _mean(view.first(), real & (place >= 1) if own else real),
        "entropy": _mean(view.entropy, real),
        "evenness": None if visible is None else _mean(view.entropy / visible.log(), real & (visible > 1)),
        "confidence": _mean(view.confidence, real),
        "distance": _mean(view.distance, real),
    }
    nothing = torch.full((view.shape[1],), math.nan)  # as a mean over nothing is; JSON does not know it
    lists = [(nothing if score is None else score).tolist() for score in scores.values()]
    heads = [dict(zip(scores, values, strict=True)) for values in zip(*lists, strict=True)]
    return [{name: None if math.isnan(value) else value for name, value in head.items()} for head in heads]


def head_kinds(scores: Mapping[str, float | None]) -> list[str]:
    """The names that one head's scores earn it, by the thresholds of `KINDS`.

    >>> head_kinds({"previous": 0.9, "positional": 0.9, "offset": -1.0, "first": 0.1, "evenness": 0.2})
    ['previous']
    """
    measured = {**scores, "broad": scores.get("evenness")}
    reached = [kind for kind, least in KINDS.items() if (measured.get(kind) or 0.0) >= least]
    # previous and next are positional too, and say more
    return [kind for kind in reached if kind != "positional" or not {"previous", "next"} & set(reached)]


def gives_nothing(view: View, head: int) -> bool:
    """Whether a head writes nothing wherever it reads, as one that was pruned: what it reads makes it no kind."""
    norms = view.value_norms
    return norms is not None and norms.shape[-1] > 0 and not bool(norms[0, head].any())


def induction_keys(ids: Tensor) -> Tensor:
    """For each token the place after its last earlier occurrence, -1 where it is new: B x N -> B x N.

    >>> induction_keys(torch.tensor([[5, 7, 5, 5, 7]])).tolist()
    [[-1, -1, 1, 3, 2]]
    """
    order = ids.argsort(dim=1, stable=True)  # equal tokens side by side, in the order of the text
    values = ids.gather(1, order)
    repeated = F.pad((values[:, 1:] == values[:, :-1]) & (values[:, 1:] >= 0), (1, 0))
    after = F.pad(order[:, :-1] + 1, (1, 0))
    return torch.empty_like(order).scatter_(1, order, torch.where(repeated, after, -1))


def _if_saved(measure: Callable[..., Tensor], *asked: Any) -> Tensor | None:
    try:
        return measure(*asked)
    except NotSaved:
        return None


def _induction(view: View, keys: Tensor, real: Tensor) -> Tensor:
    return _mean(view.pairs(keys), real & (keys >= 0)[:, None])


def _positional(view: View, real: Tensor) -> tuple[Tensor, Tensor]:
    """The key - row at which each head's largest weight lies most often, and the mean weight there: H and H."""
    (_, heads, rows, keys), device = view.shape, real.device
    offsets, place = torch.arange(1 - rows, keys, device=device), torch.arange(rows, device=device)
    number = (view.top(1)[1][..., 0] - place + rows - 1).masked_fill(~real, 0)  # of each row's offset among all
    counts = torch.zeros(heads, len(offsets), dtype=torch.long, device=device)
    counts.scatter_add_(1, number.transpose(0, 1).flatten(1), real.transpose(0, 1).flatten(1).long())
    # of equals the nearest, then the earlier
    usual = offsets[(counts * 4 * len(offsets) - 2 * offsets.abs() - (offsets > 0).long()).argmax(1)]
    weight = torch.full((heads,), math.nan, dtype=torch.float64, device=device)
    for offset in usual.unique().tolist():
        inside, there = (place + offset >= 0) & (place + offset < keys), _if_saved(view.diagonal, offset)
        if there is not None:
            weight = torch.where(usual == offset, _mean(there, real & inside), weight)
    return usual.double(), weight


def _visible(view: View) -> Tensor:
    """How many keys each row sees, by the mask where it is known, else by the weights above 0: B x H|1 x N."""
    call = getattr(view, "call", None)
    if not isinstance(call, Call):
        return torch.cat([(view.rows(rows) > 0).sum(-1) for rows in strips(view)], dim=2)
    if call.mask is None:
        return torch.full((1, 1, view.shape[2]), view.shape[3], device=call.q.device)
    places = [call.query_positions[..., rows.start : rows.stop] for rows in strips(view)]
    blocks = [call.mask.block(part, call.key_positions).sum(-1).expand(-1, -1, part.shape[-1]) for part in places]
    return torch.cat(blocks, dim=2)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """The mean over batch and rows, of the counted ones: B x H x N -> H; nan where there are none."""
    return torch.where(counted, values.double(), 0.0).sum((0, 2)) / counted.expand_as(values).sum((0, 2))


@dataclass(frozen=True, slots=True)
class Alignment:
    """Which key each row reads most, by one cross-attention head."""

    layer: int  # in the trace
    head: int | None  # None: the mean of the layer's heads
    pairs: tuple[tuple[tuple[int, int], ...], ...]  # for each batch row: (row, key)


def alignment(trace: Trace, layer: int | None = None, head: int | None = None) -> Alignment:
    """The hard alignment by the most informative cross-attention head, or by a layer's head, or by its heads' mean.

    Row i of a decoder has just read one token and writes the next. Heads that read for the token before are passed over
    where there are others, and so are heads that were pruned, whose reading changes nothing; of a head that is asked
    for by name, whose alignment it is, is for the reader to say.

    >>> from regard.layers.attention import CrossAttention
    >>> from regard.look.collect import observe
    >>> layer = CrossAttention(8, num_heads=2)
    >>> with observe(layer) as trace:
    ...     _ = layer(torch.randn(1, 3, 8), layer.project(torch.randn(1, 5, 8)))
    >>> [row for row, key in alignment(trace).pairs[0]]
    [0, 1, 2]
    """
    if layer is None and head is not None:
        raise RegardError("a head is one of a layer", got=f"head {head} without a layer", wanted="layer and head")
    if layer is None:
        crosses = {i: view for i, view in enumerate(trace) if view.kind == "cross"}
        if not crosses:
            raise Undefined("there is no alignment", got="no cross-attention", wanted="one text that reads another")
        worth = torch.cat([information(view).cpu() for view in crosses.values()])
        heard = torch.cat([is_heard(view) for view in crosses.values()])
        ahead = heard & torch.cat(reads_ahead(list(crosses.values())))
        if not heard.any():
            raise Undefined("there is no alignment", got="cross-attention that writes nothing", wanted="one that does")
        best = int(worth.masked_fill(~(ahead if ahead.any() else heard), -math.inf).argmax())
        layer, head = [(i, h) for i, view in crosses.items() for h in range(view.shape[1])][best]
    view = trace[layer]
    if head is None:
        most = [view.rows(rows).mean(1).max(-1) for rows in strips(view)]
        weights, keys = torch.cat([part[0] for part in most], 1), torch.cat([part[1] for part in most], 1)
    else:
        weights, keys = (found[:, head, :, 0] for found in view.top(1))
    rows = keys.masked_fill(weights == 0, -1).tolist()
    return Alignment(layer, head, tuple(tuple((i, key) for i, key in enumerate(row) if key >= 0) for row in rows))


def is_heard(view: View) -> Tensor:
    """Whether each head writes anything: not one whose part of the output projection is 0, as pruning leaves it: H."""
    norms = view.value_norms
    return torch.ones(view.shape[1], dtype=torch.bool) if norms is None else (norms > 0).any(-1).any(0).cpu()


def reads_ahead(views: Sequence[View]) -> list[Tensor]:
    """Whether each head reads for the token that its row writes, not for the one that the row has just read: H a view.

    Most heads of a decoder prepare what comes next. One that looks up what was read shows what they showed a row
    before, so it agrees better with the row before of all others than with their own row. True for all where none is
    ahead, or layers cannot be compared.
    """
    (batch, _, rows, keys), counts = views[0].shape, [view.shape[1] for view in views]
    here, before = torch.zeros(2, sum(counts), dtype=torch.float64)
    if {(view.shape[0], *view.shape[2:]) for view in views} == {(batch, rows, keys)}:
        height = max(1, STRIP // (batch * sum(counts) * keys))
        for start in range(1, rows, height):
            part = range(start - 1, min(rows, start + height))
            weights = torch.cat([view.rows(part) for view in views], dim=1)  # and the row before them
            others = weights.sum(1, keepdim=True) - weights
            here += (weights[:, :, 1:] * others[:, :, 1:]).sum((0, 2, 3), dtype=torch.float64).cpu()
            before += (weights[:, :, 1:] * others[:, :, :-1]).sum((0, 2, 3), dtype=torch.float64).cpu()
    ahead = before <= 1.01 * here  # heads that rest on one key agree with all rows alike, but for rounding
    return list((ahead | ~ahead.any()).split(counts))


def information(view: View) -> Tensor:
    """The mutual information of row and key, H(mean_i P_i) - mean_i H(P_i) in nats: H.

    High where each row reads few keys and different rows read different ones, as an alignment does. A head that
    rests on one key, or reads all evenly, has none.
    """
    counts = (view.confidence > 0).sum(-1)  # B x H
    keys = _entropy(view.received / counts.clamp(min=1)[..., None])
    return (keys - view.entropy.sum(-1) / counts.clamp(min=1)).mean(0)


def alignment_error(
    pairs: Collection[tuple[int, ...]], sure: Collection[tuple[int, ...]], possible: Collection[tuple[int, ...]] = ()
) -> float:
    """The alignment error rate, 1 - (|A & S| + |A & P|) / (|A| + |S|) (Och & Ney 2003); sure links are possible too.

    For many texts give each pair its text's number: (text, row, key).

    >>> alignment_error({(0, 0), (1, 2)}, sure={(0, 0)}, possible={(1, 1)})
    0.33333333333333337
    """
    found, must = set(pairs), set(sure)
    total = len(found) + len(must)
    return 1 - (len(found & must) + len(found & (must | set(possible)))) / total if total else 0.0


def _entropy(weights: Tensor) -> Tensor:
    return torch.special.entr(weights).sum(-1)  # type: ignore[no-any-return]
