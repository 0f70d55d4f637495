"""The functions for models bigger than memory, under the path that scripts import them from."""

from accel_big import cpu_offload as cpu_offload
from accel_big import cpu_offload_with_hook as cpu_offload_with_hook
from accel_big import disk_offload as disk_offload
from accel_big import dispatch_model as dispatch_model
from accel_big import infer_auto_device_map as infer_auto_device_map
from accel_big import load_checkpoint_and_dispatch as load_checkpoint_and_dispatch
from accel_big import load_checkpoint_in_model as load_checkpoint_in_model
from accel_names.casting import attach_layerwise_casting_hooks as attach_layerwise_casting_hooks
from accel_names.models import (
    _refuse_recurrent_layers_under_sequence_parallelism as _refuse_recurrent_layers_under_sequence_parallelism,
)
from accel_parallel import init_empty_weights as init_empty_weights
from accel_parallel import init_on_device as init_on_device
