"""What every gRPC server of launcherkit has: bounded connections and calls, sockets, refusals."""
