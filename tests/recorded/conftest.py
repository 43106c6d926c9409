from tests.layouts.conftest import pool

__all__ = ["pool"]
