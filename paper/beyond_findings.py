"""What works and what does not, in sentences from the data; and what is not there."""

from collections.abc import Iterable, Mapping, Sequence

from evenprune.paper_wording import COARSE, listed, points, signed
from evenprune.wording import visible
from paper.beyond_cells import NO_LABELS, SMALL, SPARSITY, TOLERANCE
from paper.beyond_measures import PAYERS, name_of
from paper.beyond_methods import (
    BIAS,
    BOTH,
    BY_SIZE,
    FORMULATIONS,
    KD,
    OF_ONE_SIZE,
    PASSES,
    SPARSER,
    STUDY,
    grouped,
    is_formulation,
)
from paper.beyond_paired import Setting
from paper.beyond_pooled import BETTER
from paper.beyond_summary import VERDICTS, Block, Constrained, Entry, Gain
from paper.beyond_words import FEW, PLANNED, baseline, dataset, limits, short_titles, step

HARM = "max_excess_gap"
SEEDS = 5  # of the study
SETTLED = 0.1  # share of Σ|λ| that a settled one moves at the most in the last epochs
OVERSHOT = "Payers farther ahead than they had been behind"
Finding = tuple[str, str]  # a heading and what it says


# --- how a method stands against the baseline ---


def standing(entry: Entry, measure: str = HARM) -> str:
    """ "better", "worse": the limits say so; "seems better", "seems worse": they do not, but every seed does.

    "overshot": payers for certain lose less, and are farther ahead than they were behind; "mixed": now
    better, now worse; "few": too few seeds to say; "unknown": no seed was compared.
    """
    found = entry.difference(measure)
    if found is None:
        return "unknown"
    if len(found.values) < FEW:
        return "few"
    if entry.clear(measure) > 0:
        return "overshot" if measure == PAYERS and entry.overshoots else "better"
    if entry.clear(measure) < 0:
        return "worse"
    ahead = leads(entry, measure)
    behind = sum(BETTER[measure] * value < 0 for value in found.values)
    return (
        "seems better" if ahead == entry.compared else "seems worse" if behind == entry.compared else "mixed"
    )


def leads(entry: Entry, measure: str = HARM) -> int:
    """Seeds that are better than the baseline's, be it clearly or not."""
    found = entry.difference(measure)
    return 0 if found is None else sum(BETTER[measure] * value > 0 for value in found.values)


def counts(entry: Entry, measure: str = HARM, *, brief: bool = False) -> str:
    """ "−3.1 to −0.4; 4 of 5 seeds better"; brief: without the last words."""
    if not entry.compared:
        return "not compared"
    better = "" if brief else " seeds better"
    over = "; overshoots" if standing(entry, measure) == "overshot" else ""
    return f"{limits(entry, measure)}; {leads(entry, measure)} of {entry.compared}{better}{over}"


Standings = dict[str, list[str]]  # method -> its standing in each setting that has it


def standings(found: Iterable[Block], measure: str = HARM) -> Standings:
    return _standings(_entries(found), measure)


def _standings(entries: Iterable[Entry], measure: str) -> Standings:
    told: Standings = {}
    for entry in entries:
        if entry.compared:
            told.setdefault(entry.name, []).append(standing(entry, measure))
    return told


def _in_settings(told: Standings, word: str) -> list[str]:
    """ "CEAG (2 of 4 settings)" for each method that stands so in at least one."""
    counted = {name: (own.count(word), len(own)) for name, own in told.items()}
    return [f"{name} ({n} of {_settings(of)})" for name, (n, of) in counted.items() if n]


def _settings(count: int) -> str:
    return f"{count} setting{'' if count == 1 else 's'}"


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _names(parts: Sequence[str], nobody: str = "none") -> str:
    return listed(parts) if parts else nobody


def _if_any(head: str, parts: Sequence[str]) -> list[Finding]:
    return [(head, listed(parts))] if parts else []


# --- the whole study ---


MOST_NAMED = 3  # methods in a headline
ENOUGH = 3  # settings, for a share of them to say something


def headline(found: Sequence[Block]) -> str:
    if not found:
        return "No run is finished yet."
    whole = [block for block in found if block.setting.heldout_used is None] or found  # each task once
    told, base = standings(whole), baseline(found[0].against)
    if not told:
        return f"Nothing can be compared with {base} yet."
    what = "the worst group's excess gap"
    helps, seems = (_in_settings(told, word) for word in ("better", "seems better"))
    rest = f"{_spared(whole)}{_beyond_distillation(whole)}"
    if helps:
        verb, some = "keeps" if len(helps) == 1 else "keep", " in some setting" if len(whole) > 1 else ""
        return (
            f"On unseen data {len(helps)} of {len(told)} methods {verb} {what} clearly below that of {base}"
            f"{some}{_above_all(told) or ': ' + listed(helps)}.{rest}"
        )
    less = f"; with {len(seems)} of {len(told)} it is lower in every seed of some setting" if seems else ""
    return f"On unseen data no method keeps {what} clearly below that of {base}{less}.{rest}"


def _above_all(told: Standings) -> str:
    """Where too many methods are better in some setting to name them all: the one that is so in the largest
    share of its settings, and of equals in most of them; one of few settings only if all are."""
    better = {name: own for name, own in told.items() if "better" in own}
    if len(better) <= MOST_NAMED:
        return ""

    def place(name: str) -> tuple[bool, float, int]:
        own = better[name]
        return len(own) >= ENOUGH, own.count("better") / len(own), len(own)

    first = max(better, key=place)
    return f", above all {_in_settings({first: better[first]}, 'better')[0]}"


def _spared(found: Sequence[Block]) -> str:
    """The same of the groups that held-out samples show to pay."""
    told = standings(found, PAYERS)
    better, over = (sum(word in own for own in told.values()) for word in ("better", "overshot"))
    spared = " The groups that held-out samples show to pay are clearly better off with {} of {}"
    spared += f"{_above_all(told)}."
    beyond = " With {} of {} they are farther ahead of the average than they had been behind."
    parts = ((spared, better), (beyond, over))
    return "".join(said.format(count, len(told)) for said, count in parts if count)


def _beyond_distillation(found: Sequence[Block]) -> str:
    """Of multipliers with distillation, what is theirs."""
    entries = [entry for block in found for entry in block.faced.get(KD, [])]
    counted = [_standings(entries, measure).get(BOTH, []) for measure in (HARM, PAYERS)]
    if len(counted[0]) < ENOUGH:
        return ""
    worst, payers = (own.count("better") for own in counted)
    return (
        f" Beyond {KD}, {BOTH} lowers the worst gap clearly in {worst} of {_settings(len(counted[0]))}, and "
        f"spares those who pay in {payers}."
    )


def study_findings(found: Sequence[Block]) -> list[Finding]:
    """What works and what does not, over all settings."""
    if not found:
        return []
    told, accuracy = standings(found), standings(found, "accuracy")
    never = [name for name, own in told.items() if set(own) == {"mixed"}]
    payers, range_ = (standings(found, measure) for measure in (PAYERS, "pairwise_disparity"))
    findings = [
        *_if_any(f"Payers clearly better off than with {found[0].against}", _in_settings(payers, "better")),
        *_if_any(OVERSHOT, _in_settings(payers, "overshot")),
        *_if_any("Payers clearly worse off", _in_settings(payers, "worse")),
        (f"Clearly less harm than {found[0].against}", _names(_in_settings(told, "better"))),
        *_if_any("Less in every seed, but not clearly", _in_settings(told, "seems better")),
        ("Clearly more harm", _names(_in_settings(told, "worse"))),
        *_if_any("More in every seed, but not clearly", _in_settings(told, "seems worse")),
        *_if_any("In every setting now less, now more", never),
        *_if_any("Groups clearly closer together (Ψ_PW)", _in_settings(range_, "better")),
        *_if_any("Groups clearly farther apart (Ψ_PW)", _in_settings(range_, "worse")),
        ("Clearly more accurate", _names(_in_settings(accuracy, "better"))),
        ("Clearly less accurate", _names(_in_settings(accuracy, "worse"))),
    ]
    faced = [(f"Multipliers on unseen samples, against {name}", said) for name, said in _faced(found).items()]
    return [*(findings if told else []), *faced, _against_chance(found), _carried_over(found)]


STANDS = {
    HARM: {
        "better": "clearly less harm",
        "seems better": "less in every seed",
        "worse": "clearly more harm",
        "seems worse": "more in every seed",
    },
    PAYERS: {"better": "payers clearly better off", "worse": "payers clearly worse off"},
}


def _faced(found: Sequence[Block]) -> dict[str, str]:
    """By other baseline, how the methods stand that have to face it."""
    names = dict.fromkeys(name for block in found for name in block.faced)
    said = {}
    for name in names:
        entries = [entry for block in found for entry in block.faced.get(name, [])]
        parts = [
            f"{words}: {listed(own)}"
            for measure, standing in STANDS.items()
            for word, words in standing.items()
            if (own := _in_settings(_standings(entries, measure), word))
        ]
        if any(entry.compared for entry in entries):
            said[name] = f"{'; '.join(parts)}." if parts else "nothing is clear, or the same in every seed."
    return said


def _entries(found: Iterable[Block]) -> list[Entry]:
    return [entry for block in found for entry in block.entries]


def _against_chance(found: Sequence[Block]) -> Finding:
    entries = _entries(found)
    runs, above = sum(len(e.rows) for e in entries), sum(e.above(HARM) for e in entries)
    names = list(dict.fromkeys(entry.name for entry in entries))
    inside = [name for name in names if not any(e.above(HARM) for e in entries if e.name == name)]
    return "Against the noise floor", (
        f"Max ψ lies within the range that chance alone gives (95 %) in {runs - above} of {runs} runs, above "
        f"it in {above}. In no seed of any setting above it: {_names(inside)}."
    )


def tolerances(found: Sequence[Block]) -> str:
    """Of all settings: "1.0 points", "1.0 or 5.0 points"."""
    *less, most = sorted({block.tolerance for block in found}) or [TOLERANCE]
    return " or ".join([*(points(value).removesuffix(" points") for value in less), points(most)])


def _carried_over(found: Sequence[Block]) -> Finding:
    entries = _entries(found)
    runs = sum(len(e.rows) for e in entries)
    train, unseen = (
        sum(e.within(split, block.tolerance) for block in found for e in block.entries)
        for split in ("train", "audit")
    )
    verdicts = {word: sum(e.verdicts.get(word, 0) for e in entries) for word in VERDICTS}
    told = ", ".join(f"{count} {word}" for word, count in verdicts.items())
    return "From training to unseen data", (
        f"Max ψ was within the tolerance of {tolerances(found)} in {train} of {runs} runs on training data, "
        f"in {unseen} on unseen data. The audits on unseen data: {told}."
    )


# --- one setting ---


def block_findings(block: Block) -> list[Finding]:
    base = block.against
    others = [entry for entry in block.entries if entry.method != base]
    compared, apart = [e for e in others if e.compared], [e.name for e in others if not e.compared]
    lean = _lean(compared, HARM)
    findings = [
        (f"Max ψ clearly below {base}'s", _names(lean["better"])),
        *_if_any("Below in every seed, but not clearly", lean["seems better"]),
        (f"Clearly above {base}'s", _names(lean["worse"])),
        *_if_any("Above in every seed, but not clearly", lean["seems worse"]),
        *_if_any("Now below, now above", lean["mixed"]),
        *_if_any(f"Fewer than {FEW} seeds", lean["few"]),
    ]
    reason = f"there is no {base} run of their seeds, or the answers were not kept"
    missing = [("Not compared", f"{listed(apart)}: {reason}")] if apart else []
    return [*(findings if compared else []), *missing, *_payers_here(block), _chance_here(block)]


def _lean(entries: Iterable[Entry], measure: str) -> dict[str, list[str]]:
    """By standing, the methods that stand so, each with its mean difference."""
    told = {f"{e.name} ({_mean(e, measure)})": standing(e, measure) for e in entries}
    words = ("better", "overshot", "worse", "seems better", "seems worse", "mixed", "few")
    return {word: [name for name, own in told.items() if own == word] for word in words}


def _mean(entry: Entry, measure: str) -> str:
    spread = entry.apart(measure)
    return f"{signed(None if spread is None else spread.mean, 1)} points"


def _payers_here(block: Block) -> list[Finding]:
    """Who pays by held-out samples, what these groups lose on unseen ones, and who spares them that."""
    base = [entry for entry in block.entries if entry.method == block.against]
    if not block.payers or not base or (spread := base[0].spread("audit", PAYERS)) is None:
        return []
    place = {"dataset": block.setting.dataset, "groups": block.setting.groups}
    who = listed([name_of(group, **place) for group in block.payers])
    lean = _lean([e for e in block.entries if e.method != block.against and e.compared], PAYERS)
    more = f"{COARSE.number(spread.mean)} points more from them than from all"
    return [
        ("Payers, by held-out samples", f"{who}. On unseen samples {block.against} takes {more}."),
        ("Payers clearly better off", _names(lean["better"])),
        *_if_any(OVERSHOT, lean["overshot"]),
        *_if_any("Better off in every seed, but not clearly", lean["seems better"]),
        *_if_any("Payers clearly worse off", lean["worse"]),
    ]


def _chance_here(block: Block) -> Finding:
    told = {e.name: (e.above(HARM), len(e.rows)) for e in block.entries}
    parts = {
        "within it in every seed": [name for name, (above, _) in told.items() if not above],
        "above it in every seed": [name for name, (above, of) in told.items() if above == of],
        "above it in some": [f"{n} ({above} of {of})" for n, (above, of) in told.items() if 0 < above < of],
    }
    said = "; ".join(f"{word}: {listed(names)}" for word, names in parts.items() if names)
    return "The range of chance", f"{said}."


# --- held-out samples and gain ---


def sizes(own: Iterable[Gain]) -> list[int]:
    return sorted({gain.followed.samples for gain in own})


def gain_sentence(own: Sequence[Gain]) -> str:
    """What methods with several numbers of held-out samples do with the fewest and with the most of them."""
    ends = _ends(own)
    if not ends:
        return "Run with one number of held-out samples only: how the gain depends on it is not known yet."
    clear = [name for name, (few, many) in ends.items() if _apart(few, many)]
    there = sizes(gain for pair in ends.values() for gain in pair)
    told = [f"{name} {_from_to(few, many)}" for name, (few, many) in ends.items()]
    return (
        f"Run with {there[0]} to {there[-1]} held-out samples a group. Payers' ψ on unseen data minus "
        f"{own[0].entry.against}'s, in points, with the fewest → with the most: {listed(told)}. "
        f"The limits of the two lie apart: {_names(clear)}."
    )


def _from_to(few: Gain, many: Gain) -> str:
    """Each has the dual step that it chose: if they differ, that may be what makes the difference."""
    steps = f" (dual steps {step(few.entry.step)} → {step(many.entry.step)})"
    gained = " → ".join(signed(gain.difference.mean, 1) for gain in (few, many))
    return gained if few.entry.step == many.entry.step else gained + steps


def _apart(few: Gain, many: Gain) -> bool:
    """Whether the limits of the two differences from the baseline do not overlap."""
    first, second = few.entry.difference(PAYERS), many.entry.difference(PAYERS)
    if first is None or second is None or min(few.entry.compared, many.entry.compared) < FEW:
        return False
    return first.upper < second.lower or second.upper < first.lower


def _ends(own: Sequence[Gain]) -> Mapping[str, tuple[Gain, Gain]]:
    """Of each method with several numbers of held-out samples, those with the fewest and the most."""
    methods: dict[str, list[Gain]] = {}
    for gain in sorted(own, key=lambda gain: gain.followed.samples):
        methods.setdefault(gain.entry.name, []).append(gain)
    return {n: (g[0], g[-1]) for n, g in methods.items() if g[0].followed.samples < g[-1].followed.samples}


# --- formulations ---


def formulated(block: Block) -> list[Constrained]:
    """The rows of the section on formulations: none if there are none beside the study's."""
    own = [one for one in block.constraints if one.method in FORMULATIONS]
    return own if any(is_formulation(one.method) for one in own) else []


def best_step(own: Sequence[Constrained]) -> Constrained:
    """Whose constraints hold on training data in most seeds; of equals the smallest step."""
    return max(sorted(own, key=lambda one: one.step), key=lambda one: one.held["train"] / one.seeds)


def settled(one: Constrained) -> bool:
    assert one.change is not None
    assert one.size is not None
    return not one.diverged and abs(one.change.mean) <= SETTLED * one.size.mean


def formulation_findings(constraints: Sequence[Constrained]) -> list[Finding]:
    best = {
        name: best_step([one for one in constraints if one.name == name])
        for name in dict.fromkeys(one.name for one in constraints)
    }
    shares = {name: one.held["train"] / one.seeds for name, one in best.items()}
    told = {name: _held(one, "train") for name, one in best.items()}
    moving = [name for name, one in best.items() if not settled(one)]
    wild = [f"{c.name} ({c.diverged} of {c.seeds}, step {c.step:g})" for c in constraints if c.diverged]
    return [
        ("Feasible on training data in all seeds", _names([told[n] for n, s in shares.items() if s == 1])),
        ("In some seeds at best", _names([told[n] for n, s in shares.items() if 0 < s < 1])),
        ("With no dual step in any seed", _names([n for n, s in shares.items() if s == 0])),
        ("Feasible on unseen data", _names([_held(c, "audit") for c in constraints if c.held["audit"]])),
        (
            "Multipliers not settled",
            f"{_names(moving)} (at the step that is feasible most often, Σ|λ| moved by more than "
            f"{100 * SETTLED:g} % of itself in the last epochs)",
        ),
        *([("Diverged", _names(wild))] if wild else []),
    ]


def _held(one: Constrained, split: str) -> str:
    return f"{one.name} ({one.held[split]} of {one.seeds}, step {one.step:g})"


# --- what is not there ---


def expected(block: Block) -> list[str]:
    """The methods of the study that belong to a setting: some to one setting only, and class biases of fewer
    held-out samples to every one."""
    setting = block.setting
    first = (setting.dataset, setting.groups, setting.augment) == (*PLANNED[0], False)
    here = first and not is_sparser(setting)  # on which everything is run
    labels = setting.groups not in NO_LABELS
    if setting.heldout_used is not None:
        return [BIAS, *(BY_SIZE if here else ())] if labels else [*BY_SIZE]
    if is_sparser(setting):
        return [name for name in SPARSER if first or not grouped(name)]
    return [*(name for name in STUDY if labels or name != BIAS), *(OF_ONE_SIZE if here else ())]


def is_sparser(setting: Setting) -> bool:
    """Whether it is pruned further than the study is about."""
    return setting.sparsity > SPARSITY.get(setting.dataset, 1)


def unrun_methods(block: Block) -> list[str]:
    there = {entry.method for entry in block.entries}
    return [name for name in expected(block) if name not in there]


def unrun(found: Sequence[Block]) -> list[str]:
    """Everything that the study is to have and that the results do not have."""
    told = [block.setting for block in found if block.setting.heldout_used is None]
    whole = [setting for setting in told if not is_sparser(setting)]
    there = {(setting.dataset, setting.groups, setting.augment) for setting in whole}
    said = [
        f"{dataset(data)}, groups by {groups}, {'with' if augment else 'without'} augmentation"
        for data, groups in PLANNED
        for augment in ((False,) if data == SMALL else (False, True))  # the small ones as they are
        if (data, groups, augment) not in there
    ]
    said += _one_size(found)
    for block, title in zip(found, short_titles(found), strict=True):
        said += [f"{title}: {lack}" for lack in _lacking(block)]
    said += [] if len(told) > len(whole) else ["A higher sparsity"]
    there_too = {one.method for block in found for one in formulated(block)}
    absent = [name for name in FORMULATIONS if name not in there_too]
    return [*said, f"Formulations: {listed(absent)}"] if absent else said


def _one_size(found: Sequence[Block]) -> list[str]:
    """Tasks whose multipliers followed a single number of held-out samples."""
    numbers: dict[str, set[int]] = {}
    for block in found:
        if PASSES not in {entry.method for entry in block.entries}:
            continue
        task = f"{dataset(block.setting.dataset)}, groups by {visible(block.setting.groups)}"
        numbers.setdefault(task, set()).add(block.heldout_samples)
    return [
        f"{task}: multipliers with other numbers of held-out samples"
        for task, own in numbers.items()
        if len(own) == 1
    ]


def _lacking(block: Block) -> list[str]:
    methods = unrun_methods(block)
    seeds = [f"{len(e.rows)} of {e.name}" for e in block.entries if len(e.rows) < SEEDS]
    told = [listed(methods)] if methods else []
    told += [f"{SEEDS} seeds; so far {listed(seeds)}"] if seeds else []
    silent = f"the answers of {block.unanswered} runs, which therefore are not compared"
    return [*told, silent] if block.unanswered else told


def accuracies(model: Mapping[str, float], splits: Iterable[str]) -> list[str]:
    return [f"{COARSE.number(model[split])} %" for split in splits]
