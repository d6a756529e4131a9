"""What onnxruntime makes of our models: the same numbers for any rows, and the same greedy outputs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from regard import load
from regard.convert import to_onnx

Command = Callable[..., Any]
LLAMA = {"preset": "llama", "layers": 1, "model_dim": 24, "num_heads": 6, "num_kv_heads": 2, "ffn_dim": 20}


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def made(regard: Command, source: Path, target: Path) -> str:
    done = regard("convert", source, target, "--to", "onnx")
    assert done.code == 0, done.err
    return str(done.out)


def test_an_encoder(tmp_path: Path, regard: Command, make: Any) -> None:
    folder = make.folder("bert masked", num_hidden_layers=1)
    make.tokenizer().save_pretrained(folder)
    assert "logits of ours" in made(regard, folder, tmp_path / "onnx")
    assert {path.name for path in (tmp_path / "onnx").iterdir()} == {
        "model.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    run = regard("convert", folder, tmp_path / "run")
    assert run.code == 0
    graph, ids, lengths = (
        session(tmp_path / "onnx/model.onnx"),
        torch.randint(41, (5, 17)),
        torch.tensor([9, 17, 1, 3, 2]),
    )
    mask = (torch.arange(17) < lengths[:, None]).long()
    (found,) = graph.run(["logits"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
    wanted = load(tmp_path / "run").logits(ids, lengths=lengths)
    torch.testing.assert_close(torch.tensor(found)[mask > 0], wanted[mask > 0], rtol=0.0, atol=1e-4)


def test_a_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regard: Command, make: Any) -> None:
    run = make.run("run", "gpt", task="language-modeling", **LLAMA)
    out = made(regard, run, tmp_path / "onnx")
    assert "greedy:    3 outputs are the same" in out
    ids = torch.randint(41, (2, 13))
    (found,) = session(tmp_path / "onnx/model.onnx").run(["logits"], {"input_ids": ids.numpy()})
    torch.testing.assert_close(torch.tensor(found), load(run).logits(ids), rtol=0.0, atol=1e-4)
    # a graph of other weights than the run has is noticed
    other = make.run("other", "gpt", task="language-modeling", **LLAMA)
    monkeypatch.setattr(to_onnx, "_export", lambda *args: shutil.copy(tmp_path / "onnx/model.onnx", args[-1]))
    done = regard("convert", other, tmp_path / "no", "--to", "onnx")
    assert (done.code, (tmp_path / "no").exists()) == (2, False)
    assert "the converted model is not the same" in done.err


def test_an_encoder_decoder(tmp_path: Path, regard: Command, make: Any) -> None:
    small = {"encoder_layers": 1, "decoder_layers": 1, "model_dim": 24, "num_heads": 6, "ffn_dim": 20}
    run = make.run("run", **small)
    out = made(regard, run, tmp_path / "onnx")
    assert "written:   decoder.onnx, encoder.onnx" in out
    assert "greedy:    3 outputs are the same" in out
    encoder, decoder = (session(tmp_path / f"onnx/{name}.onnx") for name in ("encoder", "decoder"))
    ids, lengths, targets = torch.randint(41, (2, 6)), torch.tensor([6, 2]), torch.randint(41, (2, 19))
    mask = (torch.arange(6) < lengths[:, None]).long().numpy()
    (memory,) = encoder.run(None, {"input_ids": ids.numpy(), "attention_mask": mask})
    given = {"input_ids": targets.numpy(), "encoder_hidden_states": memory, "encoder_attention_mask": mask}
    (found,) = decoder.run(["logits"], given)
    torch.testing.assert_close(
        torch.tensor(found), load(run).logits(ids, targets, lengths=lengths), rtol=0.0, atol=1e-4
    )


def test_what_has_no_form_there(tmp_path: Path, regard: Command, make: Any) -> None:
    run = make.run("run", "recurrent", preset="tiny")
    done = regard("convert", run, tmp_path / "onnx", "--to", "onnx")
    assert (done.code, (tmp_path / "onnx").exists()) == (2, False)
    assert "there is no ONNX form of this encoder-decoder\n  got:    recurrent\n  wanted: t5, transformer" in done.err
    run = make.run("lm", "recurrent", task="language-modeling", preset="tiny")
    done = regard("convert", run, tmp_path / "onnx", "--to", "onnx")
    assert (done.code, (tmp_path / "onnx").exists()) == (2, False)
    assert "there is no ONNX form of this family\n  got:    recurrent" in done.err
    assert "Traceback" not in done.err


def test_a_graph_of_sums_takes_longer_texts_than_it_was_traced_with(tmp_path: Path, regard: Command, make: Any) -> None:
    form = {"preset": "tiny", "attention": "linear", "layers": 1, "model_dim": 16, "num_heads": 2, "ffn_dim": 20}
    run = make.run("run", "efficient_causal", task="language-modeling", **form)
    made(regard, run, tmp_path / "onnx")
    ids = torch.randint(41, (2, 150))
    (found,) = session(tmp_path / "onnx/model.onnx").run(["logits"], {"input_ids": ids.numpy()})
    torch.testing.assert_close(torch.tensor(found), load(run).logits(ids), rtol=0.0, atol=1e-4)


def test_without_the_library_its_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, regard: Command
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    run = make.run("run", "gpt", task="language-modeling", preset="tiny", layers=1)
    done = regard("convert", run, tmp_path / "onnx", "--to", "onnx")
    assert done.code == 2
    assert "ONNX is not installed" in done.err
    assert 'pip install "regard[onnx]"' in done.err
