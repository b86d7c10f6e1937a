import pytest


@pytest.fixture(autouse=True)
def every_epoch_is_saved(monkeypatch):
    """However short the epochs of a test are."""
    monkeypatch.setattr("mocapsnet.train.fit.SECONDS_BETWEEN_SAVED_EPOCHS", 0)
