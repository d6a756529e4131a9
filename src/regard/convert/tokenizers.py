"""Tokenizers come along: their file, and which of their tokens begin, end, fill up, hide and are unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import tasks
from regard.data.tokenizers import Tokenizer
from regard.errors import RunError
from regard.models import Sizes
from regard.models._foreign import Foreign
from regard.run import Run
from regard.train.checkpoint import write_text
from regard.types import Specials

FILE, CONFIG, MAP, GENERATION = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)
NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def read_tokenizer(folder: Path, config: Mapping[str, Any], family: Foreign, sizes: Sizes) -> Tokenizer:
    """The tokenizer of a Hugging Face folder with its special ids; one of ids where there is none."""
    import tokenizers

    known = {"vocab_size": sizes.source, "model_type": config.get("model_type")}
    said = _ids_of(_table(folder / GENERATION)) | _ids_of(config)
    if not (folder / FILE).is_file():
        return Tokenizer.of_ids(sizes.source, family.specials(known | said))
    try:
        inner = tokenizers.Tokenizer.from_file(str(folder / FILE))
    except Exception as error:  # the library raises nothing narrower
        remedy = "download it again, or take it away: then the run reads ids"
        raise RunError("the file is no tokenizer", got=error, where=folder / FILE, remedy=remedy) from None
    names = _names(_table(folder / MAP)) | _names(_table(folder / CONFIG))
    found = {f"{name}_token_id": inner.token_to_id(token) for name, token in names.items()}
    return Tokenizer.foreign(inner, family.specials(known | found | said), sizes.source)


def _ids_of(config: Mapping[str, Any]) -> dict[str, int]:
    """The special ids of a config.json; of several ends none is the one, but the first."""
    first = {name: value[0] if isinstance(value, list) and value else value for name, value in config.items()}
    return {name: value for name, value in first.items() if name.endswith("_token_id") and isinstance(value, int)}


def _names(table: Mapping[str, Any]) -> dict[str, str]:
    said = {name: table.get(f"{name}_token") for name in NAMES}
    plain = {name: token.get("content") if isinstance(token, dict) else token for name, token in said.items()}
    return {name: token for name, token in plain.items() if isinstance(token, str)}


def _table(path: Path) -> dict[str, Any]:
    """The object in a JSON file that need not be there."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError("the file cannot be read", got=error, wanted="JSON", where=path) from None
    return table if isinstance(table, dict) else {}


def kind_of(run: Run) -> str:
    """The kind of model that a run's task trains: see `regard.models`."""
    kind: str = tasks.task(run.recipe.task_name).KIND
    return kind


def tokenizers_of(run: Run) -> dict[str, Tokenizer]:
    """The tokenizers of a run by the name of their file in other forms; two where its texts have two vocabularies."""
    if len(tasks.task(run.recipe.task_name).FILES) == 1:
        return {FILE: run.task.tokenizer}
    if run.task.sizes.shared:
        return {FILE: run.task.source}
    return {"tokenizer.source.json": run.task.source, "tokenizer.target.json": run.task.target}


def specials_of(run: Run) -> Specials:
    """The special ids of what a run writes."""
    found: Specials = list(tokenizers_of(run).values())[-1].specials
    return found


def special_keys(run: Run) -> dict[str, int]:
    """What config.json calls the special ids of a run."""
    special = specials_of(run)
    start = {"seq2seq": "decoder_start", "causal": "bos"}.get(kind_of(run))
    found = {"eos": special.end, "pad": special.pad} if start else {"pad": special.pad}
    return {f"{name}_token_id": i for name, i in {**found, **({start: special.start} if start else {})}.items()}


def write_tokenizers(run: Run, folder: Path) -> None:
    """Writes what `AutoTokenizer` reads; what it encodes is what the model reads, the end of a source included."""
    for name, tokenizer in tokenizers_of(run).items():
        if tokenizer.reads_ids:
            return
        write_text(folder / name, _json(run, tokenizer))
        if name == FILE:
            table = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
            write_text(
                folder / CONFIG, json.dumps(table | _tokens(run, tokenizer), indent=2, ensure_ascii=False) + "\n"
            )


def _tokens(run: Run, tokenizer: Tokenizer) -> dict[str, str]:
    """What tokenizer_config.json calls the special pieces."""
    special, reads = tokenizer.specials, kind_of(run) == "encoder"
    ids = {"pad": special.pad, "eos": special.end, "unk": special.unk, "mask": special.mask}
    ids |= {"cls": special.start, "sep": special.end} if reads else {}
    ids |= {"bos": special.start} if special.start not in (special.pad, special.end) else {}
    named = {name: None if i is None else tokenizer.inner.id_to_token(i) for name, i in ids.items()}
    return {f"{name}_token": token for name, token in named.items() if token is not None}


def _json(run: Run, tokenizer: Tokenizer) -> str:
    """The tokenizer's file; one of ours ends a source as the task does, others say themselves what they add."""
    table = json.loads(tokenizer.to_json())
    if kind_of(run) == "seq2seq" and table.get("post_processor") is None:
        end = tokenizer.inner.id_to_token(tokenizer.specials.end)
        one, two = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}
        last = {"SpecialToken": {"id": end, "type_id": 0}}
        table["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [one, last],
            "pair": [one, last, two, last],
            "special_tokens": {end: {"id": end, "ids": [tokenizer.specials.end], "tokens": [end]}},
        }
    return json.dumps(table, ensure_ascii=False)
