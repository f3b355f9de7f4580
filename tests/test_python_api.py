"""`import longtake` is the Python API."""

import longtake
from flows.caption import VideoCaptioner


def test_everything_that_is_promised_is_there() -> None:
    assert all(hasattr(longtake, name) for name in longtake.__all__)
    assert longtake.VideoCaptioner is VideoCaptioner and longtake.__version__
