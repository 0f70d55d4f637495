"""Jobs of two machines, started as a user does: a launcher on each, in network namespaces with a cable between."""

import json
import re
import signal
from dataclasses import asdict
from pathlib import Path

import pytest
import restart
from accel_testing import MakePool
from jobs import line_of
from namespaces import Machines, Node, ends
from restart import Plan
from suite.soak import in_soak

STEPS = restart.EPOCHS * -(-restart.SAMPLES // restart.BATCH)

# each rank says what it knows of the job, once all have met
MEETS = """\
import os
import torch
from accel import Accelerator
accelerator = Accelerator()
found = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
# in one piece: two ranks write to one place, and print writes each of its arguments by itself
os.write(1, f"rank {accelerator.process_index} {accelerator.local_process_index} {found}\\n".encode())
accelerator.end_training()
"""
# a training that a rank of is killed in the first of its starts only
ONCE = """\
import json, os, sys
from dataclasses import replace
from pathlib import Path
import restart
plan = restart.Plan(**json.loads(sys.argv[1]))
if os.environ["ACCEL_ATTEMPT"] == "0":
    plan = replace(plan, killed=(1, 10, True))
found = restart.train(plan)
(Path(plan.folder) / f"done-{os.environ['RANK']}").write_text(json.dumps([found.began, found.steps, found.digest]))
"""

# what one process of each machine prints, and the weights that it leaves
LEARNS = """\
import sys
import torch
from accel import Accelerator
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(split_batches=True)
torch.manual_seed(0)
inputs = torch.randn(256, 8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(2):
    for batch, wanted in loader:
        loss = torch.nn.functional.mse_loss(model(batch), wanted)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    mean_loss = accelerator.reduce(loss.detach(), "mean").item()
    if accelerator.is_main_process:
        print(f"epoch {epoch}: loss {mean_loss}")
accelerator.save_model(model, sys.argv[1])
accelerator.end_training()
"""

RAISES = """\
import time
import torch
from accel import Accelerator
accelerator = Accelerator()
for step in range(1000):
    accelerator.gather(torch.ones(2))
    if accelerator.process_index == 1 and step == 5:
        raise ValueError("a bad batch")  # raised
    time.sleep(0.02)
"""

TELLS = """\
import json, os, sys
print(json.dumps({"rank": int(os.environ["RANK"]), "arguments": sys.argv, "environ": dict(os.environ)}), flush=True)
"""


def last_words(words: str) -> str:
    return "\n".join(words.splitlines()[-20:])


@pytest.fixture
def machines(forked_machines: Machines) -> Machines:
    """Machines whose launchers are forked."""
    return forked_machines


def epochs(words: str) -> list[str]:
    return re.findall(r"^epoch .*$", words, re.MULTILINE)


def ranks(words: str) -> list[str]:
    return sorted(line for line in words.splitlines() if line.startswith("rank "))


@pytest.mark.timeout(240)
def test_a_model_learns_on_two_machines_as_on_one(machines: Machines, tmp_path: Path) -> None:
    (machines.folder / "learns.py").write_text(LEARNS)
    alone = machines.start(0, "-n", 2, "learns.py", tmp_path / "alone").end()
    assert alone.code == 0, alone.err
    zero, one = ends(machines.start_both("-n", 2, "learns.py", tmp_path / "two"), 90)
    assert (zero.code, one.code) == (0, 0), zero.err + one.err
    assert len(epochs(alone.out)) == 2
    assert epochs(zero.out) == epochs(alone.out)
    assert epochs(one.out) == []
    weights = [tmp_path / name / "model.safetensors" for name in ("alone", "two")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert machines.processes(0) == machines.processes(1) == []


@pytest.mark.parametrize("told", [False, *in_soak(True)])
def test_machines_meet_with_ranks_and_without(told: bool, machines: Machines) -> None:
    """If no machine is told its rank, they have ranks as they come."""
    (machines.folder / "meets.py").write_text(MEETS)
    words = [word for word in machines.place(0) if told or word not in ("--machine_rank", 0)]
    (machines.folder / "temporary").mkdir()
    temporary = {"TMPDIR": str(machines.folder / "temporary")}
    jobs = [
        machines.start(
            at,
            *(machines.place(at) if told else words),
            "-n",
            2,
            "--rdzv_backend",
            "c10d",
            "meets.py",
            environ=temporary,
        )
        for at in (0, 1)
    ]
    zero, one = ends(jobs)
    assert (zero.code, one.code) == (0, 0), zero.err + one.err
    assert sorted(ranks(zero.out) + ranks(one.out)) == ["rank 0 0 [0, 1]", "rank 1 0 [0, 1]"]
    assert list((machines.folder / "temporary").iterdir()) == []


def slurm(number: int, nodes: tuple[Node, Node], tasks: int = 2) -> dict[str, str]:
    """What SLURM says to a task of a step with one task on each of two nodes."""
    hosts = ",".join(node.host for node in nodes)
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": hosts}
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": hosts}
    step |= {"SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_STEP_TASKS_PER_NODE": f"{tasks // 2}(x2)"}
    task = {"SLURM_PROCID": str(number), "SLURM_LOCALID": "0", "SLURM_NODEID": str(number), "SLURM_NTASKS": str(tasks)}
    return {**job, **step, **task}


@pytest.mark.parametrize(("words", "each"), [((), 1), (("-n", "4"), 2)])
def test_tasks_of_a_slurm_step_find_each_other(words: tuple[str, ...], each: int, machines: Machines) -> None:
    """S110, T19: nothing is said but the script, or the number of all processes."""
    (machines.folder / "meets.py").write_text(MEETS)
    jobs = [machines.start(at, *words, "meets.py", environ=slurm(at, machines.nodes)) for at in (0, 1)]
    for at, done in enumerate(ends(jobs)):
        assert done.code == 0, done.err
        everyone = list(range(2 * each))
        assert ranks(done.out) == [f"rank {at * each + local} {local} {everyone}" for local in range(each)], repr(done)


def test_a_job_that_lost_a_rank_ends_with_the_bits_of_the_unbroken_job(
    world: MakePool, machines: Machines, tmp_path: Path
) -> None:
    """A3: the rank is killed, both machines start again, and the job goes on from its checkpoint."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole = world(2).run(restart.train, Plan(str(tmp_path / "whole"), workers=0))
    plan = Plan(str(tmp_path / "killed"), workers=0)
    script = tmp_path / "once.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(Path(restart.__file__).parent)!r})\n{ONCE}")
    zero, one = ends(machines.start_both("-n", 2, "--max_restarts", 3, script, json.dumps(asdict(plan))))
    assert (zero.code, one.code) == (0, 0), zero.err + one.err
    assert "on machine 1, node2:" in zero.err
    assert "rank 1 of 2" in zero.err
    assert "was killed by SIGKILL" in zero.err
    assert "starts again at once (1 of 3 times)" in zero.err
    for rank, unbroken in enumerate(whole):
        began, steps, digest = json.loads((tmp_path / "killed" / f"done-{rank}").read_text())
        assert 0 < began < 10
        assert (steps, digest) == (STEPS, unbroken.digest)


def test_an_exception_is_told_on_both_machines_with_its_line_and_host(machines: Machines) -> None:
    script = machines.folder / "raises.py"
    script.write_text(RAISES)
    zero, one = ends(machines.start_both("-n", 2, script))
    for done in (zero, one):
        said = last_words(done.err)
        assert done.code == 1, said
        assert "ValueError: a bad batch" in said, done.err
        assert line_of(script, "raised") in said, done.err
        assert "accel: rank 1 of 2" in said, done.err
    assert "accel: on machine 1, node2:" in last_words(zero.err), zero.err
    # rank 0 either was ended by its launcher, or saw first by itself that rank 1 is gone
    assert "ended here because of it: rank 0" in last_words(zero.err) or "PeerLost: rank 0" in zero.err, zero.err


@pytest.mark.parametrize("told", [0, *in_soak(1)])
def test_a_signal_to_one_launcher_stops_both_machines_with_a_checkpoint(
    told: int, machines: Machines, tmp_path: Path
) -> None:
    """T9 over machines."""
    plan = Plan(str(tmp_path / "job"), workers=0, asks=True, pause_s=0.05, epochs=50, signals=("SIGTERM",))
    folder = Path(plan.folder)
    folder.mkdir()
    jobs = machines.start_both("-n", 2, Path(restart.__file__), json.dumps(asdict(plan)))
    machines.wait_for(lambda: (folder / "at-0").exists() and (folder / "at-1").exists())
    jobs[told].process.send_signal(signal.SIGTERM)
    for done in ends(jobs):
        assert done.code == 75, done.err
        assert "was asked to stop" in done.err
    steps = [int((folder / f"stopped-{rank}").read_text()) for rank in (0, 1)]
    assert steps[0] == steps[1]
    saved = sorted((folder / "checkpoints").iterdir())
    assert saved, "there is no checkpoint"


def test_what_a_dry_run_prints_is_what_is_started(machines: Machines) -> None:
    """Its commands and environment are those of the processes, but for the numbers that the system gives."""
    (machines.folder / "tell.py").write_text(TELLS)
    for number in (1, 0):
        machines.start(number, *machines.place(number), "-n", 4, "--dry_run", "--explain", "tell.py", "x y")
    dry = ends(machines.jobs[::-1])
    real = ends(machines.start_both("-n", 4, "tell.py", "x y"))
    for number, (said, done) in enumerate(zip(dry, real, strict=True)):
        assert (said.code, done.code) == (0, 0), said.err + done.err
        assert f"machines: 2, this is machine {number}; they meet at 10.77.0.1:29500" in said.err
        assert "processes: 2 here" in said.err
        told = {line["rank"]: line for line in map(json.loads, done.out.splitlines())}
        assert sorted(told) == [2 * number, 2 * number + 1]
        for rank, (command, given) in announced(said.out).items():
            assert command.endswith("tell.py 'x y'")
            assert told[rank]["arguments"] == ["tell.py", "x y"]
            environ = told[rank]["environ"]
            for name, value in given.items():
                assert environ[name] == value or value.startswith("(a"), (rank, name)


def announced(words: str) -> dict[int, tuple[str, dict[str, str]]]:
    """What a dry run says of each rank: its command, and what is new in its environment."""
    found: dict[int, tuple[str, dict[str, str]]] = {}
    for line in words.splitlines():
        if line.startswith("rank "):
            number, _, command = line.removeprefix("rank ").partition(": ")
            given: dict[str, str] = {}
            found[int(number)] = command, given
        elif "=" in line:
            name, _, value = line.strip().partition("=")
            given[name] = value
    return found
