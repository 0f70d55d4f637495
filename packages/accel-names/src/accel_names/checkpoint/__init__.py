"""Read and write files of checkpoints as Accelerate has them."""
