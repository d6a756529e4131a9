"""The copy task of the Reformer's paper: 0 w 0 w, and the second w must be said; w is random.

    python benchmarks/copy_task.py --length 16384 --device cuda
    python benchmarks/copy_task.py --length 64 --steps 500

The text doubles in length (`--from`, then twice that, up to `--length`) whenever the symbols of the second half are all
but always right, as what was learned of a short text helps with the next: `--steps` is the most updates of each
length. It prints the share of right symbols on texts that it was never trained on, every 50 updates.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

from regard.config import read_section
from regard.models import Sizes, family
from regard.train.step import precision
from regard.types import Batch, Sequences

SYMBOLS = 16
RIGHT = 0.999


def texts(rows: int, length: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """0 w 0 w: rows x length."""
    half = torch.randint(1, SYMBOLS + 1, (rows, length // 2 - 1), generator=generator).to(device)
    zero = torch.zeros(rows, 1, dtype=torch.long, device=device)
    return torch.cat([zero, half, zero, half], dim=1)


def batch_of(ids: Tensor) -> Batch:
    return Batch(Sequences(ids, torch.full((len(ids),), ids.shape[1], device=ids.device)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--from", type=int, default=64, dest="first")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=32768, help="of a batch, at most 32 rows")
    parser.add_argument("--hashes", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    device, generator = torch.device(args.device), torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)
    side = 1 << (args.length.bit_length() // 2)
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
        "axial_shape": [args.length // side, side],
        "axial_dims": [128, 128],
        "dropout": 0.0,
    }
    reformer = family("reformer")
    config = read_section(reformer.Config, table, where="benchmarks/copy_task.py")
    model = reformer.build(config, Sizes(SYMBOLS + 1, SYMBOLS + 1, shared=True)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.rate, betas=(0.9, 0.98))
    begun, length, bf16 = time.monotonic(), min(args.first, args.length), device.type == "cuda"
    while length <= args.length:
        right = 0.0
        for step in range(1, args.steps + 1):
            rows = max(1, min(32, args.tokens // length))
            ids = texts(rows, length, generator, device)
            with precision(device, bf16):
                hidden = model.hidden(batch_of(ids[:, :-1]))[:, length // 2 :]
                loss = model.head.loss(hidden.flatten(0, 1), ids[:, length // 2 + 1 :].flatten())
            (loss / ids[:, length // 2 + 1 :].numel()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = args.rate * min(1.0, step / 100)
            optimizer.step()
            optimizer.zero_grad()
            if step % 50 == 0:
                right = accuracy(model, length, generator, device, bf16)
                spent = time.monotonic() - begun
                print(f"length {length:6,}  step {step:5,}  right {right:.4f}  {spent:6.1f} s", flush=True)
                if right >= RIGHT:
                    break
        if right < RIGHT:
            break
        length *= 2
    print(f"solved at length {length // 2:,}" if right >= RIGHT else f"not solved at length {length:,}")


@torch.no_grad()
def accuracy(
    model: torch.nn.Module, length: int, generator: torch.Generator, device: torch.device, bf16: bool
) -> float:
    """The share of the second half's symbols that are the likeliest ones, on four new texts."""
    model.eval()
    ids = texts(4, length, generator, device)
    with precision(device, bf16):
        logits = model.head(model.hidden(batch_of(ids[:, :-1]))[:, length // 2 :])  # type: ignore[operator]
    model.train()
    return float((logits.argmax(-1) == ids[:, length // 2 + 1 :]).float().mean())


if __name__ == "__main__":
    main()
