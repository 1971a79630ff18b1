"""Command lines that are refused: all that is wrong with one, in one message, before anything is read."""

import shlex
from argparse import Namespace
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from evenprune.reading import listed
from evenprune.tally import InputProblems
from paper import beyond_answers
from paper.beyond_data import SOURCES
from paper.beyond_flags import methods_of, part_problems, tune_seeds, with_part
from paper.beyond_measures import NAMES, groups_named
from paper.beyond_plan import Part
from paper.flag_values import names_seeds, told_values, wrong_values
from paper.rules import COUNT

SUCH_AS = 5  # names that are told where one is wrong
TRAINING = ("study", "formulations", "timing")
TUNING = ("study", "formulations", "plan", "list")  # commands that choose dual steps


def wrong_together(flags: Namespace, part: Part | None) -> list[str]:
    """What does not go with other flags, nor with the part that they are for."""
    own = flags if part is None else with_part(flags, part)
    # A part that says how many itself takes those that there are not as all; groups are of the data set.
    judged = part is None or ("heldout_used" not in part.told and flags.dataset in (None, part.dataset))
    return [
        *_no_results(flags),
        *([] if part is None else part_problems(flags, part)),
        *(_none_left(own) if flags.command in TRAINING else []),
        *(_too_many(own) if judged else []),
        *_seeds_apart(own),
    ]


def _no_results(flags: Namespace) -> list[str]:
    """A mistyped file would look like an empty study."""
    if flags.command not in ("show", "page") or flags.results.exists():
        return []
    return [f"--results {flags.results} does not exist: name a file that `study` has written"]


def _none_left(flags: Namespace) -> list[str]:
    if methods_of(flags):
        return []
    return [
        f"--without {shlex.join(flags.without)} leaves no method: leave out fewer, or give other --methods"
    ]


def _too_many(flags: Namespace) -> list[str]:
    """More held-out samples of a group than there are; of a share of each class, the data have to tell."""
    if not isinstance(getattr(flags, "heldout_used", None), list) or not COUNT[1](flags.heldout):
        return []
    most = flags.heldout * SOURCES[flags.dataset].classes_of[flags.groups]
    return [
        f"--heldout-used is {used}: --heldout {flags.heldout} holds out {most} samples a {flags.groups}; "
        f"give 1 to {most}, a share between 0 and 1, or all"
        for used in told_values(flags.heldout_used)
        if COUNT[1](used) and used > most
    ]


def _seeds_apart(flags: Namespace) -> list[str]:
    """Dual steps are chosen with some of the seeds."""
    if flags.command not in TUNING or not names_seeds(flags.tune_seeds):
        return []
    try:
        tune_seeds(flags)
    except InputProblems as error:
        return error.problems
    return []


def wrong_target(flags: Namespace) -> list[str]:
    """A page that cannot be written, or would take the place of the results."""
    if flags.command != "page":
        return []
    target, place = flags.to, flags.to.resolve()
    if place in [file.resolve() for file in files_of(flags.results)]:
        return [f"--to {target} is a results file; name another file"]
    if place.is_dir():
        return [f"--to {target} is a folder; name a file inside it"]
    if not place.parent.is_dir():
        return [f"--to {target} cannot be written: {place.parent} does not exist; create it first"]
    return []


def wrong_groups(flags: Namespace) -> list[str]:
    """A misspelt group would look like one that nobody has."""
    if not getattr(flags, "payers", ()):
        return []
    places = [place for place in NAMES if flags.dataset in (None, place[0])]
    known = [name for place in places for name in NAMES[place]]
    return [
        f"--payers {told!r} is no group of {flags.dataset or 'any data set'}: give names such as "
        f"{listed(get_close_matches(told, known) or known, SUCH_AS)}"
        for told in flags.payers
        if not any(groups_named([told], dataset=dataset, groups=groups) for dataset, groups in places)
    ]


def files_of(results: Path) -> list[Path]:
    """The two files of the study."""
    return [results, beyond_answers.path_of(results)]


def refuse(flags: Namespace, parts: Iterable[tuple[Namespace, Part | None]]) -> None:
    """`parts`: of the study, each with the command line as it reads it; None: it is about no part."""
    found = [*wrong_values(flags), *wrong_target(flags), *wrong_groups(flags)]
    found += [problem for own, part in parts for problem in wrong_together(own, part)]
    if found:
        raise InputProblems(list(dict.fromkeys(found)))
