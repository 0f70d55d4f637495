import pytest
from accel_state import Rendezvous, TopologyError
from accel_state.environments.elastic import Elastic

TWO = {"RANK": "1", "WORLD_SIZE": "2"}
ADDRESS = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def meeting(environ: dict[str, str]) -> Rendezvous | None:
    topology = Elastic.topology(environ)
    assert topology is not None
    return topology.rendezvous


def test_it_is_silent_without_its_variables() -> None:
    assert Elastic.topology({"LOCAL_RANK": "0", "MASTER_ADDR": "node0"}) is None


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"RANK": "0"}, "RANK='0', WORLD_SIZE is missing"),
        ({"WORLD_SIZE": "2"}, "RANK is missing, WORLD_SIZE='2'"),
        (
            TWO | {"LOCAL_WORLD_SIZE": "2"},
            "RANK='1', WORLD_SIZE='2', LOCAL_RANK is missing, LOCAL_WORLD_SIZE='2'",
        ),
    ],
)
def test_a_half_set_environment_is_refused_with_what_is_missing(environ: dict[str, str], found: str) -> None:
    """Feature row S4."""
    with pytest.raises(TopologyError) as refused:
        Elastic.topology(environ)
    assert str(refused.value) == (
        f"the environment is half set by torchrun: {found}."
        " Set each of them to a whole number, or unset all of them to run as a single process"
    )


def test_all_malformed_numbers_are_reported_at_once() -> None:
    environ = {"RANK": "one", "WORLD_SIZE": "2", "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "x"}
    with pytest.raises(TopologyError, match=r"RANK='one', WORLD_SIZE='2', LOCAL_RANK='', .* GROUP_RANK='x'"):
        Elastic.topology(environ)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("MASTER_ADDR", "MASTER_ADDR='node0', MASTER_PORT is missing"),
        ("MASTER_PORT", "MASTER_ADDR is missing, MASTER_PORT='29500'"),
    ],
)
def test_half_an_address_is_refused(name: str, found: str) -> None:
    with pytest.raises(TopologyError) as refused:
        Elastic.topology(TWO | {name: ADDRESS[name]})
    assert str(refused.value) == (
        f"the environment is half set by torchrun: {found}."
        " Set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, on every process"
    )


@pytest.mark.parametrize(("port", "text"), [("0", "port 0 cannot be used"), ("http", "MASTER_PORT='http'")])
def test_a_port_that_is_none_is_refused(port: str, text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        Elastic.topology(TWO | {"MASTER_ADDR": "node0", "MASTER_PORT": port})


def test_the_address_of_torchrun_is_where_they_meet() -> None:
    assert meeting(TWO | ADDRESS) == Rendezvous("node0", 29500)
    assert meeting(TWO) is None


def test_a_single_process_meets_nobody() -> None:
    assert meeting({"RANK": "0", "WORLD_SIZE": "1"} | ADDRESS) is None


def test_the_store_of_accel_launch_is_where_they_meet() -> None:
    assert meeting(TWO | ADDRESS | {"ACCEL_STORE_PORT": "4001"}) == Rendezvous("node0", 4001)
    assert meeting(TWO | {"ACCEL_STORE_PORT": "4001", "ACCEL_STORE_FD": "5"}) == Rendezvous("127.0.0.1", 4001, 5)


def test_a_malformed_store_of_accel_launch_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"set by accel launch: ACCEL_STORE_PORT='x'\. .*a whole number"):
        Elastic.topology(TWO | {"ACCEL_STORE_PORT": "x"})


def test_a_launcher_may_leave_the_size_of_the_machine_open() -> None:
    """Feature row S4: some set RANK, WORLD_SIZE and LOCAL_RANK alone."""
    place = Elastic.topology({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"} | ADDRESS)
    assert place is not None
    assert (place.rank, place.local_rank, place.local_world_size) == (5, 1, 8)


def test_torchrun_inside_a_job_of_accel_launch_is_torchrun() -> None:
    """The store of the outer job is inherited, and none of the inner one's business."""
    outer = {"ACCEL_STORE_PORT": "4001", "ACCEL_STORE_FD": "5"}
    inner = Elastic.topology(TWO | ADDRESS | outer | {"TORCHELASTIC_RUN_ID": "none"})
    assert inner is not None
    assert inner.launcher == "torchrun"
    assert inner.rendezvous == Rendezvous("node0", 29500)
