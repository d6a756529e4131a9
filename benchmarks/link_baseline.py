"""The plain baselines of link prediction: the most frequent entities of each relation, and ComplEx.

    python benchmarks/link_baseline.py train.tsv valid.tsv test.tsv
    python benchmarks/link_baseline.py train.tsv valid.tsv test.tsv --complex --dim 100 --epochs 20

The first ranks entities by how often they stand on that side of the relation in training, and knows nothing of the
entity that is asked about. ComplEx (Trouillon et al. 2016) has a vector of complex numbers for each name; it is trained
as Lacroix et al. 2018 do, with relations for the way back, the softmax over all entities and a cubic norm as penalty.
Ranks are filtered by all three files, equals have their mean rank, and both ways are asked.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.facts import FIRST, Graph, Grouped, Ints, read_facts
from regard.tasks.metrics import filtered_ranks, rank_scores

ROWS = 500  # queries that are scored together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs=3, metavar="TRAIN VALID TEST")
    parser.add_argument("--complex", action="store_true", help="ComplEx beside the frequencies")
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate of Adagrad")
    parser.add_argument("--penalty", type=float, default=0.05, help="weight of the cubic norm")
    arguments = parser.parse_args()
    train, valid, test = (list(read_facts([path])) for path in arguments.files)
    graph = Graph.of(train, [*valid, *test])
    splits = {"valid": graph.numbers(valid), "test": graph.numbers(test)}
    known = graph.known(np.concatenate([graph.facts, *splits.values()]))
    scorers = {"frequency": Frequency(graph)}
    if arguments.complex:
        scorers["ComplEx"] = Complex(graph, arguments.dim)
        scorers["ComplEx"].learn(graph, arguments.epochs, arguments.rate, arguments.penalty)
    for name, scorer in scorers.items():
        for split, facts in splits.items():
            found = rank_scores(ranks(graph, scorer, graph.asked(facts), known))
            print(f"{name}, {split}: " + "  ".join(f"{metric} {value:.2f}" for metric, value in found.items()))


class Frequency(torch.nn.Module):
    """How often each entity answers a relation: relations and their ways back x entities."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.counts = torch.zeros(2 * len(graph.relations), len(graph.entities))
        _, relations, answers = (torch.from_numpy(column) for column in numbered(graph, graph.asked(graph.facts)).T)
        self.counts.index_put_((relations, answers), torch.ones(len(answers)), accumulate=True)

    def forward(self, entities: Tensor, relations: Tensor) -> Tensor:
        return self.counts[relations]


class Complex(torch.nn.Module):
    """Re(<e, r, conj(t)>) of every entity t; the first half of a vector is its real part."""

    def __init__(self, graph: Graph, dim: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.entities = torch.nn.Parameter(1e-3 * torch.randn(len(graph.entities), 2 * dim))
        self.relations = torch.nn.Parameter(1e-3 * torch.randn(2 * len(graph.relations), 2 * dim))

    def forward(self, entities: Tensor, relations: Tensor) -> Tensor:
        (a, b), (c, d) = self.entities[entities].chunk(2, -1), self.relations[relations].chunk(2, -1)
        return torch.cat([a * c - b * d, a * d + b * c], -1) @ self.entities.T

    def learn(self, graph: Graph, epochs: int, rate: float, penalty: float) -> None:
        """By batches of 1,000 facts."""
        asked = torch.from_numpy(numbered(graph, graph.asked(graph.facts)))
        optimizer = torch.optim.Adagrad(self.parameters(), lr=rate)
        for epoch in range(1, epochs + 1):
            total = 0.0
            for rows in torch.randperm(len(asked)).split(1000):
                entities, relations, answers = asked[rows].T
                loss = F.cross_entropy(self(entities, relations), answers)
                read = (self.entities[entities], self.relations[relations], self.entities[answers])
                cubes = sum((sum(part**2 for part in x.chunk(2, -1)) ** 1.5).sum() for x in read)
                optimizer.zero_grad()
                (loss + penalty * cubes / len(rows)).backward()
                optimizer.step()
                total += loss.item() * len(rows)
            print(f"epoch {epoch}: loss {total / len(asked):.3f}", flush=True)


def numbered(graph: Graph, asked: Ints) -> Ints:
    """Queries with the numbers of entities and relations, from 0 on, in place of their ids."""
    return asked - np.array([FIRST, graph.first_relation, 0])


@torch.no_grad()
def ranks(graph: Graph, scorer: torch.nn.Module, asked: Ints, known: Grouped) -> Tensor:
    """The filtered rank of each query's answer."""
    found = []
    for part in np.array_split(asked, -(-len(asked) // ROWS)):
        entities, relations, answers = (torch.from_numpy(column.copy()) for column in numbered(graph, part).T)
        rows, columns = (torch.from_numpy(array) for array in known.all_of(graph.key_of(part)))
        found.append(filtered_ranks(scorer(entities, relations), answers, rows, columns))
    return torch.cat(found)


if __name__ == "__main__":
    main()
