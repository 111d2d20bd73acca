"""Accelerate, transformers' Trainer, Lightning and DeepSpeed's ZeRO under coordrun -np 2: one model in two workers, not two models; also
with coordd in gloo's place.

Packages from PyPI, which tools/test-frameworks installs; a program whose package is missing is skipped.
"""

import importlib.util
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from tests.support import processes
from tests.support.processes import clean_environment, program

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 600  # their imports take seconds in every process

ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
torch.manual_seed(accelerator.process_index)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
steps = 0
for inputs, labels in loader:
    accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
weights = accelerator.gather(accelerator.unwrap_model(model).weight.detach().reshape(1, -1))
same = bool((weights == weights[0]).all())
print("trained", accelerator.process_index, accelerator.num_processes, steps, len(weights), same, flush=True)
accelerator.end_training()
"""

TRAINER = """
import sys
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
torch.manual_seed(0)
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
data = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(i % 2)} for i in range(32)]
trainer = Trainer(BertForSequenceClassification(config),
                  TrainingArguments(sys.argv[1], use_cpu=True, num_train_epochs=1, per_device_train_batch_size=4, report_to=[],
                                    save_strategy="no"), train_dataset=data)
trainer.train()
weights = trainer.model.classifier.weight.detach().reshape(1, -1)
everyone = trainer.accelerator.gather(weights)
same = bool((everyone == everyone[0]).all())
print("trained", trainer.args.process_index, trainer.args.world_size, trainer.state.global_step, len(everyone), same, flush=True)
"""

LIGHTNING = """
import lightning
import torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def training_step(self, batch, _):
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.layer(inputs), labels)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
lightning.seed_everything(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, enable_progress_bar=False, logger=False,
                            enable_checkpointing=False)
model = Model()
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
everyone = trainer.strategy.all_gather(model.layer.weight.detach().reshape(-1))
same = bool((everyone == everyone[0]).all())
print("trained", trainer.global_rank, trainer.world_size, trainer.global_step, len(everyone), same, flush=True)
"""

DEEPSPEED = """
import sys
import deepspeed
import torch
import torch.distributed as dist
deepspeed.init_distributed(dist_backend=sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": int(sys.argv[1])},
          "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}}
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(4):
    inputs, labels = torch.randn(8, 4, generator=generator), torch.randint(0, 2, (8,), generator=generator)
    engine.backward(torch.nn.functional.cross_entropy(engine(inputs), labels))
    engine.step()
with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
    own = torch.cat([parameter.detach().reshape(-1) for parameter in engine.module.parameters()])
everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
dist.all_gather(everyone, own)
same = all(bool((one == own).all()) for one in everyone) and bool(own.abs().sum() > 0)
print("trained", dist.get_rank(), dist.get_world_size(), engine.global_steps, len(everyone), same, flush=True)
dist.destroy_process_group()
"""


def missing(*packages):
    return [package for package in packages if importlib.util.find_spec(package) is None]


def has_backend():
    """Whether this torch lets Python define a backend."""
    import torch
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 1)


class TrainersTest(processes.TestCase):
    def trained(self, text, *arguments):
        self.trained_with([], text, *arguments)
        if has_backend():
            self.trained_with(["--torch-backend", "coordd"], text, *arguments)

    def trained_with(self, flags, text, *arguments):
        """Each worker's rank, world size, steps, workers whose weights it has seen, and whether these are equal."""
        script = os.path.join(self.folder, "program.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write(text)
        package = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(HERE))), "client", "python")
        environment = clean_environment(TMPDIR=self.folder, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PYTHONPATH=package, DS_ACCELERATOR="cpu",
                                        COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"))
        run = self.start(processes.Process([program("coordrun"), *flags, "-np", "2", "--", sys.executable, script, *arguments], environment))
        self.assertEqual(run.wait(PATIENCE_S), 0, run.text())
        if "--torch-backend" in flags:
            self.assertNotIn("none of which has joined", run.text())  # it was coordd that carried it
        found = re.findall(r"trained (\d+) (\d+) (\d+) (\d+) (\w+)\n", run.text())
        self.assertEqual(len(found), 2, run.text())
        self.assertEqual(sorted(int(rank) for rank, *_ in found), [0, 1], run.text())
        # 64 (or 32) examples in batches of 8 (or 4), half of them for each.
        for _, size, steps, seen, same in found:
            self.assertEqual((size, steps, seen, same), ("2", "4", "2", "True"), run.text())
        self.assert_nothing_left()

    @unittest.skipIf(missing("torch", "accelerate"), "needs accelerate from PyPI")
    def test_accelerate_trains_one_model(self):
        self.trained(ACCELERATE)

    @unittest.skipIf(missing("torch", "transformers", "accelerate"), "needs transformers from PyPI")
    def test_transformers_trainer_trains_one_model(self):
        self.trained(TRAINER, os.path.join(self.folder, "output"))

    @unittest.skipIf(missing("torch", "lightning"), "needs lightning from PyPI")
    def test_lightning_trains_one_model(self):
        self.trained(LIGHTNING)

    @unittest.skipIf(missing("torch", "deepspeed"), "needs deepspeed from PyPI")
    def test_deepspeed_shards_one_model(self):
        for stage in ("2", "3"):  # the optimizer's state and the gradients; the parameters, too
            with self.subTest(stage):
                self.trained(DEEPSPEED, stage, "gloo")
                self.trained_with([], "import coordd.torch.distributed" + DEEPSPEED, stage, "coordd")


if __name__ == "__main__":
    processes.main()
