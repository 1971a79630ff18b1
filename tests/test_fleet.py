"""A fleet of n against n separate models: outputs, gradients, steps; refusals; loading and taking apart."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenprune.fleet import CannotWiden, Fleet, Single, copy_runs_, extract, load_, of_runs, single, widen
from evenprune.masks import Masks
from evenprune.models import cifar_resnet56, mlp, mobilenet_v2, resnet34, small_cnn
from evenprune.wide_layers import part

Build = Callable[[], nn.Module]


class Lambda(nn.Module):
    """Layers, and a function of (layers, x) as forward."""

    def __init__(self, function: Callable[[nn.ModuleDict, Tensor], Any], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layers, x)


def gated(layers: nn.ModuleDict, x: Tensor) -> Tensor:
    x = layers["conv"](x)
    gate = layers["gate"](x.mean((2, 3), keepdim=True)).sigmoid()  # [batch, 6, 1, 1]
    place = layers["map"](x).sigmoid()  # [batch, 1, height, width]
    return (x * gate * place + 0.5 * x).amax(dim=(-1, -2))


def by_hand(layers: nn.ModuleDict, x: Tensor) -> Tensor:
    x = F.max_pool2d(F.relu(layers["conv"](x)), 2)
    x = x.view(x.size(0), -1)
    return F.log_softmax(layers["fc"](x), dim=1)


def tokens(layers: nn.ModuleDict, x: Tensor) -> Tensor:
    x = layers["norm"](layers["fc"](x))  # [batch, 5, 6]
    return torch.flatten(F.gelu(x), 1)


def separable(layers: nn.ModuleDict, x: Tensor) -> Tensor:
    x = layers["groups"](layers["deep"](x)) + layers["instance"](layers["point"](x))
    return F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1)


SMALL: dict[str, tuple[Build, tuple[int, ...]]] = {
    "mlp": (lambda: mlp(5, (7, 6), 3), (5,)),
    "small_cnn": (small_cnn, (1, 8, 8)),
    "flat norms": (
        lambda: nn.Sequential(
            *(nn.Linear(5, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.GroupNorm(2, 8), nn.LayerNorm(8)),
            nn.Linear(8, 3),
        ),
        (5,),
    ),
    "sequence": (
        lambda: nn.Sequential(
            *(nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6), nn.SiLU(), nn.AvgPool1d(2), nn.Flatten()),
            *(nn.Linear(18, 3), nn.LogSoftmax(dim=-1)),
        ),
        (4, 6),
    ),
    "gates": (
        lambda: Lambda(gated, conv=nn.Conv2d(3, 6, 3), gate=nn.Conv2d(6, 6, 1), map=nn.Conv2d(6, 1, 1)),
        (3, 6, 6),
    ),
    "functional": (lambda: Lambda(by_hand, conv=nn.Conv2d(2, 4, 3), fc=nn.Linear(16, 3)), (2, 6, 6)),
    "tokens": (lambda: Lambda(tokens, fc=nn.Linear(4, 6), norm=nn.LayerNorm((5, 6))), (5, 4)),
    "groups": (
        lambda: Lambda(
            separable,
            deep=nn.Conv2d(4, 8, 3, groups=4, padding=1, padding_mode="circular"),
            groups=nn.GroupNorm(2, 8),
            point=nn.Conv2d(4, 8, 1, groups=2, bias=False),
            instance=nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        ),
        (4, 5, 5),
    ),
}
LARGE: dict[str, tuple[Build, tuple[int, ...]]] = {
    "cifar_resnet56": (lambda: cifar_resnet56(4), (3, 16, 16)),
    "mobilenet_v2": (lambda: mobilenet_v2(3), (3, 32, 32)),
    "resnet34": (lambda: resnet34(3), (3, 32, 32)),
}


def fleet_and_models(build: Build, features: tuple[int, ...], runs: int) -> tuple[Fleet, list[nn.Module]]:
    """A fleet in float64 and the differently initialised models in it, dropout off."""
    torch.manual_seed(1)
    models = [build().double() for _ in range(runs)]
    for module in [module for model in models for module in model.modules()]:
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    fleet = widen(models[0], runs, sample_input=torch.zeros(2, *features, dtype=torch.float64), check=False)
    load_(fleet, models)
    return fleet, models


def assert_same_gradients(fleet: Fleet, models: list[nn.Module]) -> None:
    for name, wide in fleet.named_parameters():
        assert wide.grad is not None
        for run, model in enumerate(models):
            own = model.get_parameter(name).grad
            assert own is not None
            torch.testing.assert_close(
                part(wide.grad, run, fleet.runs).reshape(own.shape), own, rtol=1e-6, atol=1e-9
            )


def losses(fleet: Fleet, models: list[nn.Module], inputs: Tensor) -> tuple[Tensor, Tensor]:
    together = fleet(inputs)
    apart = torch.stack([model(inputs[run]) for run, model in enumerate(models)])
    torch.testing.assert_close(together, apart, rtol=1e-6, atol=1e-9)
    return together.square().mean(), apart.square().mean()


def check_steps(build: Build, features: tuple[int, ...], *, runs: int, steps: int) -> None:
    """Outputs, gradients, weights and running statistics agree along a few steps of SGD."""
    fleet, models = fleet_and_models(build, features, runs)
    parameters = [p for model in models for p in model.parameters()]
    optimizers = [torch.optim.SGD(p, lr=0.01, momentum=0.9) for p in (list(fleet.parameters()), parameters)]
    for _ in range(steps):
        inputs = torch.randn(runs, 4, *features, dtype=torch.float64)
        for optimizer, loss in zip(optimizers, losses(fleet, models, inputs), strict=True):
            optimizer.zero_grad()
            loss.backward()
        assert_same_gradients(fleet, models)
        for optimizer in optimizers:
            optimizer.step()
    for run, model in enumerate(models):
        torch.testing.assert_close(extract(fleet, run).state_dict(), model.state_dict(), rtol=1e-6, atol=1e-9)
    fleet.eval()
    losses(fleet, [model.eval() for model in models], inputs)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("runs", [1, 3])
def test_fleet_trains_as_separate_models_do(name: str, runs: int) -> None:
    check_steps(*SMALL[name], runs=runs, steps=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_fleets_train_as_separate_models_do(name: str) -> None:
    check_steps(*LARGE[name], runs=2, steps=1 if name == "resnet34" else 2)


@pytest.mark.parametrize("name", SMALL)
def test_widen_checks_itself_and_starts_from_the_model(name: str) -> None:
    build, features = SMALL[name]
    model = build().eval()
    inputs = torch.randn(4, *features)
    before = torch.get_rng_state()
    fleet = widen(model, 3, sample_input=inputs)
    assert torch.equal(torch.get_rng_state(), before)
    assert not fleet.training
    for logits in fleet(inputs.expand(3, *inputs.shape)):
        torch.testing.assert_close(logits, model(inputs))
    assert list(fleet.state_dict()) == list(model.state_dict())
    assert all(p.view(3, -1).shape[1] == model.get_parameter(n).numel() for n, p in fleet.named_parameters())


def refusal(function: Callable[[nn.ModuleDict, Tensor], Any], **layers: nn.Module) -> str:
    with pytest.raises(CannotWiden) as error:
        widen(Lambda(function, **layers), 2, sample_input=torch.randn(2, 3, 8, 8))
    return str(error.value)


def two_convolutions() -> dict[str, nn.Module]:
    return {"a": nn.Conv2d(3, 4, 3), "b": nn.Conv2d(3, 4, 3)}


def test_refuses_all_that_it_does_not_understand_at_once() -> None:
    def forward(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        x = layers["prelu"](torch.cat([layers["a"](x), layers["b"](x)], dim=1))
        return F.dropout(x[:, :2].cumsum(1).mean((2, 3)))

    message = refusal(forward, prelu=nn.PReLU(), **two_convolutions())
    assert "cat(): concatenation is not widened" in message
    assert "layers.prelu: PReLU is not a layer that can serve many runs" in message
    assert "cumsum(): this operation is not known to keep the runs apart" in message
    assert "getitem()" in message
    assert "dropout(): F.dropout reads the training mode only once" in message


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda layers, x: (layers["a"](x), layers["b"](x)), "returns tuple; only a single tensor"),
        (lambda layers, x: layers["a"](x) if x.sum() > 0 else layers["b"](x), "cannot be traced"),
        (
            lambda layers, x: layers["a"](x).flatten(1),
            "layers.b: 2 parameters or buffers that forward uses in no",
        ),
        (lambda layers, x: layers["a"](x).mean(), "does not begin with the batch"),
        (
            lambda layers, x: layers["a"](x).softmax(dim=0),
            "softmax(): it works across the samples of a batch",
        ),
        (lambda layers, x: layers["a"](x) / x.shape[1], "for something else than a shape"),
        (lambda layers, x: layers["a"](x) * layers["b"].weight.sum(), "does not begin with the batch"),
        (lambda layers, x: layers["a"](x)[0], "does not begin with the batch"),
        (lambda layers, x: layers["a"](x).view(4, -1), "view(): a result of shape (4, 144) does not begin"),
        (lambda layers, x: layers["a"](x).view(4, 4, 36), "fails on a batch of 5"),
        (
            lambda layers, x: layers["a"](x + layers["b"].bias[:3, None, None]),
            "does not begin with the batch",
        ),
    ],
)
def test_refusals(function: Callable[[nn.ModuleDict, Tensor], Any], reason: str) -> None:
    assert reason in refusal(function, **two_convolutions())


def test_refuses_tied_weights_and_hooks() -> None:
    model = mlp(4, (4, 4), 4)
    model[2].weight = model[0].weight
    model[4].register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.raises(CannotWiden, match=r"0\.weight and 2\.weight: tied") as error:
        widen(model, 2, sample_input=torch.randn(2, 4))
    assert "4: has forward hooks" in str(error.value)


def test_refuses_buffers_outside_of_layers() -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(1, 4))
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x - self.mean)  # type: ignore[no-any-return]

    with pytest.raises(CannotWiden, match="mean: a parameter or buffer is used outside of a layer"):
        widen(Normalised(), 2, sample_input=torch.randn(2, 4))


def test_refuses_a_layer_of_another_kind_and_other_work_in_training() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if self.training else x

    with pytest.raises(CannotWiden, match=r"0\.weight: a parameter or buffer is used outside"):
        widen(nn.Sequential(Doubled(4, 4)), 2, sample_input=torch.randn(2, 4))
    with pytest.raises(CannotWiden, match="other things in training"):
        widen(nn.Sequential(nn.Linear(4, 4), Noisy()), 2, sample_input=torch.randn(2, 4))


def test_the_self_check_catches_a_wrong_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer declared element-wise that is not: it normalises across the channels of all runs."""
    from evenprune import widening

    lrn = nn.LocalResponseNorm
    monkeypatch.setattr(widening, "ELEMENTWISE_MODULES", (*widening.ELEMENTWISE_MODULES, lrn))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), lrn(3, alpha=1.0), nn.Flatten(), nn.Linear(144, 2))
    with pytest.raises(CannotWiden, match=r"disagree: run 0, outputs, training=True"):
        widen(model, 2, sample_input=torch.randn(2, 3, 8, 8))


def test_refuses_inputs_that_are_no_batch_of_floats() -> None:
    for sample in (torch.zeros(4), torch.zeros(4, 5, dtype=torch.uint8)):
        with pytest.raises(CannotWiden, match="pass floats"):
            widen(mlp(5), 2, sample_input=sample)
    with pytest.raises(ValueError, match="at least one run"):
        widen(mlp(5), 0, sample_input=torch.zeros(2, 5))


def test_load_and_extract_are_inverse() -> None:
    fleet, models = fleet_and_models(small_cnn, (1, 8, 8), 3)
    for run, model in enumerate(models):
        torch.testing.assert_close(extract(fleet, run).state_dict(), model.state_dict(), rtol=0, atol=0)
    load_(fleet, models[2].state_dict())
    torch.testing.assert_close(extract(fleet, 0).state_dict(), models[2].state_dict(), rtol=0, atol=0)
    taken = extract(fleet, 0)
    taken.fc.weight.data.zero_()  # type: ignore[union-attr]
    assert extract(fleet, 0).get_parameter("fc.weight").any()  # taken apart, not shared


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("laid", [torch.contiguous_format, torch.channels_last])
def test_a_fleet_of_some_runs_answers_as_they_do(name: str, laid: torch.memory_format) -> None:
    build, features = SMALL[name]
    fleet, models = fleet_and_models(build, features, 4)
    if len(features) == 3:
        fleet.to(memory_format=laid)  # type: ignore[call-overload]
    members = torch.tensor([3, 1, 1])
    inputs = torch.randn(3, 5, *features, dtype=torch.float64)
    some = of_runs(fleet, members, sample_input=inputs[0])
    assert (some.runs, some.training) == (3, False)
    assert all(t.is_contiguous(memory_format=laid) for t in some.state_dict().values() if t.ndim == 4)

    def check(held: list[nn.Module]) -> None:
        for place, run in enumerate(members.tolist()):
            expected = held[run].eval()(inputs[place])
            torch.testing.assert_close(some(inputs)[place], expected, rtol=1e-6, atol=1e-9)

    others = models[::-1]
    check(models)
    load_(fleet, others)
    check(models)  # copies
    copy_runs_(some, fleet, members)
    check(others)
    alone = of_runs(single(models[0].eval()), torch.zeros(2, dtype=torch.int64), sample_input=inputs[0])
    expected = models[0](inputs[0])
    torch.testing.assert_close(
        alone(inputs[:1].expand(2, *inputs.shape[1:]))[1], expected, rtol=1e-6, atol=1e-9
    )


def test_load_and_extract_name_what_is_wrong() -> None:
    fleet, models = fleet_and_models(small_cnn, (1, 8, 8), 2)
    with pytest.raises(ValueError, match="1 models for a fleet of 2"):
        load_(fleet, models[:1])
    with pytest.raises(ValueError, match=r"run 0: \['fc\.bias'\] only on one side"):
        load_(fleet, {n: t for n, t in models[0].state_dict().items() if n != "fc.bias"})
    with pytest.raises(ValueError, match=r"fc\.weight.*\(5, 16\)"):
        load_(fleet, small_cnn(num_classes=5))
    with pytest.raises(IndexError, match="run 2 of a fleet of 2"):
        extract(fleet, 2)


def test_fleet_survives_deepcopy_state_dict_and_memory_formats() -> None:
    fleet, models = fleet_and_models(small_cnn, (1, 8, 8), 2)
    inputs = torch.randn(2, 4, 1, 8, 8, dtype=torch.float64)
    expected = fleet.eval()(inputs)
    twin = copy.deepcopy(fleet)
    load_(fleet, models[0])
    torch.testing.assert_close(twin(inputs), expected, rtol=0, atol=0)
    fleet.load_state_dict(twin.state_dict())
    fleet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(fleet(inputs), expected)
    torch.testing.assert_close(extract(fleet, 1)(inputs[1]), expected[1])


def test_frozen_layers_stay_frozen() -> None:
    model = small_cnn()
    model.conv1.weight.requires_grad_(False)
    fleet = widen(model, 2, sample_input=torch.randn(2, 1, 8, 8), check=False)
    assert [n for n, p in fleet.named_parameters() if not p.requires_grad] == ["conv1.weight"]
    assert not extract(fleet, 1).get_parameter("conv1.weight").requires_grad


def test_dropout_draws_for_every_run_by_itself() -> None:
    fleet = widen(nn.Sequential(nn.Linear(50, 50), nn.Dropout(0.5)), 2, sample_input=torch.randn(2, 50))
    first, second = fleet.train()(torch.randn(1, 3, 50).expand(2, 3, 50))
    assert not torch.equal(first == 0, second == 0)


def test_the_whole_forward_is_one_graph_for_the_compiler() -> None:
    for name in ("small_cnn", "tokens"):
        fleet, _ = fleet_and_models(*SMALL[name], 2)
        inputs = torch.randn(2, 4, *SMALL[name][1], dtype=torch.float64)
        compiled = torch.compile(fleet, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(inputs), fleet(inputs))


def test_bfloat16_autocast_reaches_every_layer() -> None:
    fleet = widen(small_cnn(), 2, sample_input=torch.randn(2, 1, 8, 8), check=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fleet(torch.randn(2, 4, 1, 8, 8)).dtype == torch.bfloat16


def test_masks_of_a_fleet_are_those_of_its_models() -> None:
    fleet, models = fleet_and_models(lambda: mlp(5, (7, 6), 3), (5,), 2)
    wide = Masks.of(fleet, runs=2, keep=("first",))
    wide.prune_(fleet, [0.5, 0.75])
    for run, (model, sparsity) in enumerate(zip(models, (0.5, 0.75), strict=True)):
        own = Masks.of(model, keep=("first",))
        own.prune_(model, sparsity)
        taken = wide.extract(run)
        assert taken.summary() == own.summary()
        torch.testing.assert_close(taken.state_dict(), own.state_dict())
        torch.testing.assert_close(extract(fleet, run).state_dict(), model.state_dict(), rtol=0, atol=0)


def test_single_gives_any_model_the_interface_of_a_fleet() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) * self.scale if x.sum() > 0 else x

    model = Branching()
    fleet = single(model)
    inputs = torch.rand(1, 3, 4)
    assert fleet.runs == 1
    torch.testing.assert_close(fleet(inputs)[0], copy.deepcopy(model)(inputs[0]))
    assert list(fleet.state_dict()) == list(model.state_dict())
    assert [id(p) for p in fleet.parameters()] == [id(p) for p in model.parameters()]
    fleet.eval()
    assert not model.training
    assert not model.norm.training
    check_single_copies(fleet)


def check_single_copies(fleet: Single) -> None:
    """Copies and moves stay one model behind one interface."""
    inputs = torch.rand(1, 3, 4, dtype=torch.float64)
    twin = copy.deepcopy(fleet).double()
    load_(twin, {n: torch.full_like(t, 3) for n, t in twin.state_dict().items()})
    torch.testing.assert_close(twin(inputs)[0], extract(twin, 0)(inputs[0]))
    assert twin.get_parameter("scale").item() == 3
    assert fleet.get_parameter("scale").item() == 1
