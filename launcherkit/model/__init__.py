"""Values: addresses, functions, groups, requests, plans. No I/O, no XML, stdlib only."""
