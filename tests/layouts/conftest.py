import pytest

from tests.layouts.pool import Pool


@pytest.fixture(scope="session")
def pool():
    workers = Pool(4)
    yield workers
    workers.close()
