"""Bytes of declared states."""

from milepost.specs import Buffer, PagedKV, Recurrent, checkpoint_bytes, kv_block_bytes, window_bytes


def test_bytes_add_up_over_layers_and_kinds() -> None:
    state = Recurrent(
        checkpoint=(Buffer("state", (4, 8)), Buffer("conv", (3, 10), wide=False)), window=(Buffer("window_k", (64, 8)),)
    )
    specs = [(PagedKV(2, 16),), (state,), (PagedKV(2, 16), state), ()]
    assert kv_block_bytes(specs, 2) == 2 * 16 * (2 * 2 * 16 * 2)
    assert checkpoint_bytes(specs, 2) == 2 * (4 * 8 * 4 + 30 * 2)
    assert window_bytes(specs, 2) == 2 * 64 * 8 * 4
    assert checkpoint_bytes([(PagedKV(2, 16),)], 2) == 0
