"""The laws that every family keeps, in many of its forms. A new file in models/ is collected by its name and kinds.

A family of one text (causal, encoder) is given its tokens as the source; one that writes a second text has them as
the target. What is asked of tokens is asked of either; only who writes is asked to decode.

Everything runs in float64 without dropout. EXACT is what rounding may do there: sums in another order, no more.
`REGARD_TEST_DEVICE=cuda pytest tests/models/test_contract.py` asks the same of a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.config import read_section
from regard.errors import BackendError, RegardError
from regard.models import KINDS, Sizes, build, family, names, with_preset
from regard.ops import flex
from regard.ops.attention import backends_used
from regard.types import Batch, Sequences, State

EXACT = {"rtol": 0.0, "atol": 1e-10}
VOCABULARY = 13
DEVICE = os.environ.get("REGARD_TEST_DEVICE")
POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "transformer-xl", "none")

# a family of several kinds has its sizes and forms by "name kind", and those of its first kind by its name
SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"encoder_layers": 2, "decoder_layers": 2, "model_dim": 16, "num_heads": 4, "ffn_dim": 24},
    "recurrent": {"embedding_dim": 6, "hidden_dim": 8},
    "recurrent causal": {"embedding_dim": 6, "hidden_dim": 8},
    "recurrent encoder": {"embedding_dim": 6, "hidden_dim": 8},
    "convolutional": {"encoder_layers": 2, "decoder_layers": 2, "embedding_dim": 6, "hidden_dim": 8},
    "convolutional causal": {"decoder_layers": 2, "embedding_dim": 6, "hidden_dim": 8},
    "convolutional encoder": {"encoder_layers": 3, "embedding_dim": 6, "hidden_dim": 8},
    "gpt": {"layers": 2, "model_dim": 16, "num_heads": 4, "ffn_dim": 24, "max_length": 64},
    "bert": {"layers": 2, "model_dim": 16, "num_heads": 4, "ffn_dim": 24, "max_length": 64},
    "coattention": {"layers": 2, "embedding_dim": 6, "hidden_dim": 8},
    "memory": {"hops": 2, "model_dim": 8, "max_sentences": 4},
    "t5": {"encoder_layers": 2, "decoder_layers": 2, "model_dim": 16, "num_heads": 4, "head_dim": 6, "ffn_dim": 24},
    "transformer_xl": {"layers": 2, "model_dim": 16, "num_heads": 4, "ffn_dim": 24, "memory": 8},
    "xlnet": {"layers": 2, "model_dim": 16, "num_heads": 4, "ffn_dim": 24, "memory": 8},
    "efficient": {"layers": 2, "model_dim": 16, "num_heads": 4, "ffn_dim": 24, "max_length": 64, "window": [2]},
    "efficient_causal": {"layers": 2, "model_dim": 16, "num_heads": 4, "ffn_dim": 24, "max_length": 64, "window": [2]},
    "reformer": {"layers": ["local", "lsh"], "model_dim": 16, "num_heads": 4, "head_dim": 6, "ffn_dim": 24}
    | {"axial_shape": [8, 8], "axial_dims": [4, 12], "max_length": 64, "lsh_chunk": 16, "local_chunk": 4},
}
EXACT_MEMORY = ("recurrent", "convolutional")  # of the families whose state is all that they know of the past
# what stands beside the contract: only an objective of pretraining reaches these parameters
OBJECTIVES = {"bert": ("next_sentence.",), "xlnet": ("mask",)}
FORMS: dict[str, list[dict[str, Any]]] = {
    "transformer": [
        *({"position": position} for position in POSITIONS),
        *({"position": position, "num_kv_heads": 2} for position in ("rotary", "alibi", "t5", "transformer-xl")),
        {"num_kv_heads": 1, "norm_first": False},
        {"norm_first": False},
        {"norm": "rms"},
        {"norm": "rms", "norm_first": False, "activation": "gelu"},
        *({"activation": activation} for activation in ("silu", "geglu", "swiglu", "reglu")),
        {"backend": "reference", "position": "transformer-xl"},
        {"backend": "reference", "num_kv_heads": 2},
        {"backend": "fused", "position": "shaw"},
        {"tie_embeddings": False},
        {"encoder_layers": 1, "decoder_layers": 3},
    ],
    "recurrent": [
        *(
            {"cell": cell, "attention": attention, "encoder_layers": layers, "decoder_layers": layers}
            for cell in ("rnn", "lstm", "gru")
            for attention in ("none", "additive", "multiplicative")
            for layers in (1, 2)
        ),
        {"tie_embeddings": False},
    ],
    "recurrent causal": [
        *({"cell": cell, "decoder_layers": layers} for cell in ("rnn", "lstm", "gru") for layers in (1, 2)),
        {"cell": "lstm", "tie_embeddings": False},
        {"cell": "lstm", "hidden_dim": 6},
        {"cell": "lstm", "decoder_layers": 2, "locked_dropout": True, "weight_dropout": 0.5, "word_dropout": 0.1},
    ],
    "recurrent encoder": [
        *({"cell": cell} for cell in ("rnn", "lstm", "gru")),
        {"encoder_layers": 2, "tie_embeddings": False},
        {"locked_dropout": True, "weight_dropout": 0.5, "word_dropout": 0.1},
    ],
    "convolutional": [*({"kernel": kernel} for kernel in (1, 3, 4)), {"kernel": 3, "tie_embeddings": False}],
    "convolutional causal": [{"kernel": 3}, {"kernel": 4, "tie_embeddings": False}, {"kernel": 2, "decoder_layers": 3}],
    "convolutional encoder": [
        {"kernel": 3},
        {"kernel": 4, "tie_embeddings": False},
        {"kernels": [8, 9], "encoder_layers": 4},  # each place sees all of a short text
        {"kernels": [8, 9], "encoder_layers": 4, "ngrams": 3, "ngram_rows": 7, "ngram_dim": 4},
        {"kernel": 3, "ngrams": 2, "ngram_rows": 5, "ngram_dim": 4, "tie_embeddings": False},
        {"kernels": [8, 9], "encoder_layers": 4, "letters": 2},
        {"kernel": 3, "letters": 3, "ngrams": 2, "ngram_rows": 5},
    ],
    "gpt": [
        {},
        {"preset": "nano"},
        {"preset": "llama", "num_kv_heads": 2},
        {"preset": "llama", "num_kv_heads": 1, "head_dim": 6, "attention_bias": True, "tie_embeddings": True},
        {"position": "rotary", "rotary_base": 100.0},
        {"num_kv_heads": 2, "head_dim": 3, "bias": False},
        {"norm": "rms", "activation": "silu", "tie_embeddings": False},
        {"backend": "reference", "num_kv_heads": 2},
    ],
    "bert": [
        {},
        {"preset": "roberta"},
        {"activation": "gelu-tanh", "pooler": False, "next_sentence": False},
        {"preset": "tener", "masked_head": True, "bigrams": 7},
    ],
    "coattention": [{}, {"cell": "gru", "layers": 1, "tie_embeddings": False}],
    "memory": [{}, {"tying": "layer-wise", "hops": 3}, {"linear_steps": 9, "tie_embeddings": False}],
    "t5": [{}, {"preset": "v1.1-small"}, {"num_buckets": 8, "max_distance": 6}],
    "transformer_xl": [{}, {"norm_first": True, "share_biases": False}, {"clamp": 2, "tie_embeddings": False}],
    "xlnet": [{}, {"clamp": 2, "tie_embeddings": False}],
    "efficient": [
        {},
        {"global_tokens": 3, "segment_kinds": 2, "pooler": True},
        {"global_tokens": 2, "global_projections": False, "window": [1, 3]},
        {"global_tokens": 0, "global_projections": False, "backend": "banded"},
        {"attention": "linear"},
        *({"attention": "low-rank", "rank": 5, "sharing": sharing} for sharing in ("heads", "keys-values", "layers")),
    ],
    "efficient_causal": [
        {"window": [3]},
        {"window": [1, 4], "num_kv_heads": 2, "tie_embeddings": False},
        {"attention": "linear"},
        {"attention": "linear", "num_kv_heads": 1, "position": "sinusoidal"},
    ],
    # texts of one chunk of hashed attention: what it does beyond is in test_reformer.py
    "reformer": [
        {},
        {"num_hashes": 3, "position": "learned", "activation": "gelu"},
        {"layers": ["local"] * 3, "local_chunk": 2, "ffn_chunk": 4},
    ],
}


@dataclass(frozen=True)
class Case:
    """A family in one of its forms, of its first kind if none is said."""

    name: str
    form: dict[str, Any] = field(default_factory=dict)
    shared: bool = False
    other_kind: str = ""

    def __str__(self) -> str:
        words = [f"{key}={value}" for key, value in self.form.items()]
        return "-".join([self.key.replace(" ", "-"), *words, *(["shared"] if self.shared else [])])

    @property
    def key(self) -> str:
        """Its name in SMALL and FORMS."""
        return f"{self.name} {self.other_kind}".strip()

    @property
    def kind(self) -> str:
        return self.other_kind or family(self.name).KINDS[0]

    @property
    def laws(self) -> frozenset[str]:
        laws = family(self.name).LAWS
        laws = laws(self.config()) if callable(laws) else laws
        return frozenset(laws - ({"causal"} if self.kind == "encoder" else set()))

    def reaches(self, parameter: str) -> bool:
        """Whether the contract has a use for this parameter."""
        return not parameter.startswith(OBJECTIVES.get(self.name, ()))

    def batch(self, sources: Sequence[int] = (5, 3, 1, 4), targets: Sequence[int] = (7, 2, 5, 4)) -> Batch:
        """Rows of these lengths; what a family of one text reads is what the other kind writes after."""
        if self.kind == "seq2seq":
            source, target = sequences(sources), sequences(targets)
            if self.form.get("copy"):  # each row says something of its source
                target.ids[:, 1] = source.ids[:, 0]
            return Batch(source, target)
        return Batch(sequences([length - 1 for length in targets], segmented=self.kind == "encoder"))

    def config(self, **more: Any) -> Any:
        # a family that this file has not heard of comes in its smallest preset
        table = {**SMALL.get(self.key, {"preset": list(family(self.name).PRESETS)[-1]}), **self.form, **more}
        return read_section(family(self.name).Config, with_preset(self.name, table), where="this test")

    def build(self, **more: Any) -> Any:
        """The model, with no parameter left at a zero that would hide what it does."""
        pieces = tuple(f"{i:b}" for i in range(VOCABULARY))
        sizes = Sizes(VOCABULARY, VOCABULARY, self.shared or self.kind != "seq2seq", pieces)
        model = build(self.name, self.config(**more), sizes, self.kind)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model.eval()


CASES = [
    *(Case(name, form) for name in names() for form in FORMS.get(name, [{}])),
    *(
        Case(name, form, other_kind=kind)
        for name in names()
        for kind in family(name).KINDS[1:]
        for form in FORMS.get(f"{name} {kind}", [{}])
    ),
    *(Case(name, shared=True) for name in names("seq2seq")),
    *(Case("transformer", {"copy": True, **more}, shared=True) for more in ({}, {"norm_first": False})),
    *(Case("recurrent", {"copy": True, "attention": a}, shared=True) for a in ("additive", "multiplicative")),
]
WRITING = [case for case in CASES if case.kind != "encoder"]
TRANSLATING = [case for case in CASES if case.kind == "seq2seq"]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_writer = pytest.mark.parametrize("case", WRITING, ids=str)


def lawful(law: str, cases: list[Case] = CASES) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [case for case in cases if law in case.laws], ids=str)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device(DEVICE)
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(before)


def sequences(lengths: Sequence[int], width: int | None = None, *, segmented: bool = False) -> Sequences:
    """Random rows, each of two texts if `segmented`; what lies after a row's length is random too."""
    ids = torch.randint(VOCABULARY, (len(lengths), width or max(lengths)))
    segments = torch.arange(ids.shape[1]) > torch.tensor(lengths)[:, None] // 2
    return Sequences(ids, torch.tensor(lengths), segments.long() if segmented else None)


def text_of(batch: Batch) -> Sequences:
    """The text whose tokens are predicted."""
    return batch.source if batch.target is None else batch.target


def tokens_of(batch: Batch) -> Tensor:
    """What is consumed in order to predict it: of a target all but the last."""
    return batch.source.ids if batch.target is None else batch.target.ids[:, :-1]


def with_text(batch: Batch, ids: Tensor) -> Batch:
    """The same with another text."""
    text = replace(text_of(batch), ids=ids)
    return Batch(text) if batch.target is None else Batch(batch.source, text)


def each_text(batch: Batch, change: Callable[[Sequences], Sequences]) -> Batch:
    return Batch(change(batch.source), None if batch.target is None else change(batch.target))


def rows_of(batch: Batch, rows: Sequence[int], *, cut: bool = False) -> Batch:
    """Some rows of a batch; `cut` removes the columns that are padding for all of them."""

    def take(part: Sequences) -> Sequences:
        lengths = part.lengths[rows]
        width = int(lengths.max()) if cut else part.ids.shape[1]
        segments = None if part.segments is None else part.segments[rows, :width]
        return Sequences(part.ids[rows, :width], lengths, segments)

    return each_text(batch, take)


def labels_of(batch: Batch) -> Tensor:
    """A token for each state that has something real to predict (its own where there is one text), -100 elsewhere."""
    text, first = text_of(batch), 0 if batch.target is None else 1
    places = torch.arange(first, text.ids.shape[1])
    return text.ids[:, first:].masked_fill(places >= text.lengths[:, None], -100)


def logits(model: Any, batch: Batch) -> Tensor:
    result: Tensor = model.head(model.hidden(batch))
    return result


def real_logits(model: Any, batch: Batch) -> Tensor:
    """The logits that predict a real token, one row each."""
    return logits(model, batch)[labels_of(batch) != -100]


def loss_sum(model: Any, batch: Batch) -> Tensor:
    """A loss that every part of the contract has a share in."""
    hidden, labels = model.hidden(batch), labels_of(batch)
    loss = nn.functional.cross_entropy(model.head(hidden).flatten(0, 1), labels.flatten(), reduction="sum")
    return loss + model.pooled(hidden, batch.source.lengths).square().sum() if hasattr(model, "pooled") else loss


def gradients(model: Any, *batches: Batch) -> dict[str, Tensor]:
    """The gradients of the summed losses of these batches, accumulated."""
    model.zero_grad()
    for batch in batches:
        loss_sum(model, batch).backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def assert_same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, **EXACT)


def steps(model: Any, tokens: Tensor, state: State, sizes: Sequence[int]) -> tuple[Tensor, State]:
    """Consumes the tokens in pieces of these sizes."""
    pieces = []
    for piece in tokens.split(list(sizes), dim=1):
        out, state = model.step(piece, state)
        pieces.append(out)
    return torch.cat(pieces, dim=1), state


def next_of_each(model: Any, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    """One step in which every row consumes the token at its own position."""
    return model.step(tokens.gather(1, state.position[:, None]), state)  # type: ignore[no-any-return]


# --- decoding ---------------------------------------------------------------------------------------------------------


@every_writer
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (6,), (2, 3, 1), (4, 1, 1)], ids=str)
@torch.no_grad()
def test_cached_equals_uncached(case: Case, sizes: tuple[int, ...]) -> None:
    model, batch = case.build(), case.batch()
    state = model.start(batch.source, 6)
    found, state = steps(model, tokens_of(batch), state, sizes)
    assert_same(found, logits(model, batch))
    assert state.position.tolist() == [6, 6, 6, 6]
    assert state.bound == 6


@every_writer
@torch.no_grad()
def test_room_to_spare_changes_nothing(case: Case) -> None:
    model, batch = case.build(), case.batch()
    tight, _ = steps(model, tokens_of(batch), model.start(batch.source, 6), (1, 5))
    roomy, _ = steps(model, tokens_of(batch), model.start(batch.source, 60), (1, 5))
    assert_same(roomy, tight)


@every_writer
@torch.no_grad()
def test_select_takes_rows_with_everything_that_they_remember(case: Case) -> None:
    model, batch, rows = case.build(), case.batch(), torch.tensor([2, 0, 0, 3, 1])
    tokens = tokens_of(batch)
    _, state = steps(model, tokens[:, :2], model.start(batch.source, 6), (1, 1))
    found, _ = steps(model, tokens[rows, 2:], state.select(rows), (1, 3))
    assert_same(found, logits(model, batch)[rows, 2:])


@every_writer
@torch.no_grad()
def test_select_is_a_copy_from_which_to_step_again(case: Case) -> None:
    """Two futures of one past, in turns: neither is touched by the other."""
    model, batch = case.build(), case.batch()
    tokens, everyone = tokens_of(batch), torch.arange(4)
    _, state = steps(model, tokens[:, :2], model.start(batch.source, 6), (2,))
    copy = state.select(everyone)
    found = []
    for place in range(2, 6):
        out, copy = model.step(tokens[:, place : place + 1], copy)
        _, state = model.step(tokens[:, place : place + 1].flip(0), state)
        found.append(out)
    assert_same(torch.cat(found, dim=1), logits(model, batch)[:, 2:])


@every_writer
@torch.no_grad()
def test_reorder_exchanges_rows_of_one_source(case: Case) -> None:
    model, batch = case.build(), case.batch([4, 4, 2, 2], [7, 7, 7, 7])
    if batch.target is not None:
        batch.source.ids[[1, 3]] = batch.source.ids[[0, 2]]
    tokens, rows = tokens_of(batch), torch.tensor([1, 0, 3, 3])  # within each source
    _, state = steps(model, tokens[:, :3], model.start(batch.source, 6), (1, 2))
    after = state.reorder(rows)
    assert all(after.memory[name] is tensor for name, tensor in state.memory.items())
    found, _ = steps(model, tokens[rows, 3:], after, (1, 2))
    assert_same(found, logits(model, batch)[rows, 3:])


@every_writer
@torch.no_grad()
def test_reset_rows_start_again_beside_running_ones(case: Case) -> None:
    model, batch = case.build(), case.batch()
    tokens, full = tokens_of(batch), logits(model, batch)
    _, state = steps(model, tokens[:, :3], model.start(batch.source, 6), (1, 2))
    state = state.reset(torch.tensor([1, 3]))
    assert state.position.tolist() == [3, 0, 3, 0]
    for n in range(3):
        found, state = next_of_each(model, tokens, state)
        assert_same(found[:, 0], full[torch.arange(4), torch.tensor([3 + n, n, 3 + n, n])])
    # and again for all: the clock of the furthest row goes back as well
    assert state.reset(torch.arange(4)).bound == 0
    assert_same(steps(model, tokens, state.reset(torch.arange(4)), (1, 5))[0], full)


@lawful("truncates")
@torch.no_grad()
def test_truncate_takes_steps_back(case: Case) -> None:
    model, batch = case.build(), case.batch()
    tokens, full = tokens_of(batch), logits(model, batch)
    wrong = tokens.clone()
    wrong[0, 3:], wrong[1, 1:], wrong[2, 2:] = 0, 1, 2
    _, state = steps(model, wrong, model.start(batch.source, 6), (6,))
    state = state.truncate(torch.tensor([3, 1, 2, 9]))
    assert (state.position.tolist(), state.bound) == ([3, 1, 2, 6], 6)
    state = state.truncate(torch.tensor([3, 1, 2, 3]))
    assert (state.position.tolist(), state.bound) == ([3, 1, 2, 3], 3)
    for n in range(3):
        found, state = next_of_each(model, tokens, state)
        assert_same(found[:, 0], full[torch.arange(4), torch.tensor([3, 1, 2, 3]) + n])


@pytest.mark.parametrize("case", [case for case in WRITING if "truncates" not in case.laws], ids=str)
@torch.no_grad()
def test_a_state_without_a_time_axis_does_not_pretend_to_go_back(case: Case) -> None:
    model, batch = case.build(), case.batch()
    _, state = model.step(torch.ones(4, 1, dtype=torch.long), model.start(batch.source, 6))
    with pytest.raises(RegardError, match="this state cannot go back"):
        state.truncate(torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize("name", ["transformer", "convolutional", "gpt"])
@torch.no_grad()
def test_going_back_frees_learned_positions(name: str) -> None:
    case = Case(name, {"position": "learned"} if name == "transformer" else {})
    model, batch = case.build(max_length=6), case.batch()
    tokens = tokens_of(batch)
    first, state = steps(model, tokens, model.start(batch.source, 6), (6,))
    again, _ = steps(model, tokens, state.reset(torch.arange(4)), (6,))
    assert_same(again, first)


@pytest.mark.parametrize("case", [Case("transformer"), Case("gpt", {"preset": "llama"})], ids=str)
@torch.no_grad()
def test_a_full_cache_says_so(case: Case) -> None:
    model, batch = case.build(), case.batch()
    _, state = model.step(torch.ones(4, 5, dtype=torch.long), model.start(batch.source, 6))
    with pytest.raises(RegardError) as error:
        model.step(torch.ones(4, 2, dtype=torch.long), state)
    assert str(error.value) == (
        "the cache is full\n  got:    7 tokens\n  wanted: at most 6\n  try:    start with a larger max_length"
    )


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", [case for case in WRITING if case.name in EXACT_MEMORY and case.kind == "causal"], ids=str
)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (6,), (2, 3, 1), (4, 1, 1)], ids=str)
@torch.no_grad()
def test_a_state_that_is_carried_from_segment_to_segment_is_one_long_reading(
    case: Case, sizes: tuple[int, ...]
) -> None:
    model, batch = case.build(), case.batch([7] * 3, [7] * 3)
    memory, found = model.empty_memory(3), []
    for piece in batch.source.ids.split(sizes, dim=1):
        segment = Batch(Sequences(piece, torch.full((3,), piece.shape[1])), num_tokens=piece.numel())
        hidden, memory = model.remember(segment, memory)
        found.append(model.head(hidden))
    assert_same(torch.cat(found, dim=1), logits(model, batch))
    assert memory.position.tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    "case", [case for case in WRITING if case.name in EXACT_MEMORY and case.kind == "causal"], ids=str
)
def test_what_is_remembered_of_each_row_ends_at_its_last_token(case: Case) -> None:
    """Whatever pads it, and for a row that had nothing to read as well; no gradient flows into it."""
    model, batch = case.build(), case.batch()
    first = Batch(Sequences(batch.source.ids, torch.tensor([6, 0, 4, 1])))
    _, memory = model.remember(first, model.empty_memory(4))
    assert memory.position.tolist() == [6, 0, 4, 1]
    assert not any(tensor.requires_grad for tensor in memory.cache.values())
    after, _ = model.remember(replace(batch, num_tokens=24), memory)
    for row, length in enumerate(first.source.lengths.tolist()):
        ids = torch.cat([first.source.ids[row, :length], batch.source.ids[row]])[None]
        whole = model.hidden(Batch(Sequences(ids, torch.tensor([ids.shape[1]]))))
        assert_same(after[row], whole[0, length:])


# --- rows and padding -------------------------------------------------------------------------------------------------


@every_case
@torch.no_grad()
def test_batch_of_one_equals_batch_of_many(case: Case) -> None:
    model, batch = case.build(), case.batch()
    whole, labels = logits(model, batch), labels_of(batch)
    for row in range(4):
        alone = real_logits(model, rows_of(batch, [row], cut=True))
        assert_same(whole[row][labels[row] != -100], alone)


@every_writer
@torch.no_grad()
def test_decoding_one_equals_decoding_many(case: Case) -> None:
    model, batch = case.build(), case.batch()
    many, _ = steps(model, tokens_of(batch), model.start(batch.source, 6), (1, 1, 4))
    for row in range(4):
        one = rows_of(batch, [row])
        source = Sequences(one.source.ids[:, : int(one.source.lengths)], one.source.lengths)
        alone, _ = steps(model, tokens_of(one), model.start(source, 6), (1, 1, 4))
        assert_same(many[row], alone[0])


@lawful("padding-invariant")
def test_padding_changes_nothing(case: Case) -> None:
    """Neither its ids nor how much there is of it, in values or in gradients."""
    model, batch = case.build(), case.batch()

    def repadded(part: Sequences) -> Sequences:
        longer = sequences([part.ids.shape[1] + 3] * len(part.ids), segmented=part.segments is not None)
        for new, old in ((longer.ids, part.ids), (longer.segments, part.segments)):
            for row, length in enumerate(part.lengths.tolist() if old is not None else []):
                new[row, :length] = old[row, :length]
        return replace(longer, lengths=part.lengths)

    other = each_text(batch, repadded)
    assert_same(real_logits(model, other), real_logits(model, batch))
    assert_same(gradients(model, other), gradients(model, batch))


@lawful("padding-invariant")
def test_an_empty_row_is_finite_and_leaves_its_neighbours_alone(case: Case) -> None:
    model = case.build()
    source = sequences([4, 0, 2], width=4, segmented=case.kind == "encoder")
    batch = Batch(source, sequences([5, 6, 3]) if case.kind == "seq2seq" else None)
    found, found_gradients = logits(model, batch), gradients(model, batch)
    assert found.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in found_gradients.values())
    assert_same(found[[0, 2]], logits(model, rows_of(batch, [0, 2])))
    parts = gradients(model, rows_of(batch, [0, 2]), rows_of(batch, [1]))
    assert_same(found_gradients, parts)


@lawful("padding-invariant", TRANSLATING)
@torch.no_grad()
def test_what_pads_an_empty_source_does_not_speak(case: Case) -> None:
    model, batch = case.build(), Batch(sequences([4, 0, 2], width=4), sequences([5, 6, 3]))
    refilled = batch.source.ids.index_fill(0, torch.tensor([1]), 7)
    found = logits(model, Batch(Sequences(refilled, batch.source.lengths), batch.target))
    assert_same(found[1], logits(model, batch)[1])


@lawful("padding-invariant", TRANSLATING)
@torch.no_grad()
def test_an_empty_source_decodes(case: Case) -> None:
    model, batch = case.build(), Batch(sequences([4, 0], width=4), sequences([5, 5]))
    found, _ = steps(model, tokens_of(batch), model.start(batch.source, 4), (1, 3))
    assert found.isfinite().all()
    assert_same(found, logits(model, batch))


@lawful("causal")
@pytest.mark.parametrize("place", [1, 3, 5])
@torch.no_grad()
def test_later_tokens_are_not_seen(case: Case, place: int) -> None:
    model, batch = case.build(), case.batch([5, 3], [7, 7])
    changed = text_of(batch).ids.clone()
    changed[:, place:] = (changed[:, place:] + 1) % VOCABULARY
    before, after = logits(model, batch), logits(model, with_text(batch, changed))
    assert torch.equal(after[:, :place], before[:, :place]) or (after - before)[:, :place].abs().max() < 1e-12
    # and the present one is: the test could fail
    assert ((after - before)[:, place].abs().amax(-1) > 1e-6).all()


@every_case
@torch.no_grad()
def test_every_token_that_is_read_matters(case: Case) -> None:
    """A source token to what is written, one of a single text to the last state; where both sides are seen, to all."""
    model, batch = case.build(), case.batch([4], [5])
    before = logits(model, batch)
    for place in range(4):
        ids = batch.source.ids.clone()
        ids[0, place] = (ids[0, place] + 1) % VOCABULARY
        after = logits(model, replace(batch, source=replace(batch.source, ids=ids)))
        change = (after - before)[0].abs().amax(-1)
        seen = change if case.kind == "encoder" else change.max() if case.kind == "seq2seq" else change[place:]
        assert (seen > 1e-6).all(), f"token {place}"


# --- training ---------------------------------------------------------------------------------------------------------


@every_case
def test_accumulated_equals_one_large_batch(case: Case) -> None:
    model, batch = case.build(), case.batch()
    halves = [rows_of(batch, [0, 1], cut=True), rows_of(batch, [2, 3], cut=True)]
    assert_same(gradients(model, *halves), gradients(model, batch))


@every_case
def test_gradients_reach_every_parameter(case: Case) -> None:
    """Without exception. (A packed bias holds the keys' part, which cannot matter: tests/layers/test_attention.py.)"""
    model = case.build()
    found = {name: gradient for name, gradient in gradients(model, case.batch()).items() if case.reaches(name)}
    assert [name for name, gradient in found.items() if gradient.abs().max() < 1e-8] == []
    for name, gradient in found.items():
        if name.endswith(("qkv.weight", "kv.weight")):
            width = model_of(model, name).head_dim
            assert all(part.abs().max() > 1e-8 for part in gradient.split(width)), f"a head of {name}"


def model_of(model: nn.Module, name: str) -> Any:
    """The module that holds the projection of this parameter."""
    return model.get_submodule(name.rsplit(".", 2)[0])


# --- weights ----------------------------------------------------------------------------------------------------------


def aliases(model: nn.Module) -> dict[str, str]:
    """Each key of the state_dict that is another one's tensor, with that first one."""
    first: dict[int, str] = {}
    state = model.state_dict()
    return {name: first[p.data_ptr()] for name, p in state.items() if first.setdefault(p.data_ptr(), name) != name}


@every_case
@torch.no_grad()
def test_saved_and_loaded_gives_the_same(case: Case, tmp_path: Path) -> None:
    model, batch = case.build(), case.batch()
    shared = aliases(model)
    save_file({n: p for n, p in model.state_dict().items() if n not in shared}, tmp_path / "model.safetensors")
    other = case.build()
    assert not torch.equal(logits(other, batch), logits(model, batch))
    missing, unexpected = other.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    assert (set(missing), unexpected) == (set(shared), [])
    assert torch.equal(logits(other, batch), logits(model, batch))
    assert aliases(other) == shared  # loading unties nothing


@pytest.mark.parametrize("name", ["transformer", "recurrent", "convolutional"])
@pytest.mark.parametrize(
    ("form", "shared", "wanted"),
    [
        ({"tie_embeddings": False}, True, {}),
        ({}, False, {"head.weight": "target.tokens.weight"}),
        ({}, True, {"target.tokens.weight": "source.tokens.weight", "head.weight": "source.tokens.weight"}),
    ],
)
def test_which_weights_are_one(name: str, form: dict[str, Any], shared: bool, wanted: dict[str, str]) -> None:
    assert aliases(Case(name, form, shared).build()) == wanted


@pytest.mark.parametrize("name", [name for name in names() if "tie_embeddings" in vars(family(name).Config)])
@pytest.mark.parametrize("tie", [False, True])
def test_a_tied_head_is_the_embedding(name: str, tie: bool) -> None:
    for kind in ("", *family(name).KINDS[1:]):
        assert ("head.weight" in aliases(Case(name, {"tie_embeddings": tie}, other_kind=kind).build())) is tie


def test_t5_shares_one_table_in_each_stack() -> None:
    table = "{}.blocks.{}.attention.body.relative.weight"
    wanted = {table.format(stack, 1): table.format(stack, 0) for stack in ("encoder", "decoder")}
    found = aliases(Case("transformer", {"position": "t5"}).build())
    assert found == wanted | {"head.weight": "target.tokens.weight"}


# --- precision and backends -------------------------------------------------------------------------------------------


@every_case
def test_bfloat16_autocast_is_near_float32(case: Case) -> None:
    """bfloat16 keeps 8 bits: within 5 % of the largest logit, forwards, in training and cached."""
    torch.set_default_dtype(torch.float32)
    model, batch = case.build(), case.batch()
    wanted = logits(model, batch)
    tolerance = {"rtol": 0.0, "atol": 0.05 * wanted.abs().max().item()}
    with torch.autocast(DEVICE or "cpu", torch.bfloat16):
        found = logits(model, batch)
        loss_sum(model, batch).backward()
    torch.testing.assert_close(found.float(), wanted, **tolerance)
    reached = [p for name, p in model.named_parameters() if case.reaches(name)]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in reached)
    if case.kind != "encoder":
        with torch.autocast(DEVICE or "cpu", torch.bfloat16), torch.no_grad():
            cached, _ = steps(model, tokens_of(batch), model.start(batch.source, 6), (1, 2, 3))
        torch.testing.assert_close(cached.float(), wanted, **tolerance)


WIDE = {"model_dim": 32, "num_heads": 2, "num_kv_heads": 1}  # FlexAttention wants heads of 16


@pytest.fixture
def plain_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention without its compiler, which tests/ops has: here the models' way to it is what is tested."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(flex, "_compiled", lambda function: function)
    monkeypatch.setattr("shutil.which", lambda name: name)


@pytest.mark.parametrize(
    ("name", "position"),
    [
        *(("transformer", p) for p in POSITIONS if p not in ("shaw", "transformer-xl")),
        *(("gpt", p) for p in ("learned", "rotary")),
    ],
)
@pytest.mark.usefixtures("plain_flex")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_backends_give_the_same(name: str, position: str) -> None:
    """In float32, as FlexAttention knows no float64: sums in another order, within 1e-5."""
    case = Case(name, {"position": position, **WIDE})
    batch = case.batch()
    found: dict[str, Tensor] = {}
    for backend in ("reference", "fused", "flex"):
        torch.manual_seed(1)
        model = case.build(backend=backend)
        with backends_used() as used:
            found[backend] = logits(model, batch)
            cached, _ = steps(model, tokens_of(batch), model.start(batch.source, 6), (2, 4))
        assert set(used) == {backend}
        torch.testing.assert_close(cached, found[backend], rtol=0.0, atol=1e-5)
        torch.testing.assert_close(found[backend], found["reference"], rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("position", ["shaw", "transformer-xl"])
@torch.no_grad()
def test_flex_refuses_what_it_cannot(position: str) -> None:
    case = Case("transformer", {"position": position, "backend": "flex", **WIDE})
    with pytest.raises(BackendError, match="a score term that depends on the queries"):
        logits(case.build(), case.batch())


@every_case
@torch.no_grad()
def test_dropout_acts_in_training_only(case: Case) -> None:
    model, batch = case.build(dropout=0.5), case.batch()
    assert torch.equal(logits(model, batch), logits(model, batch))
    model.train()
    assert not torch.equal(logits(model, batch), logits(model, batch))


def test_every_family_says_its_kind_and_its_laws() -> None:
    known = {"causal", "padding-invariant", "truncates", "permutation-equivariant"}
    for name in names():
        assert set(family(name).KINDS) <= set(KINDS)
        assert known >= Case(name).laws
