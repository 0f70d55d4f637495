import pytest
from accel_state import TopologyError
from accel_state.environments.slurm import FIRST_PORT, PORTS, Slurm, hosts
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK = settings(derandomize=True, deadline=None)
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[07,11],login",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
}


@pytest.mark.parametrize(("node", "here"), [(0, 2), (1, 2), (2, 1)])
def test_the_tasks_of_its_own_node_are_counted(node: int, here: int) -> None:
    """Feature row S4."""
    topology = Slurm.topology(STEP | {"SLURM_NODEID": str(node)})
    assert topology is not None
    assert (topology.local_world_size, topology.node_rank) == (here, node)


def test_all_tasks_meet_on_the_first_host_of_the_step() -> None:
    place = [Slurm.topology(STEP | {"SLURM_PROCID": str(rank)}) for rank in (0, 3)]
    meetings = {one.rendezvous for one in place if one is not None}
    assert len(meetings) == 1
    (meeting,) = meetings
    assert meeting is not None
    assert meeting.address == "gpu07"
    assert FIRST_PORT <= meeting.port < FIRST_PORT + PORTS


@QUICK
@given(st.integers(0, 10**7), st.integers(0, 500))
def test_the_port_is_below_those_that_linux_hands_out(job: int, step: int) -> None:
    topology = Slurm.topology(STEP | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
    assert topology is not None
    assert topology.rendezvous is not None
    assert 1024 < topology.rendezvous.port < 32768


def test_two_steps_of_one_job_meet_on_different_ports() -> None:
    first, second = (Slurm.topology(STEP | {"SLURM_STEP_ID": step}) for step in "01")
    assert first is not None
    assert second is not None
    assert first.rendezvous != second.rendezvous


def test_an_address_set_by_the_user_wins() -> None:
    topology = Slurm.topology(STEP | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"})
    assert topology is not None
    assert topology.rendezvous is not None
    assert (topology.rendezvous.address, topology.rendezvous.port) == ("10.0.0.1", 1234)


def test_a_batch_script_is_no_step() -> None:
    """Feature row S4: a batch script has a SLURM_PROCID too."""
    assert Slurm.topology({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None


def test_a_step_of_one_task_meets_nobody() -> None:
    one = STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0"}
    topology = Slurm.topology(one | {"SLURM_NODEID": "0"})
    assert topology is not None
    assert topology.rendezvous is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2x2"}, "SLURM_STEP_TASKS_PER_NODE='2x2': expected counts such as 2"),
        ({"SLURM_NODEID": "3"}, "SLURM_NODEID=3, but SLURM_STEP_TASKS_PER_NODE='2.x2.,1' names 3 nodes"),
        ({"SLURM_PROCID": "zero"}, "SLURM_PROCID='zero', .* to a whole number"),
        ({"SLURM_JOB_ID": "job"}, "SLURM_JOB_ID='job', .* to a whole number"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM gave no list of nodes; set MASTER_ADDR and MASTER_PORT"),
        ({"SLURM_STEP_NODELIST": ","}, "the list of nodes ',' names none; set MASTER_ADDR and MASTER_PORT"),
        ({"SLURM_STEP_NODELIST": "gpu[a-b]"}, r"the node list has 'gpu\[a-b\]': expected numbers and ranges"),
        ({"SLURM_PROCID": "5"}, "found by 'SLURM': rank 5 of a world of 5: expected 0 to 4"),
    ],
)
def test_variables_that_make_no_sense_are_refused(change: dict[str, str], text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        Slurm.topology(STEP | change)


def test_a_step_with_missing_variables_is_refused_with_their_names() -> None:
    with pytest.raises(
        TopologyError, match="set by SLURM: SLURM_PROCID is missing, SLURM_STEP_NUM_TASKS='5', SLURM_LOC"
    ):
        Slurm.topology({"SLURM_STEP_NUM_TASKS": "5"})


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("gpu[01-03,07],login", ["gpu01", "gpu02", "gpu03", "gpu07", "login"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]x", ["n098x", "n099x", "n100x", "n101x"]),
        ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
    ],
)
def test_the_short_form_of_hosts_is_expanded_in_order(nodes: str, expected: list[str]) -> None:
    assert list(hosts(nodes)) == expected


@QUICK
@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z][a-z0-9.\-]{0,5}", fullmatch=True),
            st.lists(st.tuples(st.integers(0, 99), st.integers(0, 4)), max_size=3),
            st.integers(1, 3),
            st.from_regex(r"[a-z.\-]{0,3}", fullmatch=True),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_list_of_hosts_is_expanded_to_what_it_was_made_of(
    groups: list[tuple[str, list[tuple[int, int]], int, str]],
) -> None:
    short, long = [], []
    for prefix, ranges, width, suffix in groups:
        spans = [f"{first:0{width}d}" + (f"-{first + more:0{width}d}" if more else "") for first, more in ranges]
        short.append(f"{prefix}[{','.join(spans)}]{suffix}" if ranges else prefix + suffix)
        long += [
            f"{prefix}{number:0{width}d}{suffix}" for first, more in ranges for number in range(first, first + more + 1)
        ] or [prefix + suffix]
    assert list(hosts(",".join(short))) == long
