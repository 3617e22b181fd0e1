"""The service on a cluster: its application as deployments of Ray Serve. Nothing here is imported by `service`."""
