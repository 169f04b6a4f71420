"""Golden cases: a directory of inputs each, with the document or the error that is expected.

For integrators' own CI as for ours: `launcherkit.golden.run.check_case` in a test, or ``launcherkit golden`` on a
command line.
"""
