"""What prune() returns: models, masks, audits and history of every run, and the comparison of them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from evenprune import atomic, biased_runs, comparison_page, comparison_text, diagnostics, report, run_figures
from evenprune.audit import audit
from evenprune.gap_limits import least_excess_gap
from evenprune.groups import encode
from evenprune.iterates import is_within
from evenprune.masks import Masks
from evenprune.method import Method
from evenprune.predict import Predictions
from evenprune.recipe import Recipe, Run
from evenprune.run_names import method_labels, run_labels
from evenprune.samples import Samples
from evenprune.selection import Candidate, Choice, choose, sentence
from evenprune.splits import AUDITED, HELDOUT, TRAIN, BySplit, name_of
from evenprune.training import Fitted
from evenprune.training_notes import (
    chosen_on_its_own,
    diverged,
    idle_multipliers,
    negative_weights,
    none_feasible,
    otherwise_in_evaluation,
    unmeasured,
)
from evenprune.verdict import STRICTNESS, Audit, Columns, Word
from evenprune.wording import percent

SCHEMA = "evenprune.comparison/1"
Pages = Mapping[str, Mapping[str, str]]  # run -> split -> the page of its audit, relative to the comparison

# What an audit is of, and why some of them prove nothing.
TRAINED = (
    "The model was trained on these samples: small gaps here do not say that they are small on unseen data."
)
DIAGNOSED = (
    "Gradient norm and largest Hessian eigenvalue are the dense model's, on these samples (Tran et al.)."
)
UNGROUPED = "The training samples have no groups to compare: nothing is said of gaps there."
CHOSEN = "Choices were made on these samples: gaps here are smaller than on unseen data."


@dataclass(frozen=True, eq=False)
class Result:
    """Finished runs. Prints as a table of the methods; `audit` prints as the audit of the first run.

    `audits`, `models`, `masks` and `history` have an entry per run under its name, such as "CEAG, seed 0".
    """

    model_name: str
    samples: Samples
    dense: Mapping[str, Predictions]  # the dense model on "train", "test" (and "heldout")
    fitted: tuple[Fitted, ...]
    recipe: Recipe
    tolerance: float  # of the audits
    confidence: float
    title: str = ""
    select: str | None = None  # the split on which one of the runs is chosen
    warned: tuple[str, ...] = ()  # what was said before the training
    shared: Mapping[str, Sequence[str]] = field(default_factory=dict)  # notes on samples of other splits
    columns: Mapping[str, Columns] = field(default_factory=dict)  # by split, to be shown in its audits
    wording: Callable[[str], str] = str  # of the notes: the command line names flags

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(one.run for one in self.fitted)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One per run, unique."""
        return tuple(run_labels(self.runs))

    @cached_property
    def audits(self) -> dict[str, BySplit[Audit]]:
        """By run and split: result.audits["CEAG, seed 0"]["test"]; "audit" is another name of "test"."""
        return {
            name: BySplit({split: self._audit(name, one, split) for split in self.audited})
            for name, one in zip(self.names, self.fitted, strict=True)
        }

    @property
    def audited(self) -> list[str]:
        """The splits; without training samples that have no groups to compare."""
        return [split for split in self.dense if split != TRAIN or self.samples.grouped_train]

    def _audit(self, name: str, one: Fitted, split: str) -> Audit:
        answers = one.predictions[split]
        found = audit(
            labels=answers.labels,
            dense=self.dense[split].predictions,
            pruned={name: answers.predictions},
            groups=self.samples.columns[split],
            tolerance=self.tolerance,
            confidence=self.confidence,
            columns=self.columns.get(split),
        )
        data, notes = self._evidence(split)
        notes += [DIAGNOSED] if self.columns.get(split) else []
        several = len({run.sparsity for run in self.runs}) > 1  # then the name tells
        subject = name if several else f"{name}, {percent(one.run.sparsity)} sparse"
        return replace(
            found, subject=f"{subject} · {data}", notes=(*notes, *self.shared.get(split, ()), *found.notes)
        )

    def _evidence(self, split: str) -> tuple[str, list[str]]:
        """What an audit is of in a few words, and what must be said of that."""
        if split == TRAIN:
            return "training data: not evidence", [TRAINED]
        if split == HELDOUT and self.chose_on_heldout:
            return "held-out data, used for choices: not evidence", [CHOSEN]
        return {HELDOUT: "held-out data"}.get(split, "test data"), []

    @property
    def chose_on_heldout(self) -> bool:
        """Whether multipliers, a best iterate, a class bias or the choice of a run looked at that split."""
        methods = [run.method for run in self.runs]
        named = {name for m in methods for name in (m.multipliers_on, m.keep_on)}
        biased = any(biased_runs.is_biased(run) for run in self.runs)
        return HELDOUT in named or biased or self.select is not None

    @cached_property
    def choice(self) -> Choice | None:
        """What was chosen on the split `select`, never on the test data; None without one."""
        if self.select is None:
            return None
        labels, split = method_labels(self.runs), name_of(self.select)
        candidates = [
            Candidate(
                name=name,
                setting=(one.run.method, one.run.sparsity),
                title=label,
                **run_figures.judged(self.dense[split], one.predictions[split], self.samples.names),
            )
            for name, one, label in zip(self.names, self.fitted, labels, strict=True)
        ]
        return choose(candidates, self.tolerance)

    @property
    def selected(self) -> str:
        """The run that is chosen on the split `select`, as selection.py says; without one, the first."""
        return self.names[0] if self.choice is None else self.choice.name

    @property
    def audit(self) -> Audit:
        """Of the selected run (without a split to select on: the first one), on the test data."""
        return self.audits[self.selected][AUDITED]

    @property
    def worst(self) -> Audit:
        """The strictest of all audits on the test data; of equals, the one with the largest excess gap."""
        return strictest(by_split[AUDITED] for by_split in self.audits.values())

    @property
    def verdict(self) -> Word:
        """Of the selected run on the test data; without a split to select on, the strictest of all runs: then
        "pass" means that every one of them passed."""
        return self.worst.verdict if self.select is None else self.audit.verdict

    @cached_property
    def notes(self) -> list[str]:
        """What the table does not say: few or shared samples, idle multipliers, divergence and the like."""
        train = len(self.samples.splits[TRAIN])
        found = [*self.warned, *(note for notes in self.shared.values() for note in notes)]
        found += [] if self.samples.grouped_train else [UNGROUPED]
        for label, runs in self._by_method().items():
            ended = {one.run.seed: one.diverged for one in runs if one.diverged is not None}
            method, trained = runs[0].run.method, [o for o in runs if o.history and o.diverged is None]
            steps = self.recipe.steps(train) * (self.recipe.epochs - self.recipe.acting_from(method))
            followed = TRAIN if method.cross_fitted else method.multipliers_on or TRAIN
            gaps = [self._bounded(one, followed) for one in trained] if followed in self.dense else []
            sums = [run_figures.multiplier_sum(one) or 0.0 for one in trained]
            shown = self._is_shown(trained, method, followed)
            known = [gap for gap in gaps if gap is not None and shown]
            found += idle_multipliers(label, method, gaps=known, sums=sums, steps=steps)
            if method.keep == "feasible" and method.keep_on is not None:
                kept = {one.run.seed: self._gaps(one, method.keep_on)["max_excess_gap"] for one in trained}
                met = {seed: gap for seed, gap in kept.items() if gap is not None}
                found += none_feasible(label, method, gaps=met, runs=len(runs))
            counts = [run_figures.negative_weights(one) for one in trained]
            found += negative_weights(label, method, counts=counts, weights=steps * self.recipe.batch_size)
            found += otherwise_in_evaluation(label, _in_both_modes(trained))
            found += diverged(label, ended)
        if self.choice is not None:
            fitted_to = [self._is_fitted_to(run, name_of(self.select or "")) for run in self.runs]
            chosen = fitted_to[self.names.index(self.selected)]
            if chosen and self.choice.settings > 1:
                found += chosen_on_its_own(self.choice.title, others=not all(fitted_to))
        if HELDOUT in self.dense and self.chose_on_heldout:
            found += unmeasured(self.dense[HELDOUT].reference(self.samples.names))
        return list(dict.fromkeys(map(self.wording, found)))  # of what was said before the training, once

    @staticmethod
    def _is_fitted_to(run: Run, split: str) -> bool:
        """Whether its multipliers or its class bias follow the split, or its epoch was picked there."""
        followed = split in (run.method.multipliers_on, run.method.keep_on)
        return followed or (split == HELDOUT and biased_runs.is_biased(run))

    def _gaps(self, one: Fitted, split: str) -> dict[str, Any]:
        return run_figures.gaps(self.dense[split], one.predictions[split], self.samples.names)

    def _bounded(self, one: Fitted, split: str) -> float | None:
        """What the method bounds there, as its multipliers see it; None where no group is known."""
        method = one.run.method
        if method.caution:
            dense, pruned = self.dense[split].correct, one.predictions[split]
            names = len(self.samples.names)
            least = least_excess_gap(
                dense, pruned.correct, pruned.groups, count=names, deviate=method.caution
            )
            return None if math.isnan(least) else float(least)
        key = "max_excess_gap" if method.rows == "mean" else "pairwise_disparity"
        found: float | None = self._gaps(one, split)[key]
        return found

    def _is_shown(self, runs: Iterable[Fitted], method: Method, followed: str) -> bool:
        """Whether some of these runs break the bound of their method by more than chance, where few held-out
        samples tell of ψ and nothing else takes their number into account."""
        if followed != HELDOUT or method.rows != "mean" or method.caution:
            return True
        dense, bound = self.dense[HELDOUT], method.tolerance + method.dead_zone
        judged = [run_figures.judged(dense, one.predictions[HELDOUT], self.samples.names) for one in runs]
        return any(not is_within(own["least"], bound) for own in judged)

    def _by_method(self) -> dict[str, list[Fitted]]:
        found: dict[str, list[Fitted]] = {}
        for label, one in zip(method_labels(self.runs), self.fitted, strict=True):
            found.setdefault(label, []).append(one)
        return found

    def with_class_bias(self, *, on: str = HELDOUT, device: torch.device | str = "cpu") -> "Result":
        """These runs, and each of them once more with one additive logit per class, fitted on held-out data.

        The new ones are called "NFT + class bias" and so on, are audited like the others, and their models
        carry the bias. Runs that are there with a bias already get no second one. For groups that are labels,
        or unions of labels: see class_bias.py.
        """
        more = biased_runs.with_class_bias(
            self.fitted,
            self.samples,
            self.dense,
            on=on,
            tolerance=self.tolerance,
            recipe=self.recipe,
            device=device,
        )
        return replace(self, fitted=(*self.fitted, *more))

    def with_diagnostics(self, model: nn.Module, *, iterations: int = 100) -> "Result":
        """The same, with two numbers per group in the test audits that tell why pruning may harm it.

        They are Tran et al.'s (diagnostics.py): gradient norm and largest Hessian eigenvalue of the dense
        `model` on the test data. It takes up to `iterations` passes over the test data and back.
        """
        ids, names = encode(self.samples.columns[AUDITED])  # those that the training data has not, too
        split = replace(self.samples.splits[AUDITED], groups=torch.as_tensor(ids))
        answered = self.dense[AUDITED].predictions
        measured = diagnostics.measure(model, split, names, iterations=iterations, answered=answered)
        found: Columns = {
            title: {name: run_figures.or_none(value) for name, value in values.items()}
            for title, values in diagnostics.columns(measured, names).items()
        }
        return replace(self, columns={**self.columns, AUDITED: {**self.columns.get(AUDITED, {}), **found}})

    @property
    def models(self) -> dict[str, nn.Module]:
        """The pruned models, pruned weights at zero, in evaluation mode."""
        return {name: one.model for name, one in zip(self.names, self.fitted, strict=True)}

    @property
    def masks(self) -> dict[str, Masks]:
        return {name: one.masks for name, one in zip(self.names, self.fitted, strict=True)}

    @property
    def history(self) -> dict[str, list[dict[str, Any]]]:
        """One row per epoch of each run, plain numbers."""
        return {name: one.history for name, one in zip(self.names, self.fitted, strict=True)}

    def document(self, pages: Pages | None = None) -> dict[str, Any]:
        """Everything as plain values for JSON: the methods, their runs, their history and their audits.

        pages: where the pages of the audits lie, for the links to them.
        """
        return document_of(self, pages or {})

    def table(self) -> str:
        """One line a method: accuracy, max ψ and Ψ_PW on train and test, mean ± sd, verdicts."""
        return comparison_text.to_text(self.document())

    def __str__(self) -> str:
        return self.table()

    def save(self, path: str | Path, *, pages: Pages | None = None) -> Path:
        """Write the comparison as one self-contained page (.html), as data (.json) or as text (.txt).

        pages: the pages of the audits, relative to this one, which then links them.
        """
        writers: dict[str, Callable[[dict[str, Any]], str]] = {
            ".html": comparison_page.to_html,
            ".json": report.to_json,
            ".txt": lambda document: comparison_text.to_text(document) + "\n",
        }
        write = writers.get(Path(path).suffix.lower())
        if write is None:
            raise ValueError(f"Cannot save as {path}: the name must end in one of {', '.join(writers)}.")
        atomic.write_text(path, write(self.document(pages)))
        return Path(path)


def _in_both_modes(trained: Iterable[Fitted]) -> dict[int, tuple[float, float]]:
    """By seed, accuracy on the training samples in both modes, of runs with norms that saw each as often."""
    return {
        one.run.seed: (
            one.history[one.kept_epoch]["accuracy"],
            float(one.predictions[TRAIN].correct.float().mean()),
        )
        for one in trained
        if one.run.method.sampling == "uniform"
        and any(isinstance(module, _BatchNorm) for module in one.model.modules())
    }


def strictest(audits: Iterable[Audit]) -> Audit:
    """Of equals, the one with the largest excess gap."""
    return max(audits, key=lambda a: (STRICTNESS[a.verdict], a.max_excess_gap.estimate))


def document_of(result: Result, pages: Pages) -> dict[str, Any]:
    """Everything that a page or a table shows, as plain values; fractions, not percent."""
    recipe, first = result.recipe, result.fitted[0]
    left = first.masks.summary()
    sparsities = sorted({run.sparsity for run in result.runs})
    return {
        "schema": SCHEMA,
        "title": result.title or f"{result.model_name}, {', '.join(map(percent, sparsities))} sparse",
        "model": result.model_name,
        "sparsity": sparsities[0] if len(sparsities) == 1 else None,
        "tolerance": result.tolerance,
        "confidence": result.confidence,
        "groups": list(result.samples.names),
        "samples": {name: _group_sizes(result, answers) for name, answers in result.dense.items()},
        "dense": {name: _level(result, answers) for name, answers in result.dense.items()},
        "epochs": recipe.epochs,
        "pruning_epochs": recipe.pruning_epochs,
        "seconds": run_figures.seconds(result.fitted),
        "parameters": {"all": left.prunable + left.unprunable, "left": left.left[0]},
        "notes": result.notes,
        "methods": _methods(result, pages),
        **_selection(result),
    }


def _selection(result: Result) -> dict[str, Any]:
    """The run that was chosen, where, and by what; nothing if none was."""
    if result.select is None or result.choice is None:
        return {}
    why = sentence(result.choice, result.tolerance)
    return {"selected": result.selected, "selected_on": name_of(result.select), "selected_because": why}


def _group_sizes(result: Result, answers: Predictions) -> list[int]:
    return [int(n) for n in answers.reference(result.samples.names).samples.tolist()]


def _level(result: Result, answers: Predictions) -> dict[str, Any]:
    measured = answers.reference(result.samples.names)
    by_group = run_figures.numbers(measured.accuracy.tolist())
    return {"accuracy": measured.overall_accuracy, "group_accuracy": by_group}


def _methods(result: Result, pages: Pages) -> list[dict[str, Any]]:
    names = iter(result.names)  # the runs of a method need not follow one another
    by_run = {id(one): next(names) for one in result.fitted}
    return [
        {
            "name": label,
            "settings": run_figures.settings(runs[0].run.method),
            "runs": [_run(result, one, by_run[id(one)], pages) for one in runs],
        }
        for label, runs in result._by_method().items()
    ]


def _run(result: Result, fitted: Fitted, name: str, pages: Pages) -> dict[str, Any]:
    audits = result.audits[name]
    verdicts = {split: audits[split].verdict if split in audits else None for split in result.dense}
    splits = {s: result._gaps(fitted, s) | {"verdict": verdicts[s]} for s in result.dense}
    return {
        "seed": fitted.run.seed,
        "sparsity": float(fitted.masks.sparsity[0]),
        **splits,
        "history": [
            run_figures.epoch(row, fitted.run.method, len(result.samples.names)) for row in fitted.history
        ],
        "multiplier_sum": run_figures.multiplier_sum(fitted),
        "negative_weights": run_figures.negative_weights(fitted),
        **run_figures.if_diverged(fitted),
        "audits": {split: audit.to_dict() for split, audit in audits.items()},
        "pages": dict(pages.get(name, {})),
    }
