"""The hooks of modules, under the path that scripts import them from."""

from accel_big import AlignDevicesHook as AlignDevicesHook
from accel_big import CpuOffload as CpuOffload
from accel_big import ModelHook as ModelHook
from accel_big import SequentialHook as SequentialHook
from accel_big import UserCpuOffloadHook as UserCpuOffloadHook
from accel_big import add_hook_to_module as add_hook_to_module
from accel_big import attach_align_device_hook as attach_align_device_hook
from accel_big import attach_align_device_hook_on_blocks as attach_align_device_hook_on_blocks
from accel_big import attach_execution_device_hook as attach_execution_device_hook
from accel_big import remove_hook_from_module as remove_hook_from_module
from accel_big import remove_hook_from_submodules as remove_hook_from_submodules
