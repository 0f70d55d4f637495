"""Names that tests and test scripts for Accelerate import from `test_utils`."""

from accel.compat.names.toy_regression import RegressionDataset as RegressionDataset
from accel.compat.names.toy_regression import RegressionModel as RegressionModel
from accel.compat.names.trials import DEFAULT_LAUNCH_COMMAND as DEFAULT_LAUNCH_COMMAND
from accel.compat.names.trials import are_the_same_tensors as are_the_same_tensors
from accel.compat.names.trials import assert_exception as assert_exception
from accel.compat.names.trials import device_count as device_count
from accel.compat.names.trials import execute_subprocess_async as execute_subprocess_async
from accel.compat.names.trials import get_launch_command as get_launch_command
from accel.compat.names.trials import require_bnb as require_bnb
from accel.compat.names.trials import require_cpu as require_cpu
from accel.compat.names.trials import require_huggingface_suite as require_huggingface_suite
from accel.compat.names.trials import require_multi_device as require_multi_device
from accel.compat.names.trials import require_non_cpu as require_non_cpu
from accel.compat.names.trials import require_single_device as require_single_device
from accel.compat.names.trials import slow as slow
from accel.compat.names.trials import torch_device as torch_device
