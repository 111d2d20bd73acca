"""Broadcasts of parameters, optimizer state and objects; gathers of objects; elastic states. Run by ranks.py."""

import copy

import torch

import coordd.torch as hvd
from check_optimizer import STEPS, batch, loss_of, matrices_only, network, optimizers_of_torch, raises
from coordd.torch.elastic.state import StateHandler, get_handler_registry, set_handler_registry
from ranks import on_sizes


def filled(value, *shape, dtype=torch.float32):
    return torch.full(shape, value, dtype=torch.float64).to(dtype)


def check_parameters_become_those_of_the_root():
    for root in {0, hvd.size() - 1}:
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.fill_(hvd.rank() + 5)
        for parameters in (model.state_dict(), model.named_parameters(), list(model.named_parameters()),
                           list(model.parameters())):
            hvd.broadcast_parameters(parameters, root_rank=root)
        assert all((tensor == root + 5).all() for tensor in model.state_dict().values())
        assert model[1].num_batches_tracked.dtype == torch.int64


def check_parameters_of_every_kind():
    mine = {
        "half": filled(hvd.rank(), 3, dtype=torch.float16), "bfloat16": filled(hvd.rank(), 3, dtype=torch.bfloat16),
        "bool": filled(hvd.rank(), 3, dtype=torch.bool), "int8": filled(hvd.rank(), 3, dtype=torch.int8),
        "complex": torch.complex(filled(hvd.rank(), 2), filled(-hvd.rank(), 2)), "scalar": filled(hvd.rank()),
        "empty": torch.empty(0, 3), "transposed": filled(hvd.rank(), 2, 3).t(), "every_other": filled(hvd.rank(), 8)[::2],
        "text": f"rank {hvd.rank()}", "none": None,
    }
    original = dict(mine)
    hvd.broadcast_parameters(mine, root_rank=0)
    for name, value in mine.items():
        assert value is original[name]
        assert not torch.is_tensor(value) or not (value != 0).any(), name
    assert mine["text"] == f"rank {hvd.rank()}"


@on_sizes(1)
def check_parameters_that_are_none():
    raises(ValueError, lambda: hvd.broadcast_parameters(3, 0), "found int")
    raises(ValueError, lambda: hvd.broadcast_parameters([("a", "b")], 0), "found str")


# --- optimizer state -------------------------------------------------------------------------------------------------


def trained(kind, steps, lr):
    """A model and an optimizer after some steps."""
    if kind is torch.optim.SparseAdam:
        torch.manual_seed(1)
        model = torch.nn.Embedding(10, 3, sparse=True).double()
        optimizer = kind(list(model.parameters()), lr=lr)
    else:
        model = network()
        parameters = matrices_only(model.parameters()) if kind.__name__ == "Muon" else model.parameters()
        optimizer = kind(parameters, lr=lr, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    for step in range(steps):
        advance(model, optimizer, step)
    return model, optimizer


def advance(model, optimizer, step):

    def closure():
        optimizer.zero_grad()
        if isinstance(model, torch.nn.Embedding):
            loss = model(torch.arange(6) * (step + 3) % 10).pow(2).mean()
        else:
            loss = loss_of(model, *batch(step))
        loss.backward()
        return loss

    optimizer.step(closure)


def check_every_optimizers_state_becomes_that_of_the_root():
    for kind in optimizers_of_torch():
        for steps_of_root, steps_of_others in ((2, 0), (0, 2), (0, 0), (2, 1)):
            root = hvd.size() - 1
            is_root = hvd.rank() == root
            model, optimizer = trained(kind, steps_of_root if is_root else steps_of_others, 0.25 if is_root else 0.5)
            reference, expected = trained(kind, steps_of_root, 0.25)
            hvd.broadcast_parameters(model.state_dict(), root)
            hvd.broadcast_optimizer_state(optimizer, root)
            assert optimizer.param_groups[0]["lr"] == 0.25
            for step in (5, 6):  # equal states make equal steps
                advance(model, optimizer, step)
                advance(reference, expected, step)
            for a, b in zip(model.parameters(), reference.parameters()):
                assert torch.equal(a, b), f"{kind.__name__}, {steps_of_root} and {steps_of_others} steps"


@on_sizes(2)
def check_the_state_of_a_distributed_optimizer_too():
    model, plain = trained(torch.optim.Adam, 2 if hvd.rank() == 0 else 0, 0.1)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    reference, expected = trained(torch.optim.Adam, 2, 0.1)
    for step in range(STEPS):
        advance(model, optimizer, step)
        advance(reference, expected, step)
    for a, b in zip(model.parameters(), reference.parameters()):
        assert torch.allclose(a, b)


# --- objects ---------------------------------------------------------------------------------------------------------


class Unpicklable:

    def __reduce__(self):
        raise TypeError("this one stays here")


class Interrupted:
    """As if Ctrl-C came while it is pickled, or a method of it ended the program."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


def check_objects_of_any_kind():
    for root in {0, hvd.size() - 1}:
        for value in (None, 3, "text", {"a": [1, (2.5, None)]}, b"\0" * 100_000, torch.arange(4), list(range(1000)), b""):
            own = value if hvd.rank() == root else "something else"
            found = hvd.broadcast_object(own, root_rank=root)
            same = torch.equal(found, value) if torch.is_tensor(value) else found == value
            assert same, f"{found} is not {value}"
        assert hvd.broadcast_object("mine" if hvd.rank() == root else None, root, name="by.name") == "mine"
    found = hvd.allgather_object({"rank": hvd.rank(), "more": "x" * hvd.rank() * 1000})
    assert found == [{"rank": rank, "more": "x" * rank * 1000} for rank in range(hvd.size())]
    assert hvd.allgather_object(None, name="nothing") == [None] * hvd.size()


def check_objects_do_not_need_numpy():
    """torch from PyPI comes without it."""
    original = torch.Tensor.numpy
    torch.Tensor.numpy = None
    try:
        assert hvd.broadcast_object([hvd.rank(), "x"], root_rank=hvd.size() - 1) == [hvd.size() - 1, "x"]
        assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
    finally:
        torch.Tensor.numpy = original


@on_sizes(2)
def check_functions_travel_with_cloudpickle():
    from coordd.torch import functions
    if functions.cloudpickle is not None:
        assert hvd.broadcast_object((lambda x: x + 1) if hvd.rank() == 0 else None)(2) == 3


@on_sizes(2)
def check_an_object_that_cannot_travel_is_an_error_for_all():
    if hvd.rank() == 0:
        raises(TypeError, lambda: hvd.broadcast_object(Unpicklable()), "this one stays here")
    else:
        raises(hvd.HorovodInternalError, hvd.broadcast_object, "rank 0 could not pickle its Unpicklable")
    assert hvd.broadcast_object(hvd.rank()) == 0


@on_sizes(2)
def check_an_object_of_one_rank_that_cannot_travel_is_an_error_for_all():
    if hvd.rank() == 1:
        raises(TypeError, lambda: hvd.allgather_object(Unpicklable(), name="odd"), "this one stays here")
    else:
        raises(hvd.HorovodInternalError, lambda: hvd.allgather_object("fine", name="odd"),
               "rank 1 could not pickle its Unpicklable that was to travel as odd: TypeError: this one stays here")
    assert hvd.allgather_object(hvd.rank()) == [0, 1]


@on_sizes(2)
def check_the_others_hear_when_pickling_is_interrupted():
    for error in (KeyboardInterrupt, SystemExit):
        for call in (hvd.broadcast_object, hvd.allgather_object):
            if hvd.rank() == 0:
                raises(error, lambda: call(Interrupted(error("now"))), "now")
            else:
                raises(hvd.HorovodInternalError, lambda: call(None), "rank 0 could not pickle its Interrupted",
                       f"{error.__name__}: now")
            assert hvd.broadcast_object(hvd.rank()) == 0


@on_sizes(2)
def check_a_state_whose_pickling_is_interrupted_is_an_error_for_all():
    from coordd.elastic import ObjectState
    state = ObjectState(hvd.broadcast_object, hvd.rank, odd=None)
    state.odd = Interrupted(KeyboardInterrupt("now"))
    if hvd.rank() == 0:
        raises(KeyboardInterrupt, state.share, "now")
    else:
        raises(hvd.HorovodInternalError, state.share, "rank 0 could not pickle its state: KeyboardInterrupt: now")


@on_sizes(2)
def check_the_state_of_an_optimizer_that_cannot_travel_is_an_error_for_all():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if hvd.rank() == 0:
        optimizer.param_groups[0]["odd"] = Unpicklable()
        raises(TypeError, lambda: hvd.broadcast_optimizer_state(optimizer, 0), "this one stays here")
    else:
        raises(hvd.HorovodInternalError, lambda: hvd.broadcast_optimizer_state(optimizer, 0), "rank 0 could not pickle")
    assert hvd.broadcast_object(hvd.rank()) == 0


@on_sizes(2)
def check_a_state_that_cannot_travel_is_an_error_for_all():
    from coordd.elastic import ObjectState
    state = ObjectState(hvd.broadcast_object, hvd.rank, odd=None)
    state.odd = Unpicklable()
    if hvd.rank() == 0:
        raises(TypeError, state.share, "this one stays here")
    else:
        raises(hvd.HorovodInternalError, state.share, "rank 0 could not pickle its state: TypeError: this one stays here")


# --- elastic ---------------------------------------------------------------------------------------------------------


def check_a_sampler_divides_what_is_left():
    from coordd.torch.elastic import ElasticSampler
    for shuffle in (True, False):
        sampler = ElasticSampler(range(22), shuffle=shuffle, seed=3)
        assert len(sampler) == -(-22 // hvd.size()) == len(list(sampler))
        first_order = list(sampler)
        assert set().union(*hvd.allgather_object(first_order)) == set(range(22))
        sampler.record_batch(0, 2)
        assert sampler.processed_num == 2 * hvd.size() and list(sampler) == first_order  # until it is reset
        state = hvd.elastic.TorchState(sampler=sampler)
        state.sync()
        processed = set().union(*hvd.allgather_object(first_order[:2]))
        assert sampler.processed_num == 2 * hvd.size() == len(processed)
        assert set().union(*hvd.allgather_object(list(sampler))) == set(range(22)) - processed
        assert set(sampler.remaining_indices) == set(range(22)) - processed
        sampler.set_epoch(1)
        assert sampler.processed_num == 0 and (hvd.size() > 1 or not shuffle or list(sampler) != first_order)


def check_what_a_sampler_counts_are_samples_and_not_their_places():
    from coordd.torch.elastic import ElasticSampler
    size = hvd.size()
    sampler = ElasticSampler(range(8 * size), shuffle=True)
    state = hvd.elastic.TorchState(sampler=sampler, batch=0)
    seen = []
    while len(sampler):  # restored after each two batches, while the program's count of batches goes on
        for indices in list(zip(*[iter(sampler)] * 2))[:2]:
            seen.extend(indices)
            state.batch += 1
            sampler.record_batch(state.batch, 2)
        state.commit()
        state.restore()
    assert sorted(sum(hvd.allgather_object(seen), [])) == list(range(8 * size))
    assert sampler.processed_num == 8 * size and list(sampler) == []
    sampler.record_batch(0, 2)  # beyond the end: the last batch is counted as a whole
    sampler.reset()
    assert len(sampler) == 0 and list(sampler) == []


def check_the_state_of_a_sampler_is_two_numbers():
    from coordd.torch.elastic import ElasticSampler
    sampler = ElasticSampler(range(1_000_000))
    sampler.record_batch(0, 1000)
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 1000 * hvd.size()}
    other = ElasticSampler(range(1_000_000))
    other.load_state_dict(sampler.state_dict())
    assert list(other)[:3] == other.indices[:3] and len(other) == -(-(1_000_000 - 1000 * hvd.size()) // hvd.size())


@on_sizes(3)
def check_a_sampler_of_fewer_samples_than_ranks_repeats_them():
    from coordd.torch.elastic import ElasticSampler
    sampler = ElasticSampler(range(1), shuffle=True)
    assert list(sampler) == [0] and len(sampler) == 1
    sampler = ElasticSampler([])
    assert list(sampler) == [] and len(sampler) == 0


def check_states_are_committed_rolled_back_and_shared():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + hvd.rank(), momentum=0.9)
    with torch.no_grad():
        model[0].bias.fill_(hvd.rank() + 1)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=hvd.rank(), log=[])
    state.register_reset_callbacks([lambda: None])
    state.sync()
    assert state.epoch == 0 and (model[0].bias == 1).all() and optimizer.param_groups[0]["lr"] == 0.1
    state.epoch = 7
    state.log.append("x")
    with torch.no_grad():
        model[0].bias.fill_(9)
    state.restore()
    assert state.epoch == 0 and state.log == [] and (model[0].bias == 1).all()
    state.epoch = 8
    state.commit()
    state.epoch = 9
    state.restore()
    assert state.epoch == 8
    state.model = copy.deepcopy(model)
    assert state.model is not model


def check_run_gives_everyone_the_state_and_says_what_it_does_not_do():
    state = hvd.elastic.TorchState(epoch=hvd.rank())

    @hvd.elastic.run
    def train(state, add):
        assert state.epoch == 0
        state.epoch = 1
        state.commit()
        state.epoch = 2
        if add:
            return state.epoch + add
        raise hvd.HorovodInternalError("rank 3 (host h) was lost")

    assert train(state, 5) == 7
    state.epoch = hvd.rank()
    raises(hvd.HorovodInternalError, lambda: train(state, 0), "rank 3 (host h) was lost", "last commit")
    assert state.epoch == 1


@on_sizes(1)
def check_programs_may_bring_handlers():

    class Thing:
        value = 1

    class ThingHandler(StateHandler):

        def save(self):
            self.saved = self.value.value

        def restore(self):
            self.value.value = self.saved

    registry = get_handler_registry()
    set_handler_registry([(Thing, ThingHandler), *registry])
    thing = Thing()
    state = hvd.elastic.TorchState(thing=thing)
    set_handler_registry(registry)
    state.save()
    thing.value = 2
    state.restore()
    assert thing.value == 1
