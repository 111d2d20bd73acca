"""A sweep on Ray: eight trials of Ray Tune, four at a time, each with two workers, in one coordd.

    pip install "ray[tune]" torch
    python ray_sweep.py

Each trial trains digits.py's model with another learning rate. The last line is the best one.
"""

import argparse
import os

import ray
import torch
from ray import tune

from coordd.ray import Coordinator, RayExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
RATES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0]


def train(rate, epochs):
    """What each worker of a trial does; the part of the test images that the model knows."""
    import coordd.torch as hvd
    import digits_data

    hvd.init()
    torch.manual_seed(1)
    training, test = digits_data.load()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
                                         model.named_parameters(), op=hvd.Sum)
    for epoch in range(epochs):
        order = torch.randperm(len(training.labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(64):
            own = batch[hvd.rank()::hvd.size()]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(training.images[own]), training.labels[own], reduction="sum")
            (loss / len(batch)).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(test.images).argmax(1) == test.labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="of each trial")
    parser.add_argument("--cpus", type=float, default=0.25, help="of each worker; more than a part of one is for larger models")
    options = parser.parse_args()
    workers, epochs, cpus = options.workers, options.epochs, options.cpus

    def trial(config, coordinator):
        executor = RayExecutor(num_workers=workers, cpus_per_worker=cpus, coordinator=coordinator,
                               job=f"sweep-{tune.get_context().get_trial_id()}")
        executor.start()
        try:
            accuracies = executor.run(train, args=[config["rate"], epochs])
        finally:
            executor.shutdown()
        tune.report({"accuracy": accuracies[0], "workers": len(accuracies)})

    # The room of a trial: nothing for the trial itself, which waits, and a part for each worker.
    room = tune.PlacementGroupFactory([{}] + [{"CPU": cpus}] * workers)
    with Coordinator() as coordinator:
        trainable = tune.with_resources(tune.with_parameters(trial, coordinator=coordinator), room)
        found = tune.Tuner(trainable, param_space={"rate": tune.grid_search(RATES)},
                           tune_config=tune.TuneConfig(max_concurrent_trials=4)).fit()
    for one in sorted(found, key=lambda one: one.config["rate"]):
        print(f"rate {one.config['rate']}: {one.metrics['accuracy']:.4f} by {one.metrics['workers']} workers")
    best = found.get_best_result(metric="accuracy", mode="max")
    print(f"best: rate {best.config['rate']}, {best.metrics['accuracy']:.4f}")


if __name__ == "__main__":
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}})
    main()
