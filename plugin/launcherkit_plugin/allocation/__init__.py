"""Which device goes to which container: reservations, IOMMU groups, preference."""
