"""What the service costs and does, measured: `make bench`."""
