"""Trains and evaluates several recipes and seeds side by side on one GPU, and writes one table of all of them.

    REGARD_DATA=path/to/archives python benchmarks/run_recipes.py --out results --parallel 4 \
        multi30k-en-de:1 multi30k-en-de:2 multi30k-en-de:3 multi30k-en-fr:1

A job is RECIPE:SEED, and overrides may follow after commas: cmudict:1,model.dropout=0.2. Choices belong to the
validation split: `--split val` evaluates nothing else. OUT holds each job's log, metrics and resolved recipe, and
results.json; the printed table has every seed and the mean.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

MOST = 160  # characters of a name: file systems take 255
REGARD = [sys.executable, "-c", "from regard.cli.main import main; main()"]


def name_of(job: str) -> str:
    """What files of a job are called; of one with many overrides a sum stands for the end of them."""
    name = job.replace(":", "-").replace(",", "-").replace("/", "_")
    return name if len(name) <= MOST else f"{name[:MOST]}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"


def run_job(job: str, out: Path, runs: Path, splits: list[str]) -> dict[str, object]:
    """Trains one job and evaluates it; its log is OUT/NAME.log."""
    head, *overrides = job.split(",")
    recipe, _, seed = head.partition(":")
    name = name_of(job)
    folder, start = runs / name, time.monotonic()
    commands = [["train", recipe, f"run={folder}", f"train.seed={seed or 1}", *overrides]]
    commands += [["evaluate", str(folder), "--split", split] for split in splits]
    with (out / f"{name}.log").open("w") as log:
        for command in commands:
            code = subprocess.run([*REGARD, *command], stdout=log, stderr=subprocess.STDOUT, check=False).returncode
            if code:
                return {"job": job, "failed": " ".join(command), "code": code}
    for file in ("metrics.jsonl", "recipe.toml"):
        shutil.copy(folder / file, out / f"{name}.{file}")
    report = json.loads((folder / "report.json").read_text())
    group = ",".join([recipe, *overrides])
    return {"job": job, "group": group, "seconds": round(time.monotonic() - start), "report": report}


def table(results: list[dict[str, object]]) -> str:
    """One line a recipe, split and metric: the value of each seed and their mean."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for result in results:
        if "report" not in result:
            continue
        for split, report in result["report"].items():  # type: ignore[attr-defined]
            for metric, value in report["metrics"].items():
                found.setdefault((str(result["group"]), split, metric), []).append(value)
    lines = [
        f"| {group} | {split} | {metric} | {', '.join(f'{v:.2f}' for v in values)} | {statistics.mean(values):.2f} |"
        for (group, split, metric), values in sorted(found.items())
    ]
    failed = [f"failed: {result}" for result in results if "failed" in result]
    return "\n".join(["| recipe | split | metric | seeds | mean |", "|---|---|---|---|---|", *lines, *failed])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", help="RECIPE:SEED[,key=value ...]")
    parser.add_argument("--out", type=Path, required=True, help="folder for logs, metrics and the table")
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmarks"), help="folder for the run folders")
    parser.add_argument(
        "--split", action="append", help="a split to evaluate, may be repeated; val and test if not given"
    )
    parser.add_argument("--parallel", type=int, default=4, help="jobs at a time")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    splits, results = arguments.split or ["val", "test"], list[dict[str, object]]()
    with ThreadPoolExecutor(arguments.parallel) as pool:
        asked = [pool.submit(run_job, job, arguments.out, arguments.runs, splits) for job in arguments.jobs]
        for one in as_completed(asked):  # whatever comes later may be stopped
            results.append(one.result())
            print(json.dumps({k: v for k, v in results[-1].items() if k != "report"}), flush=True)
            (arguments.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(table(sorted(results, key=lambda result: arguments.jobs.index(str(result["job"])))))


if __name__ == "__main__":
    main()
