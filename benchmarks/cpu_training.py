"""Training on two CPU cores beside Hugging Face's Marian: the same batches, the same work, in one run.

    pip install -c constraints.txt ".[bench]"
    python benchmarks/cpu_training.py --seconds 40            # needs the set multi30k: REGARD_DATA or --mirror

Both models have the same sizes, tied embeddings, dropout 0.1 and label smoothing 0.1, clip at 1 and use AdamW. Every
batch goes to each of them in turn, so that whatever else the machine does slows all of them alike; the figure is the
ratio of their times. Tokens are real ones, source and target, with their ends.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from regard.data import catalogue
from regard.data.readers import read_examples
from regard.data.tokenizers import BOS, EOS, PAD, Tokenizer
from regard.models import Sizes, transformer
from regard.tasks.translation import Config, sum_loss
from regard.train.config import TrainConfig
from regard.train.optim import make_optimizer
from regard.train.step import Step
from regard.types import Batch, Sequences

VOCAB = 8000
SIZES = {
    "tiny": {"model_dim": 128, "encoder_layers": 4, "decoder_layers": 4, "ffn_dim": 256, "num_heads": 4},
    "base": {"model_dim": 512, "encoder_layers": 6, "decoder_layers": 6, "ffn_dim": 2048, "num_heads": 8},
}


def make_batches(mirror: Path | None, rows: int, number: int) -> list[Batch]:
    """Batches of 128 sentences of like length, as the sorted training set gives them, in a fixed random order."""
    folder = catalogue.get("multi30k", mirror=mirror)
    pairs = list(read_examples([folder / "train.en", folder / "train.de"]))
    texts = [text for pair in pairs for text in (pair.source, pair.targets[0])]
    bpe = Tokenizer.train(texts, kind="bpe", vocab_size=VOCAB)
    source = bpe.encode_batch([pair.source for pair in pairs])
    target = bpe.encode_batch([pair.targets[0] for pair in pairs])
    order = sorted(range(len(pairs)), key=lambda i: len(source[i]) + len(target[i]))
    starts = torch.randperm(len(pairs) // rows, generator=torch.Generator().manual_seed(0))[:number].tolist()
    return [_batch([(source[i], target[i]) for i in order[n * rows : (n + 1) * rows]]) for n in starts]


def _batch(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    def pad(rows: list[list[int]]) -> Sequences:
        width = max(map(len, rows))
        ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
        return Sequences(ids, torch.tensor([len(row) for row in rows]))

    sides = pad([[*s, EOS] for s, _ in pairs]), pad([[BOS, *t, EOS] for _, t in pairs])
    return Batch(*sides, num_tokens=sum(len(s) + len(t) + 2 for s, t in pairs))


def marian(size: str) -> Callable[[Batch], float]:
    """A training step of Hugging Face's Marian, as its users write it."""
    from transformers import MarianConfig, MarianMTModel

    s = SIZES[size]
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=VOCAB,
        decoder_vocab_size=VOCAB,
        d_model=s["model_dim"],
        encoder_layers=s["encoder_layers"],
        decoder_layers=s["decoder_layers"],
        encoder_attention_heads=s["num_heads"],
        decoder_attention_heads=s["num_heads"],
        encoder_ffn_dim=s["ffn_dim"],
        decoder_ffn_dim=s["ffn_dim"],
        max_position_embeddings=512,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        dropout=0.1,
        scale_embedding=True,
    )
    model = MarianMTModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    loss_function = torch.nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=-100)

    def step(batch: Batch) -> float:
        assert batch.target is not None
        labels = batch.target.ids[:, 1:].masked_fill(batch.target.ids[:, 1:] == PAD, -100)
        mask = batch.source.ids.ne(PAD)
        out = model(input_ids=batch.source.ids, attention_mask=mask, decoder_input_ids=batch.target.ids[:, :-1])
        loss: Tensor = loss_function(out.logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def ours(size: str, *, bf16: bool) -> Callable[[Batch], float]:
    """A training step as `regard train` makes it."""
    torch.manual_seed(0)
    config = transformer.Config(**SIZES[size], dropout=0.1)  # type: ignore[arg-type]
    model = transformer.build(config, Sizes(VOCAB, VOCAB, shared=True)).train()
    train = TrainConfig(learning_rate=3e-4)
    smoothing = Config().label_smoothing
    optimizer = make_optimizer(model, train, torch.device("cpu"))
    step = Step(model, lambda batch: sum_loss(model, batch, smoothing), optimizer, clip=1.0, bf16=bf16, ema=0.0)

    def run(batch: Batch) -> float:
        step.add(batch)
        step.update()
        return step.read()[0]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="time for each size")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--mirror", type=Path, default=None, help="folder with multi30k.tar.xz")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    batches = make_batches(arguments.mirror, rows=128, number=200)
    for size in arguments.sizes:
        makers = {
            "marian fp32": lambda size=size: marian(size),
            "regard fp32": lambda size=size: ours(size, bf16=False),
            "regard bf16": lambda size=size: ours(size, bf16=True),
        }
        steps = {name: make() for name, make in makers.items()}
        for step in steps.values():  # warm-up
            step(batches[0])
        seconds, losses = dict.fromkeys(steps, 0.0), {name: [] for name in steps}
        tokens = number = 0
        while sum(seconds.values()) < arguments.seconds:
            batch = batches[1 + number % (len(batches) - 1)]
            for name, step in steps.items():
                start = time.perf_counter()
                losses[name].append(step(batch))
                seconds[name] += time.perf_counter() - start
            tokens, number = tokens + batch.num_tokens, number + 1
        for name in steps:
            ratio = seconds["marian fp32"] / seconds[name]
            last = losses[name][-max(1, number // 4) :]
            print(
                f"{size:5s} {name:12s} {tokens / seconds[name]:8,.0f} tokens/s  {ratio:5.2f} x marian"
                f"  loss of the last quarter {sum(last) / len(last):.3f}  ({number} batches)",
                flush=True,
            )


if __name__ == "__main__":
    main()
