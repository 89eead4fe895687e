"""A rank's pipeline does one thing at a time: what is called meanwhile, by whomever, is refused and harms nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.on_threads import check, cut, data, errors, pipelines, results
from tests.support.worker import alone, load, mlp

WAYS: dict[str, Callable[[Any], Any]] = {
    "step": lambda pipe: pipe.step(*data_of[0]),
    "clip_grad_norm_": lambda pipe: pipe.clip_grad_norm_(1.0),
    "unscale_": lambda pipe: pipe.unscale_(torch.amp.GradScaler("cpu"), torch.optim.SGD([torch.ones(1)])),
    "state_dict": lambda pipe: pipe.state_dict(nn.Linear(1, 1)),
    "load_state_dict": lambda pipe: pipe.load_state_dict(nn.Linear(1, 1), {}),
    "renew_shapes": lambda pipe: pipe.renew_shapes(),
    "timeline": lambda pipe: pipe.timeline(),
}
data_of: list[Any] = []


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = load(compiled.compile_to(tmp_path_factory.mktemp("one") / "x.py", compiled.SPLIT, p=2, m=2))
    data_of[:] = [data(found)]
    return found


@pytest.mark.parametrize("thread", [False, True])
def test_what_is_called_in_a_step_is_refused(thread: bool, module: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    reference = mlp(2)
    held = cut(module, reference)
    said: dict[str, str] = {}
    pipes: dict[int, Any] = {}

    def call(name: str) -> None:
        try:
            WAYS[name](pipes[1])
        except RuntimeError as error:
            said[name] = str(error)

    def loss_fn(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for name in WAYS:
            if thread:
                other = threading.Thread(target=call, args=(name,))
                other.start()
                other.join()
            else:
                call(name)
        return functional.cross_entropy(output, targets)

    def body(pipe: Any, rank: int) -> None:
        pipes[rank] = pipe
        for _ in range(2):
            pipe.step(*data(module))
        pipe.renew_shapes()
        pipe.step(*data(module))
        pipe.clip_grad_norm_(1e9)

    results(pipelines(module, held, body, loss_fn=loss_fn, post_mortem=tmp_path / "states"))
    assert not (tmp_path / "states").exists(), "nothing has failed, as a rank's state would say"
    assert set(said) == set(WAYS)
    for name, text in said.items():
        assert text.startswith(f"{name}() was called while this rank's pipeline was not done with an earlier call")
    batch, targets = data(module)
    for _ in range(3):
        alone(reference, functional.cross_entropy, list(batch.chunk(2)), list(targets.chunk(2)))
    check(module, held, reference)


def test_a_call_in_a_step_that_is_let_through_ends_it_on_all_ranks(module: Any, tmp_path: Path) -> None:
    held = cut(module, mlp(2))
    pipes: dict[int, Any] = {}

    def body(pipe: Any, rank: int) -> None:
        pipes[rank] = pipe
        pipe.step(*data(module))

    for message in errors(pipelines(module, held, body, loss_fn=lambda y, targets: pipes[1].step(*data(module)))):
        assert "rank 1 failed at F of stage 1, microbatch 0" in message
        assert "RuntimeError: step() was called while this rank's pipeline was not done" in message


def test_a_call_that_has_failed_is_over(module: Any) -> None:
    held = cut(module, mlp(2))

    def body(pipe: Any, rank: int) -> None:
        foreign = nn.Linear(1, 1)
        for _ in range(2):
            with pytest.raises(ValueError, match="none of the model's"):
                pipe.state_dict(foreign)
            with pytest.raises(ValueError, match="none of the model's"):
                pipe.load_state_dict(foreign, {"model": foreign.state_dict()})
        pipe.step(*data(module))

    results(pipelines(module, held, body))
