"""What all gRPC servers of launcherkit share: bounded connections and calls, sockets, refusals."""
