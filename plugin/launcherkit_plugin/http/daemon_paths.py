"""The paths that the daemon serves on its unix socket to the web process."""

METRICS, NODE_PAGE, EVENTS = "/metrics", "/", "/events"
"""Those that clients ask for, too."""
REVIEW = "/review"
"""Has the token in ``Authorization`` reviewed: 204, or 401 and why it doesn't grant access to the page, or 503."""
