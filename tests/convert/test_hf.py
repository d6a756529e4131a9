"""Folders of transformers to runs and back, through the command line: the same tensors, logits, ids and outputs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard import load
from regard.convert import check, convert
from regard.errors import ConfigError, DataError, RegardError, RunError
from regard.models import exchanged, family, gpt
from regard.types import Specials

Command = Callable[..., Any]


def tensors_of(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_file(folder / "model.safetensors")
    return found


def same_to_the_bit(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


def read_json(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return table


# --- there and back ---------------------------------------------------------------------------------------------------


def test_there_and_back(form: str, tmp_path: Path, regard: Command, make: Any) -> None:
    theirs = make.model(form)
    first = make.save(theirs, tmp_path / "first")
    there = regard("convert", first, tmp_path / "run")
    assert there.code == 0, there.err
    assert "logits:    largest difference" in there.out
    assert "tensors equal to the bit" in there.out
    back = regard("convert", tmp_path / "run", tmp_path / "second")
    assert back.code == 0, back.err
    assert "logits:    largest difference" in back.out
    assert same_to_the_bit(tensors_of(first), tensors_of(tmp_path / "second"))
    again, told = type(theirs).from_pretrained(tmp_path / "second", output_loading_info=True)
    assert not any(told.values())
    same_logits(theirs, again.eval(), tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "run", "second"]  # no draft is left


@torch.no_grad()
def same_logits(theirs: Any, again: Any, path: Path) -> None:
    """What the class gave before, what the one that came back gives, and what `load(run).logits` gives."""
    run, ids, lengths = load(path), torch.randint(5, 41, (3, 9)), torch.tensor([9, 4, 1])
    real = torch.arange(9) < lengths[:, None]
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": real.long()}
    targets = None
    if run.recipe.task_name == "translation":
        given["decoder_input_ids"] = targets = torch.randint(5, 41, (3, 6))
        real = torch.ones(3, 6, dtype=torch.bool)
    headless = type(theirs).__name__ == "BertModel"
    found = (run.hidden if headless else run.logits)(ids, targets, lengths=lengths)[real]
    for model in (theirs, again):
        out = model(**given)
        wanted = out[next(name for name in ("last_hidden_state", "prediction_logits", "logits") if name in out)][real]
        bound = 2e-5 * max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=bound)
    # rows without padding need no lengths
    whole = (run.hidden if headless else run.logits)(ids[:1], None if targets is None else targets[:1])
    torch.testing.assert_close(whole.flatten(0, 1), found[: whole.shape[1]], rtol=0.0, atol=2e-5)


def test_every_family_has_all_of_the_contract() -> None:
    names = ("MODEL_TYPES", "UNUSED", "from_foreign", "to_foreign", "specials", "settle", "pairs", "copies")
    for name in set(exchanged().values()):
        assert [part for part in names if part not in vars(family(name))] == [], name


def test_weights_in_several_files(tmp_path: Path, make: Any) -> None:
    folder = make.save(make.model("gpt2"), tmp_path / "many", max_shard_size="4KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert not (folder / "model.safetensors").exists()
    convert(folder, tmp_path / "run")
    convert(tmp_path / "run", tmp_path / "one")
    whole = transformers.GPT2LMHeadModel.from_pretrained(folder).state_dict()
    assert all(torch.equal(whole[name], tensor) for name, tensor in tensors_of(tmp_path / "one").items())
    index = read_json(folder / "model.safetensors.index.json")
    index["weight_map"]["more"] = next(iter(index["weight_map"].values()))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RunError, match=r"the weights lack a tensor\n  got:    no more"):
        convert(folder, tmp_path / "no")
    index["weight_map"]["more"] = "model-9.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    missing = r"the index names a file that is not there\n  got:    model-9.safetensors\n  where:  .*index.json\n  try"
    with pytest.raises(RunError, match=missing):
        convert(folder, tmp_path / "no")
    index["weight_map"]["more"] = "../elsewhere.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RunError, match="the index names files elsewhere"):
        convert(folder, tmp_path / "no")


@pytest.mark.parametrize("form", ["gpt2", "llama tied", "t5", "bart", "reformer"])
@pytest.mark.parametrize("named", ["the model without its head", "none", "one that nobody knows"])
def test_folders_that_do_not_name_the_class_of_their_model(
    form: str, named: str, tmp_path: Path, regard: Command, make: Any
) -> None:
    folder, plain = make.folder(form), named == "the model without its head"
    table, before = read_json(folder / "config.json"), tensors_of(folder)
    if plain and form in ("gpt2", "llama tied"):  # whose own files have what a head needs
        type(make.model(form).base_model).from_pretrained(folder).save_pretrained(folder)
        table = read_json(folder / "config.json")
    table["architectures"] = {"none": None, "one that nobody knows": ["MyModel"]}.get(named, table["architectures"])
    (folder / "config.json").write_text(json.dumps(table))
    made = regard("convert", folder, tmp_path / "run")
    assert made.code == 0, made.err
    assert "logits:    largest difference" in made.out
    convert(tmp_path / "run", tmp_path / "back")
    assert same_to_the_bit(before, tensors_of(tmp_path / "back"))


def test_a_tensor_of_another_shape_is_named_with_its_folder(tmp_path: Path, regard: Command, make: Any) -> None:
    folder = make.folder("gpt2")
    save_file({**tensors_of(folder), "transformer.ln_f.weight": torch.ones(3)}, folder / "model.safetensors")
    refused = regard("convert", folder, tmp_path / "run")
    assert refused.code == 2
    assert 'error: the weights do not fit the model at "norm.weight"\n  got:    (3,)\n' in refused.err
    assert f"where:  {folder / 'config.json'}, model.safetensors" in refused.err


def test_half_precision_stays_as_it_is(tmp_path: Path, make: Any) -> None:
    folder = make.save(make.model("llama").to(torch.bfloat16), tmp_path / "half")
    convert(folder, tmp_path / "run")
    assert load(tmp_path / "run").logits(torch.tensor([[5, 6]])).dtype == torch.float32
    convert(tmp_path / "run", tmp_path / "back")
    assert same_to_the_bit(tensors_of(folder), tensors_of(tmp_path / "back"))
    assert read_json(tmp_path / "back/config.json")["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("form", "root"), [("gpt2", "transformer."), ("llama", "model."), ("bart", "model."), ("bert masked", "bert.")]
)
def test_files_without_the_first_part_of_the_names(
    form: str, root: str, tmp_path: Path, regard: Command, make: Any
) -> None:
    folder = make.folder(form, "short")
    tensors = tensors_of(folder)
    save_file({name.removeprefix(root): x for name, x in tensors.items()}, folder / "model.safetensors")
    made = regard("convert", folder, tmp_path / "run")
    assert made.code == 0, made.err
    assert "have newer names" in made.out
    convert(tmp_path / "run", tmp_path / "back")
    assert same_to_the_bit(tensors, tensors_of(tmp_path / "back"))


# --- tokenizers -------------------------------------------------------------------------------------------------------


def test_the_tokenizer_comes_along(tmp_path: Path, regard: Command, make: Any) -> None:
    folder, theirs = make.folder("bert masked"), make.tokenizer()
    theirs.save_pretrained(folder)
    made = regard("convert", folder, tmp_path / "run")
    assert made.code == 0, made.err
    assert f"tokenizer: tokenizer.json, {len(theirs)} tokens" in made.out
    assert {"recipe.toml", "model.safetensors", "tokenizer.json", "tokenizer.specials.json"} == {
        path.name for path in (tmp_path / "run").iterdir()
    }
    ours = load(tmp_path / "run").task.tokenizer
    assert ours.size == 41
    assert ours.specials == Specials(start=2, end=3, pad=0, unk=1, mask=4)
    assert ours.encode_batch(make.texts) == theirs(make.texts, add_special_tokens=False).input_ids
    convert(tmp_path / "run", tmp_path / "second")
    assert load(tmp_path / "run").recipe.task_name == "masked-language-modeling"
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "second")
    assert again(make.texts).input_ids == theirs(make.texts).input_ids
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(again, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")


def test_an_encoder_without_a_head_gives_vectors(tmp_path: Path, regard: Command, make: Any) -> None:
    folder, tokenizer = make.folder("bert"), make.tokenizer()
    tokenizer.save_pretrained(folder)
    (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.Normalize"}]')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    convert(folder, tmp_path / "run")
    run = load(tmp_path / "run")
    assert run.recipe.task_name == "vectors"
    found = run.task.vectors(run.model, [*make.texts, "", "cat"], batch_tokens=20)
    given = tokenizer([*make.texts, "", "cat"], padding=True, truncation=True, max_length=12, return_tensors="pt")
    with torch.no_grad():
        states = theirs(**given).last_hidden_state * given["attention_mask"][..., None]
    mean = states.sum(1) / given["attention_mask"].sum(1, keepdim=True)
    wanted = torch.nn.functional.normalize(mean, dim=1)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(run.vectors([*make.texts, "", "cat"]), wanted, rtol=0.0, atol=1e-5)
    (tmp_path / "texts").write_text("cat\n")
    said = regard("predict", tmp_path / "run", tmp_path / "texts")
    torch.testing.assert_close(torch.tensor(json.loads(said.out)), wanted[-1], rtol=0.0, atol=1e-5)
    assert "has nothing to train or to score" in regard("evaluate", tmp_path / "run").err
    first = run.task.__class__(replace(run.task.config, pooling="first", normalize=False), run.task.tokenizer)
    torch.testing.assert_close(first.vectors(run.model, ["cat"])[0], states[-1, 0], rtol=0.0, atol=1e-5)
    run.task = first
    torch.testing.assert_close(run.vectors(["cat"])[0], states[-1, 0], rtol=0.0, atol=1e-5)  # as the run says, unless
    torch.testing.assert_close(run.vectors(["cat"], pooling="last")[0], states[-1, 2], rtol=0.0, atol=1e-5)  # asked for
    last = run.task.__class__(replace(run.task.config, pooling="last", normalize=False), run.task.tokenizer)
    torch.testing.assert_close(last.vectors(run.model, ["cat"])[0], states[-1, 2], rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "special"),
    [
        ("gpt2", Specials(2, 3, 0, 1, 4)),
        ("llama", Specials(2, 3, 0, 1, 4)),
        ("t5", Specials(0, 3, 0, 1, 4)),
        ("marian", Specials(0, 3, 0, 1, 4)),
        ("bart", Specials(3, 3, 0, 1, 4)),
        ("roberta", Specials(2, 3, 1, 1, 4)),  # config.json says where its padding is, and the positions rest on it
        ("xlnet", Specials(2, 3, 5, 1, 4)),
    ],
)
def test_special_ids_of_every_family(form: str, special: Specials, tmp_path: Path, make: Any) -> None:
    folder = make.folder(form)
    make.tokenizer().save_pretrained(folder)
    convert(folder, tmp_path / "run")
    task = load(tmp_path / "run").task
    tokenizer = task.target if form in ("t5", "marian", "bart") else task.tokenizer
    assert tokenizer.specials == special
    convert(tmp_path / "run", tmp_path / "second")
    table = read_json(tmp_path / "second/config.json")
    assert table["pad_token_id"] == special.pad
    if form in ("t5", "marian", "bart"):
        said = {"decoder_start_token_id": special.start, "eos_token_id": special.end, "pad_token_id": special.pad}
        assert {name: table[name] for name in said} == said
        assert read_json(tmp_path / "second/generation_config.json") == said


def test_a_run_without_a_tokenizer_reads_and_writes_ids(tmp_path: Path, regard: Command, make: Any) -> None:
    folder = make.folder("gpt2")
    assert "the run reads and writes ids" in regard("convert", folder, tmp_path / "run").out
    run = load(tmp_path / "run")
    (answer,) = run.predict(["7 8 9"], max_length=5)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 5, "pad_token_id": 0, "eos_token_id": 3}
    wanted = theirs.generate(torch.tensor([[7, 8, 9]]), suppress_tokens=[0], **options)[0, 3:].tolist()
    assert list(answer.ids[0]) == [i for i in wanted if i != 3]
    assert answer.text.split() == [str(i) for i in answer.ids[0]]
    with pytest.raises(DataError) as error:
        run.predict(["7 8", "the cat"])
    assert str(error.value) == (
        "this run has no tokenizer: it reads ids\n  got:    the cat\n"
        "  wanted: numbers under 41 with spaces between them\n  try:    convert a folder with a tokenizer.json"
    )
    convert(tmp_path / "run", tmp_path / "second")
    assert not (tmp_path / "second/tokenizer.json").exists()


@pytest.mark.parametrize("form", ["bart", "llama"])
def test_what_a_tokenizer_puts_before_a_text_is_read(form: str, tmp_path: Path, make: Any) -> None:
    """From text to text as they do it: the first id of every text is [CLS] there."""
    folder, tokenizer = make.folder(form), make.tokenizer()
    tokenizer.save_pretrained(folder)
    theirs = getattr(transformers, type(make.model(form)).__name__).from_pretrained(folder)
    convert(folder, tmp_path / "run")
    options: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": 7, "eos_token_id": 3}
    options |= {"pad_token_id": 0, "suppress_tokens": [0]}
    run = load(tmp_path / "run")
    answers = run.predict(make.texts[1:], method="greedy", max_length=7)
    for text, answer in zip(make.texts[1:], answers, strict=True):
        ids = tokenizer(text).input_ids
        assert ids[0] == 2
        ids = ids if form == "bart" else ids[:-1]  # a text that goes on has not ended
        written = theirs.generate(torch.tensor([ids]), **options)[0].tolist()[1 if form == "bart" else len(ids) :]
        assert [i for i in written if i != 3] == list(answer.ids[0])


def test_also_where_an_answer_comes_piece_by_piece(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, tokenizer = make.folder("bart"), make.tokenizer()
    tokenizer.save_pretrained(folder)
    convert(folder, tmp_path / "run")
    run, read = load(tmp_path / "run"), []
    start = run.model.start

    def spied(source: Any, length: int) -> Any:
        read.append(source.ids[0].tolist())
        return start(source, length)

    monkeypatch.setattr(run.model, "start", spied)
    assert (
        "".join(run.generate(make.texts[1], max_length=7)) == run.predict([make.texts[1]], beam=1, max_length=7)[0].text
    )
    assert read == [tokenizer(make.texts[1]).input_ids] * 2


MARIAN = {"encoder_layers": 1, "decoder_layers": 1, "model_dim": 12, "num_heads": 3, "ffn_dim": 20, "norm_first": False}
MARIAN |= {"position": "sinusoidal-halves"}


def test_a_run_of_ours_answers_there_as_here(tmp_path: Path, make: Any) -> None:
    folder = make.run("run", **MARIAN)
    convert(folder, tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "theirs")
    run = load(folder)
    ids = tokenizer(make.texts[1:]).input_ids
    assert ids == [[*row, 3] for row in run.task.source.encode_batch(make.texts[1:])]
    answers = run.predict(make.texts[1:], method="greedy", max_length=8)
    for row, answer in zip(ids, answers, strict=True):
        options: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": 8, "suppress_tokens": [0, 2]}
        written = model.generate(torch.tensor([row]), **options)[0, 1:].tolist()
        assert [i for i in written if i != 3] == list(answer.ids[0])
        assert tokenizer.decode(written, skip_special_tokens=True) == answer.text


SMALL_T5 = {"encoder_layers": 1, "decoder_layers": 1, "model_dim": 12, "num_heads": 3, "head_dim": 4, "ffn_dim": 20}
SMALL_BERT = {"layers": 1, "model_dim": 12, "num_heads": 3, "ffn_dim": 20, "max_length": 40}


@pytest.mark.parametrize(
    ("family", "task", "model"),
    [
        ("t5", "translation", SMALL_T5),  # with scaled queries, as ours begin
        ("bert", "masked-language-modeling", {"preset": "roberta", **SMALL_BERT}),
        ("efficient", "masked-language-modeling", {"window": [4], **SMALL_BERT}),
    ],
)
def test_what_is_trained_here_has_a_form_there(
    family: str, task: str, model: dict[str, Any], tmp_path: Path, make: Any
) -> None:
    folder = make.run("run", family, task=task, **model)
    convert(folder, tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "back")
    ids = torch.tensor([[5, 6, 7, 8, 3]])
    given = (ids, ids) if family == "t5" else (ids,)
    torch.testing.assert_close(load(tmp_path / "back").logits(*given), load(folder).logits(*given))


# --- what cannot be, and what would be wrong --------------------------------------------------------------------------


def refused(regard: Command, *words: object) -> str:
    made = regard("convert", *words)
    assert made.code == 2
    assert not Path(str(words[1])).exists()
    assert not list(Path(str(words[1])).parent.glob(".*"))
    return str(made.err)


def test_a_pickle_is_refused_with_the_way_out(tmp_path: Path, regard: Command, make: Any) -> None:
    folder = make.folder("gpt2")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    text = refused(regard, folder, tmp_path / "run")
    assert "error: there are no weights in safetensors" in text
    assert "pytorch_model.bin: a pickle, which could run any code" in text
    assert f"transformers.GPT2LMHeadModel.from_pretrained('{folder}').save_pretrained('OTHER')" in text


def test_a_file_that_was_cut(tmp_path: Path, regard: Command, make: Any) -> None:
    folder = make.folder("gpt2")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])
    text = refused(regard, folder, tmp_path / "run")
    assert "the weights cannot be read" in text
    assert "download it again" in text


def test_a_model_that_no_family_knows(tmp_path: Path, regard: Command, make: Any) -> None:
    folder = make.folder("gpt2")
    table = read_json(folder / "config.json") | {"model_type": "mamba"}
    (folder / "config.json").write_text(json.dumps(table))
    text = refused(regard, folder, tmp_path / "run")
    assert "no family has this model_type\n  got:    mamba" in text
    for name in ("bart", "bert", "gpt2", "llama", "marian", "roberta", "t5", "xlnet"):
        assert name in text.partition("wanted:")[2]


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_config_that_cannot_be_read(text: str, tmp_path: Path, regard: Command) -> None:
    (tmp_path / "config.json").write_text(text)
    assert "the file cannot be read" in refused(regard, tmp_path, tmp_path / "run")


def test_places(tmp_path: Path, regard: Command, make: Any) -> None:
    assert "there is nothing to convert" in refused(regard, tmp_path / "none", tmp_path / "run")
    folder = make.folder("gpt2")
    assert "a Hugging Face folder already" in refused(regard, folder, tmp_path / "run", "--to", "hf")
    convert(folder, tmp_path / "run")
    assert "the source is a run already" in refused(regard, tmp_path / "run", tmp_path / "other", "--to", "run")
    before = tensors_of(tmp_path / "run")
    with pytest.raises(RunError, match="the target is there already"):
        convert(folder, tmp_path / "run")
    assert same_to_the_bit(before, tensors_of(tmp_path / "run"))
    (tmp_path / "empty").mkdir()
    convert(folder, tmp_path / "empty")
    assert (tmp_path / "empty/recipe.toml").is_file()


def test_a_run_that_transformers_cannot_say(tmp_path: Path, regard: Command, make: Any) -> None:
    recurrent = make.run("recurrent", "recurrent", preset="tiny")
    assert "transformers has no model of this family" in refused(regard, recurrent, tmp_path / "a")
    other = make.run("other", **MARIAN | {"position": "rotary", "model_dim": 18})
    assert "this Transformer is no Marian\n  got:    position = rotary" in refused(regard, other, tmp_path / "a")
    form = {"preset": "roberta", **SMALL_BERT, "first_position": 2}
    late = make.run("late", "bert", task="masked-language-modeling", **form)
    assert "wanted: model.first_position = 1\n" in refused(regard, late, tmp_path / "a")
    default = make.run("default", model_dim=12, num_heads=3, ffn_dim=20)
    assert "this Transformer is no Marian\n  got:    norm_first = True" in refused(regard, default, tmp_path / "a")


def test_a_special_id_outside_of_the_vocabulary(tmp_path: Path, regard: Command, make: Any) -> None:
    folder = make.folder("gpt2")
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**table, "eos_token_id": 50256}))
    said = refused(regard, folder, tmp_path / "a")
    assert "a special id of config.json is not in the vocabulary\n" in said
    assert "wanted: 0 to 40 (vocab_size)\n" in said


def test_other_logits_leave_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regard: Command, make: Any
) -> None:
    """Two tensors that change places both ways come back equal: only the logits can tell."""
    folder, pairs = make.folder("gpt2"), gpt.pairs
    swapped = {"transformer.h.0.ln_1.weight": "transformer.h.0.ln_2.weight"}
    swapped |= {value: name for name, value in swapped.items()}

    def wrong(config: gpt.Config) -> list[Any]:
        return [replace(pair, theirs=tuple(swapped.get(name, name) for name in pair.theirs)) for pair in pairs(config)]

    monkeypatch.setattr(gpt, "pairs", wrong)
    text = refused(regard, folder, tmp_path / "run")
    assert "the converted model is not the same" in text
    assert "logits of transformers" in text


def test_other_tensors_leave_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regard: Command, make: Any
) -> None:
    folder, back = make.folder("gpt2"), check.to_theirs

    def wrong(*args: Any, **options: Any) -> dict[str, Tensor]:
        return {name: tensor * (1 + 1e-7) for name, tensor in back(*args, **options).items()}

    monkeypatch.setattr(check, "to_theirs", wrong)
    assert "the tensors that come back are other ones" in refused(regard, folder, tmp_path / "run")


def test_without_transformers_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regard: Command, make: Any
) -> None:
    folder = make.folder("gpt2")
    monkeypatch.setitem(sys.modules, "transformers", None)
    made = regard("convert", folder, tmp_path / "run")
    assert made.code == 0
    assert "logits:    not compared: transformers is not installed (pip install transformers)" in made.out
    assert "back:      28 tensors equal to the bit" in made.out


def test_logits_are_asked_as_the_model_reads(tmp_path: Path, make: Any) -> None:
    for form in ("gpt2", "marian"):
        convert(make.folder(form, form), tmp_path / f"run {form}")
    ids = torch.tensor([[5, 6]])
    with pytest.raises(ConfigError, match=r"this model reads one text\n  got:    logits\(ids, target_ids\)"):
        load(tmp_path / "run gpt2").logits(ids, ids)
    with pytest.raises(ConfigError, match=r"this model reads two texts\n  got:    logits\(ids\)"):
        load(tmp_path / "run marian").logits(ids)
    convert(make.folder("bert", "bert"), tmp_path / "run bert")
    with pytest.raises(RegardError, match="this model has no such head"):
        load(tmp_path / "run bert").logits(ids)
