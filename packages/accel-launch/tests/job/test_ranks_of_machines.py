"""Which ranks the processes of the second machine of a job have, and that the store is none of theirs."""

from accel_launch.cli.options import LaunchSettings
from accel_launch.job.plan import HostInfo, ProcessSpec, RendezvousInfo, plan_many

#: the second machine of three, after 2 processes of the first, with 3 of its own, of 6 in all
SECOND = RendezvousInfo(4001, None, 4002, "10.0.0.1", machine=1, first=2, world=6)


def planned(meeting: RendezvousInfo) -> list[ProcessSpec]:
    return plan_many(LaunchSettings(), ("py", "s.py"), {}, count=3, host=HostInfo(8, 0), meeting=meeting)


def test_ranks_count_through_all_machines_and_local_ranks_anew() -> None:
    specs = planned(SECOND)
    assert [spec.rank for spec in specs] == [2, 3, 4]
    assert [spec.environ["RANK"] for spec in specs] == ["2", "3", "4"]
    assert [spec.environ["LOCAL_RANK"] for spec in specs] == ["0", "1", "2"]
    for name, value in (("WORLD_SIZE", "6"), ("LOCAL_WORLD_SIZE", "3"), ("GROUP_RANK", "1")):
        assert {spec.environ[name] for spec in specs} == {value}


def test_the_first_process_of_a_later_machine_opens_no_store() -> None:
    """Even if this machine had a descriptor to give."""
    specs = planned(RendezvousInfo(4001, 7, 4002, "10.0.0.1", machine=1, first=2, world=6))
    assert [spec.descriptors for spec in specs] == [(), (), ()]
    assert not [spec for spec in specs if "ACCEL_STORE_FD" in spec.environ]
    assert {spec.environ["ACCEL_STORE_PORT"] for spec in specs} == {"4001"}


def test_rank_0_alone_opens_the_store() -> None:
    specs = planned(RendezvousInfo(4001, 7, 4002, "10.0.0.1", world=6))
    assert [spec.descriptors for spec in specs] == [(7,), (), ()]
    assert [spec.environ.get("ACCEL_STORE_FD") for spec in specs] == ["7", None, None]
