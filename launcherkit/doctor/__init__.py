"""The preflight: what would keep a VM from its devices, found before it is started.

`gather` reads the machine; every other module here is pure and evaluates the facts.
"""
