"""Tiny folders of others, made here by transformers, and the command that converts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from regard import tasks
from regard.cli.main import main
from regard.data.tokenizers import Tokenizer as OwnTokenizer
from regard.models import Sizes, build
from regard.recipe import parse
from regard.train.checkpoint import save_weights, weights

WORDS = "the cat sat on a mat and the dog did not , so they all went home early to see the moon rise"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # their ids are 0 .. 4


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def regard(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in this process."""

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return Outcome(int(ended.value.code or 0), *capsys.readouterr())

    return run


SMALL = {"vocab_size": 41}
GPT2 = {"n_layer": 2, "n_embd": 12, "n_head": 3, "n_positions": 40, "bos_token_id": 2, "eos_token_id": 3}
LLAMA = {"num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 31, "num_attention_heads": 6}
LLAMA |= {"num_key_value_heads": 2, "bos_token_id": 2, "eos_token_id": 3, "max_position_embeddings": 64}
BERT = {"num_hidden_layers": 2, "hidden_size": 12, "intermediate_size": 17, "num_attention_heads": 3}
BERT |= {"max_position_embeddings": 40}
PAIR = {"encoder_layers": 2, "decoder_layers": 1, "d_model": 12, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}
PAIR |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "max_position_embeddings": 40, "pad_token_id": 0}
T5 = {"num_layers": 2, "d_model": 12, "d_kv": 5, "d_ff": 19, "num_heads": 3, "decoder_start_token_id": 0}
XLNET = {"n_layer": 2, "d_model": 12, "n_head": 3, "d_inner": 20}
REFORMER = {"attn_layers": ["local", "lsh"], "hidden_size": 12, "num_attention_heads": 3, "attention_head_size": 4}
REFORMER |= {"feed_forward_size": 20, "axial_pos_shape": [8, 8], "axial_pos_embds_dim": [4, 8], "is_decoder": True}
REFORMER |= {"max_position_embeddings": 64, "lsh_attn_chunk_length": 8, "local_attn_chunk_length": 8}
REFORMER |= {"num_buckets": 8, "hash_seed": 3, "eos_token_id": 3}
ENDS = {"eos_token_id": 3, "bos_token_id": 2}
# the name of a test: the class of transformers, and its config
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 untied": ("GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False}),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama tied": ("LlamaForCausalLM", {**LLAMA, "tie_word_embeddings": True, "head_dim": 6}),
    "bert": ("BertModel", BERT),
    "bert masked": ("BertForMaskedLM", BERT),
    "bert pretraining": ("BertForPreTraining", BERT),
    "roberta": ("RobertaForMaskedLM", {**BERT, "pad_token_id": 1, "type_vocab_size": 1}),
    "xlnet": ("XLNetLMHeadModel", XLNET),
    "longformer": ("LongformerForMaskedLM", {**BERT, "pad_token_id": 1, "attention_window": 8}),
    "reformer": ("ReformerModelWithLMHead", REFORMER),
    "t5": ("T5ForConditionalGeneration", {**T5, "eos_token_id": 3}),
    "t5 v1.1": (
        "T5ForConditionalGeneration",
        {**T5, "eos_token_id": 3, "feed_forward_proj": "gated-gelu"} | {"tie_word_embeddings": False},
    ),
    "marian": ("MarianMTModel", {**PAIR, **ENDS, "decoder_start_token_id": 0, "activation_function": "swish"}),
    "bart": (
        "BartForConditionalGeneration",
        {**PAIR, **ENDS, "decoder_start_token_id": 3} | {"forced_eos_token_id": None},
    ),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Every one of them."""
    name: str = request.param
    return name


def their_model(form: str, **changes: Any) -> Any:
    """One of theirs, with no number left that would hide what it does."""
    name, table = FORMS[form]
    made = getattr(transformers, name)
    model = made(made.config_class(**(SMALL | table | changes))).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Marian's sinusoids are none that one learns, and the Reformer does not add its head's bias
            if parameter.requires_grad and not (form == "reformer" and key == "lm_head.bias"):
                parameter.add_(0.2 * torch.randn_like(parameter))
        if "final_logits_bias" in dict(model.named_buffers()):
            model.final_logits_bias.normal_()
    return model


def save(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def a_tokenizer() -> Any:
    """A small one in the form of BERT's."""
    inner = Tokenizer(models.BPE(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    inner.train_from_iterator([WORDS] * 2, trainers.BpeTrainer(vocab_size=41, special_tokens=SPECIALS))
    both = [("[CLS]", 2), ("[SEP]", 3)]
    inner.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=both)
    names = ("pad", "unk", "cls", "sep", "mask")
    special = {f"{name}_token": token for name, token in zip(names, SPECIALS, strict=True)}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="[SEP]", bos_token="[CLS]", **special)


TEXTS = [WORDS, "the dog sat on the cat", "all went to see a mat , and so did they"]


def own_run(
    folder: Path, family: str = "transformer", *, task: str = "translation", shared: bool = True, **model: Any
) -> Path:
    """A run as a training leaves it, but for the training: random weights, tokenizers of ours."""
    mask = ("<mask>",) if task == "masked-language-modeling" else ()
    both = OwnTokenizer.train(TEXTS, vocab_size=60, extra=mask), OwnTokenizer.train(TEXTS, kind="characters")
    files = tasks.task(task).FILES
    folder.mkdir(parents=True)
    for file, tokenizer in zip(files, (both[0], both[0] if shared else both[1]), strict=False):
        tokenizer.save(folder / file)
    table = {"run": str(folder), "task": {"name": task}, "model": {"family": family, **model}}
    table |= {"tokenizer": {"shared": shared}, "data": {"max_length": 30}, "decode": {"max_length": 12}}
    recipe = parse(table, where="this test", folder=folder, trains=False)
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    sizes = Sizes(both[0].size, both[0].size if shared else both[1].size, shared)
    made = build(family, recipe.model, sizes, tasks.task(task).KIND)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    save_weights(folder / "model.safetensors", weights(made))
    return folder


class Make:
    """What there is to convert, made in a folder of the test's own."""

    texts = TEXTS
    model = staticmethod(their_model)
    save = staticmethod(save)
    tokenizer = staticmethod(a_tokenizer)

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, form: str, name: str = "first", **changes: Any) -> Path:
        """A Hugging Face folder."""
        return save(their_model(form, **changes), self.path / name)

    def run(self, name: str = "run", family: str = "transformer", **options: Any) -> Path:
        """A run of ours."""
        return own_run(self.path / name, family, **options)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return Make(tmp_path)
