"""Every measure equals what the float64 matrix gives, for every mask, term, grouping and position.

Tolerance: 1e-5 in float32 and for bfloat16 inputs, whose numbers are measured in float32; relative where a value is
over 1 (distance, received, lse). The largest errors of the 200 cases are printed: pytest -s -k two_hundred.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.errors import ConfigError
from regard.ops import gpu, observe, strips
from regard.ops.attention import attend, reference
from regard.ops.call import Call
from regard.ops.masks import Mask, causal, padding, prefix, same_segment, visible, window
from regard.ops.observe import Measures, Observed, Weighed, bin_width, measure, observe_reference
from regard.ops.terms import Alibi, Buckets, Dense, RelativeKeys, SegmentKeys, Term, alibi_slopes

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5}


class Cases:
    """Random calls: shapes, masks, terms, positions, groups."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        torch.manual_seed(seed)

    def lengths(self, batch: int, most: int) -> Tensor:
        return torch.randint(0, most + 1, (batch,))

    def mask(self, b: int, h: int, places: int) -> Mask | None:
        ids = torch.randint(0, 3, (b, places)).sort(-1)[0]
        kinds: list[Callable[[], Mask]] = [
            causal,
            lambda: window(self.pick.randint(0, 20), self.pick.randint(0, 20)),
            lambda: causal() & window(self.pick.randint(0, 40)),
            lambda: padding(self.lengths(b, places)),
            lambda: prefix(self.lengths(b, places)),
            lambda: same_segment(ids, ids.flip(1) if self.pick.random() < 0.3 else None),
            lambda: visible(torch.rand(places, places) < 0.5),
            lambda: visible(torch.rand(b, h, places, places) < 0.1),
        ]
        chosen = [make() for make in self.pick.choices(kinds, k=self.pick.choice([0, 1, 1, 2]))]
        return None if not chosen else chosen[0] if len(chosen) == 1 else chosen[0] & chosen[1]

    def terms(self, b: int, h: int, places: int, d: int) -> list[Term]:
        kinds: list[Callable[[], Term]] = [
            lambda: Dense(torch.randn(1, h, places, places)),
            lambda: Dense(torch.randn(b, 1, places, places)),
            lambda: Alibi(alibi_slopes(h)),
            lambda: Buckets(torch.randn(8, h), True, 20),
            lambda: Buckets(torch.randn(6, h), False, 15),
            lambda: RelativeKeys(torch.randn(1, 9, d)),
            lambda: RelativeKeys(torch.randn(h, 2 * places + 1, d), torch.randn(h, d)),
            lambda: RelativeKeys(torch.randn(b, h, 9, d), None, 2),
            lambda: SegmentKeys(torch.randn(2, h, d), torch.randint(0, 2, (b, places)), torch.randn(h, d)),
        ]
        return [make() for make in self.pick.choices(kinds, k=self.pick.choice([0, 0, 0, 1, 2]))]

    def call(self) -> Call:
        b, kv, groups, d = (self.pick.choice(x) for x in ([1, 1, 2, 3], [1, 2, 3], [1, 1, 2, 4], [4, 8, 16]))
        n, m = (self.pick.choice([1, 2, 17, 64, 70, self.pick.randint(1, 300)]) for _ in range(2))
        m = n if self.pick.random() < 0.5 else m
        q, k, v = torch.randn(b, kv * groups, n, d), torch.randn(b, kv, m, d), torch.randn(b, kv, m, d)
        places = max(n, m) + 5
        positions = self.pick.choice(
            [None, None, torch.arange(n) + 3, torch.randint(0, places, (b, n)), torch.randint(0, places, (n,))]
        )
        terms = tuple(self.terms(b, kv * groups, places, d))
        scale = self.pick.choice([d**-0.5, 1.0, 2.0]) if not terms else d**-0.5
        return Call(q, k, v, self.mask(b, kv * groups, places), terms, scale, 0.0, positions)


def in_type(call: Call, dtype: torch.dtype) -> Call:
    """The same call with all of its numbers in this type."""

    def of_term(term: Term) -> Term:
        real = {n: x for n, x in vars(term).items() if isinstance(x, Tensor) and x.is_floating_point()}
        return replace(term, **{n: x.to(dtype) for n, x in real.items()})  # type: ignore[type-var]

    q, k, v = (x.to(dtype) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, terms=tuple(of_term(term) for term in call.terms))


def plain(q: Tensor, k: Tensor, v: Tensor | None = None, mask: Mask | None = None, *terms: Term) -> Call:
    return Call(q, k, k if v is None else v, mask, terms, q.shape[-1] ** -0.5, 0.0, None)


def answers(seen: Observed | Weighed, bins: tuple[int, int], keys: Tensor) -> dict[str, Tensor]:
    """All that a view can say, but the keys of `top`."""
    norms, weighted = seen.value_norms, seen.weighted_map(bins)
    assert norms is not None
    assert weighted is not None
    return {
        "lse": seen.lse,
        "entropy": seen.entropy,
        "confidence": seen.confidence,
        "distance": seen.distance,
        "received": seen.received,
        "top": seen.top(8)[0],
        "map": seen.map(128),
        "other map": seen.map(bins),
        "weighted map": weighted,
        "rows": seen.rows(range(seen.shape[2])),
        "diagonal": seen.diagonal(-1),
        "first": seen.first(),
        "pairs": seen.pairs(keys),
        "value norms": norms,
    }


def error(got: Tensor, wanted: Tensor) -> float:
    """The largest error, relative where the value is over 1; infinities must be the same ones."""
    assert got.shape == wanted.shape
    assert torch.equal(got.isinf(), wanted.isinf())
    got, wanted = (x.double().nan_to_num(posinf=0.0, neginf=0.0) for x in (got, wanted))
    assert not got.isnan().any()
    return ((got - wanted).abs() / wanted.abs().clamp(min=1)).max().item() if got.numel() else 0.0


def check_top(got: tuple[Tensor, Tensor], wanted: Weighed, tolerance: float) -> None:
    """The keys carry the weights that they should, each is another one, and -1 stands where no weight is."""
    weights, keys = got
    assert keys.dtype == torch.long
    assert torch.equal(keys == -1, weights == 0)
    assert torch.equal(weights, weights.sort(-1, descending=True)[0])
    carried = torch.nn.functional.pad(wanted.weights, (0, 1)).gather(-1, keys % (wanted.shape[3] + 1))
    assert error(carried, wanted.top(weights.shape[-1])[0]) < tolerance
    once = torch.where(keys == -1, -1 - torch.arange(keys.shape[-1]), keys).sort(-1)[0]
    assert (once.diff(dim=-1) > 0).all()


def compare(call: Call, row_lengths: Tensor | None, bins: tuple[int, int]) -> dict[str, float]:
    """The errors of the strips against the matrix in float64."""
    exact = in_type(call, torch.float64)
    heads, width = call.q.shape[1], call.v.shape[3]
    projection, keys = torch.randn(10, heads * width), torch.randint(-1, call.k.shape[2], call.q.shape[::2])
    got = Observed(call, row_lengths=row_lengths, projection=projection)
    wanted = observe_reference(exact, row_lengths=row_lengths, projection=projection.double())
    check_top(got.top(8), wanted, TOLERANCE[call.q.dtype])
    found, right = answers(got, bins, keys), answers(wanted, bins, keys)
    wide = torch.promote_types(call.q.dtype, torch.float32)
    assert all(x.dtype == wide and not x.requires_grad for x in found.values())
    return {name: error(found[name], right[name]) for name in right}


@pytest.mark.parametrize("rows_at_once", [1 << 10, 1 << 21])
def test_value_weighted_maps_are_exact_where_norms_differ_much(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink whose value is all but nothing shares its bin with keys that say much: no mean norm can tell."""
    monkeypatch.setattr(strips, "CPU_STRIP", rows_at_once)
    q, k, v = torch.randn(2, 4, 150, 8), torch.randn(2, 2, 150, 8), torch.randn(2, 2, 150, 8)
    k[:, :, 0], v[:, :, 0] = 6 * q[:, ::2].mean(2), 1e-6
    v[0, :, :40] = 0  # the first rows read nothing that has a norm
    seen = Observed(plain(q, k, v, causal()), row_lengths=torch.tensor([150, 77]), projection=torch.randn(20, 32))
    weights, norms = seen.rows(range(150)).double(), seen.value_norms
    assert norms is not None
    for bins in (128, 7, (3, 50)):
        row_width, key_width = (bin_width(150, n) for n in ((bins, bins) if isinstance(bins, int) else bins))
        scaled = weights * norms[:, :, None]
        right = strips.pool(scaled / scaled.sum(-1, keepdim=True).clamp(min=1e-30), 3, key_width)
        counts = strips.pool(torch.arange(150) < torch.tensor([[150], [77]]), 1, row_width).clamp(min=1)
        right = strips.pool(right, 2, row_width) / counts[:, None, :, None]
        assert error(weighted_of(seen, bins), right) < 1e-5
        assert error(weighted_of(observe_reference(seen.call, projection=seen._projection), bins)[:1], right[:1]) < 1e-5


def weighted_of(seen: Observed | Weighed, bins: int | tuple[int, int]) -> Tensor:
    found = seen.weighted_map(bins)
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_two_hundred_random_cases(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    worst: dict[str, float] = {}
    for seed in range(200 if dtype == torch.float32 else 40):
        cases = Cases(seed)
        call = in_type(cases.call(), dtype)
        # from strips of a row to one strip of everything
        monkeypatch.setattr(strips, "CPU_STRIP", 1 << cases.pick.choice([10, 13, 15, 21]))
        lengths = cases.lengths(len(call.q), call.q.shape[2]) if cases.pick.random() < 0.3 else None
        for name, value in compare(call, lengths, (cases.pick.randint(1, 40), cases.pick.randint(1, 40))).items():
            worst[name] = max(worst.get(name, 0.0), value)
            assert value < TOLERANCE[dtype], f"case {seed}: {name} is off by {value}"
    print(f"\n{dtype}", {name: f"{value:.1e}" for name, value in worst.items()})


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0), (1, 1, 1), (2, 1, 700), (1, 700, 1)])
@pytest.mark.parametrize("mask", [None, causal(), window(1), padding(torch.tensor([0]))], ids=["", "c", "w", "p"])
def test_nothing_and_little_to_attend_is_no_special_case(shape: tuple[int, int, int], mask: Mask | None) -> None:
    batch, rows, keys = shape
    call = plain(torch.randn(batch, 4, rows, 8), torch.randn(batch, 2, keys, 8), None, mask)
    assert max(compare(call, None, (3, 2)).values()) < 1e-5


def test_a_row_that_attends_nowhere_says_nothing_and_counts_nowhere() -> None:
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 300, 8)
    allowed = torch.ones(2, 6, 300, dtype=torch.bool)
    allowed[:, 2] = False
    allowed[1] = False
    for terms in ((), (Alibi(alibi_slopes(4)),)):
        seen = Observed(plain(q, k, None, visible(allowed), *terms), row_lengths=torch.tensor([5, 6]))
        silent = torch.tensor([[0, 0, 1, 0, 0, 1], [1] * 6]).bool()[:, None].expand(2, 4, 6)
        assert torch.equal(seen.lse == -torch.inf, silent)
        for name in ("entropy", "confidence", "distance"):
            assert not getattr(seen, name)[silent].any(), name
            assert getattr(seen, name)[~silent].all(), name
        assert not seen.rows(range(6))[silent].any()
        assert not seen.top(8)[0][silent].any()
        assert (seen.top(8)[1][silent] == -1).all()
        torch.testing.assert_close(seen.received.sum(-1), torch.tensor([4.0, 0.0])[:, None].expand(2, 4))
        torch.testing.assert_close(seen.map(2).sum(-1), torch.tensor([[1.0, 1.0], [0, 0]])[:, None].expand(2, 4, 2))


def test_a_bias_of_minus_infinity_masks() -> None:
    """As a foreign model may give it: a mask that comes as numbers to add."""
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    bias = torch.full((5, 5), -torch.inf).triu(1)[None, None]
    got = Observed(plain(q, k, None, None, Dense(bias)))
    wanted = Observed(plain(q, k, None, causal()))
    for name in ("lse", "entropy", "distance", "received"):
        torch.testing.assert_close(getattr(got, name), getattr(wanted, name))
    assert not got.map(128).triu(1).any()


def test_entropy_does_not_cancel() -> None:
    """Scores of a thousand, weights of almost one: the entropy of float64 to six digits, not 0 or noise."""
    q = torch.ones(1, 1, 1, 4) * 16
    k = torch.tensor([[62.5] * 4, [62.5, 62.5, 62.5, 62.0], [61.5, 62.5, 62.5, 62.5]])[None, None]
    got, wanted = (observe_of(plain(q.to(t), k.to(t))).entropy for t in (torch.float32, torch.float64))
    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=0)


def observe_of(call: Call) -> Observed | Weighed:
    return observe_reference(call) if call.q.dtype == torch.float64 else Observed(call)


def test_the_oracle_by_hand() -> None:
    """Two keys with scores 0 and ln 3 for row 0; a tie for row 1; nothing for row 2."""
    q, k = torch.tensor([1.0, 0, 5])[None, None, :, None], torch.tensor([1.0, 3]).log()[None, None, :, None]
    allowed = torch.tensor([[1, 1], [1, 1], [0, 0]]).bool()
    seen = observe_reference(Call(q, k, k, visible(allowed), (), 1.0, 0.0, None))
    assert seen.weights.flatten().tolist() == pytest.approx([0.25, 0.75, 0.5, 0.5, 0, 0])
    assert seen.lse.exp().flatten().tolist() == pytest.approx([4, 2, 0])
    entropy = torch.tensor([0.25, 0.75]).log().mul(torch.tensor([-0.25, -0.75])).sum().item()
    assert seen.entropy.flatten().tolist() == pytest.approx([entropy, torch.tensor(2.0).log().item(), 0])
    assert seen.confidence.flatten().tolist() == pytest.approx([0.75, 0.5, 0])
    assert seen.distance.flatten().tolist() == pytest.approx([0.75, 0.5, 0])
    assert seen.received.flatten().tolist() == pytest.approx([0.75, 1.25])
    assert seen.map((1, 2)).flatten().tolist() == pytest.approx([0.375, 0.625])
    assert seen.map((2, 1)).flatten().tolist() == pytest.approx([1, 0])
    assert seen.first().flatten().tolist() == pytest.approx([0.25, 0.5, 0])
    assert seen.diagonal(-1).flatten().tolist() == pytest.approx([0, 0.5, 0])
    assert seen.diagonal(1).flatten().tolist() == pytest.approx([0.75, 0, 0])


@pytest.mark.parametrize("seed", range(5))
def test_the_oracle_weighs_as_attention_does(seed: int) -> None:
    call = in_type(Cases(seed).call(), torch.float64)
    torch.testing.assert_close(observe_reference(call).weights, reference(call)[1])


def test_value_norms_are_those_of_what_a_head_writes() -> None:
    """|W_O^h v_j|, also where the head is wider than the model and where v is all but in the kernel of W_O^h."""
    for model, width in ((20, 4), (3, 5)):
        v, projection = torch.randn(2, 2, 7, width), torch.randn(model, 6 * width)
        _, _, vanishing = torch.linalg.svd(projection[:, :width])
        v[:, 0, 0] = vanishing[-1]
        call = plain(torch.randn(2, 6, 4, width), torch.randn(2, 2, 7, width), v)
        got = Observed(call, projection=projection).value_norms
        heads = [v[:, h // 3] @ projection[:, h * width : (h + 1) * width].T for h in range(6)]
        torch.testing.assert_close(got, torch.stack(heads, 1).norm(dim=-1), rtol=1e-5, atol=1e-6)
    assert Observed(call).value_norms is None
    with pytest.raises(
        ConfigError, match=r"projection does not fit.*\n.*\(3, 29\)\n.*model width x 30 \(6 heads of 5\)"
    ):
        _ = Observed(call, projection=projection[:, 1:]).value_norms


def test_rows_of_some_heads() -> None:
    q, k = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8)
    call = plain(q, k, None, causal(), Alibi(alibi_slopes(4)))
    for seen in (Observed(call), observe_reference(call)):
        all_of_them = seen.rows(range(9))
        torch.testing.assert_close(seen.rows(range(2, 8, 3), [3, 0]), all_of_them[:, [3, 0]][:, :, 2:8:3])
        assert seen.rows(range(0)).shape == (2, 4, 0, 9)
        with pytest.raises(ConfigError, match=r"there is no such row\n.*\[9, 10\]\n.*0 .. 8"):
            seen.rows(range(5, 11))
        with pytest.raises(ConfigError, match=r"there is no such head\n.*\[-1\]\n.*0 .. 3"):
            seen.rows(range(5), [0, -1])


def test_what_cannot_be_asked() -> None:
    q = torch.randn(2, 1, 5, 4)
    for seen in (Observed(plain(q, q)), observe_reference(plain(q, q))):
        with pytest.raises(ConfigError, match=r"not kept\n.*9\n.*1 .. 8"):
            seen.top(9)
        with pytest.raises(ConfigError, match="a map needs bins"):
            seen.map(0)
        with pytest.raises(ConfigError, match=r"keys do not fit the rows\n.*\(4,\)\n.*5, or 2 x 5"):
            seen.pairs(torch.zeros(4, dtype=torch.long))
    with pytest.raises(ConfigError, match=r"row_lengths do not fit\n.*\(3,\)\n.*\(2,\)"):
        Observed(plain(q, q), row_lengths=torch.tensor([1, 2, 3]))


def test_bin_width() -> None:
    for length in (0, 1, 2, 127, 128, 129, 1000, 8192):
        for bins in (1, 2, 7, 128):
            width = bin_width(length, bins)
            assert -(-length // width) <= bins
            assert width == 1 or -(-length // (width // 2)) > bins


def test_one_pass_gives_all_and_a_row_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[dict[str, Any]] = []

    def counted(call: Call, **options: Any) -> Measures:
        passes.append(options)
        return measure(call, **options)

    monkeypatch.setattr(observe, "measure", counted)
    seen = Observed(plain(*torch.randn(2, 1, 2, 200, 8)))
    seen.rows(range(3))
    assert not passes
    answers_of_one_pass = (seen.lse, seen.entropy, seen.confidence, seen.distance, seen.received, seen.map(128))
    assert len({id(x) for x in answers_of_one_pass}) == 6
    seen.top(1), seen.top(8), seen.first(), seen.diagonal(-1)
    assert len(passes) == 1
    seen.map(16), seen.map((16, 16))
    assert len(passes) == 2
    assert seen.weighted_map(128) is None
    seen = Observed(plain(*torch.randn(2, 1, 2, 200, 8)), projection=torch.randn(4, 16))
    assert seen.weighted_map(128) is seen.weighted_map((128, 128))
    _ = seen.entropy, seen.map(128), seen.received, seen.top(8)
    assert len(passes) == 3


def test_kernels_are_asked_first_and_strips_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[int, int], bool]] = []
    call = plain(*torch.randn(2, 1, 2, 20, 8))
    right = measure(call)

    def fast(call: Call, *, bins: tuple[int, int], lse: Tensor | None, **_: Any) -> Measures:
        asked.append((bins, lse is not None))
        return replace(measure(call, bins=bins, k=1), received=None)

    def received(call: Call, lse: Tensor) -> Tensor | None:
        assert torch.equal(lse, right.lse)
        asked.append(((0, 0), True))
        return measure(call).received

    monkeypatch.setattr(observe, "_fast", fast)
    monkeypatch.setattr(gpu, "received", received)
    seen = Observed(call)
    assert torch.equal(seen.entropy, right.entropy)
    assert torch.equal(seen.top(1)[1], right.top_keys[..., :1])
    assert torch.equal(seen.map(128), right.map)
    assert asked == [((128, 128), False)]
    assert torch.equal(seen.received, right.received)
    assert torch.equal(seen.received, right.received)
    assert torch.equal(seen.top(3)[1], right.top_keys[..., :3])
    assert seen.map((4, 5)).shape == (1, 2, 3, 5)
    assert asked[1:] == [((0, 0), True), ((4, 5), True)]  # each once, and with the lse that is known by then


def test_a_given_lse_is_used() -> None:
    call = plain(*torch.randn(2, 2, 2, 6, 8))
    lse = Observed(call).lse
    seen = Observed(replace(call, lse=lse), row_lengths=torch.tensor([6, 4]))
    assert torch.equal(seen.lse[0], lse[0])
    assert torch.equal(seen.lse[1, :, :4], lse[1, :, :4])
    assert (seen.lse[1, :, 4:] == -torch.inf).all()
    torch.testing.assert_close(seen.first()[0], seen.rows(range(6))[0, :, :, 0])
    assert "_measures" not in vars(seen)


def test_an_lse_of_other_rows_is_not_used() -> None:
    """Where the rows of several calls were joined, that of the last call is left over."""
    call = plain(*torch.randn(2, 2, 2, 6, 8))
    seen = Observed(replace(call, lse=torch.zeros(2, 2, 1)))
    torch.testing.assert_close(seen.lse, observe_reference(call).lse)


def test_neither_the_graph_nor_autocast_nor_inference_is_touched() -> None:
    q = torch.randn(1, 2, 30, 8, requires_grad=True)
    call = plain(q * 1, q * 2, None, causal(), RelativeKeys(torch.randn(1, 5, 8, requires_grad=True)))
    wanted = Observed(call).entropy
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = Observed(call)
        assert torch.equal(seen.entropy, wanted)
        assert seen.call.q.grad_fn is None
    with torch.inference_mode():
        assert torch.equal(Observed(call).entropy, wanted)
        assert seen.rows(range(3)).shape == (1, 2, 3, 30)
    out = attend(call.q, call.k, call.v, mask=call.mask, terms=call.terms)
    assert torch.equal(out, attend(call.q, call.k, call.v, mask=call.mask, terms=call.terms))
    out.sum().backward()
    assert q.grad is not None


class Largest(TorchDispatchMode):
    """The entries of the largest tensor that any operation gave."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, Tensor):
                self.entries = max(self.entries, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("mask", [None, causal(), causal() & padding(torch.tensor([190]))], ids=["", "c", "c & p"])
@pytest.mark.parametrize("shape", [(1, 4, 1000, 8), (16, 4, 200, 8)], ids=str)
def test_no_tensor_is_as_large_as_the_matrix(
    mask: Mask | None, shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A strip is 1/80 of these matrices or less; a term that each head of the batch has may be eight of them."""
    monkeypatch.setattr(strips, "CPU_STRIP", 1 << 15)
    for terms in ((), (RelativeKeys(torch.randn(4, 9, 8)),)):
        with Largest() as largest:
            call = plain(*torch.randn(2, *shape), None, mask, *terms)
            seen = Observed(replace(call, lse=measure(call, bins=32).lse))
            _ = seen.first(), seen.diagonal(-1)
        assert largest.entries <= 8 * (1 << 15)


def test_weighed_has_no_scores_and_needs_no_positions() -> None:
    weights = torch.tensor([[[[0.625, 0.375, 0], [0, 0, 0], [0, 0, 1]]]], dtype=torch.bfloat16)
    seen = Weighed(weights, row_lengths=torch.tensor([2]))
    assert seen.lse.flatten().tolist() == [0, -torch.inf, -torch.inf]
    assert seen.entropy.dtype == torch.float32
    assert seen.received.flatten().tolist() == [0.625, 0.375, 0]
    assert seen.top(8)[1].flatten(0, 2).tolist() == [[0, 1] + [-1] * 6] + [[-1] * 8] * 2
    assert seen.value_norms is None
    later = Weighed(weights, positions=torch.tensor([[4, 5, 6]]))
    assert later.distance.flatten().tolist() == [3.625, 0, 4]
