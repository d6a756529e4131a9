"""Answers from both ends: a model that also learns to write from the last token to the first judges what it finds.

A backward answer is the forward one mirrored, <s> and </s> with it: it begins with </s> and ends with <s>. So the token
that it begins with says which way it goes, and nothing else is new. A search runs either way; each answer that one of
them found is judged by the mean of both log-probabilities (Liu et al. 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.decode.config import DecodeConfig
from regard.decode.rules import Hypothesis, rank
from regard.decode.search import decode, pad_rows
from regard.types import Batch, Sequences, Specials

LogProbs = Callable[[Batch], Tensor]  # of each target token after the first: B x (T - 1)
Ids = Sequence[int]


def mirrored(sequences: Sequences) -> Sequences:
    """The real part of each row from its end to its beginning.

    >>> mirrored(Sequences(torch.tensor([[1, 7, 8, 2, 0]]), torch.tensor([4]))).ids.tolist()
    [[2, 8, 7, 1, 0]]
    """
    places = torch.arange(sequences.ids.shape[1], device=sequences.ids.device)
    other = sequences.lengths[:, None] - 1 - places
    return replace(sequences, ids=sequences.ids.gather(1, torch.where(other >= 0, other, places)))


def both(batch: Batch) -> Batch:
    """The sources, and of each its target and then the same mirrored."""
    assert batch.target is not None
    ids = torch.stack([batch.target.ids, mirrored(batch.target).ids], 1).flatten(0, 1)
    return replace(batch, target=replace(batch.target, ids=ids, lengths=batch.target.lengths.repeat_interleave(2)))


@torch.inference_mode()
def search(
    model: object,
    sources: Sequence[Ids],
    config: DecodeConfig,
    *,
    source_pad: int,
    special: Specials,
    log_probs: LogProbs,
    device: torch.device,
    on_batch: Callable[[int, int], None] | None = None,
) -> list[list[Hypothesis]]:
    """What `decode` gives for a beam search, of what is found from either end; sources end in their own end token."""
    config.need_outputs()
    wide, asked = replace(config, n_best=config.beam), [row for row, ids in enumerate(sources) if len(ids) > 1]
    answers = [[Hypothesis((), 0.0, 0.0, finished=True)] for _ in sources]
    found: list[dict[tuple[int, ...], bool]] = [{} for _ in asked]  # each answer, and whether the model ended it
    for turn, (begin, end) in enumerate(((special.start, special.end), (special.end, special.start))):
        tell = None if on_batch is None else _half(on_batch, turn)
        texts = [sources[row] for row in asked]
        # an empty text is not asked about, whatever its end token is
        lists = decode(model, texts, wide, bos=begin, eos=end, pad=special.pad, device=device, on_batch=tell)  # type: ignore[arg-type]
        for into, hypotheses in zip(found, lists, strict=True):
            for each in hypotheses:
                ids = each.ids[::-1] if turn else each.ids
                into[ids] = into.get(ids, False) or each.finished
    rows = [(place, ids) for place, candidates in enumerate(found) for ids in candidates]
    judged: list[list[Hypothesis]] = [[] for _ in asked]
    for part in _parts([len(sources[asked[place]]) + len(ids) for place, ids in rows], config.batch_tokens):
        source = pad_rows([sources[asked[rows[i][0]]] for i in part], source_pad)
        target = pad_rows([[special.start, *rows[i][1], special.end] for i in part], special.pad)
        batch = both(Batch(source, target).to(device))
        sums = log_probs(batch).double().sum(1).view(-1, 2).mean(1)
        for i, log_prob in zip(part, sums.tolist(), strict=True):
            place, ids = rows[i]
            score = log_prob / (len(ids) + 1) ** config.length_penalty
            judged[place].append(Hypothesis(ids, log_prob, score, found[place][ids]))
    for row, hypotheses in zip(asked, judged, strict=True):
        answers[row] = sorted(hypotheses, key=rank)[: config.n_best]
    return answers


def _parts(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Rows of like length together, as many as the budget of tokens allows, twice over."""
    part: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        if part and 2 * (len(part) + 1) * lengths[part[0]] > most:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _half(on_batch: Callable[[int, int], None], turn: int) -> Callable[[int, int], None]:
    return lambda done, total: on_batch((turn * total + done) // 2, total)
