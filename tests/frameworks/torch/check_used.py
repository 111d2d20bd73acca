"""Parameters that some or all ranks leave out of a step, and several optimizers that are under way at once. Run by ranks.py."""

import copy
import unittest.mock

import torch

import coordd.torch as hvd
from check_buckets import buckets_of, small_buckets
from check_optimizer import BATCH, assert_equal_models, batch, loss_of, network, own, raises, sgd
from coordd.torch import _units, mpi_ops
from ranks import on_sizes

HEADS = 5
STEPS = 8


class Heads(torch.nn.Module):
    """Heads whose gradients are sums of whole numbers: the same, bit for bit, in whatever order they are added."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(11)
        self.heads = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(3 + index, dtype=torch.float64))
                                             for index in range(HEADS)])

    def forward(self, factor, used):
        return sum(((parameter * (factor + index)).sum() for index, parameter in enumerate(self.heads) if index in used),
                   torch.zeros((), dtype=torch.float64))


def used_by(step, rank):
    """Head 0 by all, head 1 by one rank, head 2 by all in turns, head 3 from the third step on, head 4 never."""
    return [0] + [1] * (rank == step % hvd.size()) + [2] * (step % 3 == 1) + [3] * (step > 2 and step % 2 == rank % 2)


def make_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.05)


def make_adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1, weight_decay=0.05)


def train_heads(make, wrap, ranks, set_to_none, scale=1.0):
    """The weights, and which gradients there were, after each step. `ranks`: those whose losses are added up here."""
    model = Heads()
    optimizer = wrap(make(model.parameters()), model)
    history = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = sum(model(float(3 * step + rank), used_by(step, rank)) for rank in ranks) * scale
        loss.backward()
        optimizer.step()
        history.append(([parameter.detach().clone() for parameter in model.heads],
                        [parameter.grad is not None for parameter in model.heads]))
    return history, optimizer


def assert_same_history(found, expected, what):
    for step, ((weights, there), (wanted_weights, wanted_there)) in enumerate(zip(found, expected)):
        assert there == wanted_there, f"{what}: gradients in step {step} are {there}, expected {wanted_there}"
        for index, (weight, wanted) in enumerate(zip(weights, wanted_weights)):
            assert torch.equal(weight, wanted), f"{what}: head {index} differs by {(weight - wanted).abs().max()} in step {step}"


@on_sizes(2, 3)
def check_what_nobody_used_has_no_gradient():
    everyone = range(hvd.size())
    for options in ({}, {"gradient_as_bucket_view": False}, {"groups": 0}, {"groups": 2}, {"sparse_as_dense": True}):
        for make in (make_sgd, make_adam):
            for set_to_none in (True, False):
                alone, _ = train_heads(make, lambda optimizer, model: optimizer, everyone, set_to_none)
                with small_buckets():
                    together, _ = train_heads(make, lambda optimizer, model: hvd.DistributedOptimizer(
                        optimizer, model.named_parameters(), op=hvd.Sum, **options), [hvd.rank()], set_to_none)
                assert_same_history(together, alone, f"{options} {make.__name__} set_to_none={set_to_none}")


@on_sizes(2)
def check_averages_of_what_is_used_are_those_of_one_process():
    for options in ({}, {"gradient_as_bucket_view": False}, {"gradient_predivide_factor": 2.0}):
        alone, _ = train_heads(make_adam, lambda optimizer, model: optimizer, range(2), True, 0.5)
        together, _ = train_heads(make_adam, lambda optimizer, model: hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), **options), [hvd.rank()], True)
        assert_same_history(together, alone, str(options))


@on_sizes(2)
def check_every_operator_and_compression_tells_what_is_used():
    alone, _ = train_heads(sgd, lambda optimizer, model: optimizer, range(hvd.size()), True)
    every = [{"op": op} for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)]
    every += [{"op": op, "compression": hvd.Compression.bf16} for op in (hvd.Average, hvd.Min)]
    for options in every:
        for views in (True, False):
            together, _ = train_heads(sgd, lambda optimizer, model: hvd.DistributedOptimizer(
                optimizer, model.named_parameters(), gradient_as_bucket_view=views, **options), [hvd.rank()], True)
            assert [there for _, there in together] == [there for _, there in alone], (options, views)


@on_sizes(2)
def check_a_bucket_divided_beforehand_tells_what_is_used():
    with unittest.mock.patch.object(_units._basics, "local_size", lambda: 1):  # as on two nodes
        alone, _ = train_heads(make_adam, lambda optimizer, model: optimizer, range(2), True, 0.5)
        together, optimizer = train_heads(make_adam, lambda optimizer, model: hvd.DistributedOptimizer(
            optimizer, model.named_parameters()), [hvd.rank()], True)
        assert all(bucket._divisor == 2 for bucket in buckets_of(optimizer))
        assert_same_history(together, alone, "divided")


@on_sizes(2)
def check_what_is_used_costs_no_operation_in_buckets():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    names = []

    def note(function):
        def noted(*arguments, **options):
            names.append(options["name"])
            return function(*arguments, **options)
        return noted

    for step in range(3):
        names.clear()
        optimizer.zero_grad()
        loss_of(model, *map(own, batch(step))).backward()
        with unittest.mock.patch.object(mpi_ops, "allreduce_async_", note(mpi_ops.allreduce_async_)), \
                unittest.mock.patch.object(_units.Flags, "read", None):  # nobody needs to look
            optimizer.step()
        assert names == ([optimizer._coordd_exchange.own_name("used")] if step == 0 else []), names


@on_sizes(2)
def check_frozen_parameters_in_a_bucket_are_not_looked_at():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        if step == 2:
            model[0].requires_grad_(False)
        loss_of(model, *map(own, batch(step))).backward()
        with unittest.mock.patch.object(_units.Flags, "read", None):
            optimizer.step()
    assert model[0].weight.grad is None and len(buckets_of(optimizer)) == 1


# --- sparse gradients ------------------------------------------------------------------------------------------------


def train_table(make, wrap, rows_of, steps=STEPS):
    """A table of vectors, and a dense layer behind it. `rows_of(step)`: tensors of rows, each for a loss of its own."""
    torch.manual_seed(1)
    model = torch.nn.ModuleDict({"table": torch.nn.Embedding(10, 3, sparse=True)}).double()
    optimizer = wrap(make(model.parameters()), model)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = sum((model["table"](rows).pow(2).sum() for rows in rows_of(step) if rows is not None),
                   torch.zeros((), dtype=torch.float64))
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
    return model


def compare_tables(rows_of_rank, **options):
    makes = [lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.1),
             lambda parameters: torch.optim.SGD(parameters, lr=0.1)]
    for make in makes:
        alone = train_table(make, lambda optimizer, model: optimizer,
                            lambda step: [rows_of_rank(step, rank) for rank in range(hvd.size())])
        together = train_table(make, lambda optimizer, model: hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), op=hvd.Sum, **options), lambda step: [rows_of_rank(step, hvd.rank())])
        assert_equal_models(together, alone)


@on_sizes(2)
def check_sparse_gradients_come_back_sparse():

    def all_of_them(step, rank):
        return torch.arange(BATCH)[rank::hvd.size()] * (step + 3) % 10

    def nobody_at_first(step, rank):
        return None if step < 2 else all_of_them(step, rank)

    def one_in_turns(step, rank):
        return all_of_them(step, rank) if rank == step % hvd.size() else None

    def one_alone(step, rank):
        return all_of_them(step, rank) if rank == 1 else None

    as_dense = {"sparse_as_dense": True}
    for rows, every in ((all_of_them, ({}, as_dense, {**as_dense, "groups": 1})),
                        (nobody_at_first, ({}, as_dense, {"gradient_as_bucket_view": False}, {**as_dense, "groups": 0})),
                        (one_in_turns, ({}, as_dense, {**as_dense, "groups": 1})),
                        (one_alone, ({}, as_dense, {**as_dense, "gradient_as_bucket_view": False}))):
        for options in every:
            try:
                compare_tables(rows, **options)
            except Exception as error:
                raise AssertionError(f"{rows.__name__} {options}") from error


# --- several optimizers ----------------------------------------------------------------------------------------------


@on_sizes(2, 3)
def check_two_models_of_one_class_in_one_backward_pass():
    for options in ({}, {"groups": 2}, {"groups": 0}, {"gradient_as_bucket_view": False}):
        for with_names in (True, False):
            models, alone = [network(), network()], [network(), network()]
            for pair in (models, alone):
                with torch.no_grad():
                    pair[1][0].weight.mul_(2)
            optimizers = [hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters() if with_names else None,
                                                   **options) for model in models]
            plain = [sgd(model.parameters()) for model in alone]
            for step in range(4):
                for made, who, part in ((optimizers, models, own), (plain, alone, lambda whole: whole)):
                    for optimizer in made:
                        optimizer.zero_grad()
                    inputs, targets = map(part, batch(step))
                    (loss_of(who[0], inputs, targets) + 3 * loss_of(who[1], inputs, targets)).backward()
                    for optimizer in made:
                        optimizer.step()
            for model, expected in zip(models, alone):
                assert_equal_models(model, expected)


@on_sizes(2)
def check_numbers_are_those_of_optimizers_with_the_same_names():
    model, other = network(), network()
    prefixes = []
    for named in (model.named_parameters(), other.named_parameters(),
                  [(f"other.{name}", parameter) for name, parameter in other.named_parameters()], model.named_parameters()):
        named = list(named)
        optimizer = hvd.DistributedOptimizer(sgd([parameter for _, parameter in named]), named)
        assert sorted(optimizer._parameter_names.values()) == sorted(name for name, _ in named)
        prefixes.append(optimizer._coordd_exchange._prefix)
    first = prefixes[0]
    numbers = [int(prefix[len("optimizer"):-1] or 0) if prefix else 0 for prefix in prefixes]
    assert numbers[1] == numbers[0] + 1 and numbers[3] == numbers[1] + 1, prefixes
    assert hvd.allgather_object(prefixes) == [prefixes] * hvd.size() and first == prefixes[0]


@on_sizes(2)
def check_ddp_hooks_of_two_models_have_names_of_their_own():
    from coordd.torch import ddp_hook
    registered = []

    class Model:

        def register_comm_hook(self, state, hook):
            registered.append(state.name)

    for name in ("own", "own", "another"):
        ddp_hook.register(Model(), name=name)
    assert registered == ["own", "own1", "another"], registered


@on_sizes(2)
def check_an_error_in_the_backward_pass_leaves_ranks_in_step():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, *map(own, batch(step))).backward()
        if hvd.rank() == 0:  # one more on one rank only
            raises(AssertionError, loss_of(model, *map(own, batch(step))).backward, "use_reentrant=False",
                   "backward_passes_per_step=1")
        optimizer.step()
    same = hvd.allgather(model[0].weight.detach().unsqueeze(0))
    assert torch.equal(same[0], same[1])


@on_sizes(2)
def check_what_cannot_be_submitted_does_not_keep_back_the_rest():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), groups=0)
    refused = model[2].weight

    def submit(unit, original=_units.Single.submit):
        if unit.parameters[0] is refused:
            raise hvd.HorovodInternalError("not this one")
        original(unit)

    with unittest.mock.patch.object(_units.Single, "submit", submit):
        raises(hvd.HorovodInternalError, loss_of(model, *map(own, batch(0))).backward, "not this one")
        raises(hvd.HorovodInternalError, optimizer.step, "not this one")
    assert not optimizer._coordd_exchange.is_busy()
    model.load_state_dict(network().state_dict())
    alone = copy.deepcopy(model)
    plain = sgd(alone.parameters())
    for step in range(2):
        for one, who, part in ((optimizer, model, own), (plain, alone, lambda whole: whole)):
            one.zero_grad()
            loss_of(who, *map(part, batch(step))).backward()
            one.step()
    assert_equal_models(model, alone)


@on_sizes(2)
def check_reentrant_checkpoints_are_named():
    from torch.utils.checkpoint import checkpoint
    layer = torch.nn.Linear(3, 3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), layer.named_parameters())

    def twice(reentrant):
        inputs = torch.ones(2, 3, requires_grad=True)
        for _ in range(2):
            inputs = checkpoint(layer, inputs, use_reentrant=reentrant)
        return inputs.sum()

    raises(AssertionError, twice(True).backward, "use_reentrant=False")
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.zero_grad()
    twice(False).backward()
    optimizer.step()
