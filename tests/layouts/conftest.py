import pytest

from tests.layouts.pool import Pool


# Not for the whole session: gloo keeps the threads of the distributed optimizer's groups, which wake again and again.
@pytest.fixture(scope="package")
def pool():
    workers = Pool(4)
    yield workers
    workers.close()
