"""What it costs to observe attention while a model is trained: tokens/s with observe.every = 0 and 50, in one run.

    REGARD_DATA=path/to/archives python benchmarks/observe_training.py                      # a GPU, base
    REGARD_DATA=path/to/archives python benchmarks/observe_training.py \
        --size tiny --device cpu --steps 40 --every 10 --batch-tokens 512

Two trainings of one recipe, with the same first weights and the same batches, go on in turn, so that whatever else the
machine does slows both alike: on a CPU one update each, on a GPU `every` updates each, as a turn ends only when the
device has done all of it. The figure is the median over rounds of `every` updates of the ratio of their rates; the
steps that capture graphs come before and are timed apart. At the end the weights of both are compared: observing must
not change a bit. (On a GPU, sums that are added in no fixed order may differ between any two trainings: `--twice` shows
by how much they do without observing.)
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from regard import models, tasks
from regard.data.batching import first_rows
from regard.data.config import resolve
from regard.recipe import Recipe, read_recipe
from regard.run import cache_folder
from regard.tasks.translation import Pairs, Task
from regard.train.device import pick_device
from regard.train.observe import OBSERVATIONS, Probe, read_observations
from regard.train.optim import make_optimizer, set_learning_rate
from regard.train.step import CapturedStep, Step, precision
from regard.types import Batch


class Training:
    """A training as `regard train` makes it, observed or not."""

    def __init__(self, recipe: Recipe, task: Task, val: Pairs, device: torch.device, folder: Path):
        torch.manual_seed(1)
        self.model = models.family(recipe.family).build(recipe.model, task.sizes).to(device).train()
        config, self.device = recipe.train, device
        bf16 = config.precision == "bf16" or (config.precision == "auto" and device.type == "cuda")
        optimizer = make_optimizer(self.model, config, device)
        set_learning_rate(optimizer, 1e-4)
        kind = CapturedStep if device.type == "cuda" and config.capture else Step
        self.step = kind(
            self.model,
            lambda batch: task.loss(self.model, batch),
            optimizer,
            clip=config.clip,
            bf16=bf16,
            ema=config.ema,
        )
        self.number, self.probe = 0, None
        self.generator = torch.random.get_rng_state(), torch.cuda.get_rng_state() if device.type == "cuda" else None
        if recipe.observe.every:

            def run(batch: Batch) -> None:
                with precision(device, bf16):
                    task.loss(self.model, batch, smoothing=0.0)

            plan = val.plan(batch_tokens=config.batch_tokens, multiple=config.bucket, seed=1, epoch=0, shuffle=False)
            with self.step.device_stream():
                self.probe = Probe(
                    self.model,
                    run,
                    first_rows(plan, val.collate, recipe.observe.examples).to(device),
                    every=recipe.observe.every,
                    path=folder / OBSERVATIONS,
                    repeated=self.step.repeated,
                )
                self.probe.begin(0)

    def run(self, batches: Sequence[Batch]) -> float:
        """Trains on these batches, one update each; the seconds until the device was done."""
        self._swap()
        start = time.perf_counter()
        with self.step.device_stream():
            for batch in batches:
                self.step.add(batch.to(self.device))
                self.step.update()
                self.number += 1
                if self.probe is not None:
                    self.probe.follow(self.number)
            self.step.read()
        seconds = time.perf_counter() - start
        self._swap()
        return seconds

    def _swap(self) -> None:
        """Each training has random numbers of its own."""
        kept = torch.random.get_rng_state(), torch.cuda.get_rng_state() if self.device.type == "cuda" else None
        torch.random.set_rng_state(self.generator[0])
        if self.generator[1] is not None:
            torch.cuda.set_rng_state(self.generator[1])
        self.generator = kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="multi30k-en-de")
    parser.add_argument("--size", default="base", help="model.preset")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=2000, help="updates of each training that are timed")
    parser.add_argument("--every", type=int, default=50, help="observe.every")
    parser.add_argument("--examples", type=int, default=16, help="observe.examples")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--twice", action="store_true", help="observe neither: what two equal trainings differ by")
    words = parser.parse_args()
    device = pick_device(words.device)
    with tempfile.TemporaryDirectory() as folder:
        compare(words, device, Path(folder))


def compare(words: argparse.Namespace, device: torch.device, folder: Path) -> None:
    """Trains both in turn and prints what came out."""
    overrides = [f"model.preset={words.size}", f"train.batch_tokens={words.batch_tokens}"]
    overrides += [f"observe.examples={words.examples}"]
    recipes = {
        name: read_recipe(words.recipe, [*overrides, f"observe.every={every}"])
        for name, every in (("plain", 0), ("observed", 0 if words.twice else words.every))
    }
    recipe = recipes["plain"]
    task = tasks.task(recipe.task_name).Task.open(
        recipe.task, recipe.data, recipe.tokenizer, paths=_paths(recipe), folder=folder
    )
    train, val = task.split("train", cache_folder()), task.split("val", cache_folder())
    trainings = {name: Training(recipe, task, val, device, folder) for name, recipe in recipes.items()}
    batches = make_batches(train, recipe, words.steps, device)
    shapes = {_shape(batch): batch for batch in batches}
    # each shape runs once eagerly and is captured the second time, and so is the look
    warm = [batch for batch in shapes.values() for _ in range(2)]
    warm += [warm[0]] * (-len(warm) % words.every)
    for name, training in trainings.items():
        print(f"{name}: {training.run(warm):.2f} s for the first {len(warm)} updates, {len(shapes)} shapes", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    order = list(trainings)
    rounds = [batches[i : i + words.every] for i in range(0, len(batches), words.every)]
    for part in rounds:
        turns = [part] if device.type == "cuda" else [[batch] for batch in part]
        spent = dict.fromkeys(trainings, 0.0)
        for turn in turns:
            order.reverse()
            for name in order:
                spent[name] += trainings[name].run(turn)
        for name in trainings:
            seconds[name].append(spent[name])
    report(words, seconds, [sum(batch.num_tokens for batch in part) for part in rounds])
    if not words.twice:
        observed = trainings["observed"].probe
        assert observed is not None
        observed.write()
        found = read_observations(folder / OBSERVATIONS)
        shape = " x ".join(map(str, found["entropy"].shape))
        print(f"observe.jsonl: {shape} (steps x layers x heads), steps {found['steps'][0]} to {found['steps'][-1]}")
    pairs = zip(*(training.model.parameters() for training in trainings.values()), strict=True)
    print(f"largest difference of the weights of both: {max((a - b).abs().max().item() for a, b in pairs):.3g}")


def report(words: argparse.Namespace, seconds: dict[str, list[float]], tokens: list[int]) -> None:
    """Rates, and the ratio of each round's two."""
    for name, times in seconds.items():
        step = 1000 * sum(times) / (len(times) * words.every)
        print(f"{name:9s} {sum(tokens) / sum(times):12,.0f} tokens/s  {step:8.3f} ms an update")
    ratios = sorted(a / b for a, b in zip(seconds["plain"], seconds["observed"], strict=True))
    low, high = (ratios[int(share * (len(ratios) - 1))] for share in (0.1, 0.9))
    print(
        f"observed / plain: {statistics.median(ratios):.4f} of the tokens/s (median of {len(ratios)} rounds; "
        f"a tenth below {low:.4f}, a tenth above {high:.4f}); of all time together "
        f"{sum(seconds['plain']) / sum(seconds['observed']):.4f}"
    )


def make_batches(train: Pairs, recipe: Recipe, number: int, device: torch.device) -> list[Batch]:
    """The first batches of a training, in whole rounds of them, ready for the device."""
    config, batches, epoch = recipe.train, list[Batch](), 0
    while len(batches) < number:
        plan = train.plan(batch_tokens=config.batch_tokens, multiple=config.bucket, seed=1, epoch=epoch, shuffle=True)
        made = (train.collate(planned) for planned in plan[: number - len(batches)])
        batches += [batch.pin() if device.type == "cuda" else batch for batch in made]
        epoch += 1
    return batches


def _shape(batch: Batch) -> tuple[int, ...]:
    assert batch.target is not None
    return (*batch.source.ids.shape, *batch.target.ids.shape)


def _paths(recipe: Recipe) -> Callable[[str], Sequence[Path]]:
    return lambda split: resolve(recipe.data, recipe.folder, [split]).get(split, ())


if __name__ == "__main__":
    main()
