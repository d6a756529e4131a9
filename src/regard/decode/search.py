"""From lists of ids to hypotheses: batches by length within a token budget, answers in the order of the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from regard.decode.beam import beam_search
from regard.decode.config import DecodeConfig
from regard.decode.greedy import greedy_search
from regard.decode.rules import Hypothesis, Model, RuleOptions, Step
from regard.decode.sampling import sample
from regard.errors import RegardError
from regard.types import Sequences, State

Ids = Sequence[int]
SPARE_TOKENS = 10  # room beyond max_ratio, which alone is too tight for a source of a word or two


@torch.inference_mode()
def decode(
    model: Model,
    sources: Sequence[Ids],
    config: DecodeConfig,
    *,
    bos: int | None,
    eos: int,
    pad: int,
    device: torch.device | str = "cpu",
    prefixes: Sequence[Ids] | None = None,
    on_batch: Callable[[int, int], None] | None = None,
    first_index: int = 0,
) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first, in the order of the input.

    Sources end in `eos`. One that holds nothing else is an empty text and has the empty output, unless a prefix is
    forced; one without any id (for a model that reads no source) is decoded. The tokens of `prefixes` begin the
    outputs and count towards no limit. `on_batch` is told how many sources are done, and of how many.
    `first_index` is the place of `sources[0]` in the whole input, where that comes in parts: draws depend on it.
    """
    prefixes = [()] * len(sources) if prefixes is None else prefixes
    if len(prefixes) != len(sources):
        raise RegardError("each source needs one prefix", got=len(prefixes), wanted=len(sources))
    answers = [[Hypothesis((), 0.0, 0.0, finished=True)] for _ in sources]
    asked = [row for row, source in enumerate(sources) if list(source) != [eos] or prefixes[row]]
    num_done = len(sources) - len(asked)
    for rows in batches(asked, sources, prefixes, config):
        limits = [max_tokens(sources[row], config) for row in rows]
        longest = max(len(prefixes[row]) + limit for row, limit in zip(rows, limits, strict=True))
        state = model.start(pad_rows([sources[row] for row in rows], pad).to(device), longest)
        options: RuleOptions = {
            "bos": bos,
            "eos": eos,
            "pad": pad,
            "max_length": limits,
            "min_length": config.min_length,
            "length_penalty": config.length_penalty,
            "no_repeat_ngram": config.no_repeat_ngram,
            "prefixes": [prefixes[row] for row in rows],
        }
        found = _search(model.step, state, config, [first_index + row for row in rows], options)
        for row, hypotheses in zip(rows, found, strict=True):
            answers[row] = hypotheses
        num_done += len(rows)
        if on_batch is not None:
            on_batch(num_done, len(sources))
    return answers


def batches(
    rows: Sequence[int], sources: Sequence[Ids], prefixes: Sequence[Ids], config: DecodeConfig
) -> list[list[int]]:
    """Rows of like length together, the longest first, each batch within the budget (or of one row).

    >>> batches([0, 1, 2], ["abc", "a", "abcd"], ["", "", ""], DecodeConfig(beam=2, batch_tokens=16))
    [[2, 0], [1]]
    """
    # Like prefixes together too: what all have is consumed in one step.
    ordered = sorted(rows, key=lambda row: (-len(sources[row]) - len(prefixes[row]), len(prefixes[row])))
    found: list[list[int]] = []
    room = 0
    for row in ordered:
        if room == 0:
            width = max(1, len(sources[row]) + len(prefixes[row]))
            room = max(1, config.batch_tokens // (width * config.rows_per_source))
            found.append([])
        found[-1].append(row)
        room -= 1
    return found


def max_tokens(source: Ids, config: DecodeConfig) -> int:
    """Most tokens of this source's output, its end counted: both limits, but never less than `min_length` asks for.

    >>> max_tokens(range(6), DecodeConfig(max_ratio=1.5)), max_tokens(range(6), DecodeConfig(max_length=12))
    (19, 12)
    """
    by_ratio = int(config.max_ratio * len(source)) + SPARE_TOKENS if source else config.max_length
    return max(min(config.max_length, by_ratio), config.min_length + 1)


def pad_rows(rows: Sequence[Ids], pad: int) -> Sequences:
    """Rows of ids as one tensor, padded at the right."""
    lengths = [len(row) for row in rows]
    width = max(1, *lengths)
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], dtype=torch.long)
    return Sequences(ids, torch.tensor(lengths, dtype=torch.long))


def _search(
    step: Step, state: State, config: DecodeConfig, indices: list[int], options: RuleOptions
) -> list[list[Hypothesis]]:
    if config.method == "greedy":
        return greedy_search(step, state, **options)
    if config.method == "beam":
        return beam_search(step, state, beam=config.beam, n_best=config.n_best, early_stop=config.early_stop, **options)
    return sample(
        step,
        state,
        num_samples=config.n_best,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        min_p=config.min_p,
        seed=config.seed,
        indices=indices,
        **options,
    )
