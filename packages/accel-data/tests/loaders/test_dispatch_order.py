"""Of a stream that rank 0 reads, ranks take the batches in the order of the loader: with workers, without, resumed."""

from typing import Any

import pytest
from accel_comm.transports.torch_dist import TorchDist
from accel_data import prepare_data_loader
from accel_data.iterable.read_batch import ReadCollate
from accel_testing import MakePool
from suite.toy_models import RangeStream
from torch.utils.data import DataLoader

N = 12


def plain(workers: int, size: int | None) -> DataLoader[Any]:
    return DataLoader(RangeStream(N), size, num_workers=workers)


def served_and_resumed(workers: int, size: int | None) -> tuple[list[Any], list[Any], int]:
    """What a pass serves, what is served again from its second batch on, and how many steps the loader makes."""
    transport, state = TorchDist(), dict[str, Any]()
    loader: Any = prepare_data_loader(plain(workers, size), dispatch_batches=True, transport=transport)
    steps, collate = list[int](), ReadCollate.__call__

    def counted(self: ReadCollate, read: Any) -> Any:
        steps.append(1)
        return collate(self, read)

    served = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReadCollate, "__call__", counted)
        for batch in loader:
            served.append(batch.tolist())
            if len(served) == 1:
                state = loader.state_dict()
    again: Any = prepare_data_loader(plain(workers, size), dispatch_batches=True, transport=transport)
    again.load_state_dict(state)
    return served, [batch.tolist() for batch in again], len(steps)


@pytest.mark.filterwarnings("ignore:.* samples are read again")
@pytest.mark.parametrize(("workers", "size"), [(0, 2), (0, None), (2, 2)])
def test_ranks_take_turns_in_the_order_of_the_loader(world: MakePool, workers: int, size: int | None) -> None:
    """In the process of rank 0 a round is one step of the loader; workers take turns batch by batch."""
    batches = [batch.tolist() for batch in plain(workers, size)]
    results = world(2).run(served_and_resumed, workers, size)
    for rank, (served, again, _) in enumerate(results):
        assert served == batches[rank::2]
        assert again == served[1:]
    assert [steps for *_, steps in results] == [0 if workers else len(batches) // 2, 0]
