"""Trains a classifier of handwritten digits in the tasks of a Spark job, and resumes if a task is lost.

spark-submit --master 'local[2]' spark_torch.py --workers 2
"""

import argparse
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession


def train(epochs: int, gpu: bool, output: str) -> None:
    """The loop of each process. Spark sends this function, so that it imports what it needs."""
    import torch
    from accel import Accelerator, ProjectConfiguration
    from accel.utils import set_seed
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(
        cpu=not gpu,
        split_batches=True,
        project_dir=output,  # a folder that all machines see
        project_config=ProjectConfiguration(automatic_checkpoint_naming=True, total_limit=2),
    )
    set_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader: Any = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.resume()  # from the newest checkpoint, if a task was lost
    for epoch in range(loader.iteration, epochs):
        total = torch.zeros((), device=accelerator.device)
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        mean = accelerator.reduce(total / len(loader), "mean").item()
        accelerator.print(f"epoch {epoch}: loss {mean:.6f}")
        accelerator.save_state()
    accelerator.end_training()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--retries", type=int, default=3, help="how often to go on if a task is lost")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each process")
    parser.add_argument("--output", type=Path, default=Path("runs/spark"))
    arguments = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    distributor = TorchDistributor(num_processes=arguments.workers, local_mode=False, use_gpu=arguments.gpu)
    for again in (*[True] * arguments.retries, False):
        try:
            distributor.run(train, arguments.epochs, arguments.gpu, str(arguments.output.absolute()))
            break
        except Py4JJavaError as error:  # Spark starts the tasks of such a stage once
            if not again:
                raise
            print(f"a task was lost; the next try begins at the newest checkpoint: {error.java_exception.getMessage()}")
    spark.stop()


if __name__ == "__main__":
    main()
