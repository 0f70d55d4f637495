"""Every Python block of the five documents runs as written, on one process and on two."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import seed_blocks
import torch
from accel import Accelerator
from accel.utils import load_checkpoint_in_model
from accel_testing import MakePool
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

Names = dict[str, Any]


def made_up(samples: int = 10) -> Names:
    """Models and data under all the names that the documents use."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    data = TensorDataset(torch.randn(samples, 3), torch.randint(2, (samples,)))
    loader = DataLoader(data, batch_size=2)
    return {
        "my_model": model,
        "model": model,
        "my_optimizer": optimizer,
        "optimizer": optimizer,
        "my_training_dataloader": loader,
        "training_dataloader": loader,
        "train_dataloader": loader,
        "scheduler": scheduler,
        "lr_scheduler": scheduler,
        "my_loss_function": nn.functional.cross_entropy,
        "loss_function": nn.functional.cross_entropy,
        "data": data,
    }


def run(block: str, names: Names) -> Names:
    exec(compile(block, "<seed>", "exec"), names)
    return names


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def require_trained(names: Names, model: str = "model") -> None:
    """The weights have moved, and are those of the other rank."""
    accelerator = names["accelerator"]
    now = weights(names[model])
    assert not torch.equal(now, weights(made_up()["model"])), "nothing was trained"
    assert torch.equal(accelerator.reduce(now, "max"), accelerator.reduce(now, "min"))


def index_page() -> None:
    for block in (seed_blocks.INDEX_WITHOUT_PLACEMENT, seed_blocks.INDEX_WITH_PLACEMENT):
        require_trained(run(block, made_up()), "my_model")


def launch_blog() -> None:
    for block in (seed_blocks.BLOG_WITH_TO_DEVICE, seed_blocks.BLOG_WITHOUT_TO_DEVICE):
        data = made_up()["data"]
        names = run(block, {"make_model": lambda: made_up()["model"], "load_dataset": lambda name, data=data: data})
        require_trained(names)
        run(seed_blocks.BLOG_MAIN_PROCESS, names)
        assert names.get("evaluated_here", False) == bool(names["accelerator"].is_main_process)
        computed: list[Any] = []
        names |= {
            "np": np,
            "eval_dataloader": DataLoader(data, batch_size=3),
            "metric_compute": lambda predictions, labels, to=computed: to.append((predictions.shape, labels.tolist())),
        }
        run(seed_blocks.BLOG_EVALUATION, names)
        assert computed == [((10, 2), data.tensors[1].tolist())]


class Classifier(nn.Module):
    """Takes `**batch` and returns an object with a `.loss`, as models of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    @classmethod
    def from_pretrained(cls, checkpoint: str, num_labels: int) -> "Classifier":
        return cls()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        logits = self.layer(inputs)
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


class Examples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        inputs, labels = self.data[index]
        return {"inputs": inputs, "labels": labels}


def linear_schedule(name: str, optimizer: Any, num_warmup_steps: int, num_training_steps: int) -> LambdaLR:
    assert name == "linear"
    return LambdaLR(optimizer, lambda step: max(0.0, 1 - step / num_training_steps))


def hindi_tutorial() -> None:
    from tqdm import tqdm

    loader = DataLoader(Examples(made_up()["data"]), batch_size=2, shuffle=True)
    names = run(
        seed_blocks.HINDI_TRAINING,
        {
            "AutoModelForSequenceClassification": Classifier,
            "checkpoint": "none",
            "AdamW": AdamW,
            "get_scheduler": linear_schedule,
            "tqdm": tqdm,
            "train_dataloader": loader,
            "eval_dataloader": loader,
        },
    )
    assert names["progress_bar"].n == names["num_training_steps"] == 3 * len(names["train_dataloader"])
    assert names["lr_scheduler"].get_last_lr() == [0.0]


def notebook() -> None:
    made: list[int] = []
    run(seed_blocks.HINDI_NOTEBOOK, {"training_function": lambda: made.append(Accelerator().num_processes)})
    assert made == [1]


def quick_tour(folder: Path) -> None:
    names = run(seed_blocks.TOUR_PREPARE, made_up())
    added: list[tuple[int, int]] = []
    metric = SimpleNamespace(add_batch=lambda one, other: added.append((len(one), len(other))))
    names |= {"validation_dataloader": DataLoader(names["data"], batch_size=2), "metric": metric}
    run(seed_blocks.TOUR_EVALUATION, names)
    assert sum(one for one, _ in added) == 10
    assert run(seed_blocks.TOUR_KIND, names)["shapes"] == "dynamic"
    names |= {"server": [], "overall": [], "args": SimpleNamespace(max_train_steps=5)}
    run(seed_blocks.TOUR_PROCESSES, names)
    accelerator = names["accelerator"]
    assert accelerator.reduce(torch.tensor([len(names["server"]), len(names["overall"])])).tolist() == [1, 1]
    assert names["progress_bar"].disable == (not accelerator.is_local_main_process)
    plain = accelerator.unwrap_model(names["model"])
    names |= {
        "os": os,
        "torch": torch,
        "save_directory": str(folder),
        "unwrapped_model": plain,
        "device": accelerator.device,
        "load_checkpoint_in_model": load_checkpoint_in_model,
    }
    before = weights(plain)
    run(seed_blocks.TOUR_SAVING, names)
    assert torch.equal(weights(plain), before)
    inputs, targets = names["data"][:4]
    names |= {
        "outputs": names["model"](inputs),
        "target": targets,
        "complex_loss_function": nn.functional.cross_entropy,
    }
    rate = names["lr_scheduler"].get_last_lr()
    run(seed_blocks.TOUR_PRECISION, names)
    assert names["lr_scheduler"].get_last_lr() != rate
    require_trained(names)


def accumulation() -> None:
    require_trained(run(seed_blocks.TOUR_ACCUMULATION, made_up() | {"Accelerator": Accelerator}))


def migration_page() -> None:
    require_trained(run(seed_blocks.MIGRATION, made_up()))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "document", [index_page, launch_blog, hindi_tutorial, accumulation, migration_page], ids=lambda one: one.__name__
)
def test_the_blocks_of_a_document_run(world: MakePool, document: Callable[[], None], size: int) -> None:
    """S1, S2, S3, S12, S13, S19, S20, S62, S64, S76, S77, S81, S96: the documents' own code."""
    world(size).run(document)


@pytest.mark.parametrize("size", [1, 2])
def test_the_quick_tour_runs(world: MakePool, tmp_path: Path, size: int) -> None:
    """S26, S37, S69, S72, S79, S82, S83, S84, S87, S88, S90, S91, S95: block after block in one session."""
    world(size).run(quick_tour, tmp_path)


def test_a_notebook_cell_runs(world: MakePool) -> None:
    """S112: without a number of processes and without accelerators, one process."""
    world(1, join=False).run(notebook)


ACCELERATE_ONLY = ("accelerate.", "from accelerate")


def test_the_blocks_name_this_package_only() -> None:
    """S15: a script moves by changing its import."""
    for name in dir(seed_blocks):
        if name.isupper():
            assert not any(word in getattr(seed_blocks, name) for word in ACCELERATE_ONLY), name
