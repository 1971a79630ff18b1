"""Methods: the table of the paper's methods, their settings, and what Method refuses."""

import inspect
import re
from dataclasses import fields
from functools import partial

import pytest

from evenprune import methods, run_figures
from evenprune.constraint import Method

# measure, against the dense model, rows, kind, estimator
EXPECTED = {
    "nft": ("none", "none"),
    "nft-es": ("none", "none"),
    "fairgrape": ("none", "none"),
    "el": ("loss", False, "mean", "absolute", "batch"),
    "el-rb": ("loss", False, "mean", "absolute", "ring"),
    "ceag": ("accuracy", True, "mean", "at_most", "ring"),
    "ceag-no-rb": ("accuracy", True, "mean", "at_most", "batch"),
    "celg": ("loss", True, "mean", "at_most", "ring"),
    "pairwise": ("accuracy", True, "extremes", "at_most", "ring"),
    "all-pairs": ("accuracy", True, "pairs", "at_most", "ring"),
    "equalized": ("accuracy", True, "mean", "equal", "ring"),
    "approximately-equal": ("accuracy", True, "mean", "absolute", "ring"),
    "two-sided": ("accuracy", True, "mean", "two_sided", "ring"),
    "kd": ("none", "none"),
    "performance-weighted": ("none", "none"),
    "group-dro": ("loss", False, "dro", "at_most", "batch"),
    "balanced": ("none", "none"),
}


def build(name: str) -> Method:
    needed = {"tolerance": 0.01, "on": "validation"}
    function = methods.TABLE[name]
    return function(
        **{key: value for key, value in needed.items() if key in inspect.signature(function).parameters}
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_table_of_methods(name: str) -> None:
    method = build(name)
    assert method.name == name.replace("-", "_")
    if method.rows == "none":
        assert (method.rows, method.estimator) == EXPECTED[name]
        return
    row = (method.measure, method.against_dense, method.rows, method.kind, method.estimator)
    assert row == EXPECTED[name]
    assert (method.overall, method.negative, method.mean, method.dual) == (
        "micro",
        "clip",
        "lagrangian",
        "sgd",
    )
    assert method.dual_lr > 0


def test_table_names_every_method_and_all_arguments_are_keywords() -> None:
    assert set(methods.TABLE) == set(EXPECTED)
    kinds = {p.kind for f in methods.TABLE.values() for p in inspect.signature(f).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}


def test_options_arrive() -> None:
    method = methods.ceag(
        tolerance=0.02, dual_lr=0.5, k=7, overall="macro", negative="keep", mean="detached", estimator="table"
    )
    assert (method.tolerance, method.dual_lr, method.k) == (0.02, 0.5, 7)
    assert (method.overall, method.negative, method.mean, method.estimator) == (
        "macro",
        "keep",
        "detached",
        "table",
    )
    assert methods.nft_es(on="test").keep_on == "test"
    taught = methods.balanced(distill=0.5, temperature=2.0)
    assert (taught.sampling, taught.distill, taught.temperature) == ("balanced", 0.5, 2.0)
    early = methods.ceag(tolerance=0.02, while_pruning=True)
    assert run_figures.settings(early)["while_pruning"] is True
    assert "while_pruning" not in run_figures.settings(method)
    assert methods.el_rb(dual_lr=0.1, k=3).k == 3


def test_all_faults_of_a_method_are_told_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"(?s)'x'.*tolerance is -1.*dual_lr is -2.*k is 0.*nu is 1.*needs keep_on"
    ):
        Method(name="x", tolerance=-1, dual_lr=-2, k=0, nu=1, dual="nupi", keep="best")
    with pytest.raises(ValueError, match="an equality has no tolerance"):
        Method(name="x", kind="equal", tolerance=0.1)
    with pytest.raises(ValueError, match="needs rows='mean'"):
        Method(name="x", kind="two_sided", rows="pairs")
    with pytest.raises(ValueError, match="while_pruning=True needs constraints"):
        Method(name="x", rows="none", estimator="none", while_pruning=True)
    with pytest.raises(ValueError, match="from the end of pruning on; take while_pruning=False"):
        methods.ceag(tolerance=0.1, multipliers_on="heldout", while_pruning=True)
    with pytest.raises(ValueError, match="while_pruning is 1; True or False"):
        methods.ceag(tolerance=0.1, while_pruning=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows='none' with estimator='ring'"):
        Method(name="x", rows="none")
    with pytest.raises(ValueError, match="belong to dual='nupi'"):
        Method(name="x", kp=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"overall": "Macro"}, "overall is 'Macro'; choose 'micro' or 'macro'"),
        ({"negative": "none"}, "choose 'clip' or 'keep'"),
        ({"estimator": "rings"}, "estimator is 'rings'"),
        ({"dual_lr": float("inf")}, "dual_lr is inf; give a finite number"),
        ({"tolerance": "0.1"}, "tolerance is '0.1'"),
        ({"k": True}, "k is True"),
        ({"distill": 1.5}, "distill is 1.5; it must lie in [0, 1]"),
        ({"temperature": 0}, "temperature is 0; it must be positive"),
        ({"floor": 0.1}, "focus is 0, so floor=0.1 has nothing to act on: give a focus above 0, or floor=0"),
        ({"refresh": 10}, "refresh=10 is of full passes, and estimator='ring' makes none: leave refresh"),
        ({"estimator": "pass", "refresh": 10}, "estimator='pass' needs multipliers_on"),
        ({"refresh": 1.5, "multipliers_on": "heldout"}, "refresh is 1.5; a whole number of steps"),
        (
            {"multipliers_on": "heldout", "caution": 1.0},
            "caution with estimator='ring' and measure='accuracy': limits of ψ need the samples",
        ),
        ({"multipliers_on": "heldout", "moves_on": "lower"}, "moves_on='lower' needs caution"),
        ({"moves_on": "upper"}, "moves_on is 'upper'; choose 'estimate' or 'lower'"),
        ({"tolerance": 2}, "tolerance is 2; give a fraction from 0 to 1"),
        ({"dead_zone": -0.01}, "dead_zone is -0.01; give a fraction from 0 to 1"),
        ({"dead_zone": 1}, "dead_zone is 1; give a fraction from 0 to 1"),
        ({"dead_zone": "1 %"}, "dead_zone is '1 %'; give a finite number"),
        ({"multipliers_on": "heldout", "negative": "keep"}, "negative='keep' with multipliers_on"),
        ({"focus": 1.0, "floor": 1.5}, "floor is 1.5; it must lie in [0, 1]"),
        ({"targets": "soft"}, "targets is 'soft'; choose 'labels' or 'corrected'"),
        ({"side": "batch"}, "side='batch' belongs to kind='absolute'"),
        ({"keep": "feasible"}, "keep='feasible' needs keep_on, the name of a split."),
        (
            {"keep_on": "heldout"},
            "keep_on='heldout' does nothing with keep='last': add keep='best' or keep='feasible', or leave "
            "keep_on out",
        ),
        (
            {"keep_on": "heldout", "measure": "loss"},
            "with keep='last': add keep='best', or leave keep_on out",
        ),
        (
            {"keep": "feasible", "keep_on": "x", "measure": "loss"},
            "keep='feasible' is for ceag and ceag_no_rb, which bound how much more accuracy than the average "
            "each group loses: this ceag measures losses; take keep='best'",
        ),
        ({"keep_on": ["heldout"], "keep": "best"}, "keep_on is ['heldout']; give the name of one split"),
        ({"multipliers_on": ["heldout"]}, "multipliers_on is ['heldout']; give the name of one split"),
        (
            {"multipliers_on": "x", "estimator": "pass", "refresh": 9, "caution": 1.0, "overall": "macro"},
            "caution is for ceag with overall='micro', whose gaps have limits: this ceag has overall='macro'",
        ),
        ({"overall": "Macro", "mean": "detach"}, "mean is 'detach'"),
    ],
)
def test_misspelt_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        methods.ceag(**{"tolerance": 0.01} | settings)


@pytest.mark.parametrize(
    ("make", "lacks"),
    [
        (methods.el_rb, "this el_rb bounds both sides and measures losses"),
        (methods.equalized, "this equalized wants equal gaps"),
        (partial(methods.two_sided, tolerance=0.1), "this two_sided bounds both sides"),
        (partial(methods.pairwise, tolerance=0.1), "this pairwise bounds differences of two groups"),
    ],
)
def test_what_a_method_lacks_to_be_kept_while_feasible_is_told(make, lacks):
    with pytest.raises(ValueError, match=f"for ceag and ceag_no_rb, .*: {lacks}; take keep='best'"):
        make(keep="feasible", keep_on="heldout")
    with pytest.raises(
        ValueError, match=f"caution is for ceag .*: {lacks.split(' and ')[0]}; take a dead_zone"
    ):
        make(multipliers_on="x", estimator="pass", refresh=9, caution=1.0)


def test_weights_without_a_focus_are_refused_by_what_was_given() -> None:
    with pytest.raises(ValueError, match=r"focus is 0, so floor=0\.5 has nothing to act on"):
        methods.performance_weighted(focus=0)
    with pytest.raises(ValueError, match="focus is -1; it must not be negative") as caught:
        methods.performance_weighted(focus=-1)
    assert "nothing to act on" not in str(caught.value)
    assert methods.performance_weighted(focus=0, floor=0).focus == 0


def test_an_option_that_there_is_not_is_named_with_the_method() -> None:
    with pytest.raises(TypeError, match=r"^ceag has no option multiplierson; did you mean multipliers_on\?$"):
        methods.ceag(tolerance=0.1, multiplierson="heldout")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^celg has no option colour; it takes measure, "):
        methods.celg(tolerance=0.1, colour=3)  # type: ignore[call-arg]
    assert list(inspect.signature(Method).parameters)[:2] == ["name", "measure"]


def test_the_settings_of_a_method_are_those_that_it_takes() -> None:
    assert methods.settings_of(methods.kd) == ["distill", "temperature"]
    assert methods.settings_of(methods.nft) == []
    ring, batch = methods.settings_of(methods.ceag), methods.settings_of(methods.ceag_no_rb)
    assert set(ring) - set(batch) == {"estimator", "k"}
    assert set(ring) < {field.name for field in fields(Method)}
