"""Digits by Ray Train, with coordd as the backend:

    pip install "ray[train]" torch
    python ray_train_digits.py
"""

import os
import tempfile

import ray
from ray.train import Checkpoint, RunConfig, ScalingConfig, report

from coordd.ray.train import CoorddTrainer
from ray_sweep import HERE, train


def loop(config):
    import coordd.torch as hvd

    accuracy = train(config["rate"], config["epochs"])
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "accuracy"), "w") as file:  # a model's weights, mostly
            file.write(str(accuracy))
        kept = Checkpoint.from_directory(folder) if hvd.rank() == 0 else None
        report({"accuracy": accuracy, "size": hvd.size()}, checkpoint=kept)


if __name__ == "__main__":
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}})
    trainer = CoorddTrainer(loop, train_loop_config={"rate": 0.1, "epochs": 3},
                            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
                            run_config=RunConfig(storage_path=os.environ.get("RAY_STORAGE")))
    metrics = trainer.fit().metrics
    print(f"accuracy {metrics['accuracy']:.4f} by {metrics['size']} workers")
