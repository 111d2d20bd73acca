"""DistributedOptimizer as an object: its class, schedulers and hooks on it, and wrong use. Run by ranks.py."""

import warnings

import torch

import coordd.torch as hvd
from check_optimizer import (STEPS, assert_equal_models, batch, loss_of, network, own, raises, sgd, train_alone,
                             train_together)
from ranks import on_sizes

# --- what it is ------------------------------------------------------------------------------------------------------


def check_it_is_an_optimizer_of_the_same_class():
    model = network()
    plain = torch.optim.AdamW(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert isinstance(optimizer, torch.optim.AdamW) and type(optimizer).__name__ == "AdamW"
    assert optimizer.param_groups is plain.param_groups and optimizer.state is plain.state
    assert optimizer.defaults["lr"] == 0.5
    assert "AdamW" in repr(optimizer)


@on_sizes(2)
def check_schedulers_made_before_and_after():
    for before in (True, False):
        model, alone = network(), network()
        plain = sgd(alone.parameters())
        reference = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
        optimizer = sgd(model.parameters())
        if before:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        if not before:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has not seen the original's step()
            for step in range(STEPS):
                for one, schedule, who, part in ((optimizer, scheduler, model, own),
                                                 (plain, reference, alone, lambda whole: whole)):
                    one.zero_grad()
                    loss_of(who, *map(part, batch(step))).backward()
                    one.step()
                    schedule.step()
        assert_equal_models(model, alone)


@on_sizes(2)
def check_the_optimizers_own_hooks_run_once():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    if not hasattr(optimizer, "register_step_post_hook"):
        return  # torch 1.13
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    loss_of(model, *map(own, batch(0))).backward()
    optimizer.step()
    assert calls == [1]


@on_sizes(2)
def check_a_former_optimizer_of_the_same_model_is_forgotten():
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    del optimizer
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    loss_of(model, *map(own, batch(0))).backward()
    optimizer.step()
    assert_equal_models(model, train_alone(sgd, steps=1))


# --- wrong use -------------------------------------------------------------------------------------------------------


@on_sizes(2)
def check_wrong_arguments_are_said():
    model = network()
    plain = sgd(model.parameters())
    names = list(model.named_parameters())

    def make(*arguments, **options):
        return lambda: hvd.DistributedOptimizer(plain, *arguments, **options)

    raises(ValueError, make([("a", names[0][1]), *names[1:], ("2.bias", names[2][1])]), "2.bias")
    raises(ValueError, make(names[1:]), "shape (5, 3)")
    raises(ValueError, make(model.parameters()), "(name, parameter) pairs")
    raises(ValueError, make(names, groups=-1), "groups is -1")
    raises(ValueError, make(names, groups="two"), "groups is 'two'")
    raises(ValueError, make(names, groups=[[names[0][1]], [names[0][1]]]), "each once")
    raises(ValueError, make(names, op=17), "op is 17")
    raises(ValueError, make(names, op=hvd.Sum, gradient_predivide_factor=2.0), "gradient_predivide_factor")
    raises(ValueError, make(names, backward_passes_per_step=0), "backward_passes_per_step is 0")
    raises(ValueError, make(names, process_set=hvd.ProcessSet([0])), "not registered")
    raises(NotImplementedError, make(names, op=hvd.Adasum), "Adasum")
    raises(ValueError, lambda: hvd.DistributedOptimizer(make(names)()), "already")


@on_sizes(2)
def check_ranks_that_disagree_get_an_error_and_go_on():
    wrong = torch.nn.Linear(3 + hvd.rank(), 2)
    optimizer = hvd.DistributedOptimizer(sgd(wrong.parameters()), wrong.named_parameters())
    wrong(torch.ones(1, 3 + hvd.rank())).sum().backward()
    raises(hvd.HorovodInternalError, optimizer.step, "weight")
    assert_equal_models(train_together(sgd), train_alone(sgd))
