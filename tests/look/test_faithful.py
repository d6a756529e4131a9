"""The faithfulness card on models whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.errors import ConfigError, RegardError
from regard.look.faithful import CURVE, FRACTIONS, Case, beats, card, verdict

TOKENS = 12


def reads_only(place: int) -> Callable[[Tensor], Tensor]:
    """A model that scores 1 with this token and 0 without it, whatever else is there."""
    return lambda kept: kept[:, place].float()


def one_hot(place: int) -> Tensor:
    return torch.eye(TOKENS)[place]


def places(count: int) -> list[int]:
    """Where the token stands that matters, text by text; never at the very end, which recency would find."""
    return np.random.default_rng(7).integers(0, TOKENS - 1, size=count).tolist()


def by_name(found: dict) -> dict[str, dict]:
    return {method["name"]: method for method in found["methods"]}


def exactly(*numbers: float) -> list[list[float]]:
    """Points of a curve whose interval is the number itself, as that of one text in one order."""
    return [[number] * 3 for number in numbers]


def test_a_model_that_reads_only_token_3() -> None:
    """By hand: the oracle loses everything by its first token, and needs no other."""
    found = card([Case(reads_only(3), {"relevance": one_hot(3)})])
    oracle, recency = by_name(found)["relevance"], by_name(found)["recency"]
    assert oracle["comprehensiveness"] == [1.0, 1.0, 1.0]
    assert oracle["sufficiency"] == [0.0, 0.0, 0.0]
    # 0, 1, 2, 4, 5, 6, 7, 8, 10, 11 and 12 of the twelve tokens
    assert oracle["deletion"] == exactly(1.0, *[0.0] * 10)
    assert oracle["insertion"] == exactly(0.0, *[1.0] * 10)
    # from the end token 3 is the ninth: none of the top 1 to 50 % (six tokens) holds it
    assert recency["comprehensiveness"] == [0.0, 0.0, 0.0]
    assert recency["sufficiency"] == [1.0, 1.0, 1.0]
    assert recency["deletion"] == exactly(*[1.0] * 8, 0.0, 0.0, 0.0)
    assert recency["insertion"] == exactly(*[0.0] * 8, 1.0, 1.0, 1.0)


def test_the_drops_are_means_over_the_fractions() -> None:
    """A hundred tokens that count one each: without the top 1, 5, 10, 20, 50 of them, 86 / 5 are lost."""
    found = card([Case(lambda kept: kept.float().sum(1), {"relevance": torch.arange(100.0)})])
    method = by_name(found)["relevance"]
    assert method["comprehensiveness"] == pytest.approx([86 / 5] * 3)
    assert method["sufficiency"] == pytest.approx([100 - 86 / 5] * 3)
    assert np.array(method["deletion"]) == pytest.approx(np.array(exactly(*(100.0 - 10 * i for i in range(11)))))
    assert np.array(method["insertion"]) == pytest.approx(np.array(exactly(*(10.0 * i for i in range(11)))))


def test_an_oracle_wins_and_a_guess_is_told_so() -> None:
    rng = torch.Generator().manual_seed(3)
    cases = [
        Case(
            reads_only(place),
            {"relevance": one_hot(place), "attention": torch.rand(TOKENS, generator=rng), "rollout": -one_hot(place)},
        )
        for place in places(60)
    ]
    found = card(cases)
    assert found["verdict"]["en"] == (
        "Over 60 texts, relevance beats random and recency; attention does not beat random or recency; "
        "rollout is worse than random and recency."
    )
    assert found["verdict"]["zh"] == (
        "在 60 段文本上，相关性优于随机顺序、就近顺序；注意力并不优于随机顺序、就近顺序；"
        "注意力展开不如随机顺序、就近顺序。"
    )
    methods = by_name(found)
    assert beats(methods["relevance"], methods["random"], "comprehensiveness")
    assert not beats(methods["attention"], methods["random"], "comprehensiveness")
    # what the page shows: whom each one beats, on each check
    all_others = ["attention", "rollout", "random", "recency"]
    assert methods["relevance"]["beats"] == {"comprehensiveness": all_others, "sufficiency": all_others}
    assert methods["attention"]["beats"] == {"comprehensiveness": ["rollout"], "sufficiency": ["rollout"]}
    assert methods["rollout"]["beats"] == {"comprehensiveness": [], "sufficiency": []}
    assert methods["random"]["beats"]["sufficiency"] == ["rollout"]


def test_on_one_text_nobody_beats_anybody() -> None:
    found = card([Case(reads_only(3), {"relevance": one_hot(3), "rollout": -one_hot(3)})])
    assert found["verdict"] == {
        "en": (
            "On this one text, relevance scores better than random and recency; rollout does not score better than "
            "random or recency. One text says nothing about others."
        ),
        "zh": (
            "在这一段文本上，相关性得分好于随机顺序、就近顺序；"
            "注意力展开得分并不好于随机顺序、就近顺序。一段文本不能说明其他文本。"
        ),
    }
    assert [method["beats"] for method in found["methods"]] == [{"comprehensiveness": [], "sufficiency": []}] * 4


@pytest.mark.parametrize("texts", [2, 3, 4])
def test_a_few_texts_are_too_few_for_a_verdict(texts: int) -> None:
    found = card([Case(reads_only(place), {"relevance": one_hot(place)}) for place in places(texts)])
    assert found["verdict"] == {
        "en": f"{texts} texts are too few to say if an explanation holds: that takes 5 or more.",
        "zh": f"{texts} 段文本太少，不足以判断解释是否站得住：至少需要 5 段。",
    }
    assert not any(found for method in found["methods"] for found in method["beats"].values())
    enough = card([Case(reads_only(place), {"relevance": one_hot(place)}) for place in places(5)])
    assert enough["verdict"]["en"].startswith("Over 5 texts, relevance beats ")


def test_recency_is_not_beaten_where_only_the_end_matters() -> None:
    found = card([Case(reads_only(TOKENS - 1), {"relevance": one_hot(TOKENS - 1)}) for _ in range(20)])
    assert found["verdict"]["en"] == "Over 20 texts, relevance beats random, does not beat recency."


def test_gradient_stands_among_the_references() -> None:
    cases = [Case(reads_only(place), {"relevance": one_hot(place), "gradient": one_hot(0)}) for place in places(40)]
    assert card(cases)["verdict"]["en"].endswith("relevance beats random, recency and gradient times input.")
    only = card([Case(case.score, {"gradient": case.attributions["gradient"]}) for case in cases])
    assert only["verdict"] == {"en": "No explanation was checked.", "zh": "没有检验任何解释方法。"}


def test_one_check_is_named() -> None:
    weak = {"comprehensiveness": [0.1, 0.0, 0.2], "sufficiency": [0.1, 0.0, 0.2]}
    mixed = {"name": "relevance", "comprehensiveness": [0.5, 0.4, 0.6], "sufficiency": [0.1, 0.05, 0.3]}
    found = verdict([mixed, {"name": "random", **weak}, {"name": "recency", **weak}], 9)
    assert found["en"] == "Over 9 texts, relevance beats random and recency on comprehensiveness only."
    assert found["zh"] == "在 9 段文本上，相关性仅在完备性上优于随机顺序、就近顺序。"


def test_intervals_hold_the_mean_and_shrink_with_more_texts() -> None:
    def width(count: int) -> float:
        cases = [Case(reads_only(place), {"relevance": torch.arange(TOKENS * 1.0)}) for place in places(count)]
        mean, low, high = by_name(card(cases))["relevance"]["comprehensiveness"]
        assert low <= mean <= high
        return high - low

    assert 0 < width(160) < 0.6 * width(20)


def test_the_interval_is_that_of_the_mean() -> None:
    """Against the textbook: 1.96 standard errors, for a mean of many texts."""
    cases = [Case(lambda kept, x=x: kept[:, 0].float() * x, {"relevance": one_hot(0)}) for x in torch.rand(200)]
    values = torch.tensor([case.score(torch.ones(1, TOKENS, dtype=torch.bool)).item() for case in cases])
    mean, low, high = by_name(card(cases))["relevance"]["comprehensiveness"]
    error = 1.96 * values.std().item() / 200**0.5
    assert [low, high] == pytest.approx([mean - error, mean + error], abs=0.2 * error)


def test_curves_have_the_interval_of_each_point() -> None:
    """A token that counts x: deleted first, the curve begins at the mean of x and its interval, and is 0 after that."""
    cases = [Case(lambda kept, x=x: kept[:, 0].float() * x, {"relevance": one_hot(0)}) for x in torch.rand(50)]
    method = by_name(card(cases))["relevance"]
    mean, low, high = method["comprehensiveness"]
    assert low < mean < high
    assert method["deletion"] == [pytest.approx([mean, low, high]), *exactly(*[0.0] * 10)]
    assert method["insertion"] == [*exactly(0.0), *[pytest.approx([mean, low, high])] * 10]
    random = by_name(card(cases[:1]))["random"]["deletion"]
    assert random[0] == pytest.approx([random[0][0]] * 3), "every order begins with the whole text"
    assert random[5][1] < random[5][0] < random[5][2]


def test_random_orders_differ_by_seed_and_text_and_the_card_does_not() -> None:
    asked: list[Tensor] = []

    def score(kept: Tensor) -> Tensor:
        asked.append(kept)
        return kept.float().mean(1)

    cases = [Case(score, {"relevance": one_hot(3)}) for _ in range(2)]
    found = card(cases, seeds=4)
    assert not torch.equal(asked[0], asked[1])
    assert len({row.numpy().tobytes() for row in asked[0]}) == len(asked[0]), "no mask is asked twice"
    assert card(cases, seeds=4) == found
    assert json.loads(json.dumps(found)) == found
    assert (found["seeds"], found["examples"]) == (4, 2)
    assert (found["fractions"], found["curve"]) == (list(FRACTIONS), list(CURVE))


def test_one_text_has_an_interval_of_the_random_order_alone() -> None:
    found = by_name(card([Case(reads_only(3), {"relevance": one_hot(3)})], seeds=10))
    mean, low, high = found["random"]["comprehensiveness"]
    assert low < mean < high
    assert len(set(found["recency"]["comprehensiveness"])) == 1


def test_equal_numbers_stay_in_reading_order() -> None:
    attribution = torch.zeros(40)
    attribution[-1] = -1.0
    found = by_name(card([Case(lambda kept: kept[:, 0].float(), {"relevance": attribution})]))
    assert found["relevance"]["comprehensiveness"] == [1.0, 1.0, 1.0]


def test_who_names_no_token_has_no_order() -> None:
    """All numbers equal, as where a gradient is 0: the first token is the one that matters, and nobody has said so."""
    cases = [Case(reads_only(0), {"relevance": torch.zeros(TOKENS), "rollout": one_hot(0)}) for _ in range(6)]
    found = card(cases)
    methods = by_name(found)
    assert methods["relevance"]["comprehensiveness"][0] == pytest.approx(methods["random"]["comprehensiveness"][0])
    assert methods["relevance"]["deletion"][3][0] == pytest.approx(methods["random"]["deletion"][3][0])
    assert not any("random" in beaten for beaten in methods["relevance"]["beats"].values())
    assert "random" in methods["rollout"]["beats"]["comprehensiveness"]


def test_one_token_can_be_checked() -> None:
    found = card([Case(lambda kept: kept[:, 0].float(), {"relevance": torch.ones(1)})])
    assert by_name(found)["relevance"]["comprehensiveness"] == [1.0, 1.0, 1.0]
    assert "does not score better than random or recency" in found["verdict"]["en"]


def test_errors_say_what_does_not_fit() -> None:
    good = Case(reads_only(0), {"relevance": one_hot(0)})
    with pytest.raises(RegardError, match="needs texts"):
        card([])
    with pytest.raises(ConfigError, match="seeds is too small"):
        card([good], seeds=0)
    with pytest.raises(RegardError, match=r"attributions do not fit(.|\n)*rollout(.|\n)*relevance, each(.|\n)*text 1"):
        card([good, Case(reads_only(0), {"rollout": one_hot(0)})])
    with pytest.raises(RegardError, match="attributions do not fit"):
        card([Case(reads_only(0), {"relevance": one_hot(0), "rollout": torch.ones(2)})])
    with pytest.raises(RegardError, match="attributions do not fit"):
        card([Case(reads_only(0), {"relevance": torch.ones(0)})])
    with pytest.raises(RegardError, match=r"1 not finite(.|\n)*finite scores, one a mask(.|\n)*text 0"):
        card([Case(lambda kept: kept[:, 0].float().where(kept.any(1), torch.inf), {"relevance": one_hot(0)})])
    with pytest.raises(RegardError, match=r"shape \(\)"):
        card([Case(lambda kept: kept.float().mean(), {"relevance": one_hot(0)})])
