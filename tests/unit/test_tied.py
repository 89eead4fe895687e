"""Parameters that ranks share, without the pipeline around them: what is agreed on, compared, summed and refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from pipedsl.runtime.plan import CannotStart
from pipedsl.runtime.tied import Tied
from pipedsl.runtime.wire import ConnectionLost
from tests.support.nccl_like import LAZY, Fabric, Rank, Wire, run_ranks
from tests.support.on_threads import errors, results

PLAN: Any = SimpleNamespace(title="the test")


class Watched:
    """What there is of a watch: where the rank has stood, and for whom; `told`: what it is stopped with."""

    def __init__(self) -> None:
        self.position = self
        self.notes: list[tuple[str, int]] = []
        self.told: Exception | None = None
        self.asked: Callable[[], None] = lambda: None

    def note(self, text: str, peer: int = -1) -> None:
        self.notes.append((text, peer))

    def stop_if_failed(self) -> None:
        self.asked()
        if self.told is not None:
            raise self.told


def parameter(values: Any = (1.0, 2.0), *, trained: bool = True, grad: Any = None) -> nn.Parameter:
    made = nn.Parameter(torch.tensor(values), requires_grad=trained)
    made.grad = None if grad is None else torch.tensor(grad)
    return made


def meet(
    given: list[dict[str, nn.Parameter]],
    body: Callable[[Tied, Any], Any],
    *,
    own: list[list[nn.Parameter]] | None = None,
    wire: Callable[[Fabric, int], Wire] = Wire,
) -> list[Rank]:
    """Run `body` on every rank when all have told each other what they tie. `own`: the parameters of their modules."""
    fabric = Fabric(len(given), LAZY, cold=False)
    fabric.wire = partial(wire, fabric)  # type: ignore[method-assign]
    barrier = threading.Barrier(len(given))

    def work(wire: Wire) -> Any:
        mine = given[wire.rank]
        module = nn.ParameterList(list(mine.values()) if own is None else own[wire.rank])
        tied = Tied(wire, wire.store("x"), mine, [module])
        assert tied.problem() == ""
        tied.publish()
        barrier.wait(20)
        tied.learn(PLAN)
        return body(tied, Watched())

    return run_ranks(fabric, work)


def train(tied: Tied, watch: Any) -> None:
    """A step whose gradients are there already, with none from before."""
    grads = {name: q.grad for name, q in tied._own.items()}
    for q in tied._own.values():
        q.grad = None
    tied.begin(watch)
    for name, q in tied._own.items():
        q.grad = grads[name]
    tied.finish(watch)


@pytest.fixture
def world() -> Iterator[None]:
    """A job of one rank, for meshes."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


# ------------------------------------------------------------------- what is given


def test_one_parameter_has_one_name() -> None:
    q = parameter()
    tied = Tied(Wire(Fabric(1), 0), dist.HashStore(), {"x": q, "y": q}, [nn.ParameterList([q])])
    assert tied.problem() == "one Parameter is tied by two names, 'x' and 'y'; its gradient would count twice"


def test_all_that_is_wrong_with_names_is_said_on_every_rank() -> None:
    given = [{"a": parameter(), "c": parameter()}, {"b": parameter(), "c": parameter([1.0])}, {"c": parameter([2.0])}]
    for rank in meet(given, lambda tied, watch: None):
        assert isinstance(rank.error, CannotStart)
        known = "(the names given are 'a', 'b', 'c')"
        assert f"only rank 0 has a tied parameter 'a' {known}" in str(rank.error)
        assert f"only rank 1 has a tied parameter 'b' {known}" in str(rank.error)
        for other in (1, 2):
            assert f"tied parameter 'c' is float32 [2] on rank 0, but float32 [1] on rank {other}" in str(rank.error)


def test_copies_are_frozen_together() -> None:
    for message in errors(meet([{"x": parameter()}, {"x": parameter(trained=False)}], lambda tied, watch: None)):
        assert "tied parameter 'x' is float32 [2] on rank 0, but float32 [2], frozen on rank 1" in message


def test_one_rank_alone_shares_nothing() -> None:
    """So there is nothing that what is frozen or trained later would change."""

    def body(tied: Tied, watch: Any) -> None:
        train(tied, watch)
        tied._own["x"].requires_grad_(True)
        tied.loaded()
        train(tied, watch)
        assert tied.counted_elsewhere() == set()
        assert watch.notes == []

    q, r = parameter(trained=False), parameter(grad=[1.0, 2.0])
    results(meet([{"x": q, "y": r}], body))
    assert r.grad is not None
    assert r.grad.tolist() == [1, 2]


def test_who_counts_a_parameter_and_whose_stages_have_one() -> None:
    """Frozen ones count, too: they may have a gradient from before. They are not summed."""
    given = [{}, {"x": parameter(), "z": parameter(trained=False)}, {"x": parameter(), "z": parameter(trained=False)}]

    def body(tied: Tied, watch: Any) -> Any:
        own = dict(tied._own)
        inside = [tied.has_one_of(nn.ParameterList([q])) for q in own.values()]
        return sorted(name for name, q in own.items() if id(q) in tied.counted_elsewhere()), inside

    assert results(meet(given, body)) == [([], []), ([], [True, False]), (["x", "z"], [True, False])]


# ------------------------------------------------------------------------ values


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("name", ["x", "y"])
def test_copies_that_begin_apart_are_refused_in_the_same_words(name: str, trained: bool) -> None:
    """Whichever of the names it is, and down to their last number."""
    given = [{each: parameter([1.0, 2.0], trained=trained) for each in ("x", "y")} for _ in range(2)]
    with torch.no_grad():
        given[1][name][1] += 1
    for message in errors(meet(given, lambda tied, watch: tied.begin(watch))):
        assert message.startswith(f"tied parameter {name!r} has other values on rank 1 than on rank 0, and training")


def test_it_is_values_that_are_compared_and_not_how_they_lie_in_memory() -> None:
    values = torch.arange(6.0).reshape(2, 3)
    given = [{"x": nn.Parameter(values)}, {"x": nn.Parameter(values.t().contiguous().t())}, {}]
    results(meet(given, lambda tied, watch: tied.begin(watch)))


def test_values_are_compared_once_and_again_when_they_are_loaded() -> None:
    q = [parameter(), parameter(), parameter([5.0])]
    together = threading.Barrier(3)

    def body(tied: Tied, watch: Any) -> list[bool]:
        rank = tied._wire.rank
        said = [tied.reloaded]
        if rank == 1:
            tied.loaded()  # before the first step it is for each rank to say: all are looked at then
        said.append(tied.reloaded)
        tied.begin(watch)
        together.wait(20)
        with torch.no_grad():
            q[1].fill_(3)
        together.wait(20)
        tied.begin(watch)  # they are not looked at
        said.append(tied.reloaded)
        together.wait(20)
        tied.loaded()
        said.append(tied.reloaded)
        together.wait(20)
        if rank < 2:
            with pytest.raises(ValueError, match="tied parameter 'x' has other values on rank 1 than on rank 0"):
                tied.begin(watch)
        else:
            tied.begin(watch)
            said.append(tied.reloaded)
        return said

    first, second, third = results(meet([{"x": q[0]}, {"x": q[1]}, {}], body, own=[[each] for each in q]))
    assert first == second == third[:-1] == [False, False, False, True]
    assert third[-1] is False


def test_where_nothing_is_shared_a_rank_may_load_alone() -> None:
    def body(tied: Tied, watch: Any) -> bool:
        tied.begin(watch)
        if tied._wire.rank:
            tied.loaded()
        return tied.reloaded

    assert results(meet([{}, {}], body)) == [False, False]


def test_who_is_waited_for_is_known_and_a_failure_ends_it() -> None:
    """Rank 1 does not come. Rank 0 has told its values when it first asks whether it is to stop."""
    there = threading.Event()

    def body(tied: Tied, watch: Any) -> Any:
        if tied._wire.rank == 1:
            return None
        if tied._wire.rank == 0:
            watch.asked = there.set
        else:
            assert there.wait(20)
        watch.told = RuntimeError("another rank failed")
        with pytest.raises(RuntimeError, match="another rank failed"):
            tied.begin(watch)
        return watch.notes

    waits = "comparing tied parameters with rank"
    first, _, third = results(meet([{"x": parameter()} for _ in range(3)], body))
    assert first == [(f"{waits} 1", 1)]
    assert third == [(f"{waits} 0", 0), (f"{waits} 0", -1), (f"{waits} 1", 1)]


# --------------------------------------------------------------------- gradients


def test_gradients_are_summed_where_they_are() -> None:
    """All owners get the sum. What was there before is kept, and added to in place, as one process does."""
    given = [{"x": parameter()}, {}, {"x": parameter()}, {"x": parameter()}]
    grads = {0: [1.0, 2.0], 2: [10.0, 20.0], 3: [100.0, 200.0]}

    def body(tied: Tied, watch: Any) -> None:
        mine = tied._own.get("x")
        for k in (1, 2):
            earlier = None if mine is None else mine.grad
            tied.begin(watch)
            if mine is not None:
                assert mine.grad is None
                mine.grad = torch.tensor(grads[tied._wire.rank])
            tied.finish(watch)
            if mine is not None:
                assert mine.grad is not None
                assert mine.grad.tolist() == [k * 111, k * 222]
                assert earlier is None or mine.grad is earlier
        tied.begin(watch)
        tied.finish(watch)  # nobody has used it: what was there stays
        if mine is not None:
            assert mine.grad is not None
            assert mine.grad.tolist() == [222, 444]

    results(meet(given, body))


@pytest.mark.parametrize("odd", [0, 1])
def test_gradients_that_lie_in_memory_in_another_order(odd: int) -> None:
    values = torch.arange(6.0).reshape(2, 3)
    given = [{"x": nn.Parameter(values)} for _ in range(2)]
    for rank, each in enumerate(given):
        grad = (1 + 9 * rank) * values
        each["x"].grad = grad.t().contiguous().t() if rank == odd else grad
    results(meet(given, train))
    for each in given:
        assert each["x"].grad is not None
        assert torch.equal(each["x"].grad, 11 * values)


def test_a_sparse_gradient_is_refused() -> None:
    given = [{"x": parameter()}, {"x": parameter()}]
    for each in given:
        each["x"].grad = torch.ones(2).to_sparse()
    for message in errors(meet(given, train)):
        assert message == "the gradient of tied parameter 'x' is sparse, which cannot be summed over ranks"


def test_where_a_rank_stands_while_it_sums() -> None:
    given = [{"x": parameter(grad=[1.0, 1.0])} for _ in range(3)]

    def body(tied: Tied, watch: Any) -> Any:
        train(tied, watch)
        return [each for each in watch.notes if "gradient" in each[0]]

    sums, spreads = "summing the gradients of tied parameter 'x'", "spreading the gradient of tied parameter 'x'"
    first, *others = results(meet(given, body))
    assert first == [(sums, 1), (sums, 2), (spreads, 1), (spreads, 2)]
    assert others == [[(sums, 0), (spreads, 0)]] * 2


def test_a_rank_that_is_to_stop_sends_nothing() -> None:
    def body(tied: Tied, watch: Any) -> None:
        tied.begin(watch)
        watch.told = RuntimeError("another rank failed")
        tied.finish(watch)

    for message in errors(meet([{"x": parameter()}, {"x": parameter()}], body, wire=Silent)):
        assert message == "another rank failed"


def test_a_connection_that_is_lost_is_called_so() -> None:
    for rank in meet([{"x": parameter()}, {"x": parameter()}], train, wire=Silent):
        assert isinstance(rank.error, ConnectionLost)
        assert str(rank.error) == "no such rank any more"


class Silent(Wire):
    """Its messages go nowhere."""

    def isend(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
        raise OSError("no such rank any more")

    irecv = isend


@pytest.mark.usefixtures("world")
def test_parts_of_sharded_parameters() -> None:
    """They need not be what the modules have at the moment. Compared and summed are the parts that are here."""
    mesh = init_device_mesh("cpu", (1,))

    def sharded(values: list[float]) -> nn.Parameter:
        return nn.Parameter(distribute_tensor(torch.tensor(values), mesh))

    def body(tied: Tied, watch: Any) -> None:
        q = tied._own["x"]
        tied.begin(watch)
        q.grad = distribute_tensor(torch.full((2,), 1.0 + tied._wire.rank), mesh)
        tied.finish(watch)
        assert type(q.grad) is type(q.data)
        assert q.grad.to_local().tolist() == [3, 3]

    class Plain(Wire):
        def isend(self, tensor: torch.Tensor, peer: int, tag: int) -> Any:
            assert type(tensor) is torch.Tensor
            return super().isend(tensor, peer, tag)

    whole = [parameter()]  # what a module has in place of its part, in a forward
    given = [{"x": sharded([1.0, 2.0])} for _ in range(2)]
    results(meet(given, body, own=[whole, whole], wire=Plain))
    given[1]["x"] = sharded([1.0, 3.0])
    for message in errors(meet(given, body, own=[whole, whole])):
        assert "tied parameter 'x' has other values on rank 1 than on rank 0" in message
