"""Golden cases: each is a directory of inputs with the expected document or error.

Integrators can use them in their own CI: `launcherkit.golden.run.check_case` in a test, or ``launcherkit golden`` on
a command line.
"""
