"""Trains a model for each fold of the data, and judges each sample by the model that has not seen it.

accel launch --cpu --num_processes 2 docs/examples/cross_validation.py --folds 5
"""

import argparse

import torch
from accel import Accelerator
from accel.utils import set_seed
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=32, help="samples of a batch, over all processes")
    arguments = parser.parse_args()

    accelerator = Accelerator(split_batches=True)
    bunch = load_digits()
    data = TensorDataset(torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target))
    guessed = torch.empty(len(data), dtype=torch.long)  # of each sample, by the model of another fold
    scores = []
    # A seed: every process has to cut the data alike.
    folds = StratifiedKFold(arguments.folds, shuffle=True, random_state=0)
    for fold, (train, held_out) in enumerate(folds.split(bunch.data, bunch.target)):
        set_seed(fold)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train_loader = DataLoader(Subset(data, train), arguments.batch_size, shuffle=True, drop_last=True)
        test_loader = DataLoader(Subset(data, held_out), 4 * arguments.batch_size)
        model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)

        for _ in range(arguments.epochs):
            for inputs, targets in train_loader:
                loss = nn.functional.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

        found = []
        for inputs, _ in test_loader:
            with torch.no_grad():
                found.append(accelerator.gather_for_metrics(model(inputs).argmax(dim=1)).cpu())
        guessed[held_out] = torch.cat(found)  # in the order of the data, each sample once
        right = guessed[held_out] == data.tensors[1][held_out]
        scores.append(right.double().mean())
        accelerator.print(f"fold {fold}: accuracy {scores[-1]:.2%} of {len(held_out)} samples")
        # The Accelerator forgets this fold. Otherwise it would hold all models and optimizers until the end.
        accelerator.free_memory()

    accuracy = (guessed == data.tensors[1]).double().mean()
    spread = torch.stack(scores).std()
    accelerator.print(f"result: accuracy {accuracy:.2%}, which varies by {spread:.2%} between folds")
    accelerator.end_training()


if __name__ == "__main__":
    main()
