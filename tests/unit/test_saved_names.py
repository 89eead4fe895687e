"""What a rank saves and takes over is named, whole and of its model; what is not is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from pipedsl.runtime.checkpoint import load_stage_state, stage_state


class Loss(nn.Module):
    """Of what it has only `weight` is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("classes", torch.ones(3))


class Counts(nn.Module):
    """Has one of everything that is saved: a parameter, a buffer, and a state of its own."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), value))
        self.register_buffer("mean", torch.full((2,), value))
        self.value = value

    def get_extra_state(self) -> float:
        return self.value

    def set_extra_state(self, state: float) -> None:
        self.value = state


def two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def test_a_loss_is_saved_with_the_model_that_has_it() -> None:
    model, loss = two(), Loss()
    whole = nn.ModuleDict({"model": model, "loss": loss})
    optimizer = torch.optim.AdamW([*model[1].parameters(), *loss.parameters()], lr=0.1)
    for q in whole.parameters():
        q.grad = torch.ones_like(q)
    optimizer.step()
    state = copy.deepcopy(stage_state([model[1]], [loss], whole, optimizer))
    assert set(state["model"]) == {"model.1.weight", "model.1.bias", "loss.weight", "loss.classes"}
    assert {"state.model.1.weight.exp_avg", "state.loss.weight.step", "param_groups.loss.weight.lr"} <= state[
        "optimizer"
    ].keys()
    other = nn.ModuleDict({"model": two(), "loss": Loss()})
    theirs = torch.optim.AdamW([*other["model"][1].parameters(), *other["loss"].parameters()], lr=0.1)  # type: ignore[index]
    load_stage_state([other["model"][1]], [other["loss"]], other, state, theirs)  # type: ignore[index]
    for name in state["model"]:
        assert torch.equal(other.state_dict()[name], whole.state_dict()[name])
    for q, r in zip(theirs.param_groups[0]["params"], optimizer.param_groups[0]["params"], strict=True):
        assert torch.equal(theirs.state[q]["exp_avg"], optimizer.state[r]["exp_avg"])


def test_a_loss_that_no_model_has_is_refused_if_it_learns() -> None:
    model, loss = two(), Loss()
    with pytest.raises(ValueError, match="the loss_fn has parameters that are none of the model's"):
        stage_state([model[1]], [loss], model, None)
    weighted = nn.CrossEntropyLoss(weight=torch.ones(2))
    assert set(stage_state([model[1]], [weighted], model, None)["model"]) == {"1.weight", "1.bias"}


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model = two()
    optimizer = torch.optim.AdamW([*model.parameters(), nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="1 of the optimizer's parameters are none of the model's"):
        stage_state([model[0]], [], model, optimizer)
    state = stage_state([model[0]], [], model, None)
    with pytest.raises(ValueError, match="1 of the optimizer's parameters are none of the model's"):
        load_stage_state([model[0]], [], model, {**state, "optimizer": {}}, optimizer)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: {"model": {"wrong": torch.ones(2)}}, "has names that the model has not: 'wrong'"),
        (lambda state: {"model": {}}, "lacks names: '0.bias', '0.weight'"),
        (
            lambda state: {"model": {f"{name}.{i}": x for name, x in state["model"].items() for i in range(2)}},
            "has names that the model has not: '0.bias.0', '0.bias.1', '0.weight.0', and 1 more",
        ),
        (lambda state: state["model"], "the state has no 'model'"),
        (lambda state: {"model": state["model"]}, "the state has no 'optimizer'"),
    ],
)
def test_a_state_of_other_names_is_refused(change: Any, says: str) -> None:
    model = two()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1) if "optimizer" in says else None
    state = change(stage_state([model[0]], [], model, None))
    with pytest.raises(ValueError, match=says):
        load_stage_state([model[0]], [], model, state, optimizer)


def test_a_state_may_have_more_than_a_rank_s_part() -> None:
    model, saved = two(), two()
    load_stage_state([model[0]], [], model, {"model": saved.state_dict()}, None)
    assert torch.equal(model[0].weight, saved[0].weight)


def of(*prefixes: str) -> set[str]:
    """What Counts has, under these names."""
    return {f"{prefix}{name}" for prefix in prefixes for name in ("weight", "mean", "_extra_state")}


def test_all_that_a_stage_has_is_saved_by_all_of_its_names() -> None:
    """As the model's state has them all, and is complete only with them; also where the stage is the whole model."""
    shared, own, other = Counts(), Counts(), Counts()
    whole = nn.ModuleDict({"first": shared, "last": nn.Sequential(own, shared), "other": other})
    assert set(stage_state([whole["last"]], [], whole, None)["model"]) == of("first.", "last.0.", "last.1.")
    assert set(stage_state([own], [shared], whole, None)["model"]) == of("first.", "last.0.", "last.1.")
    assert set(stage_state([own], [], own, None)["model"]) == of("")
    assert set(stage_state([own], [nn.Sequential(shared)], whole, None)["model"]) == of("first.", "last.0.", "last.1.")


def test_states_of_their_own_are_taken_over() -> None:
    saved, model = (nn.ModuleDict({"stage": Counts(x), "loss": Counts(x + 1)}) for x in (1.0, 3.0))
    state = copy.deepcopy(stage_state([saved["stage"]], [saved["loss"]], saved, None))
    load_stage_state([model["stage"]], [model["loss"]], model, state, None)
    assert [each.value for each in model.values()] == [1, 2]
    for name in ("stage.mean", "loss.weight", "loss._extra_state", "stage._extra_state"):
        less = {"model": {key: x for key, x in state["model"].items() if key != name}}
        with pytest.raises(ValueError, match=f"lacks names: '{name}'"):
            load_stage_state([model["stage"]], [model["loss"]], model, less, None)


@pytest.mark.parametrize("which", ["weight", "mean"])
def test_stages_that_are_in_part_the_model_s_are_refused(which: str) -> None:
    """As where one parameter has been exchanged since they were cut."""
    stage, whole = Counts(), Counts()
    for name in {"weight", "mean"} - {which}:
        setattr(whole, name, getattr(stage, name))
    with pytest.raises(ValueError, match="this rank's stages have tensors that are none of the model's"):
        stage_state([stage], [], whole, None)
    with pytest.raises(ValueError, match="this rank's stages have tensors that are none of the model's"):
        load_stage_state([stage], [], whole, {"model": whole.state_dict()}, None)


def test_a_stage_around_modules_of_the_model_with_a_state_of_its_own_is_refused() -> None:
    class Around(nn.Sequential):
        def get_extra_state(self) -> int:
            return 1

    model = two()
    says = "this rank's stages have a module with extra state \\(Around\\) that is none of the model's"
    with pytest.raises(ValueError, match=says):
        stage_state([nn.Sequential(Around(model[0]))], [], model, None)
    with pytest.raises(ValueError, match=says):
        load_stage_state([Around(model[0])], [], model, {"model": model.state_dict()}, None)
    assert set(stage_state([nn.Sequential(model[0])], [], model, None)["model"]) == {"0.weight", "0.bias"}


@pytest.mark.parametrize("which", ["all", "one", "none"])
@pytest.mark.parametrize("kind", ["adamw", "momentum"])
def test_a_new_optimizer_is_loaded_whatever_gradients_there_are(which: str, kind: str) -> None:
    """As after a step that nobody has cleared; they are left as they are, and the parameters, too, by saving."""

    def make() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        model = two()
        parameters = model[0].parameters()
        return model, (
            torch.optim.AdamW(parameters) if kind == "adamw" else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        )

    model, optimizer = make()
    for q in model.parameters():
        q.grad = torch.randn_like(q)
    optimizer.step()
    saved = copy.deepcopy(stage_state([model[0]], [], model, optimizer))
    other, new = make()
    before = copy.deepcopy(other.state_dict())
    given = {"all": list(other[0].parameters()), "one": [other[0].bias], "none": []}[which]
    for q in given:
        q.grad = torch.randn_like(q)
    gradients = [(q, q.grad, None if q.grad is None else q.grad.clone()) for q in other.parameters()]
    state = stage_state([other[0]], [], other, new)
    assert state["optimizer"].keys() == saved["optimizer"].keys()
    assert all(torch.equal(x, before[name]) for name, x in other.state_dict().items())
    new.state.clear()
    with pytest.raises(RuntimeError, match="optim state_dict is empty"):
        load_stage_state([other[0]], [], other, {**state, "optimizer": {}}, new)
    new.state.clear()
    load_stage_state([other[0]], [], other, saved, new)
    for q, gradient, copied in gradients:
        assert q.grad is gradient
        assert gradient is None or torch.equal(gradient, copied)
    for q, r in zip(other[0].parameters(), model[0].parameters(), strict=True):
        assert new.state[q].keys() == optimizer.state[r].keys()
        assert all(torch.equal(x, optimizer.state[r][name]) for name, x in new.state[q].items())


def test_a_loss_of_which_the_model_has_a_part_is_refused() -> None:
    loss = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    whole = nn.ModuleDict({"model": two(), "loss": loss[0]})
    with pytest.raises(ValueError, match="the loss_fn has parameters that are none of the model's"):
        stage_state([], [loss], whole, None)


def test_parameters_of_all_groups_are_compared() -> None:
    model = two()
    groups = [
        {"params": list(model.parameters())},
        {"params": [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]},
    ]
    with pytest.raises(ValueError, match="2 of the optimizer's parameters are none of the model's"):
        stage_state([model[0]], [], model, torch.optim.SGD(groups, lr=0.1))


def test_as_many_names_as_fit_in_a_line() -> None:
    model = two()
    for count, says in ((3, "'a', 'b', 'c'$"), (4, "'a', 'b', 'c', and 1 more$")):
        extra = {name: torch.ones(1) for name in "dcba"[-count:]}
        with pytest.raises(ValueError, match=f"has names that the model has not: {says}"):
            load_stage_state([], [], model, {"model": {**model.state_dict(), **extra}}, None)


def leave_out_the_bias(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    del state[f"{prefix}0.bias"]


def test_what_a_model_does_not_save_is_not_asked_for() -> None:
    """A buffer that is not persistent, and what a hook leaves out."""
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_buffer("mask", torch.ones(2), persistent=False)
    model.register_state_dict_post_hook(leave_out_the_bias)
    state = stage_state([model[0]], [], model, None)
    assert set(state) == {"model"}
    assert set(state["model"]) == {"0.weight"}
    load_stage_state([model[0]], [], model, state, None)


def test_what_is_wrapped_is_saved_by_the_names_of_the_models_state() -> None:
    """`checkpoint_wrapper` keeps its own name out of these, and it is missed where a state has none of it."""
    saved, model = (nn.Sequential(checkpoint_wrapper(Counts(x)), Counts(x)) for x in (1.0, 3.0))
    stage = nn.Sequential(saved[0])
    state = copy.deepcopy(stage_state([stage], [], saved, None))
    assert set(state["model"]) == of("0.")
    load_stage_state([nn.Sequential(model[0])], [], model, state, None)
    assert [each.value for each in model.modules() if isinstance(each, Counts)] == [1, 3]
    for name in of("0."):
        less = {"model": {key: x for key, x in state["model"].items() if key != name}}
        with pytest.raises(ValueError, match=f"lacks names: '{name}'"):
            load_stage_state([model[0]], [], model, less, None)


class Fused(nn.Module):
    """Saves a fused weight in parts, as many do for compatibility."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.qkv = nn.Linear(2, 6)
        self.out = Counts(value)
        nn.init.constant_(self.qkv.weight, value)
        self._register_state_dict_hook(split)
        self.register_load_state_dict_pre_hook(join)


def split(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for kind in ("weight", "bias"):
        parts = state.pop(f"{prefix}qkv.{kind}").chunk(3)
        state.update({f"{prefix}{each}_proj.{kind}": x for each, x in zip("qkv", parts, strict=True)})


def join(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for kind in ("weight", "bias"):
        names = [f"{prefix}{each}_proj.{kind}" for each in "qkv"]
        if state.keys() >= set(names):
            state[f"{prefix}qkv.{kind}"] = torch.cat([state.pop(name) for name in names])


class Noted(nn.Module):
    """Writes a tensor of its own into its state, as torch's quantized modules do."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        nn.init.constant_(self.inner.weight, value)
        self.scale = torch.tensor(value)

    def _save_to_state_dict(self, state: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(state, prefix, keep_vars)
        state[f"{prefix}scale"] = self.scale

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.scale = state.pop(f"{prefix}scale", self.scale)
        super()._load_from_state_dict(state, prefix, *rest)


class Copied(Counts):
    """Saves copies by the same names."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__(value)
        self._register_state_dict_hook(clone)


def clone(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name, x in state.items():
        if name.startswith(prefix) and isinstance(x, torch.Tensor):
            state[name] = x.detach().clone()


WRAPPERS: dict[str, Any] = {
    "bare": lambda module: module,
    "checkpointed": checkpoint_wrapper,
    "twice": lambda module: checkpoint_wrapper(checkpoint_wrapper(module)),
    "compiled": lambda module: torch.compile(module, backend="eager"),
    "both": lambda module: checkpoint_wrapper(torch.compile(module, backend="eager")),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", [Fused, Noted, Copied])
def test_what_hooks_make_is_saved_as_one_process_saves_it(kind: Any, wrapper: str) -> None:
    """New tensors, by names that are none of a parameter's; on two ranks all, taken over, and missed."""
    wrap = WRAPPERS[wrapper]
    saved, model = (nn.Sequential(wrap(kind(x)), wrap(kind(x + 1))) for x in (1.0, 3.0))
    whole = copy.deepcopy(saved.state_dict())
    parts = [copy.deepcopy(stage_state([nn.Sequential(each)], [], saved, None)["model"]) for each in saved]
    assert parts[0].keys().isdisjoint(parts[1])
    assert parts[0].keys() | parts[1] == whole.keys()
    for each, part in zip(model, parts, strict=True):
        for name in part:
            less = {"model": {key: x for key, x in part.items() if key != name}}
            with pytest.raises(ValueError, match=f"lacks names: '{name}'"):
                load_stage_state([each], [], model, less, None)
        load_stage_state([each], [], model, {"model": part}, None)
    for name, x in model.state_dict().items():
        assert torch.equal(x, whole[name]) if isinstance(x, torch.Tensor) else x == whole[name]


def test_what_a_hook_makes_of_several_stages_is_refused() -> None:
    """As no rank knows whose it is; one that is cut between blocks has them, and so has a stage that is all of it."""
    block = Fused()
    model = nn.Sequential(block, nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"no entry for '0.qkv.bias', but '0.k_proj.bias', which is below no module"):
        stage_state([block.qkv], [], model, None)
    assert "0.out.weight" in stage_state([block.out, model[1]], [], model, None)["model"]
    assert set(stage_state([model], [], model, None)["model"]) == set(model.state_dict())


@pytest.mark.parametrize("lost", ["weight", "_extra_state"])
def test_new_names_from_around_the_stages_are_refused(lost: str) -> None:
    def rename(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for name in [name for name in state if name.endswith(lost)]:
            x = state.pop(name)
            state[f"{prefix}old.{name.removeprefix(prefix)}"] = x.clone() if isinstance(x, torch.Tensor) else x

    model = nn.Sequential(Counts(), Counts())
    model._register_state_dict_hook(rename)
    with pytest.raises(ValueError, match=rf"no entry for '1.{lost}', but 'old.0.{lost}'"):
        stage_state([model[1]], [], model, None)


def test_what_is_left_out_may_be_left_out_beside_others_hooks() -> None:
    """Here of another stage's module, that has new entries."""
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), Fused())
    model[0].register_state_dict_post_hook(leave_out_the_bias)
    assert set(stage_state([model[0]], [], model, None)["model"]) == {"0.0.weight"}


class Tied(nn.Module):
    def __init__(self, wrap: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        head = nn.Linear(2, 3, bias=False)
        head.weight = self.embed.weight
        self.head = checkpoint_wrapper(head) if wrap else head


@pytest.mark.parametrize("first", ["embed", "head", "both"])
@pytest.mark.parametrize("wrap", [False, True])
def test_an_optimizer_has_a_shared_parameter_by_all_of_its_names(wrap: bool, first: str) -> None:
    """So that ranks that have one name each find theirs; and takes it over by any of them."""
    saved, model = Tied(wrap), Tied(wrap)
    optimizer, other = (torch.optim.AdamW(each.parameters(), lr=lr) for each, lr in ((saved, 0.1), (model, 0.2)))
    saved.embed.weight.grad = torch.ones(3, 2)
    optimizer.step()
    state = copy.deepcopy(stage_state([saved], [], saved, optimizer))
    names = {name.replace("head", "embed") for name in state["optimizer"] if "head" in name}
    assert names == {name for name in state["optimizer"] if "embed" in name}
    assert {"state.embed.weight.exp_avg", "param_groups.embed.weight.lr"} <= names
    state["optimizer"] = {name: x for name, x in state["optimizer"].items() if first in name or first == "both"}
    load_stage_state([model], [], model, state, other)
    assert other.param_groups[0]["lr"] == 0.1
    assert len(other.param_groups[0]["params"]) == 1
    assert len(other.state) == 1
    for name, x in optimizer.state[saved.embed.weight].items():
        assert torch.equal(other.state[model.embed.weight][name], x)


def test_a_shared_parameter_is_loaded_from_what_torch_alone_has_saved(tmp_path: Path) -> None:
    """Which has its optimizer's part by one name. The planner that leaves out what is missing is the one to take."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    def make(seed: int) -> tuple[nn.ModuleDict, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.ModuleDict({"embed": nn.Embedding(7, 4), "head": nn.Linear(4, 7, bias=False)})
        model["head"].weight = model["embed"].weight
        optimizer = torch.optim.AdamW(model.parameters())
        model["head"](model["embed"](torch.arange(7))).square().sum().backward()
        optimizer.step()
        return model, optimizer

    model, optimizer = make(1)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    plain = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer, options=options)}
    dcp.save(plain, checkpoint_id=tmp_path / "plain", no_dist=True)
    other, its_own = make(2)
    state = stage_state([other], [], other, its_own)
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, checkpoint_id=tmp_path / "plain", planner=planner, no_dist=True)
    load_stage_state([other], [], other, state, its_own)
    weight, theirs = model["embed"].weight, other["embed"].weight
    assert torch.equal(weight, theirs)
    for name, value in optimizer.state[weight].items():
        assert torch.equal(value, its_own.state[theirs][name]), name
