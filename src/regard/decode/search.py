"""From lists of ids to hypotheses: batches by length within a token budget, answers in the order of the input."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from regard.decode.beam import beams
from regard.decode.config import DecodeConfig
from regard.decode.contrastive import Contrastive
from regard.decode.greedy import greedy
from regard.decode.loop import Search, Steps, finish, steps
from regard.decode.rules import Hypothesis, Model, Rules, last_logits, make_rules
from regard.decode.sampling import Sharpen, noise, sampler, truncate
from regard.decode.speculative import Draft, certain, speculate
from regard.errors import ConfigError, RegardError
from regard.types import Sequences

Ids = Sequence[int]
SPARE_TOKENS = 10  # room beyond max_ratio, which alone is too tight for a source of a word or two


@dataclass(frozen=True, slots=True)
class Asked:
    """One source, what its output has to begin with, and its place in the whole input."""

    source: Ids
    prefix: Ids
    index: int


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
    draft: Draft | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first, in the order of the input.

    Sources end in `eos`. One that holds nothing else is an empty text and has the empty output, unless a prefix is
    forced; one without any id (for a model that reads no source) is decoded. The tokens of `prefixes` begin the
    outputs and count towards no limit. `on_batch` is told how many sources are done, and of how many.
    `first_index` is the place of `sources[0]` in the whole input, where that comes in parts: draws depend on it.
    A `draft` makes it faster where one row is slow, and changes nothing else.
    """
    prefixes = [()] * len(sources) if prefixes is None else prefixes
    if len(prefixes) != len(sources):
        raise RegardError("each source needs one prefix", got=len(prefixes), wanted=len(sources))
    answers = [[Hypothesis((), 0.0, 0.0, finished=True)] for _ in sources]
    asked = [row for row, source in enumerate(sources) if list(source) != [eos] or prefixes[row]]
    num_done = len(sources) - len(asked)
    for rows in batches(asked, sources, prefixes, config):
        asking = [Asked(sources[row], prefixes[row], first_index + row) for row in rows]
        found = _begin(model, asking, config, draft, device, bos, eos, pad)
        for row, hypotheses in zip(rows, finish(found), strict=True):
            answers[row] = hypotheses
        num_done += len(rows)
        if on_batch is not None:
            on_batch(num_done, len(sources))
    return answers


@torch.inference_mode()
def stream(
    model: Model,
    source: Ids,
    config: DecodeConfig,
    *,
    bos: int | None,
    eos: int,
    pad: int,
    device: torch.device | str = "cpu",
    prefix: Ids = (),
    index: int = 0,
    draft: Draft | None = None,
) -> Generator[int, None, Hypothesis]:
    """The output of one source as `decode` has it, without its prefix and end, each token as soon as it is settled.

    What the generator returns is the whole hypothesis.
    """
    config.need_streams()
    if list(source) == [eos] and not prefix:
        return Hypothesis((), 0.0, 0.0, finished=True)
    under_way, known = _begin(model, [Asked(source, prefix, index)], config, draft, device, bos, eos, pad), len(prefix)
    while True:
        try:
            ids = next(under_way)[known:].tolist()
        except StopIteration as end:
            [[hypothesis]] = end.value
            return hypothesis  # type: ignore[no-any-return]
        known += len(ids)
        yield from ids[:-1] if ids[-1:] == [eos] else ids


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


def _limit(row: Asked, config: DecodeConfig, longest: int | None) -> int:
    """Most tokens of the output after its prefix, which with it has no more than `longest`."""
    limit = max_tokens(row.source, config)
    return limit if longest is None else max(config.min_length + 1, min(limit, longest - len(row.prefix)))


def pad_rows(rows: Sequence[Ids], pad: int, branches: Sequence[Ids] | None = None) -> Sequences:
    """Rows of ids as one tensor, padded at the right; with the codes of their branches where there are any."""
    lengths = [len(row) for row in rows]
    width = max(1, *lengths)
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], dtype=torch.long)
    codes = None if branches is None else pad_rows(branches, 0).ids
    return Sequences(ids, torch.tensor(lengths, dtype=torch.long), branches=codes)


def _begin(
    model: Model,
    asked: Sequence[Asked],
    config: DecodeConfig,
    draft: Draft | None,
    device: torch.device | str,
    bos: int | None,
    eos: int,
    pad: int,
) -> Steps:
    """The search for a batch, under way."""
    config.need_outputs()
    # a search that settles a token once it was read reads the last one too
    late = int(config.method == "contrastive")
    places = [most for each in (model, draft and draft.model) if (most := getattr(each, "longest", None))]
    # no output is longer than what can be read of it: its start, its prefix, and all but its last token
    longest = min(places) + (bos is None) - late if places else None
    limits = [_limit(row, config, longest) for row in asked]
    sources = pad_rows([row.source for row in asked], pad).to(device)
    room = max(len(row.prefix) + limit for row, limit in zip(asked, limits, strict=True)) + late
    state = model.start(sources, room)
    rules = make_rules(
        state,
        bos=bos,
        eos=eos,
        pad=pad,
        max_length=limits,
        min_length=config.min_length,
        length_penalty=config.length_penalty,
        no_repeat_ngram=config.no_repeat_ngram,
        prefixes=[row.prefix for row in asked],
    )
    indices = [row.index for row in asked]
    if draft is None:
        search = _search(model, rules, config, indices)
        step = search.step if isinstance(search, Contrastive) else partial(last_logits, model)
        return steps(search, step, state, rules)
    if config.method not in ("greedy", "sample"):
        method = f'method = "{config.method}"'
        raise ConfigError("a draft guesses for greedy search or sampling", got=method, wanted="greedy or sample")
    uniform = [noise(rules, indices, config.n_best, f"{config.seed}/{use}") for use in ("guess", "take", "draw")]
    return speculate(
        model,
        state,
        draft,
        draft.model.start(sources, room),
        rules,
        guesses=config.draft_tokens,
        sharpen=certain if config.method == "greedy" else _truncate(config),
        uniform=torch.stack(uniform),
    )


def _search(model: Model, rules: Rules, config: DecodeConfig, indices: Sequence[int]) -> Search:
    if config.method == "greedy":
        return greedy(rules)
    if config.method == "beam":
        return beams(rules, beam=config.beam, n_best=config.n_best, early_stop=config.early_stop)
    if config.method == "contrastive":
        return Contrastive.make(rules, model, top_k=config.top_k, penalty=config.penalty)
    return sampler(rules, _truncate(config), noise(rules, indices, config.n_best, config.seed))


def _truncate(config: DecodeConfig) -> Sharpen:
    return partial(truncate, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, min_p=config.min_p)
