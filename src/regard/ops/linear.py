"""Linear attention (Katharopoulos et al. 2020): a similarity that is a product, so that keys are summed up once.

    phi(x)  = elu(x) + 1
    out_i   = phi(q_i) S_i / phi(q_i) z_i        S_i = sum_j phi(k_j) v_j^T,   z_i = sum_j phi(k_j)

over all keys j, or, where it is causal, over j <= i. Nothing has the size of the matrix; a text that goes on needs S
and z alone. z is S's last column here, as every value is given a 1 at its end. A causal text is cut into chunks of C:
inside of one the scores are written out (C x C), and what was before it is one S.

Shapes: B batch, H query heads, K key heads, G = H / K, N queries, M keys, d head width, e value width + 1.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import BackendError
from regard.ops.attention import is_observed, record_call
from regard.ops.call import Call
from regard.ops.masks import Band, Lengths, Mask, Segments
from regard.ops.terms import ScoreMod

CHUNK = 64


def features(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1; as exp(x) below 0, where adding the 1 would round it away.

    >>> features(torch.tensor([1.0, 0.0])).tolist()
    [2.0, 1.0]
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def attend_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    state: Tensor | None = None,
    projection: Tensor | None = None,
) -> Tensor:
    """phi(q) sum phi(k) v^T / phi(q) sum phi(k), over the keys that the mask allows: B x H x N x d.

    The mask may be causal, padding, and with causal also same_segment (of texts that stand one after the other).
    `state` (`new_state`) holds what was read before: the queries go on from there, causally, and it is brought up to
    date in place. `projection` is for who observes, as in `attend`.

    >>> q = k = v = torch.randn(1, 2, 5, 8)
    >>> attend_linear(q, k, v).shape
    torch.Size([1, 2, 5, 8])
    """
    form = _Form.of(mask)
    wide = torch.promote_types(torch.float32, q.dtype)
    # sums over a whole text are not for 16 bits; where nothing is computed there is no autocast either
    with contextlib.nullcontext() if q.is_meta else torch.autocast(q.device.type, enabled=False):
        fq = features(q.to(wide)).unflatten(1, (k.shape[1], -1))  # B x K x G x N x d
        fk, ones = features(k.to(wide)), v.new_ones((*v.shape[:3], 1), dtype=wide)
        if form.lengths is not None:
            places = torch.arange(k.shape[2], device=k.device)
            fk = fk * (places < form.lengths[:, None])[:, None, :, None]
        values = torch.cat([v.to(wide), ones], dim=-1)
        sums = _causal(fq, fk, values, form.segments, state) if form.causal else fq @ (fk.mT @ values)[:, :, None]
        sums, total = sums.flatten(1, 2).split([v.shape[3], 1], dim=-1)
        # a row that may read nothing has a total of 0, and so has one all of whose features vanished
        out: Tensor = (sums / total.masked_fill(total == 0, 1.0)).to(v.dtype)
    if is_observed():
        _record(q, k, v, mask, state, projection, out)
    return out


def new_state(rows: int, num_kv_heads: int, head_dim: int, like: Tensor) -> Tensor:
    """What a text that was not begun remembers: B x K x d x e."""
    wide = torch.promote_types(torch.float32, like.dtype)
    return like.new_zeros((rows, num_kv_heads, head_dim, head_dim + 1), dtype=wide)


def _causal(q: Tensor, k: Tensor, v: Tensor, segments: Tensor | None, state: Tensor | None) -> Tensor:
    """The sums over j <= i: B x K x G x N x e."""
    # a graph that is exported is asked for other lengths than it was traced with
    length, size = q.shape[3], CHUNK if torch.compiler.is_exporting() else max(min(CHUNK, q.shape[3]), 1)
    q, k, v = (_cut(x, size) for x in (q, k, v))  # .. x chunks x C x ..
    near, last = (q @ k[:, :, None].mT).tril(), k
    if segments is None:
        before = F.pad((last.mT @ v).cumsum(2), (0, 0, 0, 0, 1, 0))  # B x K x chunks + 1 x d x e
    else:
        places = torch.arange(k.shape[2] * size, device=k.device).clamp(max=length - 1)
        ids = segments[:, places].unflatten(1, (-1, size))  # B|1 x chunks x C
        near = near * (ids[..., None] == ids[..., None, :])[:, None, None]
        last = k * (ids == ids[..., -1:])[:, None, ..., None]  # only the text at a chunk's end goes on in the next
        before = _carried(last.mT @ v, ids)
        goes_on = F.pad(ids[:, 1:] == ids[:, :-1, -1:], (0, 0, 1, 0))
        q = q * goes_on[:, None, None, ..., None]
    if state is not None:
        before = before + state[:, :, None]
        state.copy_(before[:, :, -1])
    sums = near @ v[:, :, None] + q @ before[:, :, None, :-1]
    return sums.flatten(3, 4)[:, :, :, :length]


def _carried(added: Tensor, ids: Tensor) -> Tensor:
    """What stands before each chunk, and after the last, of the text that the chunk before it ends in."""
    whole = ids[..., 0] == ids[..., -1]  # B x chunks
    goes_on = F.pad(ids[:, 1:, 0] == ids[:, :-1, -1], (1, 0)) & whole
    carried = [torch.zeros_like(added[:, :, 0])]
    for each, on in zip(added.unbind(2), goes_on.unbind(1), strict=True):
        carried.append(carried[-1] * on[:, None, None, None] + each)
    return torch.stack(carried, dim=2)


def _cut(x: Tensor, size: int) -> Tensor:
    """.. x N x width -> .. x chunks x C x width, with zeros after the end."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % size)).unflatten(-2, (-1, size))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class _Form:
    """What a mask says, where it says no more than sums can do."""

    causal: bool = False
    lengths: Tensor | None = None
    segments: Tensor | None = None

    @classmethod
    def of(cls, mask: Mask | None) -> _Form:
        rules = () if mask is None else mask.rules
        lengths = [rule.lengths for rule in rules if isinstance(rule, Lengths)]
        segments = [rule.query for rule in rules if isinstance(rule, Segments) and rule.query is rule.key]
        causal = Band(None, 0) in rules
        known = causal + len(lengths) + (len(segments) if causal else 0)
        if known < len(rules) or len(segments) > 1:
            raise BackendError(
                "linear attention sums over keys, and cannot leave out some of them for each query",
                got=", ".join(type(rule).__name__ for rule in rules),
                wanted="causal(), padding(lengths), and with causal() also same_segment(ids)",
            )
        return cls(causal, *(found[0] if found else None for found in (lengths, segments)))


@dataclass(frozen=True, eq=False)
class LogKernel:
    """ln phi(q_i) . phi(k_j): the softmax of this alone is what linear attention weighs. Only for who observes."""

    keys: Tensor  # B x K x M x d

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        keys = features(self.keys.to(q.dtype)).index_select(2, key_positions)
        keys = keys.repeat_interleave(q.shape[1] // keys.shape[1], dim=1)
        return (features(q) @ keys.mT).log()

    def by_distance(self, q: Tensor, first: int, width: int, scale: float) -> None:
        return None

    def score_mod(self) -> ScoreMod | None:
        return None  # would need the queries inside the kernel


def _record(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, state: Tensor | None, projection: Tensor | None, out: Tensor
) -> None:
    if state is not None:
        raise BackendError(
            "linear attention that goes on from a state cannot be observed",
            got="the sum of what was read, without its parts",
            remedy="observe one forward pass over the finished text",
        )
    # the scale makes nothing of q . k, so that the kernel is all that is weighed
    record_call(Call(q, k, v, mask, (LogKernel(k.detach()),), 0.0, 0.0, None), out, projection)
