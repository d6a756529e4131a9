"""Attention among tokens that are near: of one bucket of a random hash, or of one part of the text.

    h(x) = argmax([x R ; -x R])                        vectors of a small angle fall into one bucket   (Kitaev et al.
    o_i  = sum_r exp(z_i^r - log sum_s exp z_i^s) o_i^r                over the rounds of hashing         2020, eq. 6)

Tokens are laid out in the order of their buckets and cut into chunks; a chunk reads itself and those beside it, and a
round's z_i is the log-sum-exp of its scores. Queries and keys are one vector, so that a token would find itself before
all others: it reads itself only where it finds nothing else. Local attention is the same with the text's own order.
What is scored here is weighed and read as everywhere.

Shapes: B batch, H heads, R rounds of hashing, N tokens, L tokens in whole chunks, C chunks of c tokens, W keys that a
chunk reads, d head width. Places are those in the text; whatever stands at N and beyond fills the last chunk up.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.attention import read, score, weigh
from regard.ops.call import Scattered

LAST = -1e5  # the score of a token for itself: far under all others, and yet not nothing


@dataclass(frozen=True, slots=True)
class Near:
    """How far a token looks: the chunk that it is in, some before and some after; in a causal one never ahead."""

    chunk: int
    before: int = 1
    after: int = 0
    causal: bool = True

    @property
    def width(self) -> int:
        """W: how many keys that is."""
        return self.chunk * (self.before + 1 + self.after)

    def of_one(self, length: int) -> Near:
        """The same where all is one chunk of this length."""
        return replace(self, chunk=length, before=0, after=0)


Weights = Callable[[], Scattered]  # what was weighed, made for who observes


# --- hashes -----------------------------------------------------------------------------------------------------------


def padded_length(length: int, chunks: Sequence[int]) -> int:
    """The length of a text filled up to whole chunks of all these lengths; one within the shortest stays as it is.

    >>> padded_length(5, [4, 6]), padded_length(3, [4, 6]), padded_length(24, [4, 6])
    (12, 3, 24)
    """
    whole = math.lcm(*chunks)
    return length if length <= min(chunks) else -(-length // whole) * whole


def usual_buckets(length: int, chunk: int, max_length: int) -> tuple[int, ...]:
    """Two buckets a chunk, as a power of two; as two factors where that is many for the chunks of the longest text.

    >>> usual_buckets(256, 64, 4096), usual_buckets(65536, 64, 65536)
    ((8,), (32, 64))
    """
    bits = (2 * max(1, length // chunk)).bit_length() - 1
    if 2**bits <= 2 * max(math.isqrt(max_length // chunk), chunk):
        return (2**bits,)
    return 2 ** (bits // 2), 2 ** (bits - bits // 2)


def draw_rotations(like: Tensor, shape: tuple[int, int, int, int], seed: int | None = None) -> Tensor:
    """Random directions to hash by, 1 x heads x width x rounds x directions; the same ones each time for a seed.

    >>> draw_rotations(torch.zeros(1), (2, 8, 1, 4), seed=3).shape
    torch.Size([1, 2, 8, 1, 4])
    """
    if seed is None:
        return torch.randn(1, *shape, dtype=like.dtype, device=like.device)
    return _seeded(shape, seed, like.dtype, like.device)


@functools.lru_cache(maxsize=64)
def _seeded(shape: tuple[int, ...], seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # kept, so that a pass that is captured as a CUDA graph seeds nothing
    with torch.inference_mode(False):
        generator = torch.Generator(device).manual_seed(seed)
        return torch.randn(1, *shape, generator=generator, dtype=dtype, device=device)


@torch.no_grad()
def hash_buckets(x: Tensor, rotations: Tensor, counts: Sequence[int]) -> Tensor:
    """The bucket of each vector (B x H x N x d) in each round, B x H x R x N: 0 .. the product of `counts` - 1.

    `rotations` is B|1 x H x d x R x directions, half as many of these as the sum of `counts`. With several counts a
    bucket is as many numbers, each hashed by its own directions.

    >>> x = torch.randn(1, 2, 5, 8)
    >>> hash_buckets(torch.cat([x, 2 * x]), draw_rotations(x, (2, 8, 3, 4)), [2, 6]).diff(dim=0).abs().sum().item()
    0
    """
    turned = torch.einsum("bhnd,bhdrk->bhrnk", x, rotations.to(x.dtype))
    found, factor = torch.zeros(turned.shape[:-1], dtype=torch.long, device=x.device), 1
    for count, part in zip(counts, turned.split([count // 2 for count in counts], dim=-1), strict=True):
        found += factor * torch.cat([part, -part], dim=-1).argmax(-1)
        factor *= count
    return found


def sort_by_bucket(buckets: Tensor, lengths: Tensor, length: int) -> Tensor:
    """The places of each round by their buckets, B x H x R x L, in one bucket by their order; padding comes last."""
    buckets = F.pad(buckets, (0, length - buckets.shape[-1]))
    real = torch.arange(length, device=buckets.device) < lengths[:, None, None, None]
    return buckets.masked_fill(~real, torch.iinfo(buckets.dtype).max).argsort(dim=-1, stable=True)


# --- whole texts ------------------------------------------------------------------------------------------------------


def attend_hashed(
    q: Tensor,
    v: Tensor,
    order: Tensor | None,
    near: Near,
    *,
    lengths: Tensor,
    segments: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Weights]:
    """What each token reads among those beside it in `order` (`sort_by_bucket`), B x H x N x d, all rounds together.

    Without an order all tokens are one chunk. Texts of one row (`segments`, B x N) do not see each other.

    >>> q, v = torch.randn(2, 1, 2, 6, 8)
    >>> out, weights = attend_hashed(q, v, None, Near(6), lengths=torch.tensor([6]))
    >>> torch.allclose(weights().dense() @ v, out, atol=1e-6)
    True
    """
    num_tokens = q.shape[2]
    if order is None:
        out, found = _attend_laid_out(
            q, shared_keys(q), v, _places(q), near.of_one(num_tokens), lengths, segments, shared=True, dropout=dropout
        )
        return out, lambda: Scattered(found.weights, found.keys, num_tokens)
    rounds, length = order.shape[2:]
    places = order.flatten(2).long()
    q, v = _at(q, places), _at(v, places)
    out, found = _attend_laid_out(q, shared_keys(q), v, places, near, lengths, segments, shared=True, dropout=dropout)
    back = _inverse(order)[..., :num_tokens, None]

    def by_place(x: Tensor) -> Tensor:
        """B x H x (R L) x .. as laid out -> B x H x R x N x .. as in the text."""
        x = x.unflatten(2, (rounds, length))
        return x.gather(3, back.expand(*back.shape[:4], x.shape[-1]))

    lse = by_place(found.lse)
    out, share = by_place(out), (lse - lse.logsumexp(2, keepdim=True)).exp()  # rounded as in `attend_listed`

    def weights() -> Scattered:
        each, keys = (share * by_place(found.weights)), by_place(found.keys.expand_as(found.weights))
        return Scattered(_by_row(each), _by_row(keys), num_tokens)

    return (out * share.to(out.dtype)).sum(2), weights


def attend_local(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    near: Near,
    *,
    lengths: Tensor,
    segments: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Weights]:
    """What each token reads in its own part of the text and those beside it: B x H x N x d."""
    num_tokens = q.shape[2]
    length = padded_length(num_tokens, [near.chunk])
    near = near if length > near.chunk else near.of_one(length)
    q, k, v = (F.pad(x, (0, 0, 0, length - num_tokens)) for x in (q, k, v))
    out, found = _attend_laid_out(q, k, v, _places(q), near, lengths, segments, shared=False, dropout=dropout)

    def weights() -> Scattered:
        return Scattered(found.weights[:, :, :num_tokens], found.keys[:, :, :num_tokens], num_tokens)

    return out[:, :, :num_tokens], weights


def shared_keys(q: Tensor) -> Tensor:
    """The keys of a layer whose queries are its keys: the same vectors, all of one length."""
    return F.rms_norm(q, q.shape[-1:], eps=1e-6)


@dataclass(frozen=True, slots=True)
class _Found:
    """What was weighed, by the rows as they were laid out."""

    weights: Tensor  # B x H x (C c) x W
    keys: Tensor  # B|1 x H|1 x (C c) x W, the places in the text
    lse: Tensor  # B x H x (C c) x 1


def _attend_laid_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    places: Tensor,
    near: Near,
    lengths: Tensor,
    segments: Tensor | None,
    *,
    shared: bool,
    dropout: float,
) -> tuple[Tensor, _Found]:
    """Attention of each chunk of q, k and v (B x H x L x d) that stand at `places` (B|1 x H|1 x L)."""
    rows = places.unflatten(2, (-1, near.chunk))
    keys = _beside(rows, near)
    q = q.unflatten(2, (-1, near.chunk))
    k, v = (_beside(x.unflatten(2, (-1, near.chunk)), near) for x in (k, v))
    at, of = rows[..., :, None], keys[..., None, :]  # B|1 x H|1 x C x c x 1 and C x 1 x W
    # padding stands at the right, where no real token of a causal text looks
    allowed = of <= at if near.causal else of < lengths[:, None, None, None, None]
    if segments is not None:
        first = torch.arange(len(segments), device=q.device)[:, None, None, None]
        texts = [segments[first, x.clamp(max=segments.shape[1] - 1)] for x in (rows, keys)]
        allowed = allowed & (texts[0][..., :, None] == texts[1][..., None, :])
    out, weights, lse = attend_listed(q, k, v, allowed, own=at == of if shared else None, dropout=dropout)
    seen = keys[..., None, :].expand(*rows.shape, -1)
    return out.flatten(2, 3), _Found(*(x.flatten(2, 3) for x in (weights, seen, lse)))


def attend_listed(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, *, own: Tensor | None, dropout: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of .. x c queries to .. x W keys: what was read, the weights, and the log-sum-exp of the scores.

    `own` says where a query is the key itself, which then counts only where nothing else is allowed. Without it there
    are no rounds to be joined, and the log-sum-exp is left at 0.
    """
    scores = score(q, k)
    scores = scores.float() if scores.dtype.itemsize < 4 else scores
    if own is None:
        weights = weigh(scores, allowed)
        lse = weights.new_zeros(*weights.shape[:-1], 1)
    else:
        scores = scores.masked_fill(own, LAST).masked_fill(~(allowed | own), -math.inf)
        # Written out and not as a softmax: where a token is alone in all rounds, or finds itself twice, LAST takes the
        # last digits of a float32. Others' models round so, and what reads such a token sees it.
        lse = scores.logsumexp(-1, keepdim=True)
        weights = (scores - lse).exp()
    dropped = torch.dropout(weights, dropout, train=True) if dropout else weights
    return read(dropped.to(v.dtype), v), weights, lse


def _beside(x: Tensor, near: Near) -> Tensor:
    """Each chunk of B x H x C x c x .. with those before and after it, B x H x C x W x ..; after the last the first.

    Where that is more chunks than there are, some are read twice: so do the models whose weights we exchange.
    """
    chunks = x.shape[2]
    # and a turn by more than there are is none
    turns = [i if abs(i) <= chunks else 0 for i in range(-near.before, near.after + 1)]
    return torch.cat([x.roll(-i, dims=2) if i else x for i in turns], dim=3) if len(turns) > 1 else x


def _places(x: Tensor) -> Tensor:
    return torch.arange(x.shape[2], device=x.device)[None, None]


def _at(x: Tensor, places: Tensor) -> Tensor:
    """The vectors at these places; beyond the last, the last one again, which is masked as padding."""
    index = places.clamp(max=x.shape[2] - 1)[..., None]
    return x.gather(2, index.expand(*places.shape, x.shape[-1]))


def _by_row(x: Tensor) -> Tensor:
    """B x H x R x N x W -> B x H x N x (R W)."""
    return x.transpose(2, 3).flatten(3)


def _inverse(order: Tensor) -> Tensor:
    order = order.long()
    places = torch.arange(order.shape[-1], device=order.device)
    return torch.empty_like(order).scatter_(-1, order, places.expand_as(order))


# --- steps ------------------------------------------------------------------------------------------------------------


def window_by_bucket(buckets: Tensor, positions: Tensor, near: Near) -> tuple[Tensor, Tensor]:
    """The keys of tokens that come one by one, B x H x R x n x W, and which of them are meant.

    A token at one of `positions` (B x n) is put among all that were before it by its bucket (B x H x T x R, its own at
    its place) and reads its chunk of them and the one before; beyond the end of that order, from its beginning. While
    all are one chunk it reads them all.
    """
    buckets = buckets.transpose(2, 3)[..., None, :]  # B x H x R x 1 x T
    places, offsets = (torch.arange(n, device=buckets.device) for n in (buckets.shape[-1], near.width))
    at = positions[:, None, None, :, None]
    own = buckets.expand(*buckets.shape[:3], positions.shape[1], -1)
    own = own.gather(-1, at.expand(*own.shape[:4], 1))
    seen = places <= at
    order = buckets.masked_fill(~seen, torch.iinfo(buckets.dtype).max).argsort(dim=-1, stable=True)
    rank = (seen & (buckets <= own)).sum(-1, keepdim=True) - 1
    index = ((rank // near.chunk - near.before) * near.chunk + offsets) % (at + 1)
    whole = at < near.chunk
    return torch.where(whole, offsets.clamp(max=len(places) - 1), order.gather(-1, index)), ~whole | (offsets <= at)


def window_before(positions: Tensor, near: Near) -> tuple[Tensor, Tensor]:
    """The same for local attention: B x 1 x 1 x n x W."""
    at = positions[:, None, None, :, None]
    keys = (at // near.chunk - near.before) * near.chunk + torch.arange(near.width, device=positions.device)
    return keys.clamp(min=0), (keys >= 0) & (keys <= at)


def attend_window(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: tuple[Tensor, Tensor], *, shared: bool
) -> tuple[Tensor, Weights]:
    """What tokens at `positions` (B x n) read of the k and v (B x H x T x d) in their windows: B x H x n x d."""
    (keys, allowed), (num_heads, num_keys) = window, k.shape[1:3]
    shape = (len(q), num_heads, *keys.shape[2:])  # B x H x R x n x W
    index = keys.clamp(max=num_keys - 1).expand(shape).flatten(2)
    k, v = (x.gather(2, index[..., None].expand(*index.shape, x.shape[-1])).unflatten(2, shape[2:]) for x in (k, v))
    own = (keys == positions[:, None, None, :, None])[..., None, :] if shared else None
    q = q[:, :, None, :, None].expand(*shape[:4], 1, -1)
    out, weights, lse = attend_listed(q, k, v, allowed[..., None, :], own=own)  # B x H x R x n x 1 x ..
    share = lse.softmax(2)

    def scattered() -> Scattered:
        each, seen = (share * weights).squeeze(4), index.unflatten(2, shape[2:])
        return Scattered(_by_row(each), _by_row(seen), num_keys)

    return (out * share.to(out.dtype)).sum(2).squeeze(3), scattered
