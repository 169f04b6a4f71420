"""Binds IOMMU groups to vfio-pci and gives them back (K8)."""
