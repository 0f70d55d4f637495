"""A new kind of hardware needs no change in accel: few files name one that there is, and each has its reason."""

import ast
import re

from repository import ROOT, all_sources, tree_of

VENDORS = re.compile(r"nvidia|cuda|rocm|\bhip\b|\b[nxhm]pu\b|\bmlu\b|habana|ascend|\bmps\b|\bxla\b", re.IGNORECASE)
PLUG_INS = (
    *("devices/torch_accelerator.py", "devices/xla.py", "devices/_xla_group.py", "devices/__init__.py"),
    "strategies/spmd.py",
)
#: files beside the plug-ins, and what of one vendor they cannot ask torch for in general
REASONS = {
    "accel_names/availability.py": "answers is_rocm_available, which scripts for Accelerate ask",
    "accel_names/constants.py": "kinds of set-up whose exchanges are torch's",
    "accel_names/testing/skips.py": "skips tests for Accelerate by the device that they name",
    "accel_names/enumerations.py": "names of compilers in scripts for Accelerate",
    "accel_amp/precisions/bf16.py": "torch tells only of CUDA if it emulates bfloat16",
    "accel_amp/precisions/fp16.py": "XLA has no loss scaler",
    "accel_amp/precisions/fp8.py": "torchao's float8 products are kernels of CUDA",
    "accel_amp/first_step.py": "to read a number cuts the graph of XLA",
    "accel_amp/window_scaling.py": "MPS has no float64",
    "accel_big/maps/check_map.py": "what the index of an accelerator means on a machine without any",
    "accel_checkpoint/async_writer.py": "pinned memory and streams of CUDA",
    "accel_checkpoint/memory/pinned_memory.py": "pinned memory and streams of CUDA",
    "accel_data/loaders/device_prefetch.py": "XLA has no streams",
    "accel_launch/cli/commands/env.py": "prints what a report of a defect needs",
    "accel_launch/config/option_entries.py": "a mode of torch.compile",
    "accel_launch/job/affinity.py": "the driver's list of where GPUs are",
    "accel_launch/job/plan.py": "variables that hide GPUs",
    "accel_launch/job/visible_devices.py": "variables that hide GPUs",
    "accel_ops/xla_graphs.py": "only XLA compiles what loops do",
    "accel_ops/rng.py": "names of generators in scripts for Accelerate",
    "accel_deepspeed/strategy.py": "DeepSpeed runs on some",
    "accel_parallel/rank_zero_source.py": "pinned memory of CUDA",
    "accel_parallel/strategies/fsdp2.py": "fully_shard does not run on these",
    "accel_rehearse/fake_dispatch.py": "torch's settings by which products of float32 are of TF32",
    "accel_state/distributed_type.py": "values of Accelerate's enumeration",
    "accel_comm/process_group.py": "an option of NCCL",
    "accel_state/run_context.py": "variables that hide GPUs",
    "accel_comm/transports/collective_work.py": "XLA has no streams",
    "accel_parallel/strategies/ddp.py": "XLA averages gradients in the graph of a step",
    "accel_comm/transports/device_work.py": "asks the driver, without waiting for the device",
    "accel_submit/kubernetes.py": "the resource that a pod asks for",
    "accel_testing/seeds.py": "generators that tests seed",
}


def names_a_vendor(tree: ast.Module) -> bool:
    """Whether code does, apart from docstrings and comments."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    words = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
    words += [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return any(VENDORS.search(word) for word in words)


def test_no_file_names_a_vendor_without_a_reason() -> None:
    """T37."""
    naming = {
        path.relative_to(ROOT).as_posix().partition("/src/")[2]
        for path in all_sources()
        if not path.as_posix().endswith(PLUG_INS) and names_a_vendor(tree_of(path))
    }
    unexplained = sorted(naming - REASONS.keys())
    assert not unexplained, f"ask torch.accelerator, or write a plug-in (accel.devices): {unexplained}"
    assert not REASONS.keys() - naming, "these name no vendor any more"


def test_a_name_of_a_vendor_is_found() -> None:
    assert names_a_vendor(ast.parse("if tensor.is_cuda: pass"))
    assert names_a_vendor(ast.parse("kind == 'npu'"))
    assert not names_a_vendor(ast.parse("def move():\n    'Moves to CUDA.'"))
