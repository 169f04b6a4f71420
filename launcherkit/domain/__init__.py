"""The only package with lxml: reads facts out of a domain document, writes hostdevs and controllers into it."""
