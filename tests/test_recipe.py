"""Recipes: what ships, what is read, what is refused and in which words, and what comes back equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import models, tasks
from regard.errors import ConfigError
from regard.models import Sizes
from regard.ops.attention import backends_used
from regard.recipe import SECTIONS, Recipe, differences, find, parse, read_recipe, shipped
from regard.types import Batch, Sequences

SHIPPED = {path.stem: path for path in shipped()}
every_recipe = pytest.mark.parametrize("name", SHIPPED)

SMALLEST = """
[data]
train = ["train.tsv"]
val = ["val.tsv"]
"""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """On a busy machine two wait for each other."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(number)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Recipe]:
    """Writes a recipe and reads it."""

    def run(text: str, *overrides: str) -> Recipe:
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        return read_recipe(tmp_path / "mine.toml", overrides)

    return run


@pytest.fixture
def error_of(write: Callable[..., Recipe], tmp_path: Path) -> Callable[..., str]:
    """What is said of a recipe that cannot be read, with FILE for its path."""

    def run(text: str, *overrides: str) -> str:
        with pytest.raises(ConfigError) as error:
            write(text, *overrides)
        return str(error.value).replace(str(tmp_path / "mine.toml"), "FILE")

    return run


# --- the recipes that ship


def test_recipes_ship() -> None:
    assert {"cmudict-demo", "cmudict", "multi30k-en-de", "multi30k-en-fr", "tatoeba-en-zh"} <= set(SHIPPED)


@every_recipe
def test_a_shipped_recipe_is_found_by_name_and_reads_back_equal(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(name)
    assert find(name) == SHIPPED[name]
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert read_recipe(path) == dataclasses.replace(recipe, folder=tmp_path)
    assert read_recipe(path).to_toml() == recipe.to_toml()


@every_recipe
def test_the_backend_that_a_shipped_recipe_uses(name: str) -> None:
    """Every attention of training and of decoding is fused on a CPU if the recipe does not say otherwise; some score in
    their own way."""
    recipe = read_recipe(name)
    if recipe.finetune.base:  # the model is the base's
        return
    kind, config = tasks.task(recipe.task_name).KIND, recipe.model
    torch.manual_seed(0)
    pieces = tuple(f"{i:b}" for i in range(40))
    sizes = Sizes(40, 40, recipe.tokenizer.shared or kind != "seq2seq", pieces)
    model = models.build(recipe.family, config, sizes, kind)
    source = Sequences(torch.randint(4, 40, (2, 7)), torch.tensor([7, 4]))
    with backends_used() as trained:
        model.hidden(Batch(source, Sequences(torch.randint(4, 40, (2, 6)), torch.tensor([6, 5])))).sum().backward()
    with backends_used() as decoded, torch.inference_mode():
        state = model.eval().start(source, 8) if kind != "encoder" else None
        for _ in range(2 if state else 0):
            _, state = model.step(torch.full((2, 1), 5), state)
    if recipe.family == "transformer":
        used = "reference" if name == "cmudict" else "fused"  # over a dozen letters
        assert trained == [used] * (config.encoder_layers + 2 * config.decoder_layers)
        assert decoded == [used] * (config.encoder_layers + 2 * 2 * config.decoder_layers)
    elif recipe.family == "convolutional" and kind != "encoder":
        assert trained == ["fused"] * config.decoder_layers
        assert decoded == ["fused"] * (2 * config.decoder_layers)
    elif recipe.family == "gpt":
        assert (trained, decoded) == (["fused"] * config.layers, ["fused"] * 2 * config.layers)
    elif recipe.family in ("recurrent", "convolutional", "coattention", "memory"):
        assert trained == decoded == []
    else:
        assert set(trained + decoded) == {"fused"}


# --- reading


def test_the_smallest_recipe(write: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = write(SMALLEST)
    assert (recipe.run, recipe.task_name, recipe.family) == ("runs/mine", "translation", "transformer")
    assert recipe.folder == tmp_path
    assert recipe.data.train == ("train.tsv",)
    assert recipe.model == models.family("transformer").Config()


def test_a_resolved_recipe_has_every_key(write: Callable[..., Recipe]) -> None:
    text = write(SMALLEST, "model.preset=tiny", "run=elsewhere", "train.ema=0.99", 'task.metrics=["ter"]').to_toml()
    lines = text.splitlines()
    assert lines[0] == 'run = "elsewhere"'
    assert [line for line in lines if line.startswith("[")] == [f"[{section}]" for section in SECTIONS]
    for line in (
        'name = "translation"',
        'metrics = ["ter"]',
        'family = "transformer"',
        'preset = "tiny"',
        "model_dim = 128",
        "ema = 0.99",
    ):
        assert line in lines


def test_overrides_win(write: Callable[..., Recipe]) -> None:
    text = SMALLEST + '[model]\npreset = "tiny"\nmodel_dim = 64\n[train]\nmax_steps = 5\n'
    recipe = write(
        text, "train.max_steps=7", "model.model_dim=32", "model.family=transformer", "run=r", "decode.beam=2"
    )
    assert (recipe.train.max_steps, recipe.model.model_dim, recipe.run, recipe.decode.beam) == (7, 32, "r", 2)
    assert recipe.model.num_heads == 4  # of the preset
    other = write(SMALLEST, "model.family=recurrent", "model.attention=none")
    assert (other.family, other.model.attention) == ("recurrent", "none")


def test_a_recipe_by_its_path_in_any_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cmudict").write_text(SMALLEST)  # a file of one's own goes before a shipped recipe of that name
    monkeypatch.chdir(tmp_path)
    assert find("cmudict") == Path("cmudict")
    assert find(str(tmp_path / "cmudict")) == tmp_path / "cmudict"
    assert read_recipe("cmudict").data.train == ("train.tsv",)


# --- refusing

TOP = "run, task, data, tokenizer, model, finetune, train, observe, decode"


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (
            "[modle]\nlayers = 2\n",
            (),
            f'unknown key "modle"\n  got:    modle\n  wanted: {TOP}\n  where:  FILE\n  try:    did you mean "model"?',
        ),
        ("zzz = 1\n", (), f'unknown key "zzz"\n  got:    zzz\n  wanted: {TOP}\n  where:  FILE'),
        ("model = 4\n", (), '"model" must be a section\n  got:    4\n  wanted: [model]\n  where:  FILE'),
        (
            "[task]\nname = 3\n",
            (),
            '"task.name" must be a name\n  got:    3\n  wanted: for example "translation"\n  where:  FILE',
        ),
        (
            "[model]\nfamily = []\n",
            (),
            '"model.family" must be a name\n  got:    []\n  wanted: for example "transformer"\n  where:  FILE',
        ),
        (
            SMALLEST,
            ("task.name=translate",),
            'no such task\n  got:    translate\n  wanted: TASKS\n  where:  FILE\n  try:    did you mean "translation"?',
        ),
        (
            SMALLEST,
            ("task.name=xyz",),
            "no such task\n  got:    xyz\n  wanted: TASKS\n  where:  FILE\n  try:    `regard tasks` lists them",
        ),
        (
            SMALLEST,
            ("model.family=recurent",),
            f"no such model family\n  got:    recurent\n  wanted: {', '.join(models.names('seq2seq'))}\n"
            '  where:  FILE\n  try:    did you mean "recurrent"?',
        ),
        (
            SMALLEST,
            ("model.family=gpt",),
            "the task needs a model that reads one text and writes another\n  got:    gpt, which continues a text\n"
            f"  wanted: {', '.join(models.names('seq2seq'))}\n  where:  FILE",
        ),
        (
            SMALLEST,
            ("model.preset=tny",),
            'transformer has no preset "tny"\n  got:    tny\n  wanted: base, tiny, small, big\n'
            '  where:  FILE\n  try:    did you mean "tiny"?',
        ),
        (
            SMALLEST,
            ("run=3",),
            '"run" must name a folder\n  got:    3\n  wanted: for example "runs/mine"\n  where:  FILE',
        ),
        (
            SMALLEST,
            ("run=",),
            '"run" must name a folder\n  got:    \n  wanted: for example "runs/mine"\n  where:  FILE',
        ),
        (
            "",
            (),
            "data.train does not name its files\n  got:    []\n"
            "  wanted: one .tsv or .jsonl file, or two parallel text files\n  where:  [data] in FILE",
        ),
        (
            SMALLEST,
            ("train.max_steps=0",),
            "max_steps is too small\n  got:    0\n  wanted: 1 or more\n  where:  [train] in FILE",
        ),
        (
            SMALLEST,
            ("decode.beam=many",),
            "\"decode.beam\" has a wrong value\n  got:    'many'\n  wanted: a valid integer\n  where:  FILE",
        ),
        (
            SMALLEST,
            ("tokenizer.kind=bpee",),
            "\"tokenizer.kind\" has a wrong value\n  got:    'bpee'\n  wanted: 'bpe', 'byte-bpe', "
            "'unigram', 'wordpiece', 'characters' or 'words'\n  where:  FILE\n  try:    did you mean \"bpe\"?",
        ),
    ],
)
def test_recipes_that_cannot_be_meant(
    error_of: Callable[..., str], text: str, overrides: tuple[str, ...], message: str
) -> None:
    assert error_of(text, *overrides) == message.replace("TASKS", ", ".join(tasks.names()))


@pytest.mark.parametrize(
    ("section", "near"), [("task", "metrics"), ("train", "max_steps"), ("decode", "n_best"), ("model", "num_heads")]
)
def test_an_unknown_key_of_a_section_names_the_nearest(error_of: Callable[..., str], section: str, near: str) -> None:
    said = error_of(SMALLEST, f"{section}.{near}s=1")
    assert said.startswith(f'unknown key "{section}.{near}s"\n  got:    {near}s\n')
    assert said.endswith(f'\n  where:  FILE\n  try:    did you mean "{section}.{near}"?')


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("multi30k-en-ed", 'did you mean "multi30k-en-de"?'),
        ("cmudict.toml", 'did you mean "cmudict"?'),
        ("no/such/file", "`regard recipes` lists the ones that came with regard"),
    ],
)
def test_no_such_recipe(name: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_recipe(name)
    assert str(error.value) == (
        f"no such recipe\n  got:    {name}\n  wanted: a .toml file or a recipe's name\n  try:    {remedy}"
    )


# --- what a run cannot change


def test_differences() -> None:
    def made(**sections: dict[str, Any]) -> Recipe:
        data = {"train": ["train.tsv"], "val": ["val.tsv"], **sections.pop("data", {})}
        return parse({"data": data, **sections}, where="recipe.toml", folder=Path("."))

    first = made()
    assert differences(first, first) == []
    assert differences(first, dataclasses.replace(first, folder=Path("elsewhere"), run="other")) == []
    free = made(train={"max_steps": 3}, decode={"beam": 2}, task={"label_smoothing": 0.2}, data={"test": ["new.tsv"]})
    assert differences(first, free) == []
    fixed = made(data={"max_length": 9}, tokenizer={"kind": "words"}, model={"preset": "tiny"})
    assert differences(first, fixed) == [
        "data.max_length",
        "tokenizer.kind",
        "model.preset",
        "model.encoder_layers",
        "model.decoder_layers",
        "model.model_dim",
        "model.num_heads",
        "model.ffn_dim",
    ]
    assert differences(first, made(model={"family": "recurrent"})) == ["model.family"]
    tasks_of_text = [{"name": "language-modeling", "context": n, "stride": n // 2} for n in (64, 32)]
    text, shorter = (made(task=task, model={"family": "gpt"}) for task in tasks_of_text)
    assert differences(text, shorter) == ["task.context"]  # another plan of batches; the stride is of evaluation alone
    assert differences(first, dataclasses.replace(first, task_name="tagging")) == ["task.name"]


@pytest.mark.parametrize(
    ("task", "section", "key", "value"),
    [
        ("language-modeling", "data", "max_length", 8),
        ("masked-language-modeling", "data", "too_long", "truncate"),
        ("span-corruption", "train", "bucket", 16),
        ("link-prediction", "tokenizer", "kind", "words"),
    ],
)
def test_keys_that_have_no_part_in_a_task(tmp_path: Path, task: str, section: str, key: str, value: object) -> None:
    family = {"language-modeling": "gpt", "span-corruption": "t5"}.get(task, "bert")
    table: dict[str, Any] = {"task": {"name": task}, "model": {"family": family}}
    table["data"] = {"train": ["a.tsv" if task == "link-prediction" else "a.txt"], "val_share": 0.1}
    table.setdefault(section, {})[key] = value
    with pytest.raises(ConfigError, match=f"{section}.{key} has no part in {task}\n"):
        parse(table, where="mine.toml", folder=tmp_path)
