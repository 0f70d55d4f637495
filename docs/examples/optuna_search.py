"""Looks for the best settings with Optuna: one study, whose trials all processes train together.

pip install optuna
accel launch --cpu --num_processes 2 docs/examples/optuna_search.py --storage sqlite:///search.db
"""

import argparse
from typing import Any

import optuna
import torch
from accel import Accelerator
from accel.utils import broadcast_object_list, set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HELD_OUT = 360


def choose(trial: optuna.Trial) -> dict[str, Any]:
    """The settings of a trial."""
    return {
        "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        "width": trial.suggest_categorical("width", [16, 64, 256]),
        "weight_decay": trial.suggest_float("weight_decay", 1e-4, 1.0, log=True),
    }


def train(accelerator: Accelerator, settings: dict[str, Any], epochs: int, trial: optuna.Trial | None) -> float:
    """The accuracy on held-out data; less training if the study gives the trial up."""
    set_seed(0)
    bunch = load_digits()
    data = TensorDataset(torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target))
    parts = [len(data) - HELD_OUT, HELD_OUT]
    train_data, test_data = torch.utils.data.random_split(data, parts, generator=torch.Generator().manual_seed(0))
    width = settings["width"]
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"])
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model,
        optimizer,
        DataLoader(train_data, batch_size=32, shuffle=True, drop_last=True),
        DataLoader(test_data, batch_size=128),
    )
    for epoch in range(epochs):
        model.train()
        for inputs, targets in train_loader:
            accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        correct = 0
        for inputs, targets in test_loader:
            with torch.no_grad():
                right = model(inputs).argmax(dim=1) == targets
            correct += int(accelerator.gather_for_metrics(right).sum())
        accuracy = correct / HELD_OUT
        if trial is not None:  # on the main process
            trial.report(accuracy, epoch)
            if trial.should_prune():
                accelerator.set_trigger()
        if accelerator.check_trigger():  # on all processes
            break
    accelerator.free_memory()
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a trial")
    parser.add_argument("--storage", help="a database of Optuna's: a search that is started again goes on")
    arguments = parser.parse_args()

    accelerator = Accelerator(split_batches=True)
    study = None
    if accelerator.is_main_process:  # which alone asks Optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            study_name="digits",
            storage=arguments.storage,
            load_if_exists=True,
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=0),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
        )
    for number in range(arguments.trials):
        trial = None if study is None else study.ask()
        settings = broadcast_object_list([None if trial is None else choose(trial)])[0]
        accuracy = train(accelerator, settings, arguments.epochs, trial)
        if study is not None and trial is not None:
            study.tell(trial, accuracy)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in settings.items())
        accelerator.print(f"trial {number}: accuracy {accuracy:.2%} with {shown}")
    if study is not None:
        print(f"result: accuracy {study.best_value:.2%} in trial {study.best_trial.number} of {len(study.trials)}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
