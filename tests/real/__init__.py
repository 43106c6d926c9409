"""Against services that are really there: no mocks."""
