"""Run a training script as one rank of many, without the other ranks and without a device."""
