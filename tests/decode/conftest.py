"""Toy models for the searches: their logits depend on their own row and its whole past, and on nothing else."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from regard.types import Sequences, State

PAD, BOS, EOS = 0, 1, 2
SPECIALS = {"bos": BOS, "eos": EOS, "pad": PAD}


class Chain:
    """Draws logits from a table by a running code of all tokens consumed; each source has its own table."""

    num_codes = 97

    def __init__(self, vocab_size=6, seed=0, dtype=torch.float64, scale=1.5):
        self.vocab_size, self.seed, self.dtype, self.scale = vocab_size, seed, dtype, scale
        self.rows_stepped = 0

    def start(self, source: Sequences, max_length: int) -> State:
        tables = []
        for ids, length in zip(source.ids.tolist(), source.lengths.tolist(), strict=True):
            seed = hash((self.seed, *ids[:length])) % 2**31
            table = torch.randn(self.num_codes, self.vocab_size, generator=torch.Generator().manual_seed(seed))
            tables.append(table.to(self.dtype) * self.scale)
        rows = len(tables)
        limit = torch.full((rows,), max_length)
        return State(
            torch.zeros(rows, dtype=torch.long),
            {"table": torch.stack(tables), "limit": limit},
            {"code": torch.zeros(rows, dtype=torch.long)},
        )

    def step(self, tokens, state):
        self.rows_stepped += len(tokens)
        code, logits = state.cache["code"], []
        for token in tokens.unbind(1):
            code = (code * 7 + token + 1) % self.num_codes
            logits.append(state.memory["table"][torch.arange(len(code)), code])
        state = replace(state, cache={"code": code}).advance(tokens.shape[1])
        assert (state.position <= state.memory["limit"]).all(), "more tokens were consumed than the start was told"
        return torch.stack(logits, 1), state


class Reader:
    """One layer of attention over the source (memory) and over its own past (a cache with a time axis)."""

    def __init__(self, vocab_size=8, dim=16, seed=0, dtype=torch.float32):
        generator = torch.Generator().manual_seed(seed)
        self.embed = torch.randn(vocab_size, dim, generator=generator).to(dtype)
        self.out = torch.randn(dim, vocab_size, generator=generator).to(dtype)
        self.dim = dim

    def start(self, source: Sequences, max_length: int) -> State:
        rows, width = source.ids.shape
        hidden = self.embed[source.ids.cpu()].to(source.ids.device)
        real = torch.arange(width, device=hidden.device) < source.lengths[:, None]
        past = hidden.new_zeros(rows, 1, max_length, self.dim)
        position = torch.zeros(rows, dtype=torch.long, device=hidden.device)
        return State(position, {"hidden": hidden, "real": real}, {"past": past}, frozenset({"past"}))

    def step(self, tokens, state):
        past, position, logits = state.cache["past"].clone(), state.position, []
        for token in tokens.unbind(1):
            query = self.embed[token.cpu()].to(past.device)
            past[torch.arange(len(token)), 0, position] = query
            position = position + 1
            seen = torch.arange(past.shape[2], device=past.device) < position[:, None]
            read = self._attend(query, past[:, 0], seen) + self._attend(
                query, state.memory["hidden"], state.memory["real"]
            )
            logits.append(read @ self.out.to(past.device))
        return torch.stack(logits, 1), replace(state, cache={"past": past}).advance(tokens.shape[1])

    def _attend(self, query, keys, seen):
        scores = (keys @ query[..., None])[..., 0] / self.dim**0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return (weights[:, None] @ keys)[:, 0]


def every_output(model, source, *, max_length, alpha, prefix=(), min_length=0):
    """All outputs there can be, as (ids, log_prob, score, finished), best first: the truth by enumeration."""
    letters = [token for token in range(model.vocab_size) if token not in (PAD, BOS, EOS)]
    sequences = Sequences(torch.tensor([source]), torch.tensor([len(source)]))
    begun = model.start(sequences, 99)
    found = []
    for length in range(max_length + 1):
        finished = length < max_length
        if finished and length < min_length:
            continue
        rests = list(itertools.product(letters, repeat=length))
        inputs = torch.tensor([[BOS, *prefix, *rest] for rest in rests])
        logits, _ = model.step(inputs, begun.select(torch.zeros(len(rests), dtype=torch.long)))
        chosen = torch.tensor([[*rest, *[EOS] * finished] for rest in rests])
        log_probs = logits.log_softmax(-1)[:, len(prefix) : len(prefix) + chosen.shape[1]]
        totals = log_probs.gather(2, chosen[..., None]).sum((1, 2)).tolist()
        found += [
            ((*prefix, *rest), total, total / chosen.shape[1] ** alpha, finished)
            for rest, total in zip(rests, totals, strict=True)
        ]
    return sorted(found, key=lambda output: (not output[3], -output[2]))


@pytest.fixture
def toys():
    """The toy models, the special tokens and the truth by enumeration, for tests without a package to import from."""

    class Toys:
        chain, reader, truth, specials = Chain, Reader, staticmethod(every_output), SPECIALS

        @staticmethod
        def sources(count, seed=0, vocab_size=6, longest=9):
            generator = torch.Generator().manual_seed(seed)
            lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
            return [[*torch.randint(3, vocab_size, (n,), generator=generator).tolist(), EOS] for n in lengths]

        @staticmethod
        def start(model, sources, max_length=99):
            width = max(len(source) for source in sources)
            ids = torch.tensor([[*source, *[PAD] * (width - len(source))] for source in sources])
            return model.start(Sequences(ids, torch.tensor([len(source) for source in sources])), max_length)

    return Toys
