"""Fine-tuning: what is taken from a base, what stays as it is, how fast the rest learns, LoRA, and errors."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard import models
from regard.base import read_base, settled
from regard.config import read_section, read_toml
from regard.data.tokenizers import TokenizerConfig
from regard.errors import ConfigError, RunError
from regard.models import Sizes
from regard.recipe import Recipe, parse
from regard.run import Run, load, train
from regard.train import checkpoint
from regard.train.config import TrainConfig
from regard.train.finetune import FinetuneConfig, frozen_names, layer_depths, plain_weights, prepare
from regard.train.optim import make_optimizer, set_learning_rate
from regard.train.step import Step
from regard.types import Batch, Sequences

BERT = {"family": "bert", "preset": "tiny", "layers": 2, "model_dim": 16, "num_heads": 2, "ffn_dim": 32}
GPT = {"family": "gpt", "preset": "tiny", "layers": 2, "model_dim": 16, "num_heads": 2, "ffn_dim": 32, "max_length": 16}
TRANSFORMER = {"family": "transformer", "preset": "tiny", "encoder_layers": 1, "decoder_layers": 2}
TRANSFORMER |= {"model_dim": 16, "num_heads": 2, "ffn_dim": 32}
TRAIN: dict[str, Any] = {"device": "cpu", "max_steps": 6, "batch_tokens": 64, "learning_rate": 1e-2}
TRAIN |= {"warmup_steps": 2, "validate_every": 3, "checkpoint_every": 3, "log_every": 1}
SETS: dict[str, dict[str, Any]] = {
    "classification": {"task": {"name": "classification"}, "data": {"train": ["two.tsv"], "val": ["two.tsv"]}},
    "three": {"task": {"name": "classification"}, "data": {"train": ["three.tsv"], "val": ["three.tsv"]}},
    "language-modeling": {
        "task": {"name": "language-modeling", "context": 8, "line_ends": "token"},
        "data": {"train": ["one.txt"], "val_share": 0.2},
    },
    "other-text": {
        "task": {"name": "language-modeling", "context": 8, "line_ends": "token"},
        "data": {"train": ["other.txt"], "val_share": 0.2},
    },
    "translation": {"task": {"name": "translation"}, "data": {"train": ["pairs.tsv"], "val": ["pairs.tsv"]}},
}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small files for every task."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(1)
    rows = [" ".join(draw.choice("abcdef") for _ in range(draw.randint(2, 9))) for _ in range(40)]
    (folder / "two.tsv").write_text("".join(f"{'yes' if 'a' in row else 'no'}\t{row}\n" for row in rows))
    (folder / "three.tsv").write_text("".join(f"{len(row) % 3}\t{row}\n" for row in rows))
    (folder / "one.txt").write_text("".join(f"{row}\n" for row in rows))
    (folder / "other.txt").write_text("".join(f"{row[::-1]}\n" for row in rows))
    (folder / "pairs.tsv").write_text("".join(f"{row}\t{row[::-1]}\n" for row in rows))
    return folder


Make = Callable[..., Recipe]


@pytest.fixture(scope="module")
def recipe_of(texts: Path) -> Make:
    """A recipe of one of the sets; words are sections."""

    def make(name: str, run: Path, **sections: dict[str, Any]) -> Recipe:
        table = {"run": str(run), **SETS[name], **sections, "train": {**TRAIN, **sections.get("train", {})}}
        return parse(table, where="recipe.toml", folder=texts)

    return make


@pytest.fixture(scope="module")
def bases(recipe_of: Make, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A trained run of each task; each is trained once."""
    folder, kinds = tmp_path_factory.mktemp("bases"), {"language-modeling": GPT, "translation": TRANSFORMER}

    def get(name: str) -> Path:
        if not (folder / name).exists():
            train(recipe_of(name, folder / name, model=kinds.get(name, BERT), tokenizer={"kind": "words"}))
        return folder / name

    return get


def weights(run: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load_weights(run / checkpoint.MODEL)


# --- a base


@pytest.mark.parametrize(
    ("base", "name"),
    [("language-modeling", "other-text"), ("translation", "translation"), ("classification", "three")],
)
def test_a_run_begins_as_its_base_and_then_needs_it_no_more(
    bases: Callable[[str], Path],
    recipe_of: Make,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    base: str,
    name: str,
) -> None:
    folder = tmp_path / "base"
    shutil.copytree(bases(base), folder)
    still = {"learning_rate": 1e-12, "max_steps": 3, "weight_decay": 0.0}  # so little that no weight moves
    recipe = recipe_of(name, tmp_path / "run", model={"dropout": 0.25}, finetune={"base": str(folder)}, train=still)
    assert (recipe.family, recipe.model) == ("", {"dropout": 0.25})
    run = train(recipe)
    said = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("base:"))
    before, after = weights(folder), weights(run.folder)
    shared = [key for key in after if not key.startswith("classify")]
    for key in shared:
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=1e-9)
    fresh = "; fresh: classify.weight, classify.bias; not taken: classify.bias, classify.weight"
    assert said == f"base:  {len(shared)} weights taken from {folder.resolve()}" + (fresh if name == "three" else "")

    # the family, the model and the tokenizer are those of the base, and stand in the run's own recipe
    old, new = (read_toml(path / "recipe.toml") for path in (folder, run.folder))
    assert new["model"] == {**old["model"], "dropout": 0.25}
    assert new["tokenizer"] == old["tokenizer"]
    for file in folder.glob("tokenizer*.json"):
        assert (run.folder / file.name).read_text() == file.read_text()
    shutil.rmtree(folder)
    load(run.folder, "cpu")
    train(dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, max_steps=4)))
    assert checkpoint.checkpoints(run.folder / checkpoint.FOLDER)[-1].name == "step-00000004"


def test_a_base_of_another_kind_of_task_gives_its_body(
    recipe_of: Make, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    """As a masked language model does: names without `body.`, and a head that is not taken."""
    folder = tmp_path / "base"
    shutil.copytree(bases("classification"), folder)
    plain = {key.removeprefix("body."): value for key, value in weights(folder).items() if key.startswith("body.")}
    checkpoint.save_weights(folder / checkpoint.MODEL, {**plain, "head.bias": torch.zeros(3)})
    run = train(recipe_of("three", tmp_path / "run", finetune={"base": str(folder), "freeze": ["*"]}))
    after = weights(run.folder)
    assert all(torch.equal(value, after[f"body.{key}"]) for key, value in plain.items())


def test_a_run_that_has_weights_but_no_checkpoint_begins_at_its_base_again(
    recipe_of: Make, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    recipe = recipe_of("other-text", tmp_path / "run", finetune={"base": str(bases("language-modeling"))})
    train(recipe)
    first = weights(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / checkpoint.FOLDER)
    train(recipe)
    assert all(torch.equal(value, weights(tmp_path / "run")[key]) for key, value in first.items())


# --- freezing and rates


def model_of(family: str = "bert", **keys: Any) -> Any:
    table = {key: value for key, value in (BERT if family == "bert" else TRANSFORMER).items() if key != "family"}
    config = read_section(models.family(family).Config, models.with_preset(family, {**table, **keys}), where="here")
    return models.build(family, config, Sizes(10, 10, shared=True), models.family(family).KINDS[0])


class Dressed(nn.Module):
    """A family's model inside of a task's."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.classify = body, nn.Linear(16, 3)


def test_what_is_frozen_does_not_move_and_has_no_state(
    recipe_of: Make, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    finetune = {"base": str(bases("classification")), "freeze": ["embeddings", "layers:0", "*norm.bias"]}
    train(recipe_of("three", tmp_path / "run", finetune=finetune, task={"name": "classification", "pooling": "pooled"}))
    before, after = weights(bases("classification")), weights(tmp_path / "run")
    still = {key for key in after if key in before and torch.equal(before[key], after[key])}
    frozen = {key for key in after if key.startswith(("body.source.", "body.blocks.0.")) or key.endswith("norm.bias")}
    assert frozen
    assert {key for key in still if "next_sentence" not in key} == frozen  # the last is asked by nobody
    last = checkpoint.checkpoints(tmp_path / "run" / checkpoint.FOLDER)[-1]
    _, tensors, _ = checkpoint.load_checkpoint(last)
    assert len([key for key in tensors if key.endswith("exp_avg")]) == len(after) - len(frozen)


def test_names_that_are_frozen() -> None:
    model = model_of("transformer")
    names = [name for name, _ in model.named_parameters()]
    assert frozen_names(model, ["embeddings"]) == {name for name in names if name.startswith(("source.", "target."))}
    second = frozen_names(model, ["layers:1"])  # only the decoder has two
    assert second == {name for name in names if name.startswith("decoder.blocks.1.")}
    both = frozen_names(model, ["layers:0-1"])
    assert both == {name for name in names if ".blocks." in name}
    assert frozen_names(model, ["*.cross.*", "decoder.*.cross.*"]) == {name for name in names if ".cross." in name}


def test_rates_fall_from_layer_to_layer() -> None:
    model = Dressed(model_of(layers=3))
    rates = prepare(model, FinetuneConfig(base="b", layer_decay=0.5, freeze=("layers:1",)))
    assert rates["classify.weight"] == rates["body.pooler.0.weight"] == 1
    assert rates["body.blocks.2.attention.body.qkv.weight"] == 0.5
    assert rates["body.blocks.0.feedforward.norm.bias"] == 0.125
    assert rates["body.source.tokens.weight"] == rates["body.source.norm.bias"] == 0.0625
    assert not any(name.startswith("body.blocks.1.") for name in rates)

    optimizer = make_optimizer(model, TrainConfig(learning_rate=0.8, weight_decay=0.3), torch.device("cpu"), rates)
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = optimizer.param_groups
    assert {names[p] for group in groups for p in group["params"]} == set(rates)
    for rate in (0.8, 0.2):
        set_learning_rate(optimizer, rate)
        for group in groups:
            assert all(group["lr"] == pytest.approx(rate * rates[names[p]]) for p in group["params"])
            assert all(group["weight_decay"] == (0.3 if p.dim() > 1 else 0) for p in group["params"])
    depths = layer_depths(model_of("transformer"))
    assert depths["encoder.blocks.0.attention.norm.weight"] == depths["decoder.blocks.1.cross.norm.weight"] == 1
    assert depths["decoder.blocks.0.cross.norm.weight"] == 2
    assert depths["source.tokens.weight"] == 3


def test_embeddings_learn_at_a_rate_of_their_own_and_shrink_as_the_others() -> None:
    model = Dressed(model_of(layers=2))
    rates = prepare(model, FinetuneConfig(base="b", layer_decay=0.5), embedding_rate=16.0)
    assert rates["body.source.tokens.weight"] == 16 * 0.125
    assert rates["body.blocks.0.attention.body.qkv.weight"] == 0.25
    rates = prepare(model, FinetuneConfig(), embedding_rate=16.0)
    assert {name for name, rate in rates.items() if rate != 1} == {n for n in rates if n.startswith("body.source.")}

    config = TrainConfig(learning_rate=0.5, weight_decay=0.25)
    optimizer = make_optimizer(model, config, torch.device("cpu"), rates)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        pull = 1 - 0.5 * 0.25 if p.dim() > 1 else 1.0
        torch.testing.assert_close(p.detach(), before[name] * pull)


# --- LoRA


def test_merged_weights_answer_as_the_changes_beside_them() -> None:
    torch.manual_seed(3)
    model = model_of().eval()
    plain = {name: tensor.clone() for name, tensor in checkpoint.weights(model).items()}
    ids = torch.randint(10, (3, 7))
    batch = Batch(Sequences(ids, torch.tensor([7, 5, 2])))
    before = model.hidden(batch)
    config = FinetuneConfig(base="b", lora_rank=3, lora_alpha=12.0, lora_targets=("*.qkv", "*.feedforward.body.*"))
    rates = prepare(model, config)
    assert torch.equal(model.hidden(batch), before)  # it begins as the base
    assert len(rates) == 2 * 3 * 2  # up and down of three matrices in two layers
    for name in rates:
        nn.init.normal_(model.get_parameter(name), std=0.1)
    after = model.hidden(batch)
    assert (after - before).abs().max() > 0.01

    merged = plain_weights(model)
    assert merged.keys() == plain.keys()
    lora = model.blocks[0].attention.body.qkv.parametrizations.weight
    wanted = lora.original + 12 / 3 * lora[0].up @ lora[0].down
    torch.testing.assert_close(merged["blocks.0.attention.body.qkv.weight"], wanted, rtol=0, atol=1e-6)
    assert torch.equal(merged["blocks.0.attention.body.out.weight"], plain["blocks.0.attention.body.out.weight"])
    other = model_of().eval()
    checkpoint.put_weights(other, merged, where="here")
    torch.testing.assert_close(other.hidden(batch), after, rtol=0, atol=1e-6)


def test_a_run_with_lora_holds_a_plain_model(recipe_of: Make, bases: Callable[[str], Path], tmp_path: Path) -> None:
    base = bases("classification")
    run = train(recipe_of("three", tmp_path / "run", finetune={"base": str(base), "lora_rank": 2}))
    before, after = weights(base), weights(run.folder)
    assert before.keys() == after.keys()
    moved = {key for key in after if before[key].shape != after[key].shape or not torch.equal(before[key], after[key])}
    attention = {key for key in after if "attention.body" in key and key.endswith("weight")}
    assert moved == attention | {"classify.weight", "classify.bias"}
    for key in attention:
        assert torch.linalg.matrix_rank((after[key] - before[key]).double(), atol=1e-6) <= 2
    model, tensors, _ = checkpoint.load_checkpoint(checkpoint.checkpoints(run.folder / checkpoint.FOLDER)[-1])
    assert "body.blocks.0.attention.body.qkv.parametrizations.weight.0.up" in model
    assert len([key for key in tensors if key.endswith("exp_avg")]) == 2 * 4 + 2
    assert run.predict(["a b c"]) == load(run.folder, "cpu").predict(["a b c"])


def test_a_matrix_outside_of_the_layers_may_change(
    recipe_of: Make, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    finetune = {"base": str(bases("classification")), "lora_rank": 2, "lora_targets": ["pooler*"], "layer_decay": 0.5}
    rates = prepare(model_of(), FinetuneConfig(**{**finetune, "lora_targets": ("pooler*", "*qkv")}))
    assert rates["pooler.0.parametrizations.weight.0.up"] == 1
    assert rates["blocks.0.attention.body.qkv.parametrizations.weight.0.up"] == 0.25
    task = {"name": "classification", "pooling": "pooled"}
    train(recipe_of("three", tmp_path / "run", finetune=finetune, task=task))
    before, after = weights(bases("classification")), weights(tmp_path / "run")
    moved = {key for key in after if before[key].shape != after[key].shape or not torch.equal(before[key], after[key])}
    assert moved == {"body.pooler.0.weight", "classify.weight", "classify.bias"}


class Killed(BaseException):
    """The end of a process, as far as one process can play it."""


@pytest.mark.parametrize(
    ("finetune", "words"),
    [
        ({"lora_rank": 2, "layer_decay": 0.8}, {}),
        ({"lora_rank": 2}, {"ema": 0.9}),
        ({"lora_rank": 2}, {"average": 2, "checkpoint_every": 1}),
        ({"freeze": ["embeddings", "layers:0"], "layer_decay": 0.5}, {}),
    ],
    ids=["lora", "ema", "average", "frozen"],
)
def test_resume_is_exact(
    recipe_of: Make,
    bases: Callable[[str], Path],
    same: Callable[[Path, Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finetune: dict[str, Any],
    words: dict[str, Any],
) -> None:
    def recipe(name: str) -> Recipe:
        base = {"base": str(bases("classification")), **finetune}
        return recipe_of("three", tmp_path / name, finetune=base, model={"dropout": 0.1}, train=words)

    train(recipe("whole"))
    update, done = Step.update, iter(range(100))

    def fatal(step: Step) -> None:
        if next(done) == 4:
            raise Killed
        update(step)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", fatal)
        with pytest.raises(Killed):
            train(recipe("parts"))
    train(recipe("parts"))
    same(tmp_path / "whole", tmp_path / "parts")


# --- errors


def error_of(recipe: Recipe) -> str:
    with pytest.raises((ConfigError, RunError)) as error:
        train(recipe)
    return str(error.value)


def test_a_base_that_is_none(recipe_of: Make, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    said = error_of(recipe_of("three", tmp_path / "run", finetune={"base": str(folder)}))
    assert said == (
        f"the base of the fine-tuning is no run\n  got:    {folder}\n"
        "  wanted: a folder with recipe.toml and model.safetensors\n"
        "  try:    finetune.base=DIR, or train it first"
    )
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(RunError, match=r"a model of others\n(.*\n)*  try:    regard convert .*there runs/NAME"):
        read_base(folder)


def test_a_tokenizer_that_drops_line_ends_is_refused_with_a_base_too(
    recipe_of: Make, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    recipe = recipe_of("other-text", tmp_path / "run", finetune={"base": str(bases("language-modeling"))})
    text = dataclasses.replace(recipe, task=dataclasses.replace(recipe.task, line_ends="text"))
    assert error_of(text).startswith("the tokenizer drops the ends of lines\n  got:    the tokenizer of the base")


def test_a_base_that_was_never_trained(recipe_of: Make, bases: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(bases("language-modeling"), folder)
    (folder / checkpoint.MODEL).unlink()
    said = error_of(recipe_of("other-text", tmp_path / "run", finetune={"base": str(folder)}))
    assert said.startswith(f"the base has not been trained\n  got:    no {checkpoint.MODEL}")


def test_what_does_not_fit_the_base(recipe_of: Make, bases: Callable[[str], Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    base = {"base": str(bases("language-modeling"))}
    said = error_of(recipe_of("three", run, finetune=base))
    assert said.startswith("the task needs a model that reads a text\n  got:    gpt, which continues a text\n")
    assert said.endswith(f"  where:  finetune.base = {base['base']}")

    said = error_of(recipe_of("other-text", run, finetune=base, model={"layers": 3, "dropout": 0.5}))
    assert said == (
        "keys of [model] ask for other weights than the base has\n  got:    layers = 3, dropout = 0.5\n"
        f"  wanted: layers = 2, dropout = 0.1\n  where:  finetune.base = {base['base']}\n"
        "  try:    with a base, [model] may change dropout and what else changes no shape; leave the rest out"
    )
    said = error_of(recipe_of("other-text", run, finetune=base, model={"layer": 3}))
    assert said.startswith('unknown key "model.layer"')
    said = error_of(recipe_of("other-text", run, finetune=base, model={"family": "transformer_xl"}))
    assert said.startswith("the base is of another family\n  got:    transformer_xl\n  wanted: gpt\n")
    said = error_of(recipe_of("other-text", run, finetune=base, tokenizer={"kind": "characters"}))
    assert said.startswith("the tokenizer is that of the base\n")
    assert said.endswith("try:    leave [tokenizer] out")
    assert not run.exists()


def test_what_the_base_says_may_be_said_again(recipe_of: Make, bases: Callable[[str], Path], tmp_path: Path) -> None:
    base = {"base": str(bases("language-modeling"))}
    recipe = recipe_of("other-text", tmp_path, finetune=base, model=GPT, tokenizer={"kind": "words"})
    assert settled(recipe).tokenizer == TokenizerConfig(kind="words")
    assert settled(recipe) == settled(settled(recipe))


def test_the_base_of_a_run_that_began_stays_what_it_is(
    recipe_of: Make, bases: Callable[[str], Path], tmp_path: Path
) -> None:
    base = {"base": str(bases("classification"))}
    train(recipe_of("three", tmp_path / "run", finetune=base))
    for change, name in (({"lora_rank": 4}, "lora_rank"), ({"base": str(tmp_path)}, "base")):
        said = error_of(recipe_of("three", tmp_path / "run", finetune={**base, **change}))
        assert said.startswith(f"the run folder holds another model\n  got:    changed: finetune.{name}\n")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"freeze": ("head",)}, "what is fine-tuned has a base\n  got:    freeze without base\n"),
        ({"lora_rank": 2, "layer_decay": 0.5}, "what is fine-tuned has a base\n  got:    lora_rank, layer_decay"),
        ({"base": "b", "layer_decay": 0.0}, "layer_decay is a share\n  got:    0.0\n  wanted: 0 < x <= 1"),
        ({"weights": False}, "what is fine-tuned has a base\n  got:    weights = false without base\n"),
        ({"base": "b", "lora_alpha": 8.0}, "this is about changes of a low rank\n  got:    lora_alpha\n"),
        ({"base": "b", "lora_rank": -1}, "lora_rank is too small\n  got:    -1"),
        ({"base": "b", "lora_rank": 1, "lora_alpha": 0.0}, "lora_alpha is too small\n  got:    0.0"),
    ],
)
def test_sections_that_cannot_be_meant(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        FinetuneConfig(**keys)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"freeze": ("embedings",)}, 'finetune.freeze means no weight\n  got:    embedings\n  wanted: "embeddings", '),
        ({"freeze": ("layers:1-2",)}, "finetune.freeze: no such layers\n  got:    layers:1-2\n  wanted: layers:0-1, "),
        ({"freeze": ("layers:1-0",)}, "finetune.freeze: no such layers\n  got:    layers:1-0\n  wanted: layers:0-1, "),
        ({"freeze": ("*",)}, "nothing is left to learn\n  got:    freeze = ['*']\n"),
        (
            {"lora_rank": 2, "lora_targets": ("query",)},
            "finetune.lora_targets means no linear layer\n  got:    ['query']\n  wanted: blocks.0.attention.body.qkv, ",
        ),
    ],
)
def test_names_that_mean_nothing(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        prepare(model_of(), FinetuneConfig(base="b", **keys))
    assert str(error.value).startswith(message)


def test_a_run_of_an_encoder_alone_has_vectors(bases: Callable[[str], Path]) -> None:
    run: Run = load(bases("language-modeling"), "cpu")
    with pytest.raises(ConfigError, match="this model has no vectors of texts\n  got:    gpt for language-modeling"):
        run.vectors(["a"])
