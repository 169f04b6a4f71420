"""What people and programs see of hosts, guests, plans, failures and rehearsals: text, SVG, HTML, JSON. Pure."""
