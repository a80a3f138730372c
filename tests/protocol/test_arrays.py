import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from concilium.errors import MessageError
from concilium.protocol.sums import Array, pack, unpack


@given(
    arrays(
        st.sampled_from(["u1", "<u2", ">u4", "u8", "i8", "f8"]),
        array_shapes(max_dims=4, max_side=5, min_side=0),
    )
)
def test_an_array_survives_the_journey(values):
    back = unpack(pack(values), values.shape)
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (Array("O", [1], b"x" * 8), "dtype"),
        (Array("u1", [3], b"xx"), "buffer"),
        (Array("u1", [-1], b""), "shape"),
        (Array("f8", [2**39, 2**39], b""), "buffer"),
        (Array("u1", [1] * 5, b"x"), "shape"),
        (Array("u4", [2**62, 4], b""), "shape"),
    ],
)
def test_what_does_not_fit_is_refused(array, problem):
    with pytest.raises(MessageError, match=problem):
        unpack(array)


def test_an_unexpected_shape_is_refused():
    with pytest.raises(MessageError, match=r"\(2, 3\) where \(3, 2\)"):
        unpack(pack(np.zeros((2, 3))), (3, 2))
