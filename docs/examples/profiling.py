"""Measures where the time of training goes: a trace for each process, and a table of the main process.

accel launch --cpu --num_processes 2 docs/examples/profiling.py
"""

import argparse
from pathlib import Path

import torch
from accel import Accelerator, ProfileKwargs
from accel.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.profiler import record_function
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4, help="steps that are measured, after two that are not")
    parser.add_argument("--output", type=Path, default=Path("runs/traces"))
    arguments = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    bunch = load_digits()
    data = TensorDataset(torch.tensor(bunch.data, dtype=torch.float32) / 16, torch.tensor(bunch.target))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=32, shuffle=True))

    # The first steps reserve memory and fill caches, so they tell nothing about the others.
    settings = ProfileKwargs(
        schedule_option={"wait": 1, "warmup": 1, "active": arguments.steps, "repeat": 1},
        profile_memory=True,
        output_trace_dir=arguments.output,
    )
    batches = iter(loader)
    with accelerator.profile(settings) as profile:
        for _ in range(2 + arguments.steps):
            with record_function("read"):
                inputs, targets = next(batches)
            with record_function("forward"):
                loss = nn.functional.cross_entropy(model(inputs), targets)
            with record_function("backward"):
                accelerator.backward(loss)
            with record_function("update"):
                optimizer.step()
                optimizer.zero_grad()
            profile.step()  # the schedule counts by it
    accelerator.wait_for_everyone()  # every trace is written

    totals = profile.key_averages()
    accelerator.print(totals.table(sort_by="self_cpu_time_total", row_limit=8, max_name_column_width=40))
    mine = {event.key: event.cpu_time_total / 1000 / arguments.steps for event in totals}
    stages = ("read", "forward", "backward", "update")
    everywhere = accelerator.gather(torch.tensor([[mine[stage] for stage in stages]], device=accelerator.device))
    for rank, times in enumerate(everywhere.tolist()):
        row = ", ".join(f"{stage} {time_ms:.2f} ms" for stage, time_ms in zip(stages, times, strict=True))
        accelerator.print(f"process {rank}: {row}")
    traces = sorted(path.name for path in arguments.output.glob("profile_*.json"))
    accelerator.print(f"result: {len(traces)} traces for ui.perfetto.dev: {', '.join(traces)}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
