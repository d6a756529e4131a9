"""Small runs of every family, trained for a moment: what is looked into is real, if not clever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from regard.recipe import read_recipe
from regard.run import Run, train

RECIPE = """
[task]
metrics = ["exact_match"]

[data]
train = ["pairs.tsv"]
val = ["pairs.tsv"]
test = ["pairs.tsv"]

[tokenizer]
kind = "characters"

[model]
family = "{family}"
{keys}
dropout = 0.0

[train]
max_steps = {steps}
learning_rate = 5e-3
warmup_steps = 10
batch_tokens = 512
device = "cpu"
"""
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
NUMBERS = ["yksi", "kaksi", "kolme", "neljä", "viisi", "kuusi", "seitsemän", "kahdeksan", "yhdeksän"]
SMALL = "embedding_dim = 16\nhidden_dim = 16\nencoder_layers = 1\ndecoder_layers = 1"
TRANSFORMER = "model_dim = 32\nffn_dim = 32\nnum_heads = 4\nencoder_layers = 1\ndecoder_layers = 2"
FAMILIES = {
    "transformer": ("transformer", TRANSFORMER, 60),
    "additive": ("recurrent", f'attention = "additive"\n{SMALL}', 5),
    "multiplicative": ("recurrent", f'attention = "multiplicative"\n{SMALL}', 5),
    "none": ("recurrent", f'attention = "none"\n{SMALL}', 2),
    "convolutional": ("convolutional", SMALL, 5),
    "t5": ("transformer", f'position = "t5"\n{TRANSFORMER}', 5),
}


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Trains a family on nine words, once."""
    made: dict[str, Run] = {}

    def make(name: str) -> Run:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            family, keys, steps = FAMILIES[name]
            pairs = "".join(f"{a}\t{b}\n" for a, b in zip(WORDS, NUMBERS, strict=True))
            (folder / "pairs.tsv").write_text(pairs, encoding="utf-8")
            recipe = Path(folder / "recipe.toml")
            recipe.write_text(RECIPE.format(family=family, keys=keys, steps=steps), encoding="utf-8")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("XDG_CACHE_HOME", str(folder))
                made[name] = train(read_recipe(recipe, [f"run={folder / 'run'}"]))
        return made[name]

    return make


@pytest.fixture
def run(run_of: Callable[[str], Run]) -> Run:
    return run_of("transformer")
