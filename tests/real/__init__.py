"""Tests with real services, without mocks."""
