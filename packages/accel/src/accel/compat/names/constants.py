"""Names of files that Accelerate's checkpoints have: what `load_state` reads of them, and other tools look for."""

from accel_state.distributed_type import DistributedType

MODEL_NAME = "pytorch_model"
SAFE_MODEL_NAME = "model"
OPTIMIZER_NAME = "optimizer"
SCHEDULER_NAME = "scheduler"
SAMPLER_NAME = "sampler"
SCALER_NAME = "scaler.pt"
RNG_STATE_NAME = "random_states"
PROFILE_PATTERN_NAME = "profile_{suffix}.json"
WEIGHTS_NAME = "pytorch_model.bin"
WEIGHTS_PATTERN_NAME = "pytorch_model{suffix}.bin"
WEIGHTS_INDEX_NAME = "pytorch_model.bin.index.json"
SAFE_WEIGHTS_NAME = "model.safetensors"
SAFE_WEIGHTS_PATTERN_NAME = "model{suffix}.safetensors"
SAFE_WEIGHTS_INDEX_NAME = "model.safetensors.index.json"
FSDP_MODEL_NAME = "pytorch_model_fsdp"
#: the kinds of set-up whose exchanges are torch's
TORCH_DISTRIBUTED_OPERATION_TYPES = [
    *(str(kind) for kind in DistributedType if kind not in (DistributedType.NO, DistributedType.XLA)),
    "TP",
]
