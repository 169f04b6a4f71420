"""News of changes, from the kernel: that there is some, never what it is. Who is told looks anew."""
