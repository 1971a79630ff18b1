"""The main job in a minute, on data that come with scikit-learn: prune a network, and see who pays for it.

Run it with `make demo`.
"""

import statistics
import time
from pathlib import Path
from textwrap import fill
from typing import Any

import torch

from evenprune.built_in import dense_and_data
from evenprune.comparison_text import within
from evenprune.experiment import BUILT_IN
from evenprune.pruning import prune
from evenprune.result import Result
from evenprune.trackers import ProgressBar

SETTINGS = BUILT_IN["digits"]
PAGE = Path("demo") / "digits.html"


def say(text: str) -> None:
    print(fill(text, 100), end="\n\n", flush=True)


def main() -> None:
    torch.set_num_threads(1)  # then the numbers are the same on any number of cores
    say("evenprune prunes a network so that no group of people (or here: no digit) pays more than its share.")
    began = time.perf_counter()
    model, data = dense_and_data("digits", hooks=[ProgressBar()])
    sizes = data["train"][1].bincount().tolist()
    say(
        f"1. A small network has learned to read digits of 8×8 pixels. There were few 8s and 9s to learn "
        f"from: {sizes[8]} and {sizes[9]} images, against {min(sizes[:8])} or more of the other digits."
    )
    say(
        f"2. Now {SETTINGS.sparsity:.0%} of the weights between its first and last layer go. What is left is "
        "trained on, in three ways. NFT: plain fine-tuning, what everybody does. EL+RB: it also pulls the "
        f"loss of all digits together. CEAG: no digit may lose more than ε = {SETTINGS.tolerance:.0%} beyond "
        f"the average loss of accuracy. With {len(SETTINGS.seeds)} seeds each these are "
        f"{len(SETTINGS.method) * len(SETTINGS.seeds)} networks; they train side by side, as one wide one."
    )
    result = prune(
        model,
        **data,
        sparsity=SETTINGS.sparsity,
        method=SETTINGS.methods(),
        seeds=SETTINGS.seeds,
        recipe=SETTINGS.recipe(),
        tolerance=SETTINGS.tolerance,
    )
    say(f"All of this took {time.perf_counter() - began:.0f} seconds. What came out:")
    print(result, end="\n\n")
    tell(result, {method["name"]: method["runs"] for method in result.document()["methods"]})
    PAGE.parent.mkdir(exist_ok=True)
    page = result.save(PAGE).resolve()
    print(f"All of it as one page, with curves and every audit:\n  {page}\n  {page.as_uri()}")


def tell(result: Result, runs: dict[str, list[dict[str, Any]]]) -> None:
    """The table in words, and the audit of the worst run."""
    plain, fair = runs["NFT"], runs["CEAG"]
    gap = {name: statistics.fmean(run["train"]["max_excess_gap"] for run in runs[name]) for name in runs}
    met = {name: sum(within(run, result.tolerance) for run in runs[name]) for name in runs}
    accuracy = [statistics.fmean(run["test"]["accuracy"] for run in each) for each in (plain, fair)]
    hurt = [audits["train"].worst.group for name, audits in result.audits.items() if name.startswith("NFT")]
    say(
        f"3. In plain words: by its overall accuracy plain fine-tuning looks fine. But on the training data "
        f"one digit (the {statistics.mode(hurt)}, most often) lost {100 * gap['NFT']:.0f} points more than "
        f"the average. CEAG brings that to {100 * gap['CEAG']:.1f} points, and keeps its promise (ε) for "
        f"{met['CEAG']} of {len(fair)} seeds, plain fine-tuning for {met['NFT']}. Its accuracy on new images "
        f"is {accuracy[1]:.1%}, that of plain fine-tuning {accuracy[0]:.1%}."
    )
    say(
        "The promise is about the training data. Whether it holds for new images is what an audit tells, "
        "with limits, because some 70 test images a digit are few. The worst of the "
        f"{len(result.runs)} networks is {result.worst.model}; its audit on the test images:"
    )
    print(result.worst)


if __name__ == "__main__":
    main()
