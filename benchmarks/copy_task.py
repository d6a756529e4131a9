"""A copy task of 16,384 tokens for the Reformer: 0 w 0 _ _ .., and each _ is the symbol of w at its place; w is random.

    python benchmarks/copy_task.py --length 16384 --device cuda
    python benchmarks/copy_task.py --length 512 --tokens 4096

In the paper w itself stands in the second half, so that a place has to find the symbol after the one that it is at.
Queries and keys are one here, and a token finds what is like itself: that took the paper 150,000 updates at 1,024
tokens. Hidden symbols ask for the same reach, half of the text. Axial positions of two rows give the same column to a
place and to what it has to find. They begin large, so that places are what is hashed: the feed-forward layers drown
vectors as small as the family's own, with which nothing was learned in 500 updates at 512 tokens. Rows begin smaller
than columns, or a place would seldom be hashed as what it has to find is: with rows as large, nothing was learned in
250 updates at 16,384. The share of right symbols is of texts that were never trained on; guessing gets 1/16.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor

from regard.config import read_section
from regard.models import Sizes, family
from regard.train.step import precision
from regard.types import Batch, Sequences

SYMBOLS = 16
HIDDEN = SYMBOLS + 1
RIGHT = 0.999


def texts(rows: int, length: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """0 w 0 and hidden symbols, rows x length; and w."""
    half = torch.randint(1, SYMBOLS + 1, (rows, length // 2 - 1), generator=generator).to(device)
    zero = torch.zeros(rows, 1, dtype=torch.long, device=device)
    return torch.cat([zero, half, zero, torch.full_like(half, HIDDEN)], dim=1), half


def batch_of(ids: Tensor) -> Batch:
    return Batch(Sequences(ids, torch.full((len(ids),), ids.shape[1], device=ids.device)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=3000, help="updates at most")
    parser.add_argument("--tokens", type=int, default=32768, help="of a batch, at most 32 rows")
    parser.add_argument("--hashes", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    device, generator = torch.device(args.device), torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)
    table = {
        "layers": ["local", "lsh"],
        "model_dim": 256,
        "num_heads": 4,
        "head_dim": 64,
        "ffn_dim": 512,
        "lsh_chunk": 64,
        "local_chunk": 64,
        "num_hashes": args.hashes,
        "max_length": args.length,
        "axial_shape": [2, args.length // 2],
        "axial_dims": [64, 192],
        "dropout": 0.0,
    }
    reformer = family("reformer")
    config = read_section(reformer.Config, table, where="benchmarks/copy_task.py")
    model = reformer.build(config, Sizes(SYMBOLS + 2, SYMBOLS + 2, shared=True)).to(device)
    embedding: Any = model.source
    with torch.no_grad():
        for vectors, spread in (
            (embedding.tokens.weight, 0.3),
            (embedding.position.rows, 0.3),
            (embedding.position.columns, 1),
        ):
            vectors.normal_(std=spread)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.rate, betas=(0.9, 0.98))
    begun, bf16, right = time.monotonic(), device.type == "cuda", 0.0
    rows, places = max(1, min(32, args.tokens // args.length)), slice(args.length // 2 + 1, None)
    for step in range(1, args.steps + 1):
        ids, hidden = texts(rows, args.length, generator, device)
        with precision(device, bf16):
            loss = model.head.loss(model.hidden(batch_of(ids))[:, places].flatten(0, 1), hidden.flatten())
        (loss / hidden.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1.0, step / 100)
        optimizer.step()
        optimizer.zero_grad()
        if step % 25 == 0:
            right = accuracy(model, args.length, generator, device, bf16)
            print(f"step {step:5,}  right {right:.4f}  {time.monotonic() - begun:6.1f} s", flush=True)
            if right >= RIGHT:
                break
    print(f"{'solved' if right >= RIGHT else 'not solved'} at length {args.length:,} after {step:,} updates")


@torch.no_grad()
def accuracy(
    model: torch.nn.Module, length: int, generator: torch.Generator, device: torch.device, bf16: bool
) -> float:
    """The share of the hidden symbols that are the likeliest ones, on four new texts."""
    model.eval()
    ids, hidden = texts(4, length, generator, device)
    with precision(device, bf16):
        logits = model.head(model.hidden(batch_of(ids))[:, length // 2 + 1 :])  # type: ignore[operator]
    model.train()
    return float((logits.argmax(-1) == hidden).float().mean())


if __name__ == "__main__":
    main()
