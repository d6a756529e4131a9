"""Writes a small pair of parallel files to follow docs/getting-started.md with: Finnish, and Portuguese beside it.

    python docs/toy_pair.py all.fi all.pt

6,000 different sentences about things and what they are like. Finnish has no gender, Portuguese has; and numbers are
to be copied.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

THINGS = """talo casa f, auto carro m, kissa gato m, koira cão m, pöytä mesa f, kirja livro m, kukka flor f,
ovi porta f, vene barco m, puu árvore f, silta ponte f, tuoli cadeira f, ikkuna janela f, lintu pássaro m,
hevonen cavalo m, kala peixe m, katu rua f, kaupunki cidade f, järvi lago m, vuori montanha f, saari ilha f,
laiva navio m, puutarha jardim m, huone quarto m, keittiö cozinha f, lamppu lâmpada f, kello relógio m, lasi copo m,
lautanen prato m, takki casaco m, paita camisa f, kenkä sapato m, hattu chapéu m, laukku mala f, juna comboio m,
kylä aldeia f"""
KINDS = """punainen vermelh-, vanha velh-, uusi nov-, pieni pequen-, kaunis bonit-, valkoinen branc-, musta pret-,
kallis car-, puhdas limp-, likainen suj-, kylmä fri-, lämmin quente, suuri grande, vihreä verde, keltainen amarel-,
korkea alt-, matala baix-, outo estranh-, hidas lent-, nopea rápid-"""
FORMS = (
    ("Tämä {thing} on {kind}.", "{This} {coisa} é {tipo}."),
    ("Tuo {thing} ei ole {kind}.", "{That} {coisa} não é {tipo}."),
    ("Onko {thing} {kind}?", "{The} {coisa} é {tipo}?"),
    ("{Kind} {thing} on {other}.", "{The} {coisa} {tipo} é {outro}."),
    ("Tämä {thing} on {kind} ja {other}.", "{This} {coisa} é {tipo} e {outro}."),
    ("Miksi tuo {thing} on niin {kind}?", "Por que {that} {coisa} é tão {tipo}?"),
    ("Tämä {kind} {thing} maksaa {number} euroa.", "{This} {coisa} {tipo} custa {number} euros."),
    ("{Thing} numero {number} on {kind}.", "{The} {coisa} número {number} é {tipo}."),
    ("Vuonna {number} tuo {thing} oli {kind}.", "Em {number} {that} {coisa} era {tipo}."),
)
ARTICLES = {"m": {"This": "Este", "That": "Aquele", "The": "O"}, "f": {"This": "Esta", "That": "Aquela", "The": "A"}}


def sentence(draw: random.Random) -> tuple[str, str]:
    """One sentence in both languages."""
    finnish, portuguese = draw.choice(FORMS)
    thing, coisa, gender = draw.choice(THINGS.split(",")).split()
    (kind, tipo), (other, outro) = (words.split() for words in draw.sample(KINDS.split(","), 2))
    agree, number = {"m": "o", "f": "a"}[gender], draw.randrange(2, 2030)
    return (
        finnish.format(
            thing=thing,
            Thing=thing.capitalize(),
            kind=kind,
            Kind=kind.capitalize(),
            other=other,
            number=number,
        ),
        portuguese.format(
            coisa=coisa,
            tipo=tipo.replace("-", agree),
            outro=outro.replace("-", agree),
            number=number,
            that=ARTICLES[gender]["That"].lower(),
            **ARTICLES[gender],
        ),
    )


def pairs(number: int) -> list[tuple[str, str]]:
    """Different sentences, always the same ones."""
    draw = random.Random(1)
    found: dict[str, str] = {}
    while len(found) < number:
        found.update([sentence(draw)])
    return list(found.items())


if __name__ == "__main__":
    for path, lines in zip(sys.argv[1:3], zip(*pairs(6000), strict=True), strict=True):
        Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
