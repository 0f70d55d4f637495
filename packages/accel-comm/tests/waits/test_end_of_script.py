"""How a script ends if threads of gloo are still at work."""

import subprocess
import sys
from pathlib import Path

LETS_GO_LATE = """\
import sys, weakref
import torch
import torch.distributed as dist
from accel_comm.process_group import GroupOptions, open_group

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
open_group(0, 1, "gloo", GroupOptions(), dist.HashStore)
sys.setswitchinterval(60)  # seconds in which no other thread gets the interpreter unless this one hands it over
held = False
while not held:
    x = torch.ones(1)
    last = weakref.ref(x)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass
    del x, work
    held = last() is not None  # by gloo's thread, which now needs the interpreter to free the tensor
print("held")
"""


def test_a_script_ends_well_if_gloo_still_holds_a_tensor(tmp_path: Path) -> None:
    """Python ends threads that want the interpreter at its end, and the end of gloo's aborts the process."""
    script = tmp_path / "late.py"
    script.write_text(LETS_GO_LATE)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr
