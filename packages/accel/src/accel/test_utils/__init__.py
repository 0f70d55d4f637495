"""The names that tests for Accelerate import from `test_utils`."""

from accel_names.testing import DEFAULT_LAUNCH_COMMAND as DEFAULT_LAUNCH_COMMAND
from accel_names.testing import are_the_same_tensors as are_the_same_tensors
from accel_names.testing import assert_exception as assert_exception
from accel_names.testing import device_count as device_count
from accel_names.testing import execute_subprocess_async as execute_subprocess_async
from accel_names.testing import get_launch_command as get_launch_command
from accel_names.testing import require_bnb as require_bnb
from accel_names.testing import require_cpu as require_cpu
from accel_names.testing import require_huggingface_suite as require_huggingface_suite
from accel_names.testing import require_multi_device as require_multi_device
from accel_names.testing import require_non_cpu as require_non_cpu
from accel_names.testing import require_single_device as require_single_device
from accel_names.testing import slow as slow
from accel_names.testing import torch_device as torch_device
from accel_names.toy_regression import RegressionDataset as RegressionDataset
from accel_names.toy_regression import RegressionModel as RegressionModel
