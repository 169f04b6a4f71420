"""The preflight: what would keep a VM from its devices, found before it is started.

`gather` reads the machine; every other module here is pure and says what follows from the facts.
"""
