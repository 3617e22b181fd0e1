"""Load on a running service, and measures of it. Knows the wire only: nothing here imports `service` or `models`."""
