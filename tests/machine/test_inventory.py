"""What a run or a page says it was made with."""

import maclaurin
from maclaurin.machine.inventory import versions


def test_the_version_that_is_reported_is_that_of_the_package():
    assert versions()["maclaurin"] == maclaurin.__version__
