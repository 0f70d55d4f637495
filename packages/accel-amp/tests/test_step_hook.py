"""Methods are called before steps as long as their objects are there, and no step fails when an object goes."""

import gc
import weakref

import torch
from accel_amp.step_hook import call_before_steps
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import _global_optimizer_pre_hooks


class Watcher:
    def __init__(self) -> None:
        self.steps = 0
        self.others: list[Watcher] = []
        call_before_steps(self.note)

    def note(self, optimizer: Optimizer) -> None:
        self.steps += 1
        self.others.clear()


def step() -> None:
    SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()


def test_an_object_that_goes_during_a_step_does_not_fail_it() -> None:
    first = Watcher()
    first.others = [Watcher()]
    gone = weakref.ref(first.others[0])
    step()
    assert gone() is None
    step()
    assert first.steps == 2


def test_hooks_of_objects_that_are_gone_do_not_add_up() -> None:
    gc.collect()
    watchers = [Watcher() for _ in range(5)]
    most = len(_global_optimizer_pre_hooks)
    for _ in range(20):
        Watcher()
    watchers.clear()
    kept = Watcher()
    assert len(_global_optimizer_pre_hooks) <= most - 4
    step()
    assert kept.steps == 1
