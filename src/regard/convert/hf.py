"""Hugging Face folders (config.json, safetensors, tokenizer.json): read as runs, and written from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import models, tasks
from regard.config import to_table
from regard.convert import check
from regard.convert.tokenizers import kind_of, read_tokenizer, special_keys, write_tokenizers
from regard.data.tokenizers import Tokenizer
from regard.errors import ConfigError, RunError
from regard.models import Sizes
from regard.models._foreign import as_theirs, from_theirs
from regard.recipe import RECIPE, Recipe, parse
from regard.run import Run, load
from regard.train.checkpoint import MODEL, load_weights, save_weights, write_text

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
# the task that a family of each kind is a run of; an encoder that cannot say what is hidden gives vectors
TASKS = {"seq2seq": "translation", "causal": "language-modeling", "encoder": "masked-language-modeling"}
VECTORS = "vectors"


def require_folder(path: Path) -> None:
    """Raises where this is no folder with a config.json."""
    if not (path / CONFIG).is_file():
        wanted = f"a run ({RECIPE}) or a Hugging Face folder ({CONFIG}, {MODEL})"
        raise RunError("there is nothing to convert", got=path, wanted=wanted)


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a folder, of a model that a family here knows."""
    file = path / CONFIG
    table, known = read_json(file), models.exchanged()
    name = table.get("model_type")
    if name not in known:
        wanted = ", ".join(sorted(known))
        raise ConfigError("no family has this model_type", got=name, wanted=wanted, where=file)
    return table


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError("the file cannot be read", got=error, wanted="JSON", where=path) from None
    if not isinstance(table, dict):
        raise RunError("the file cannot be read", got=type(table).__name__, wanted="a JSON object", where=path)
    return table


def read_tensors(path: Path, architecture: str) -> dict[str, Tensor]:
    """All tensors of a folder, of one file or of several that an index names."""
    remedy = "download it again: its size and its sha256 are written beside it"
    if (path / MODEL).is_file():
        return load_weights(path / MODEL, remedy=remedy)
    if (path / INDEX).is_file():
        parts = read_json(path / INDEX).get("weight_map", {})
        if any(Path(name).name != name for name in parts.values()):
            raise RunError("the index names files elsewhere", got=sorted(set(parts.values())), where=path / INDEX)
        found: dict[str, Tensor] = {}
        for name in sorted(set(parts.values())):
            if not (path / name).is_file():
                what = "the index names a file that is not there"
                raise RunError(what, got=name, where=path / INDEX, remedy="download that one as well")
            found |= load_weights(path / name, remedy=remedy)
        missing = sorted(parts.keys() - found.keys())
        if missing:
            raise RunError("the weights lack a tensor", got=f"no {missing[0]}", where=path / INDEX, remedy=remedy)
        return found
    raise RunError("there are no weights in safetensors", **_way_out(path, architecture))


def _way_out(path: Path, architecture: str) -> dict[str, Any]:
    wanted = f"{MODEL}, or {INDEX} and the files that it names"
    pickled = sorted(file.name for kind in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in path.glob(kind))
    if not pickled:
        return {"got": path, "wanted": wanted}
    save = f"transformers.{architecture}.from_pretrained('{path}').save_pretrained('OTHER')"
    return {
        "got": f"{', '.join(pickled)}: a pickle, which could run any code",
        "wanted": wanted,
        "where": path,
        "remedy": f'if you trust who made it: python -c "import transformers; {save}"; then copy its tokenizer.json',
    }


def to_run(source: Path, draft: Path, target: Path, *, say: Callable[[str], None]) -> None:
    """Makes a run folder of a Hugging Face folder, and sees that it is the same model."""
    table = read_config(source)
    name = models.exchanged()[table["model_type"]]
    family: Any = models.family(name)
    architecture = (table.get("architectures") or ["AutoModel"])[0]
    tensors = read_tensors(source, architecture)
    config, sizes, state = from_theirs(family, table, tensors, where=source)
    say(f"read:      {table['model_type']} ({architecture}), {len(tensors)} tensors")
    tokenizer = read_tokenizer(source, table, family, sizes)
    task = _task(family, config, tokenizer)
    for file in tasks.task(task).FILES:
        tokenizer.save(draft / file)
    say(f"tokenizer: {_kind(tokenizer)}")
    save_weights(draft / MODEL, state)
    written = _recipe(task, name, config, target)
    written["task"] |= _pooling(source, written["task"]) if task == VECTORS else {}
    recipe = parse(written, where=CONFIG, folder=draft, trains=False)
    mark = f"# Written by regard: converted from a Hugging Face folder ({table['model_type']})."
    write_text(draft / RECIPE, f"{mark}\n{recipe.to_toml()}")
    run = _loaded(draft, source)
    say(f"logits:    {check.same_logits(run, source, family)}")
    say(f"back:      {check.same_tensors_back(family, config, sizes, tensors, load_weights(draft / MODEL))}")


def _loaded(draft: Path, source: Path) -> Run:
    try:
        return load(draft, "cpu")
    except RunError as error:  # a tensor of another shape than config.json says: the draft is of no interest
        raise RunError(error.what, got=error.got, wanted=error.wanted, where=f"{source / CONFIG}, {MODEL}") from None


def _kind(tokenizer: Tokenizer) -> str:
    if tokenizer.reads_ids:
        return "none there: the run reads and writes ids, as numbers"
    return f"tokenizer.json, {tokenizer.inner.get_vocab_size():,} tokens"


def _task(family: Any, config: Any, tokenizer: Tokenizer) -> str:
    hides = asdict(config).get("masked_head", True) and tokenizer.specials.mask is not None
    return TASKS[family.KINDS[0]] if family.KINDS[0] != "encoder" or hides else VECTORS


def _pooling(source: Path, task: dict[str, Any]) -> dict[str, Any]:
    """How a vector is made of the states, as sentence-transformers says it, where it does."""
    pooling, most = (_said(source / name) for name in ("1_Pooling/config.json", "sentence_bert_config.json"))
    modules = source / "modules.json"
    found: dict[str, Any] = {"context": min(task["context"], most.get("max_seq_length") or task["context"])}
    if modules.is_file():
        found["normalize"] = "Normalize" in modules.read_text(encoding="utf-8")
    return found | ({"pooling": "first"} if pooling.get("pooling_mode_cls_token") else {})


def _said(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _recipe(task: str, family: str, config: Any, target: Path) -> dict[str, Any]:
    """The recipe of a run that was trained elsewhere: it says nothing of data."""
    longest = asdict(config).get("max_length", 512)
    table: dict[str, Any] = {
        "run": str(target),
        "task": {"name": task},
        "data": {},
        "model": {"family": family, **to_table(config)},
        "decode": {"max_length": min(256, longest)},
    }
    if task == TASKS["seq2seq"]:
        table["data"] = {"max_length": min(512, longest) - 1, "too_long": "truncate"}  # and one for the end
    else:
        table["task"]["context"] = min(1024, longest)
    if task == TASKS["causal"]:
        table["decode"]["method"] = "greedy"
    return table


def from_run(run: Run, draft: Path, *, say: Callable[[str], None]) -> None:
    """Makes a Hugging Face folder of a run, and sees that it is the same model."""
    recipe, sizes = run.recipe, run.task.sizes
    state = load_weights(run.folder / MODEL)
    family = _exchanging(recipe, sizes, state)
    table, tensors = as_theirs(family, recipe.model, sizes, state)
    special = special_keys(run)
    table |= {key: value for key, value in special.items() if table.get(key) is None}
    if table.get("pad_token_id") != special.get("pad_token_id"):  # behind which their positions begin
        first = getattr(recipe.model, "first_position", 0)
        got = f"model.first_position = {first}, and padding {special.get('pad_token_id')}"
        wanted = f"model.first_position = {special.get('pad_token_id', 0) + 1}"
        raise ConfigError("their positions begin behind the id of the padding", got=got, wanted=wanted)
    table["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    save_weights(draft / MODEL, tensors, {"format": "pt"})
    write_json(draft / CONFIG, table)
    write_tokenizers(run, draft)
    if kind_of(run) != "encoder":
        write_json(draft / "generation_config.json", special_keys(run))
    say(f"written:   {table['model_type']} ({table['architectures'][0]}), {len(tensors)} tensors")
    say(f"logits:    {check.same_logits(run, draft, family)}")
    say(f"back:      {_back(run, family, draft, state)}")


def _back(run: Run, family: Any, draft: Path, state: dict[str, Tensor]) -> str:
    return check.same_state_back(family, run.recipe.model, read_config(draft), load_weights(draft / MODEL), state)


def _exchanging(recipe: Recipe, sizes: Sizes, state: dict[str, Tensor]) -> Any:
    """The family of a run that others have a place for, and for all of it."""
    family: Any = models.family(recipe.family)
    if recipe.family not in models.exchanged().values():
        wanted = ", ".join(sorted(set(models.exchanged().values())))
        raise ConfigError("transformers has no model of this family", got=recipe.family, wanted=wanted)
    family.to_foreign(recipe.model, sizes)  # names the keys that stand against it
    more = sorted(state.keys() - {pair.ours for pair in family.pairs(recipe.model)})
    if more:  # a head that a task put beside the model
        got = f"{', '.join(more[:3])} of a run of {recipe.task_name}"
        raise ConfigError("they have no place for a part of this run", got=got, wanted="the model itself")
    return family


def write_json(path: Path, table: dict[str, Any]) -> None:
    """Writes a table as Hugging Face's own files are written."""
    write_text(path, json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
