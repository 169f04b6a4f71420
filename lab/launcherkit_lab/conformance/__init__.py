"""What a driver of devices must do, as numbered expectations, each tried on a real driver on this machine.

An expectation is a value with a function (`expectation`); what it is tried on is a bench (`trial`), one for each kind
of driver; a list of expectations makes a suite. `report` says what came out.
"""
