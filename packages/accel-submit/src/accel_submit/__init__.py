"""Write and submit the job files of schedulers: SLURM, Kubernetes, SageMaker."""

from accel_submit.scheduler import Scheduler, SubmitRequest

__all__ = ["Scheduler", "SubmitRequest"]
