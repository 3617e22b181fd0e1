"""`attention loadtest`: Locust against one or several services, the rate that each holds, and a report of it."""
