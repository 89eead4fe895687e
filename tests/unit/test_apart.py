"""Parameters whose first gradient would lie in memory that something else needs, against one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support import compiled
from tests.support.gloo_threads import run_ranks
from tests.support.on_threads import cut, results
from tests.support.worker import alone, difference, gradients, load

V_SPLIT = compiled.V_SHAPE.replace("B@1 * m  B@0 * m", "I@1 * m  I@0 * m  W@1 * m  W@0 * m")
SCHEDULES = {
    "1f1b": compiled.ONE_F_ONE_B,
    "split": compiled.SPLIT,
    "v_shape": compiled.V_SHAPE,
    "v_split": V_SPLIT,
}
M, ROWS, WIDTH = 4, 2, 6


class Shift(nn.Module):
    """Adds a parameter of another shape than its input, so that its gradient is a view of that of the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(ROWS * WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shift.view(ROWS, WIDTH) + x


class Apart(nn.Module):
    """Goes on with a shift that it has no input for, so that the gradient of the shift is that of what comes behind."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.shift = nn.Linear(WIDTH, WIDTH), Shift()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.inner(x)
        return y, self.shift(y.detach())


class Joins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        y, z = given
        return self.inner(y) + z.view(-1).view(z.shape)  # type: ignore[no-any-return]


class Unregistered(nn.Module):
    """Its shift is none of its modules, nor its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.shift = [Shift()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shift[0](self.inner(x))  # type: ignore[no-any-return]


class Loss(nn.Module):
    """`one` gets the gradient that the backward of the loss begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(1))
        self.shift = Shift()

    def forward(self, y: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.one.view(()) + functional.mse_loss(self.shift(y), targets)


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def stages_of_kind(kind: str, count: int) -> list[nn.Module]:
    if kind == "sent":
        return [nn.Sequential(linear(), Shift(), linear()) for _ in range(count)]
    if kind == "passed on":
        return [nn.Sequential(linear(), linear()), *(nn.Sequential(Shift(), linear()) for _ in range(count - 1))]
    if kind == "waits":
        return [nn.Sequential(linear(), Shift()) for _ in range(count)]
    if kind == "unregistered":
        return [Unregistered() for _ in range(count)]
    pairs: list[nn.Module] = [linear(), Apart(), Joins(), linear()]
    return pairs if count == 4 else [nn.Sequential(*pairs[:2]), nn.Sequential(*pairs[2:])]


def prepared(stages: list[nn.Module], loss: nn.Module) -> None:
    """Let gradients begin with zeros of their own: in one process, too, two may come to lie in one place."""
    for module in (*stages, loss):
        for each in module.modules():
            beside = each.shift if isinstance(each, Unregistered) else []
            for q in [*each.parameters(), *(q for other in beside for q in other.parameters())]:
                q.grad = torch.zeros_like(q)


@pytest.mark.parametrize("kind", ["sent", "passed on", "waits", "unregistered", "joins"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_first_gradients_lie_in_nothing_that_is_needed(schedule: str, kind: str, tmp_path: Path) -> None:
    module = load(compiled.compile_to(tmp_path / "x.py", SCHEDULES[schedule], p=2, m=M))
    torch.manual_seed(1)
    reference, loss = stages_of_kind(kind, module.STAGES), Loss()
    held, its_loss, captured = cut(module, reference), copy.deepcopy(loss), copy.deepcopy(loss)
    x, targets = torch.randn(M * ROWS, WIDTH), torch.randn(M * ROWS, WIDTH)

    def body(wire: Any) -> None:
        last = module.STAGES - 1 in module.stages_of(wire.rank)
        for step in range(2):
            loss_fn = (its_loss if step == 0 else lambda y, t: captured(y, t)) if last else None
            pipe = module.Pipeline(held[wire.rank], loss_fn, process_group=wire, timeout=20)
            pipe.step(x, targets)

    results(run_ranks(module, body))
    for step in range(2):
        if step == 0:
            prepared(reference, loss)
        alone(reference, loss, list(x.chunk(M)), list(targets.chunk(M)))
        if step == 0:
            expected = {name: None if g is None else g.clone() for name, g in gradients(loss).items()}
    for rank, mine in held.items():
        for stage, ours in zip(module.stages_of(rank), mine, strict=True):
            theirs = reference[stage]
            pairs = [(ours, theirs)]
            if isinstance(ours, Unregistered) and isinstance(theirs, Unregistered):
                pairs.append((ours.shift[0], theirs.shift[0]))
            for one, other in pairs:
                for name, gradient in gradients(one).items():
                    assert difference(gradient, gradients(other)[name]) <= 1e-5, (stage, name)
    for each in (its_loss, captured):
        for name, gradient in gradients(each).items():
            assert difference(gradient, expected[name]) <= 1e-5, name
