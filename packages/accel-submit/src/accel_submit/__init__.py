"""Writes and submits the job files of schedulers: SLURM, Kubernetes, SageMaker."""

from accel_submit.scheduler import JobFile, Scheduler, SubmitRequest

__all__ = ["JobFile", "Scheduler", "SubmitRequest"]
