"""The HTTP service around `models`: codecs, batching queue, backends, routes, metrics."""
