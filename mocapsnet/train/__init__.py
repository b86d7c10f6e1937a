"""Training: fit.py is the loop, settings.py a run's configuration, record.py what a run leaves behind."""
