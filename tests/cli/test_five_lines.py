"""A newcomer's way with a file of five lines: check, new, train, evaluate, predict, look, for every fitted task."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard import tasks
from regard.fitting import FITTED

Command = Callable[..., Any]
QUICK = ("train.max_steps=2", "train.validate_every=2", "train.device=cpu", "train.warmup_steps=1")
# name of the file, its lines, and what is asked; the second of a task is in Chinese
FILES: dict[str, list[tuple[str, list[str], str]]] = {
    "classification": [
        (
            "reviews.tsv",
            [
                "good\tI liked this film.",
                "bad\tIt was far too long.",
                "good\tWhat a cast!",
                "bad\tI left before the end.",
                "good\tA story to remember.",
            ],
            "What a long film",
        ),
        (
            "评论.tsv",
            [
                "好评\t这部电影很好看。",
                "差评\t太长了，不好看。",
                "好评\t演员非常棒！",
                "差评\t我没看完就走了。",
                "好评\t令人难忘的故事。",
            ],
            "电影太长了",
        ),
    ],
    "dialogue": [
        ("talks.tsv", [f"hello {i}\thow are you?\tfine, and you?" for i in range(5)], "hello"),
        ("对话.tsv", [f"你好{i}\t你好吗？\t我很好。" for i in range(5)], "你好"),
    ],
    "extractive-summarization": [
        (
            "news.tsv",
            [
                "He went out. He bought fish. It rained.\tHe bought fish.",
                "The train was late. People waited.\tThe train was late.",
                "She has a shop. It sells books.\tShe sells books.",
                "They lost. The coach left.\tThe coach left.",
                "It snowed. Schools closed.\tSchools closed.",
            ],
            "They won. The coach stayed.",
        ),
        (
            "新闻.tsv",
            [
                "他去了市场。他买了鱼。\t他买了鱼。",
                "火车晚点了。人们在等。\t火车晚点。",
                "她开了店。店里卖书。\t她卖书。",
                "球队输了。教练走了。\t教练走了。",
                "下雪了。学校关门。\t学校关门。",
            ],
            "球队赢了。教练没走。",
        ),
    ],
    "language-modeling": [
        (
            "text.txt",
            ["The cat sat.", "The dog sat on the log.", "A bird sang.", "All of them slept.", "Then they woke."],
            "The cat",
        ),
        ("文.txt", ["猫坐在垫子上。", "狗坐在木头上。", "鸟坐在树上。", "它们都睡了。", "然后醒了。"], "猫坐"),
    ],
    "link-prediction": [
        (
            "facts.tsv",
            [
                "Paris\tcapital of\tFrance",
                "Rome\tcapital of\tItaly",
                "Lyon\tlies in\tFrance",
                "Milan\tlies in\tItaly",
                "Paris\tlies in\tFrance",
            ],
            "Lyon\tlies in",
        ),
        (
            "事实.tsv",
            ["巴黎\t首都\t法国", "罗马\t首都\t意大利", "里昂\t位于\t法国", "米兰\t位于\t意大利", "巴黎\t位于\t法国"],
            "里昂\t位于",
        ),
    ],
    "question-answering": [
        (
            "questions.tsv",
            [
                "Who slept?\tThe cat slept on the mat.\tThe cat",
                "Where did it sleep?\tThe cat slept on the mat.\tthe mat",
                "Who ran?\tA dog ran home.\tA dog",
                "Where did it run?\tA dog ran home.\thome",
                "What is red?\tThe apple is red.\tThe apple",
            ],
            "Who ran?\tA cat ran home.",
        ),
        (
            "问题.tsv",
            [
                "谁睡了？\t猫睡在垫子上。\t猫",
                "睡在哪里？\t猫睡在垫子上。\t垫子上",
                "谁跑了？\t狗跑回家了。\t狗",
                "跑去哪里？\t狗跑回家了。\t家",
                "什么是红的？\t苹果是红的。\t苹果",
            ],
            "谁跑了？\t猫跑了。",
        ),
    ],
    "relation": [
        (
            "relations.tsv",
            [
                "Cause(e1,e2)\tThe <e1>fire</e1> made <e2>smoke</e2>.",
                "Other\tA <e1>man</e1> and a <e2>dog</e2>.",
                "Cause(e2,e1)\tThe <e1>flood</e1> came from <e2>rain</e2>.",
                "Other\tThe <e1>cat</e1> saw a <e2>bird</e2>.",
                "Cause(e1,e2)\t<e1>Wind</e1> moved the <e2>leaves</e2>.",
            ],
            "The <e1>fire</e1> saw a <e2>bird</e2>.",
        ),
        (
            "关系.tsv",
            [
                "因果(e1,e2)\t<e1>火</e1>产生了<e2>烟</e2>。",
                "其他\t一个<e1>人</e1>和一条<e2>狗</e2>。",
                "因果(e2,e1)\t<e1>洪水</e1>来自<e2>雨</e2>。",
                "其他\t<e1>猫</e1>看见<e2>鸟</e2>。",
                "因果(e1,e2)\t<e1>风</e1>吹动<e2>树叶</e2>。",
            ],
            "<e1>火</e1>看见<e2>鸟</e2>。",
        ),
    ],
    "tagging": [
        (
            "names.conll",
            ["Ann\tB-person", "lives\tO", "in\tO", "New\tB-city", "York\tI-city", "", "Bob\tB-person", "slept\tO"],
            "Bob lives in York",
        ),
        (
            "名字.conll",
            ["张 B-人", "三 I-人", "住 O", "在 O", "北 B-地", "京 I-地", "", "李 B-人", "四 I-人"],
            "李三在北京",
        ),
    ],
    "translation": [
        (
            "pairs.tsv",
            [
                "a man walks\tein Mann geht",
                "a dog sleeps\tein Hund schläft",
                "a woman sings\teine Frau singt",
                "two men run\tzwei Männer laufen",
                "the cat eats\tdie Katze frisst",
            ],
            "a man sings",
        ),
        (
            "句对.tsv",
            [
                "一个男人在走路\tA man is walking",
                "一只狗在睡觉\tA dog sleeps",
                "一个女人在唱歌\tA woman sings",
                "两个人在跑步\tTwo people run",
                "猫在吃东西\tThe cat eats",
            ],
            "一个人在唱歌",
        ),
    ],
    "story-question-answering": [
        (
            "where_train.txt",
            [
                "1 Ada went to the garden.",
                "2 Where is Ada?\tgarden\t1",
                "1 Bo went to the attic.",
                "2 Bo took the lamp.",
                "3 Where is the lamp?\tattic\t2 1",
            ],
            "Ada went to the attic.\tWhere is Ada?",
        ),
        (
            "故事.txt",
            ["1 小明去了花园。", "2 小明在哪里？\t花园\t1", "1 小红去了厨房。", "2 小红在哪里？\t厨房\t1"],
            "小明去了厨房。\t小明在哪里？",
        ),
    ],
}
FILES["summarization"] = FILES["extractive-summarization"]
FILES["text-to-text"] = FILES["translation"]
for name, gap in (
    ("masked-language-modeling", "<mask>"),
    ("permutation-language-modeling", "<mask>"),
    ("span-corruption", "<extra_0>"),
):
    FILES[name] = [(file, lines, asked + gap) for file, lines, asked in FILES["language-modeling"]]
HERE = [(task, file) for task in FITTED if task in tasks.names() for file in FILES[task]]


@pytest.mark.parametrize(("task", "file"), HERE, ids=lambda value: value if isinstance(value, str) else value[0])
def test_five_lines_go_all_the_way(
    regard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, file: tuple[str, list[str], str]
) -> None:
    name, lines, asked = file
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    checked = regard("data", "check", name, "--task", task, "--json")
    assert checked.code == 0, checked.err
    found = json.loads(checked.out)
    assert found["usable"]
    words = shlex.split(found["next"])
    assert words[:2] == ["regard", "new"]
    made = regard(*words[1:])
    assert made.code == 0, made.err
    recipe = words[-1]
    trained = regard("train", recipe, "run=run", *QUICK)
    assert trained.code == 0, trained.err
    assert "next:  regard evaluate run --split val; regard predict run FILE" in trained.err
    for noise in [[], ["--noise", "0.2"]] if "noise" in tasks.task(task).TAKES else [[]]:
        evaluated = regard("evaluate", "run", "--split", "val", *noise)
        assert evaluated.code == 0, evaluated.err
        assert ("|noise 0.2" in evaluated.out) == bool(noise)
        assert ("(clean " in evaluated.out) == bool(noise)
    answered = regard("predict", "run", "--format", "jsonl", stdin=f"{asked}\n".encode())
    assert answered.code == 0, answered.err
    assert json.loads(answered.out)["source"] == asked
    if tasks.task(task).KIND == "encoder":  # nothing is searched: no beam bounds how many answers there are
        several = regard("predict", "run", "--n-best", "7", stdin=f"{asked}\n".encode())
        if "n_best" in tasks.task(task).DECODE:
            assert (several.code, several.out.count("\n")) == (0, 7), several.err
        else:
            assert f"n_best has no use here\n  got:    n_best for {task}" in several.err
        refused = regard("predict", "run", "beam=7", stdin=f"{asked}\n".encode())
        assert f"beam has no use here\n  got:    beam for {task}\n  wanted: " in refused.err
    if hasattr(tasks.task(task), "NOT_LOOKED_INTO"):
        return
    looked = regard("look", "run", asked, "--quick", "--no-open", "--out", "look.html")
    assert looked.code == 0, looked.err
    assert Path("look.html").stat().st_size > 10_000


def test_every_task_that_trains_is_fitted_and_has_a_file_here() -> None:
    assert set(FILES) == set(FITTED) == set(tasks.names()) - {"vectors"}
